"""Calls of the kernel that no answer needs, refused by the kernel itself (Linux: seccomp). The standard library alone.

Python's audit hook can only see what Python does, and code that knows Python well enough can get round it. This filter
lies under both Python and C++: no sockets, no new processes, no signals, no look into another process's memory, no
shared memory that outlives the process, no change to files or to priorities. Which files may be opened, and that they
are not written, is Landlock's (`confine.py`): a filter does not see paths. A refused call fails with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_SET_SECCOMP, _FILTER = 22, 2
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # where they stand in linux/seccomp.h: struct seccomp_data
_THREAD = 0x10000  # CLONE_THREAD
_OTHER_NUMBERS = 0x40000000  # x86-64 has the same calls once more up there, for 32-bit pointers

_MACHINES = {"x86_64": (0xC000003E, 56, 435, 302, 234), "aarch64": (0xC00000B7, 220, 435, 261, 131)}
"""The kernel's word for the machine, and the numbers of clone, clone3, prlimit64 and tgkill there."""

_REFUSED = {
    "x86_64": """
        accept=43 accept4=288 acct=163 add_key=248 adjtimex=159 bind=49 bpf=321 capset=126 chmod=90 chown=92
        chroot=161 clock_adjtime=305 clock_settime=227 connect=42 delete_module=176 execve=59 execveat=322
        fanotify_init=300 fanotify_mark=301 fchmod=91 fchmodat=268 fchown=93 fchownat=260 finit_module=313
        fork=57 fremovexattr=199 fsconfig=431 fsetxattr=190 fsmount=432 fsopen=430 fspick=433 init_module=175
        io_uring_enter=426 io_uring_register=427 io_uring_setup=425 ioperm=173 iopl=172 ioprio_set=251 kcmp=312
        kexec_file_load=320 kexec_load=246 keyctl=250 kill=62 lchown=94 link=86 linkat=265 listen=50
        lremovexattr=198 lsetxattr=189 migrate_pages=256 mkdir=83 mkdirat=258 mknod=133 mknodat=259 mount=165
        mount_setattr=442 move_mount=429 move_pages=279 mq_getsetattr=245 mq_notify=244 mq_open=240
        mq_timedreceive=243 mq_timedsend=242 mq_unlink=241 msgctl=71 msgget=68 msgrcv=70 msgsnd=69
        name_to_handle_at=303 open_by_handle_at=304 open_tree=428 perf_event_open=298 personality=135
        pidfd_getfd=438 pidfd_open=434 pidfd_send_signal=424 pivot_root=155 process_madvise=440
        process_mrelease=448 process_vm_readv=310 process_vm_writev=311 ptrace=101 quotactl=179 quotactl_fd=443
        reboot=169 removexattr=197 rename=82 renameat=264 renameat2=316 request_key=249 rmdir=84
        rt_sigqueueinfo=129 rt_tgsigqueueinfo=297 sched_setaffinity=203 sched_setattr=314 sched_setparam=142
        sched_setscheduler=144 semctl=66 semget=64 semop=65 semtimedop=220 setdomainname=171 setfsgid=123
        setfsuid=122 setgid=106 setgroups=116 sethostname=170 setns=308 setpgid=109 setpriority=141 setregid=114
        setresgid=119 setresuid=117 setreuid=113 setrlimit=160 setsid=112 settimeofday=164 setuid=105
        setxattr=188 shmat=30 shmctl=31 shmdt=67 shmget=29 socket=41 socketpair=53 swapoff=168 swapon=167
        symlink=88 symlinkat=266 sync=162 syncfs=306 syslog=103  tkill=200 truncate=76 umount2=166
        unlink=87 unlinkat=263 unshare=272 userfaultfd=323 utime=132 utimensat=280 utimes=235 vfork=58
        vhangup=153 fchmodat2=452
    """,
    "aarch64": """
        accept=202 accept4=242 acct=89 add_key=217 adjtimex=171 bind=200 bpf=280 capset=91 chroot=51
        clock_adjtime=266 clock_settime=112 connect=203 delete_module=106 execve=221 execveat=281
        fanotify_init=262 fanotify_mark=263 fchmod=52 fchmodat=53 fchown=55 fchownat=54 finit_module=273
        fremovexattr=16 fsconfig=431 fsetxattr=7 fsmount=432 fsopen=430 fspick=433 init_module=105
        io_uring_enter=426 io_uring_register=427 io_uring_setup=425 ioprio_set=30 kcmp=272 kexec_file_load=294
        kexec_load=104 keyctl=219 kill=129 linkat=37 listen=201 lremovexattr=15 lsetxattr=6 migrate_pages=238
        mkdirat=34 mknodat=33 mount=40 mount_setattr=442 move_mount=429 move_pages=239 mq_getsetattr=185
        mq_notify=184 mq_open=180 mq_timedreceive=183 mq_timedsend=182 mq_unlink=181 msgctl=187 msgget=186
        msgrcv=188 msgsnd=189 name_to_handle_at=264 open_by_handle_at=265 open_tree=428 perf_event_open=241
        personality=92 pidfd_getfd=438 pidfd_open=434 pidfd_send_signal=424 pivot_root=41 process_madvise=440
        process_mrelease=448 process_vm_readv=270 process_vm_writev=271 ptrace=117 quotactl=60 quotactl_fd=443
        reboot=142 removexattr=14 renameat=38 renameat2=276 request_key=218 rt_sigqueueinfo=138
        rt_tgsigqueueinfo=240 sched_setaffinity=122 sched_setattr=274 sched_setparam=118 sched_setscheduler=119
        semctl=191 semget=190 semop=193 semtimedop=192 setdomainname=162 setfsgid=152 setfsuid=151 setgid=144
        setgroups=159 sethostname=161 setns=268 setpgid=154 setpriority=140 setregid=143 setresgid=149
        setresuid=147 setreuid=145 setrlimit=164 setsid=157 settimeofday=170 setuid=146 setxattr=5 shmat=196
        shmctl=195 shmdt=197 shmget=194 socket=198 socketpair=199 swapoff=225 swapon=224 symlinkat=36 sync=81
        syncfs=267 syslog=116  tkill=130 truncate=45 umount2=39 unlinkat=35 unshare=97 userfaultfd=282
        utimensat=88 vhangup=58 fchmodat2=452
    """,
}  # from asm/unistd_64.h and asm-generic/unistd.h


