"""Questions that are found and answered by searching: the game of Search Self-Play (arXiv 2510.18821).

The facts of a task's word problem are a library; a search names a noun and finds the sentence that defines it, or, if
there is none, one about something else. Nobody sees the library as a whole.

::

    seeker ×turns    what to search for, beginning with one noun; told the answer a* that the question is to have
    proposer         sentences about a further noun and a question: "There are 5 more kites than pears. How many …?"
    rules            a reason, fixed and counted, why this is no question
    reader ×reads    answers it from the seeker's passages and ``noise`` others among them, without searching: it is
                     kept where more than half of the answers are a*
    searcher ×turns  ``samples`` solvers search for the question,
    solver           and answer from what they found

Every turn of the proposer's side earns 1 − p, p being the share of solvers that are right; what is not kept earns
``invalid``, and the solvers get an older question of the pool. The program that reads problems works out silently
whether a question has the answer a* (``valid``): no reward knows it. Left out: ranking, and passages of several
sentences.

``OwnLibrary`` is the same game with a search of the user's, for tasks of any kind: a* is the answer of a training task,
whose grader compares answers with it; noise is what a search for the questions of other tasks finds; and nobody knows
whether a question is valid.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.errors import ConfigError
from cotrain.core.notes import ANSWER, FAILURE, GATHERED, PROBLEM, Finding, Metadata
from cotrain.core.seeding import rng_of
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.data.word_problems.problem import CONSTANT_MAX, Fact, Problem
from cotrain.data.word_problems.reader import facts_in, problem_signature, read_problem, task_of
from cotrain.data.word_problems.search_corpus import distractor_sentences, facts_and_question
from cotrain.rollout.event_loop import gather
from cotrain.rollout.proposals import LEARNABLE, SOLVED, VALID, text_of
from cotrain.rollout.protocols import examine
from cotrain.rollout.readers import ENDLESS, TextReader
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool
from cotrain.rollout.tools.search import AskFailed, Search, ask_search

ENOUGH = "nothing"  # the search that ends a search
VERIFIED = Metadata[bool]("verified", bool, "did the reader find the question's answer among the passages")
SEARCHED = Finding[str]("searched", str, "what was searched for")


@dataclass(slots=True)
class SearchTrail:
    """One search: what it began with, and what was found on the way."""

    begin: str
    found: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    log: list[str] = field(default_factory=list)  # of a search of the user's: what each query found
    over: bool = False

    @property
    def shown_text(self) -> str:
        if self.log:
            return "\n".join([self.begin, *self.log])
        return " ".join([self.begin, *self.found])

    def problem(self, question: str) -> str:
        """The question behind what was found for it."""
        if self.log:
            return "\n".join([*dict.fromkeys(self.found), "", question]).strip()
        return " ".join([self.passages, question]).strip()

    @property
    def passages(self) -> str:
        return " ".join(self.in_order)

    @property
    def in_order(self) -> list[str]:
        """Return what was found, each sentence behind those that it rests on, as far as there are any."""
        unplaced = list(dict.fromkeys(reversed(self.found)))
        placed: list[str] = []
        known_nouns: set[str] = set()

        def is_ready(sentence: str) -> bool:
            return all(rests_on(fact) <= known_nouns for fact in facts_in(sentence))

        while unplaced:
            sentence = next(filter(is_ready, unplaced), unplaced[0])
            unplaced.remove(sentence)
            placed.append(sentence)
            known_nouns |= {fact.target for fact in facts_in(sentence)}
        return placed


def rests_on(fact: Fact) -> set[str]:
    """The nouns whose counts a fact needs."""
    return {noun for noun in (fact.left, fact.right) if isinstance(noun, str) and noun}


def mix_noise(trail: SearchTrail, noise: Sequence[str], rng: Random) -> list[str]:
    """Return what a reader sees: noise at any place among what was found, which stays in order."""
    mixed = trail.in_order
    for sentence in noise:
        mixed.insert(rng.randint(0, len(mixed)), sentence)
    return mixed


def library_of(text: str) -> dict[str, str]:
    """Noun → the sentence that defines it."""
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
    reader: TextReader  # of the source of the tasks

    async def look_up(self, trail: SearchTrail) -> None:
        """Search for the last query of a trail. A search that fails finds nothing; the turn keeps the reason."""
        passages: Sequence[str] = ()
        try:
            passages = await ask_search(self.search, trail.queries[-1])
        except AskFailed as error:
            trail.turns[-1].add_finding(FAILURE, str(error))
        trail.found += passages
        trail.log.append("\n".join([f"Search: {trail.queries[-1]}", *(passages or ["Nothing was found."])]))

    async def draw_noise(self, task: Task, count: int, rng: Random, found: Sequence[str]) -> list[str]:
        """Search for the questions of ``count`` other training tasks; the first passage of each search that is not in
        ``found``. Raises AskFailed."""
        source = self.reader.source
        size = source.size("train") or ENDLESS
        tasks = [source.get("train", place) for place in rng.sample(range(size), min(count + 1, size))]
        others = [other for other in tasks if other.id != task.id][:count]
        results = await gather([ask_search(self.search, other.prompt) for other in others])
        noise = []
        for passages in results:
            new_passages = [passage for passage in passages if passage not in found]
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
    """Search along all trails at once, up to ``most`` times each, in the library of ``text`` or by one's ``own``."""
    shelf = library_of(text) if own is None else {}
    for _ in range(most):
        live = [trail for trail in trails if not trail.over]
        for trail, turn in zip(
            live, await gather([role(group=group, question=t.shown_text) for t in live]), strict=True
        ):
            trail.turns.append(turn)
            turn.chat.join(trail.turns[0].chat)  # a search is one trajectory
            query = turn.parsed.text if turn.parsed.ok else ""
            turn.add_finding(*((SEARCHED, query) if query else (FAILURE, turn.parsed.reason)))
            trail.over = query in ("", ENOUGH)
            if not trail.over:
                trail.queries.append(query)
                if own is None:
                    trail.found.append(
                        shelf.get(query) or distractor_sentences(text, 1, rng_of("elsewhere", text, query))[0]
                    )
        if own is not None:
            await gather([own.look_up(trail) for trail in live if not trail.over])


