"""A hundred thousand directories: no grade after 22 seconds, and as many to remove."""

from __future__ import annotations

from cotrain.core.types import Grade

MANY = """
import os
def made():
    for n in range(100000):
        try:
            os.mkdir(str(n))
        except OSError:
            return n
    return n
"""
DEEP = """
import os
def made():
    for n in range(5000):
        try:
            os.mkdir("below")
            os.chdir("below")
        except OSError:
            return n
    return n
"""
LARGE = """
def written():
    for n in range(60):
        try:
            with open(str(n), "wb") as file:
                file.write(bytes(1 << 20))
        except OSError:
            return n
    return n
"""
ONE = """
def written():
    try:
        with open("f", "wb", buffering=0) as file:
            return file.write(bytes(1 << 22)) + file.write(bytes(1 << 22))
    except OSError:
        return 0
"""
EMPTY = "import os\ndef twice(x):\n    return 2 * x if not os.listdir('.') else 0\n"
STOPPED = (Grade(value=True), Grade(value=False, reason="OSError"))  # by the file system, or by who watches the folder


def test_directories_end_at_a_limit(sandbox):
    assert sandbox.ask(MANY, "assert made() < 99999") in STOPPED
    assert sandbox.is_well() and sandbox.ask(EMPTY) == Grade(value=True)


def test_a_deep_tree_is_removed(sandbox):
    assert sandbox.ask(DEEP, "assert made() < 4999") in (*STOPPED, Grade(value=False, reason="timeout"))
    assert sandbox.is_well() and sandbox.ask(EMPTY) == Grade(value=True)


def test_all_files_together_end_at_a_limit(sandbox):
    assert sandbox.ask(LARGE, "import time\nassert written() < 20 or time.sleep(20)") in STOPPED
    assert sandbox.is_well() and sandbox.ask(EMPTY) == Grade(value=True)


def test_one_file_ends_at_a_limit(sandbox):
    assert sandbox.ask(ONE, "assert written() == 0") == Grade(value=True)
    assert sandbox.is_well()


def test_nothing_is_written_elsewhere(sandbox, tmp_path):
    tmp_path.chmod(0o777)
    for above in [tmp_path.parent, tmp_path.parent.parent]:
        above.chmod(0o755)
    places = [str(tmp_path / "f"), "/tmp/../var/tmp/cotrain-f", "/dev/shm/cotrain-f"]
    program = f"""
def written():
    n = 0
    for path in {places!r}:
        try:
            open(path, "w").write("x")
            n += 1
        except OSError:
            pass
    return n
"""
    assert sandbox.ask(program, "assert written() == 0") == Grade(value=True)
    assert not any(tmp_path.iterdir())
