"""Drawing and wording of problems, against an independent reader of the English text."""

from __future__ import annotations

import re

import pytest

from cotrain.core.seeding import rng_of
from cotrain.data.word_problems import wording
from cotrain.data.word_problems.problem import OPERATOR, Fact, Problem, assemble_problem, draw_problem
from tests.sentences import refuses

FAMILY_NAMES = [*wording.FAMILIES, *wording.UNSEEN]
KINDS = ("given", *OPERATOR)


def fruit(family: str = "plain", modulus: int | None = None) -> Problem:
    facts = (
        Fact(target="plums", kind="difference", left="pears", right="apples"),
        Fact(target="apples", kind="given", right=12),
        Fact(target="pears", kind="plus", left="apples", right=4),
        Fact(target="nuts", kind="given", right=3),
        Fact(target="eggs", kind="times", left="plums", right=3),
        Fact(target="pies", kind="minus", left="nuts", right=2),
        Fact(target="cups", kind="sum", left="eggs", right="pears"),
    )
    return assemble_problem(facts, "cups", family=family, modulus=modulus)


def draws(count: int, **settings) -> list[Problem]:
    names = list(wording.FAMILIES)
    return [
        draw_problem(rng_of("draws", i), 1 + i % 10, family=names[i % len(names)], **settings) for i in range(count)
    ]


def read_back(problem: Problem) -> tuple[list[tuple[str, str, str, str]], str]:
    """A slow reader: match each sentence against all templates of the family; exactly one may fit."""
    style = wording.family_named(problem.family)
    holes = {"t": "[a-z]+", "x": "[a-z]+", "y": "[a-z]+", "c": "[0-9]+"}
    patterns = {}
    for kind in (*KINDS, "question"):
        pattern = re.escape(getattr(style, kind))
        for hole, inside in holes.items():
            pattern = pattern.replace(r"\{" + hole + r"\}", f"(?P<{hole}>{inside})")
        patterns[kind] = re.compile(pattern)
    facts, question = [], ""
    sentences = re.findall(r"[^.?]+[.?]", problem.text)
    if problem.modulus is not None:
        assert sentences.pop(0).strip() == f"All counts are modulo {problem.modulus}."
    for sentence in sentences:
        fits = {kind: m.groupdict() for kind, p in patterns.items() if (m := p.fullmatch(sentence.strip()))}
        fits = {k: g for k, g in fits.items() if all(v in wording.NOUNS for name, v in g.items() if name != "c")}
        assert len(fits) == 1, (sentence, fits)
        (kind, got), *_ = fits.items()
        if kind == "question":
            question = got["t"]
        else:
            facts.append((got["t"], kind, got.get("x", ""), got.get("y", got.get("c", ""))))
    return facts, question


def evaluate(facts: list[tuple[str, str, str, str]], noun: str, modulus: int | None) -> int:
    """A slow reference: recursion over the facts as read from the text."""
    (_, kind, left, right), *_ = [fact for fact in facts if fact[0] == noun]
    if kind == "given":
        return int(right)
    a = evaluate(facts, left, modulus)
    b = int(right) if right.isdigit() else evaluate(facts, right, modulus)
    value = {"plus": a + b, "minus": a - b, "times": a * b, "sum": a + b, "difference": a - b}[kind]
    return value if modulus is None else value % modulus


def test_a_problem_worked_out_by_hand():
    problem = fruit()
    assert problem.text == (
        "There are as many plums as pears minus apples. There are 12 apples. There are 4 more pears than apples. "
        "There are 3 nuts. There are 3 times as many eggs as plums. There are 2 fewer pies than nuts. "
        "There are as many cups as eggs and pears together. How many cups are there?"
    )
    assert problem.needed == ("pears", "plums", "eggs", "cups")  # pies are not needed
    assert problem.answer == 28
    assert problem.solution == (
        "<step> pears= apples+4=12+4=16 pears</step><step> plums= pears- apples=16-12=4 plums</step>"
        "<step> eggs= plums*3=4*3=12 eggs</step><step> cups= eggs+ pears=12+16=28 cups</step><answer>28</answer>"
    )


