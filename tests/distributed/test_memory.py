"""What memory a machine has, and what a container leaves of it."""

from cotrain.distributed.device_memory import PARALLEL_RUNS, memory_of
from cotrain.distributed.ray_nodes import memory_here

GIB = 2.0**30


def test_the_memory_of_this_machine():
    found = memory_of("cpu")
    assert found is not None and GIB < found.available <= found.total == memory_here()


def test_a_container_leaves_what_its_limit_does(tmp_path):
    limit, used = tmp_path / "max", tmp_path / "current"
    places = [(str(limit), str(used))]
    whole = memory_of("cpu", places)
    used.write_text("400\n")
    limit.write_text("max\n")
    assert memory_of("cpu", places).total == whole.total
    limit.write_text("1000\n")
    assert memory_of("cpu", places).total == 1000.0 and memory_of("cpu", places).available == 600.0
    used.write_text("1200\n")
    assert memory_of("cpu", places).available == 0.0


def test_runs_that_are_started_together_share_the_memory(monkeypatch):
    whole = memory_of("cpu")
    monkeypatch.setenv(PARALLEL_RUNS, "64")
    share = memory_of("cpu")
    assert share.total == whole.total and share.available == whole.total / 64
    for unreadable in ("", "1", "many"):
        monkeypatch.setenv(PARALLEL_RUNS, unreadable)
        assert memory_of("cpu").available > share.available
