"""``python -m bases --games``: ``shipped-games``, which knows the formats of the games that single methods play.

    shipped-habits → supervised: a program's part in each game; solutions with its habits; true reviews; revisions
      → sharpening of the logits

Only form is taught, with as much noise as each game's method needs in order to have something left to learn: moves and
accusations are drawn, messages, sums, verdicts and memories are right with a stated probability, an answer that was
heard is repeated without a look at the truth, and every worked solution has the two habits of ``shipped-habits``.
Drawn replies are drawn flatter than they shall be, since sharpening makes what is likely more likely (``flatten``).
Left out: other worlds than ``World()`` and other numbers than those of ``Halves()``.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotrain_zoo.debate_solve.contests import ASKED
from cotrain_zoo.debate_solve.prompts import CRITICISE
from cotrain_zoo.spiral.play import MOVE, write_move
from cotrain_zoo.spiral.source import GAMES

from bases.base import BATCH
from bases.roles_corpus import refine_conversation
from bases.taught_on import Lesson, teach_on
from bases.words_corpus import solver_conversation
from cotrain.core.seeding import rng_of
from cotrain.core.shipped import SHIPPED_GAMES, SHIPPED_HABITS
from cotrain.core.types import ParseFailure, Task
from cotrain.data.word_problems.corrupt import Attempt, Habits, clean_attempt, with_errors, with_habits
from cotrain.data.word_problems.practice import check_practice
from cotrain.data.word_problems.problem import CONSTANT_MAX, Fact, Problem
from cotrain.data.word_problems.reader import facts_in, read_problem
from cotrain.data.word_problems.search_corpus import distractor_sentences, facts_and_question
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.data.word_problems.wording import EVERY, NOUNS, fact_sentence
from cotrain.formats.role_prompts import PLAN
from cotrain.formats.solutions import tagged_solution, write_solution
from cotrain.pretraining.corpora import Corpus, procedural_corpus
from cotrain.prompts.templates import SOLVE, fill_template
from cotrain.recipes.constitutional.principles import CRITICISE as CRITICISE_UNDER
from cotrain.recipes.constitutional.principles import PRINCIPLES, REVISE, keeps_principle
from cotrain.recipes.debate.prompts import ACCUSE, ACCUSE_ON
from cotrain.recipes.magrpo.halves import Halves, halves_grader_of
from cotrain.recipes.magrpo.teams import ANSWERED, MESSAGE
from cotrain.recipes.marti.workflows import SOLVE_AMONG
from cotrain.recipes.ssp.searching import (
    ENOUGH,
    SearchTrail,
    library_of,
    mix_noise,
    problem_of,
    question_aim,
    rests_on,
    seeker_start,
    truth_of,
)
from cotrain.recipes.ssrl.recipe import SEARCH
from cotrain.recipes.ssrl.world import World, world_grader_of
from cotrain.rollout.proposals import PROPOSE

NAME = "base-games"
TAUGHT = ("constitutional", "debate", "debate_solve", "magrpo", "marti", "spiral", "ssrl")  # methods

Conversation = list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameSettings(Lesson):
    """Everything this base depends on, beside the one it begins from."""

    start: str = SHIPPED_HABITS
    problems: WordProblems = field(default_factory=lambda: study_problems((2, 6)))  # of debates, teams and principles
    libraries: WordProblems = field(default_factory=lambda: study_problems((1, 2)))  # that ssp searches
    habits: Habits = field(default_factory=lambda: Habits(random=0.0, systematic=0.6))
    noisy: float = 0.25  # share of the verdicts on steps that are wrong in reviews to be revised by
    skill: float = 0.8  # how often magrpo's numbers and verdicts on principles are right for sure; else they are drawn
    mistaken: float = 0.2  # share of what is remembered of ssrl's world that is false
    searches: int = 5  # of one question, at most
    noise: int = 4  # sentences beside those that were found, which ssp's reader sees
    tokens: int = 900 * BATCH


def build_games(
    out: Path, settings: GameSettings, *, resume: bool = False, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the model into ``out/base-games``, described in ``out/base-games.json``."""
    return teach_on(out, NAME, settings, conversations_of(settings), taught=TAUGHT, resume=resume, report=report)


