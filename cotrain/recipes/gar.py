"""GAR: a reasoner and a discriminator of its slices, trained against each other (Generative Adversarial Reasoner).

Liu et al. 2025 (arXiv 2512.16917). A slice is a step here; the discriminator is the verifier, whose verdict on a step is 1 for
CORRECT. With λ = (1, 1, 1, ½), rewards added up before they are normalised (GRPO for both, in every step):

    reasoner       λ1 · [answer right] + λ2 · mean verdict on its steps
    discriminator  λ3 · GAN + λ4 · agreement
                   GAN: mean verdict on the steps of a worked solution; 1 − mean verdict on generated steps
                   agreement: share of its verdicts, the final one included, that are the outcome

The paper's GAN part has log M and log(1 − M) of a probability; a sampled verdict is 0 or 1, and the mean is its linear form. It
mixes as many reference as generated slices: here there are as many reviews of the worked solution as of the generated
ones that differ from it.

Where a generated step is, word for word, a step of the worked solution, nobody can tell which is which: one and the same
text would have to be right and wrong, and the part would only teach doubt. Such steps are left out of it, and a review of
nothing else gets ½, which changes no advantage. What differs is not always wrong either: a right step in other words or
in another order is still paid as a forgery, and the agreement alone speaks for it.

Controls are parameters: ``critic="frozen"`` never trains the discriminator (then no worked solution is shown),
``slice_weight=0`` is GRPO on the outcome, ``gan_weight=0`` and ``agreement_weight=0`` are the paper's single-reward arms,
``balance=False`` shows the worked solution once. Left out: supervised learning of the review format (the embedded models know it)
and slices of 320 tokens. A task source without worked solutions is refused.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, Note
from cotrain.core.signals import AGREEMENT, Signal, gives
from cotrain.core.types import Sampling, Task, TaskSource
from cotrain.learn.algorithms import grpo, pull_to
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, program, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import selecting, solving, verifying
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.idle_loop import together
from cotrain.play.monte_carlo import share_right, verdicts
from cotrain.play.protocols import examine, review, solve_then_verify
from cotrain.play.role import Role, Turn
from cotrain.tasks.words.source import study_problems

MATCH = Signal("match", meaning="1 for a right answer, else 0")
SLICES = Signal("slices", meaning="mean verdict on the steps")
GAN = Signal("gan", meaning="share of verdicts that tell where a step is from")
NOBODY_KNOWS = 0.5  # the GAN part of a review that has nothing to tell apart

COPIED_STEPS = Note[float]("copied_steps", float, "share of the steps that stand in the reference")


@gives(MATCH.to("solver"), SLICES.to("solver"), GAN.to("verifier"), AGREEMENT.to("verifier"))
async def contest(
    task: Task, roles: Roles, *, samples: int = 4, reviews: int = 4, balance: bool = True, learn: bool = True
) -> None:
    """``samples`` solutions with ``reviews`` reviews each, and with ``learn`` as many of the worked solution. Rewards: of the
    solver ``match`` and ``slices`` (none when no review of it can be read), of the verifier ``gan`` and ``agreement``."""
    solutions = await roles.solver.many(samples, problem=task.prompt)
    for solution in solutions:
        correct = await examine(task, roles, solution)
        if correct is not None:
            solution.reward(MATCH, float(correct))
    readable = [s for s in solutions if s.parsed.ok and not s.failed]
    sheets = await together([review(task, roles, s, n=reviews) for s in readable])
    for solution in solutions:
        if not solution.parsed.ok:
            solution.reward(SLICES, 0.0)
    for solution, turns in zip(readable, sheets, strict=True):
        said = [sum(turn.parsed.steps) / len(turn.parsed.steps) for turn in turns if turn.parsed.ok]
        if said:
            solution.reward(SLICES, sum(said) / len(said))
    if not learn:
        return
    reference = await roles.reference(solution=worked(task))
    if not await examine(task, roles, reference) or not reference.parsed.ok:
        raise ConfigError(f"gar: the worked solution of task {task.id} is not a right one in tagged steps")
    known = {step.text for step in reference.parsed.steps}
    differing = 0
    for solution, turns in zip(readable, sheets, strict=True):
        new = [step.text not in known for step in solution.parsed.steps]
        solution.note(COPIED_STEPS, 1.0 - sum(new) / len(new))
        differing += any(new)
        pay(turns, real=False, new=new)
    if differing:
        count = reviews * (differing if balance else 1)
        pay(await review(task, roles, reference, n=count), real=True, new=[True] * len(reference.parsed.steps))


def pay(turns: Sequence[Turn], *, real: bool, new: Sequence[bool]) -> None:
    """The discriminator's rewards for reviews of one solution; an unreadable review earns nothing."""
    for turn in turns:
        outcome, ok = CORRECT.known(turn), turn.parsed.ok
        turn.reward(GAN, gan(turn.parsed.steps, new, real=real) if ok else 0.0)
        said = verdicts(turn) if ok else (not outcome,)
        turn.reward(AGREEMENT, share_right(said, [outcome] * len(said)))


