"""``cotrain doctor --cluster``: what is said of machines, and of what differs between them."""

import sys
from functools import cache

import pytest

from cotrain.cli.cluster_doctor import arrivals_text, print_machine
from cotrain.distributed.ray_nodes import inspect_machine, inspect_python, machine_differences, machine_problems
from cotrain.distributed.weight_sync_check import PublishCheck


@cache
def this_python():
    """What the Python of these tests says of itself; it runs for a moment, so not while tests are collected."""
    return inspect_python(sys.executable)


@pytest.mark.whole
def test_a_machine_that_has_everything(capsys):
    machine, here = inspect_machine(None, ["shipped"]), this_python()
    assert machine_problems(machine, here, None) == [] and machine_differences([machine, machine]) == []
    print_machine(machine, has_engine=False)
    out = capsys.readouterr().out
    assert f"cotrain {here['cotrain']} (files {here['code']})" in out and "shipped: sha256 " in out


@pytest.mark.whole
def test_what_is_missing_or_differs_is_named():
    machine = inspect_machine("/no/python", ["/no/model"])
    wrong = machine_problems(machine, this_python(), "/no/python")
    assert any("no such file or directory" in line for line in wrong) and any("/no/model" in line for line in wrong)
    good = inspect_machine(None, ["shipped"])
    other = {**good, "name": "other", "weights": {"shipped": "0123"}, "python": {**this_python(), "ray": "1.0"}}
    assert machine_differences([good, other]) == ["weights of 'shipped' on other are others than on " + good["name"]]
    assert "ray 1.0" in machine_problems(other, this_python(), None)[0]


def test_what_the_self_test_found_is_one_line():
    one = PublishCheck(policy="a", before=1e-6, after=2e-6, change=1.5)
    assert arrivals_text([one]) == "a off by 1.0e-06 nats a token, 2.0e-06 after a change of 1.5"
