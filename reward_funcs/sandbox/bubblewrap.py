"""The command that puts the server into bubblewrap: a root of its own with read-only folders, without a network.

Left out: what each program gets on top (server.py gives every one its own processes, mounts and user).
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from reward_funcs.sandbox.interpreter import DEVICES, Interpreter

OWN_FOLDER = "/sandbox"  # each program's own file system is mounted there


def find_bubblewrap() -> str | None:
    """The program, if it is installed."""
    return shutil.which("bwrap", path=os.environ.get("PATH", "") + ":/usr/bin:/bin:/usr/local/bin")


def bubblewrap_command(program: str, interpreter: Interpreter, *, info_fd: int, privileged: bool) -> list[str]:
    """All words up to the server's own. info_fd: where bwrap tells the pid of its init. privileged: we are root."""
    words = [program, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    # Root needs no user namespace, and in one it could not give each program a user of its own.
    words += ["--cap-add", "ALL"] if privileged else ["--unshare-user"]
    words += ["--hostname", "sandbox", "--info-fd", str(info_fd), "--proc", "/proc"]
    for folder in _parents([*interpreter.readable, f"{OWN_FOLDER}/any", "/dev/shm/any"]):
        words += ["--dir", folder]  # made on the way to a path, it would be open to us alone
    if not any(path.startswith("/tmp/") for path in interpreter.readable):
        words += ["--symlink", f"{OWN_FOLDER}/tmp", "/tmp"]
    for path in sorted(interpreter.readable):  # a folder comes before what is inside it
        if os.path.islink(path) and stat.S_ISDIR(os.stat(path).st_mode):
            words += ["--symlink", os.readlink(path), path]  # /lib -> usr/lib
        else:
            words += ["--ro-bind", path, path]
    for device in DEVICES:
        words += ["--dev-bind", device, device]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        words += ["--symlink", f"/proc/self/fd/{number}", f"/dev/{name}"]
    return [*words, "--symlink", "/proc/self/fd", "/dev/fd", "--remount-ro", "/", "--chdir", "/", "--"]


def _parents(paths: list[str]) -> list[str]:
    """Folders above `paths` that are not themselves inside one of them, outermost first."""
    above = {str(folder) for path in paths for folder in Path(path).parents}
    return sorted(folder for folder in above if not any(Path(folder).is_relative_to(path) for path in paths))
