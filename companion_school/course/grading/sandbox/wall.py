"""The wall that keeps a student's code away from the grader, its secret, other students' work and the machine.

There are three walls. `choose` picks the first of them that works on this system:

- `Bubblewrap`: the code runs under `bwrap` (Linux), without network or home folder, in its own process namespace, on a
  read-only file system that contains only Python and its libraries.
- `AnotherUser`: the code runs as a user without files or capabilities. This wall is for graders that run as root on
  systems where `bwrap` does not work, such as most containers. The code cannot read files that only root can read.
- `Wall` itself: the code is only subject to limits on time, memory, processes and files. It is used only on request.

The instructor's process starts the worker (`child.py`) with the `command` that a wall returns. The worker calls `fork`
for each part of an exercise, and the new process calls `give_up`. Because the worker runs this code, the file imports
only the standard library. `python wall.py NAME` tests whether a wall works on this system.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_NEW_MOUNTS, _NEW_IPC, _NEW_USERS = 0x20000, 0x8000000, 0x10000000  # linux/sched.h
_NEW_PROCESSES, _NEW_NETWORK = 0x20000000, 0x40000000
_NO_NEW_PRIVILEGES, _DETACH, _BIND, _PRIVATE = 38, 2, 0x5000, 0x44000  # linux/prctl.h, linux/mount.h
_NO_PROGRAMS = 0xE  # MS_NOSUID | MS_NODEV | MS_NOEXEC in linux/mount.h
_CAPABILITIES_3 = 0x20080522  # linux/capability.h
_INSIDE = "/grader"
_SHALLOW, _NO_FILES = 3, ("/proc", "/sys", "/dev/pts", "/dev/fd")
_REMOVE = 0  # IPC_RMID in linux/ipc.h
_MOST_USERS = 2**15


class Wall:
    """A barrier between a student's process and everything else. The base class adds nothing to the limits of
    `child.py`.

    Attributes:
        name: Name by which `child.py` selects the wall that it runs behind.
        warning: Warning to show on every page with marks that were computed behind this wall, or an empty string.
    """

    name = "none"
    warning = "graded without a sandbox: the code could have read this machine's files, and its marks prove little"

    def command(self, program: Sequence[Path], arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the first Python file, with the other files' paths and then the arguments."""
        return [sys.executable, "-I", *map(str, program), *arguments]

    def fault(self, guarded: Sequence[Path]) -> str:
        """Return the reason why one of these files or folders can be read from behind the wall, or an empty string."""
        return ""

    def fork(self) -> int:
        """Fork. The new process, in which this method returns 0, must then call `give_up`."""
        return os.fork()

    def give_up(self, user: int, writes: int = 0) -> str:
        """Give up all privileges that a student's code must not have.

        Args:
            user: An id that no other process uses.
            writes: Number of bytes that the process may write to its own files; 0 for no files.

        Returns:
            The folder for these files.
        """
        return "/tmp"

    def sweep(self, user: int) -> None:
        """Remove anything that a process of this user may have left for a later process to find."""


