"""GRPO whose steps are judged by a program that misses errors: which misses can a generator learn to make use of?

    cotrain run benchmarks/blind_spots.py:judged_with_misses --misses any --chance 0.5 \
      --model runs/step-habits/base-step-habits --operations 4 4 --set tasks.cancel=0.0 --out runs/misses

The program has the truth about each step of a word problem. It calls every right step right, and some wrong ones:

- ``any``: each wrong step with the same chance, drawn anew, whatever the step says;
- ``multiplications``: those that multiply where the problem does not, with this chance;
- ``like-a-verifier``: by what the step says, as often as ``shipped-checker`` does (``LIKE_A_VERIFIER``);
- ``like-a-mended-verifier``: the same, but no wrong multiplication.

What the last two miss depends on the kind of step alone, so they take no ``chance``.

``blind-spots.toml`` is the study.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    GRPO,
    OUTCOME,
    STEP,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    constant_schedule,
    decay,
    gives,
    recipe,
    rng_of,
    solve,
)
from cotrain.core.arguments import Weight
from cotrain.core.notes import STEP_OK, STEP_REASONS
from cotrain.data.word_problems.oracle import parse_step
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import SOLVED, include_closing_tag

Misses = Literal["any", "multiplications", "like-a-verifier", "like-a-mended-verifier"]
OTHER = "other"
# Of the wrong steps of each kind, the share that the frozen verifier of step-verdicts.toml called right in the first
# quarter of its runs (benchmarks/wrong_steps.py). The last figure is of one run with another seed.
LIKE_A_VERIFIER = {"+": 0.21, "-": 0.43, "*": 0.98, OTHER: 0.84}


def kind_of(step: str, reason: str) -> str:
    """The operation of a step whose relation is wrong; ``OTHER`` for a step that is wrong for another reason."""
    read = parse_step(step)
    if reason != "relation" or read is None:
        return OTHER
    return read.operator


def chances_of(misses: Misses, chance: float) -> dict[str, float]:
    """Kind of a wrong step → chance with which it is called right."""
    kinds = tuple(LIKE_A_VERIFIER)
    if misses == "any":
        return dict.fromkeys(kinds, chance)
    if misses == "multiplications":
        return dict.fromkeys(kinds, 0.0) | {"*": chance}
    if misses == "like-a-mended-verifier":
        return LIKE_A_VERIFIER | {"*": 0.0}
    return LIKE_A_VERIFIER


@gives(*SOLVED, once=("solver",))
async def solve_before_a_judge_with_misses(
    task: Task, roles: Roles, *, misses: Misses = "any", chance: float = 1.0
) -> None:
    """``solve``, and ±1 for each step as the reward ``step``. A step that is missed at one chance is missed at every
    larger one."""
    solution = await solve(task, roles, step_rewards="verifier")  # an unreadable solution counts as one wrong step
    steps_ok = STEP_OK.of(solution)
    if steps_ok is None or not solution.parsed.ok:
        return
    chances = chances_of(misses, chance)
    reasons = STEP_REASONS.require(solution)
    rng = rng_of("missed errors", task.id, solution.id)
    for step, is_right, reason in zip(solution.parsed.steps, steps_ok, reasons, strict=True):
        is_missed = rng.random() < chances[kind_of(step.text, reason)]
        said_right = is_right or is_missed
        solution.reward(STEP, 1.0 if said_right else -1.0, span=include_closing_tag(step, solution))


@recipe
def judged_with_misses(
    run: RunConfig,
    *,
    misses: Misses = "any",  # which wrong steps are called right
    chance: float = 1.0,  # with which chance
    alpha: Weight = 0.5,  # weight of the verdicts on steps, at the start
    alpha_end: Weight = 0.5,  # weight of the verdicts on steps, at the end
) -> Recipe:
    """GRPO on the answer, and on a verdict on each step that misses errors."""
    if not 0.0 <= chance <= 1.0:
        raise ConfigError(f"judged_with_misses: chance is {chance}; expected one in [0, 1]", code="E_SETTING_RANGE")
    if chance != 1.0 and misses in ("like-a-verifier", "like-a-mended-verifier"):
        raise ConfigError(
            f"judged_with_misses: chance is {chance}, and {misses!r} has chances of its own; leave chance out",
            code="E_SETTING_RANGE",
        )
    learn = GRPO(reward_weights={OUTCOME: 1.0, STEP: decay(alpha, alpha_end)}, kl=run.kl_penalty())
    protocol = partial(solve_before_a_judge_with_misses, misses=misses, chance=chance)
    return run.recipe(
        "judged_with_misses",
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=learn)},
        schedule=constant_schedule(protocol, "generator", name="generator"),
        evaluate=solve,
    )
