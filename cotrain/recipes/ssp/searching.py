"""The rollouts and rewards of Search Self-Play (arXiv 2510.18821): search, write a question, search, answer it.

The facts of a task's word problem are the library. A search names a noun and finds the sentence that defines it, or one
about something else where there is none. No role sees the library as a whole. One episode, in order:

::

    seeker ×turns    is told the answer a* that the question shall have and one noun, and searches for facts
    proposer         writes a question from what was found: "There are 5 more kites than pears. How many …?"
    (rules)          a program rejects what is no question, with a fixed reason that is counted
    reader ×reads    answers the question from the seeker's passages mixed with ``noise`` others, without searching;
                     the question is kept if more than half of the answers are a*
    searcher ×turns  searches for the question, as each of ``samples`` solvers
    solver           answers it from what was found

With p the share of solvers that are right, each turn of seeker and proposer earns 1 − p. Where the question is
rejected it earns ``invalid`` instead, and the solvers get an older question of the pool. Each turn of searcher and
solver earns 1 where the answer is a*, else 0.

A program also works out whether a question has the answer a*. This is metadata (``valid``); no reward depends on it.

``OwnLibrary`` is the same game with a search of the user's, for tasks of any kind. Then a* is the answer of a training
task, whose grader compares answers with it; noise is what a search for the questions of other tasks finds; and nobody
knows whether a question is valid.

Left out: ranking, and passages of several sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.errors import ConfigError
from cotrain.core.notes import FAILURE, GATHERED, PROBLEM, Finding, Metadata
from cotrain.core.seeding import rng_of
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.data.word_problems.problem import CONSTANT_MAX, Fact, Problem
from cotrain.data.word_problems.reader import facts_in, problem_signature, read_problem, task_of
from cotrain.data.word_problems.search_corpus import distractor_sentences, facts_and_question
from cotrain.rollout.event_loop import gather
from cotrain.rollout.proposals import LEARNABLE, SOLVED, VALID, text_of
from cotrain.rollout.protocols import examine, show_answer
from cotrain.rollout.readers import ENDLESS, TextReader
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool
from cotrain.rollout.tools.search import AskFailed, Search, ask_search

ENOUGH = "nothing"  # the query by which a role says that it has found enough
VERIFIED = Metadata[bool]("verified", bool, "did the reader find the question's answer among the passages")
SEARCHED = Finding[str]("searched", str, "what was searched for")


@dataclass(slots=True)
class SearchTrail:
    """One search of several queries: what it began with, and what was found on the way."""

    begin: str  # text that is shown before the first query
    hits: list[str] = field(default_factory=list)  # passages that the queries found, in that order
    queries: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)  # the turns that wrote the queries
    log: list[str] = field(default_factory=list)  # each query with what it found; only for a search of the user's
    ended: bool = False  # no further query

    @property
    def shown_text(self) -> str:
        """The text from which the next query is written."""
        if self.log:
            return "\n".join([self.begin, *self.log])
        return " ".join([self.begin, *self.hits])

    def problem(self, question: str) -> str:
        """The prompt of a solver: the passages that were found, and then the question."""
        if self.log:
            return "\n".join([*dict.fromkeys(self.hits), "", question]).strip()
        return " ".join([self.passages, question]).strip()

    @property
    def passages(self) -> str:
        return " ".join(self.in_order)

    @property
    def in_order(self) -> list[str]:
        """The sentences that were found, each after those that it depends on, as far as these were found."""
        sentences_left = list(dict.fromkeys(reversed(self.hits)))
        ordered_sentences: list[str] = []
        known_nouns: set[str] = set()

        def is_ready(sentence: str) -> bool:
            """Whether every noun that the sentence depends on is known."""
            return all(rests_on(fact) <= known_nouns for fact in facts_in(sentence))

        while sentences_left:
            sentence = next(filter(is_ready, sentences_left), sentences_left[0])
            sentences_left.remove(sentence)
            ordered_sentences.append(sentence)
            known_nouns |= {fact.target for fact in facts_in(sentence)}
        return ordered_sentences


def rests_on(fact: Fact) -> set[str]:
    """The nouns whose counts a fact is stated by: {"apples"} for "There are 4 more pears than apples"."""
    return {noun for noun in (fact.left, fact.right) if isinstance(noun, str) and noun}


def mix_noise(trail: SearchTrail, noise: Sequence[str], rng: Random) -> list[str]:
    """Return the passages that a reader sees: those of a trail in order, with the noise at random places among them."""
    passages = trail.in_order
    for sentence in noise:
        passages.insert(rng.randint(0, len(passages)), sentence)
    return passages


def library_of(text: str) -> dict[str, str]:
    """Noun → the sentence of a word problem that defines it."""
    sentences, _ = facts_and_question(text)
    sentence_by_noun = {}
    for sentence in sentences:
        for fact in facts_in(sentence):
            sentence_by_noun[fact.target] = sentence
    return sentence_by_noun


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnLibrary:
    """Searches with a function of the user's instead of the facts of a word problem."""

    search: Search
    reader: TextReader  # reads questions as those of the tasks' source

    async def look_up(self, trail: SearchTrail) -> None:
        """Search for the last query of a trail. A search that fails finds nothing; the turn keeps the reason."""
        query = trail.queries[-1]
        passages: Sequence[str] = ()
        try:
            passages = await ask_search(self.search, query)
        except AskFailed as error:
            trail.turns[-1].add_finding(FAILURE, str(error))
        trail.hits += passages
        passages_to_show = passages or ["Nothing was found."]
        trail.log.append("\n".join([f"Search: {query}", *passages_to_show]))

    async def draw_noise(self, task: Task, count: int, rng: Random, known_passages: Sequence[str]) -> list[str]:
        """At most ``count`` passages that the questions of other training tasks find: for each question the first
        passage that is not in ``known_passages``. Raises AskFailed."""
        source = self.reader.source
        size = source.size("train") or ENDLESS
        indices = rng.sample(range(size), min(count + 1, size))  # one more, in case the task itself is drawn
        drawn_tasks = [source.get("train", index) for index in indices]
        other_tasks = [other_task for other_task in drawn_tasks if other_task.id != task.id][:count]
        results = await gather([ask_search(self.search, other_task.prompt) for other_task in other_tasks])
        noise = []
        for passages in results:
            new_passages = [passage for passage in passages if passage not in known_passages]
            noise += new_passages[:1]
        return noise


