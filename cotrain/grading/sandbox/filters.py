"""Forbids a program system calls (by seccomp) and files (by Landlock). Neither needs a privilege.

Seccomp refuses calls that

- reach other processes: ptrace, reading their memory;
- make namespaces, mounts, sockets, or shared memory that outlives its owner;
- for a program that runs as our own user: send signals to another process, or change its priority.

Landlock leaves a program the interpreter, its packages and its own folder; no other file can be opened.

One kind of socket stays, which an event loop needs: a pair of connected streams. Any other kind may reach a socket of
another process, as Landlock does not ask about sockets with a path, and a pair of datagram sockets sends to any
address.

Left out: machines other than x86-64 and aarch64, and kernels without these (Landlock came with 5.13): there nothing is
refused, and ``doctor`` says what is open.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator

from cotrain.grading.sandbox import system

# Tables of system calls, name → its number on x86-64 and on aarch64.
REFUSED = {  # always
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "migrate_pages": (256, 238), "move_pages": (279, 239),
    "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsmount": (432, 432), "mount_setattr": (442, 442),
    "unshare": (272, 97), "setns": (308, 268), "socket": (41, 198), "connect": (42, 203), "bind": (49, 200),
    "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
}  # fmt: skip
REFUSED_SIGNALS = {  # with also_signals=True; not only signals: whatever acts on a process by its number
    "tkill": (200, 130), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "prctl": (157, 167),
}  # fmt: skip
ALLOWED_ON_ITSELF = {  # with also_signals=True: for the process's own number, the first argument, alone
    "kill": (62, 129),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
}
PRLIMIT = (302, 261)  # with also_signals=True: for the own number, or 0, which means the same
SOCKETPAIR = (53, 199)
CLONE = (56, 220)
CLONE3 = (435, 435)
STREAMS = (0x1, 0x801, 0x80001, 0x80801)  # SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the tables, number in linux/audit.h
X32 = 0x40000000  # from here on: the same calls on x86-64 by other numbers (the x32 interface)

# Codes of instructions (linux/bpf_common.h).
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
# What a filter returns (linux/seccomp.h).
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
# Offsets in struct seccomp_data. Arguments have 8 bytes; the filters read their low halves.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENT = 16


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def deny_calls(*, also_signals: bool) -> None:
    """Deny system calls from now on, to this process and all that it starts. Needs ``no_new_privs``.

    ``also_signals``: signals to other processes too. That is needed where the program runs as our user and sees our
    processes; elsewhere the kernel itself keeps it from signalling them."""
    if system.MACHINE not in ARCHITECTURES:
        return
    code = b"".join(_filter_program(also_signals))
    program = _Filter(len(code) // 8, code)
    system.prctl(system.PR_SET_SECCOMP, 2, ctypes.pointer(program))


def _filter_program(also_signals: bool) -> Iterator[bytes]:
    """The instructions, each of 8 bytes. A check looks at the number of the call, which stands in the accumulator; one
    that loads something else there loads the number again at its end."""
    column, architecture = ARCHITECTURES[system.MACHINE]
    refuse = _instruction(_RETURN, _REFUSE | errno.EPERM)
    refuse_as_unknown = _instruction(_RETURN, _REFUSE | errno.ENOSYS)
    load_number = _instruction(_LOAD, _NUMBER)

    yield from (_instruction(_LOAD, _ARCHITECTURE), _instruction(_EQUAL, architecture, if_true=1), refuse, load_number)
    yield from (_instruction(_AT_LEAST, X32, if_false=1), refuse)
    tables = [REFUSED]
    if also_signals:
        tables.append(REFUSED_SIGNALS)
    for table in tables:
        for numbers in table.values():
            yield from (_instruction(_EQUAL, numbers[column], if_false=1), refuse)

    # The flags of clone3 lie in memory, where no filter can look. Told that the kernel has no clone3, the C library
    # calls clone.
    yield from (_instruction(_EQUAL, CLONE3[column], if_false=1), refuse_as_unknown)
    yield from (_instruction(_EQUAL, CLONE[column], if_false=3), _instruction(_LOAD, _ARGUMENT))
    yield from (_instruction(_ANY_BIT, system.CLONE_NEW, if_false=1), refuse, load_number)
    yield from _allow_only(SOCKETPAIR[column], (socket.AF_UNIX,), refuse, load_number)
    yield from _allow_only(SOCKETPAIR[column], STREAMS, refuse, load_number, argument=1)
    if also_signals:
        own_pid = os.getpid()
        for numbers in ALLOWED_ON_ITSELF.values():
            yield from _allow_only(numbers[column], (own_pid,), refuse, load_number)
        yield from _allow_only(PRLIMIT[column], (0, own_pid), refuse, load_number)

    yield _instruction(_RETURN, _ALLOW)


def _allow_only(
    call: int, values: tuple[int, ...], refuse: bytes, load_number: bytes, argument: int = 0
) -> Iterator[bytes]:
    """Refuse a call whose argument number ``argument`` is none of ``values``. The instructions are: is it this call;
    load its argument; a comparison for each value, from where a match skips ``refuse``; refuse; load the number."""
    n = len(values)
    yield from (_instruction(_EQUAL, call, if_false=n + 3), _instruction(_LOAD, _ARGUMENT + 8 * argument))
    for i, value in enumerate(values):
        yield _instruction(_EQUAL, value, if_true=n - i)
    yield from (refuse, load_number)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction; a comparison skips so many instructions behind it."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


# -- Landlock: linux/landlock.h

# Numbers of its system calls, the same on every machine, and what their arguments mean.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_ASK_VERSION = 1
_RULE_OF_PATH = 1
# Rights.
_EXECUTE = 1
_WRITE_FILE = 2
_READ_FILE = 4
_READ_DIR = 8
_TRUNCATE = 0x4000
_DEVICE_IOCTL = 0x8000
_RIGHTS_OF_VERSION = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}  # later versions have those of 5
_RIGHTS_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_IOCTL  # a file has no others
_BIND_AND_CONNECT_TCP = 3
_SIGNALS_AND_ABSTRACT_SOCKETS = 3
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def landlock_version() -> int:
    """The kernel's version of Landlock; 0 where it has none."""
    try:
        return system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    except OSError:
        return 0


def deny_files(readable: list[str], folder: str) -> None:
    """Deny all files from now on, but those below ``readable``, and ``folder``, which may be written to. Where the
    kernel can, TCP, signals to other processes and their abstract sockets are denied too. Needs ``no_new_privs``."""
    version = landlock_version()
    if not version:
        return
    file_rights = _RIGHTS_OF_VERSION[min(version, max(_RIGHTS_OF_VERSION))]
    # struct landlock_ruleset_attr has grown by a field twice: a kernel takes the fields that it knows.
    fields = [file_rights]
    if version >= 4:
        fields.append(_BIND_AND_CONNECT_TCP)
    if version >= 6:
        fields.append(_SIGNALS_AND_ABSTRACT_SOCKETS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = system.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    for path in readable:
        _allow_path(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in filter(os.path.exists, DEVICES):
        _allow_path(ruleset, path, _READ_FILE | _WRITE_FILE)
    _allow_path(ruleset, folder, file_rights)
    system.syscall(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    os.close(ruleset)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    """Allow these rights on a path and all below it. ``ruleset``: its file descriptor."""
    if not os.path.isdir(path):
        rights &= _RIGHTS_OF_FILES
    path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, path_fd)
    system.syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_RULE_OF_PATH), rule, ctypes.c_uint32(0))
    os.close(path_fd)
