"""TTRL: reinforcement learning on problems without answers, towards the majority of one's own votes.

Zuo et al. 2025 (arXiv 2504.16084). N = ``votes`` samples of a problem elect its label, the most frequent answer; an answer
equal to it earns 1. GRPO learns from the first M = ``group_size`` of the samples. It works as long as wrong answers are
scattered: then most rewards are right even where the label is wrong. When they agree, the consensus feeds on itself.

``labels="truth"`` is the control: the same samples, paid by the truth. Left out: extraction and simplification of answers
(they are compared as text), and training on the very problems of the test, as the paper does.
"""

from __future__ import annotations

from typing import Literal

from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, LABEL_RIGHT
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Task, TaskSource
from cotrain.learn.algorithms import grpo, pull_to
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import solving
from cotrain.play.executor import Roles
from cotrain.play.parts import solver
from cotrain.play.protocols import solve
from cotrain.play.votes import VOTE, attempts, elected, is_right, reward_vote
from cotrain.tasks.words.source import study_problems


@gives(VOTE.to("solver"), OUTCOME.to("solver"))
async def vote(task: Task, roles: Roles, *, votes: int, trained: int, labels: str = "vote") -> None:
    """``votes`` answers elect a label; the first ``trained`` are rewarded: ``vote``, or ``outcome`` with the truth."""
    solutions = await attempts(task, roles, votes)
    label = elected(solutions)
    for solution in solutions[trained:]:
        solution.note(LABEL_RIGHT, is_right(label))
    if labels == "vote":
        reward_vote(solutions[:trained], label)
        return
    for solution in solutions[:trained]:
        solution.reward(OUTCOME, float(CORRECT.known(solution)))
        solution.note(LABEL_RIGHT, is_right(label))


@recipe
def ttrl(
    model: str = "embedded",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    votes: int = 16,
    lr: float = 2e-4,
    kl: float = 0.001,
    labels: Literal["vote", "truth"] = "vote",
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    if votes < group_size:
        raise ConfigError(
            f"ttrl: {votes} votes, of which {group_size} are to be trained on; raise votes or lower group_size"
        )
    signal = VOTE if labels == "vote" else OUTCOME
    return Recipe(
        name="ttrl" if labels == "vote" else "ttrl-truth",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={"generator": trainable(model, lr=lr)} | ({"start": frozen(model)} if kl else {}),
        roles={"solver": solver("generator", model)},
        objectives={
            "generator": Objective(
                policy="generator", on="solver", by=grpo(rewards={signal: 1.0}, kl=pull_to("start", kl))
            )
        },
        schedule=alternate(
            Phase(
                name="generator",
                protocol=vote,
                objectives=("generator",),
                members=1,
                options={"votes": votes, "trained": group_size, "labels": labels},
            ),
            ratio=(1,),
        ),
        evaluation=Evaluation(
            protocol=solve,
            measures=(solving("solver", 8),),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
        ),
        evaluate_every=evaluate_every,
    )
