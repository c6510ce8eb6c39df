"""StepWiser: a generative judge of steps, trained by RL on Monte-Carlo labels instead of on the outcome alone.

Xiong et al. 2025 (arXiv 2508.19229). Of problems that the solver sometimes solves, every solution is continued from the end
of each of its steps; how often that ends right gives each step a label (``play/monte_carlo.py``). The judge is paid the
share of its verdicts that are the labels, and compared with its other reviews of the same solution (GRPO, clip-higher:
with two possible verdicts, reviews soon agree and teach nothing). The paper balances by down-sampling the larger class of
judging prompts; here the step verdicts of a problem are drawn so that as many right as wrong steps count, and a solution
without a drawn step is not reviewed.

Controls are parameters: ``labels="absolute"|"relative"|"ratio"|"oracle"`` ("oracle" is the truth of the steps: the ceiling),
``balance=False`` counts every step, ``clip=(0.2, 0.2)`` drops clip-higher, ``generator="trained"`` trains the solver beside the
judge (GRPO on the outcome; it never sees the verdicts, and the labels then follow its current weights).

Unlike the paper, one review judges all steps of a solution and its answer, where the paper asks once for each chunk and shows
no later one; labels are made anew at each step instead of once; 8 continuations stand for 16. Left out: self-segmentation
(solutions come in steps), and search that takes rejected chunks back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, Finding
from cotrain.core.signals import MATCH, OUTCOME, gives
from cotrain.core.types import Task, TaskSource
from cotrain.learn.algorithms import Clipped, grpo, pull_to
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import selecting, solving, verifying
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.idle_loop import together
from cotrain.play.monte_carlo import ALPHA, GAMMA, Labels, balanced, completer, share_right, step_labels, verdicts
from cotrain.play.protocols import examine, review, solve_then_verify
from cotrain.tasks.words.source import study_problems

COUNTED = Finding[list[int]]("counted", list[int], "the steps whose labels count, by index")


@gives(OUTCOME.to("solver"), MATCH.to("verifier"))
async def judge_steps(
    task: Task,
    roles: Roles,
    *,
    samples: int = 4,
    reviews: int = 4,
    rollouts: int = 8,
    labels: str = "relative",
    alpha: float = ALPHA,
    gamma: float = GAMMA,
    balance: bool = True,
) -> None:
    """``samples`` solutions with reward ``outcome``; where some are right and some wrong, those that can be read are
    labelled and reviewed. Verifier reward ``match``: share of the drawn verdicts that are the label, 0 if unreadable."""
    solutions = await roles.solver.many(samples, problem=task.prompt)
    for solution in solutions:
        correct = await examine(task, roles, solution)
        if correct is not None:
            solution.reward(OUTCOME, float(correct))
    graded = [s for s in solutions if not s.failed]
    if len({CORRECT.known(s) for s in graded}) < 2:
        return
    found = await step_labels(
        task,
        roles,
        [s for s in graded if s.parsed.ok],
        kind=labels,
        rollouts=rollouts,
        alpha=alpha,
        gamma=gamma,
    )
    places = [(name, k) for name, mine in found.items() for k in range(len(mine))]
    counted: Sequence[int] = range(len(places))
    if balance:
        counted = balanced([found[name][k] for name, k in places], rng_of("balance", task.id, solutions[0].id))
    drawn: dict[str, list[int]] = {}
    for name, k in (places[i] for i in counted):
        drawn.setdefault(name, []).append(k)
    judged = [s for s in graded if s.id in drawn]
    sheets = await together([review(task, roles, s, n=reviews) for s in judged])
    for solution, turns in zip(judged, sheets, strict=True):
        mine, right = drawn[solution.id], found[solution.id]
        for turn in turns:
            turn.show(COUNTED, mine)
            turn.reward(MATCH, share_right(verdicts(turn), right, mine) if turn.parsed.ok else 0.0)


@recipe
def stepwiser(
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
    verifier_lr: float = 2e-4,
    kl: float = 0.001,
    clip: tuple[float, float] = (0.2, 0.28),
    labels: Labels = "relative",
    alpha: float = ALPHA,
    gamma: float = GAMMA,
    balance: bool = True,
    generator: Literal["frozen", "trained"] = "frozen",
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    for name, size in (("group_size", group_size), ("reviews", reviews)):
        if size < 2:
            raise ConfigError(f"stepwiser: {name} is {size}, expected at least 2: they are compared with each other")
    if rollouts < 1:
        raise ConfigError(f"stepwiser: rollouts is {rollouts}, expected at least 1 continuation of each beginning")
    judge, trained = verifier_model or model, generator == "trained"
    learn_to_judge = grpo(rewards={MATCH: 1.0}, loss=Clipped(*clip))
    objectives = {"verifier": Objective(policy="verifier", on="verifier", by=learn_to_judge)}
    policies = {"generator": trainable(model, lr=lr) if trained else frozen(model)}
    policies["verifier"] = trainable(judge, lr=verifier_lr)
    if trained:
        learn_to_solve = grpo(rewards={OUTCOME: 1.0}, kl=pull_to("start", kl))
        objectives["generator"] = Objective(policy="generator", on="solver", by=learn_to_solve)
        policies |= {"start": frozen(model)} if kl else {}
    solver = parts.solver("generator", model)
    phase = Phase(
        name="verifier",
        protocol=judge_steps,
        objectives=tuple(objectives),
        members=1,
        options={
            "samples": group_size,
            "reviews": reviews,
            "rollouts": rollouts,
            "labels": labels,
            "alpha": alpha,
            "gamma": gamma,
            "balance": balance,
        },
    )
    return Recipe(
        name="stepwiser" if labels == "relative" else f"stepwiser-{labels}",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies=policies,
        roles={"solver": solver, "completer": completer(solver), "verifier": parts.verifier("verifier", judge)},
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluation=Evaluation(
            protocol=solve_then_verify,
            measures=(solving("solver", 8), verifying("verifier"), selecting("solver", "verifier", 8)),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            fixed={"solver": "start"} if trained and kl else {},
        ),
        evaluate_every=evaluate_every,
    )
