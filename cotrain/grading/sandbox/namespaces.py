"""Namespaces: a program sees one process next to its own, no network, and no files but Python's and those that it
writes.

::

    pool ── supervisor ── server (1 of its own process ids, root of its own files) ──┬─ examiner (1 of theirs)
                                                                                     └─ answer and what it starts

When a namespace's first process ends, the kernel ends all in it and lets none be started: killing the examiner kills
the answer with all its children, killing the supervisor or the server kills everybody. The answer's folder is a file
system in memory, of limited size and number of files, that goes with the last process in it.

Root gives examiner and answer users of their own. Another user takes a user namespace: there all three are the same
user, the answer without capabilities, and what keeps it from the examiner is that the first process of a namespace
takes no signal that it has not asked for, that it cannot be traced (not dumpable), and that there is no /proc.

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
APART = system.CLONE_NEWNS | system.CLONE_NEWPID | system.CLONE_NEWNET | system.CLONE_NEWIPC | system.CLONE_NEWUTS
FIXED = system.MS_NOSUID | system.MS_NODEV | 8 | 1024 | 2048  # flags of a mount that a user may not take off


class Namespaces:
    """See ``sandbox.Sandbox``."""

    process_table: int | str
    folder: Path | None = None  # the file system has its own limits

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._users: list[int] = []
        with contextlib.suppress(OSError):  # root of a user namespace that has no other user is root by name alone
            self._users = spare_users(2) if os.geteuid() == 0 else []
        self._root = bool(self._users)

    def enter(self) -> None:
        user = os.geteuid()
        group = os.getegid()
        user_flag = 0 if self._root else system.CLONE_NEWUSER
        system.unshare(user_flag | APART)
        if not self._root:
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        if server := os.fork():
            _supervise_server(server)
        system.prctl(system.PR_SET_PDEATHSIG, signal.SIGKILL)
        self.process_table = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
        self._ids = os.open("self/ns/pid", os.O_RDONLY, dir_fd=self.process_table)
        _take_root()

    def prepare_forks(self) -> None:
        system.setns(self._ids, system.CLONE_NEWPID)  # back, for a process can leave its own only
        system.unshare(system.CLONE_NEWPID)

    def shut_in(self, channel: int) -> None:
        system.unshare(system.CLONE_NEWNS)
        user, group = (self._users[1], self._users[1]) if self._root else (os.geteuid(), os.getegid())
        most = f"size={limits.FOLDER_BYTES},nr_inodes={limits.FOLDER_FILES},mode=700,uid={user},gid={group}"
        system.mount("box", BOX, "tmpfs", system.MS_NOSUID | system.MS_NODEV, most)
        limits.prefer_oom_kill(self.process_table)
        limits.enter_folder(BOX)
        limits.close_all_but(channel)
        same = 0 if self._root else 2  # server and examiner, which count as the same user
        limits.limit_all(self._memory, limits.PROCESSES + same)
        become_user(user) if self._root else system.drop_capabilities()
        system.prctl(system.PR_SET_NO_NEW_PRIVS, 1)
        filters.deny_calls(alone=False)

    def confine_examiner(self, keep: tuple[int, ...]) -> None:
        limits.close_all_but(*keep)
        limits.limit_examiner(self._memory)
        become_user(self._users[0]) if self._root else system.drop_capabilities()
        system.protect_examiner()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python's own handler would let this signal in
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans come here

    def kill_processes(self, examiner: int, answer: int) -> None:
        for pid in (examiner, answer):  # the first kills all
            os.kill(pid, signal.SIGKILL)
        for pid in (answer, examiner):  # the first of a namespace ends as its last
            os.waitpid(pid, 0)


def _supervise_server(server: int) -> None:
    """Wait for the server and end as it did. The pool has this process's id: ending it ends the server."""
    status = os.waitpid(server, 0)[1]
    os._exit(os.waitstatus_to_exitcode(status) & 127)


def _take_root() -> None:
    """Make a root of what Python needs, read only, and go there. It is built over /proc, where nothing of that lies."""
    system.mount("none", "/", None, system.MS_REC | system.MS_PRIVATE)
    system.mount("root", "/proc", "tmpfs", system.MS_NOSUID | system.MS_NODEV, "mode=755,size=1m")
    root = Path("/proc")
    for place in limits.python_paths():
        target_path = root / place.lstrip("/")
        target_path.parent.mkdir(parents=True, exist_ok=True)
        if Path(place).is_symlink() and not Path(os.readlink(place)).is_absolute():
            target_path.symlink_to(os.readlink(place))
        else:
            _bind_read_only(place, target_path)

    (root / "dev").mkdir()
    for device in filters.DEVICES:
        _bind_read_only(device, root / device.lstrip("/"))
    (root / BOX.lstrip("/")).mkdir()
    if not (root / "tmp").exists():  # where Python lies below /tmp, a program's folder is its current one
        (root / "tmp").symlink_to(BOX)
    os.chdir(root)
    system.pivot_root_here()
    os.chdir("/")
    shut = system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | system.MS_NOSUID
    system.mount("none", "/", None, shut | system.MS_NODEV)
    sys.path[:] = [path for path in sys.path if Path(path).exists()]


def _bind_read_only(place: str, at: Path) -> None:
    """A file or directory at another place, read only."""
    if Path(place).is_dir():
        at.mkdir(parents=True, exist_ok=True)
    else:
        at.touch()
    system.mount(place, str(at), None, system.MS_BIND | system.MS_REC)
    shut = system.MS_REMOUNT | system.MS_BIND | system.MS_RDONLY | system.MS_NOSUID
    system.mount("none", str(at), None, shut | os.statvfs(at).f_flag & FIXED)
