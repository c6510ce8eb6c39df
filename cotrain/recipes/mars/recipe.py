"""MARS: a slow System 2 that searches and reasons, a fast System 1 that digests what is found, one set of weights.

Chen et al. 2025 (arXiv 2510.04935). System 2 sees the question alone and asks a tool for documents. They are packed
into bins by first-fit decreasing; System 1 digests each bin for what System 2 wants to know; System 2 solves the
problem from the digests. One reward, the answer, is that of the whole trajectory and of every call in it. Advantages
are normalised apart: System 2's among the trajectories of a problem, System 1's among all of its calls. Then System 1's
samples are drawn down to one for each trajectory, and each system has a loss of its own.

The tool is a program (``data/word_problems/search_corpus.py``): the facts of the problem lie in many documents,
``noise`` irrelevant sentences to each of them, and a search by a word that is not in them finds documents about
something else. ``search`` is an async function of your own in its place, for any problems; the planner then sees the
whole problem.

Controls are parameters: ``balance=False`` learns from all calls of System 1, ``sampling="advantage"`` draws those with
large advantages more often (the second version of the paper; its own rule is not public), ``system1="frozen"`` leaves
digesting to the start, and "none" shows System 2 the documents as they are; ``plan=False`` finds them for it;
``decoupled=False`` makes one loss of both systems, in which the number of samples decides who is heard.

Left out: more than one search, further tools, and System 2's reasoning beside its search.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from cotrain import (
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    Turn,
    constant_schedule,
    examine,
    frozen,
    gather,
    gives,
    recipe,
    rng_of,
)
from cotrain.algorithms.policy_gradient import SampleEdit, drop_flat_groups
from cotrain.core.notes import FAILURE, Finding, Metadata
from cotrain.data.word_problems import search_corpus
from cotrain.data.word_problems.source import WordProblems
from cotrain.recipes.mars.subsample import Subsample
from cotrain.rollout import common_roles
from cotrain.rollout.tools.search import AskFailed, Search, ask_search, check_search

INFORMED = Metadata[float]("informed", float, "share of the facts that reached the solver")
FOUND = Metadata[bool]("found", bool, "did the search find every fact")
RECALL = Metadata[float]("recall", float, "share of the shown facts that the digest holds")
PRECISION = Metadata[float]("precision", float, "share of the digest's sentences that are facts")
NOTHING = "Nothing."  # the digest of documents that hold nothing of use
QUERY = Finding[str]("query", str, "what was searched for")


@gives(OUTCOME)
async def research(
    task: Task,
    roles: Roles,
    *,
    bin_size: int = 120,
    noise: float = 1.0,
    plan: bool = True,
    digest: bool = True,
    search: Search | None = None,
) -> None:
    """One trajectory: plan, search, digests, solution; all of them get the reward ``outcome``, and trajectories of one
    problem are compared with each other, although each shows its roles what it has found.

    Notes: of the plan whether it ``found`` the documents, of a digest the ``recall`` and ``precision`` with which it
    holds the facts that its bin holds, of the solution the share of all facts that reached it (``informed``).
    """
    facts, question = search_corpus.facts_and_question(task.prompt) if search is None else ((), task.prompt)
    calls: list[Turn] = []
    if plan:
        calls.append(await roles.planner(question=question))
        documents = await search_documents(task, calls[0], facts, noise, search)
    else:
        documents = search_corpus.scatter_facts(task.prompt, rng_of("documents", task.id), noise=noise)
    texts = list(documents)
    if digest:
        packed = first_fit_decreasing([len(document) for document in documents], bin_size)
        bin_texts = []
        for places in packed:
            bin_texts.append("\n".join(documents[place] for place in places))
        digester = roles.digester
        digests = await gather(
            [digester(group=digester.whole_group, documents=bin_text, purpose=question) for bin_text in bin_texts]
        )
        for bin_text, turn in zip(bin_texts, digests, strict=True):
            note_digest(turn, bin_text, facts)
        calls += digests
        digest_texts = [turn.text.strip() for turn in digests]
        texts = [text for text in digest_texts if text != NOTHING]

    context = " ".join([*texts, question])
    solution = await roles.solver(group=roles.solver.whole_group, problem=context)  # whatever each trajectory has found
    correct = await examine(task, roles, solution)
    if correct is None:
        return
    if search is None:
        solution.add_metadata(INFORMED, sum(fact in context for fact in facts) / max(1, len(facts)))
    for turn in (*calls, solution):
        turn.reward(OUTCOME, float(correct))


async def search_documents(
    task: Task, plan: Turn, facts: tuple[str, ...], noise: float, search: Search | None
) -> tuple[str, ...]:
    """Return the documents that the tool finds; the package's own gives the same to all members of a group that ask the
    same."""
    query = plan.parsed.text if plan.parsed.ok else ""
    if query:
        plan.add_finding(QUERY, query)
    else:
        plan.add_finding(FAILURE, plan.parsed.reason)
    if search is not None:
        if not query:
            return ()
        try:
            return await ask_search(search, query)
        except AskFailed as error:
            plan.add_finding(FAILURE, str(error))
            return ()
    found = search_corpus.search_documents(task.prompt, query, rng_of("documents", task.id, query), noise=noise)
    plan.add_metadata(FOUND, all(any(fact in document for document in found) for fact in facts))
    return found


def note_digest(digest: Turn, shown: str, facts: tuple[str, ...]) -> None:
    """Note how much of what matters a digest holds, and how much of it matters; each where there is any."""
    wanted = {fact for fact in facts if fact in shown}
    sentences = search_corpus.split_sentences(digest.text) if facts else ()
    if wanted:
        digest.add_metadata(RECALL, sum(fact in digest.text for fact in wanted) / len(wanted))
    if sentences and digest.text.strip() != NOTHING:
        digest.add_metadata(PRECISION, sum(sentence in wanted for sentence in sentences) / len(sentences))


@recipe(model="shipped-digest")
def mars(
    run: RunConfig,
    *,
    bin_size: int = 120,  # characters that System 1 sees at a time
    noise: float = 1.0,  # irrelevant sentences for each fact
    plan: bool = True,  # System 2 says what to search for
    system1: Literal["trained", "frozen", "none"] = "trained",  # who digests
    balance: bool = True,  # draw System 1's samples down to one a trajectory
    sampling: Literal["random", "advantage"] = "random",  # choice of System 1's samples that are kept
    decoupled: bool = True,  # a loss for each system
    search: str | Search | None = None,  # finds documents for any problems: my_file.py:function of a query
) -> Recipe:
    assert not isinstance(search, str)  # the recipe has loaded it
    check_search(search, "mars")
    if search is None and not isinstance(run.tasks, WordProblems | None):
        raise ConfigError(
            f"mars: no documents are known for {run.problems.name}; give --search my_file.py:function, or "
            "--tasks words",
            code="E_NO_SEARCH",
        )
    if search is not None and not plan:
        raise ConfigError(
            "mars: without a plan (plan=false) nobody searches; leave out search, or plan=false",
            code="E_SEARCH_WITHOUT_PLAN",
        )
    if bin_size < 1 or noise < 0.0:
        raise ConfigError(
            f"mars: bin_size {bin_size} and noise {noise}; expected characters above 0, and 0 or more",
            code="E_SETTING_RANGE",
        )
    trained = system1 == "trained"
    digest = system1 != "none"
    plain: tuple[SampleEdit, ...] = (drop_flat_groups,)
    after: tuple[SampleEdit, ...] = (*plain, Subsample(size=run.group_size, by=sampling)) if balance else plain
    also = (*(["planner"] if plan else []), *(["digester"] if trained and not decoupled else []))
    reason = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty(), edit_after=plain if decoupled else after)
    objectives = {"system2": Objective(policy="model", role="solver", extra_roles=also, algorithm=reason)}
    if trained and decoupled:
        digesting = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty(), edit_after=after)
        objectives["system1"] = Objective(policy="model", role="digester", algorithm=digesting)
    policies = {"model": run.learner(), **run.reference_policies()}
    if system1 == "frozen":
        policies["reference"] = frozen(run.model)
    roles = {"solver": common_roles.solver("model", run.model)}
    if plan:
        roles["planner"] = common_roles.planner("model", run.model)
    if digest:
        roles["digester"] = common_roles.digester("model" if trained else "reference", run.model)
    protocol = partial(research, bin_size=bin_size, noise=noise, plan=plan, digest=digest, search=search)
    return run.recipe(
        "mars" if trained else f"mars-{system1}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="both"),
        evaluate=protocol,
    )


def first_fit_decreasing(sizes: Sequence[float], capacity: float) -> list[list[int]]:
    """Indices of ``sizes`` [N] by bin: each thing, largest first, goes into the first bin that has room for it, and a
    new one where none has (Johnson 1973; at most 11/9 of the optimum + 1). What is larger than ``capacity`` has a bin
    of its own. Within a bin indices rise."""
    if not capacity > 0.0:
        raise ValueError(f"first_fit_decreasing: capacity {capacity} must be positive")
    bins: list[list[int]] = []
    room_left: list[float] = []
    for index in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        bin_index = next((b for b, left in enumerate(room_left) if sizes[index] <= left), None)
        if bin_index is None:
            bin_index = len(bins)
            bins.append([])
            room_left.append(capacity)
        bins[bin_index].append(index)
        room_left[bin_index] -= sizes[index]
    return [sorted(mine) for mine in bins]
