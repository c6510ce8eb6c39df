"""MARS: a slow System 2 that searches and reasons, a fast System 1 that digests what is found, one set of weights.

Chen et al. 2025 (arXiv 2510.04935). System 2 sees the question alone and asks a tool for documents. They are packed
into bins by first-fit decreasing; System 1 digests each bin for what System 2 wants to know; System 2 solves the
problem from the digests. Every call of a trajectory has one reward, whether its answer is right. Advantages are
normalised apart: System 2's among the trajectories of a problem, System 1's among all of its calls for that problem.
Then System 1's samples are thinned out to one for each trajectory, and each system has a loss of its own.

The tool is a program (``data/word_problems/search_corpus.py``): the facts of the problem lie in many documents,
``noise`` irrelevant sentences to each of them, and a search by a word that is not in them finds documents about
something else. ``search`` is an async function of your own in its place, for any problems; the planner then sees the
whole problem.

Controls:

- ``balance=False`` learns from all calls of System 1.
- ``sampling="advantage"`` draws calls with large advantages more often, as the second version of the paper does. Its
  rule is not public.
- ``system1="frozen"`` digests with the initial weights, ``"none"`` shows System 2 the documents as they are.
- ``plan=False`` gives System 2 the documents of the problem, without a search.
- ``decoupled=False`` has one loss for both systems, in which the system with more samples weighs more.

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
    """One trajectory: plan, search, digests, solution. All of them get the reward ``outcome``.

    Trajectories of one problem are compared with each other, although the documents in their prompts differ. Metadata:

    - ``found`` of the plan: did the search find every fact?
    - ``recall`` and ``precision`` of a digest, for the facts in its bin.
    - ``informed`` of the solution: the share of all facts that stand in its prompt.
    """
    facts: tuple[str, ...] = ()
    question = task.prompt
    if search is None:
        facts, question = search_corpus.facts_and_question(task.prompt)

    turns: list[Turn] = []
    if plan:
        plan_turn = await roles.planner(question=question)
        turns.append(plan_turn)
        documents = await search_for_plan(task, plan_turn, facts, noise, search)
    else:
        documents = search_corpus.scatter_facts(task.prompt, rng_of("documents", task.id), noise=noise)

    shown_texts = list(documents)
    if digest:
        bins = first_fit_decreasing([len(document) for document in documents], bin_size)
        bin_texts = ["\n".join(documents[index] for index in indices) for indices in bins]
        digester = roles.digester
        digests = await gather(
            [digester(group=digester.whole_group, documents=bin_text, purpose=question) for bin_text in bin_texts]
        )
        for bin_text, turn in zip(bin_texts, digests, strict=True):
            note_digest(turn, bin_text, facts)
        turns += digests
        digest_texts = [turn.text.strip() for turn in digests]
        shown_texts = [text for text in digest_texts if text != NOTHING]

    problem = " ".join([*shown_texts, question])
    solver = roles.solver
    solution = await solver(group=solver.whole_group, problem=problem)  # one group, whatever the prompts show
    is_right = await examine(task, roles, solution)
    if is_right is None:
        return
    if search is None:
        solution.add_metadata(INFORMED, sum(fact in problem for fact in facts) / max(1, len(facts)))
    for turn in (*turns, solution):
        turn.reward(OUTCOME, float(is_right))


async def search_for_plan(
    task: Task, plan: Turn, facts: tuple[str, ...], noise: float, search: Search | None
) -> tuple[str, ...]:
    """Return the documents that the plan's query finds. The package's own search gives equal queries of one task the
    same documents."""
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

    rng = rng_of("documents", task.id, query)
    documents = search_corpus.search_documents(task.prompt, query, rng, noise=noise)
    n_found = sum(any(fact in document for document in documents) for fact in facts)
    plan.add_metadata(FOUND, n_found == len(facts))
    return documents


def note_digest(digest: Turn, bin_text: str, facts: tuple[str, ...]) -> None:
    """Note the recall of a digest, if its bin holds a fact, and its precision, if it has a sentence."""
    facts_in_bin = {fact for fact in facts if fact in bin_text}
    sentences = search_corpus.split_sentences(digest.text) if facts else ()
    if facts_in_bin:
        n_kept = sum(fact in digest.text for fact in facts_in_bin)
        digest.add_metadata(RECALL, n_kept / len(facts_in_bin))
    if sentences and digest.text.strip() != NOTHING:
        n_facts = sum(sentence in facts_in_bin for sentence in sentences)
        digest.add_metadata(PRECISION, n_facts / len(sentences))


@recipe(model="shipped-digest")
def mars(
    run: RunConfig,
    *,
    bin_size: int = 120,  # characters that System 1 sees at a time
    noise: float = 1.0,  # irrelevant sentences for each fact
    plan: bool = True,  # System 2 says what to search for
    system1: Literal["trained", "frozen", "none"] = "trained",  # who writes the digests
    balance: bool = True,  # draw System 1's samples down to one a trajectory
    sampling: Literal["random", "advantage"] = "random",  # choice of System 1's samples that are kept
    decoupled: bool = True,  # a loss for each system
    search: str | Search | None = None,  # finds documents for any problems: my_file.py:function of a query
) -> Recipe:
    assert not isinstance(search, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
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
    has_digests = system1 != "none"
    system1_learns = system1 == "trained"

    # The two systems: one policy in several roles.
    policies = {"model": run.learner(), **run.reference_policies()}
    digester_policy = "model"
    if system1 == "frozen":
        digester_policy = "reference"
        policies["reference"] = frozen(run.model)  # the initial weights; a KL term has the same reference
    roles = {"solver": common_roles.solver("model", run.model)}
    if plan:
        roles["planner"] = common_roles.planner("model", run.model)
    if has_digests:
        roles["digester"] = common_roles.digester(digester_policy, run.model)

    # The losses: one for each system, or one for both.
    edits_of_system2: tuple[SampleEdit, ...] = (drop_flat_groups,)
    edits_of_system1 = edits_of_system2
    if balance:
        edits_of_system1 = (drop_flat_groups, Subsample(size=run.group_size, sampling=sampling))
    roles_of_system2 = ["planner"] if plan else []
    if not decoupled:
        edits_of_system2 = edits_of_system1
        if system1_learns:
            roles_of_system2.append("digester")

    algorithm = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty(), edit_after=edits_of_system2)
    objectives = {
        "system2": Objective(policy="model", role="solver", extra_roles=tuple(roles_of_system2), algorithm=algorithm)
    }
    if system1_learns and decoupled:
        algorithm = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty(), edit_after=edits_of_system1)
        objectives["system1"] = Objective(policy="model", role="digester", algorithm=algorithm)

    protocol = partial(research, bin_size=bin_size, noise=noise, plan=plan, digest=has_digests, search=search)
    return run.recipe(
        "mars" if system1_learns else f"mars-{system1}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="both"),
        evaluate=protocol,
    )


def first_fit_decreasing(sizes: Sequence[float], capacity: float) -> list[list[int]]:
    """Pack items into bins: each item, largest first, goes into the first bin that has room for it, or into a new one
    (Johnson 1973; at most 11/9 of the optimum + 1). An item larger than ``capacity`` has a bin of its own.

    Args:
        sizes: ``[N]`` sizes of the items.

    Returns the indices of the items in each bin, sorted.
    """
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
    return [sorted(indices) for indices in bins]
