"""What memory a machine has, and what a container leaves of it."""

from cotrain.backend.machines import memory_here
from cotrain.backend.memory import memory_of

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