def conversations_of(settings: GameSettings) -> list[tuple[Corpus, int]]:
    """Each game's own, and beside them solutions, reviews and revisions, so that nothing is forgotten."""
    source, habits, seed = settings.problems, settings.habits, settings.seed
    noisy = ("noisy", settings.noisy)
    kinds: dict[str, tuple[int, Callable[[int], Any]]] = {
        "solve": (6, lambda i: solver_conversation(source, habits, seed, i)),
        "check": (2, lambda i: check_practice(source, "games", seed, i)),
        "refine": (1, lambda i: refine_conversation(source, habits, noisy, seed, i)),
        "move": (2, lambda i: move_conversation(settings, i)),
        "message": (1, lambda i: message_conversation(settings, i)),
        "sum": (2, lambda i: sum_conversation(settings, i)),
        "own engine": (3, lambda i: world_conversation(settings, i)),
        "search": (2, lambda i: search_conversation(settings, i)),
        "question": (2, lambda i: question_conversation(settings, i)),
        "found": (2, lambda i: found_conversation(settings, i)),
        "accuse": (2, lambda i: accusation_conversation(settings, i)),
        "criticise": (1, lambda i: critic_conversation(settings, i)),
        "principle": (2, lambda i: principle_conversation(settings, i)),
        "revise": (3, lambda i: revision_conversation(settings, i)),
        "hear": (3, lambda i: hearing_conversation(settings, i)),
    }
    return [(procedural_corpus(name, get), weight) for name, (weight, get) in kinds.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings(GameSettings):
    """Everything that the base of Search Self-Play depends on, beside shipped-games."""

    start: str = SHIPPED_GAMES
    habits: Habits = field(default_factory=lambda: Habits(random=0.0, systematic=0.35))
    tokens: int = 1800 * BATCH


def build_search(
    out: Path, settings: SearchSettings, *, resume: bool = False, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the model into ``out/base-search``, described in ``out/base-search.json``."""
    kinds: dict[str, tuple[int, Callable[[int], Any]]] = {
        "solve": (1, lambda i: solver_conversation(settings.libraries, settings.habits, settings.seed, i)),
        "search": (6, lambda i: search_conversation(settings, i)),
        "question": (4, lambda i: worked_question_conversation(settings, i)),
        "read": (10, lambda i: read_conversation(settings, i)),
    }
    lessons = [(procedural_corpus(name, get), weight) for name, (weight, get) in kinds.items()]
    return teach_on(out, "base-search", settings, lessons, taught=("ssp",), resume=resume, report=report)


def flatten(chances: Sequence[float], factor: float) -> list[float]:
    """Weights of a draw that is ``chances`` again once logits are multiplied by ``factor``: p^(1 / factor)."""
    return [p ** (1 / factor) for p in chances]


def move_conversation(settings: GameSettings, index: int) -> Conversation:
    """SPIRAL: a legal move, drawn, in a state of a game of drawn moves. Moves that begin alike share a token, which is
    flattened."""
    rng = rng_of("games", "move", settings.seed, index)
    game = GAMES[rng.choice(sorted(GAMES))]
    state, states = rng.choice(game.starts()), []
    while state.mover is not None:
        states.append(state)
        state = state.after_move(rng.choice(state.moves))
    state = rng.choice(states)
    alike = Counter(move[0] for move in state.moves)
    weights = [alike[move[0]] ** (1 / settings.sharpened - 1) for move in state.moves]
    return _one_reply(fill_template(MOVE, view=state.view), write_move(rng.choices(state.moves, weights)[0]))


def message_conversation(settings: GameSettings, index: int) -> Conversation:
    """MAGRPO: the sum of what an agent sees, right as often as ``skill`` says."""
    rng = rng_of("games", "message", settings.seed, index)
    seen = halves_grader_of(Halves().get("train", index)).numbers
    shown = seen if rng.random() < 0.25 else seen[:1]  # sees="all", or half
    return _one_reply(fill_template(MESSAGE, seen=_numbers(shown)), str(_draw_sum(sum(seen[0]), settings, rng)))


def sum_conversation(settings: GameSettings, index: int) -> Conversation:
    """MAGRPO: the sum of all numbers after two messages, all three right as often as ``skill`` says."""
    rng = rng_of("games", "sum", settings.seed, index)
    seen = halves_grader_of(Halves().get("train", index)).numbers
    said, heard, answer = (_draw_sum(n, settings, rng) for n in (sum(seen[0]), sum(seen[1]), sum(map(sum, seen))))
    kind = rng.random()
    shown = seen if kind < 0.2 else seen[:1]
    fields: dict[str, str | int] = {
        "seen": _numbers(shown),
        "said": said,
        "heard": "nothing" if 0.2 <= kind < 0.4 else heard,
    }
    return _one_reply(fill_template(ANSWERED, **fields), f"<answer>{answer}</answer>")


def _draw_sum(right: int, settings: GameSettings, rng: random.Random) -> int:
    numbers = range(1, 2 * Halves().count * Halves().largest + 1)
    drawn = (1.0 - settings.skill) / len(numbers)
    chances = [drawn + settings.skill * (n == right) for n in numbers]
    return rng.choices(numbers, flatten(chances, settings.sharpened))[0]


def _numbers(seen: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(n) for numbers in seen for n in numbers)


def world_conversation(settings: GameSettings, index: int) -> Conversation:
    """SSRL: an answer that looks up whatever is missing, says itself what is found, which may be a false memory, and
    works out with habits what follows from it."""
    rng = rng_of("games", "world", settings.seed, index)
    task = World().get("train", index)
    world, prompt = world_grader_of(task), task.prompt
    [is_true, *_] = chances = flatten((1.0 - settings.mistaken, settings.mistaken), settings.sharpened)
    for share in (is_true / sum(chances), 1.0):  # what is remembered may be impossible; then it is the truth
        found: list[str] = []
        asked: list[str] = []
        while (noun := missing_noun(" ".join([prompt, *found]))) is not None:
            asked.append(noun)
            sentence = world.look_up(noun)
            found.append(sentence if rng.random() < share else false_memory(noun, sentence))
        problem = read_problem(" ".join([*reversed(found), prompt]))
        if not isinstance(problem, ParseFailure):
            break
    else:
        problem = world.problem
    said = "".join(f"<search> {n}</search><found> {one}</found>" for n, one in zip(asked, found, strict=True))
    return _one_reply(fill_template(SEARCH, problem=prompt), said + with_habits(problem, settings.habits, rng).text)


def false_memory(noun: str, sentence: str) -> str:
    """A sentence of the world with another number, always the same one."""
    [right] = re.findall(r"\d+", sentence)
    others = [str(n) for n in range(2, CONSTANT_MAX + 1) if str(n) != right]
    return sentence.replace(right, rng_of("false memory", noun).choice(others))


def search_conversation(settings: GameSettings, index: int) -> Conversation:
    """Search Self-Play: one search on the way to a question, or on the way to its answer."""
    rng = rng_of("games", "search", settings.seed, index)
    task = _library(settings, rng)
    begin = rng.choice((seeker_start(task), *_questions(task, rng)))
    asked = _search_along(begin, task, settings.searches)
    shown, query = rng.choice(asked)
    return _one_reply(fill_template(PLAN, question=shown), f"<search> {query}</search>")


def question_conversation(settings: GameSettings, index: int) -> Conversation:
    """Search Self-Play: a question that adds one fact to what was found."""
    rng = rng_of("games", "question", settings.seed, index)
    task = _library(settings, rng)
    shown, _ = _search_along(seeker_start(task), task, settings.searches)[-1]
    return _one_reply(fill_template(PROPOSE, hint=shown), write_question(task, rng))


def worked_question_conversation(settings: GameSettings, index: int) -> Conversation:
    """Search Self-Play: the same question behind the work of finding its numbers."""
    rng = rng_of("search", "question", settings.seed, index)
    task = _library(settings, rng)
    begin, problem, (about, answer, step) = seeker_start(task), problem_of(task), question_aim(task)
    question, apart = write_question(task, rng), sorted((answer, problem.answer), reverse=True)
    [noun] = [fact.target for fact in facts_in(question)]
    value, sign = problem.answer, "+" if step > 0 else "-"
    steps = (*problem.steps, f" {apart[0]}-{apart[1]}={abs(step)}")
    steps += (f" {noun}= {about}{sign}{abs(step)}={value}{sign}{abs(step)}={answer} {noun}",)
    said = "".join(f"<step>{one}</step>" for one in steps) + f"<problem>{question}</problem>"
    return _one_reply(fill_template(PROPOSE, hint=" ".join([begin, *_found(begin, task, settings)])), said)


def found_conversation(settings: GameSettings, index: int) -> Conversation:
    """Search Self-Play: a question answered from what was found, half of the time among other sentences, shuffled."""
    rng = rng_of("games", "found", settings.seed, index)
    task = _library(settings, rng)
    begin = rng.choice(_questions(task, rng))
    trail = SearchTrail(begin, _found(begin, task, settings))
    question = begin.partition(" About:")[0]
    passages = trail.passages
    if rng.random() < 0.5:
        text = f"{task.prompt} {question}"
        mixed = [*dict.fromkeys(trail.hits), *distractor_sentences(text, settings.noise, rng)]
        rng.shuffle(mixed)
        passages = " ".join(mixed)
    shown = " ".join([passages, question]).strip()
    problem = read_problem(shown)
    if isinstance(problem, ParseFailure):  # more was missing than may be searched for
        return solver_conversation(settings.libraries, settings.habits, settings.seed, index)
    return _one_reply(fill_template(SOLVE, problem=shown), with_habits(problem, settings.habits, rng).text)


def read_conversation(settings: GameSettings, index: int) -> Conversation:
    """Search Self-Play: a question answered from what was found, among any number of other sentences up to six."""
    rng = rng_of("search", "read", settings.seed, index)
    task = _library(settings, rng)
    begin = rng.choice(_questions(task, rng))
    question = begin.partition(" About:")[0]
    noise = distractor_sentences(f"{task.prompt} {question}", rng.randint(0, 6), rng)
    shown = " ".join([*mix_noise(SearchTrail(begin, _found(begin, task, settings)), noise, rng), question])
    problem = truth_of(task.prompt, question)
    if problem is None:
        return solver_conversation(settings.libraries, settings.habits, settings.seed, index)
    return _one_reply(fill_template(SOLVE, problem=shown), with_habits(problem, settings.habits, rng).text)


def _found(begin: str, task: Task, settings: GameSettings) -> list[str]:
    """All sentences that a search finds."""
    library = library_of(task.prompt)
    return [library[query] for _, query in _search_along(begin, task, settings.searches) if query != ENOUGH]


def _library(settings: GameSettings, rng: random.Random) -> Task:
    return settings.libraries.get("train", rng.randrange(2**31))


def _questions(task: Task, rng: random.Random) -> tuple[str, str]:
    """How a solver's search begins: with a question that a proposer wrote, or with the task's own."""
    return write_question(task, rng), f"{facts_and_question(task.prompt)[1]} About: {question_aim(task)[0]}."


def _search_along(begin: str, task: Task, most: int) -> list[tuple[str, str]]:
    """What was shown at each search, and what was searched for: always the first noun that is named and undefined."""
    library, shown, asked = library_of(task.prompt), begin, list[tuple[str, str]]()
    for _ in range(most):
        query = next_search(shown)
        asked.append((shown, query))
        if query == ENOUGH:
            break
        shown += f" {library[query]}"
    return asked


def next_search(shown: str) -> str:
    """The noun that is asked about, while nothing defines it; else the first one that is used and undefined."""
    about, known = "", shown
    if "About: " in shown:
        about, _, known = shown.partition("About: ")[2].partition(".")
        if about not in {fact.target for fact in facts_in(known)}:
            return about
    return missing_noun(shown) or ENOUGH


def missing_noun(text: str) -> str | None:
    """The first noun that the facts of a text use and none of them defines."""
    facts = facts_in(text)
    defined = {fact.target for fact in facts}
    return next((noun for fact in facts for noun in sorted(rests_on(fact)) if noun not in defined), None)


def write_question(task: Task, rng: random.Random) -> str:
    """One more fact about what is asked about, in the library's wording."""
    about, _, step = question_aim(task)
    read = read_problem(task.prompt)
    style = EVERY["plain" if isinstance(read, ParseFailure) else read.family]
    noun = rng.choice([one for one in NOUNS if one not in task.prompt])
    fact = Fact(target=noun, kind="plus" if step > 0 else "minus", left=about, right=abs(step))
    return f"{fact_sentence(style, fact)} {style.question.format(t=noun)}"


def accusation_conversation(settings: GameSettings, index: int) -> Conversation:
    """Debate: a drawn step of the other's solution, in a first turn or a later one."""
    rng = rng_of("games", "accuse", settings.seed, index)
    problem = _problem(settings, rng)
    sides = [clean_attempt(problem), _wrong_attempt(problem, settings.habits, rng)]
    rng.shuffle(sides)
    mine, other = sides
    fields = {"problem": problem.text, "mine": mine.text, "other": other.text}
    if rng.random() < 0.5:
        return _one_reply(fill_template(ACCUSE, **fields), _accuse(other, rng))
    turns = [f"Mine {_step(other, rng)} Other {_step(mine, rng)}" for _ in range(rng.randrange(3))]
    return _one_reply(fill_template(ACCUSE_ON, said=" ".join(turns) or "nothing", **fields), _accuse(other, rng))


def critic_conversation(settings: GameSettings, index: int) -> Conversation:
    """Debate on the solver's own solution: a drawn step, as a wrong one or as a right one."""
    rng = rng_of("games", "criticise", settings.seed, index)
    problem = _problem(settings, rng)
    draft = with_habits(problem, settings.habits, rng)
    shown = fill_template(CRITICISE, problem=problem.text, solution=draft.text, asked=rng.choice(list(ASKED.values())))
    return _one_reply(shown, _accuse(draft, rng))


def _step(accused: Attempt, rng: random.Random) -> int:
    return rng.randint(1, len(accused.steps))


def _accuse(accused: Attempt, rng: random.Random) -> str:
    return f"<answer>{_step(accused, rng)}</answer>"


def _wrong_attempt(problem: Problem, habits: Habits, rng: random.Random) -> Attempt:
    """A solution with habits that is wrong, or one with an error of another kind where eight are right."""
    drafts = (with_habits(problem, habits, rng) for _ in range(8))
    wrong = (draft for draft in drafts if draft.answer != str(problem.answer))
    return next(wrong, None) or with_errors(problem, 1, habits, rng)


def principle_conversation(settings: GameSettings, index: int) -> Conversation:
    """Constitutional AI: whether a solution keeps a principle, truly as often as ``skill`` says."""
    rng = rng_of("games", "principle", settings.seed, index)
    fields, name, text = _draft_under_principle(settings, rng)
    return _one_reply(fill_template(CRITICISE_UNDER, **fields), _verdict(name, fields["problem"], text, settings, rng))


def revision_conversation(settings: GameSettings, index: int) -> Conversation:
    """Constitutional AI: the same solution as the principle wants it, after a verdict."""
    rng = rng_of("games", "revise", settings.seed, index)
    fields, name, text = _draft_under_principle(settings, rng)
    review = _verdict(name, fields["problem"], text, settings, rng)
    shown = fill_template(REVISE, review=review, **fields)
    return _one_reply(shown, mend_solution(name, fields["problem"], text))


def _draft_under_principle(settings: GameSettings, rng: random.Random) -> tuple[Mapping[str, str], str, str]:
    """What a critic is shown, the principle's name and the solution: a draft, or one that was made to keep it."""
    problem, name = _problem(settings, rng), rng.choice(sorted(PRINCIPLES))
    text = with_habits(problem, settings.habits, rng).text
    if rng.random() < 0.5:
        text = mend_solution(name, problem.text, text)
    return {"problem": problem.text, "solution": text, "principle": PRINCIPLES[name].words}, name, text


def mend_solution(name: str, problem: str, text: str) -> str:
    """The solution ``text`` as the principle wants it; as it is where it cannot be read."""
    read = tagged_solution(text)
    if isinstance(read, ParseFailure):
        return text
    steps = tuple(step.text for step in read.steps)
    return write_solution(PRINCIPLES[name].mend(problem, steps, read.answer), read.answer)


def _verdict(name: str, problem: str, text: str, settings: GameSettings, rng: random.Random) -> str:
    right = settings.skill + (1.0 - settings.skill) / 2
    is_kept = keeps_principle(name, problem, text)
    [is_right] = rng.choices((True, False), flatten((right, 1.0 - right), settings.sharpened))
    return f"<final>{'CORRECT' if is_kept == is_right else 'INCORRECT'}</final>"


def hearing_conversation(settings: GameSettings, index: int) -> Conversation:
    """MARTI: one of two or three answers that were heard, said again."""
    rng = rng_of("games", "hear", settings.seed, index)
    problem = _problem(settings, rng)
    texts = [with_habits(problem, settings.habits, rng).text for _ in range(rng.choice((2, 2, 3)))]
    said = texts[0]
    rng.shuffle(texts)
    return _one_reply(fill_template(SOLVE_AMONG, problem=problem.text, answers="\n".join(texts)), said)


def _problem(settings: GameSettings, rng: random.Random) -> Problem:
    low, high = settings.problems.operations
    return settings.problems.training_problem(rng, rng.randint(low, high))


def _one_reply(asked: str, reply: str) -> Conversation:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
