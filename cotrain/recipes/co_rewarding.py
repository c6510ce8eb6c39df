"""Co-rewarding: labels of a second view, so that a consensus cannot pay itself.

Zhang et al. 2025 (arXiv 2508.00410). No answer is known; a label is the most frequent answer of a group of samples.

    I    the problem and a paraphrase of it are sampled in a group each; the label of either pays the other, and the
         policy learns from both, standardised inside of each group
    II   a teacher, the moving average of the policy, samples its own group on the same problem; its label pays the
         policy, and the KL term pulls towards it too
    III  as II, but the teacher is asked the paraphrase

``rate`` → ``rate_end`` is the share of the policy that the teacher takes up at each update, along half a cosine (0.01 →
1e-5 in the authors' script, 1e-4 at the end in the paper). Controls: ``teacher="frozen"`` never moves it, ``teacher="none"``
(II) is the majority vote of the policy itself; ``rate=1, rate_end=1`` is the vote of a second group of the policy. I has
no teacher; its KL term pulls towards the start. Left out: paraphrases by a model (they come with the task), and equality
of answers beyond their text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.signals import gives
from cotrain.core.types import Task, TaskSource
from cotrain.learn.algorithms import grpo, pull_to
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import ema, frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import solving
from cotrain.play.executor import Roles
from cotrain.play.idle_loop import together
from cotrain.play.parts import solver
from cotrain.play.protocols import solve
from cotrain.play.votes import VOTE, attempts, elected, reward_vote
from cotrain.tasks.words.source import study_problems


@gives(VOTE.to("solver"), VOTE.to("rephrased"))
async def exchanged(task: Task, roles: Roles, *, samples: int) -> None:
    """Variant I: role ``solver`` is asked the problem, role ``rephrased`` a paraphrase; each is paid by the other's vote."""
    asked = paraphrase(task)
    original, rephrased = await together(
        [attempts(task, roles, samples), attempts(task, roles, samples, role="rephrased", problem=asked)]
    )
    reward_vote(original, elected(rephrased))
    reward_vote(rephrased, elected(original))


@gives(VOTE.to("solver"))
async def taught(task: Task, roles: Roles, *, samples: int, rephrase: bool) -> None:
    """Variants II and III: the vote of role ``teacher``, which may be asked a paraphrase, pays role ``solver``."""
    asked = paraphrase(task) if rephrase else task.prompt
    students, teachers = await together(
        [attempts(task, roles, samples), attempts(task, roles, samples, role="teacher", problem=asked)]
    )
    reward_vote(students, elected(teachers))


@gives(VOTE.to("solver"))
async def untaught(task: Task, roles: Roles, *, samples: int) -> None:
    """The control: the vote of the very answers that are paid."""
    solutions = await attempts(task, roles, samples)
    reward_vote(solutions, elected(solutions))


def paraphrase(task: Task) -> str:
    """One of the task's paraphrases, always the same. Raises ConfigError where it has none."""
    if not task.paraphrases:
        raise ConfigError(
            f"co_rewarding: task {task.id} has no paraphrase, and variants I and III need one for each training task; "
            "give the tasks a column 'paraphrase', or use variant II"
        )
    return rng_of("paraphrase", task.id).choice(task.paraphrases)


@recipe
def co_rewarding(
    model: str = "embedded",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    lr: float = 2e-4,
    kl: float = 0.001,
    variant: Literal["I", "II", "III"] = "II",
    teacher: Literal["ema", "frozen", "none"] | None = None,
    rate: float = 0.01,
    rate_end: float = 1e-5,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    usual: Literal["none", "ema"] = "none" if variant == "I" else "ema"
    teacher = teacher or usual
    if (variant == "I" and teacher != "none") or (variant == "III" and teacher == "none"):
        raise ConfigError(
            f"co_rewarding: variant {variant} with teacher {teacher!r}; I has none, III needs 'ema' or 'frozen' (with "
            "rate=1 and rate_end=1 the teacher is the policy itself)"
        )
    tasks = tasks or study_problems()
    if variant != "II":
        paraphrase(tasks.get("train", 0))
    taught_by = teacher != "none"
    reference = "teacher" if taught_by else "start"
    by = grpo(rewards={VOTE: 1.0}, kl=pull_to(reference, kl))
    role = solver("generator", model)
    policies, roles = {"generator": trainable(model, lr=lr)}, {"solver": role}
    objectives = {"generator": Objective(policy="generator", on="solver", by=by)}
    if variant == "I":
        roles["rephrased"] = role
        objectives["rephrased"] = Objective(policy="generator", on="rephrased", by=by)
    if taught_by:
        roles["teacher"] = replace(role, policy="teacher")
        policies["teacher"] = (
            ema(model, of="generator", rate=rate, rate_end=rate_end) if teacher == "ema" else frozen(model)
        )
    elif kl:
        policies["start"] = frozen(model)
    phase = Phase(
        name="generator",
        protocol=exchanged if variant == "I" else taught if taught_by else untaught,
        objectives=tuple(objectives),
        members=1,
        options={"samples": group_size} | ({"rephrase": variant == "III"} if taught_by else {}),
    )
    return Recipe(
        name=f"co-rewarding-{variant}" + ("" if teacher == usual else f"-{teacher}"),
        tasks=tasks,
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluation=Evaluation(
            protocol=solve,
            measures=(solving("solver", 8),),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
        ),
        evaluate_every=evaluate_every,
    )