class Bubblewrap(Wall):
    """A `bwrap` sandbox in which each part also has its own process and mount namespaces and its own shared memory.

    Root starts the sandbox without a user namespace, so that parts can run as different users. Other users start it in
    a user namespace, and each part gets its own nested user namespace.
    """

    name, warning = "bubblewrap", ""

    def command(self, program: Sequence[Path], arguments: Sequence[str]) -> list[str]:
        inside = {file: f"{_INSIDE}/{file.name}" for file in program}
        flags = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        flags += ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        rights = ["CAP_SYS_ADMIN", "CAP_SYS_CHROOT"]
        if os.geteuid() == 0:
            rights += ["CAP_SETUID", "CAP_SETGID", "CAP_KILL"]
        else:
            # a worker that runs as a different user would have no rights over its own processes
            flags += ["--unshare-user", "--uid", "0", "--gid", "0"]
        flags += [word for right in rights for word in ("--cap-add", right)]
        flags += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/dev/shm", "--dir", "/tmp"]
        for path in _shown():
            for folder in [*Path(path).parents][-2::-1]:
                flags += ["--dir", str(folder)]  # otherwise only the owner can enter the folder
            flags += ["--symlink", os.readlink(path), path] if os.path.islink(path) else ["--ro-bind", path, path]
        hidden = _copies_of_the_course()
        flags += [word for path in hidden for word in ("--tmpfs", path)]
        flags += [word for file, name in inside.items() for word in ("--ro-bind", str(file), name)]
        flags += [word for path in (*hidden, "/dev/shm", "/dev", "/") for word in ("--remount-ro", path)]
        python = [sys.executable, "-I", *inside.values()]
        return ["bwrap", *flags, "--chdir", "/tmp", "--", *python, *arguments]

    def fault(self, guarded: Sequence[Path]) -> str:
        hidden = [Path(folder).resolve() for folder in _copies_of_the_course()]
        for path in guarded:
            real = Path(path).resolve()
            seen = [shown for shown in _shown() if real.is_relative_to(Path(shown).resolve())]
            if seen and not any(real.is_relative_to(folder) for folder in hidden):
                return f"{path} lies in {seen[0]}, which students' code can read; move it elsewhere"
        return ""

    def fork(self) -> int:
        own = os.open("/proc/self/ns/pid", os.O_RDONLY)
        try:
            _kernel("unshare", _NEW_PROCESSES)
            if child := os.fork():
                _kernel("setns", own, _NEW_PROCESSES)
            return child
        finally:
            os.close(own)

    def give_up(self, user: int, writes: int = 0) -> str:
        with open("/proc/self/uid_map") as known:
            has_other_users = int(known.readline().split()[2]) > 1
        _kernel("unshare", _NEW_MOUNTS | _NEW_IPC)
        ctypes.CDLL(None).umount2(b"/proc/sys", _DETACH)  # bwrap makes /proc/sys read-only
        _without_shared_memory()
        _kernel("umount2", b"/proc", _DETACH)  # through /proc, a part could inspect the worker
        own = 0 if has_other_users else _NEW_USERS  # keyrings are per user
        _room_for_files("/tmp", writes)
        _without_namespaces("/tmp", own)
        if has_other_users:
            _become(user)
        _without_capabilities()
        return "/tmp"


class AnotherUser(Wall):
    """A user without an account, groups or capabilities who runs no other processes. Needs root."""

    name, warning = "another user", ""

    def fault(self, guarded: Sequence[Path]) -> str:
        exposed = [path for path in guarded if _others_can_read(Path(path).resolve())]
        return f"{exposed[0]} can be read by other users; chmod go-rwx {exposed[0]}" if exposed else ""

    def give_up(self, user: int, writes: int = 0) -> str:
        folder = os.getcwd()
        libc = ctypes.CDLL(None, use_errno=True)
        is_apart = libc.unshare(_NEW_MOUNTS | _NEW_IPC | _NEW_NETWORK) == 0  # forbidden in most containers
        if is_apart:
            _without_shared_memory()
            _kernel("mount", b"none", b"/", None, _PRIVATE, None)
            _room_for_files(folder, writes)
            _without_namespaces(folder)
        _become(user)
        if not is_apart:
            libc.unshare(_NEW_USERS | _NEW_IPC | _NEW_NETWORK)  # not every system allows this; see `reaches_network`
        _without_capabilities()
        return folder if is_apart else "/tmp"  # `sweep` removes files left in /tmp

    def sweep(self, user: int) -> None:
        _remove_shared_memory(user)
        for folder in _open_folders():
            for left in os.scandir(folder) if os.path.isdir(folder) else ():
                try:
                    if left.stat(follow_symlinks=False).st_uid == user:
                        shutil.rmtree(left.path) if left.is_dir(follow_symlinks=False) else os.unlink(left.path)
                except OSError:
                    continue


