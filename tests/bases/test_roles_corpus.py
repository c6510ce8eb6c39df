"""Texts for further roles: their formats, that they obey what they are told, and how much their words are worth."""

from __future__ import annotations

import random
import re

import pytest

from bases import roles_corpus as corpus
from cotrain.data.word_problems import WordProblems, search_corpus
from cotrain.data.word_problems.corrupt import Attempt, Habits, clean_attempt, with_errors
from cotrain.data.word_problems.oracle import grade_steps
from cotrain.data.word_problems.problem import Fact, assemble_problem
from cotrain.data.word_problems.source import study_problems, text_bucket
from cotrain.data.word_problems.wording import FAMILIES, Family
from cotrain.formats.role_replies import Review, step_verdicts
from cotrain.formats.solutions import Solution, tagged_solution

SOURCE = study_problems((2, 5))
HABITS = Habits()
CLEAN, NOISY = "clean", ("noisy", 0.25)
MAKERS = {
    "refine": lambda i: corpus.refine_conversation(SOURCE, HABITS, NOISY, 0, i),
    "meta": lambda i: corpus.meta_conversation(SOURCE, HABITS, NOISY, 0, i),
    "self check": lambda i: corpus.self_check_conversation(SOURCE, HABITS, NOISY, 0, i),
    "plan": lambda i: corpus.plan_conversation(SOURCE, 0, i),
    "digest": lambda i: corpus.digest_conversation(SOURCE, 0.1, 0, i),
    "bin": lambda i: corpus.bin_conversation(SOURCE, 0.1, 0, i),
    "brief bin": lambda i: corpus.bin_conversation(SOURCE, 0.1, 0, i, brief=True),
    "gathered": lambda i: corpus.gathered_conversation(SOURCE, HABITS, 0, i),
}
PROBLEM = assemble_problem(
    (
        Fact(target="apples", kind="given", right=12),
        Fact(target="pears", kind="plus", left="apples", right=4),
        Fact(target="plums", kind="times", left="pears", right=2),
        Fact(target="nuts", kind="minus", left="plums", right=5),
    ),
    "nuts",
    family="plain",
)
PEARS, PLUMS, NUTS = PROBLEM.steps  # 16, 32, 27


def attempt(*steps: str, answer: str) -> Attempt:
    return Attempt(steps=steps, answer=answer, judgement=grade_steps(PROBLEM, steps))


def split(text: str) -> tuple[list[str], str]:
    *lines, mark = text.split("\n")
    return lines, mark


@pytest.mark.whole
@pytest.mark.parametrize("name", MAKERS)
def test_texts_are_addressed_and_differ(name):
    made = [MAKERS[name](i) for i in range(40)]
    assert made == [MAKERS[name](i) for i in range(40)]
    assert len({c[0]["content"] + c[1]["content"] for c in made}) > 30
    assert all([m["role"] for m in c] == ["user", "assistant"] for c in made)
    if name not in ("plan", "digest", "bin", "brief bin"):
        assert all(text_bucket(c[0]["content"].split("\n")[0]) < 90 for c in made)


def test_a_revision_by_hand():
    wrong = attempt(
        " pears= apples+4=12+4=26 pears", " plums= pears*2=26*2=52 plums", " nuts= plums-5=52-5=47 nuts", answer="47"
    )
    assert wrong.judgement.ok == (False, True, True)
    everything = "".join(f"<step>{s}</step>" for s in (PEARS, PLUMS, NUTS)) + "<answer>27</answer>"
    assert corpus.revise_solution(PROBLEM, wrong, (False, True, True), False) == everything
    assert (
        corpus.revise_solution(PROBLEM, wrong, (True, True, True), True) == wrong.text
    )  # what is called right is copied
    late = corpus.revise_solution(
        PROBLEM, wrong, (True, False, True), False
    )  # redone from the wrong number, so nothing changes
    assert late == wrong.text


def test_a_revision_drops_and_adds_steps():
    short = attempt(PEARS, PLUMS, answer="32")
    assert corpus.revise_solution(PROBLEM, short, (True, True), False) == PROBLEM.solution
    assert corpus.revise_solution(PROBLEM, short, (True, True), True) == short.text
    skipped = attempt(PEARS, " nuts= plums-5=16-5=11 nuts", answer="11")
    assert (
        corpus.revise_solution(PROBLEM, skipped, (True, False), False) == PROBLEM.solution
    )  # the operand is worked out first
    twice = attempt(PEARS, PEARS, PLUMS, NUTS, answer="27")
    assert twice.judgement.ok == (True, False, True, True)
    assert corpus.revise_solution(PROBLEM, twice, twice.judgement.ok, False) == PROBLEM.solution


@pytest.mark.whole
def test_right_reviews_make_every_solution_right():
    rng = random.Random(3)
    for i in range(300):
        problem = SOURCE.problem("train", i)
        for wrong in (clean_attempt(problem), with_errors(problem, 2, Habits(structure=0.3), rng)):
            right = all(wrong.judgement.ok) and wrong.answer == str(problem.answer)
            text = corpus.revise_solution(problem, wrong, wrong.judgement.ok, right)
            said = tagged_solution(text)
            assert isinstance(said, Solution) and said.answer == str(problem.answer)
            assert all(grade_steps(problem, tuple(s.text for s in said.steps)).ok)
            assert not right or text == wrong.text


def test_refine_conversations_parse():
    right = 0
    for i in range(200):
        user, assistant = corpus.refine_conversation(SOURCE, HABITS, CLEAN, 1, i)
        (_, solution, review), mark = split(user["content"])
        given, said = tagged_solution(solution), tagged_solution(assistant["content"])
        assert mark == "Revise:" and isinstance(given, Solution) and isinstance(said, Solution)
        verdict = step_verdicts(review, len(given.steps))
        assert isinstance(verdict, Review)
        assert not verdict.final or assistant["content"] == solution
        right += verdict.final
    assert 80 < right < 120


