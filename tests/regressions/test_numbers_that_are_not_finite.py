"""A learning rate of 1e18 ended in a traceback, and a run all of whose updates were skipped ended well, without an
alarm."""

import json
import math
import re

import pytest
import torch

from cotrain.cli.main import main
from cotrain.config.registry import make_recipe
from cotrain.core.seeding import Address
from cotrain.metrics.starved import NON_FINITE_SUFFIX
from cotrain.models.load import load_model, save_model
from cotrain.runs import run as loop
from cotrain.runs.directory import RunDirectory, recipe_json
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from cotrain.trainer.failures import SKIP_WINDOW, SkipGuard
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import TINY, active_run
from tests.sentences import command_refuses, refuses

METHOD = """
from dataclasses import replace
import math
from cotrain.core.signals import OUTCOME, gives
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import trainable
from cotrain.config.recipe import Objective, Recipe
from cotrain.config.run_config import RunConfig, recipe
from cotrain.config.schedule import constant_schedule
from cotrain.metrics.heldout import measure_solver
from cotrain.rollout.common_roles import solver
from cotrain import examine
from tests.helpers import EASY, TINY

LEFT = []  # updates that are made before, and that are spoiled


class Spoiled(PolicyGradient):
    def credit(self, batch, state):
        made, state = super().credit(batch, state)
        LEFT[0] -= 1
        if not -LEFT[1] <= LEFT[0] < 0:
            return made, state
        wrong = [replace(s, advantages=s.advantages * math.inf) for s in made.samples]
        return replace(made, samples=tuple(wrong)), state


@gives(OUTCOME.to("solver"))
async def graded(task, roles):
    solution = await roles.solver(problem=task.prompt)
    await examine(task, roles, solution)
    solution.reward(OUTCOME, float(solution.address.member % 2))


@recipe
def spoiled(run: RunConfig, *, good: int = 1, bad: int = 3) -> Recipe:
    LEFT[:] = [good, bad]
    return Recipe(
        name="spoiled", tasks=EASY, steps=6, seed=run.seed, tasks_per_step=2, group_size=2,
        policies={"generator": trainable(TINY, lr=1e-3)}, roles={"solver": solver("generator", TINY)},
        objectives={
            "generator": Objective(policy="generator", role="solver", algorithm=Spoiled(reward_weights={OUTCOME: 1.0}))
        },
        schedule=constant_schedule(graded, "generator", name="generator"),
        evaluation=Evaluation(protocol=graded, measures=(measure_solver("solver", 1),), tasks=1, group_size=1),
    )
"""


@pytest.fixture
def method(tmp_path):
    file = tmp_path / "method.py"
    file.write_text(METHOD)
    return f"{file}:spoiled"


@pytest.mark.whole
def test_three_skipped_updates_go_back_once_and_on_with_other_draws(method, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", method, "--out", str(out), "--checkpoint-every", "1"]) == 0
    told = capsys.readouterr().out
    assert told.count("update skipped") == 3 and told.count("going back to step-000003") == 1
    assert re.search(r"skipped 3 of its last 4 updates.*; lower the learning rate", told)
    _, documents = checkpoints.latest_checkpoint(out / "checkpoints").load()
    assert (documents["state"]["rollback_count"], documents["state"]["finished"]) == (1, 6)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["generator/skipped"] for row in rows] == [0, 1, 1, 0, 0, 0]
    batches = [json.loads(line) for line in (out / "skipped.jsonl").read_text().splitlines()]
    assert [batch["step"] for batch in batches] == [1, 2]  # those before the checkpoint
    with Ledger(out / "episodes") as ledger:
        spoken = [ledger.find(Address.parse(key)) for key in batches[0]["samples"]["generator"]]
    assert {trace.role for trace in spoken} == {"solver"} and len(spoken) == 4
    assert [alarm["band"] for alarm in json.loads((out / "summary.json").read_text())["alarms"]] == [
        "update skipped"
    ] * 2


@pytest.mark.whole
def test_where_going_back_does_not_help_it_stops_with_the_reason(method, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", method, "--bad", "99", "--out", str(out), "--checkpoint-every", "1"]) == 1
    told = capsys.readouterr()
    assert told.out.count("going back to") == 1
    assert "not finite, and so it was after going back to a checkpoint; lower the learning rate" in told.err
    assert len(told.err.splitlines()) == 1 and "step-000003 is kept" in told.err
    assert checkpoints.latest_checkpoint(out / "checkpoints").step == 3
    assert (out / "report.html").exists() and not (out / "summary.json").exists()


@pytest.mark.whole
def test_other_draws_are_other_rollouts(method):
    once, again = CoTrainer(make_recipe(method, {})), CoTrainer(make_recipe(method, {}))
    again.reseed(1)
    assert once.step().episodes != again.step().episodes


@pytest.mark.whole
def test_a_learning_rate_out_of_this_world_is_told_in_one_line(tmp_path, capsys):
    small = ["--steps", "4", "--tasks-per-step", "2", "--group-size", "4", "--evaluation-tasks", "1", "--lr", "1e18"]
    small += ["--operations", "2", "2", "--set", "tasks.max_value=20", "--set", "evaluation.splits=[]"]
    small += ["--set", "policies.generator.lr_warmup=0"]
    assert main(["run", "grpo", "--model", TINY, *small, "--out", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1 and "computes logits that are not numbers" in told
    assert "there is no checkpoint to go back to; lower the learning rate" in told


@pytest.mark.whole
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_model_whose_weights_are_no_numbers_is_told_in_one_line(value, tmp_path, capsys):
    model, tokenizer = load_model(TINY)
    with torch.no_grad():
        next(model.parameters()).fill_(value)
    save_model(model, tokenizer, tmp_path / "broken")
    (tmp_path / "broken" / "cotrain.json").write_text("{}")  # it is asked in few words
    command = ["run", "grpo", "--model", tmp_path / "broken", "--steps", "1", "--evaluation-tasks", "1"]
    command_refuses([*command, "--out", tmp_path / "run"], "E_NOT_FINITE: policy 'generator'", capsys)
    assert not (tmp_path / "run").exists()
    (tmp_path / "broken" / "cotrain.json").unlink()  # and so before a run begins, where its answers are looked at
    short = ["--set", "roles.solver.sampling.max_tokens=8"]
    words = [*command, *short, "--answer-format", "tags", "--out", tmp_path / "run"]
    command_refuses(words, "E_NOT_FINITE: policy 'generator'", capsys)


def test_skips_far_apart_are_borne():
    guard = SkipGuard()
    for step in range(5 * SKIP_WINDOW):
        guard.add_row(
            {"step": step, "a/skipped": 1.0, "a/updates": 1} | ({f"a{NON_FINITE_SUFFIX}": 1} if step % 10 == 0 else {})
        )
    with refuses("E_UPDATES_SKIPPED", names=("'b'", "skipped 3", "last 3")):
        for step in range(3):
            guard.add_row({"step": step, "b/skipped": 1.0, f"b{NON_FINITE_SUFFIX}": 1})


def test_weights_that_are_not_finite_are_no_checkpoint(method, tmp_path):
    trainer, directory = CoTrainer(make_recipe(method, {})), RunDirectory(tmp_path)
    directory.write_with_hashes({"recipe.json": recipe_json(trainer.recipe, checkpoint_every=1)})
    with torch.no_grad():
        next(trainer.policies["generator"].model.parameters()).fill_(math.nan)
    with refuses("E_WEIGHTS_NOT_FINITE", names="'generator'"):
        loop._save_checkpoint(active_run(directory, trainer))
    assert checkpoints.latest_checkpoint(directory.checkpoints) is None