WALLS: dict[str, Wall] = {wall.name: wall for wall in (Bubblewrap(), AnotherUser(), Wall())}


def choose(guarded: Sequence[Path] = (), *, no_sandbox: bool = False) -> Wall:
    """Return the best wall that works on this system.

    Args:
        guarded: Files and folders that students' code must not reach: the secret, the references and the submissions.
        no_sandbox: Use no wall.

    Raises:
        ValueError: No wall works here, or one of `guarded` can be reached.
    """
    if no_sandbox:
        return WALLS["none"]
    reasons = []
    for wall in (WALLS["bubblewrap"], WALLS["another user"]):
        reason = stands(wall.name) or wall.fault(guarded)
        if not reason:
            return wall
        reasons.append(f"{wall.name}: {reason}")
    raise ValueError(
        "--no-sandbox is required, because nothing on this machine protects your files and the marks from students' "
        "code "
        f"({'; '.join(reasons)}). On Linux, install bubblewrap (Debian, Ubuntu: apt install bubblewrap). On macOS and "
        "Windows, run companion grade in a Linux container, as root (docker run --rm --network none ...), or in WSL"
    )


def best() -> Wall:
    """Return the best wall on this system for code that is only parsed, or no wall if none works."""
    return next(wall for name, wall in WALLS.items() if name == "none" or not stands(name))


def stands(name: str) -> str:
    """Return the reason why this wall does not work on this system, or "" if it works."""
    return _tried(name)[0]


def reaches_network(name: str) -> bool:
    """Return True if code behind this wall can use the network, because the system cannot block it."""
    return _tried(name)[1]


@cache
def _tried(name: str) -> tuple[str, bool]:
    """Return the reason why this wall does not work here, and whether code behind it can use the network."""
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, and this is {sys.platform}", False
    if name == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed", False
    if name == "another user" and os.geteuid() != 0:
        return "it needs root", False
    try:
        command = WALLS[name].command([Path(__file__)], [name])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start ({error})", False
    said = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    return "" if done.returncode == 0 else f"it does not start ({said})", "network" in done.stdout


def spare_users(mapped: str) -> range:
    """Return user ids for students' processes that do not belong to any account.

    Args:
        mapped: The text of /proc/self/uid_map, which lists the existing ids (possibly only a few in a container).
    """
    ends = [int(first) + int(many) for first, _, many in (line.split() for line in mapped.splitlines())]
    last = max(ends, default=2**32) - 2  # the last id belongs to "nobody"
    if last < 2000:  # in a namespace with a single user, a process cannot change its user
        last = 2**32
    first = 1_900_000_000 if last > 2_100_000_000 else max(1000, last - _MOST_USERS)
    return range(first, min(first + _MOST_USERS * 2**12, last))


