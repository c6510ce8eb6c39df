"""Forbids a program system calls (by seccomp) and files (by Landlock). Neither needs a privilege.

Seccomp refuses what reaches other processes (ptrace, reading their memory), what makes namespaces, mounts, shared
memory that outlives its owner and sockets; for a program that shares its user with us also signals to any process but
itself. Landlock leaves the interpreter, its packages and the program's own folder; the rest of the files cannot be
opened.

Of sockets a pair of connected streams stays, which an event loop needs. Anything else can be led to a socket of another
process: Landlock does not ask about sockets with a path, and a pair of datagram sockets sends to any address.

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

# name: number on x86-64, on aarch64
REFUSED = {
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
ALONE = {  # for a program of the same user as ours
    "tkill": (200, 130), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setaffinity": (203, 122),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "prctl": (157, 167),
}  # fmt: skip
ITSELF = {"kill": (62, 129), "tgkill": (234, 131), "rt_sigqueueinfo": (129, 138)}  # then refused but for its own number
LIMITS = {"prlimit64": (302, 261)}  # for its own number or 0
SOCKETPAIR = (53, 199)
CLONE = (56, 220)
CLONE3 = (435, 435)
STREAMS = (0x1, 0x801, 0x80001, 0x80801)  # SOCK_STREAM, with SOCK_NONBLOCK and SOCK_CLOEXEC
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, linux/audit.h
X32 = 0x40000000  # numbers of another way into the same kernel

# linux/bpf_common.h
_LOAD = 0x20
_EQUAL = 0x15
_AT_LEAST = 0x35
_ANY_BIT = 0x45
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000
# Offsets in struct seccomp_data. Arguments have 8 bytes; the filters read their low halves.
_NUMBER = 0
_ARCHITECTURE = 4
_ARGUMENT = 16


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def deny_calls(*, alone: bool) -> None:
    """From now on, for this process and all that it starts. Needs ``no_new_privs``."""
    if system.MACHINE not in ARCHITECTURES:
        return
    code = b"".join(_filter_program(alone))
    program = _Filter(len(code) // 8, code)
    system.prctl(system.PR_SET_SECCOMP, 2, ctypes.pointer(program))


def _filter_program(alone: bool) -> Iterator[bytes]:
    """Instructions, each 8 bytes. Every check is whole in itself: the number is loaded anew behind each that looks
    further."""
    column, architecture = ARCHITECTURES[system.MACHINE]
    no = _instruction(_RETURN, _REFUSE | errno.EPERM)
    number = _instruction(_LOAD, _NUMBER)
    yield from (_instruction(_LOAD, _ARCHITECTURE), _instruction(_EQUAL, architecture, 1, 0), no, number)
    yield from (_instruction(_AT_LEAST, X32, 0, 1), no)
    for refused in (REFUSED, ALONE if alone else {}):
        for numbers in refused.values():
            yield from (_instruction(_EQUAL, numbers[column], 0, 1), no)
    # Its flags cannot be seen.
    yield from (_instruction(_EQUAL, CLONE3[column], 0, 1), _instruction(_RETURN, _REFUSE | errno.ENOSYS))
    yield from (_instruction(_EQUAL, CLONE[column], 0, 3), _instruction(_LOAD, _ARGUMENT))
    yield from (_instruction(_ANY_BIT, system.CLONE_NEW, 0, 1), no, number)
    yield from _allow_only(SOCKETPAIR[column], (socket.AF_UNIX,), no, number)
    yield from _allow_only(SOCKETPAIR[column], STREAMS, no, number, place=1)
    if alone:
        own_pid = os.getpid()
        for numbers in ITSELF.values():
            yield from _allow_only(numbers[column], (own_pid,), no, number)
        for numbers in LIMITS.values():
            yield from _allow_only(numbers[column], (0, own_pid), no, number)

    yield _instruction(_RETURN, _ALLOW)


def _allow_only(call: int, values: tuple[int, ...], no: bytes, number: bytes, place: int = 0) -> Iterator[bytes]:
    """One call, with one of these as its argument at ``place``."""
    n = len(values)
    yield from (_instruction(_EQUAL, call, 0, n + 3), _instruction(_LOAD, _ARGUMENT + 8 * place))
    for i, value in enumerate(values):
        yield _instruction(_EQUAL, value, n - i, 0)
    yield from (no, number)


def _instruction(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


# -- Landlock: linux/landlock.h

# Numbers of system calls, the same on every machine.
_CREATE = 444
_ADD = 445
_RESTRICT = 446
_EXECUTE = 1
_WRITE_FILE = 2
_READ_FILE = 4
_READ_DIR = 8
_RIGHTS = {
    1: 0x1FFF,
    2: 0x3FFF,
    3: 0x7FFF,
    4: 0x7FFF,
    5: 0xFFFF,
}  # version of Landlock → its rights; later: the last
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | 0x4000 | 0x8000  # and no directories
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def landlock_version() -> int:
    """0 where this kernel has none."""
    try:
        return system.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


def deny_files(readable: list[str], folder: str) -> None:
    """All but ``readable`` and, to write as well, ``folder``; where the kernel knows them also TCP, signals to
    processes outside and their abstract sockets. Needs ``no_new_privs``."""
    version = landlock_version()
    if not version:
        return
    rights = _RIGHTS[min(version, max(_RIGHTS))]
    knows_tcp = version >= 4
    knows_scopes = version >= 6
    attributes = struct.pack("=QQQ", rights, 3 if knows_tcp else 0, 3 if knows_scopes else 0)
    size = 8
    if knows_tcp:
        size = 16
    if knows_scopes:
        size = 24
    rules = system.syscall(_CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0))
    for path in readable:
        _allow_path(rules, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in filter(os.path.exists, DEVICES):
        _allow_path(rules, path, _READ_FILE | _WRITE_FILE)
    _allow_path(rules, folder, rights)
    system.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    os.close(rules)


def _allow_path(rules: int, path: str, rights: int) -> None:
    at = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights if os.path.isdir(path) else rights & _OF_FILES, at)
    system.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint32(0))
    os.close(at)
