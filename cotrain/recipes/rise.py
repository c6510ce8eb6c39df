"""RISE: solving and verifying in one PPO batch, with one set of weights (Liu et al. 2025, arXiv 2505.13445).

The policy solves problems and reviews a share of its own solutions. Both roles are paid on one scale (``score_of``): 1
for what matches the truth, −0.5 for what does not, −1 for what cannot be read. Both objectives make one optimiser step
of the policy; one critic learns the returns of both roles, which it tells apart by their prompts. A share of 0.125 is
that of the released scripts, 128 verification prompts to a batch of 1024 problems.

Control: ``verify_share=0`` is PPO alone, in everything else the same; the verifier is then measured and never trained.

Different from the paper: the verifier says CORRECT or INCORRECT where theirs predicts the score (1, −0.5 or −1), and is
not shown what cannot be read; the KL penalty stands in the loss and not in the reward; a review may be short (theirs
earns −1 below 800 characters). Each role's advantages are whitened apart, and each role's loss is normalised apart.
That of the reviews then weighs ``verify_share``, so that one review counts about as much as one solution, as in the
paper, where both are one batch.
"""

from __future__ import annotations

from functools import partial

from cotrain import (
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    constant_schedule,
    critic,
    examine,
    frozen,
    gives,
    recipe,
    rng_of,
)
from cotrain.algorithms.policy_gradient import PPOClip
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.core.notes import JUDGED
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.reviews import review

SCORE = Signal("score", meaning="1, -0.5 or -1, see ``score_of``")
REWARD = {SCORE: 1.0}


@gives(SCORE)
async def solve_and_check(task: Task, roles: Roles, *, share: float = 1.0) -> None:
    """One solution and, with the chance ``share``, a review of it; both get the reward ``score``. The solution notes
    whether it was ``judged``. What cannot be read is not reviewed."""
    solution = await roles.solver(problem=task.prompt)
    right = await examine(task, roles, solution)
    if right is None:
        return
    solution.reward(SCORE, score_of(solution.parsed.ok, right))
    is_judged = solution.parsed.ok and rng_of("judged", task.id, solution.id).random() < share
    solution.add_metadata(JUDGED, is_judged)
    if not is_judged:
        return
    for turn in await review(task, roles, solution):
        agrees = turn.parsed.ok and turn.parsed.final == right
        turn.reward(SCORE, score_of(turn.parsed.ok, agrees))


def score_of(readable: bool, right: bool) -> float:
    """The reward of either role."""
    if right:
        return 1.0
    return -0.5 if readable else -1.0


@recipe(kl=0.01)
def rise(
    run: RunConfig,
    *,
    verify_share: float = 0.125,  # of the solutions that are reviewed
    critic_lr: float = 1e-3,  # learning rate of the critic
    lam: float = 1.0,  # λ of the advantages
    clip: tuple[float, float] = (0.2, 0.2),  # lower and upper clip of the ratio
) -> Recipe:
    if not 0.0 <= verify_share <= 1.0:
        raise ConfigError(
            f"rise: verify_share is {verify_share}; expected the share of solutions that are reviewed, in [0, 1]",
            code="E_SETTING_RANGE",
        )
    learn = PPO(reward_weights=REWARD, lam=lam, loss=PPOClip(*clip), kl=run.kl_penalty())
    value = ValueRegression(reward_weights=REWARD, lam=lam)
    play = partial(solve_and_check, share=verify_share)
    objectives = {}
    for name, role, weight in (("generator", "solver", 1.0), ("verifier", "verifier", verify_share)):
        if weight:
            objectives[name] = Objective(policy="model", role=role, algorithm=learn, weight=weight)
            objectives[f"{name}_values"] = Objective(policy="critic", role=role, algorithm=value, weight=weight)
    return run.recipe(
        "rise" if verify_share else "rise-ppo",
        policies={"model": run.learner(), "critic": critic(run.model, lr=critic_lr), "reference": frozen(run.model)},
        roles={
            "solver": common_roles.solver("model", run.model),
            "verifier": common_roles.verifier("model", run.model),
        },
        objectives=objectives,
        schedule=constant_schedule(play, *objectives, name="both" if verify_share else "generator"),
        evaluate=solve_and_check,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles={"solver": "reference"},
    )
