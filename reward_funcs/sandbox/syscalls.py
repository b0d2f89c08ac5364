"""Numbers of the system calls that the filter names, on the two processors that it knows. Data only.

Taken from Linux's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64), which has no open, fork and their kin.
"""

from __future__ import annotations

import functools
import platform

_TABLE = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70
preadv2:327:286 pwritev2:328:287 open:2:- openat:257:56 openat2:437:437 creat:85:- close:3:57
close_range:436:436 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 statfs:137:43 fstatfs:138:44
access:21:- faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 lseek:8:62 mmap:9:222
munmap:11:215 mremap:25:216 mprotect:10:226 madvise:28:233 brk:12:214 msync:26:227 fadvise64:221:223 fsync:74:82
fdatasync:75:83 ftruncate:77:46 flock:73:32 dup:32:23 dup2:33:- dup3:292:24 pipe:22:- pipe2:293:59 poll:7:-
ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19 timerfd_create:283:85
timerfd_settime:286:86 timerfd_gettime:287:87 signalfd:282:- signalfd4:289:74 rt_sigaction:13:134
rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137 rt_sigsuspend:130:133
sigaltstack:131:132 alarm:37:- setitimer:38:103 getitimer:36:102 pause:34:- nanosleep:35:101
clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169 time:201:- times:100:153
getrusage:98:165 sysinfo:99:179 uname:63:160 getrandom:318:278 getcpu:309:168 getpid:39:172 getppid:110:173
gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getresuid:118:148 getresgid:120:150
getgroups:115:158 getpgid:121:155 getpgrp:111:- getsid:124:156 setsid:112:157 setpgid:109:154
getpriority:140:141 getrlimit:97:163 setrlimit:160:164 sched_yield:24:124 sched_getaffinity:204:123
sched_getparam:143:121 sched_getscheduler:145:120 sched_get_priority_max:146:125 sched_get_priority_min:147:126
futex:202:98 futex_waitv:449:449 set_robust_list:273:99 set_tid_address:218:96 rseq:334:293 membarrier:324:283
restart_syscall:219:128 exit:60:93 exit_group:231:94 wait4:61:260 waitid:247:95 getcwd:79:17 chdir:80:49
fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:- unlinkat:263:35 rename:82:- renameat:264:38
renameat2:316:276 link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 getdents:78:- getdents64:217:61
umask:95:166 copy_file_range:326:285 sendfile:40:71 sendto:44:206 recvfrom:45:207 sendmsg:46:211 recvmsg:47:212
shutdown:48:210 getsockopt:55:209 getsockname:51:204 getpeername:52:205 prctl:157:167 arch_prctl:158:-
capget:125:90 set_thread_area:205:- fork:57:- vfork:58:- clone:56:220 clone3:435:435 execve:59:221
execveat:322:281 kill:62:129 tgkill:234:131 tkill:200:130 pidfd_open:434:434 pidfd_send_signal:424:424
truncate:76:45 fallocate:285:47 chmod:90:- fchmod:91:52 fchmodat:268:53 fchmodat2:452:452 chown:92:-
fchown:93:55 lchown:94:- fchownat:260:54 utime:132:- utimes:235:- futimesat:261:- utimensat:280:88
getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10 listxattr:194:11 llistxattr:195:12 flistxattr:196:13
setxattr:188:5 lsetxattr:189:6 fsetxattr:190:7 fcntl:72:25 ioctl:16:29 socketpair:53:199 prlimit64:302:261
sched_setaffinity:203:122 socket:41:198 seccomp:317:277 capset:126:91 landlock_create_ruleset:444:444
landlock_add_rule:445:445 landlock_restrict_self:446:446 setns:308:268 unshare:272:97 pivot_root:155:41
"""
_COLUMN = {"x86_64": 1, "amd64": 1, "aarch64": 2, "arm64": 2}
AUDIT_ARCH = {"x86_64": 0xC000003E, "amd64": 0xC000003E, "aarch64": 0xC00000B7, "arm64": 0xC00000B7}


@functools.cache
def numbers(machine: str | None = None) -> dict[str, int] | None:
    """Name to number on `machine` (this one); a call that it lacks is absent. None: not a processor we know."""
    column = _COLUMN.get((machine or platform.machine()).lower())
    if column is None:
        return None
    entries = (entry.split(":") for entry in _TABLE.split())
    return {entry[0]: int(entry[column]) for entry in entries if entry[column] != "-"}
