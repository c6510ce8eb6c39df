"""Problems that were made from one template, and so are no independent observations.

Sets such as MultiArith hold one text many times, with other numbers and names: 600 questions of 120 templates. A model
that can do one can mostly do the others, so the interval of a score is that of 120 observations and not of 600. Two
questions have one template when they are the same words up to numbers, names and pronouns::

    Joan has 9 blue balloons and she loses 2.      Tom has 14 blue balloons and he loses 5.

Questions of fewer than ``LEAST_WORDS`` words are templates of their own: most are bare arithmetic. Where a set has
fewer than ``LEAST`` templates, they say too little of other templates for an interval, and problems are counted singly:
the score is then one of these templates. Left out: other nouns, other orders of the sentences, paraphrases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LEAST_WORDS = 8
LEAST = 10  # templates
_WORD = re.compile(r"\d+(?:[.,/]\d+)*|[^\W\d_]+")
_NUMBERS = frozenset(
    [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
        "sixteen",
        "seventeen",
        "eighteen",
        "nineteen",
        "twenty",
        "thirty",
        "forty",
        "fifty",
        "sixty",
        "seventy",
        "eighty",
        "ninety",
        "hundred",
        "thousand",
    ]
)
_PRONOUNS = dict.fromkeys(("she", "they"), "he") | dict.fromkeys(("her", "him", "hers", "their", "them"), "his")
_OPENING = frozenset(  # words that begin a sentence and are no names
    [
        "a",
        "after",
        "an",
        "at",
        "each",
        "every",
        "for",
        "he",
        "her",
        "his",
        "how",
        "i",
        "if",
        "in",
        "on",
        "she",
        "the",
        "their",
        "there",
        "they",
        "what",
        "when",
        "which",
    ]
)


def template_of(question: str) -> str:
    """The text that all questions of one template have in common."""
    words = _WORD.findall(question)
    if len(words) < LEAST_WORDS:
        return question
    return " ".join(map(_word_class, words))


def _word_class(word: str) -> str:
    small = word.casefold()
    if word[0].isdigit() or small in _NUMBERS:
        return "0"
    if word[0].isupper() and small not in _OPENING:
        return "Name"
    return _PRONOUNS.get(small, small)


def question_templates(questions: Sequence[str]) -> list[str]:
    """The template of each question, or the question itself if there are too few templates."""
    templates = [template_of(question) for question in questions]
    return templates if len(set(templates)) >= LEAST else list(questions)
