"""Students' code can reach nothing from behind each wall, but a good deal without one."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import companion_school
from companion_school.checking.call import Result
from companion_school.checking.exercise import Case
from companion_school.course.grading.sandbox import wall
from companion_school.course.grading.sandbox.parent import Limits, Program, Worker

SECRET = "nobody can guess this"
HELP = """
import ctypes, os, socket, struct, torch
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(number, *arguments):
    return libc.syscall(number, *arguments) >= 0
def read(path):
    return open(path, 'rb').read(40).decode('utf-8', 'replace')
"""
FOUND = {  # each returns what it found out; it must return neither the secret nor anything else that is true
    "opens the secret": "return read({secret!r})",
    "opens the secret by way of PyTorch": (
        "return bytes(torch.from_file({secret!r}, size=21, dtype=torch.uint8).tolist()).decode()"
    ),
    "maps the secret by way of numpy": "import numpy\nreturn bytes(numpy.memmap({secret!r}, mode='r')).decode()",
    "opens the references": "return read({reference!r})",
    "opens another student's work": "return read({other!r})",
    "lists the course's folder": "return os.listdir({folder!r})",
    "opens the secret through the worker's root": "return read(f'/proc/{{os.getppid() or 1}}/root' + {secret!r})",
    "opens the secret through a link": "os.symlink({secret!r}, '/tmp/l{number}')\nreturn read('/tmp/l{number}')",
    "opens the secret by its handle": (
        "handle = struct.pack('Ii8s', 8, 1, struct.pack('Q', 2)) + bytes(128)\n"
        "return call(304, os.open('/', os.O_RDONLY), handle, os.O_RDONLY)"
    ),
    "reads the grader's memory": (
        "line = open('/proc/{grader}/maps').readline()\nstart = int(line.split('-')[0], 16)\n"
        "return os.pread(os.open('/proc/{grader}/mem', os.O_RDONLY), 9, start)"
    ),
    "reads what the grader was started with": "return read('/proc/{grader}/environ')",
    "lifts what hides the course": (
        "libc.unshare(0x10020000)\nlibc.umount2({reference!r}.encode(), 2)\nlibc.umount2(b'/usr', 2)\n"
        "return read({reference!r})"
    ),
    "reads a disk": "os.mknod('/tmp/disk-{number}', 0o60600, os.makedev(254, 0))\nreturn read('/tmp/disk-{number}')",
    "asks a program of another user's": "unix = socket.socket(socket.AF_UNIX)\nunix.connect({unix!r})\nreturn True",
    "looks for open files": (
        "import stat\nkinds = []\nfor number in range(3, 64):\n"
        "    try: kinds.append(os.fstat(number).st_mode)\n    except OSError: pass\nreturn len(kinds) > 1"
    ),
    "finds the course among the modules": "import sys\nreturn [name for name in sys.modules if 'companion' in name]",
    "imports the course": "import companion_school.exercises.lesson_02\nreturn True",
}
DONE = {  # each changes something that belongs to others, and returns true if it succeeded
    "kills the worker": "os.kill({worker}, 9)\nreturn True",
    "stops the grader": "os.kill({grader}, 19)\nreturn True",
    "stops the grader by its descriptor": (
        "import signal\nsignal.pidfd_send_signal(os.pidfd_open({grader}), 19)\nreturn True"
    ),
    "kills the grader through a pipe": (
        "import fcntl, time\nread, write = os.pipe()\nfcntl.fcntl(read, 10, 9)\n"
        "fcntl.fcntl(read, fcntl.F_SETOWN, {grader})\nfcntl.fcntl(read, fcntl.F_SETFL, fcntl.O_ASYNC)\n"
        "if fcntl.fcntl(read, fcntl.F_GETOWN) == {grader}: os.write(write, b'x')\ntime.sleep(0.05)\nreturn False"
    ),
    "traces the worker": "return call(101, 16, {worker}, 0, 0)",
    "writes into the worker's memory": (
        "ours = ctypes.create_string_buffer(8)\nlocal = struct.pack('QQ', ctypes.addressof(ours), 8)\n"
        "return call(311, {worker}, local, 1, struct.pack('QQ', id(None), 8), 1, 0)"
    ),
    "lowers the grader's limits": "return libc.prlimit({grader}, 7, struct.pack('QQ', 64, 64), None) == 0",
    "slows the grader down": "os.setpriority(os.PRIO_PROCESS, {grader}, 19)\nreturn True",
    "binds the grader to a processor": "os.sched_setaffinity({grader}, [0])\nreturn True",
    "takes a processor for itself": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(9))\nreturn True",
    "forks": "return os.fork() >= 0",
    "clones without the C library": "return call(56, 17, 0, 0, 0, 0)",
    "starts a thread without the C library": "import _thread\nreturn _thread.start_new_thread(print, ()) != 0",
    "becomes root again": "os.setresuid(0, 0, 0)\nreturn os.getuid() == 0",
    "writes a file": "return os.write(os.open('/tmp/file-{number}', os.O_CREAT | os.O_WRONLY), b'hello')",
    "writes into PyTorch": "open(torch.__file__, 'a').write(' ')\nreturn True",
    "makes the system writable": "return libc.mount(None, b'/', None, 32 | 4096, None) == 0",
    "mounts over the libraries": "return libc.mount(b'none', b'/usr', b'tmpfs', 0, None) == 0",
    "goes into the worker's namespaces": "return libc.setns(os.open('/proc/1/ns/mnt', os.O_RDONLY), 0) == 0",
    "changes the root": "os.chroot('/usr')\nreturn True",
    "loads a program into the kernel": "return call(321, 0, bytes(72), 72)",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (9, 9))\nreturn True",
    "writes to the kernel's switches": "open('/proc/sys/kernel/core_pattern', 'w').write('|/tmp/x')\nreturn True",
    "makes shared memory that no limit counts": "return libc.shmget(0, ctypes.c_size_t(2**20), 0o1666) >= 0",
    "makes a queue of messages": "return libc.msgget(0, 0o1666) >= 0",
    "makes a space of its own for shared memory": (
        "libc.unshare(0x18000000)\nreturn libc.shmget(0, ctypes.c_size_t(2**20), 0o1666) >= 0"
    ),
    "types into the terminal": "import fcntl\nfcntl.ioctl(os.open('/dev/tty', os.O_RDWR), 0x5412, b'x')\nreturn True",
}
LEFT = {  # each leaves something that the next part then looks for
    "a file in /tmp": ("open('/tmp/companion-left', 'w')", "return os.path.exists('/tmp/companion-left')"),
    "a name in shared memory": ("os.mkdir('/dev/shm/left')", "return os.path.exists('/dev/shm/left')"),
    "a link": ("os.symlink('hello', '/var/tmp/companion-left')", "return os.readlink('/var/tmp/companion-left')"),
    "memory of System V": ("libc.shmget(4711, 64, 0o1666)", "return libc.shmget(4711, 64, 0o666) >= 0"),
    "a key of the kernel's": (
        "libc.syscall(248, b'user', b'companion', b'hello', 5, -4)", "return call(249, b'user', b'companion', None, 0)"
    ),
    "a listening socket": (
        "import socket\nopen_ = socket.socket(socket.AF_UNIX)\nopen_.bind('\\0companion')\nopen_.listen()",
        "socket.socket(socket.AF_UNIX).connect('\\0companion')\nreturn True",
    ),
    "a lock on a library": (
        "import fcntl\nfcntl.flock(os.open(torch.__file__, os.O_RDONLY), fcntl.LOCK_EX)",
        "import fcntl\ntry: fcntl.flock(os.open(torch.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except OSError: return True\nreturn False",
    ),
    "a module": ("torch.left = 'hello'", "return hasattr(torch, 'left')"),
}  # fmt: skip
NETWORK = {
    "calls a server by TCP": "return socket.create_connection(('127.0.0.1', {port}), 1).recv(9).decode()",
    "sends to a server by UDP": "return socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9)) > 0",
    "sees the machine's network": "return len(socket.if_nameindex()) > 1",
}
STANDING = [name for name in ("bubblewrap", "another user") if not wall.stands(name)]
HARMLESS = [
    *list(FOUND)[:6],
    "opens the secret through the worker's root",
    "reads what the grader was started with",
    "asks a program of another user's",
]
"""What may be tried without a wall."""


def test_there_is_a_wall_wherever_there_can_be_one():
    """There is one for root on every Linux, and for other users with bubblewrap."""
    assert STANDING or not sys.platform.startswith("linux") or os.geteuid() != 0


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Names for the attacks: an instructor's files, and a socket of another program."""
    home = tmp_path_factory.mktemp("course")
    for name in ("secret", "other.ipynb"):
        (home / name).write_text(SECRET)
    (home / "secret").chmod(0o600)
    unix, server = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
    unix.bind(str(home / "unix"))
    for each in (unix, server):
        each.listen()
    reference = home / "lesson_02.py"
    shutil.copy(Path(companion_school.__file__).parent / "exercises" / "lesson_02.py", reference)
    yield {
        "secret": str(home / "secret"), "other": str(home / "other.ipynb"), "reference": str(reference),
        "folder": str(home), "unix": str(home / "unix"),
        "grader": os.getpid(), "port": server.getsockname()[1], "number": os.getpid(),
    }  # fmt: skip
    unix.close()
    server.close()