async def search_along(
    role: RoleHandle,
    trails: Sequence[SearchTrail],
    text: str,
    most: int,
    group: str | None = None,
    own: OwnLibrary | None = None,
) -> None:
    """A role searches along all trails at once, up to ``most`` times each.

    It searches in the facts of ``text``, or in the user's ``own`` library.
    """
    sentence_by_noun = library_of(text) if own is None else {}
    for _ in range(most):
        live = [trail for trail in trails if not trail.ended]
        turns = await gather([role(group=group, question=trail.shown_text) for trail in live])
        for trail, turn in zip(live, turns, strict=True):
            _add_query(trail, turn)
        searching = [trail for trail in live if not trail.ended]

        if own is not None:
            await gather([own.look_up(trail) for trail in searching])
            continue
        for trail in searching:
            query = trail.queries[-1]
            passage = sentence_by_noun.get(query)
            if passage is None:
                [passage] = distractor_sentences(text, 1, rng_of("elsewhere", text, query))
            trail.hits.append(passage)


def _add_query(trail: SearchTrail, turn: Turn) -> None:
    """Add a turn and its query to a trail, which is over where the turn has no query or says that it has enough."""
    trail.turns.append(turn)
    turn.chat.join(trail.turns[0].chat)  # all turns of a search are one trajectory
    if not turn.parsed.ok:
        turn.add_finding(FAILURE, turn.parsed.reason)
        trail.ended = True
        return
    query = turn.parsed.text
    turn.add_finding(SEARCHED, query)
    if query == ENOUGH:
        trail.ended = True
    else:
        trail.queries.append(query)


def question_aim(task: Task) -> tuple[str, int, int]:
    """The aim of a proposer's question: the noun that the search begins with, the answer a* of the question, and the
    difference of a* from the value of that noun."""
    problem = problem_of(task)
    rng = rng_of("aim", task.id)
    value = problem.answer
    difference = 2 + int(rng.random() * (CONSTANT_MAX - 1))
    can_be_less = value - difference >= 1
    if can_be_less and (rng.random() < 0.5 or value + difference > 99):
        difference = -difference
    return problem.question, value + difference, difference


def problem_of(task: Task) -> Problem:
    """The word problem of a task. Raises ConfigError for a task that the program cannot read."""
    problem = read_problem(task.prompt)
    if isinstance(problem, ParseFailure):
        raise ConfigError(
            f"task {task.id} is no library ({problem.reason}); expected --tasks words, without a modulus",
            code="E_TASKS_UNSUITED",
        )
    return problem