@pytest.mark.whole
def test_meta_verdicts_say_whether_every_verdict_agrees_with_its_derivation():
    said = []
    for i in range(300):
        user, assistant = corpus.meta_conversation(SOURCE, Habits(structure=0.0), CLEAN, 1, i)
        (_, _, review), mark = split(user["content"])
        blocks = re.findall(r"<step>(.*?)\|(.*?) (\w+)</step>", review)
        sound = all((derived.rpartition("=")[2] == claim) == (word == "CORRECT") for derived, claim, word in blocks)
        assert mark == "Judge:" and assistant["content"] == f"<final>{'CORRECT' if sound else 'INCORRECT'}</final>"
        said.append(sound)
    assert 120 < sum(said) < 180
    noisy = [corpus.meta_conversation(SOURCE, HABITS, NOISY, 1, i)[1] for i in range(300)]
    right = [corpus.meta_conversation(SOURCE, HABITS, CLEAN, 1, i)[1] for i in range(300)]
    assert 0.19 < sum(a != b for a, b in zip(noisy, right, strict=True)) / 300 < 0.31


def test_self_checks_are_a_solution_and_its_review():
    for i in range(100):
        user, assistant = corpus.self_check_conversation(SOURCE, HABITS, CLEAN, 1, i)
        solution, end, review = assistant["content"].partition("</answer>")
        said = tagged_solution(solution + end)
        assert user["content"].endswith("?\nSolve and check:") and isinstance(said, Solution)
        assert isinstance(step_verdicts(review, len(said.steps)), Review)


def test_plans_search_for_what_is_asked():
    user, assistant = corpus.plan_conversation(SOURCE, 1, 4)
    noun = re.fullmatch("<search> ([a-z]+)</search>", assistant["content"])[1]
    assert user["content"].count("\n") == 1 and f" {noun}" in user["content"] and user["content"].endswith("\nPlan:")


def test_digests_copy_what_matters():
    empty = 0
    for i in range(200):
        user, assistant = corpus.digest_conversation(SOURCE, 0.0, 1, i)
        (*documents, purpose), mark = split(user["content"])
        shown = [s for d in documents for s in search_corpus.split_sentences(d)]
        digest = search_corpus.split_sentences(assistant["content"])
        empty += assistant["content"] == corpus.NOTHING
        assert mark == "Digest:"
        if assistant["content"] == corpus.NOTHING:
            continue
        assert list(digest) == [s for s in shown if s in digest] and len(digest) <= len(shown)
        if i % 2:
            nouns = set(re.findall("[a-z]{3,}", purpose)) - {"about"}
            assert set(digest) == {s for s in shown if search_corpus.long_words(s) & nouns}
    assert 5 < empty < 40


def says(style: Family, text: str) -> bool:
    """Whether this wording puts any fact so."""
    forms = (style.given, style.plus, style.minus, style.times, style.sum, style.difference)
    return any(re.fullmatch(re.sub(r"\{[txyc]\}", "[a-z0-9]+", form), text) for form in forms)


@pytest.mark.parametrize("brief", [True, False])
def test_bins_are_digested_for_the_question(brief):
    counts = []
    for i in range(200):
        user, assistant = corpus.bin_conversation(SOURCE, 0.0, 1, i, brief=brief)
        (*documents, question), mark = split(user["content"])
        shown = [s for d in documents for s in search_corpus.split_sentences(d)]
        digest = (
            [] if assistant["content"] == corpus.NOTHING else list(search_corpus.split_sentences(assistant["content"]))
        )
        (style,) = (s for s in FAMILIES.values() if question in {s.question.format(t=noun) for noun in corpus.NOUNS})
        counts.append((len(documents), bool(digest)))
        assert mark == "Digest:" and digest == [s for s in shown if says(style, s)]
        assert len(documents) == 1 or sum(map(len, documents)) <= max(corpus.BINS)
    assert {n for n, _ in counts} == {1} if brief else max(n for n, _ in counts) > 2
    assert 2 < sum(not some for _, some in counts) < 60


def test_a_search_scatters_all_facts_among_other_things():
    for i in range(100):
        problem = WordProblems().problem("train", i)
        facts, question = search_corpus.facts_and_question(problem.text)
        assert f"{' '.join(facts)} {question}" == problem.text
        found = search_corpus.search_documents(problem.text, f" {problem.question}", random.Random(i), noise=1.0)
        said = [s for d in found for s in search_corpus.split_sentences(d)]
        assert sorted(s for s in said if s in facts) == sorted(facts) and len(said) == 2 * len(facts)
        others = " ".join(s for s in said if s not in facts)
        assert not search_corpus.long_words(others) & search_corpus.long_words(problem.text) & set(corpus.NOUNS)
        assert all(2 <= len(search_corpus.split_sentences(d)) <= 4 for d in found[:-1])
        elsewhere = " ".join(search_corpus.search_documents(problem.text, "unicorns", random.Random(i)))
        assert elsewhere and not any(fact in elsewhere for fact in facts)
        assert search_corpus.search_documents(problem.text, " ", random.Random(i)) == ()


def test_gathered_problems_are_the_same_in_another_order():
    user, assistant = corpus.gathered_conversation(SOURCE, Habits(random=0.0, systematic=0.0), 1, 2)
    said = tagged_solution(assistant["content"])
    assert user["content"].endswith("\nSolve:") and isinstance(said, Solution)