def refused_calls(machine: str) -> dict[str, int]:
    """The kernel's number of each call that is refused on this machine, by name."""
    pairs = (pair.split("=") for pair in _REFUSED[machine].split())
    return {name: int(number) for name, number in pairs}


def is_available() -> bool:
    """Whether this system can filter calls: Linux, on a machine whose calls are known here."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES or struct.calcsize("P") != 8:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_SECCOMP, _FILTER, None, 0, 0)  # no filter: EFAULT where there could be one, EINVAL elsewhere
    return ctypes.get_errno() == errno.EFAULT


def refuse_calls() -> bool:
    """Refuse them from now on, in this process and its children. Needs `no_new_privs`. True where it is enforced."""
    if not is_available():
        return False
    code = _program(os.uname().machine)
    instructions = ctypes.create_string_buffer(b"".join(code))
    program = struct.pack("=HxxxxxxQ", len(code), ctypes.addressof(instructions))
    return bool(ctypes.CDLL(None).prctl(_SET_SECCOMP, _FILTER, program, 0, 0) == 0)


def _program(machine: str) -> list[bytes]:
    """The filter: instructions of linux/filter.h, each with how many to skip if it is so, and if it is not."""
    architecture, clone, clone3, prlimit, tgkill = _MACHINES[machine]
    refuse = _do(_RETURN, _ERROR | errno.EPERM)
    code = [
        _do(_LOAD, _ARCHITECTURE),
        _do(_EQUAL, architecture, 1, 0),
        _do(_RETURN, _KILL_PROCESS),
        _do(_LOAD, _NUMBER),
        _do(_AT_LEAST, _OTHER_NUMBERS, 0, 1),
        refuse,
        _do(_EQUAL, clone3, 0, 1),
        _do(_RETURN, _ERROR | errno.ENOSYS),  # its flags lie in memory; the C library then takes clone
    ]
    for number in refused_calls(machine).values():
        code += [_do(_EQUAL, number, 0, 1), refuse]
    code += [
        _do(_EQUAL, tgkill, 0, 3),  # a process may abort, and signal nobody else
        _do(_LOAD, _ARGUMENTS),
        _do(_EQUAL, os.getpid(), 1, 0),
        refuse,
        _do(_LOAD, _NUMBER),
        _do(_EQUAL, clone, 0, 3),  # a thread may be started, a process not
        _do(_LOAD, _ARGUMENTS),
        _do(_ANY_BIT, _THREAD, 1, 0),
        refuse,
        _do(_LOAD, _NUMBER),
        _do(_EQUAL, prlimit, 0, 5),  # limits may be read, where the third argument, the new ones, is null
        _do(_LOAD, _ARGUMENTS + 16),
        _do(_EQUAL, 0, 0, 2),
        _do(_LOAD, _ARGUMENTS + 20),
        _do(_EQUAL, 0, 1, 0),
        refuse,
        _do(_RETURN, _ALLOW),
    ]
    return code


def _do(code: int, value: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, value)
