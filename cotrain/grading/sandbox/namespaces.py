"""Namespaces: a program sees one process next to its own, no network, and no files but Python's and those that it
writes.

::

    pool ── supervisor ── server ──┬─ examiner
                                   └─ answer and what it starts

Two namespaces of process ids lie within one another: the server is the first process of the outer one, the examiner of
the inner one. When the first process of a namespace ends, the kernel ends all others in it and lets none be started.
So killing the examiner kills the answer with all its children, and killing the supervisor or the server kills all.

The server has a root directory of its own (``_take_root``). The answer's folder in it is a file system in memory, of
limited size and number of files, which goes with the last process that uses it.

Root gives examiner and answer users of their own. Any other user takes a user namespace, where server, examiner and
answer are the same user, and the answer has no capabilities. Three things keep the answer from the examiner there: the
first process of a namespace gets no signal that it has not asked for, it cannot be traced (it is not dumpable), and
there is no /proc.

Left out: a cgroup, as the number of processes is limited for the user, and their memory is watched (``watch.py``).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

from cotrain.grading.sandbox import filters, limits, system
from cotrain.grading.sandbox.users import become_user, spare_users

BOX = "/box"  # where programs work
SERVER_NAMESPACES = (
    system.CLONE_NEWNS | system.CLONE_NEWPID | system.CLONE_NEWNET | system.CLONE_NEWIPC | system.CLONE_NEWUTS
)
# Flags of a mount that a user namespace may not take off: to remount it read only they have to be repeated.
KEPT_FLAGS = system.MS_NOSUID | system.MS_NODEV | system.MS_NOEXEC | system.MS_NOATIME | system.MS_NODIRATIME
READ_ONLY = system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | system.MS_NOSUID


class Namespaces:
    """See ``sandbox.Sandbox``."""

    process_table: int | str
    folder: Path | None = None  # the file system in memory has its own limits

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        users: list[int] = []
        with contextlib.suppress(OSError):  # root of a user namespace that has no other user is root by name alone
            users = spare_users(2) if os.geteuid() == 0 else []
        self._is_root = bool(users)
        self._examiner_user, self._answer_user = users or (os.geteuid(), os.geteuid())

    def enter(self) -> None:
        user = os.geteuid()
        group = os.getegid()
        user_namespace = 0 if self._is_root else system.CLONE_NEWUSER
        system.unshare(user_namespace | SERVER_NAMESPACES)
        if not self._is_root:
            # The new user namespace has this one user and group, and no supplementary groups.
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        server_pid = os.fork()
        if server_pid:
            _supervise_server(server_pid)
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        self.process_table = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self._server_namespace = os.open("self/ns/pid", os.O_RDONLY, dir_fd=self.process_table)
        _take_root()

    def prepare_forks(self) -> None:
        # Namespaces of process ids only nest: the server goes back to its own before it makes the next one in it.
        system.setns(self._server_namespace, system.CLONE_NEWPID)
        system.unshare(system.CLONE_NEWPID)

    def shut_in(self, channel_fd: int) -> None:
        system.unshare(system.CLONE_NEWNS)
        user = self._answer_user
        group = user if self._is_root else os.getegid()
        folder_limits = f"size={limits.FOLDER_BYTES},nr_inodes={limits.FOLDER_FILES}"
        options = f"{folder_limits},mode=700,uid={user},gid={group}"
        system.mount("box", BOX, "tmpfs", system.MS_NOSUID | system.MS_NODEV, options)
        limits.prefer_oom_kill(self.process_table)
        limits.enter_folder(BOX)
        limits.close_all_but(channel_fd)
        others_of_user = 0 if self._is_root else 2  # server and examiner, which RLIMIT_NPROC counts too
        limits.limit_all(self._memory_bytes, limits.PROCESSES + others_of_user)
        self._give_up_rights(user)
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
        filters.deny_calls(also_signals=False)

    def _give_up_rights(self, user: int) -> None:
        if self._is_root:
            become_user(user)
        else:
            system.drop_capabilities()

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory_bytes)
        self._give_up_rights(self._examiner_user)
        system.protect_examiner()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own handler would let this signal in
        # As the first process of its namespace it inherits the answer's orphans; ignored, they vanish when they end.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def kill_processes(self, examiner_pid: int, answer_pid: int) -> None:
        for pid in (examiner_pid, answer_pid):  # with the examiner all in its namespace are killed
            os.kill(pid, signal.SIGKILL)
        for pid in (answer_pid, examiner_pid):  # the examiner ends last, as the first process of a namespace does
            os.waitpid(pid, 0)


def _supervise_server(server_pid: int) -> None:
    """Wait for the server and end as it did. The pool knows the id of this process: killing it kills the server."""
    _, status = os.waitpid(server_pid, 0)
    os._exit(os.waitstatus_to_exitcode(status) & 127)


def _take_root() -> None:
    """Make a root directory of what Python needs, read only, and go there. It is built over /proc, as nothing that it
    binds lies below it."""
    system.mount("none", "/", None, system.MS_REC | system.MS_PRIVATE)
    system.mount("root", "/proc", "tmpfs", system.MS_NOSUID | system.MS_NODEV, "mode=755,size=1m")
    root = Path("/proc")
    for path in limits.python_paths():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if limits.is_relative_link(path):  # such as /lib, a link to usr/lib
            target.symlink_to(os.readlink(path))
        else:
            _bind_read_only(path, target)

    (root / "dev").mkdir()
    for device in filters.DEVICES:
        _bind_read_only(device, root / device.lstrip("/"))
    (root / BOX.lstrip("/")).mkdir()
    if not (root / "tmp").exists():  # it exists where Python itself lies below /tmp
        (root / "tmp").symlink_to(BOX)
    os.chdir(root)
    system.pivot_root_here()
    os.chdir("/")
    system.mount("none", "/", None, READ_ONLY | system.MS_NODEV)
    sys.path[:] = [path for path in sys.path if Path(path).exists()]


def _bind_read_only(path: str, target: Path) -> None:
    """A file or directory at another place, read only."""
    if Path(path).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.touch()
    system.mount(path, str(target), None, system.MS_BIND | system.MS_REC)
    system.mount("none", str(target), None, READ_ONLY | os.statvfs(target).f_flag & KEPT_FLAGS)