def question_aim(task: Task) -> tuple[str, int, int]:
    """The aim of a proposer's question: the noun that a proposer begins with, the answer a* of the question to be
    written, and its difference from that noun's value."""
    problem = problem_of(task)
    rng = rng_of("aim", task.id)
    value = problem.answer
    step = 2 + int(rng.random() * (CONSTANT_MAX - 1))
    step = -step if value - step >= 1 and (rng.random() < 0.5 or value + step > 99) else step
    return problem.question, value + step, step


def problem_of(task: Task) -> Problem:
    """Raises ConfigError for a task that the program does not read."""
    read = read_problem(task.prompt)
    if isinstance(read, ParseFailure):
        raise ConfigError(
            f"task {task.id} is no library ({read.reason}); expected --tasks words, without a modulus",
            code="E_TASKS_UNSUITED",
        )
    return read


def seeker_start(task: Task) -> str:
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
    """Why this is no question; None where it may be one. Search Self-Play's rules, for questions of this size."""
    if not question.endswith("?") or question.count("?") != 1:
        return "no question"
    if not trail.found:
        return "nothing found"
    if len(set(trail.queries)) < max(2, len(trail.queries)):
        return "searched twice" if len(trail.queries) > 1 else "one search"
    edge = r"\d" if answer.isdigit() else r"\w"  # a number is told by itself, a name by a whole word
    if re.search(rf"(?<!{edge}){re.escape(answer)}(?!{edge})", question, re.IGNORECASE):
        return "tells the answer"
    return None


