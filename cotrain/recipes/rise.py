"""RISE: solving and verifying in one PPO batch, with one set of weights (Liu et al. 2025, arXiv 2505.13445).

Every batch of solutions adds reviews of a share of them, written by the weights that wrote the solutions. Both roles are
paid on one scale (``paid``): 1 for what matches the truth, −0.5 for what does not, −1 for what cannot be read. The two
objectives make one optimiser step of the policy; one critic learns the returns of both roles, which it tells apart by
their prompts. A share of 0.125 is that of the released scripts, 128 verification prompts to a batch of 1024 problems.

Control: ``verify_share=0`` is PPO alone, in everything else the same; the verifier is then measured and never trained.

Left out: the paper's verifier predicts the score of the solution (1, −0.5 or −1), here it says CORRECT or INCORRECT and is not
shown what cannot be read; the KL penalty stands in the loss and not in the reward; a review may be short (the code pays −1
below 800 characters). And a difference: each role's advantages are whitened and its loss is normalised on its own. The loss of
the reviews is then weighted by ``verify_share``, so that one review weighs about as much as one solution, as in the paper,
where both are one batch.
"""

from __future__ import annotations

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import JUDGED
from cotrain.core.signals import Signal, gives
from cotrain.core.types import Task, TaskSource
from cotrain.learn.losses import Clipped, pull_to
from cotrain.learn.ppo import Ppo, ValueRegression
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import critic, frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import single
from cotrain.metrics.heldout import selecting, solving, verifying
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.protocols import examine, review
from cotrain.tasks.words.source import study_problems

SCORE = Signal("score", meaning="1, -0.5 or -1, see ``paid``")
REWARD = {SCORE: 1.0}


@gives(SCORE)
async def solve_and_check(task: Task, roles: Roles, *, share: float = 1.0) -> None:
    """One solution and, with the chance ``share``, a review of it; both get the reward ``score``. The solution notes
    whether it was ``judged``. What cannot be read is not reviewed."""
    solution = await roles.solver(problem=task.prompt)
    right = await examine(task, roles, solution)
    if right is None:
        return
    solution.reward(SCORE, paid(solution.parsed.ok, right))
    judged = solution.parsed.ok and rng_of("judged", task.id, solution.id).random() < share
    solution.note(JUDGED, judged)
    for turn in await review(task, roles, solution) if judged else ():
        turn.reward(SCORE, paid(turn.parsed.ok, turn.parsed.ok and turn.parsed.final == right))


def paid(readable: bool, right: bool) -> float:
    """The reward of either role."""
    return 1.0 if right else -0.5 if readable else -1.0


@recipe
def rise(
    model: str = "embedded",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    verify_share: float = 0.125,
    lr: float = 2e-4,
    critic_lr: float = 1e-3,
    kl: float = 0.01,
    lam: float = 1.0,
    clip: tuple[float, float] = (0.2, 0.2),
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    if not 0.0 <= verify_share <= 1.0:
        raise ConfigError(
            f"rise: verify_share is {verify_share}; expected the share of solutions that are reviewed, in [0, 1]"
        )
    learn = Ppo(rewards=REWARD, lam=lam, loss=Clipped(*clip), kl=pull_to("start", kl))
    value = ValueRegression(rewards=REWARD, lam=lam)
    objectives = {
        "generator": Objective(policy="model", on="solver", by=learn),
        "generator_values": Objective(policy="critic", on="solver", by=value),
    }
    if verify_share:
        objectives["verifier"] = Objective(policy="model", on="verifier", by=learn, weight=verify_share)
        objectives["verifier_values"] = Objective(policy="critic", on="verifier", by=value, weight=verify_share)
    return Recipe(
        name="rise" if verify_share else "rise-ppo",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={
            "model": trainable(model, lr=lr),
            "critic": critic(model, lr=critic_lr),
            "start": frozen(model),
        },
        roles={"solver": parts.solver("model", model), "verifier": parts.verifier("model", model)},
        objectives=objectives,
        schedule=single(solve_and_check, *objectives, name="both" if verify_share else "generator", share=verify_share),
        evaluation=Evaluation(
            protocol=solve_and_check,
            measures=(solving("solver", 8), verifying("verifier"), selecting("solver", "verifier", 8)),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            fixed={"solver": "start"},
        ),
        evaluate_every=evaluate_every,
    )
