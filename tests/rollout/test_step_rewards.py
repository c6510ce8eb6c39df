"""Solving before an oracle that may be wrong, and reviews that nobody reads."""

from __future__ import annotations

from functools import partial

import pytest

from cotrain.core.types import Sampling
from cotrain.inference.replay import ReplayEngine
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.protocols import solve
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses


def verdicts(oracle_noise: float, count: int = 60) -> list[tuple[bool, float]]:
    """(is the step right, what it was paid) of every step of the gold solutions with the last number of one step
    changed."""
    tasks = [EASY.get("train", i) for i in range(count)]
    gold = {task.prompt: task.solution for task in tasks}
    role = Role(policy="solver", prompt="{problem}", sampling=Sampling(max_tokens=999), parse=parse_solution)
    said = {"solver": lambda fields, rng: gold[fields["problem"]].replace("1", "2", 1)}
    player = RolloutRunner(spoken(said), {"solver": ByteRenderer()}, {"solver": role}, seed=0)
    played = player.collect(
        partial(solve, step_rewards="oracle", oracle_noise=oracle_noise), tasks, step=0, group_size=2
    )
    assert not any(e.failure for e in played)
    return [
        (ok, signal.value)
        for e in played
        for t in e.traces
        for ok, signal in zip(t.metadata["step_ok"], [s for s in t.rewards if s.name == "step"], strict=True)
    ]


@pytest.mark.whole
def test_an_oracle_without_noise_says_what_is_true_and_with_all_noise_the_opposite():
    plain, opposite = verdicts(0.0), verdicts(1.0)
    assert {ok for ok, _ in plain} == {True, False}
    assert all(paid == (1.0 if ok else -1.0) for ok, paid in plain)
    assert [(ok, -paid) for ok, paid in plain] == opposite


@pytest.mark.whole
def test_a_noisy_oracle_flips_its_share_and_the_same_steps_every_time():
    plain = [paid for _, paid in verdicts(0.0)]
    flipped = {p: {i for i, (_, paid) in enumerate(verdicts(p)) if paid != plain[i]} for p in (0.1, 0.3)}
    for share, found in flipped.items():  # three standard errors of a share of 240
        assert abs(len(found) / len(plain) - share) < 3 * (share * (1 - share) / len(plain)) ** 0.5
    assert flipped[0.1] < flipped[0.3]
    assert verdicts(0.3) == verdicts(0.3)


def test_noise_without_an_oracle_is_refused():
    for made in (grpo, tango):
        with refuses("E_ORACLE_NOISE"):
            made(oracle_noise=0.2)
        with refuses("E_ORACLE_NOISE"):
            made(oracle_noise=1.5, steps_judged_by="oracle")
    with refuses("E_UNKNOWN_STEP_REWARDS", names="step_rewards"):
        verdicts_of = RolloutRunner(ReplayEngine({}), {}, {}, seed=0)
        verdicts_of.collect(partial(solve, step_rewards="oracel"), [EASY.get("train", 0)], step=0, group_size=1)


@pytest.mark.whole
@pytest.mark.parametrize(("judged_by", "reviewed"), [("verifier", True), ("oracle", False), ("none", False)])
def test_a_review_is_written_only_where_somebody_reads_it(judged_by, reviewed):
    recipe = tango(
        model=TINY,
        tasks=EASY,
        warmup=0,
        ratio=(1, 1),
        tasks_per_step=2,
        group_size=3,
        reviews=2,
        steps_judged_by=judged_by,
    )
    trainer = CoTrainer(recipe)
    generator, verifier = trainer.step(), trainer.step()
    assert (generator.row["phase"], verifier.row["phase"]) == ("generator", "verifier")
    assert ("verifier/traces" in generator.row) == reviewed
    assert "verifier/traces" in verifier.row  # its own step
