"""RISE: solving and verifying in one PPO batch, with one set of weights (Liu et al. 2025, arXiv 2505.13445).

One policy solves problems and reviews a share of its own solutions, and learns from both by PPO in one optimiser step.
Both roles have the same reward (``score_of``): 1 for what matches the truth, −0.5 for what does not, −1 for what cannot
be read. One critic learns the returns of both roles, which it tells apart by their prompts. The default share of 0.125
is that of the released scripts: 128 verification prompts to a batch of 1024 problems.

The control ``verify_share=0`` is PPO on solutions alone; reviews are then evaluated and never trained.

What differs from the paper:

- A review says CORRECT or INCORRECT, and solutions that cannot be read have none; theirs predicts the score.
- The KL penalty is a term of the loss; theirs of the reward.
- A review may be short; theirs earns −1 below 800 characters.
- The advantages of the two roles are whitened apart, and so are their losses averaged. The loss of the reviews has the
  weight ``verify_share``, so that one review counts about as much as one solution, as in their one batch.
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
REWARD_WEIGHTS = {SCORE: 1.0}


@gives(SCORE)
async def solve_and_check(task: Task, roles: Roles, *, share: float = 1.0) -> None:
    """One solution and, with the chance ``share``, a review of it; both get the reward ``score``.

    A solution that cannot be read is not reviewed.
    """
    solution = await roles.solver(problem=task.prompt)
    is_right = await examine(task, roles, solution)
    if is_right is None:
        return
    solution.reward(SCORE, score_of(solution.parsed.ok, is_right))

    is_reviewed = solution.parsed.ok and rng_of("judged", task.id, solution.id).random() < share
    solution.add_metadata(JUDGED, is_reviewed)
    if not is_reviewed:
        return
    for turn in await review(task, roles, solution):
        agrees = turn.parsed.ok and turn.parsed.final == is_right
        turn.reward(SCORE, score_of(turn.parsed.ok, agrees))


def score_of(readable: bool, right: bool) -> float:
    """The reward of a solution with a right answer, or of a review with a true verdict; and of others."""
    if right:
        return 1.0
    if readable:
        return -0.5
    return -1.0


@recipe(kl=0.01)
def rise(
    run: RunConfig,
    *,
    verify_share: float = 0.125,  # share of the solutions that are reviewed
    critic_lr: float = 1e-3,  # learning rate of the critic
    lam: float = 1.0,  # λ of GAE
    clip: tuple[float, float] = (0.2, 0.2),  # lower and upper clip of the importance ratio
) -> Recipe:
    if not 0.0 <= verify_share <= 1.0:
        raise ConfigError(
            f"rise: verify_share is {verify_share}; expected the share of solutions that are reviewed, in [0, 1]",
            code="E_SETTING_RANGE",
        )

    # Policy and critic learn from the solutions, and with the weight ``verify_share`` from the reviews.
    ppo = PPO(reward_weights=REWARD_WEIGHTS, lam=lam, loss=PPOClip(*clip), kl=run.kl_penalty())
    value_regression = ValueRegression(reward_weights=REWARD_WEIGHTS, lam=lam)
    objectives = {
        "generator": Objective(policy="model", role="solver", algorithm=ppo),
        "generator_values": Objective(policy="critic", role="solver", algorithm=value_regression),
    }
    if verify_share:
        objectives["verifier"] = Objective(policy="model", role="verifier", algorithm=ppo, weight=verify_share)
        objectives["verifier_values"] = Objective(
            policy="critic", role="verifier", algorithm=value_regression, weight=verify_share
        )

    protocol = partial(solve_and_check, share=verify_share)
    return run.recipe(
        "rise" if verify_share else "rise-ppo",
        policies={"model": run.learner(), "critic": critic(run.model, lr=critic_lr), "reference": frozen(run.model)},
        roles={
            "solver": common_roles.solver("model", run.model),
            "verifier": common_roles.verifier("model", run.model),
        },
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="both" if verify_share else "generator"),
        evaluate=solve_and_check,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles={"solver": "reference"},
    )
