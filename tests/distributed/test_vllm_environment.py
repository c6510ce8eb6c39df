"""Another Python for vLLM: what is missing there is said in one line, before anything is loaded."""

import json
import stat
import sys
from functools import cache

import pytest

from cotrain.distributed.ray_nodes import inspect_python, python_problem
from tests.sentences import command_refuses


@cache
def this_python():
    """What the Python of these tests says of itself; it runs for a moment, so not while tests are collected."""
    return inspect_python(sys.executable)


def python(tmp_path, **changes):
    """A Python that says what this one says, with changes; None takes something out."""
    told = {"vllm": "0.32.0", **this_python(), **changes}
    told = {name: value for name, value in told.items() if value is not None and name != "asked"}
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\necho '{json.dumps(told)}'\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def check_refusal(code, tmp_path, capsys, asked, *flags):
    """The command refuses a cluster file with this Python by an error with this code, and has the names behind it."""
    cluster = tmp_path / "cluster.toml"
    cluster.write_text(f"[engine]\npython = {asked!r}\n")
    flags = ["--backend", "ray", "--engine", "vllm", "--cluster", str(cluster), "--out", str(tmp_path / "run"), *flags]
    command_refuses(["run", "grpo", *flags], code, capsys)
    assert not (tmp_path / "run").exists()


def test_what_a_python_has():
    assert this_python()["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"cotrain", "code", "ray", "torch", "transformers"} <= set(this_python())
    assert python_problem({**this_python(), "vllm": "0.32.0"}, this_python()) is None


@pytest.mark.whole
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"vllm": None}, "vLLM | pip install vllm"),
        ({"ray": None}, "ray | pip install"),
        ({"cotrain": None, "code": None}, "cotrain | pip install"),
        ({"python": "3.7.1"}, "Python 3.7.1"),
        ({"ray": "2.1.0"}, "Ray 2.1.0"),
        ({"cotrain": "0.0.1", "code": "1"}, "cotrain 0.0.1 | another version"),
        ({"code": "1"}, "cotrain | same version | other files"),
    ],
)
def test_what_is_missing_or_differs_is_one_line(changes, names, tmp_path, capsys):
    check_refusal(f"E_NODE_UNSUITED: {names}", tmp_path, capsys, python(tmp_path, **changes))


@pytest.mark.whole
def test_no_python_is_one_line(tmp_path, capsys):
    check_refusal(f"E_NODE_UNSUITED: {tmp_path}/none", tmp_path, capsys, str(tmp_path / "none"))
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho oh no >&2; exit 3\n")
    silent.chmod(0o700)
    check_refusal(f"E_NODE_UNSUITED: {silent} | oh no", tmp_path, capsys, str(silent))


@pytest.mark.whole
def test_heads_that_vllm_does_not_run_on_a_cpu_are_one_line(tmp_path, capsys):
    """The tiny model of the tests has heads of 16 numbers."""
    from tests.helpers import TINY

    code = "E_VLLM_HEAD_SIZE: 16 | --engine local"
    check_refusal(code, tmp_path, capsys, python(tmp_path), "--model", TINY, "--device", "cpu")


def test_vllm_wants_ray(tmp_path, capsys):
    command_refuses(
        ["run", "grpo", "--engine", "vllm", "--out", str(tmp_path / "run")],
        "E_FLAGS_GO_TOGETHER: --engine vllm | --backend ray",
        capsys,
    )
