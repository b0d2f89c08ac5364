"""The system call filter, evaluated here instruction by instruction: what it answers to which call."""

from __future__ import annotations

import platform
import struct

import pytest

from reward_funcs.sandbox.seccomp import filter_program, for_process
from reward_funcs.sandbox.syscalls import AUDIT_ARCH, numbers

ALLOW, EPERM, ENOTTY, ENOSYS, EOPNOTSUPP, AS_IF_DONE = "allow", 1, 25, 38, 95, 0
PID = 4321
MACHINES = ("x86_64", "aarch64")


def answer(machine: str, isolated: bool, name: str | int, *arguments: int, arch: int | None = None) -> object:
    """ALLOW, "kill" or an errno."""
    number = numbers(machine)[name] if isinstance(name, str) else name  # type: ignore[index]
    padded = [*arguments, *[0] * (6 - len(arguments))]
    call = struct.pack("<IIQ6Q", number, AUDIT_ARCH[machine] if arch is None else arch, 0, *padded)
    program = filter_program(isolated=isolated, machine=machine)
    assert program is not None
    code = list(struct.iter_unpack("<HBBI", for_process(program, PID)))
    at, loaded = 0, 0
    while True:
        operation, if_true, if_false, operand = code[at]
        at += 1
        if operation == 0x20:
            loaded = struct.unpack_from("<I", call, operand)[0]
        elif operation == 0x54:
            loaded &= operand
        elif operation in (0x15, 0x25, 0x35):
            holds = {0x15: loaded == operand, 0x25: loaded > operand, 0x35: loaded >= operand}[operation]
            at += if_true if holds else if_false
        else:
            assert operation == 0x06
            return {0x7FFF0000: ALLOW, 0x80000000: "kill"}.get(operand, operand & 0xFFFF)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("isolated", [True, False])
def test_ordinary_work_is_allowed_and_the_kernel_s_back_doors_are_not(machine: str, isolated: bool):
    for name in (
        "read",
        "write",
        "openat",
        "mmap",
        "futex",
        "exit_group",
        "epoll_ctl",
        "getrandom",
        "wait4",
        "recvfrom",
    ):
        assert answer(machine, isolated, name) == ALLOW
    for name in ("socket", "seccomp", "setns", "unshare", "pivot_root", "capset"):
        assert answer(machine, isolated, name) == EPERM
    assert answer(machine, isolated, "clone3") == ENOSYS  # a libc then takes clone, whose flags can be read
    for newer in (425, 434 if not isolated else 425, 446, 500):  # io_uring_setup, landlock, and what is yet to come
        assert answer(machine, isolated, newer) == ENOSYS
    assert answer(machine, isolated, "getxattr") == EOPNOTSUPP


def test_other_back_doors_by_their_numbers_on_x86_64():
    calls = {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "mount": 165, "umount2": 166,
        "chroot": 161, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "memfd_create": 319, "keyctl": 250,
        "add_key": 248, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "open_by_handle_at": 304,
        "name_to_handle_at": 303, "personality": 135, "iopl": 172, "init_module": 175, "kexec_load": 246, "reboot":
        169, "setuid": 105, "setresuid": 117, "setgroups": 116, "setpriority": 141, "sched_setscheduler": 144,
        "ioprio_set": 251, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "timer_create": 222, "inotify_init":
        253, "fanotify_init": 300, "bind": 49, "connect": 42, "listen": 50, "accept": 43, "setsockopt": 54,
        "vmsplice": 278, "acct": 163, "mknod": 133, "syslog": 103, "swapon": 167, "clock_settime": 227,
        "move_pages": 279, "lookup_dcookie": 212, "mlock": 149,
    }  # fmt: skip
    for isolated in (True, False):
        assert {name: answer("x86_64", isolated, number) for name, number in calls.items()} == dict.fromkeys(
            calls, EPERM
        )


