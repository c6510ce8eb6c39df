"""Questions that are found and answered by searching: the game of Search Self-Play (arXiv 2510.18821).

The facts of a task's word problem are a library; a search names a noun and finds the sentence that defines it, or, if
there is none, one about something else. Nobody sees the library as a whole.

::

    seeker ×turns    what to search for, beginning with one noun; told the answer a* that the question is to have
    proposer         sentences about a further noun and a question: "There are 5 more kites than pears. How many …?"
    rules            a reason, fixed and counted, why this is no question
    reader ×reads    answers it from the seeker's passages and ``noise`` others, shuffled, without searching: it is kept
                     where a* is the most frequent answer
    searcher ×turns  ``samples`` solvers search for the question,
    solver           and answer from what they found

Every turn of the proposer's side earns 1 − p, p being the share of solvers that are right; what is not kept earns
``invalid``, and the solvers get an older question of the pool. The program that reads problems works out silently
whether a question has the answer a* (``valid``): no reward knows it. Left out: ranking, and passages of several
sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import ANSWER, FAILURE, PROBLEM, Finding, Note
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import ParseFailure, Task
from cotrain.rollout.executor import RoleHandle, Roles
from cotrain.rollout.idle_loop import together
from cotrain.rollout.proposals import LEARNABLE, SOLVED, VALID
from cotrain.rollout.protocols import examine
from cotrain.rollout.role import Turn
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool
from cotrain.tasks.words.problem import CONSTANT_MAX, Fact, Problem
from cotrain.tasks.words.reader import facts_in, read_problem, problem_signature, task_of
from cotrain.tasks.words.search_corpus import distractor_sentences, facts_and_question

ENOUGH = "nothing"  # the search that ends a search
VERIFIED = Note[bool]("verified", bool, "did the reader find the question's answer among the passages")
GATHERED = Note[float]("gathered", float, "share of the needed facts that the solver found")
SEARCHED = Finding[str]("searched", str, "what was searched for")


@dataclass(slots=True)
class SearchTrail:
    """One search: what it began with, and what was found on the way."""

    begin: str
    found: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    over: bool = False

    @property
    def shown_text(self) -> str:
        return " ".join([self.begin, *self.found])

    @property
    def passages(self) -> str:
        """What was found, each sentence behind those that it rests on, as far as there are any."""
        left, placed, known = list(dict.fromkeys(reversed(self.found))), [], set[str]()
        while left:
            ready = (one for one in left if all(rests_on(fact) <= known for fact in facts_in(one)))
            placed.append(next(ready, left[0]))
            left.remove(placed[-1])
            known |= {fact.target for fact in facts_in(placed[-1])}
        return " ".join(placed)


def rests_on(fact: Fact) -> set[str]:
    return {noun for noun in (fact.left, fact.right) if isinstance(noun, str) and noun}


def library_of(text: str) -> dict[str, str]:
    """Noun → the sentence that defines it."""
    sentences, _ = facts_and_question(text)
    return {fact.target: one for one in sentences for fact in facts_in(one)}


async def search_along(
    role: RoleHandle, trails: Sequence[SearchTrail], text: str, most: int, group: str | None = None
) -> None:
    """Search along all trails at once, up to ``most`` times each, in the library of ``text``."""
    shelf = library_of(text)
    for _ in range(most):
        live = [trail for trail in trails if not trail.over]
        for trail, turn in zip(
            live, await together([role(group=group, question=t.shown_text) for t in live]), strict=True
        ):
            trail.turns.append(turn)
            query = turn.parsed.text if turn.parsed.ok else ""
            turn.show(*((SEARCHED, query) if query else (FAILURE, turn.parsed.reason)))
            trail.over = query in ("", ENOUGH)
            if not trail.over:
                trail.queries.append(query)
                trail.found.append(
                    shelf.get(query) or distractor_sentences(text, 1, rng_of("elsewhere", text, query))[0]
                )


def question_aim(task: Task) -> tuple[str, int, int]:
    """Of a task: the noun that a proposer begins with, the answer a* of the question to be written, and its difference
    from that noun's value."""
    problem, rng = problem_of(task), rng_of("aim", task.id)
    value, step = problem.answer, 2 + int(rng.random() * (CONSTANT_MAX - 1))
    step = -step if value - step >= 1 and (rng.random() < 0.5 or value + step > 99) else step
    return problem.question, value + step, step


def problem_of(task: Task) -> Problem:
    """Raises ConfigError for a task that the program does not read."""
    read = read_problem(task.prompt)
    if isinstance(read, ParseFailure):
        raise ConfigError(f"task {task.id} is no library ({read.reason}); expected --tasks words, without a modulus")
    return read


def seeker_start(task: Task) -> str:
    noun, answer, _ = question_aim(task)
    return f"Answer: {answer}. About: {noun}."


