"""One long prompt ended a run: "prompt (778) and max_tokens (768) exceed the context of 1024", in an evaluation."""

import json

import pytest

from cotrain import api
from cotrain.config.override import override
from cotrain.data.sources import task_source
from cotrain.distributed.local import LocalBackend, make_local_engine
from cotrain.recipes.grpo import grpo
from cotrain.runs import opening
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY, TINY, Heard
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks_per_step": 3, "group_size": 2, "evaluation_tasks": 4}


def questions(folder, long):
    """A directory of four problems a split, one of train goes to validation; those of ``long`` have 900 words too
    many."""
    folder.mkdir()
    for split in ("train", "test"):
        rows = []
        for i in range(4):
            task = EASY.get(split, i)
            words = "word " * 900 if i in long else ""
            rows.append(json.dumps({"question": words + task.prompt, "answer": task.gold}) + "\n")
        (folder / f"{split}.jsonl").write_text("".join(rows))
    return str(folder)


def recipe(folder, long):
    made = grpo(steps=2, tasks=task_source("jsonl", questions(folder, long)), **SMALL)
    return override(made, ["evaluation.splits=[]", "evaluation.group_size=2"])


@pytest.mark.whole
def test_a_problem_that_does_not_fit_is_set_aside_counted_and_named(tmp_path):
    heard = Heard()
    outcome = api.run(recipe(tmp_path / "data", {3}), tmp_path / "run", observer=heard)
    assert outcome.summary["steps"] == 2
    found = [line for line in heard.lines if "do not fit role 'solver'" in line]
    assert len(found) == 2 and all("note: 1 of" in line and "exceed the context of 1024" in line for line in found)
    assert (
        sum("is set aside: " in line and "exceed the context" in line for line in heard.lines) == 2
    )  # one of either split
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["failures/prompt too long"] for row in rows] == [2, 2]
    assert outcome.summary["before"]["solver/pass@1"]["n"] == 6  # two samples of three problems
    with Ledger(tmp_path / "run" / "episodes") as ledger:
        failed = [episode for episode in ledger.read(0) if episode.failure]
    assert {episode.failure for episode in failed} == {"prompt too long"} and not any(e.traces for e in failed)
    assert {episode.task_id for episode in failed} <= {
        line.split()[2] for line in heard.lines if "is set aside: " in line
    }
    opening.evaluate(tmp_path / "run")


class TrainsAlone:
    """An engine that does not say how much it takes. Implements ``Engine``."""

    def __init__(self, handles, device):
        engine = make_local_engine(handles, device)
        self.sample, self.advance, self.publish, self.counts = (
            engine.sample,
            engine.advance,
            engine.publish,
            engine.counts,
        )


@pytest.mark.whole
def test_an_engine_that_does_not_say_what_fits_trains_on_files(tmp_path):
    made = override(recipe(tmp_path / "data", set()), ["tasks_per_step=2"])  # all that are left for training
    outcome = api.run(made, tmp_path / "run", backend=LocalBackend(engine=TrainsAlone))
    assert outcome.summary["steps"] == 2


@pytest.mark.whole
def test_where_nothing_fits_the_run_is_refused_in_one_line(tmp_path, capsys):
    with refuses("E_PROMPT_TOO_LONG", names=("3 of 3 problems of train", "'solver'", "--max-tokens N")):
        api.run(recipe(tmp_path / "data", {0, 1, 2, 3}), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    words = ["run", "grpo", "--model", TINY, "--steps", "1", "--set", "roles.solver.sampling.max_tokens=1020"]
    command_refuses([*words, "--out", tmp_path / "run"], "E_PROMPT_TOO_LONG: held-out problems of test", capsys)