@pytest.mark.parametrize("machine", MACHINES)
def test_another_architecture_s_calls_end_the_process(machine: str):
    assert answer(machine, True, "read", arch=0x40000003) == "kill"  # i386
    if machine == "x86_64":
        assert answer(machine, True, 0x40000000 + 1) == ENOSYS  # x32


@pytest.mark.parametrize("machine", MACHINES)
def test_under_landlock_there_are_threads_but_no_processes(machine: str):
    thread, process, namespace = 0x3D0F00, 17, 17 | 0x10000000
    assert answer(machine, False, "clone", thread) == ALLOW
    assert answer(machine, False, "clone", process) == EPERM
    assert answer(machine, False, "clone", thread | 0x20000) == EPERM
    assert answer(machine, False, "execve") == EPERM
    assert answer(machine, True, "clone", thread) == ALLOW
    assert answer(machine, True, "clone", process) == ALLOW
    assert answer(machine, True, "clone", namespace) == EPERM
    assert answer(machine, True, "execve") == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_under_landlock_a_process_may_signal_itself_only_and_not_with_sigkill(machine: str):
    assert answer(machine, False, "kill", PID, 10) == ALLOW
    assert answer(machine, False, "kill", PID, 9) == EPERM
    for other in (1, PID + 1, 0, 2**32 - 1):
        assert answer(machine, False, "kill", other, 10) == EPERM
        assert answer(machine, False, "tgkill", other, other, 10) == EPERM
    assert answer(machine, False, "tgkill", PID, PID, 9) == EPERM
    assert answer(machine, False, "tgkill", PID, PID + 3, 6) == ALLOW
    for name in ("tkill", "pidfd_send_signal"):
        assert answer(machine, False, name, PID, 10) != ALLOW
    assert answer(machine, True, "kill", 1, 9) == ALLOW  # it sees only what is its own


@pytest.mark.parametrize("machine", MACHINES)
def test_under_landlock_owners_modes_and_times_stay_as_they_are(machine: str):
    for name in ("fchmod", "fchmodat", "fchown", "fchownat", "utimensat"):
        assert answer(machine, False, name) == AS_IF_DONE
        assert answer(machine, True, name) == ALLOW  # nothing but its own file system is writable
    assert answer(machine, False, "truncate") == EPERM
    assert answer(machine, False, "fallocate") == EOPNOTSUPP
    assert answer(machine, False, "ftruncate") == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("isolated", [True, False])
def test_calls_that_depend_on_their_arguments(machine: str, isolated: bool):
    assert answer(machine, isolated, "socketpair", 1, 1 | 0o2000000) == ALLOW
    assert answer(machine, isolated, "socketpair", 1, 2) == EPERM  # datagrams can be sent elsewhere
    assert answer(machine, isolated, "socketpair", 2, 1) == EPERM
    assert answer(machine, isolated, "fcntl", 0, 3) == ALLOW
    for command in (8, 10, 15, 1024, 1026, 1031, 1033):  # F_SETOWN, F_SETSIG, leases, F_NOTIFY, pipe sizes, seals
        assert answer(machine, isolated, "fcntl", 0, command) == EPERM
    assert answer(machine, isolated, "ioctl", 0, 0x5401) == ALLOW
    for request in (0x5412, 0x541C, 0x8901, 0x40086602):  # TIOCSTI, TIOCLINUX, FIOSETOWN, FS_IOC_SETFLAGS
        assert answer(machine, isolated, "ioctl", 0, request) == ENOTTY
    assert answer(machine, isolated, "prlimit64", 0, 7) == ALLOW
    assert answer(machine, isolated, "prlimit64", 1, 7) == EPERM
    assert answer(machine, isolated, "sched_setaffinity", 77) == EPERM


def test_an_unknown_processor_has_no_filter_and_ours_has_one():
    assert filter_program(isolated=True, machine="s390x") is None
    assert filter_program(isolated=True, machine=platform.machine()) is not None or platform.machine() not in AUDIT_ARCH
