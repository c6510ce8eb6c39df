"""An installed package joins methods, task sources and commands with entry points."""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers import TINY
from tests.sentences import command_refuses

METHOD = '''"""A method of another package."""
from dataclasses import dataclass
from cotrain import Objective, Recipe, RunConfig, Task, OUTCOME, GRPO, recipe, constant_schedule, solve
from cotrain.rollout import common_roles


@recipe()
def riddle_grpo(run: RunConfig, *, scale: float = 1.0) -> Recipe:
    if scale < 0:
        raise ValueError("scale is below zero")
    solver = common_roles.solver("solver", run.model)
    learn = Objective(policy="solver", role="solver", algorithm=GRPO(reward_weights={OUTCOME: scale}))
    return run.recipe(
        "riddle",
        policies={"solver": run.learner()},
        roles={"solver": solver},
        objectives={"solver": learn},
        schedule=constant_schedule(solve, "solver"),
        evaluate=solve,
    )


@dataclass(frozen=True)
class Riddles:
    kind: str = "easy"
    name = "riddles"

    def get(self, split, index):
        return Task(id=f"{split}/{index}", prompt=f"What is {index} plus 1?", gold=str(index + 1))

    def size(self, split):
        return {"train": 16, "validation": 4, "test": 4}[split]

    def describe(self):
        return {"kind": "riddles", "settings": {"kind": self.kind}}

    def grade(self, task, text):
        raise NotImplementedError


def count_words(words):
    print(len(words))
    return 3
'''
POINTS = """[cotrain.recipes]
riddle_grpo = riddle_package.parts:riddle_grpo
no_recipe = riddle_package.parts:count_words
lost = riddle_package.parts:gone

[cotrain.tasks]
riddles = riddle_package.parts:Riddles

[cotrain.commands]
count = riddle_package.parts:count_words
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder that is on the path as ``pip install --target`` leaves it."""
    package, info = tmp_path / "site" / "riddle_package", tmp_path / "site" / "riddle_package-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(METHOD)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: riddle-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("riddle_package")]:
        del sys.modules[name]


def command(folder, *words):
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "cotrain", *words], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )


@pytest.mark.whole
def test_a_command_is_found_and_its_words_and_code_are_its_own(installed):
    done = command(installed, "count", "a", "b")
    assert (done.returncode, done.stdout) == (3, "2\n"), done.stderr
    assert "'count'" in command(installed, "cuont").stderr


@pytest.mark.whole
def test_a_method_is_listed_runs_and_is_found_again_by_its_name(installed):
    listed = command(installed, "list")
    assert "riddle_grpo  A method of another package." in listed.stdout, listed.stderr
    out = installed / "run"
    words = ("--model", TINY, "--steps", "1", "--tasks-per-step", "2", "--group-size", "2", "--evaluation-tasks", "2")
    settings = ("--set", "evaluation.splits=[]", "--threads", "1", "--out", str(out))
    done = command(installed, "run", "riddle_grpo", *words, *settings)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "recipe.json").read_text())["origin"]["target"] == "riddle_grpo"
    assert command(installed, "resume", str(out), "--steps", "2").returncode == 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("run", "riddle_grpo", "--scale", "-1", "--out", "x"), "E_RECIPE_NOT_LOADED: 'riddle_grpo' | parts.py, line"),
        (("run", "no_recipe", "--out", "x"), "E_NOT_RECIPE: 'no_recipe' | count_words"),
        (("run", "lost", "--out", "x"), "E_PLUGIN_NOT_LOADED: 'lost' | riddle_package.parts:gone"),
        (("run", "ridle_grpo", "--out", "x"), "E_UNKNOWN_RECIPE: 'ridle_grpo' | 'riddle_grpo'"),
        (("run", "grpo", "--tasks", "ridles", "--out", "x"), "E_UNKNOWN_TASK_SOURCE: 'ridles' | 'riddles'"),
    ],
    ids=["not loaded", "no recipe", "lost", "recipe", "tasks"],
)
def test_what_is_wrong_with_a_package_is_one_line(installed, capsys, monkeypatch, words, code):
    monkeypatch.chdir(installed)
    command_refuses(words, code, capsys)


def test_tasks_are_found_with_what_stands_behind_their_colon(installed):
    from cotrain.data.sources import task_source

    assert task_source("riddles").kind == "easy" and task_source("riddles:hard").kind == "hard"
