"""Input that a user can mend, and that ended in a traceback."""

import json
import shutil

import pytest

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.storage.file_ops import DiskError, Files, replace_file
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses, refuses

SMALL = [
    "--tasks-per-step",
    "2",
    "--group-size",
    "2",
    "--evaluation-tasks",
    "1",
    "--steps",
    "1",
    "--operations",
    "2",
    "2",
]


def refused(words, capsys, *expected):
    """The command ends with 2 and one line that says these things."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and all(part in told for part in expected), told


NULLS = ["roles.solver.sampling", "roles.solver", "roles", "tasks", "policies.generator", "policies", "objectives",
    "schedule",
         "schedule.phases", "schedule.cycle", "evaluation", "evaluation.measures", "evaluation.options", "steps",
         "name",
         "objectives.generator.algorithm", "objectives.generator.algorithm.advantage_mix",
         "objectives.generator.algorithm.advantage_mix.outcome",
         "policies.generator.lr",
         "schedule.phases.0", "schedule.phases.0.options.reviews", "objectives.verifier.extra_roles"]  # fmt: skip


@pytest.mark.parametrize("path", NULLS)
def test_null_is_refused_where_it_means_nothing(path):
    with refuses(("E_OVERRIDE_TYPE", "E_OVERRIDE_PATH"), names=f"--set '{path}=null'"):
        override(tango(), [f"{path}=null"])


def test_null_is_taken_where_it_is_a_value():
    changed = override(
        tango(), ["horizon=null", "objectives.generator.algorithm.kl=null", "policies.generator.autocast=null"]
    )
    assert changed.objectives["generator"].algorithm.kl is None


def test_tasks_that_are_no_source(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\nfrom cotrain import Recipe, RunConfig, recipe\n"
        "from cotrain.recipes.grpo import grpo\n@recipe\ndef mine(run: RunConfig) -> Recipe:\n    return "
        "replace(grpo(), tasks=[1, 2])\n"
    )
    command_refuses(["run", f"{file}:mine", "--out", tmp_path / "run"], "E_TASKS_NOT_SOURCE: tasks | list", capsys)


def test_a_configuration_that_makes_no_model(tmp_path, capsys):
    model = shutil.copytree(TINY, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 999}))
    command = ["run", "grpo", "--model", model, *SMALL, "--out", tmp_path / "run"]
    refused(command, capsys, str(model))  # the oldest transformers says less of it


def test_a_chat_template_that_fails(tmp_path, capsys):
    model = shutil.copytree(TINY, tmp_path / "model")
    (model / "chat_template.jinja").write_text("{% for i in range(10**9) %}x{% endfor %}{{ messages[0].content }}")
    command = ["run", "grpo", "--model", model, *SMALL, "--out", tmp_path / "run"]
    command_refuses(command, "E_CHAT_TEMPLATE_REFUSES: Range too big", capsys)  # in the words of the template's library


@pytest.mark.whole
def test_a_directory_in_which_a_run_was_killed_as_it_began(tmp_path, capsys):
    class KilledFiles(Files):
        """Leave what is being written, as a kill does."""

        def rename(self, source, target):
            raise OSError

        def remove(self, path):
            pass

    out = tmp_path / "run"
    out.mkdir()
    for name in (".lock", "seal.json", "provenance.json"):
        (out / name).write_text("{")
    for name in ("recipe.json", "seal.json"):
        with pytest.raises(DiskError):
            replace_file(out / name, b"{", files=KilledFiles())
    assert len(list(out.glob(".*.staging"))) == 2
    command_refuses(["resume", out], "E_NOT_RUN_DIRECTORY: recipe.json", capsys)
    assert main(["run", "grpo", "--model", TINY, *SMALL, "--out", str(out)]) == 0
    assert not list(out.glob(".*.staging"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    small = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "steps": 1}
    api.run(override(grpo(tasks=EASY, **small), ["evaluation.splits=[]", "evaluation.group_size=1"]), folder)
    return folder


SHAPES = [
    "[]",
    "null",
    "3",
    '"text"',
    "{}",
    '{"origin": [], "settings": 1}',
    '{"files": []}',
    "{",
    "[" * 100_000,
    "\xff",
]
FILES = ["recipe.json", "seal.json", "summary.json", "before.json", "provenance.json", "trackers.json", "metrics.jsonl"]


@pytest.mark.whole
@pytest.mark.parametrize("name", FILES)
def test_files_of_another_shape(finished, name, tmp_path, capsys):
    for number, shape in enumerate(SHAPES):
        run = shutil.copytree(finished, tmp_path / str(number))
        (run / name).write_text(shape, encoding="latin-1")
        for command in ("resume", "report", "eval", "export"):
            words = [command, run, *(["--role", "solver", "--out", run / "model"] if command == "export" else [])]
            if name == "trackers.json":  # nothing rests on it
                assert main([str(word) for word in words]) == 0
            else:
                refused(words, capsys, name)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl", "recipe.json", "summary.json", "seal.json"])
def test_a_directory_where_a_file_should_be(finished, name, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run")
    (run / name).unlink()
    (run / name).mkdir()
    if name == "timings.jsonl":
        (run / "summary.json").unlink()
    refused(["resume", run], capsys, "recipe.json" if name == "recipe.json" else name)
    shutil.rmtree(run / "checkpoints")
    refused(["resume", run], capsys, "recipe.json" if name == "recipe.json" else name)