def truth_of(text: str, question: str) -> Problem | None:
    """The problem that a question is with all of the library; None where the program cannot read it."""
    read = read_problem(" ".join([*library_of(text).values(), question]))
    return None if isinstance(read, ParseFailure) else read


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
    """One question and its solvers, see above. ``verify=False`` keeps whatever passes the rules."""
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
    problem = None
    if own is None:
        problem = truth_of(task.prompt, question)
        proposal.add_metadata(VALID, problem is not None and str(problem.answer) == answer)
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
    if reason is None:
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
        return

    # The question is refused, and its solvers get an old one.
    proposal.add_finding(FAILURE, reason)
    for turn in proposer_turns:
        turn.chat.reward(LEARNABLE, invalid)
    old = pool.draw_problem(rng_of("replay", proposal.id, task.id))
    if old is not None:
        share = await _search_and_solve(task, roles, old.problem, old.answer, proposal, samples, turns, own)
        if share is not None:
            proposal.add_finding(REPLAYED, (old.signature, share))


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
    """Is a* what more than half of the readers answer from the passages and the noise? Raises AskFailed."""
    rng = rng_of("noise", task.id, question)
    if own is None:
        passages = mix_noise(trail, distractor_sentences(f"{task.prompt} {question}", noise, rng), rng)
    else:
        passages = [*dict.fromkeys(trail.found)]
        passages += await own.draw_noise(task, noise, rng, passages)
        rng.shuffle(passages)
    found = await roles.reader.many(reads, problem=(" " if own is None else "\n").join([*passages, question]))
    known = None if own is None else own.reader.recall(question, answer, task)
    agreeing = 0
    for turn in found:
        turn.add_finding(*((ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason)))
        agreeing += bool(await _gives_answer(turn, answer, known, roles))
    return 2 * agreeing > reads


async def _gives_answer(turn: Turn, answer: str, known: Task | None, roles: Roles) -> bool | None:
    """Does a turn answer a*, as the grader of ``known`` compares them or, without, as text? None where grading failed,
    of which the turn keeps the reason."""
    if known is None:
        return bool(turn.parsed.ok and turn.parsed.answer == answer)
    grade = await roles.grade(known, turn)
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
    """``samples`` solvers search for the question and answer it; all turns of one earn whether its answer is a*.
    Returns the share that is right, None where nothing could be graded. The truth is noted where the program can read
    the question."""
    prompt, _, question = text.partition("\n") if own is None else ("", "", text)
    trails = [SearchTrail(question) for _ in range(samples)]
    await search_along(roles.searcher, trails, prompt, turns, f"{proposal.id}/search", own)
    solved = await gather([roles.solver(group=proposal.id, problem=trail.problem(question)) for trail in trails])
    problem = truth_of(prompt, question) if own is None else None
    known = None if own is None else own.reader.recall(question, answer, task)
    rewards: list[bool] = []
    for trail, turn in zip(trails, solved, strict=True):
        if problem is not None:
            await examine(task_of(problem, f"{task.id}/proposed"), roles, turn)
            _note_gathered(turn, trail, problem)
        else:
            turn.add_finding(PROBLEM, text)
            turn.add_finding(*((ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason)))
        is_right = await _gives_answer(turn, answer, known, roles)
        if is_right is None:
            continue
        rewards.append(is_right)
        for earner in (*trail.turns, turn):
            earner.chat.reward(OUTCOME, float(is_right))
    return sum(rewards) / len(rewards) if rewards else None


def _note_gathered(turn: Turn, trail: SearchTrail, problem: Problem) -> None:
    """Note the share of the facts which the answer rests on that were found; those of the question count as found."""
    seen = {fact.target for fact in facts_in(trail.shown_text)}
    needed = set(problem.needed)
    for noun in problem.needed:
        needed |= rests_on(problem.relations[noun])
    turn.add_metadata(GATHERED, len(needed & seen) / len(needed))


async def find_and_solve(task: Task, roles: Roles, *, turns: Positive = 4, own: OwnLibrary | None = None) -> None:
    """To measure: a solver searches for the task's own question and answers it."""
    question = task.prompt
    trail = SearchTrail(task.prompt)
    problem = None
    if own is None:
        _, question = facts_and_question(task.prompt)
        problem = problem_of(task)
        trail = SearchTrail(f"{question} About: {problem.question}.")  # the question has no facts to begin with
    await search_along(roles.searcher, [trail], task.prompt, turns, own=own)
    solution = await roles.solver(problem=trail.problem(question))
    if await examine(task, roles, solution) is not None and problem is not None:
        _note_gathered(solution, trail, problem)
