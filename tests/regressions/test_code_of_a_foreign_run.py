"""Loading a run directory of somebody else ran the Python file that its recipe.json names, without a word."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import cotrain
from cotrain.cli.main import main
from cotrain.core import trust
from cotrain.runs.directory import RunDirectory
from cotrain.storage.file_ops import digest_of
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

METHOD = """
import os
from pathlib import Path

with (Path(__file__).parent / "ran").open("a") as canary:
    canary.write("x")

from cotrain import recipe, RunConfig, GRPO, Objective, constant_schedule
from cotrain.rollout import common_roles
from cotrain.core.signals import OUTCOME
from cotrain.rollout.protocols import solve


@recipe(steps=1)
def mine(run: RunConfig):
    return run.recipe(
        "mine",
        policies={"generator": run.learner()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={
            "generator": Objective(policy="generator", role="solver", algorithm=GRPO(reward_weights={OUTCOME: 1.0}))
        },
        schedule=constant_schedule(solve, "generator"),
        evaluate=solve,
    )
"""
FLAGS = ["--model", TINY, "--tasks-per-step", "1", "--group-size", "2", "--evaluation-tasks", "1", "--threads", "1"]
SMALL = [*FLAGS, "--operations", "2", "2", "--set", "evaluation.group_size=2", "--set", "evaluation.splits=[]"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A run directory, and the method that lies in it, as they were begun by somebody else."""
    home = tmp_path_factory.mktemp("theirs")
    folder = home / "run"
    method = home / "method.py"
    method.write_text(METHOD)
    held = os.environ["XDG_CONFIG_HOME"]
    os.environ["XDG_CONFIG_HOME"] = str(home / "their config")
    try:
        assert main(["run", f"{method}:mine", "--out", str(folder), *SMALL]) == 0
    finally:
        os.environ["XDG_CONFIG_HOME"] = held
    (home / "ran").unlink()
    return folder


@pytest.fixture
def run(theirs, tmp_path, monkeypatch):
    """A copy of it, and a user who trusts nothing yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    copied = tmp_path / "copied"
    shutil.copytree(theirs, copied / "run")
    shutil.copy(theirs.parent / "method.py", copied / "method.py")
    named(copied / "run", f"{copied / 'method.py'}:mine")
    return copied / "run"


def named(folder, target):
    """Let a run name another file, in agreement with its seal: whoever sends a run seals it."""
    directory = RunDirectory(folder)
    saved = directory.read("recipe.json")
    saved["origin"]["target"] = target
    directory.write_with_hashes({"recipe.json": saved})
    assert directory.recorded_hashes()["recipe.json"] == digest_of((folder / "recipe.json").read_bytes())


def ran(run):
    return (run.parent / "ran").exists()


COMMANDS = [
    ["eval", "RUN", "--problems", "1"],
    ["eval", "RUN", "--suite", "gsm8k", "--data", "none.jsonl"],
    ["resume", "RUN", "--steps", "2"],
    ["export", "RUN", "--role", "solver", "--out", "MODEL"],
    ["export", "RUN", "--role", "solver", "--out", "MODEL", "--model", "elsewhere"],
    ["chat", "RUN", "--once", "2 + 2"],
    ["serve", "RUN", "--port", "0"],
    ["attack", "RUN"],
    ["xplay", "RUN"],
]


@pytest.mark.whole
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: f"{words[0]}-{len(words)}")
def test_no_command_runs_it_unasked(command, run, tmp_path, capsys):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    words = [{"RUN": str(run), "MODEL": str(tmp_path / "model")}.get(word, word) for word in command]
    command_refuses(words, f"E_CODE_NOT_TRUSTED: {run.parent / 'method.py'} | --trust-code", capsys)
    assert not ran(run) and {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.whole
@pytest.mark.parametrize("command", [["report", "RUN"], ["top", "RUN", "--json"], ["diff", "RUN", "RUN"]])
def test_reading_needs_no_code(command, run, capsys):
    assert main([str(run) if word == "RUN" else word for word in command]) == 0
    assert not ran(run)


@pytest.mark.whole
def test_consent_is_remembered_by_what_the_file_holds(run, capsys):
    ask = ["eval", str(run), "--problems", "1"]
    assert main([*ask, "--trust-code"]) == 0 and ran(run)
    assert main(ask) == 0
    method = run.parent / "method.py"
    method.write_text(METHOD + "\n# changed\n")
    command_refuses(ask, f"E_CODE_NOT_TRUSTED: {method} | --trust-code", capsys)


def test_one_consent_is_for_one_command(run):
    assert main(["top", str(run), "--json"]) == 0
    with pytest.raises(SystemExit):
        main(["eval", "--trust-code", "--help"])
    assert main(["eval", str(run), "--problems", "1"]) == 2 and not ran(run)


@pytest.mark.whole
def test_from_python_too(run):
    with refuses("E_CODE_NOT_TRUSTED"):
        cotrain.evaluate(run, tasks=1)
    assert not ran(run)
    cotrain.trust_code(run)
    assert cotrain.evaluate(run, tasks=1)["figures"]


@pytest.mark.whole
def test_a_run_begun_here_is_trusted(run, tmp_path):
    out = str(tmp_path / "mine")
    assert main(["run", f"{run.parent / 'method.py'}:mine", "--out", out, *SMALL]) == 0
    assert main(["eval", out, "--problems", "1"]) == 0
    assert main(["eval", str(run), "--problems", "1"]) == 0  # the same file


@pytest.mark.whole
def test_an_edited_method_of_a_run_begun_here_is_trusted_where_it_was_begun(run, tmp_path, monkeypatch, capsys):
    method, out = tmp_path / "mine.py", tmp_path / "mine"
    method.write_text(METHOD)
    assert main(["run", f"{method}:mine", "--out", str(out), *SMALL]) == 0
    method.write_text(METHOD + "# edited\n")
    assert main(["eval", str(out), "--problems", "1"]) == 0
    monkeypatch.setattr(trust, "_NAMED_BY_USER", set())  # as of another process
    assert main(["eval", str(out), "--problems", "1"]) == 0
    shutil.move(out, tmp_path / "moved")
    method.write_text(METHOD + "# edited once more\n")
    moved = str(tmp_path / "moved")
    command_refuses(["eval", moved, "--problems", "1"], "E_CODE_NOT_TRUSTED", capsys, names=(moved, str(method)))
    shutil.copytree(run, out)  # another run in its place that names the same file
    named(out, f"{method}:mine")
    (out / "provenance.json").write_text((out / "provenance.json").read_text() + " ")
    directory = RunDirectory(out)
    directory.write_with_hashes(
        {"provenance.json": json.loads((out / "provenance.json").read_text()) | {"python": "other"}}
    )
    command_refuses(["eval", str(out), "--problems", "1"], "E_CODE_NOT_TRUSTED", capsys, names=str(method))


def test_a_relative_path_names_no_file_of_the_current_directory(run, monkeypatch, capsys):
    trust.remember_trusted(trust.hash_of([run.parent / "method.py"]), "method.py")
    named(run, "method.py:mine")
    monkeypatch.chdir(run.parent)
    for more in ([], ["--trust-code"]):
        command_refuses(
            ["eval", str(run), "--problems", "1", *more], "E_CODE_PATH_RELATIVE: 'method.py' | recipe.json", capsys
        )
    assert not ran(run)


def change(run, change_settings):
    directory = RunDirectory(run)
    saved = directory.read("recipe.json")
    change_settings(saved["origin"])
    directory.write_with_hashes({"recipe.json": saved})


def test_a_task_source_a_module_and_a_sandbox_are_code_too(run, tmp_path, monkeypatch, capsys):
    package = tmp_path / "package"
    package.mkdir()
    canary = tmp_path / "ran"
    for name in ("__init__", "inner"):
        (package / f"{name}.py").write_text(f"open({str(canary)!r}, 'w').write('x')\nclass Own: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    held = json.loads((run / "recipe.json").read_text())["origin"]["arguments"]["tasks"]["tasks"]
    for tasks in (
        {"tasks": held, "class": f"{package / 'inner.py'}:Own"},
        {"tasks": held, "class": "package.inner:Own"},
        {"tasks": {"kind": "programs", "settings": {"suite": "mbpp", "path": "none", "sandbox": "package.inner:run"}}},
    ):
        change(run, lambda origin, tasks=tasks: origin.update(target="grpo") or origin["arguments"].update(tasks=tasks))
        code = "E_CODE_NOT_TRUSTED: inner | --trust-code"
        if "sandbox" in json.dumps(tasks):
            code = "E_PROBLEMS_NOT_REBUILT"
        command_refuses(["eval", run, "--problems", "1"], code, capsys)
        assert not canary.exists(), tasks


@pytest.mark.whole
def test_python_that_comes_with_a_model_is_code_too(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "their config"))
    more = ["--kl", "0", "--steps", "1", "--set", "policies.generator.trust_remote_code=true"]
    assert main(["run", "grpo", "--out", str(out), *SMALL, *more]) == 0
    assert main(["eval", str(out), "--problems", "1"]) == 0
    capsys.readouterr()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    code = "E_CODE_NOT_TRUSTED: Python files of the model | --trust-code"
    command_refuses(["eval", out, "--problems", "1"], code, capsys)


@pytest.mark.whole
def test_a_home_that_cannot_be_written_to_asks_again(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    ask = ["eval", str(run), "--problems", "1"]
    assert main([*ask, "--trust-code"]) == 0
    assert main(ask) == 2


def test_the_file_of_what_is_trusted_is_this_user_s(run):
    cotrain.trust_code(run)
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "cotrain" / "trusted"
    assert path.parent.stat().st_mode & 0o077 == 0
    [line] = path.read_text().splitlines()
    assert line == f"{trust.hash_of([run.parent / 'method.py'])} {json.dumps(str(run.parent / 'method.py'))}"
