from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_texts import GOOD, READERS, grm, harmless, reason, soup, words

from cotrain.formats import solutions
from cotrain.formats.preferences import read_grm, read_rmr1, read_thinkrm
from cotrain.formats.solutions import MAX_CHARS
from cotrain.formats.verdicts import Abstention, Verdict, read_genprm, read_genrm, read_score
from tests.verdict_writers import write_genprm, write_genrm, write_score

# -- GenRM


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("Yes", True),
        (" No\n", False),
        ("3 + 4 = 7.\n<verdict>Yes</verdict>\n", True),
        ("It says Yes, but no.\n<verdict> \\boxed{No} </verdict>", False),
        ("Yes\nYes\nI cannot; it is not.\n<verdict>No</verdict>", False),
        ("<think>is it <verdict>Yes</verdict>?</think>\nNo", False),
        ("Let me <verdict>see</verdict></think> Well. <verdict>Yes</verdict>", True),
    ],
)
def test_genrm(text, final):
    parsed = read_genrm(text)
    assert isinstance(parsed, Verdict)
    assert (parsed.ok, parsed.final, parsed.score, parsed.steps) == (True, final, float(final), ())
    assert words(text, parsed) == ["Yes" if final else "No"]


@pytest.mark.parametrize(
    ("text", "why", "score"),
    [
        ("", "no verdict", 0.2),
        ("yes", "no verdict", 0.2),
        ("The answer is right.\nYes", "no verdict", 0.2),
        ("\\boxed{Yes}", "no verdict", 0.2),
        ("Yes No", "no verdict", 0.2),
        ("<verdict>not Yes</verdict>", "bad verdict", 0.2),
        ("<verdict>Yes or No</verdict>", "bad verdict", 0.2),
        ("<verdict>yes</verdict>", "bad verdict", 0.2),
        ("<verdict></verdict>", "bad verdict", 0.2),
        ("not <verdict>Yes</verdict>", "verdict taken back", 0.2),
        ("It isn’t **<verdict>Yes</verdict>", "verdict taken back", 0.2),
        ("<verdict>Yes</verdict> or <verdict>No</verdict>", "several verdicts", 0.2),
        ("<verdict>Yes</verdict><verdict>Yes</verdict>", "several verdicts", 0.2),
        ("<verdict>Yes</verdict> Or is it?", "text after verdict", 0.6),
        ("</verdict><verdict>Yes</verdict>", "stray tag", 0.6),
        ("<verdict>Yes", "unclosed verdict", 0.2),
        ("<verdict><verdict>Yes</verdict>", "unclosed verdict", 0.2),
        ("<think>hm. <verdict>Yes</verdict>", "unclosed think", 0.2),
        ("<think>a</think></think>Yes", "several thoughts", 0.2),
        ("</think><think>Yes", "several thoughts", 0.2),
        ("No. <think>a</think>Yes", "text before thought", 0.6),
        ("Yes" + " " * MAX_CHARS, "too long", 0.0),
    ],
)
def test_what_is_no_verdict(text, why, score):
    parsed = read_genrm(text)
    assert (reason(parsed), parsed.format_score) == (why, score)


@given(rationale=harmless, final=st.booleans())
def test_written_verdicts_are_read_back(rationale, final):
    text = write_genrm(rationale, final)
    parsed = read_genrm(text)
    assert isinstance(parsed, Verdict) and parsed.final == final
    assert words(text, parsed) == [text.strip()] if not rationale else len(parsed.spans) == 1


# -- GenPRM


def test_genprm():
    text = (
        "<think>two steps</think><analyze>\nfine: <step>1+1=2</step> Yes\n</analyze>\n<output>\n**Judgement**: "
        "$\\boxed{Yes}$\n</output>\n<analyze>b</analyze><verify>```python\nprint(1 < 2)\n```\n[Code Output]\nTrue"
        "</verify><output>No</output>"
    )
    parsed = read_genprm(text, 2)
    assert isinstance(parsed, Verdict)
    assert (parsed.steps, parsed.final, parsed.score) == ((True, False), False, 0.0)
    assert words(text, parsed) == ["Yes", "No"]
    assert read_genprm(write_genprm(["a", "b"], [True, True]), 2).final is True


STEP = r"<analyze>a</analyze><output>\boxed{Yes}</output>"


@pytest.mark.parametrize(
    ("text", "why", "score"),
    [
        ("", "no steps", 0.0),
        (STEP, "step count", 0.2),
        (STEP * 3, "step count", 0.2),
        (STEP + r"<output>\boxed{Yes}</output>", "bad order", 0.2),
        (STEP + "<output>No</output><analyze>a</analyze>", "bad order", 0.2),
        (STEP + "<verify>v</verify><analyze>a</analyze><output>No</output>", "bad order", 0.2),
        (STEP * 2 + "<analyze>a</analyze>", "bad order", 0.2),
        (STEP + "<analyze>a</analyze><output>not Yes</output>", "bad step verdict", 0.2),
        (STEP + r"<analyze>a</analyze><output>\boxed{Yes}\boxed{No}</output>", "bad step verdict", 0.2),
        (STEP + "Wait." + STEP, "stray text", 0.6),
        (STEP * 2 + "</output>", "stray text", 0.6),
        (STEP + "<analyze>" + STEP, "unclosed analyze", 0.2),
        (STEP * 2 + " " * MAX_CHARS, "too long", 0.0),
    ],
)
def test_what_is_no_review(text, why, score):
    parsed = read_genprm(text, 2)
    assert (reason(parsed), parsed.format_score) == (why, score)