def seeker_start(task: Task) -> str:
    """The text that the seeker sees before its first query."""
    noun, answer, _ = question_aim(task)
    return f"Answer: {answer}. About: {noun}."


def answer_to_ask_for(task: Task) -> str:
    """The answer of a task. Raises ConfigError where it has none."""
    if task.gold is None:
        raise ConfigError(
            f"ssp: task {task.id} has no answer that a question could be written for; give tasks that do",
            code="E_TASK_WITHOUT_ANSWER",
        )
    return task.gold


def broken_rule(question: str, answer: str, trail: SearchTrail) -> str | None:
    """Why this is rejected as a question; None where it may be one. Search Self-Play's rules, for questions of this
    size."""
    if not question.endswith("?") or question.count("?") != 1:
        return "no question"
    if not trail.hits:
        return "nothing found"
    if len(trail.queries) < 2:
        return "one search"
    if len(set(trail.queries)) < len(trail.queries):
        return "searched twice"

    part_of_word = r"\d" if answer.isdigit() else r"\w"  # the answer 5 is not told by 15, nor "art" by "party"
    if re.search(rf"(?<!{part_of_word}){re.escape(answer)}(?!{part_of_word})", question, re.IGNORECASE):
        return "tells the answer"
    return None


def truth_of(text: str, question: str) -> Problem | None:
    """The word problem that the whole library and a question make; None where the program cannot read it."""
    problem = read_problem(" ".join([*library_of(text).values(), question]))
    return None if isinstance(problem, ParseFailure) else problem


@gives(LEARNABLE.to("seeker"), LEARNABLE.to("proposer"), OUTCOME.to("searcher"), OUTCOME.to("solver"))
async def search_and_play(
    task: Task,
    roles: Roles,
    *,
    pool: TaskPool,
    samples: Positive,
    turns: Positive = 4,
    noise: NotNegative = 4,
    reads: Positive = 3,
    verify: bool = True,
    invalid: float = 0.0,
    own: OwnLibrary | None = None,
) -> None:
    """One question and its solvers, see above. ``verify=False``: what passes the rules is kept without a reader."""
    if own is None:
        answer = str(question_aim(task)[1])
        trail = SearchTrail(seeker_start(task))
    else:
        answer = answer_to_ask_for(task)
        trail = SearchTrail(f"Answer: {answer}")
    await search_along(roles.seeker, [trail], task.prompt, turns, own=own)

    proposal = await roles.proposer(hint=trail.shown_text, problem="")
    question = text_of(proposal)
    proposer_turns = [*trail.turns, proposal]
    problem = None  # the problem that the program reads in the question; not for a library of the user's
    if own is None:
        problem = truth_of(task.prompt, question)
        proposal.add_metadata(VALID, problem is not None and str(problem.answer) == answer)

    # The rules, then the reader: ``reason`` is why the question is rejected.
    reason = broken_rule(question, answer, trail)
    if reason is None and own is not None and own.reader.is_held_out(question):
        reason = "held out"
    if reason is None and verify:
        try:
            is_kept = await _is_verified(task, roles, trail, question, answer, noise, reads, own)
            proposal.add_metadata(VERIFIED, is_kept)
            reason = None if is_kept else "not verified"
        except AskFailed as error:
            reason = str(error)
            for turn in proposer_turns:
                turn.fail(reason)

    # A rejected question: its solvers get an old one.
    if reason is not None:
        proposal.add_finding(FAILURE, reason)
        for turn in proposer_turns:
            turn.chat.reward(LEARNABLE, invalid)
        old = pool.draw_problem(rng_of("replay", proposal.id, task.id))
        if old is None:
            return
        share = await _search_and_solve(task, roles, old.problem, old.answer, proposal, samples, turns, own)
        if share is not None:
            proposal.add_finding(REPLAYED, (old.signature, share))
        return

    # A question of the package's own library enters the pool with its library: the task's prompt, on a line before it.
    text = f"{task.prompt}\n{question}" if own is None else question
    share = await _search_and_solve(task, roles, text, answer, proposal, samples, turns, own)
    if share is None:
        proposal.fail("ungraded")
        return
    if problem:
        signature = problem_signature(problem)
    elif own is None:
        signature = text
    else:
        signature = own.reader.signature_of(text)
    proposal.add_finding(MINTED, (text, answer, signature, share))
    proposal.add_metadata(SOLVED, share)
    for turn in proposer_turns:
        turn.chat.reward(LEARNABLE, 1.0 - share)


