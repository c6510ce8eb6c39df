"""Training texts: their formats, what their verdicts are worth, and that they stay inside the training buckets."""

from __future__ import annotations

import operator
import re
import time

import pytest

from cotrain.core.errors import ConfigError
from cotrain.tasks.words import WordProblems, corpus
from cotrain.tasks.words.corrupt import Habits
from cotrain.tasks.words.oracle import read_steps
from cotrain.tasks.words.problem import Fact, assemble_problem
from cotrain.tasks.words.source import text_bucket
from cotrain.text.parsers import Solution, tagged_solution
from cotrain.text.role_parsers import Review, step_verdicts

SOURCE = WordProblems()
DOCUMENTS = [corpus.pretraining_text(SOURCE, 0, i) for i in range(1500)]
PROBLEM = assemble_problem(
    (
        Fact(target="apples", kind="given", right=12),
        Fact(target="pears", kind="plus", left="apples", right=4),
        Fact(target="plums", kind="difference", left="pears", right="apples"),
        Fact(target="pies", kind="minus", left="apples", right=2),
    ),
    "plums",
    family="plain",
)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def reviews(start: corpus.Start, count: int) -> list[tuple[str, Solution, str]]:
    """(problem text, solution, review text) of review conversations."""
    found = []
    for i in range(count):
        user, assistant = corpus.review_conversation(SOURCE, Habits(), start, 3, i)
        assert (user["role"], assistant["role"]) == ("user", "assistant")
        problem, solution, mark = user["content"].split("\n")
        assert mark == "Review:"
        parsed = tagged_solution(solution)
        assert isinstance(parsed, Solution)
        found.append((problem, parsed, assistant["content"]))
    return found


def test_review_text_by_hand():
    steps = (" pears= apples+4=12+4=16 pears", " plums= pears- apples=16-12=5 plums")
    assert corpus.review_text(PROBLEM, steps, "5", (True, False), False) == (
        "<step> pears= apples+4=12+4=16|16 CORRECT</step><step> plums= pears- apples=16-12=4|5 INCORRECT</step>"
        "<final>INCORRECT</final>"
    )
    with pytest.raises(ConfigError, match="one per step"):
        corpus.review_text(PROBLEM, steps, "5", (True,), False)


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
    verdicts = tuple(not reading.reason for reading in read_steps(PROBLEM, steps))
    text = corpus.review_text(PROBLEM, steps, "4", verdicts, False)
    written = re.findall("<step>(.*?) (CORRECT|INCORRECT)</step>", text)
    assert [word == "CORRECT" for _, word in written] == list(verdicts)
    assert all(block in ("", said) for block, (said, _) in zip(blocks, written, strict=True))
    assert isinstance(step_verdicts(text, len(steps)), Review)


def test_pretraining_kinds_and_shares():
    solved = [d for d in DOCUMENTS if "\nSolve:" in d]
    checked = [d for d in DOCUMENTS if "\nCheck:" in d]
    bare = [d for d in DOCUMENTS if "\n" not in d]
    assert len(solved) + len(checked) + len(bare) == len(DOCUMENTS)
    assert 0.41 < len(solved) / len(DOCUMENTS) < 0.49 and 0.41 < len(checked) / len(DOCUMENTS) < 0.49
    true = [d for d in checked if d.endswith("<final>true</final>")]
    assert all(d in true or d.endswith("<final>false</final>") for d in checked)
    assert 0.4 < len(true) / len(checked) < 0.6
    assert all("false</step>" not in d for d in true)
    assert not any(word in d for d in DOCUMENTS for word in ("CORRECT", "Review:"))
    assert {d.count("<step>") for d in solved} == set(range(1, 9))
    assert all(isinstance(tagged_solution(d.partition("Solve:")[2]), Solution) for d in solved)


def test_pretraining_problems_are_from_the_training_buckets():
    assert all(text_bucket(d.partition("\n")[0]) < 90 for d in DOCUMENTS if "\n" in d)
    conversations = [corpus.solver_conversation(SOURCE, Habits(), 0, i) for i in range(200)]
    assert all(text_bucket(c[0]["content"].removesuffix("\nSolve:")) < 90 for c in conversations)
    assert all(text_bucket(problem) < 90 for problem, _, _ in reviews("clean", 100))


