"""The limits of every sandbox: resources, open files, the environment.

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
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # numpy takes one a core otherwise


def lower_limit(what: str, value: int) -> None:
    """Lower a resource limit for good."""
    kind = getattr(resource, f"RLIMIT_{what}")
    most = resource.getrlimit(kind)[1]
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    try:
        resource.setrlimit(kind, (value, value))
    except ValueError:  # macOS refuses a limit on address space below what is mapped
        if what != "AS":
            raise


def limit_all(memory: int, processes: int) -> None:
    """Limit the process that a program runs in; CPU time follows when its deadline is known."""
    for what, value in (
        ("AS", memory),
        ("FSIZE", FILE_BYTES),
        ("NOFILE", OPEN_FILES),
        ("NPROC", processes),
        ("CORE", 0),
    ):
        lower_limit(what, value)


def limit_examiner(memory: int) -> None:
    """The examiner reads what a hostile process sends, and needs to do nothing else."""
    for what, value in (("AS", memory), ("FSIZE", 0), ("NPROC", 0), ("CORE", 0)):
        lower_limit(what, value)


def close_all_but(*keep: int) -> None:
    """Standard input, output and errors lead nowhere, and of other open files only ``keep`` stay."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        if number not in keep:
            os.dup2(nowhere, number)
    last = 2
    for number in sorted(keep):
        if number > 2:
            os.closerange(last + 1, number)
            last = number
    os.closerange(last + 1, 1 << 16)


def enter_folder(folder: str) -> None:
    """Go there, into a session of its own (a signal to its group reaches nobody else), with an environment that holds
    nothing else."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(program_environment(folder))
    if tempfile := sys.modules.get("tempfile"):  # else it will look at the environment
        tempfile.__dict__["tempdir"] = folder
    os.umask(0o077)


def program_environment(folder: str) -> dict[str, str]:
    """Environment variables of a program."""
    one = dict.fromkeys(_THREADS, "1")
    return {"HOME": folder, "TMPDIR": folder, "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **one}


def prefer_oom_kill(process_table: int | str = "/proc") -> None:
    """Where the whole machine runs out of memory, this process is ended and no other."""
    with contextlib.suppress(OSError):
        path = "self/oom_score_adj" if isinstance(process_table, int) else f"{process_table}/self/oom_score_adj"
        at = os.open(path, os.O_WRONLY, dir_fd=process_table if isinstance(process_table, int) else None)
        os.write(at, b"1000")
        os.close(at)


def python_paths() -> list[str]:
    """Paths that a Python program has to read: the interpreter, its packages and the machine's libraries; nothing of
    ours."""
    paths = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    paths |= {path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")}
    paths |= {"/usr", "/bin", "/lib", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/localtime"}
    existing = sorted(path for path in paths if os.path.exists(path))

    def is_inside_another(path: str) -> bool:
        return any(path.startswith(f"{other}/") for other in existing)

    return [path for path in existing if not is_inside_another(path)]
