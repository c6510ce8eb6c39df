"""How a word problem is put into English: nouns and paraphrase families.

A family phrases every kind of fact and the question. Every noun is one common plural word with a space before it
(no sentence starts with a noun), so that a tokenizer sees the same token in problem and solution. Every sentence says
which side is the target: ``{t}`` is the quantity being defined, ``{x}`` and ``{y}`` are known, ``{c}`` is a number.

Left out on purpose: articles that depend on the noun, singular forms, pronouns, and anything that needs knowledge of
the world.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotrain.core.errors import UnknownName

if TYPE_CHECKING:
    from cotrain.data.word_problems.fact import Fact

NOUNS: tuple[str, ...] = (
    *("apples", "pears", "plums", "grapes", "lemons", "melons", "nuts", "eggs", "cakes", "pies"),
    *("books", "pens", "cups", "plates", "spoons", "forks", "boxes", "bags", "coins", "stamps"),
    *("shells", "stones", "bricks", "chairs", "lamps", "clocks", "keys", "rings", "hats", "shoes"),
    *("dogs", "cats", "birds", "horses", "ducks", "roses", "stars", "boats", "kites", "drums"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One way of saying things; each field is a sentence."""

    name: str
    given: str  # {t} is the number {c}
    plus: str  # t = x + c
    minus: str  # t = x - c
    times: str  # t = x * c
    sum: str  # t = x + y
    difference: str  # t = x - y
    question: str  # asks for {t}


PLAIN = Family(
    name="plain",
    given="There are {c} {t}.",
    plus="There are {c} more {t} than {x}.",
    minus="There are {c} fewer {t} than {x}.",
    times="There are {c} times as many {t} as {x}.",
    sum="There are as many {t} as {x} and {y} together.",
    difference="There are as many {t} as {x} minus {y}.",
    question="How many {t} are there?",
)
NUMBER = Family(
    name="number",
    given="We know of {c} {t}.",
    plus="The number of {t} is {c} more than that of {x}.",
    minus="The number of {t} is {c} less than that of {x}.",
    times="The number of {t} is {c} times that of {x}.",
    sum="The number of {t} is the sum of {x} and {y}.",
    difference="The number of {t} is the {x} minus the {y}.",
    question="What is the number of {t}?",
)
RECIPE = Family(
    name="recipe",
    given="Start with {c} {t}.",
    plus="Add {c} to the {x} to get the {t}.",
    minus="Take {c} from the {x} to get the {t}.",
    times="Multiply the {x} by {c} to get the {t}.",
    sum="Add the {x} and the {y} to get the {t}.",
    difference="Take the {y} from the {x} to get the {t}.",
    question="How many {t} do we get?",
)
OWNER = Family(
    name="owner",
    given="Mia has {c} {t}.",
    plus="Mia has as many {t} as {x} plus {c}.",
    minus="Mia has as many {t} as {x} minus {c}.",
    times="Mia has as many {t} as {x} times {c}.",
    sum="Mia has as many {t} as {x} plus {y}.",
    difference="Mia has as many {t} as {x} minus {y}.",
    question="How many {t} does Mia have?",
)
SURVEY = Family(
    name="survey",
    given="We counted {c} {t}.",
    plus="The {t} outnumber the {x} by {c}.",
    minus="The {t} fall short of the {x} by {c}.",
    times="The {t} are {c} times as many as the {x}.",
    sum="The {t} equal the {x} and the {y} combined.",
    difference="The {t} equal the {x} less the {y}.",
    question="How many {t} did we count?",
)
COMPARE = Family(
    name="compare",
    given="Here are {c} {t}.",
    plus="Compared with the {x}, there are {c} more {t}.",
    minus="Compared with the {x}, there are {c} fewer {t}.",
    times="Compared with the {x}, there are {c} times as many {t}.",
    sum="Together, the {x} and the {y} match the {t}.",
    difference="Subtract the {y} from the {x} to find the {t}.",
    question="Tell me the number of {t}.",
)
LEDGER = Family(
    name="ledger",
    given="We have {c} {t}.",
    plus="For the {t}, take the {x} plus {c}.",
    minus="For the {t}, take the {x} minus {c}.",
    times="For the {t}, take the {x} times {c}.",
    sum="For the {t}, take the {x} plus the {y}.",
    difference="For the {t}, take the {x} minus the {y}.",
    question="What is the count of {t}?",
)

FAMILIES: dict[str, Family] = {f.name: f for f in (PLAIN, NUMBER, RECIPE, OWNER, SURVEY)}  # in distribution
UNSEEN: dict[str, Family] = {f.name: f for f in (COMPARE, LEDGER)}  # only in the split "ood_template"
EVERY: dict[str, Family] = FAMILIES | UNSEEN

MODULUS = "All counts are modulo {m}."


def family_named(name: str) -> Family:
    """The family of that name, seen or unseen; raises UnknownName."""
    try:
        return EVERY[name]
    except KeyError:
        raise UnknownName("wording family", name, EVERY) from None


def fact_sentence(style: Family, fact: Fact) -> str:
    """One fact in one sentence."""
    template: str = getattr(style, fact.kind)
    return template.format(t=fact.target, x=fact.left, y=fact.right, c=fact.right)


def render_problem(style: Family, facts: Iterable[Fact], question: str, modulus: int | None) -> str:
    """The whole problem: the modulus if there is one, the facts in reading order, the question."""
    sentences = [] if modulus is None else [MODULUS.format(m=modulus)]
    sentences += [fact_sentence(style, fact) for fact in facts]
    sentences.append(style.question.format(t=question))
    return " ".join(sentences)
