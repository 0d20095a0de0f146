"""What a process gives up before it runs a student's code. The standard library alone; loaded by `child.py`.

Three layers, of which the last works everywhere: the kernel's (Linux: Landlock for files and connections; a user id
of its own and no rights of root's, where the grader is root), limits on resources, and Python's audit hook. Together
they keep an honest machine in order and make cheating laborious. They are no sandbox: run the grader in a container
without network for that. No mark depends on them, since nothing that decides about marks is in this process.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

# Landlock: linux/landlock.h. The numbers of its calls are the same on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE, _READ_FILE, _READ_FOLDER = 1, 2, 4, 8
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_NO_NEW_PRIVILEGES, _KEEP_CAPABILITIES = 38, 8
_CAPABILITIES_3, _READ_ANYTHING = 0x20080522, 1 << 2

_REFUSED_EVENTS = (
    "os.fork", "os.forkpty", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile", "subprocess.Popen",
    "pty.spawn", "os.kill", "os.killpg", "signal.pthread_kill", "os.chdir", "os.fchdir", "os.chmod", "os.chown",
    "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime",
    "os.chflags", "os.setxattr", "os.removexattr", "os.lockf", "shutil.rmtree", "tempfile.mkstemp",
    "tempfile.mkdtemp", "gc.get_objects", "gc.get_referrers", "gc.get_referents", "sys._current_frames",
    "sys._current_exceptions", "sys.settrace", "sys.setprofile", "sys.addaudithook", "code.__new__", "fcntl.fcntl",
    "fcntl.ioctl", "fcntl.flock", "fcntl.lockf", "mmap.__new__", "resource.setrlimit", "resource.prlimit",
    "webbrowser.open", "syslog.openlog", "sqlite3.connect",
)  # fmt: skip
_REFUSED_FAMILIES = (
    "socket.", "ctypes.", "ftplib.", "http.", "imaplib.", "nntplib.", "poplib.", "smtplib.", "telnetlib.", "urllib.",
    "winreg.", "msvcrt.", "_winapi.",
)  # fmt: skip
_LISTS = ("os.listdir", "os.scandir")


class Refused(PermissionError):
    """Code that is being graded did what it may not."""


def without(folder: str, hidden: str) -> tuple[list[str], list[str]]:
    """What is in a folder but not under a path in it: what may be read, and folders that may only be listed."""
    if hidden == folder:
        return [], []
    if not hidden.startswith(folder.rstrip("/") + "/"):
        return [folder], []
    read, listed = [], [folder]
    for name in sorted(os.listdir(folder)):
        inner = without(os.path.join(folder, name), hidden)
        read += inner[0]
        listed += inner[1]
    return read, listed


def forbid_files(readable: Sequence[str], hidden: str) -> bool:
    """Let this process and its children read and run what is under these paths, write nowhere, and connect to nothing.

    What is under `hidden` is not to be read, even where it lies in one of them.

    True where the kernel enforces it: Linux with Landlock.
    """
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return False
    handled = _FILE_RIGHTS.get(version, _FILE_RIGHTS[5])
    fields = [handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0]  # files; TCP; signals and abstract sockets
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", *fields)[:size]
    rules = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    if rules < 0:
        return False
    allowed = {os.devnull: _READ_FILE | _WRITE}
    for folder in readable:
        if os.path.exists(folder):
            read, listed = without(os.path.realpath(folder), os.path.realpath(hidden))
            allowed |= dict.fromkeys(listed, _READ_FOLDER) | dict.fromkeys(read, _EXECUTE | _READ_FILE | _READ_FOLDER)
    for path, rights in allowed.items():
        try:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)  # type: ignore[attr-defined, unused-ignore]
        except OSError:
            continue
        if not os.path.isdir(path):
            rights &= ~_READ_FOLDER
        rule = struct.pack("=Qi", rights & handled, opened)
        added = libc.syscall(_ADD_RULE, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint(0))
        os.close(opened)
        if added != 0:
            os.close(rules)
            return False
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0))
    os.close(rules)
    return bool(done == 0)


def become_nobody(user: int) -> bool:
    """Where this process is root's: go on as a user that owns nothing, with the one right to read what root may.

    Root reads its own libraries, which another user may not be able to; which files may be read is Landlock's business.
    False if the process was not root, or cannot be that user.
    """
    if os.geteuid() != 0 or sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError:
        return False
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    libc.capset(header, struct.pack("=6I", _READ_ANYTHING, _READ_ANYTHING, 0, 0, 0, 0))
    return True


def limit(cpu_seconds: int, memory: int) -> None:
    """Set the limits on resources; memory is all that may be mapped, in bytes.

    Those that this system does not have are left out (macOS: memory).
    """
    wanted = {
        "RLIMIT_CPU": (cpu_seconds, cpu_seconds + 1),
        "RLIMIT_AS": (memory, memory),
        "RLIMIT_FSIZE": (0, 0),
        "RLIMIT_NOFILE": (64, 64),
        "RLIMIT_NPROC": (0, 0),  # also no threads; root is above it, hence `become_nobody` and the audit hook
        "RLIMIT_CORE": (0, 0),
    }
    for name, pair in wanted.items():
        if hasattr(resource, name):
            try:
                resource.setrlimit(getattr(resource, name), pair)
            except (OSError, ValueError):
                continue


def address_space() -> int:
    """What is mapped already, in bytes: a limit has to be on top of it. 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 0


def audit(readable: Sequence[str], hidden: str) -> None:
    """From now on refuse what an answer has no business doing. Python itself gives no way to take an audit hook off.

    Files may be opened under `readable`, to be read, and none under `hidden`.
    """
    sys.addaudithook(_hook(tuple(readable), hidden))


def _hook(readable: tuple[str, ...], hidden: str) -> Callable[[str, tuple[Any, ...]], None]:
    # Everything is bound here: the names of modules can be given another meaning by the code that is watched.
    refused, families, lists, error = frozenset(_REFUSED_EVENTS), _REFUSED_FAMILIES, _LISTS, Refused
    starts, parts, kind, text, whole = str.startswith, str.split, type, str, int
    write = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    null, inside = os.devnull, tuple(path.rstrip("/") + "/" for path in readable)
    outside = hidden.rstrip("/") + "/"

    def is_readable(path: object) -> bool:
        if kind(path) is bytes:
            path = path.decode("utf-8", "replace")  # type: ignore[attr-defined]
        if kind(path) is not text:
            return False
        assert isinstance(path, str)
        if ".." in parts(path, "/") or starts(path, outside) or "/companion/" in path:
            return False
        return path == null or path in readable or starts(path, inside)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if kind(path) is whole:
                return
            writes = kind(flags) is whole and flags & write
            if not is_readable(path) or (writes and path != null):
                raise error(f"an answer may not open files: {path!r:.100}")
        elif event == "import":
            if parts(arguments[0], ".")[0] == "companion":
                raise error("an answer may not import companion")
        elif event in lists:
            if not is_readable(arguments[0]):
                raise error(f"an answer may not look into folders: {arguments[0]!r:.100}")
        elif event in refused or starts(event, families):
            raise error(f"an answer may not call {event}")

    return hook
