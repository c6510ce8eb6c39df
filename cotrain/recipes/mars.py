"""MARS: a slow System 2 that searches and reasons, a fast System 1 that digests what is found, one set of weights.

Chen et al. 2025 (arXiv 2510.04935). System 2 sees the question alone and asks a tool for documents. They are packed into bins
by first-fit decreasing; System 1 digests each bin for what System 2 wants to know; System 2 solves the problem from the
digests. One reward, the answer, is that of the whole trajectory and of every call in it. Advantages are standardised apart,
System 2 among the trajectories of a problem, System 1 among all of its calls; after that System 1's samples, of which there
are several to a trajectory, are brought to the number of trajectories; and each system has a loss of its own.

The tool is a program (``tasks/words/scatter.py``): the facts of the problem lie in many documents, ``noise`` irrelevant
sentences to each of them, and a search by a word that is not in them finds documents about something else.

Controls are parameters: ``balance=False`` learns from all calls of System 1, ``sampling="advantage"`` draws those with large
advantages more often (the second version of the paper; its own rule is not public), ``system1="frozen"`` leaves digesting
to the start, and "none" shows System 2 the documents as they are; ``plan=False`` finds them for it; ``decoupled=False``
makes one loss of both systems, in which the number of samples decides who is heard.

Left out: more than one search, further tools, and System 2's reasoning beside its search.
"""

from __future__ import annotations

from asyncio import gather
from typing import Any, Literal

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import FAILURE, Finding, Note
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Task, TaskSource
from cotrain.functional.bins import first_fit_decreasing
from cotrain.learn.after import After, drop_flat_groups
from cotrain.learn.algorithms import grpo, pull_to
from cotrain.learn.subsample import Subsample
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import single
from cotrain.metrics.heldout import solving
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.protocols import examine
from cotrain.play.role import Turn
from cotrain.tasks.words import scatter
from cotrain.tasks.words.roles_corpus import NOTHING
from cotrain.tasks.words.source import study_problems

INFORMED = Note[float]("informed", float, "share of the facts that reached the solver")
FOUND = Note[bool]("found", bool, "did the search find every fact")
RECALL = Note[float]("recall", float, "share of the shown facts that the digest holds")
PRECISION = Note[float]("precision", float, "share of the digest's sentences that are facts")
QUERY = Finding[str]("query", str, "what was searched for")


@gives(OUTCOME)
async def research(
    task: Task, roles: Roles, *, bin_size: int = 120, noise: float = 1.0, plan: bool = True, digest: bool = True
) -> None:
    """One trajectory: plan, search, digests, solution; all of them get the reward ``outcome``.

    Notes: of the plan whether it ``found`` the documents, of a digest the ``recall`` and ``precision`` with which it holds
    the facts that its bin holds, of the solution the share of all facts that reached it (``informed``).
    """
    facts, question = scatter.facts_and_question(task.prompt)
    calls: list[Turn] = []
    if plan:
        calls.append(await roles.planner(question=question))
        found = search(task, calls[0], facts, noise)
    else:
        found = scatter.documents(task.prompt, rng_of("documents", task.id), noise=noise)
    said = list(found)
    if digest:
        packed = first_fit_decreasing([len(document) for document in found], bin_size)
        bins = ["\n".join(found[i] for i in mine) for mine in packed]
        digests = await gather(*(roles.digester(documents=shown, purpose=question) for shown in bins))
        for shown, turn in zip(bins, digests, strict=True):
            weigh(turn, shown, facts)
        calls += digests
        said = [text for turn in digests if (text := turn.text.strip()) != NOTHING]
    context = " ".join([*said, question])
    solution = await roles.solver(problem=context)
    correct = await examine(task, roles, solution)
    if correct is None:
        return
    solution.note(INFORMED, sum(fact in context for fact in facts) / max(1, len(facts)))
    for turn in (*calls, solution):
        turn.reward(OUTCOME, float(correct))


def search(task: Task, plan: Turn, facts: tuple[str, ...], noise: float) -> tuple[str, ...]:
    """What the tool returns; the same for all members of a group that ask the same."""
    query = plan.parsed.text if plan.parsed.ok else ""
    plan.show(*(QUERY, query) if query else (FAILURE, plan.parsed.reason))
    found = scatter.search(task.prompt, query, rng_of("documents", task.id, query), noise=noise)
    plan.note(FOUND, all(any(fact in document for document in found) for fact in facts))
    return found


def weigh(digest: Turn, shown: str, facts: tuple[str, ...]) -> None:
    """Note how much of what matters a digest holds, and how much of it matters; each where there is any."""
    wanted = {fact for fact in facts if fact in shown}
    said = scatter.sentences(digest.text)
    if wanted:
        digest.note(RECALL, sum(fact in digest.text for fact in wanted) / len(wanted))
    if said and digest.text.strip() != NOTHING:
        digest.note(PRECISION, sum(sentence in wanted for sentence in said) / len(said))


@recipe
def mars(
    model: str = "embedded-digest",
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    lr: float = 2e-4,
    kl: float = 0.001,
    bin_size: int = 120,
    noise: float = 1.0,
    plan: bool = True,
    system1: Literal["trained", "frozen", "none"] = "trained",
    balance: bool = True,
    sampling: Literal["random", "advantage"] = "random",
    decoupled: bool = True,
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    if bin_size < 1 or noise < 0.0:
        raise ConfigError(f"mars: bin_size {bin_size} and noise {noise}; expected characters above 0, and 0 or more")
    trained, digest = system1 == "trained", system1 != "none"
    pull = pull_to("start", kl)
    plain: tuple[After, ...] = (drop_flat_groups,)
    drawn: tuple[After, ...] = (*plain, Subsample(size=group_size, by=sampling)) if balance else plain
    also = (*(["planner"] if plan else []), *(["digester"] if trained and not decoupled else []))
    objectives = {
        "system2": Objective(
            policy="model",
            on="solver",
            also=also,
            by=grpo(rewards={OUTCOME: 1.0}, kl=pull, after=plain if decoupled else drawn),
        )
    }
    if trained and decoupled:
        digesting = grpo(rewards={OUTCOME: 1.0}, kl=pull, after=drawn)
        objectives["system1"] = Objective(policy="model", on="digester", by=digesting)
    shown: dict[str, Any] = {"bin_size": bin_size, "noise": noise, "plan": plan, "digest": digest}
    return Recipe(
        name="mars" if trained else f"mars-{system1}",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={"model": trainable(model, lr=lr)} | ({"start": frozen(model)} if kl or system1 == "frozen" else {}),
        roles={"solver": parts.solver("model", model)}
        | ({"planner": parts.planner("model", model)} if plan else {})
        | ({"digester": parts.digester("model" if trained else "start", model)} if digest else {}),
        objectives=objectives,
        schedule=single(research, *objectives, name="both", **shown),
        evaluation=Evaluation(
            protocol=research,
            measures=(solving("solver", 8),),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
            options=shown,
        ),
        evaluate_every=evaluate_every,
    )
