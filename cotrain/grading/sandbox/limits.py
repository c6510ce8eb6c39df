"""The limits of every sandbox, which a process sets for itself: resources, open files, the environment.

All limits are hard ones: a program can lower them and not raise them.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys

PROCESSES = 16  # processes and threads of a program, itself included

FILE_BYTES = 1 << 20  # most bytes of a file that a program writes
FOLDER_BYTES = 16 << 20  # most bytes of all its files
FOLDER_FILES = 1000  # most files
OPEN_FILES = 64
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # unset, numpy starts a thread for each core
_HIGHEST_FD = 1 << 16


def lower_limit(name: str, value: int) -> None:
    """Lower a resource limit for good. ``name``: as in ``RLIMIT_NAME``."""
    limit = getattr(resource, f"RLIMIT_{name}")
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(limit, (value, value))
    except ValueError:  # macOS refuses a limit on address space below what is mapped
        if name != "AS":
            raise


def limit_all(memory_bytes: int, processes: int) -> None:
    """Limit the process that a program runs in, but for CPU time: that limit follows when the deadline is known."""
    lower_limit("AS", memory_bytes)
    lower_limit("FSIZE", FILE_BYTES)
    lower_limit("NOFILE", OPEN_FILES)
    lower_limit("NPROC", processes)
    lower_limit("CORE", 0)


def limit_examiner(memory_bytes: int) -> None:
    """Limit an examiner, which reads what a hostile process sends, and needs neither files nor processes."""
    lower_limit("AS", memory_bytes)
    lower_limit("FSIZE", 0)
    lower_limit("NPROC", 0)
    lower_limit("CORE", 0)


def close_all_but(*keep: int) -> None:
    """Close all file descriptors but ``keep``. Standard input, output and errors lead nowhere from then on."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        if fd not in keep:
            os.dup2(nowhere, fd)
    last_kept = 2
    for fd in sorted(keep):
        if fd > 2:
            os.closerange(last_kept + 1, fd)
            last_kept = fd
    os.closerange(last_kept + 1, _HIGHEST_FD)


def enter_folder(folder: str) -> None:
    """Make this the working folder, the temporary folder and the home of this process. It gets a session of its own, so
    that a signal to its group reaches no other process, and the environment of a program."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(program_environment(folder))
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:  # it may have read the old environment; imported later it reads the new one
        tempfile.__dict__["tempdir"] = folder
    os.umask(0o077)


def program_environment(folder: str) -> dict[str, str]:
    """All environment variables of a program."""
    single_thread = dict.fromkeys(_THREADS, "1")
    return {"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **single_thread}


def prefer_oom_kill(process_table: int | str = "/proc") -> None:
    """Have the kernel kill this process, and no other, where the whole machine runs out of memory. ``process_table``:
    the path of /proc, or a descriptor of it."""
    with contextlib.suppress(OSError):
        if isinstance(process_table, int):
            file = os.open("self/oom_score_adj", os.O_WRONLY, dir_fd=process_table)
        else:
            file = os.open(f"{process_table}/self/oom_score_adj", os.O_WRONLY)
        os.write(file, b"1000")  # the highest
        os.close(file)


def is_relative_link(path: str) -> bool:
    """Whether a path is a symbolic link to a relative one."""
    return os.path.islink(path) and not os.path.isabs(os.readlink(path))


def python_paths() -> list[str]:
    """Paths that a Python program has to read: the interpreter, its packages and the machine's libraries. cotrain is
    not among them."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}
    paths |= {"/usr", "/bin", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime"}
    existing = sorted(path for path in paths if os.path.exists(path))

    def is_inside_another(path: str) -> bool:
        return any(path.startswith(f"{other}/") for other in existing)

    return [path for path in existing if not is_inside_another(path)]
