"""What a process gives up before it runs a student's code. The standard library alone; loaded by `child.py`.

Four layers: the kernel's rules for files and connections (Linux: Landlock, one domain for each answer, so that none
can signal or inspect the process it came from), the kernel's filter of calls (`seccomp.py`), limits on resources with
a user id of its own where the grader is root, and Python's audit hook. The first two hold whatever the code knows of
Python; the last works everywhere, says best what was refused, and is no boundary. Run the grader in a container without
network all the same. No mark depends on any of them, since nothing that decides about marks is in this process.
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
_NO_NEW_PRIVILEGES, _KEEP_CAPABILITIES, _DUMPABLE = 38, 8, 4
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


def without(folder: str, *hidden: str) -> tuple[list[str], list[str]]:
    """Return the paths in a folder that may be read, and the folders that may only be listed, leaving out `hidden`."""
    if folder in hidden:
        return [], []
    if not any(path.startswith(folder.rstrip("/") + "/") for path in hidden):
        return [folder], []
    read, listed = [], [folder]
    for name in sorted(os.listdir(folder)):
        inner = without(os.path.join(folder, name), *hidden)
        read += inner[0]
        listed += inner[1]
    return read, listed


def rules_for_files(readable: Sequence[str], *hidden: str) -> int | None:
    """Rules for `keep_to`, as a descriptor: read and run what is under these paths, write nowhere, connect to nothing.

    What is under `hidden` is not to be read, even where it lies in one of them. None where the kernel has no Landlock.
    """
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    if version < 1:
        return None
    handled = _FILE_RIGHTS.get(version, _FILE_RIGHTS[5])
    fields = [handled, 3 if version >= 4 else 0, 3 if version >= 6 else 0]  # files; TCP; signals and abstract sockets
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", *fields)[:size]
    rules = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint(0))
    if rules < 0:
        return None
    allowed = {os.devnull: _READ_FILE | _WRITE}
    for folder in readable:
        if os.path.exists(folder):
            read, listed = without(os.path.realpath(folder), *map(os.path.realpath, hidden))
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
            return None
    return int(rules)


def keep_to(rules: int | None) -> bool:
    """Keep this process and its children to these rules, in a domain of their own inside that of their parent.

    From inside a domain no process outside it can be signalled (Landlock 6), traced, or have its memory read or
    written. True where the kernel enforces it.
    """
    if rules is None:
        return False
    give_up_privileges()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return bool(libc.syscall(_RESTRICT_SELF, ctypes.c_int(rules), ctypes.c_uint(0)) == 0)


def give_up_privileges() -> None:
    """A program that is run from here gets no more rights than this process; nobody of the same user looks into it."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)


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


def audit(readable: Sequence[str], *hidden: str) -> None:
    """From now on refuse what an answer has no business doing. Python itself gives no way to take an audit hook off.

    Files may be opened under `readable`, to be read, and none under `hidden`.
    """
    sys.addaudithook(_hook(tuple(readable), hidden))


def _hook(known: tuple[str, ...], hidden: tuple[str, ...]) -> Callable[[str, tuple[Any, ...]], None]:
    # What the hook needs are its default values, and no function of ours among them: whoever is refused holds the
    # hook's frame in the traceback, and what can be reached from there (cells of a closure, globals) can be rewired.
    # It calls nothing that the watched code could have written: exact types alone, no repr of a foreign object.
    def hook(
        event: str,
        arguments: tuple[Any, ...],
        known: tuple[str, ...] = known,
        inside: tuple[str, ...] = tuple(path.rstrip("/") + "/" for path in known),
        outside: tuple[str, ...] = tuple(path.rstrip("/") + "/" for path in hidden),
        null: str = os.devnull,
        writing: int = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND,
        refused: frozenset[str] = frozenset(_REFUSED_EVENTS),
        families: tuple[str, ...] = _REFUSED_FAMILIES,
        lists: tuple[str, ...] = _LISTS,
        error: type[Exception] = Refused,
        starts: Any = str.startswith,
        parts: Any = str.split,
        decode: Any = bytes.decode,
        kind: Any = type,
        text: Any = str,
        raw: Any = bytes,
        whole: Any = int,
    ) -> None:
        if event == "open" or event in lists:
            path, flags = arguments[0], arguments[2] if event == "open" else 0
            if event == "open" and kind(path) is whole:
                return
            if kind(path) is raw:
                path = decode(path, "utf-8", "replace")
            if kind(path) is not text:
                raise error("an answer may not open files")
            writes = kind(flags) is whole and flags & writing and path != null
            foreign = starts(path, outside) or {"..", "companion", "companion_school"} & {*parts(path, "/")}
            if foreign or writes or not (path == null or path in known or starts(path, inside)):
                what = "open files" if event == "open" else "look into folders"
                raise error(f"an answer may not {what}: {path!r:.100}")
        elif event == "import":
            if parts(arguments[0], ".")[0] in ("companion", "companion_school"):
                raise error("an answer may not import companion")
        elif event in refused or starts(event, families):
            raise error(f"an answer may not call {event}")

    return hook
