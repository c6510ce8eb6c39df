"""The parts of sandboxes that need no program: folders that are cleared, user numbers, what a folder holds, the process
table."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux only")

from cotrain.grading.sandbox.limits import python_paths  # noqa: E402
from cotrain.grading.sandbox.sweeper import clear_folder  # noqa: E402
from cotrain.grading.sandbox.users import spare_users  # noqa: E402
from cotrain.grading.sandbox.watch import descendants_of, is_too_full  # noqa: E402


@pytest.mark.whole
def test_a_folder_is_cleared_however_deep_it_is(tmp_path):
    begun = os.open(".", os.O_RDONLY)
    os.chdir(tmp_path)
    for _ in range(1200):  # deeper than a path can say (4,096 characters), or a recursive function go (1,000 calls)
        os.mkdir("1111")
        os.chdir("1111")
    os.symlink("/", "root")
    os.fchdir(begun)
    os.close(begun)
    (tmp_path / "shut").mkdir()
    (tmp_path / "shut" / "f").write_text("x")
    (tmp_path / "shut").chmod(0)
    clear_folder(tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.whole
def test_a_folder_is_too_full_by_number_and_by_size(tmp_path):
    assert not is_too_full(tmp_path)
    (tmp_path / "large").write_bytes(bytes(17 << 20))
    assert is_too_full(tmp_path)
    (tmp_path / "large").unlink()
    (tmp_path / "below").mkdir()
    for n in range(1001):
        (tmp_path / "below" / str(n)).touch()
    assert is_too_full(tmp_path)


def test_user_numbers_are_nobody_s():
    first, second = spare_users(2)
    assert second == first + 1
    for user in (first, second):
        with pytest.raises(KeyError):
            pwd.getpwuid(user)


@pytest.mark.whole
def test_what_a_process_has_started_is_found():
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        until = time.monotonic() + 30
        while not any(p.cpu_s > 0.1 for p in descendants_of(child.pid)) and time.monotonic() < until:
            time.sleep(0.05)
        [grandchild] = descendants_of(child.pid)
        assert grandchild.parent_pid == child.pid and grandchild.cpu_s > 0.1 and grandchild.memory_bytes > 1 << 20
        os.kill(grandchild.pid, 9)


def test_only_python_and_the_machine_s_libraries_are_shown():
    assert os.path.realpath(sys.base_prefix).startswith(tuple(map(os.path.realpath, python_paths())))
    assert not any(os.getcwd() == place or os.getcwd().startswith(f"{place}/") for place in python_paths())
