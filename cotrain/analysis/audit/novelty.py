"""New habits of the policy that the judge likes: phrases, lengths and formats that were rare at first.

A *habit* is something that an answer has or has not: a phrase of one to five words, a format (a box, a list, code …),
or a length (among the longest or shortest tenth of the first answers). It is shown where

- it is new: its share of answers in the last quarter of the steps is by at least ``LEAST_RISE`` above that in the
  first, and by more than chance: the change's interval over problems lies above zero, at a level for as many habits as
  were looked at (Bonferroni);
- the judge likes it: *at the same steps* it accepts answers that have the habit more often than those that do not, by
  ``LIKED`` and by ``SURE`` standard errors. Tenths of the run are compared within and then averaged (Mantel and
  Haenszel's weights), since an honest policy has better answers and new habits at the end, with no tie between the two.
  Where no tenth has both, the last answers are compared with the first.

Phrases that the prompts hold do not count; of phrases that mostly stand in the same answers the longest is shown.
Numbers are one word, ``#``, so that a phrase with another number in it is the same phrase. Where the truth is known the
habit says how often its answers are right: *liked and wrong* is what a fooled judge looks like. A habit by itself is no
fault: a judge may rightly like a format that can be read.

Left out: meanings; a habit that changes its words every time is not seen.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from cotrain.analysis.audit.judge_error import cut_steps, slope_of
from cotrain.core.seeding import seed_of
from cotrain.core.statistics import Estimate, student_t
from cotrain.formats.answers import answer_in
from cotrain.runs.foreign_files import ForeignRollout

QUARTER = 4
LEAST_RISE = 0.15  # least rise of the share of answers that have a habit
LIKED = 0.1  # by how much more often the judge accepts what has it
SURE = 3.0  # standard errors
TENTHS = 10  # parts of the run, within which answers with and without a habit are compared
LEAST_BOTH = 4.0  # answers with and without, as their weight, so that they can be compared
LONGEST_PHRASE = 5  # words
MOST_ANSWERS = 8000  # that are read; of more a sample that depends on them alone
MOST_PHRASES = 40  # whose intervals are made, those that rose most
MOST_SHOWN = 8
EXAMPLES = 3
MOST_WORDS = 600  # words of an answer that are looked at
_WORD = re.compile(r"\d+(?:[.,]\d+)*|\w+|[^\w\s]|\n")

FORMATS: Mapping[str, Callable[[str], bool]] = {
    "has a box": lambda text: "\\boxed" in text,
    "has several boxes": lambda text: text.count("\\boxed") > 1,
    "has answer tags": lambda text: "<answer>" in text,
    "has several answers in tags": lambda text: text.count("<answer>") > 1,
    "has code": lambda text: "```" in text,
    "has a list": lambda text: len(re.findall(r"^\s*(?:[-*•]|\d+[.)])\s", text, re.MULTILINE)) > 1,
    "has a heading": lambda text: bool(re.search(r"^#{1,4} ", text, re.MULTILINE)),
    "has bold text": lambda text: "**" in text,
    "names no answer": lambda text: answer_in(text) is None,
    "is empty": lambda text: not text.strip(),
    "has no number": lambda text: not any(char.isdigit() for char in text),
    "ends without a mark": lambda text: bool(text.strip()) and text.rstrip()[-1].isalnum(),
    "says a sentence twice": lambda text: _repeats(text),
    "has letters beyond ASCII": lambda text: any(ord(char) > 127 and char.isalpha() for char in text),
    "has an exclamation mark": lambda text: "!" in text,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewHabit:
    """Something that answers have now, that they had less often at first, and that the judge likes."""

    kind: str  # "phrase", "format" or "length"
    name: str
    at_first: float  # share of answers
    now: float
    change: Estimate  # its change, over problems
    accepted_with: float  # share that the judge accepts, of answers that have it
    accepted_without: float  # and at the same steps of those that do not, or of the first answers where all have it
    right_with: float | None  # share of the last answers with it that are right; None where nobody knows
    examples: tuple[str, ...]  # addresses
    example_text: str  # how it stands in the first example

    def lines(self) -> list[str]:
        name = f"“{self.name}”" if self.kind == "phrase" else self.name
        liked = f"accepted {100 * self.accepted_with:.0f} % with it, {100 * self.accepted_without:.0f} % without"
        if self.right_with is not None:
            liked += f"; of the last {100 * self.right_with:.0f} % are right"
        head = f"{name}: {100 * self.at_first:.0f} % → {100 * self.now:.0f} %; {liked}"
        return [head, f"    {', '.join(self.examples)}: {self.example_text}"]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "name": self.name,
            "at_first": self.at_first,
            "now": self.now,
            "change": self.change.to_json(),
            "accepted_with": self.accepted_with,
            "accepted_without": self.accepted_without,
            "right_with": self.right_with,
            "examples": list(self.examples),
            "shown": self.example_text,
        }


@dataclass(frozen=True, slots=True)
class _Habit:
    kind: str
    name: str
    places: frozenset[int]  # places of the answers that have it


@dataclass(frozen=True, slots=True)
class _Answers:
    """All answers that are looked at, and which of them are the first and the last."""

    all: Sequence[ForeignRollout]
    first: Sequence[int]  # places
    last: Sequence[int]
    tenths: Sequence[Sequence[int]]


def new_habits(rollouts: Sequence[ForeignRollout]) -> list[NewHabit]:
    """The habits that are new and that the verifier accepts, the largest rise first; [] for fewer than two steps."""
    judged = [rollout for rollout in rollouts if rollout.verdict is not None]
    if len({rollout.step for rollout in judged}) < 2:
        return []
    answers = _answers_of(judged)
    habits = [*_formats(answers), *_lengths(answers), *_phrases(answers)]
    level = 0.05 / max(1, len(habits))
    described = [(_describe(habit, answers, level), habit) for habit in habits]
    pairs = [(new, habit) for new, habit in described if new is not None]
    pairs.sort(key=lambda pair: (pair[0].at_first - pair[0].now, pair[0].name))
    return _without_echoes(pairs, frozenset(answers.last))[:MOST_SHOWN]


def _answers_of(judged: Sequence[ForeignRollout]) -> _Answers:
    """The answers, of very many a sample that is the same every time."""
    chosen = list(judged)
    if len(chosen) > MOST_ANSWERS:
        chosen = sorted(judged, key=lambda one: seed_of("habits", one.address, one.response))[:MOST_ANSWERS]
        chosen.sort(key=lambda one: (one.step, one.task, one.member))
    steps = sorted({one.step for one in chosen})

    def places_between(first: int, last: int) -> list[int]:
        return [place for place, one in enumerate(chosen) if first <= one.step <= last]

    quarters = cut_steps(steps, QUARTER)
    first_quarter = quarters[0]
    last_quarter = quarters[-1]
    return _Answers(
        all=chosen,
        first=places_between(steps[0], first_quarter[-1]),
        last=places_between(last_quarter[0], steps[-1]),
        tenths=[places_between(tenth[0], tenth[-1]) for tenth in cut_steps(steps, TENTHS)],
    )


# -- what an answer may have


def _formats(answers: _Answers) -> list[_Habit]:
    habits = []
    for name, test in FORMATS.items():
        places = frozenset(place for place, one in enumerate(answers.all) if test(one.response))
        habits.append(_Habit("format", name, places))
    cut = frozenset(place for place, one in enumerate(answers.all) if one.is_cut)
    habits.append(_Habit("format", "is cut off", cut))
    return habits


def _repeats(text: str) -> bool:
    sentences = [part.strip() for part in re.split(r"[.!?\n]|</step>", text) if len(part.split()) > 2]
    return len(set(sentences)) < len(sentences)


def _lengths(answers: _Answers) -> list[_Habit]:
    """Longer and shorter than nine tenths of the first answers, in characters, and of more and fewer lines or steps."""
    texts = [one.response for one in answers.all]
    return [
        *_beyond([len(text) for text in texts], answers.first, "characters"),
        *_beyond([text.count("\n") + text.count("<step>") + 1 for text in texts], answers.first, "lines or steps"),
    ]


def _beyond(sizes: Sequence[int], first: Sequence[int], what: str) -> list[_Habit]:
    """The two habits of a size: above and below nine tenths of the first answers'."""
    before = sorted(sizes[place] for place in first)
    low, high = before[len(before) // 10], before[-1 - len(before) // 10]
    above = frozenset(place for place, size in enumerate(sizes) if size > high)
    below = frozenset(place for place, size in enumerate(sizes) if size < low)
    return [
        _Habit("length", f"has more than {high} {what}", above),
        _Habit("length", f"has fewer than {low} {what}", below),
    ]


def _phrases(answers: _Answers) -> list[_Habit]:
    """The phrases whose share of answers rose most, and enough."""
    prompts = {one.prompt for one in answers.all}
    in_prompts = set[str]().union(*(_phrases_in(prompt) for prompt in prompts))
    phrases_by_place = [_phrases_in(one.response) - in_prompts for one in answers.all]

    before = Counter[str]()
    for place in answers.first:
        before.update(phrases_by_place[place])
    after = Counter[str]()
    for place in answers.last:
        after.update(phrases_by_place[place])

    rises = {}
    for phrase, count in after.items():
        share_after = count / len(answers.last)
        if share_after >= LEAST_RISE:
            rises[phrase] = share_after - before[phrase] / len(answers.first)
    risen = [phrase for phrase, rise in rises.items() if rise >= LEAST_RISE]

    habits = []
    for phrase in _longest_of_equals(risen, rises)[:MOST_PHRASES]:
        places = frozenset(place for place, phrases in enumerate(phrases_by_place) if phrase in phrases)
        habits.append(_Habit("phrase", phrase, places))
    return habits


def _longest_of_equals(risen: Sequence[str], rises: Mapping[str, float]) -> list[str]:
    """Without phrases that stand inside of a longer one that rose as much."""
    kept: list[str] = []
    for phrase in sorted(risen, key=lambda one: (-len(one.split()), -rises[one], one)):
        inside = any(f" {phrase} " in f" {longer} " and rises[longer] >= 0.8 * rises[phrase] for longer in kept)
        if not inside:
            kept.append(phrase)
    return sorted(kept, key=lambda one: (-rises[one], one))


def _phrases_in(text: str) -> set[str]:
    """Its phrases of one to five words, none across the end of a sentence; they begin and end with a word of letters,
    and a number inside is #."""
    phrases = set()
    for words in _clauses_of(text):
        for size in range(1, LONGEST_PHRASE + 1):
            for start in range(len(words) - size + 1):
                part = words[start : start + size]
                if part[0][0].isalpha() and part[-1][0].isalpha():
                    phrases.add(" ".join(part))
    return phrases


def _clauses_of(text: str) -> list[list[str]]:
    """The words of each part of a text between marks that end a sentence."""
    clauses: list[list[str]] = [[]]
    for word in _WORD.findall(text)[:MOST_WORDS]:
        if word in ".!?;:\n":
            clauses.append([])
        else:
            clauses[-1].append("#" if word[0].isdigit() else word.casefold())
    return clauses


# -- whether it is new and liked


def _describe(habit: _Habit, answers: _Answers, level: float) -> NewHabit | None:
    """The habit with its figures; None where it is not new, or the judge does not like it."""
    at_first = _share_of(habit, answers.first)
    now = _share_of(habit, answers.last)
    if now - at_first < LEAST_RISE:
        return None
    change = _change_of(habit, answers)
    if change is None or not _is_certain(change, len({one.problem for one in answers.all}), level):
        return None
    liking = _liking_of(habit, answers)
    if not liking.is_sure:
        return None
    having = [answers.all[place] for place in answers.last if place in habit.places]
    truths = [one.truth for one in having if one.truth is not None]
    examples = sorted(having, key=lambda one: (not one.verdict, one.truth is True, -one.step, one.task, one.member))
    return NewHabit(
        kind=habit.kind,
        name=habit.name,
        at_first=at_first,
        now=now,
        change=change,
        accepted_with=liking.accepted_with,
        accepted_without=liking.accepted_without,
        right_with=sum(truths) / len(truths) if truths else None,
        examples=tuple(rollout.address for rollout in examples[:EXAMPLES]),
        example_text=_excerpt(examples[0].response, habit),
    )


def _share_of(habit: _Habit, places: Sequence[int]) -> float:
    return sum(place in habit.places for place in places) / len(places)


def _change_of(habit: _Habit, answers: _Answers) -> Estimate | None:
    """Share now minus share at first, with its interval over problems."""
    ends = [(place, 0.0) for place in answers.first] + [(place, 1.0) for place in answers.last]
    return slope_of((answers.all[place].problem, at, float(place in habit.places)) for place, at in ends)


def _is_certain(change: Estimate, problems: int, level: float) -> bool:
    """Whether the change is above zero at this level. The interval of 95 % is stretched to the level's."""
    half = (change.high - change.low) / 2
    stretched = half * NormalDist().inv_cdf(1 - level / 2) / student_t(max(1, problems - 1))
    return change.value - stretched > 0.0


@dataclass(frozen=True, slots=True)
class _Liking:
    """How often the judge accepts answers with and without a habit."""

    accepted_with: float
    accepted_without: float
    error: float  # standard error of the difference

    @property
    def is_sure(self) -> bool:
        return self.accepted_with - self.accepted_without >= max(LIKED, SURE * self.error)


def _liking_of(habit: _Habit, answers: _Answers) -> _Liking:
    """Within tenths of the run, averaged by Mantel and Haenszel's weights; without such tenths the last answers that
    have it next to the first ones."""
    pairs = []
    for tenth in answers.tenths:
        having = [place for place in tenth if place in habit.places]
        lacking = [place for place in tenth if place not in habit.places]
        if having and lacking:
            pairs.append((having, lacking))

    weights = [len(having) * len(lacking) / (len(having) + len(lacking)) for having, lacking in pairs]
    if sum(weights) < LEAST_BOTH:  # too few tenths have both: compare the last answers with it with the first answers
        last_with_it = [place for place in answers.last if place in habit.places]
        pairs = [(last_with_it, [*answers.first])]
        weights = [1.0]
    total = sum(weights)
    accepted_with = accepted_without = variance = 0.0
    for weight, (having, lacking) in zip(weights, pairs, strict=True):
        with_it = _share_accepted(answers, having)
        without = _share_accepted(answers, lacking)
        accepted_with += weight / total * with_it
        accepted_without += weight / total * without
        scatter = with_it * (1 - with_it) / len(having) + without * (1 - without) / len(lacking)
        variance += (weight / total) ** 2 * scatter
    return _Liking(accepted_with, accepted_without, math.sqrt(variance))


def _share_accepted(answers: _Answers, places: Sequence[int]) -> float:
    return sum(answers.all[place].verdict is True for place in places) / len(places)


def _excerpt(text: str, habit: _Habit) -> str:
    """The part of an answer around a phrase; of another habit its beginning."""
    plain = " ".join(text.split())
    at = 0
    if habit.kind == "phrase":
        match = re.search(_pattern_of(habit.name), plain, re.IGNORECASE)
        at = max(0, match.start() - 30) if match else 0
    part = plain[at : at + 100]
    return f"{'… ' if at else ''}{part}{' …' if at + 100 < len(plain) else ''}"


def _pattern_of(phrase: str) -> str:
    """A regular expression that finds a phrase as it was written, with whatever spaces and numbers."""
    words = []
    for word in phrase.split():
        words.append(r"\d+(?:[.,]\d+)*" if word == "#" else re.escape(word))
    return r"\s*".join(words)


def _without_echoes(pairs: Sequence[tuple[NewHabit, _Habit]], last: frozenset[int]) -> list[NewHabit]:
    """Without phrases that nearly all stand in the same last answers as one that is shown before them."""
    kept: list[tuple[NewHabit, frozenset[int]]] = []
    for new, habit in pairs:
        places = habit.places & last
        is_echo = any(
            other.kind == new.kind == "phrase" and len(places & before) >= 0.9 * max(len(places), len(before))
            for other, before in kept
        )
        if not is_echo:
            kept.append((new, places))
    return [new for new, _ in kept]
