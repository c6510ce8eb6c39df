"""Conversations that bases are taught: their formats, and what their verdicts are worth."""

from __future__ import annotations

import re

import pytest

from bases.words_corpus import RATED, Start, rate_conversation, review_conversation, review_text, solver_conversation
from cotrain.data.word_problems import WordProblems
from cotrain.data.word_problems.corrupt import Habits
from cotrain.data.word_problems.oracle import read_steps
from cotrain.data.word_problems.source import text_bucket
from cotrain.formats.role_replies import Review, step_verdicts
from cotrain.formats.solutions import Solution, tagged_solution
from tests.helpers import FRUIT
from tests.sentences import refuses

SOURCE = WordProblems()


def reviews(start: Start, count: int) -> list[tuple[str, Solution, str]]:
    """(problem text, solution, review text) of review conversations."""
    found = []
    for i in range(count):
        user, assistant = review_conversation(SOURCE, Habits(), start, 3, i)
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        problem, solution, mark = user["content"].split("\n")
        assert mark == "Review:"
        parsed = tagged_solution(solution)
        assert isinstance(parsed, Solution)
        found.append((problem, parsed, assistant["content"]))
    return found


def test_conversations_are_addressed_and_from_the_training_buckets():
    one = solver_conversation(SOURCE, Habits(), 4, 2)
    assert one == solver_conversation(WordProblems(), Habits(), 4, 2)
    assert [m["role"] for m in one] == ["user", "assistant"] and one[0]["content"].endswith("?\nSolve:")
    assert isinstance(tagged_solution(one[1]["content"]), Solution)
    conversations = [solver_conversation(SOURCE, Habits(), 0, i) for i in range(200)]
    assert all(text_bucket(c[0]["content"].removesuffix("\nSolve:")) < 90 for c in conversations)
    assert all(text_bucket(problem) < 90 for problem, _, _ in reviews("clean", 100))


def test_review_text_by_hand():
    steps = (" pears= apples+4=12+4=16 pears", " plums= pears- apples=16-12=5 plums")
    assert review_text(FRUIT, steps, "5", (True, False), False) == (
        "<step> pears= apples+4=12+4=16|16 CORRECT</step><step> plums= pears- apples=16-12=4|5 INCORRECT</step>"
        "<final>INCORRECT</final>"
    )
    with refuses("E_CONFIG", names=("2 steps", "1 verdicts")):
        review_text(FRUIT, steps, "5", (True,), False)


@pytest.mark.parametrize(
    ("steps", "blocks"),
    [
        (
            (" pears= apples-4=12-4=8 pears",),
            (" pears= apples+4=12+4=16|8",),
        ),  # wrong relation: the right one is derived
        ((" pears= apples+4=14+4=18 pears",), (" pears= apples+4=12+4=16|18",)),  # wrong premise
        (
            (" pears= apples+4=12+4=10 pears", " plums= pears- apples=10-12=-2 plums"),
            ("", " plums= pears- apples=10-12=-2|-2"),
        ),
        ((" plums= pears- apples=16-12=4 plums",), (" plums= pears- apples|4",)),  # pears were never worked out
        ((" pies= apples-2=12-2=10 pies",), (" pies= apples-2=12-2=10|10",)),  # unneeded
        ((" pears= apples+4=12+4=16 pears",) * 2, ("", "|16")),  # repeated
        (("oh well",), ("|",)),
        (("oh well=7",), ("|7",)),
        ((" stars= apples+4=12+4=16 stars",), ("|16",)),
    ],
)
def test_derivations_of_difficult_steps(steps: tuple[str, ...], blocks: tuple[str, ...]):
    verdicts = tuple(not reading.reason for reading in read_steps(FRUIT, steps))
    text = review_text(FRUIT, steps, "4", verdicts, False)
    written = re.findall("<step>(.*?) (CORRECT|INCORRECT)</step>", text)
    assert [word == "CORRECT" for _, word in written] == list(verdicts)
    assert all(block in ("", said) for block, (said, _) in zip(blocks, written, strict=True))
    assert isinstance(step_verdicts(text, len(steps)), Review)


@pytest.mark.whole
def test_clean_reviews_are_right():
    right = 0
    for _, solution, review in reviews("clean", 300):
        verdict = step_verdicts(review, len(solution.steps))
        assert isinstance(verdict, Review)
        blocks = re.findall(r"<step>(.*?)\|(.*?) (\w+)</step>", review)
        for (derived, claim, word), step in zip(blocks, solution.steps, strict=True):
            assert step.text.rpartition("=")[2].partition(" ")[0] == claim
            assert derived.rpartition("=")[2] == claim or word == "INCORRECT"
        right += verdict.final
        assert not verdict.final or all(verdict.steps)
    assert 120 < right < 180  # half of the reviewed solutions are right


@pytest.mark.whole
def test_format_verdicts_know_nothing_and_derivations_everything():
    known = reviews("clean", 300)
    blind = reviews("format", 300)
    agree = []
    for (_, solution, right), (_, same, coin) in zip(known, blind, strict=True):
        assert solution == same  # the start changes the verdicts alone
        a, b = step_verdicts(right, len(solution.steps)), step_verdicts(coin, len(solution.steps))
        agree += [x == y for x, y in zip((*a.steps, a.final), (*b.steps, b.final), strict=True)]
        assert re.sub("(IN)?CORRECT", "", right) == re.sub("(IN)?CORRECT", "", coin)
    assert 0.46 < sum(agree) / len(agree) < 0.54


@pytest.mark.whole
def test_noisy_verdicts_flip_at_the_rate_asked_for():
    flipped = []
    for (_, solution, right), (_, _, noisy) in zip(reviews("clean", 300), reviews(("noisy", 0.2), 300), strict=True):
        a, b = step_verdicts(right, len(solution.steps)), step_verdicts(noisy, len(solution.steps))
        flipped += [x != y for x, y in zip(a.steps, b.steps, strict=True)]
        if not all(b.steps):
            assert b.final is False
    assert 0.17 < sum(flipped) / len(flipped) < 0.23


@pytest.mark.parametrize("start", ["wild", ("noisy", 2.0), ("noisy",)])
def test_unknown_start(start):
    with refuses("E_CONFIG", names=f"review start is {start!r}"):
        review_conversation(SOURCE, Habits(), start, 0, 0)


@pytest.mark.parametrize("brief", [False, True])
def test_rates_say_whether_the_answer_is_the_reference(brief):
    said = dict.fromkeys(RATED, 0)
    for i in range(200):
        user, assistant = rate_conversation(SOURCE, Habits(), 3, i, brief=brief)
        shown, reference = user["content"].split("\nReference: ")
        answer = re.search(r"<answer>(.*)</answer>", shown)[1]
        assert reference.endswith("\nRate:") and ("<step>" in shown) != brief
        assert assistant["content"] == RATED[answer != reference.removesuffix("\nRate:")]
        said[assistant["content"]] += 1
    assert min(said.values()) > 60  # neither word is rare