def test_checks_agree_with_the_arithmetic_in_them():
    """An independent check: what was worked out is right, and a claim is called true when it says the same."""
    seen = unneeded = 0
    for document in DOCUMENTS:
        for numbers, claim, word in re.findall(r"=([^=|]+=-?\d+)\|(-?\d+) (true|false)</step>", document):
            left, sign, right, result = re.fullmatch(r"(-?\d+)([-+*])(-?\d+)=(-?\d+)", numbers).groups()
            assert OPERATORS[sign](int(left), int(right)) == int(result)
            assert word == "false" or result == claim
            unneeded += word == "false" and result == claim  # a right result that the question has no use for
            seen += 1
    assert seen > 2000 and unneeded < seen / 500


@pytest.mark.parametrize("modulus", [None, 10])
def test_bare_arithmetic_is_truly_true_and_false(modulus: int | None):
    source = WordProblems(modulus=modulus)
    bare = [d for i in range(150) if "\n" not in (d := corpus.pretraining_text(source, 1, i))]
    assert bare
    words = []
    for document in bare:
        statements = re.findall(r"(-?\d+)([-+*])(\d+)=(-?\d+) (true|false)", document)
        assert " ".join(f"{a}{o}{b}={c} {w}" for a, o, b, c, w in statements) == document
        for a, sign, b, c, word in statements:
            value = OPERATORS[sign](int(a), int(b))
            assert ((value if modulus is None else value % modulus) == int(c)) == (word == "true")
            words.append(word)
    assert 0.4 < words.count("true") / len(words) < 0.6


def test_texts_are_addressed():
    assert corpus.pretraining_text(SOURCE, 0, 5) == DOCUMENTS[5] != corpus.pretraining_text(SOURCE, 1, 5)
    assert len(set(DOCUMENTS)) == len(DOCUMENTS)
    one = corpus.solver_conversation(SOURCE, Habits(), 4, 2)
    assert one == corpus.solver_conversation(WordProblems(), Habits(), 4, 2)
    assert [m["role"] for m in one] == ["user", "assistant"] and one[0]["content"].endswith("?\nSolve:")
    assert isinstance(tagged_solution(one[1]["content"]), Solution)


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
    with pytest.raises(ConfigError, match="review start"):
        corpus.review_conversation(SOURCE, Habits(), start, 0, 0)


def test_the_final_verdict_wants_the_quantity_that_was_asked_for():
    steps = (" pears= apples+4=12+4=16 pears",)
    readings = read_steps(PROBLEM, steps)
    assert corpus.final_verdict(PROBLEM, readings, (True,), "16") is False  # right as far as it goes
    done = read_steps(PROBLEM, PROBLEM.steps)
    assert corpus.final_verdict(PROBLEM, done, (True, True), "4") is True
    assert corpus.final_verdict(PROBLEM, done, (True, True), "5") is False
    assert corpus.final_verdict(PROBLEM, done, (False, True), "4") is False
    assert corpus.final_verdict(PROBLEM, (), (), "4") is False


def test_speed():
    def rate() -> float:
        start = time.process_time()
        for i in range(400):
            corpus.pretraining_text(SOURCE, 2, i)
        return 400 / (time.process_time() - start)

    assert any(rate() > 1500 for _ in range(4))  # the core may be shared


@pytest.mark.parametrize("brief", [False, True])
def test_rates_say_whether_the_answer_is_the_reference(brief):
    said = dict.fromkeys(corpus.RATED, 0)
    for i in range(200):
        user, assistant = corpus.rate_conversation(SOURCE, Habits(), 3, i, brief=brief)
        shown, reference = user["content"].split("\nReference: ")
        answer = re.search(r"<answer>(.*)</answer>", shown)[1]
        assert reference.endswith("\nRate:") and ("<step>" in shown) != brief
        assert assistant["content"] == corpus.RATED[answer != reference.removesuffix("\nRate:")]
        said[assistant["content"]] += 1
    assert min(said.values()) > 60  # neither word is rare
