"""Every recipe on a task that comes from outside of the package: a file of rows, a program, a search, a game, an
environment. ``demo`` is one run of fixed problems."""

import json
import sys

import pytest

from cotrain.config.registry import find_recipe
from cotrain.data.sources import problem_source, task_source
from cotrain.recipes import RECIPES
from cotrain.trainer.trainer import CoTrainer
from tests.fakes import on_the_path
from tests.helpers import TINY
from tests.recipes.test_environment import LONGER

pytestmark = pytest.mark.whole
SMALL = {"model": TINY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2, "steps": 2, "kl": 0.0}
OWN = """
import ast
import json
from urllib.request import Request, urlopen
from dataclasses import dataclass



def check(problem):
    return "3" if "crates" in problem else None


async def search(query):
    return [f"three crates hold {query}"]


def reward(task, texts):
    return float(len(set(texts)) == len(texts))


def agent(problem, base_url, api_key):
    body = {"model": "solver", "messages": [{"role": "user", "content": problem}], "max_tokens": 16}
    headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
    with urlopen(Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]
"""
CHECKER = """
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    ok = [True for _ in asked["steps"]]
    print(json.dumps({"id": asked["id"], "ok": ok, "reasons": ["" for _ in ok], "done": False}), flush=True)
"""
BY_NAME = {  # what a recipe is given beside its tasks; "@" stands for the file of the user's
    "agent": {"agent": "@own.py:agent"},
    "alphaproof": {"checker": "python @checker.py", "budget": 60},
    "distill": {"teacher": TINY},
    "magrpo": {"joint_reward": "@own.py:reward", "agents": 2, "turns": 2, "group_size": 2},
    "mae": {"gate": "@own.py:check"},
    "mars": {"search": "@own.py:search"},
    "proposer_solver": {"gate": "@own.py:check"},
    "semi_supervised": {"labelled": "4", "warmup": 0},
    "ssp": {"search": "@own.py:search"},
    "ssrl": {"search": "@own.py:search"},
}
PAIRS = {"dpo", "pair_judge", "reward"}


def rows(count=40):
    """As in GSM8K, with a worked answer, and a question in other words."""
    for n in range(1, count + 1):
        question = f"There are {n} crates, and 2 more come. How many crates are there?"
        yield {
            "question": question,
            "answer": f"{n} + 2 = <<{n}+2={n + 2}>>{n + 2} crates.\n#### {n + 2}",
            "paraphrase": f"Of {n} crates and 2 crates, how many crates are there?",
        }


def programs(count=40):
    for n in range(count):
        tests = [f"assert add{n}(1) == {n + 1}", f"assert add{n}(2) == {n + 2}"]
        yield {
            "task_id": n,
            "text": f"Write a function add{n} that adds {n}, as for crates.",
            "code": f"def add{n}(x):\n    return x + {n}",
            "test_list": tests,
        }


def pairs(count=40):
    """In steps, as the tiny model's judge reads replies."""
    for n in range(count):
        chosen, rejected = (f"<step>crates = {said}</step>\n<answer>{said}</answer>" for said in (n + 2, n))
        yield {"prompt": f"How many are {n} crates and 2?", "chosen": chosen, "rejected": rejected}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "own.py").write_text(OWN)
    (folder / "checker.py").write_text(CHECKER)
    for name, written in (("rows", rows()), ("pairs", pairs()), ("programs", programs())):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))
    with on_the_path(folder, "fake", cotrain_longer=LONGER):
        yield folder


def tasks_for(name, folder):
    if name == "environment":
        return task_source("environment:cotrain_longer")
    if name in PAIRS:
        return problem_source("pairs", str(folder / "pairs.jsonl"))
    return problem_source(None, str(folder / "rows.jsonl"), labelled=BY_NAME.get(name, {}).get("labelled"))


@pytest.mark.parametrize("name", sorted(set(RECIPES) - {"demo"}))
def test_a_recipe_plays_what_a_user_brings(name, files):
    given = {
        key: value.replace("@", f"{files}/").replace("python ", f"{sys.executable} ")
        if isinstance(value, str)
        else value
        for key, value in BY_NAME.get(name, {}).items()
    }
    check_playing(name, {"tasks": tasks_for(name, files)} | given)


def check_playing(name, own):
    """``own``: what the user brings, in which "crates" is a word of every problem."""
    make = find_recipe(name)
    arguments = SMALL | own
    taken = make.parameters
    arguments = {key: value for key, value in arguments.items() if key in taken and value is not None}
    trainer = CoTrainer(make(**arguments))
    done = [trainer.step() for _ in range(2)]
    trainer.close()
    episodes = [episode for one in done for episode in one.episodes]
    assert episodes and not any(episode.failure for episode in episodes), {e.failure for e in episodes}
    assert {trace.failure for episode in episodes for trace in episode.traces} == {None}
    said = {trainer.runner.renderers[trace.policy].decode(trace.prompt_ids) for e in episodes for trace in e.traces}
    assert name == "environment" or any("crates" in prompt for prompt in said)