async def _is_verified(
    task: Task,
    roles: Roles,
    trail: SearchTrail,
    question: str,
    answer: str,
    noise: int,
    reads: int,
    own: OwnLibrary | None,
) -> bool:
    """Whether more than half of the readers answer a* from the passages and the noise. Raises AskFailed."""
    rng = rng_of("noise", task.id, question)
    question_task = None
    if own is None:
        noise_sentences = distractor_sentences(f"{task.prompt} {question}", noise, rng)
        passages = mix_noise(trail, noise_sentences, rng)
        problem = " ".join([*passages, question])
    else:
        passages = [*dict.fromkeys(trail.hits)]
        passages += await own.draw_noise(task, noise, rng, passages)
        rng.shuffle(passages)
        problem = "\n".join([*passages, question])
        question_task = own.reader.recall(question, answer, task)

    n_agreeing = 0
    for turn in await roles.reader.many(reads, problem=problem):
        show_answer(turn)
        if await _gives_answer(turn, answer, question_task, roles):
            n_agreeing += 1
    return 2 * n_agreeing > reads


async def _gives_answer(turn: Turn, answer: str, question_task: Task | None, roles: Roles) -> bool | None:
    """Whether a turn answers a*. The grader of ``question_task`` compares; without one, texts are compared.

    None where grading failed; then the turn fails with the reason.
    """
    if question_task is None:
        return bool(turn.parsed.ok and turn.parsed.answer == answer)
    grade = await roles.grade(question_task, turn)
    if grade.value is None:
        turn.fail(grade.reason or "ungraded")
    return grade.value


async def _search_and_solve(
    task: Task,
    roles: Roles,
    text: str,
    answer: str,
    proposal: Turn,
    samples: int,
    turns: int,
    own: OwnLibrary | None,
) -> float | None:
    """``samples`` solvers search for a question and answer it. All turns of one solver earn 1 if its answer is a*.

    ``text``: the question; where the library is not the user's, the task's prompt stands on the line before it. Returns
    the share of solvers that are right, None where nothing could be graded.
    """
    if own is None:
        library_text, _, question = text.partition("\n")
        problem = truth_of(library_text, question)
        question_task = None
    else:
        library_text = ""
        question = text
        problem = None
        question_task = own.reader.recall(question, answer, task)

    trails = [SearchTrail(question) for _ in range(samples)]
    await search_along(roles.searcher, trails, library_text, turns, f"{proposal.id}/search", own)
    solutions = await gather([roles.solver(group=proposal.id, problem=trail.problem(question)) for trail in trails])

    outcomes: list[bool] = []
    for trail, solution in zip(trails, solutions, strict=True):
        if problem is not None:
            await examine(task_of(problem, f"{task.id}/proposed"), roles, solution)
            _note_gathered(solution, trail, problem)
        else:
            solution.add_finding(PROBLEM, text)
            show_answer(solution)
        is_right = await _gives_answer(solution, answer, question_task, roles)
        if is_right is None:
            continue
        outcomes.append(is_right)
        for turn in (*trail.turns, solution):
            turn.chat.reward(OUTCOME, float(is_right))
    return sum(outcomes) / len(outcomes) if outcomes else None


def _note_gathered(solution: Turn, trail: SearchTrail, problem: Problem) -> None:
    """Record which share of the facts that the answer depends on was found; facts in the question count as found."""
    seen_nouns = {fact.target for fact in facts_in(trail.shown_text)}
    needed_nouns = set(problem.needed)
    for noun in problem.needed:
        needed_nouns |= rests_on(problem.relations[noun])
    solution.add_metadata(GATHERED, len(needed_nouns & seen_nouns) / len(needed_nouns))


async def find_and_solve(task: Task, roles: Roles, *, turns: Positive = 4, own: OwnLibrary | None = None) -> None:
    """The evaluation: a solver searches for the task's own question and answers it."""
    if own is None:
        _, question = facts_and_question(task.prompt)
        problem = problem_of(task)
        trail = SearchTrail(f"{question} About: {problem.question}.")  # without its noun nobody knew where to begin
    else:
        question = task.prompt
        problem = None
        trail = SearchTrail(question)
    await search_along(roles.searcher, [trail], task.prompt, turns, own=own)
    solution = await roles.solver(problem=trail.problem(question))
    if await examine(task, roles, solution) is not None and problem is not None:
        _note_gathered(solution, trail, problem)