def broken_rule(question: str, answer: str, trail: SearchTrail) -> str | None:
    """Why this is no question; None where it may be one. Search Self-Play's rules, for questions of this size."""
    if not question.endswith("?") or question.count("?") != 1:
        return "no question"
    if not trail.found:
        return "nothing found"
    if len(set(trail.queries)) < max(2, len(trail.queries)):
        return "searched twice" if len(trail.queries) > 1 else "one search"
    if answer in re.findall(r"\d+", question):
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
) -> None:
    """One question and its solvers, see above. ``verify=False`` keeps whatever passes the rules."""
    answer, trail = str(question_aim(task)[1]), SearchTrail(seeker_start(task))
    await search_along(roles.seeker, [trail], task.prompt, turns)
    proposal = await roles.proposer(hint=trail.shown_text, problem="")
    question, proposer_turns = proposal.text.strip(), [*trail.turns, proposal]
    problem = truth_of(task.prompt, question)
    proposal.note(VALID, problem is not None and str(problem.answer) == answer)
    reason = broken_rule(question, answer, trail)
    if reason is None and verify:
        is_kept = await _is_verified(task, roles, trail, question, answer, noise, reads)
        proposal.note(VERIFIED, is_kept)
        reason = None if is_kept else "not verified"
    if reason is None:
        text = f"{task.prompt}\n{question}"
        share = await _search_and_solve(task, roles, text, answer, proposal, samples, turns)
        name = text if problem is None else problem_signature(problem)
        proposal.show(MINTED, (text, answer, name, share))
        proposal.note(SOLVED, share)
        for turn in proposer_turns:
            turn.reward(LEARNABLE, 1.0 - share)
        return
    proposal.show(FAILURE, reason)
    for turn in proposer_turns:
        turn.reward(LEARNABLE, invalid)
    if (old := pool.draw_problem(rng_of("replay", proposal.id, task.id))) is not None:
        share = await _search_and_solve(task, roles, old.problem, old.answer, proposal, samples, turns)
        proposal.show(REPLAYED, (old.signature, share))


async def _is_verified(
    task: Task, roles: Roles, trail: SearchTrail, question: str, answer: str, noise: int, reads: int
) -> bool:
    """Is a* what more than half of the readers answer from the passages and the noise, shuffled?"""
    rng = rng_of("noise", task.id, question)
    passages = [*dict.fromkeys(trail.found), *distractor_sentences(f"{task.prompt} {question}", noise, rng)]
    rng.shuffle(passages)
    found = await roles.reader.many(reads, problem=" ".join([*passages, question]))
    for turn in found:
        turn.show(*((ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason)))
    return 2 * sum(turn.parsed.ok and turn.parsed.answer == answer for turn in found) > reads


async def _search_and_solve(
    task: Task, roles: Roles, text: str, answer: str, proposal: Turn, samples: int, turns: int
) -> float:
    """``samples`` solvers search for the question and answer it; all turns of one earn whether its answer is a*.
    Returns the share that is right. The truth is noted where the program can read the question."""
    prompt, _, question = text.partition("\n")
    trails = [SearchTrail(question) for _ in range(samples)]
    await search_along(roles.searcher, trails, prompt, turns, f"{proposal.id}/search")
    requests = [roles.solver(group=proposal.id, problem=" ".join([t.passages, question]).strip()) for t in trails]
    solved, problem = await together(requests), truth_of(prompt, question)
    right = 0.0
    for trail, turn in zip(trails, solved, strict=True):
        reward = float(turn.parsed.ok and turn.parsed.answer == answer)
        right += reward
        if problem is not None:
            await examine(task_of(problem, f"{task.id}/proposed"), roles, turn)
            _note_gathered(turn, trail, problem)
        else:
            turn.show(PROBLEM, text)
            turn.show(*((ANSWER, turn.parsed.answer) if turn.parsed.ok else (FAILURE, turn.parsed.reason)))
        for earner in (*trail.turns, turn):
            earner.reward(OUTCOME, reward)
    return right / samples


def _note_gathered(turn: Turn, trail: SearchTrail, problem: Problem) -> None:
    """Note the share of the facts which the answer rests on that were found; those of the question count as found."""
    told = {fact.target for fact in facts_in(trail.shown_text)}
    needed = set(problem.needed)
    for noun in problem.needed:
        needed |= rests_on(problem.relations[noun])
    turn.note(GATHERED, len(needed & told) / len(needed))


async def find_and_solve(task: Task, roles: Roles, *, turns: Positive = 4) -> None:
    """To measure: a solver searches for the task's own question and answers it."""
    _, question = facts_and_question(task.prompt)
    problem = problem_of(task)
    trail = SearchTrail(f"{question} About: {problem.question}.")  # the question has no facts to begin with
    await search_along(roles.searcher, [trail], task.prompt, turns)
    solution = await roles.solver(problem=" ".join([trail.passages, question]).strip())
    if await examine(task, roles, solution) is not None:
        _note_gathered(solution, trail, problem)
