"""The Python that runs programs under test, and the folders that they may read: it, its packages, system libraries.

The same interpreter as ours, and its installed packages, so that a program finds the numpy that its tests expect.
"""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent

# No /home, /root, /var, /opt, /etc as a whole, and nothing of the working directory.
_SYSTEM = (
    *("/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local/lib", "/usr/bin", "/usr/share/zoneinfo"),
    *("/lib", "/lib32", "/lib64", "/bin"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

# The boot line stands in for the package's own __init__ files: they import every reward, which no jail needs.
_BOOT = """
import sys, types
for name, path in (("reward_funcs", sys.argv[1]), ("reward_funcs.sandbox", sys.argv[1] + "/sandbox")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
sys.path[:] = [entry for entry in sys.path if entry]
from reward_funcs.sandbox.server import main
main(sys.argv[2])
"""


@dataclass(frozen=True)
class Interpreter:
    """executable: the real file, past symbolic links. packages: its site-packages. readable: what programs may read."""

    executable: str
    packages: tuple[str, ...]
    readable: tuple[str, ...]

    def command(self, settings: str) -> list[str]:
        """Starts the server. settings: JSON text for its `main`."""
        # -S: no .pth file runs. -s: no user site. Not -I: it would ignore PYTHONHASHSEED, and scores must repeat.
        return [self.executable, "-s", "-S", "-B", "-c", _BOOT, str(HERE.parent), settings]

    def open_to_others(self, *, parents: bool) -> bool:
        """Whether any user may read the standard library. parents: the folders above it count, too."""
        library = Path(os.__file__).resolve()
        if not library.stat().st_mode & 0o004 or not library.parent.stat().st_mode & 0o001:
            return False
        return not parents or all(folder.stat().st_mode & 0o001 for folder in library.parents)


@functools.cache
def find_interpreter() -> Interpreter:
    """The running one."""
    executable = os.path.realpath(sys.executable)
    packages = tuple(
        os.path.realpath(entry)
        for entry in sys.path
        if os.path.basename(entry) in ("site-packages", "dist-packages") and os.path.isdir(entry)
    )
    prefix = Path(sys.base_prefix)
    own = [str(prefix / name) for name in ("lib", "lib64", "bin") if (prefix / name).is_dir()]
    readable = dict.fromkeys([*_SYSTEM, *own, *packages, os.path.dirname(executable), str(HERE)])
    return Interpreter(executable, packages, tuple(path for path in readable if os.path.exists(path)))


def environment(work: str) -> dict[str, str]:
    """The whole environment of a program under test: nothing of ours is passed on."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": work,
        "TMPDIR": work,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONUTF8": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