def test_modulus_reduces_every_result():
    problem = fruit(modulus=13)
    assert problem.values["pears"] == 3 and problem.values["plums"] == 4  # 16 mod 13; 3 - 12 = -9 = 4 mod 13
    assert problem.answer == (12 + 3) % 13
    assert problem.text.startswith("All counts are modulo 13. ")


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_every_family_reads_back_to_the_same_facts(name: str):
    problem = fruit(family=name)
    facts, question = read_back(problem)
    assert facts == [(f.target, f.kind, f.left, str(f.right)) for f in problem.facts]
    assert question == "cups"
    assert all(len(sentence.split()) <= 11 for sentence in re.split(r"[.?]", problem.text))


def test_nouns_are_unlike_each_other_and_unlike_the_wording():
    assert len(set(wording.NOUNS)) == 40
    said = " ".join(getattr(f, kind) for f in wording.EVERY.values() for kind in (*KINDS, "question")) + wording.MODULUS
    assert not set(re.findall("[a-z]+", said.lower())) & set(wording.NOUNS)
    templates = [getattr(f, kind) for f in wording.EVERY.values() for kind in (*KINDS, "question")]
    assert all(re.search(r"(?<! )\{[txy]\}", template) is None for template in templates)  # a space before each noun


@pytest.mark.whole
def test_drawn_problems_have_one_answer_and_the_asked_number_of_steps():
    for i, problem in enumerate(draws(400)):
        facts, question = read_back(problem)
        nouns = [fact[0] for fact in facts]
        assert len(set(nouns)) == len(nouns)
        assert problem.question == question
        assert evaluate(facts, question, None) == problem.answer
        assert len(problem.needed) == 1 + i % 10 and problem.needed[-1] == question
        assert all(1 <= value <= 99 for value in problem.values.values())


def test_every_needed_quantity_is_used_and_unneeded_facts_are_few():
    for problem in draws(300, distractors=(1, 2)):
        used = {
            side for noun in problem.needed for side in (problem.relations[noun].left, problem.relations[noun].right)
        }
        assert set(problem.needed[:-1]) <= used
        idle = [fact for fact in problem.facts if fact.target not in used and fact.target not in problem.needed]
        assert len(idle) <= 2
    unneeded = [len(p.relations) - len(p.needed) for p in draws(300, distractors=(1, 2))]
    assert 0 < sum(unneeded) < 90


@pytest.mark.parametrize("modulus", [5, 10, 97])
def test_modular_problems(modulus: int):
    for problem in draws(60, modulus=modulus):
        facts, question = read_back(problem)
        assert evaluate(facts, question, modulus) == problem.answer
        assert all(0 <= value < modulus for value in problem.values.values())


def test_a_small_range_is_kept():
    assert all(max(p.values.values()) <= 20 for p in draws(60, max_value=20))


def test_order_of_facts():
    def in_order(problem: Problem) -> bool:
        seen: set[str] = set()
        for fact in problem.facts:
            operands = {side for side in (fact.left, fact.right) if isinstance(side, str) and side}
            if not operands <= seen:
                return False
            seen.add(fact.target)
        return True

    assert all(in_order(p) for p in draws(200, shuffle=0.0))
    assert sum(in_order(p) for p in draws(200, shuffle=1.0)) < 80  # those of one or two steps may still be


def test_cancelling_motif_makes_the_answer_deaf_to_one_quantity():
    found = 0
    for i in range(40):
        problem = draw_problem(rng_of("cancel", i), 5, family="plain", cancel=1.0, distractors=(0, 0))
        for noun in problem.needed:
            z = problem.relations[noun]
            if z.kind == "difference" and problem.relations.get(z.left, z).kind == "sum":
                u = problem.relations[z.left]
                found += u.right == z.right and problem.values[noun] == problem.values[u.left]
    assert found >= 30
    assert draw_problem(
        rng_of("short"), 2, family="plain", cancel=1.0
    ).needed  # too short for the motif: drawn without it


def test_assemble_refuses_what_is_no_problem():
    apples = Fact(target="apples", kind="given", right=2)
    pears = Fact(target="pears", kind="plus", left="apples", right=4)
    with refuses("E_WORD_PROBLEM_NOUNS"):
        assemble_problem((apples, pears, Fact(target="pears", kind="given", right=4)), "pears", family="plain")
    with refuses("E_WORD_PROBLEM_QUESTION", names="'apples'"):
        assemble_problem((apples, pears), "apples", family="plain")
    with refuses("E_WORD_PROBLEM_CIRCLE", names="'pears'"):
        assemble_problem((pears,), "pears", family="plain")
    with refuses("E_UNKNOWN_WORDING_FAMILY", names="'plain'"):
        assemble_problem((apples, pears), "pears", family="plane")