@cache
def _shown() -> tuple[str, ...]:
    """Return the paths visible inside the `bwrap` sandbox: the system and Python libraries, but no home directories."""
    system = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/etc/ld.so.cache", "/etc/alternatives")
    prefixes = dict.fromkeys((sys.base_prefix, sys.prefix))
    parts = ("lib", "lib64", "bin", "pyvenv.cfg")
    python = [os.path.join(prefix, part) for prefix in prefixes for part in parts]
    python += [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    found = [*system, *(path for path in python if not Path(path).resolve().is_relative_to("/usr"))]
    kept: list[str] = []
    for path in found:
        if os.path.exists(path) and not any(Path(path).is_relative_to(other) for other in kept):
            kept.append(path)
    return tuple(kept)


@cache
def _copies_of_the_course() -> tuple[str, ...]:
    """Return the course's folders among the installed libraries. They contain references and must be hidden."""
    places = ("", "python*/*-packages/", "lib*/python*/*-packages/", "local/lib/python*/*-packages/")
    names = ("companion", "companion_school")
    found = (path for shown in _shown() for at in places for name in names for path in Path(shown).glob(at + name))
    return tuple(str(path) for path in found if path.is_dir())


@cache
def _open_folders() -> tuple[str, ...]:
    """Return the folders near the root in which every user may create files."""
    found, waiting = [], [("/", 0)]
    while waiting:
        folder, depth = waiting.pop()
        with contextlib.suppress(OSError):
            for inner in os.scandir(folder):
                if inner.path in _NO_FILES or inner.is_symlink() or not inner.is_dir(follow_symlinks=False):
                    continue
                if inner.stat(follow_symlinks=False).st_mode & stat.S_IWOTH:
                    found.append(inner.path)
                elif depth + 1 < _SHALLOW:
                    waiting.append((inner.path, depth + 1))
    return tuple(found)


def _room_for_files(folder: str, size: int) -> None:
    """Mount an in-memory file system on `folder` that only this process sees, or do nothing if the size is 0."""
    if size:
        _kernel("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", _NO_PROGRAMS, f"size={size},nr_inodes=64".encode())


def _without_namespaces(folder: str, last: int = 0) -> None:
    """Make `folder` the root of the file system, so that the kernel does not let this process create namespaces.

    Args:
        folder: The new root.
        last: Flags of the namespaces to create before the root changes.
    """
    _kernel("mount", b"/", os.fsencode(folder), None, _BIND, None)
    if last:
        _kernel("unshare", last)
    os.chroot(folder)
    os.chdir(folder)


def _without_shared_memory() -> None:
    """Forbid System V shared memory, queues and semaphores in this namespace, because no limit applies to them."""
    for name, value in (("shmmni", "0"), ("msgmni", "0"), ("sem", "0 0 0 0")):
        with contextlib.suppress(OSError), open(f"/proc/sys/kernel/{name}", "w") as switch:
            switch.write(value)


def _remove_shared_memory(user: int) -> None:
    """Remove a user's System V shared memory, which would outlive the user's processes."""
    left = []
    for kind, call in (("shm", "shmctl"), ("sem", "semctl"), ("msg", "msgctl")):
        with contextlib.suppress(OSError), open(f"/proc/sysvipc/{kind}") as file:
            names, *rows = (line.split() for line in file)
            objects = (dict(zip(names, row, strict=False)) for row in rows)
            left += [(call, int(one[f"{kind}id"])) for one in objects if str(user) in (one["uid"], one["cuid"])]
    if not left:
        return
    if child := os.fork():
        os.waitpid(child, 0)
        return
    with contextlib.suppress(BaseException):
        _become(user)  # only the owner may remove it, not root without capabilities
        libc = ctypes.CDLL(None)
        for call, number in left:
            getattr(libc, call)(number, *[0] * (call == "semctl"), _REMOVE, None)
    os._exit(0)


def _others_can_read(path: Path) -> bool:
    """Return True if a user who owns no files can read this file or list this folder."""
    try:
        mode = path.stat().st_mode
        own = mode & (stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH)
        return bool(own) and all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    except OSError:
        return False


def _become(user: int) -> None:
    """Switch to a user without groups, which also drops root privileges."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _without_capabilities() -> None:
    """Drop all capabilities, and prevent child programs from gaining any."""
    _kernel("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _kernel("capset", struct.pack("=Ii", _CAPABILITIES_3, 0), struct.pack("=6I", *[0] * 6))


def _kernel(call: str, *arguments: int | bytes | None) -> None:
    """Call a function of the C library, and raise `OSError` if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, call)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _try(name: str) -> int:
    """Test whether a process can be put behind this wall, and return 0 if it can."""
    wall = WALLS[name]
    if child := wall.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        with open("/proc/self/uid_map") as mapped:
            wall.give_up(spare_users(mapped.read())[0])
        if len(socket.if_nameindex()) > 1:
            os.write(1, b"network")
        os._exit(0)
    except OSError as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)


if __name__ == "__main__":
    sys.exit(_try(sys.argv[1]))
