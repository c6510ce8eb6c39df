"""GRPO: one generator, rewarded when its answer is right. The baseline of everything.

DeepSeekMath (arXiv 2402.03300), §4: a group of answers to one problem, the reward standardised within the group, one
clipped policy-gradient step.

Controls are parameters: ``estimator`` is how an answer is compared with its group (``algorithms/grpo.py``), and
``steps_judged_by="oracle"`` adds the truth of every step as a second reward, mixed as in RL Tango: what a perfect
verifier would be worth; with ``oracle_noise=0.2`` one that is wrong about every fifth step. ``outcome_noise=0.2`` pays
by a judge that is wrong about every fifth answer, at random; ``false_positives=0.2`` by one that calls every fifth
wrong answer right, ``false_negatives=0.2`` by one that calls every fifth right answer wrong. ``format_reward`` pays for
a solution that can be read, as a channel of its own. ``reward`` is a function of your own that pays in place of the
truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from cotrain import (
    CORRECT,
    FORMAT,
    OUTCOME,
    STEP,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    constant_schedule,
    decay,
    gives,
    recipe,
    rng_of,
    solve,
)
from cotrain.algorithms.grpo import ALGORITHMS, AlgorithmName
from cotrain.config.schedule import RolloutFn
from cotrain.core.arguments import Weight
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import SOLVED, StepRewards, check_step_rewards
from cotrain.rollout.user_rewards import pay

WORD = Signal("word", meaning="is the answer right, said by a judge with random errors")


@gives(*SOLVED, WORD.to("solver"), once=("solver",))
async def solve_and_be_told(
    task: Task,
    roles: Roles,
    *,
    noise: float | tuple[float, float],
    step_rewards: StepRewards = "none",
    oracle_noise: float = 0.0,
) -> None:
    """``solve``, and the truth as reward ``word``, flipped with the chance ``noise``: one, or those of wrong and of
    right answers. An unreadable solution earns 0, one that could not be graded nothing.

    An answer that is flipped at one chance is flipped at every larger one.
    """
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if solution.failed:
        return
    if not solution.parsed.ok:
        solution.reward(WORD, 0.0)
        return
    right = CORRECT.require(solution)
    chance = noise if isinstance(noise, float) else noise[right]
    flipped = rng_of("outcome noise", task.id, solution.id).random() < chance
    solution.reward(WORD, float(right != flipped))


PAID = Signal("reward", meaning="what the user's own function says of the answer")
Reward = Callable[..., Any]  # of a problem, an answer and whether it is right; see ``rollout/user_rewards.py``


@gives(*SOLVED, PAID.to("solver"), once=("solver",))
async def solve_and_be_paid(
    task: Task, roles: Roles, *, reward: Reward, step_rewards: StepRewards = "none", oracle_noise: float = 0.0
) -> None:
    """``solve``, and what ``reward`` says of the answer, unless it could not be graded."""
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if not solution.failed:
        solution.reward(PAID, await pay(reward, task, roles, solution, CORRECT.require(solution)))


@recipe
def grpo(
    run: RunConfig,
    *,
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    estimator: AlgorithmName = "grpo",  # compares an answer with its group
    alpha: Weight = 0.1,  # weight of the oracle's steps, at the start
    alpha_end: Weight = 0.001,  # the same weight, at the end
    steps_judged_by: Literal["nobody", "oracle"] = "nobody",  # source of step rewards
    oracle_noise: float = 0.0,  # probability with which the oracle's step verdict is flipped
    reward: str | Reward | None = None,  # pays instead of the truth: my_file.py:function of task, answer, correct
    outcome_noise: float = 0.0,  # chance with which a readable answer is paid as if it were the other
    false_positives: float = 0.0,  # the same chance for wrong answers alone
    false_negatives: float = 0.0,  # and for right answers alone
) -> Recipe:
    chances = {"outcome_noise": outcome_noise, "false_positives": false_positives, "false_negatives": false_negatives}
    _check_chances(chances)
    is_told_wrongly = max(chances.values()) > 0.0
    if callable(reward) and is_told_wrongly:
        raise ConfigError(
            "grpo: noise is about the truth, and reward pays in its place; leave out one", code="E_NOISE_WITH_REWARD"
        )
    has_oracle = steps_judged_by == "oracle"
    if has_oracle and estimator == "maxrl":
        raise ConfigError(
            "grpo: estimator='maxrl' divides by a rate of success, which the oracle's ±1 has not",
            code="E_MAXRL_WITH_ORACLE",
        )
    step_rewards: StepRewards = "oracle" if has_oracle else "none"
    check_step_rewards(step_rewards, oracle_noise)

    # Who pays for an answer: the truth, the truth with errors, or a function of the user's.
    steps: dict[str, Any] = {"step_rewards": step_rewards, "oracle_noise": oracle_noise}
    if callable(reward):
        paid_signal = PAID
        play: RolloutFn = partial(solve_and_be_paid, reward=reward, **steps)
    elif is_told_wrongly:
        paid_signal = WORD
        noise = outcome_noise or (false_positives, false_negatives)
        play = partial(solve_and_be_told, noise=noise, **steps)
    else:
        paid_signal = OUTCOME
        play = partial(solve, **steps)

    rewards: dict[Signal, Any] = {paid_signal: 1.0}
    if format_reward:
        rewards[FORMAT] = format_reward
    if has_oracle:
        rewards[STEP] = decay(alpha, alpha_end)
    algorithm = ALGORITHMS[estimator](reward_weights=rewards, kl=run.kl_penalty())
    return run.recipe(
        estimator + ("-oracle" if has_oracle else ""),
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=algorithm)},
        schedule=constant_schedule(play, "generator", name="generator"),
        evaluate=solve,
    )


def _check_chances(chances: Mapping[str, float]) -> None:
    """Raise ConfigError for a chance that is none, and where one error is named twice."""
    for name, chance in chances.items():
        if not 0.0 <= chance <= 1.0:
            raise ConfigError(f"grpo: {name} is {chance}; expected a chance in [0, 1]", code="E_SETTING_RANGE")
    if chances["outcome_noise"] and (chances["false_positives"] or chances["false_negatives"]):
        raise ConfigError(
            f"grpo: outcome_noise is {chances['outcome_noise']}, which is both chances at once; leave it out, or leave "
            "out false_positives and false_negatives",
            code="E_NOISE_TWICE",
        )
