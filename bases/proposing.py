"""``python -m bases --proposer``: ``shipped-proposer``, which also writes problems and scores problems and answers.

    shipped-habits → supervised: problems to be written, mostly short ones; solutions with its habits; true reviews;
      scores of problems and of answers, of which a stated share are coin flips
      → sharpening of the logits

For methods in which a model sets problems (``proposer_solver``, ``mae``). Its solver has the two wrong habits of
``shipped-habits``, so that there is something to gain that lower entropy does not give. It writes problems of 2 to 6
steps, half of them of 2: a proposer that is paid for harder ones can come to write them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bases.base import BATCH
from bases.taught_on import Lesson, teach_on
from bases.words_corpus import solver_conversation
from cotrain.core.seeding import rng_of
from cotrain.core.shipped import SHIPPED_HABITS
from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.corrupt import Habits, with_habits
from cotrain.data.word_problems.practice import check_practice
from cotrain.data.word_problems.problem import Problem
from cotrain.data.word_problems.reader import read_problem
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.pretraining.corpora import Corpus, procedural_corpus
from cotrain.prompts.templates import fill_template
from cotrain.recipes.mae.evolve import RATE_ANSWER, RATE_QUESTION, write_score
from cotrain.rollout.proposals import PROPOSE

NAME = "base-proposer"
TAUGHT = ("mae", "proposer_solver")  # methods
LENGTHS = (2, 3, 4, 5, 6)  # operations of the problems that it is taught to write
SHARES = (0.50, 0.25, 0.13, 0.07, 0.05)  # of each of them

Conversation = list[dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposerSettings(Lesson):
    """Everything this base depends on, beside the one it begins from."""

    start: str = SHIPPED_HABITS
    problems: WordProblems = field(default_factory=lambda: study_problems((2, 9)))  # to be solved, reviewed, scored
    habits: Habits = field(default_factory=lambda: Habits(random=0.0, systematic=0.6))
    skill: float = 0.8  # how often a demonstrated score is the truth; else it is a coin flip
    shown: float = 0.5  # how often the proposer sees another problem
    tokens: int = 700 * BATCH


def build_proposer(
    out: Path, settings: ProposerSettings, *, resume: bool = False, report: Callable[[str], None] = print
) -> dict[str, Any]:
    """Train the model into ``out/base-proposer``, described in ``out/base-proposer.json``."""
    return teach_on(out, NAME, settings, conversations_of(settings), taught=TAUGHT, resume=resume, report=report)


def conversations_of(settings: ProposerSettings) -> list[tuple[Corpus, int]]:
    """Problems, solutions, reviews and scores."""
    source, seed = settings.problems, settings.seed
    kinds: dict[str, tuple[int, Callable[[int], Any]]] = {
        "propose": (4, lambda i: proposal_conversation(source, settings.shown, seed, i)),
        "solve": (3, lambda i: solver_conversation(source, settings.habits, seed, i)),
        "check": (1, lambda i: check_practice(source, "proposer", seed, i)),
        "score a problem": (1, lambda i: problem_score_conversation(source, settings.skill, seed, i)),
        "score an answer": (1, lambda i: answer_score_conversation(source, settings.habits, settings.skill, seed, i)),
    }
    return [(procedural_corpus(name, get), weight) for name, (weight, get) in kinds.items()]


def proposal_conversation(source: WordProblems, shown: float, seed: int, index: int) -> Conversation:
    """A problem to be written, with probability ``shown`` beside another one."""
    rng = rng_of("words", "propose", seed, index)
    hint = _new_problem(source, rng).text if rng.random() < shown else ""
    return _one_reply(fill_template(PROPOSE, hint=hint), _new_problem(source, rng).text)


def problem_score_conversation(source: WordProblems, skill: float, seed: int, index: int) -> Conversation:
    """A problem, spoiled half of the time, and the highest or lowest score: the truth with probability ``skill``."""
    rng = rng_of("words", "score a problem", seed, index)
    text = _problem_of_any_length(source, rng).text
    if rng.random() < 0.5:
        text = drop_sentence(text, rng)
    truth = not isinstance(read_problem(text), ParseFailure)
    return _one_reply(fill_template(RATE_QUESTION, problem=text), draw_score(truth, skill, rng))


def answer_score_conversation(
    source: WordProblems, habits: Habits, skill: float, seed: int, index: int
) -> Conversation:
    """A problem, a solution with habits, and its score, likewise."""
    rng = rng_of("words", "score an answer", seed, index)
    problem = _problem_of_any_length(source, rng)
    attempt = with_habits(problem, habits, rng)
    shown = fill_template(RATE_ANSWER, problem=problem.text, solution=attempt.text)
    return _one_reply(shown, draw_score(attempt.answer == str(problem.answer), skill, rng))


def draw_score(truth: bool, skill: float, rng: random.Random) -> str:
    """The highest or the lowest score: the truth with probability ``skill``, else either."""
    is_told = rng.random() < skill
    return write_score(float(truth if is_told else rng.random() < 0.5))


def drop_sentence(text: str, rng: random.Random) -> str:
    """A problem without one of its sentences, so that it has no answer, or asks for what nobody defined."""
    parts = re.findall(r"[^.?]+[.?]", text)
    cut = rng.randrange(len(parts))
    return "".join(part for i, part in enumerate(parts) if i != cut).strip()


def _new_problem(source: WordProblems, rng: random.Random) -> Problem:
    """A problem as the proposer is taught to write them."""
    return source.training_problem(rng, rng.choices(LENGTHS, SHARES)[0])


def _problem_of_any_length(source: WordProblems, rng: random.Random) -> Problem:
    low, high = source.operations
    return source.training_problem(rng, rng.randint(low, high))


def _one_reply(asked: str, reply: str) -> Conversation:
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": reply}]
