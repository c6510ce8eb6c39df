"""GenPRM: a generative process reward model by supervised learning from its own reviews that agree with step labels.

Zhao et al. 2025 (arXiv 2504.00891). Steps of solutions get labels by relative progress, MC(k) / MC(k−1) ≥ 0.8
(``play/monte_carlo.py``). Reviews that say of every step, and of the answer, what the label says are learned by
cross-entropy (rejection fine-tuning, ``learn/sft.py``); but of no solution where reviews and labels contradict each other:
one of the two is wrong, and the consensus filter does not ask which. It drops about half of the paper's solutions. As in
the released code, as many right as wrong solutions of a problem are labelled, and no problem that has one kind only.

Controls are parameters: ``consensus=False`` learns every agreeing review, ``labels`` other rules or "oracle" (the truth of the
steps: the ceiling), ``balance=False`` labels every readable solution. ``stepwiser`` is the same judge by RL.

Unlike the paper, the verifier teaches itself, online: there QwQ-32B writes the reviews, so the filter compares labels
with a stronger judge. Here it compares them with the majority of the verifier's own reviews, and what it already finds
is what it learns. ``judge="genprm"`` has a chat model write the reviews in the paper's format, and ``tool="python"``
runs the programs in them while they are written (``play/calls.py``); what they print is in the sequence and not
learned, and ``tool="none"`` is the control. The embedded models know no programs. Left out: 32 to 128 continuations by
difficulty (``rollouts`` for all), and the critic that refines solutions.
"""

from __future__ import annotations

from typing import Literal

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, Note
from cotrain.core.signals import MATCH, Signal, gives
from cotrain.core.types import Task, TaskSource
from cotrain.learn.sft import Sft
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import selecting, solving, verifying
from cotrain.play import judges, parts
from cotrain.play.executor import Roles
from cotrain.play.monte_carlo import (
    GAMMA,
    Labels,
    balanced,
    completer,
    contradicted,
    share_right,
    step_labels,
    verdicts,
)
from cotrain.play.protocols import Tool, examine, review_all, solve_then_verify
from cotrain.tasks.isolation import chosen
from cotrain.tasks.words.source import study_problems

KEPT = Signal("kept", meaning="1 for a review that is to be learned, else 0")
CONSENSUS = Note[bool]("consensus", bool, "did the solution pass the filter: no review contradicts its labels")


@gives(MATCH.to("verifier"), KEPT.to("verifier"))
async def agreeing_reviews(
    task: Task,
    roles: Roles,
    *,
    samples: int = 4,
    reviews: int = 4,
    rollouts: int = 8,
    labels: str = "ratio",
    gamma: float = GAMMA,
    balance: bool = True,
    consensus: bool = True,
    tool: str = "none",
) -> None:
    """Readable solutions, labelled and reviewed. Verifier rewards, for a whole review: ``match``, the share of its
    verdicts that are the label, and ``kept``, 1 on what is to be learned: all verdicts are the label, and the solution
    passed the filter."""
    solutions = await roles.solver.many(samples, problem=task.prompt)
    readable = [s for s in solutions if await examine(task, roles, s) is not None and s.parsed.ok]
    if balance:
        drawn = balanced([CORRECT.known(s) for s in readable], rng_of("balance", task.id, solutions[0].id))
        readable = [readable[i] for i in drawn]
    found = await step_labels(task, roles, readable, kind=labels, rollouts=rollouts, gamma=gamma)
    judged = [s for s in readable if s.id in found]
    sheets = await review_all(task, roles, judged, n=reviews, tool=tool)
    for solution, turns in zip(judged, sheets, strict=True):
        right = found[solution.id]
        passed = not contradicted([verdicts(turn) for turn in turns if turn.parsed.ok], right)
        solution.note(CONSENSUS, passed)
        for turn in turns:
            match = share_right(verdicts(turn), right) if turn.parsed.ok else 0.0
            turn.chat.reward(MATCH, match)
            turn.chat.reward(KEPT, float(match == 1.0 and (passed or not consensus)))


@recipe
def genprm(
    model: str = "embedded",
    verifier_model: str | None = None,
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 4,
    reviews: int = 4,
    rollouts: int = 8,
    lr: float = 2e-4,
    labels: Labels = "ratio",
    gamma: float = GAMMA,
    balance: bool = True,
    consensus: bool = True,
    judge: Literal["steps", "genprm"] = "steps",
    tool: Tool = "none",
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    for name, size, least in (
        ("group_size", group_size, 1 + balance),
        ("reviews", reviews, 1),
        ("rollouts", rollouts, 1),
    ):
        if size < least:
            raise ConfigError(f"genprm: {name} is {size}, expected at least {least}")
    critic, solver = verifier_model or model, parts.solver("generator", model)
    if tool != "none" and (judge != "genprm" or parts.speaks_short(critic)):
        raise ConfigError(
            f"genprm: tool {tool!r} runs the programs of judge='genprm' by a chat model, but judge is {judge!r} and the verifier's"
            f" model {critic!r}; change these (verifier_model names a model), or leave tool='none'"
        )
    if tool == "python":
        chosen()  # where programs cannot be run it is said here, before anything is loaded
    if judge == "genprm":
        verifier = judges.genprm("verifier", critic, runs=tool == "python")
    else:
        verifier = judges.judge("verifier", critic, judge)
    phase = Phase(
        name="verifier",
        protocol=agreeing_reviews,
        objectives=("verifier",),
        members=1,
        options={
            "samples": group_size,
            "reviews": reviews,
            "rollouts": rollouts,
            "labels": labels,
            "gamma": gamma,
            "balance": balance,
            "consensus": consensus,
            "tool": tool,
        },
    )
    return Recipe(
        name="genprm" if consensus else "genprm-unfiltered",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={"generator": frozen(model), "verifier": trainable(critic, lr=lr)},
        roles={"solver": solver, "completer": completer(solver), "verifier": verifier},
        objectives={"verifier": Objective(policy="verifier", on="verifier", by=Sft(where=KEPT, at_least=1.0))},
        schedule=alternate(phase, ratio=(1,)),
        evaluation=Evaluation(
            protocol=solve_then_verify,
            measures=(solving("solver", 8), verifying("verifier"), selecting("solver", "verifier", 8)),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            options={"tool": tool},
        ),
        evaluate_every=evaluate_every,
    )