@pytest.fixture(scope="module", params=STANDING)
def worker(request):
    with Worker(Limits(seconds=10, memory_gib=0.5), wall.WALLS[request.param]) as started:
        yield started


def did(worker, deed, named, *, writes=False):
    """Return the result of a deed; None if it raised, or its process ended."""
    body = deed.format(**named, worker=worker._process.pid)
    source = f"{HELP}\ndef answer():\n" + "".join(f"    {line}\n" for line in body.splitlines())
    run = worker.run(Program(source, "answer", writes=writes), [Case("it", ())], [0])
    outcome = run.stopped or run.outcomes[0][0]
    assert outcome.result in (None, Result.CRASHED), outcome
    return outcome.value


class TestBehindAWall:
    @pytest.mark.parametrize("deed", FOUND)
    def test_nothing_is_found_out(self, worker, named, deed):
        assert not did(worker, FOUND[deed], named)

    @pytest.mark.parametrize("deed", DONE)
    def test_nothing_is_done_to_others(self, worker, named, deed):
        before = worker._process.pid
        limits = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
        if did(worker, DONE[deed], named):  # inside, this number belongs to another process or to none
            assert worker.wall.name == "bubblewrap" and deed in ("kills the worker",)
        assert did(worker, "return 3", named) == 3 and worker._process.pid == before
        assert (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)) == limits

    @pytest.mark.parametrize("what", LEFT)
    def test_nothing_is_left_for_the_next(self, worker, named, what):
        leave, look = LEFT[what]
        did(worker, leave, named)
        assert not did(worker, look, named)

    def test_what_may_write_files_has_a_small_folder_of_its_own_and_leaves_nothing(self, worker, named):
        begin = "import tempfile\nfile = os.path.join(tempfile.gettempdir(), 'companion-{number}')\n"
        write = begin + "open(file, 'wb').write(bytes({size}))\nreturn os.path.getsize(file)"
        assert did(worker, write.replace("{size}", "1000000"), named, writes=True) == 1_000_000
        assert not did(worker, f"{begin}return os.path.exists(file)", named, writes=True)
        assert not did(worker, write.replace("{size}", "5000000"), named, writes=True)
        assert not did(worker, write.replace("{size}", "9"), named)
        for deed in ("writes into PyTorch", "makes the system writable", "forks", "becomes root again"):
            assert not did(worker, DONE[deed], named, writes=True), deed
        for leave, look in LEFT.values():
            did(worker, leave, named, writes=True)
            assert not did(worker, look, named, writes=True), leave

    def test_nothing_goes_over_the_network(self, worker, named):
        reached = [name for name, deed in NETWORK.items() if did(worker, deed, named)]
        if wall.reaches_network(worker.wall.name):  # `companion grade` then says so
            assert worker.wall.name == "another user" and "sees the machine's network" in reached
        else:
            assert reached == []

    def test_it_is_nobody_with_no_capability(self, worker, named):
        user = did(worker, "return [os.getuid(), os.geteuid(), os.getgid(), *os.getgroups()]", named)
        assert min(user) == max(user) > 65533
        capabilities = "data = ctypes.create_string_buffer(24)\nlibc.capget(struct.pack('Ii', 0x20080522, 0), data)"
        assert did(worker, f"{capabilities}\nreturn list(struct.unpack('6I', data.raw))", named) == [0] * 6
        assert did(worker, "return libc.prctl(39, 0, 0, 0, 0)", named) == 1


