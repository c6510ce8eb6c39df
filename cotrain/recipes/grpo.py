"""GRPO: one generator, rewarded when its answer is right. The baseline of everything.

DeepSeekMath (arXiv 2402.03300), §4: a group of answers to one problem, the reward standardised within the group, one
clipped policy-gradient step.

What varies is a parameter:

- ``estimator``: how an answer is compared with its group (``algorithms/grpo.py``).
- ``steps_judged_by="oracle"``: the truth of every step is a second reward, mixed as in RL Tango: what a perfect
  verifier would be worth. With ``oracle_noise=0.2`` it is wrong about every fifth step.
- ``outcome_noise=0.2``: a judge pays that is wrong about every fifth answer, at random. ``false_positives=0.2``: it
  calls every fifth wrong answer right. ``false_negatives=0.2``: it calls every fifth right answer wrong.
- ``format_reward``: weight of a second reward, for a solution that can be read.
- ``reward``: a function of your own that pays in place of the truth.
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
from cotrain.algorithms.samples import Anneal
from cotrain.core.arguments import Weight, check_called_with
from cotrain.core.types import RolloutFn
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import SOLVED, StepRewards, check_step_rewards
from cotrain.rollout.user_rewards import pay

NOISY_OUTCOME = Signal("word", meaning="is the answer right, said by a judge with random errors")


# ``SOLVED``: the rewards that ``solve`` gives. ``once``: the solver takes one turn in an episode.
@gives(*SOLVED, NOISY_OUTCOME.to("solver"), once=("solver",))
async def solve_and_be_told(
    task: Task,
    roles: Roles,
    *,
    noise: float | tuple[float, float],
    step_rewards: StepRewards = "none",
    oracle_noise: float = 0.0,
) -> None:
    """``solve``, and the truth as the reward ``word``, which is wrong with the chance ``noise``.

    ``noise`` is one chance, or a pair: (false positives, false negatives). An unreadable solution earns 0; one that
    could not be graded earns nothing. The draw for an answer does not depend on ``noise``, so what is flipped at one
    chance is flipped at every larger one.
    """
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if solution.failed:
        return
    if not solution.parsed.ok:
        solution.reward(NOISY_OUTCOME, 0.0)
        return

    is_right = CORRECT.require(solution)
    if isinstance(noise, tuple):
        false_positives, false_negatives = noise
        chance = false_negatives if is_right else false_positives
    else:
        chance = noise
    is_flipped = rng_of("outcome noise", task.id, solution.id).random() < chance
    solution.reward(NOISY_OUTCOME, float(is_right != is_flipped))


USER_REWARD = Signal("reward", meaning="what the user's own function says of the answer")
Reward = Callable[..., Any]  # (task, answer, correct) → a number; see ``rollout/user_rewards.py``


@gives(*SOLVED, USER_REWARD.to("solver"), once=("solver",))
async def solve_and_be_paid(
    task: Task, roles: Roles, *, reward: Reward, step_rewards: StepRewards = "none", oracle_noise: float = 0.0
) -> None:
    """``solve``, and what ``reward`` says of the answer, unless it could not be graded."""
    solution = await solve(task, roles, step_rewards=step_rewards, oracle_noise=oracle_noise)
    if solution.failed:
        return
    value = await pay(reward, task, roles, solution, CORRECT.require(solution))
    solution.reward(USER_REWARD, value)


@recipe
def grpo(
    run: RunConfig,
    *,
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    estimator: AlgorithmName = "grpo",  # advantage estimator: how an answer is compared with its group
    alpha: Weight = 0.1,  # weight of the oracle's steps, at the start
    alpha_end: Weight = 0.001,  # weight of the oracle's steps, at the end
    steps_judged_by: Literal["none", "oracle"] = "none",  # source of step rewards
    oracle_noise: float = 0.0,  # probability with which the oracle's step verdict is flipped
    reward: str | Reward | None = None,  # reward instead of the truth: my_file.py:function of task, answer, correct
    outcome_noise: float = 0.0,  # chance with which a readable answer is paid as if it were the other
    false_positives: float = 0.0,  # chance with which a readable wrong answer is paid as if it were right
    false_negatives: float = 0.0,  # chance with which a readable right answer is paid as if it were wrong
) -> Recipe:
    chances = {"outcome_noise": outcome_noise, "false_positives": false_positives, "false_negatives": false_negatives}
    _check_chances(chances)
    has_noise = max(chances.values()) > 0.0
    if callable(reward) and has_noise:
        raise ConfigError(
            "grpo: noise is about the truth, and reward pays in its place; leave out one", code="E_NOISE_WITH_REWARD"
        )

    has_oracle = steps_judged_by == "oracle"
    if has_oracle and estimator == "maxrl":
        raise ConfigError(
            "grpo: estimator='maxrl' divides by a rate of success, which the oracle's ±1 has not",
            code="E_MAXRL_WITH_ORACLE",
        )
    check_step_rewards(steps_judged_by, oracle_noise)

    # The reward of an answer: by the truth, the truth with errors, or a function of the user's. A text such as
    # "my_file.py:function" is the function by now: ``@recipe`` loads it.
    protocol: RolloutFn
    if callable(reward):
        check_called_with("reward of grpo", reward, "task", "answer", "correct")
        outcome = USER_REWARD
        protocol = partial(solve_and_be_paid, reward=reward)
    elif has_noise:
        outcome = NOISY_OUTCOME
        protocol = partial(solve_and_be_told, noise=outcome_noise or (false_positives, false_negatives))
    else:
        outcome = OUTCOME
        protocol = solve
    protocol = partial(protocol, step_rewards=steps_judged_by, oracle_noise=oracle_noise)

    reward_weights: dict[Signal, float | Anneal] = {outcome: 1.0}
    if format_reward:
        reward_weights[FORMAT] = format_reward
    if has_oracle:
        reward_weights[STEP] = decay(alpha, alpha_end)
    algorithm = ALGORITHMS[estimator](reward_weights=reward_weights, kl=run.kl_penalty())

    return run.recipe(
        f"{estimator}-oracle" if has_oracle else estimator,
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=algorithm)},
        schedule=constant_schedule(protocol, "generator", name="generator"),
        evaluate=solve,
    )


def _check_chances(chances: Mapping[str, float]) -> None:
    """Raise ConfigError for a chance outside of [0, 1], and for two settings of one error."""
    for name, chance in chances.items():
        if not 0.0 <= chance <= 1.0:
            raise ConfigError(f"grpo: {name} is {chance}; expected a chance in [0, 1]", code="E_SETTING_RANGE")
    if chances["outcome_noise"] and (chances["false_positives"] or chances["false_negatives"]):
        raise ConfigError(
            f"grpo: outcome_noise is {chances['outcome_noise']}, which is both chances at once; leave it out, or leave "
            "out false_positives and false_negatives",
            code="E_NOISE_TWICE",
        )