@pytest.mark.whole
@given(st.lists(st.tuples(harmless, st.booleans(), st.none() | harmless), min_size=1, max_size=5))
def test_written_reviews_are_read_back(sheet):
    steps = tuple(right for _, right, _ in sheet)
    codes = {k: code for k, (_, _, code) in enumerate(sheet) if code is not None}
    text = write_genprm([analysis for analysis, _, _ in sheet], steps, codes)
    parsed = read_genprm(text, len(steps))
    assert isinstance(parsed, Verdict)
    assert (parsed.steps, parsed.final) == (steps, all(steps))
    assert words(text, parsed) == ["Yes" if right else "No" for right in steps]
    assert not read_genprm(text, len(steps) + 1).ok


# -- a scalar


@pytest.mark.parametrize(
    ("inside", "score", "final"),
    [
        ("1", 1.0, True),
        (" 0.0 ", 0.0, False),
        (".5", 0.5, None),
        (r"\boxed{0.5}", 0.5, None),
        (r"$\boxed{1}$", 1.0, True),
    ],
)
def test_scores(inside, score, final):
    parsed = read_score(f"The bound \\boxed{{0}} is fine.\n<score>{inside}</score>")
    assert parsed == Verdict(final=final, score=score)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("so\n\\boxed{1}", "no score"),
        ("<score>0.7</score>", "bad score"),
        ("<score>1/2</score>", "bad score"),
        ("<score>0 or 1</score>", "bad score"),
        ("<score>1</score><score>1</score>", "several scores"),
        ("never <score>1</score>", "score taken back"),
        ("<score>1</score>.", "text after score"),
    ],
)
def test_what_is_no_score(text, why):
    assert reason(read_score(text)) == why


@given(evaluation=harmless, score=st.sampled_from([0.0, 0.5, 1.0]))
def test_written_scores_are_read_back(evaluation, score):
    assert read_score(write_score(evaluation, score)).score == score


def test_a_score_that_cannot_be_written():
    with pytest.raises(ValueError, match=r"0, 0\.5 or 1, not 0\.7"):
        write_score("", 0.7)


# -- all formats


def test_judges_may_decline():
    refusals = [
        read_genrm("I cannot tell.\n<verdict>Abstain</verdict>"),
        read_genprm(GOOD["genprm"].replace("No", "Abstain"), 2),
        read_score("<score>Abstain</score>"),
        read_rmr1("<answer>[[Abstain]]</answer>"),
        read_thinkrm("<think></think><answer>Abstain</answer>"),
        read_thinkrm("<think></think><answer>Abstain</answer>", graded=True),
        read_grm(grm(scores="Abstain"), 2),
    ]
    assert refusals == [Abstention()] * 7
    assert (Abstention().ok, Abstention().reason, Abstention().format_score) == (False, "refused", 0.0)
    assert reason(read_genrm("Abstain")) == "no verdict"  # a word in a sentence is no refusal


@pytest.mark.parametrize("name", READERS)
def test_the_examples_are_read_and_two_of_them_are_not(name):
    read, good = READERS[name], GOOD[name]
    assert read(good).ok
    assert not read(good + good).ok
    assert not read(good + "\n" + good).ok
    assert not read(good + " Or not.").ok
    assert reason(read(good + " " * MAX_CHARS)) == "too long"


@pytest.mark.whole
@settings(max_examples=500)
@given(text=soup)
def test_nothing_raises_and_judgements_keep_their_promises(text):
    for read in READERS.values():
        parsed = read(text)
        assert 0.0 <= parsed.format_score <= 1.0
        if not parsed.ok:
            assert isinstance(parsed, Abstention) or (parsed.reason and parsed.format_score < 1.0)
            continue
        words(text, parsed)
        assert parsed.final in (True, False, None)
        assert parsed.score is None or 0.0 <= parsed.score <= 1.0
        assert len(parsed.spans) in (0, len(parsed.steps) or 1)


UNITS = ["<", "<verdict>", "</verdict>", "<output>", "\\boxed{", "$", "[[A]]", "5,", "9% x\n", " ", "</think>", "not "]
UNITS += ["<analyze>a</analyze><output>Yes</output>", "<verdict>Yes</verdict>", "<answer>", "Yes ", "<principles>"]
FRAMES = [(name, "{}") for name in READERS]  # reader, what the units stand in
FRAMES += [("genrm", "<verdict>{}</verdict>"), ("genprm", "<analyze>a</analyze><output>{}</output>")]
FRAMES += [("rmr1", "{}<answer>[[A]]</answer>"), ("thinkrm", "{}</think><answer>A</answer>")]
FRAMES += [("grm", "<principles>{}</principles><critique></critique><scores>[1, 2]</scores>")]
FRAMES += [("grm", "<principles>1% x</principles><critique></critique><scores>[{}]</scores>")]


@pytest.mark.whole
@pytest.mark.parametrize("unit", UNITS)
def test_ten_times_the_length_takes_at_most_twenty_times_as_long(unit, monkeypatch):
    monkeypatch.setattr(solutions, "MAX_CHARS", 10_000_000)  # the scanners themselves, without the cap

    def seconds(chars: int) -> float:
        work = [(READERS[name], frame.format(unit * (chars // len(unit)))) for name, frame in FRAMES]
        times = []
        for _ in range(2):
            start = time.process_time()
            for read, text in work:
                read(text)
            times.append(time.process_time() - start)
        return min(times)

    # a core that another process takes half of slows one of the two: not each of four times
    assert any(seconds(50_000) < 20 * max(seconds(5_000), 0.005) for _ in range(4))


def test_the_length_limit_is_the_same_everywhere():
    assert all(reason(read("x" * (MAX_CHARS + 1))) == "too long" for read in READERS.values())
