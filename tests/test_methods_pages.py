"""The pages of methods: one shape, parameters and values that there are, and runs that would begin."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotrain.cli.main import main
from cotrain.config.registry import find_recipe
from cotrain.metrics.table import metric_named
from tests.helpers import TINY

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "methods"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
RECIPES = {"preferences": ("dpo", "reward")}  # the recipes of a page, where it has not the name of its one
MODELS = (
    *("path/or/hub-name", "path/to/smaller", "my-model", "my-student", "my-teacher", "my-chat-model", "my-policy"),
    *("my-judge", "my-reward-model", "another-judge", "owner/chat-model", "runs/pairs/taught"),
)
ELSEWHERE = ("Qwen/", "environment:", "openenv:")  # a model that is fetched, and another package's environment
FUNCTIONS = """
async def search(query):
    return []


def short(task, answer, correct):
    return 1.0


def value(task, answer):
    return 1.0


def check(problem):
    return "1"


def reward(task, texts):
    return 1.0


async def solve(problem, base_url, api_key):
    return "1"
"""


def text_of(page: str) -> str:
    return (FOLDER / f"{page}.md").read_text(encoding="utf-8")


def controls_of(page: str) -> str:
    """The section on controls, "" where there is none."""
    return text_of(page).partition("\n## Controls\n")[2].partition("\n## ")[0]


def runs_of(page: str) -> list[list[str]]:
    """The words of every training command that a block of the page shows, behind ``cotrain``."""
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    commands = [shlex.split(line, comments=True) for line in lines if line.startswith("cotrain ")]
    return [words[1:] for words in commands if words[1] in ("run", "dpo", "reward")]


@pytest.mark.parametrize("page", PAGES)
def test_a_method_has_its_parts_in_one_order(page):
    text = text_of(page)
    parts = ["\n**When to use it**", "\n```", "\nCode: ", "\n## Measured\n"]
    assert all(part in text for part in parts)
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    differs = text.find("\n## What differs from")
    assert differs < 0 or differs > places[-1]


@pytest.mark.parametrize("page", PAGES)
def test_a_method_names_parameters_and_values_that_there_are(page):
    arguments = {}
    for recipe in RECIPES.get(page, (page,)):
        arguments |= find_recipe(recipe).parameters
    controls = controls_of(page)

    first_columns = re.findall(r"^\| ([^|]*) \|", controls, re.MULTILINE)
    named = {name for column in first_columns for name in re.findall(r"`([a-z]\w*)(?:=[^`]*)?`", column)}
    assert named - arguments.keys() == set()

    for name, value in re.findall(r"`([a-z]\w*)=([\w.+/-]+)`", controls):
        hint = arguments[name].hint
        if typing.get_origin(hint) is typing.Literal:
            assert value in typing.get_args(hint), name


def test_a_value_that_is_not_offered_would_be_seen():
    assert "dr_grpo" in typing.get_args(find_recipe("grpo").parameters["estimator"].hint)
    assert "`dr_grpo`" in controls_of("grpo") and "`dr_grpo`" in controls_of("tango")


@pytest.mark.parametrize("page", [page for page in PAGES if "\n## What to watch\n" in text_of(page)])
def test_a_method_names_metrics_that_there_are(page):
    """The first column of what to watch: names behind whose they are, as ``solver/`` or ``generator/solver/``."""
    section = text_of(page).partition("\n## What to watch\n")[2].partition("\n## ")[0]
    columns = re.findall(r"^\| ([^|]*) \|", section, re.MULTILINE)
    keys = [key for column in columns for key in re.findall(r"`([^`]+)`", column)]
    assert keys
    for key in keys:
        parts = key.removeprefix("eval/").replace("{reason}", "x").replace("{outcome}", "ok").split("/")
        names = ["/".join(parts[start:]) for start in range(len(parts))]
        assert "…" in key or any(metric_named(name) for name in names), key


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A directory with the files that the pages speak of."""
    place = tmp_path_factory.mktemp("methods")
    question = "Tom has {0} apples and buys 4 more. How many has he in the end, all in all?"
    answered = [{"question": question.format(n), "answer": str(n + 4)} for n in range(40)]
    open_questions = [{"question": f"How many legs have {n} dogs and a cat?"} for n in range(30)]
    pairs = [{"prompt": f"What is {n} + 1?", "chosen": str(n + 1), "rejected": str(n)} for n in range(40)]
    other_words = [row | {"paraphrase": row["question"].replace("Tom", "Our Tom")} for row in answered]

    def replies_to(n: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"Say {n}."}, {"role": "assistant", "content": f"{n}, as you wish."}]

    files = {
        "problems.jsonl": answered,
        "solved.jsonl": answered,
        "data.jsonl": answered,
        "questions.jsonl": open_questions,
        "half-answered.jsonl": answered + open_questions,
        "paraphrased.jsonl": other_words,
        "pairs.jsonl": pairs,
        "chat.jsonl": [{"messages": replies_to(n)} for n in range(40)],
    }
    for name, rows in files.items():
        (place / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [f'"{row["question"]}",{row["answer"]}\n' for row in answered]
    (place / "problems.csv").write_text("question,answer\n" + "".join(lines))
    for name in MODELS:
        shutil.copytree(TINY, place / name)
    for name in ("my_file.py", "my_gate.py", "my_agent.py", "mine.py"):
        (place / name).write_text(FUNCTIONS)
    checker = Path("examples/own/assertion_checker.py")
    (place / checker).parent.mkdir(parents=True)
    shutil.copy(ROOT / checker, place / checker)
    yield place


@pytest.mark.whole
@pytest.mark.parametrize("page", PAGES)
def test_the_runs_of_a_method_would_begin(page, place, monkeypatch, capsys):
    """Each is a dry run: its model and its data are opened, and its recipe is built and checked."""
    monkeypatch.chdir(place)
    runs = runs_of(page)
    assert runs
    for words in runs:
        if any(mark in word for word in words for mark in ELSEWHERE):
            continue
        code = main([*words, "--dry-run"])
        assert code == 0, (words, capsys.readouterr().err)