def gan(said: Sequence[bool], new: Sequence[bool], *, real: bool) -> float:
    """Share of the verdicts on ``new`` steps that tell where the steps are from; ½ where no step is new."""
    asked = [verdict == real for verdict, counts in zip(said, new, strict=True) if counts]
    return sum(asked) / len(asked) if asked else NOBODY_KNOWS


def worked(task: Task) -> str:
    if task.solution is None:
        raise ConfigError(
            f"gar: task {task.id} has no worked solution to tell generated ones from; choose a task source that has them, "
            "or critic='frozen'"
        )
    return task.solution


def recite(fields: Mapping[str, Any], rng: random.Random) -> str:
    return str(fields["solution"])


@recipe
def gar(
    model: str = "embedded",
    critic_model: str | None = None,
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 4,
    reviews: int = 4,
    lr: float = 2e-4,
    critic_lr: float = 2e-4,
    kl: float = 0.001,
    match_weight: float = 1.0,
    slice_weight: float = 1.0,
    gan_weight: float = 1.0,
    agreement_weight: float = 0.5,
    critic: Literal["trained", "frozen"] = "trained",
    balance: bool = True,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    trained, judge, source = critic == "trained", critic_model or model, tasks or study_problems()
    for name, size in (("group_size", group_size), ("reviews", reviews if trained else 2)):
        if size < 2:
            raise ConfigError(f"gar: {name} is {size}, expected at least 2: they are compared with each other")
    if trained:
        worked(source.get("train", 0))
    reason = grpo(rewards={MATCH: match_weight, SLICES: slice_weight}, merge=True, kl=pull_to("start", kl))
    tell_apart = grpo(rewards={GAN: gan_weight, AGREEMENT: agreement_weight}, merge=True)
    objectives = {"generator": Objective(policy="generator", on="solver", by=reason)}
    policies = {"generator": trainable(model, lr=lr)} | ({"start": frozen(model)} if kl else {})
    roles = {"solver": parts.solver("generator", model), "verifier": parts.verifier("verifier", judge)}
    if trained:
        objectives["critic"] = Objective(policy="verifier", on="verifier", by=tell_apart)
        policies |= {"verifier": trainable(judge, lr=critic_lr), "reference": program(recite)}
        roles["reference"] = Role(
            policy="reference", prompt="{solution}", sampling=Sampling(max_tokens=1), parse=parts.parse_solution
        )
    else:
        policies["verifier"] = frozen(judge)
    options = {"samples": group_size, "reviews": reviews, "balance": balance, "learn": trained}
    phase = Phase(name="both", protocol=contest, objectives=tuple(objectives), members=1, options=options)
    return Recipe(
        name="gar" if trained else "gar-frozen",
        tasks=source,
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluation=Evaluation(
            protocol=solve_then_verify,
            measures=(solving("solver", 8), verifying("verifier"), selecting("solver", "verifier", 8)),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            fixed={"solver": "start"} if kl else {},
        ),
        evaluate_every=evaluate_every,
    )
