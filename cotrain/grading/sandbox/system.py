"""System calls of Linux that Python 3.11 has no function for. Each raises OSError with the call's name."""

from __future__ import annotations

import ctypes
import os
import platform
import signal

CLONE_NEWNS = 0x20000
CLONE_NEWCGROUP = 0x2000000
CLONE_NEWUTS = 0x4000000
CLONE_NEWIPC = 0x8000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEW = (  # all namespaces
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)
MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_NODIRATIME = 2048
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
MACHINE = platform.machine()
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long
_CAPABILITIES_V3 = 0x20080522  # linux/capability.h


def _call_libc(name: str, *arguments: object) -> int:
    result: int = getattr(_LIBC, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def _as_bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def unshare(flags: int) -> None:
    _call_libc("unshare", ctypes.c_int(flags))


def setns(namespace: int, flags: int) -> None:
    _call_libc("setns", ctypes.c_int(namespace), ctypes.c_int(flags))


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, options: str | None = None) -> None:
    _call_libc(
        "mount", _as_bytes(source), _as_bytes(target), _as_bytes(kind), ctypes.c_ulong(flags), _as_bytes(options)
    )


def pivot_root_here() -> None:
    """The working directory, which is a mount, becomes the root directory; the old root is unmounted."""
    _call_libc("pivot_root", b".", b".")
    _call_libc("umount2", b".", ctypes.c_int(MNT_DETACH))


def prctl(what: int, *values: object) -> None:
    arguments = []
    for value in (*values, 0, 0, 0, 0)[:4]:  # it takes four arguments
        arguments.append(ctypes.c_ulong(value) if isinstance(value, int) else value)
    _call_libc("prctl", ctypes.c_int(what), *arguments)


def protect_examiner() -> None:
    """Keep this process from new privileges, its memory from other processes of its user, and end it with its parent.
    To be called in a process that compares what a program answered with what is expected."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def drop_capabilities() -> None:
    """Drop all capabilities that this process holds in its user namespace."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0)  # version, and process 0: this one
    no_capabilities = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the upper 32 bits of each
    _call_libc("capset", header, no_capabilities)


def syscall(number: int, *arguments: object) -> int:
    """A call that the C library has no function for."""
    return _call_libc("syscall", ctypes.c_long(number), *arguments)