WITHOUT_RIGHTS = (
    "import ctypes, os, sys\nfor right in (21, 12): ctypes.CDLL(None).prctl(24, right, 0, 0, 0)\n"
    "os.execv(sys.executable, [sys.executable, '-I', *sys.argv[1:]])"
)
AS_ANOTHER = (
    "import ctypes, os\nos.setresuid({user}, {user}, {user})\n"
    "ctypes.CDLL(None).shmget(0, 64, 0o1666), ctypes.CDLL(None).semget(0, 1, 0o1666)\n"
    "os.makedirs({folder!r} + '/left/inside')"
)


@pytest.mark.skipif("another user" not in STANDING, reason="needs root on Linux")
class TestAnotherUserWhereRootMayDoLittle:
    def test_it_stands_in_a_container_and_says_whether_there_is_a_network(self):
        """The root of a container has neither CAP_SYS_ADMIN nor CAP_NET_ADMIN."""
        command = [sys.executable, "-c", WITHOUT_RIGHTS, wall.__file__, "another user"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout in ("", "network")

    def test_shared_memory_and_folders_that_a_user_left_are_removed(self, tmp_path, monkeypatch):
        user, folder = 1_899_999_999, tmp_path / "open"
        folder.mkdir()
        for each in (folder, *folder.parents[: len(folder.parts) - 2]):
            each.chmod(0o777 if each == folder else 0o755)
        monkeypatch.setattr(wall, "_open_folders", lambda: (str(folder),))
        subprocess.run([sys.executable, "-c", AS_ANOTHER.format(user=user, folder=str(folder))], check=True)
        kinds = [Path(f"/proc/sysvipc/{kind}") for kind in ("shm", "sem")]
        assert all(f" {user} " in kind.read_text() for kind in kinds) and (folder / "left").exists()
        wall.WALLS["another user"].sweep(user)
        assert not any(f" {user} " in kind.read_text() for kind in kinds) and not (folder / "left").exists()

    def test_all_folders_that_everybody_may_write_into_are_known(self):
        shared = [path for path in ("/tmp", "/var/tmp", "/dev/shm", "/run/lock") if Path(path).is_dir()]
        writable = {path for path in shared if Path(path).stat().st_mode & 2 and not Path(path).is_symlink()}
        assert writable and writable <= {*wall._open_folders()}


def test_students_users_are_those_that_a_container_has():
    assert wall.spare_users("         0          0 4294967295\n")[0] == 1_900_000_000
    few = wall.spare_users("0 1000 1\n1 100000 65536\n")  # rootless
    assert few[0] > 1000 and few[-1] < 65536 and len(few) > 2**14


def test_without_a_wall_the_same_attacks_succeed(named):
    """This shows that the tests above would fail without a wall."""
    with Worker(Limits(seconds=10, memory_gib=0.5), wall.WALLS["none"]) as worker:
        deeds = FOUND | DONE
        failed = [name for name in HARMLESS if not did(worker, deeds[name], named)]
        assert failed == []
        leave, look = LEFT["a name in shared memory"]
        did(worker, leave, named)
        assert did(worker, look, named)
        did(worker, "os.rmdir('/dev/shm/left')", named)
        assert did(worker, NETWORK["sees the machine's network"], named)


class TestTheChoice:
    def test_what_is_within_reach_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(wall, "stands", lambda name: "")
        monkeypatch.setattr(wall, "_shown", lambda: (str(tmp_path / "lib"),))
        for name in ("lib/python3/site-packages/companion_school/exercises", "lib/keep"):
            (tmp_path / name).mkdir(parents=True)
        wall._copies_of_the_course.cache_clear()
        bubblewrap = wall.WALLS["bubblewrap"]
        assert wall._copies_of_the_course() == (str(tmp_path / "lib/python3/site-packages/companion_school"),)
        assert bubblewrap.fault([tmp_path / "lib/python3/site-packages/companion_school/exercises"]) == ""
        assert bubblewrap.fault([tmp_path / "secret"]) == ""
        assert "students' code can read" in bubblewrap.fault([tmp_path / "lib/keep"])
        wall._copies_of_the_course.cache_clear()

    def test_another_user_is_a_wall_for_what_is_roots_alone(self, tmp_path):
        secret = tmp_path / "secret"
        secret.write_text(SECRET)
        other = wall.WALLS["another user"]
        for folder in (tmp_path, *tmp_path.parents):
            if not folder.stat().st_mode & 1:
                break
        else:
            secret.chmod(0o600)
        assert other.fault([secret]) == ""
        assert other.fault([Path("/etc/passwd")]) == "/etc/passwd can be read by other users; chmod go-rwx /etc/passwd"

    def test_without_a_wall_it_is_said_what_to_do(self, monkeypatch):
        monkeypatch.setattr(wall, "stands", lambda name: "bwrap is not installed")
        with pytest.raises(ValueError, match="--no-sandbox is required.*apt install bubblewrap.*macOS and Windows"):
            wall.choose()
        assert wall.choose(no_sandbox=True).warning and wall.best().name == "none"
        wanted = [one.name for one in wall.WALLS.values() if one.warning]
        assert wanted == ["none"]

    def test_other_systems_are_told(self, monkeypatch):
        monkeypatch.setattr(wall.sys, "platform", "darwin")
        wall._tried.cache_clear()
        assert wall.stands("bubblewrap") == "it needs Linux, and this is darwin"
        wall._tried.cache_clear()
