"""Turns: what a protocol says about an answer, and the trace it becomes."""

from __future__ import annotations

import math

import pytest

from cotrain.core.notes import CORRECT, FINAL, FIRST_WRONG, SCORE, STEP_OK, STEPS
from cotrain.core.seeding import Address
from cotrain.core.signals import OUTCOME, STEP, DeclaredSignals, Signal
from cotrain.core.types import Completion, Reward, Span
from cotrain.formats.solutions import tagged_solution
from cotrain.pretraining.tokenizer import train_tokenizer
from cotrain.prompts.render import Renderer
from cotrain.rollout.role import Turn
from tests.sentences import refuses

TEXT = "<step> a= b+4=12</step><step> c=é</step><answer>12</answer>"


def turn_of(text: str = TEXT) -> Turn:
    tokenizer = train_tokenizer(["<step> a= b+4=12</step>"] * 3, vocab_size=300)
    ids = (*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id)
    logprobs = tuple(-0.125 * (1 + i % 3) for i in range(len(ids)))
    return Turn(
        address=Address(step=2, task=1, member=0, role="solver", call=3),
        group="pool",
        parent=None,
        prompt_ids=(1, 2),
        completion=Completion(token_ids=ids, logprobs=logprobs, finish="stop", policy="a", version=9),
        renderer=Renderer(tokenizer),
        declared=DeclaredSignals("play", (OUTCOME.to("solver"), STEP, Signal("praise", role="verifier"))),
    )


def test_a_turn_becomes_a_trace():
    turn = turn_of()
    turn.reward(OUTCOME, True)
    turn.add_metadata(CORRECT, True)
    turn.add_metadata(STEP_OK, (True, False))
    turn.add_metadata(FIRST_WRONG, None)
    turn.add_finding(STEPS, [(0, 4, "a")])
    turn.fail("ungraded")
    turn.fail("something later")
    trace = turn.trace()
    assert (trace.address, trace.role, trace.policy, trace.version) == (turn.address, "solver", "a", 9)
    assert (trace.group, trace.prompt_ids, trace.finish, trace.parent) == ("pool", (1, 2), "stop", None)
    assert trace.token_ids == turn.completion.token_ids and trace.logprobs == turn.completion.logprobs
    assert trace.text == TEXT  # without the stop token
    assert trace.rewards == (Reward(name="outcome", value=1.0),)
    assert trace.metadata == {"correct": True, "step_ok": [True, False], "first_wrong": None}
    assert trace.findings == {"steps": [[0, 4, "a"]]}
    assert trace.failure == "ungraded" and turn.failed
    assert turn.trace() is trace
    assert turn.id == "2:1:0:solver:3"


def test_spans_become_the_tokens_that_hold_them():
    turn = turn_of()
    solution = tagged_solution(turn.text)
    assert [span.text for span in solution.steps] == [" a= b+4=12", " c=é"]
    ids = turn.completion.token_ids
    for span in solution.steps:
        turn.reward(STEP, -1.0, span=span)
        start, end = turn.token_range(span)
        assert turn._renderer.decode(ids[start:end]) == span.text
        assert turn.probability(span) == pytest.approx(math.exp(sum(turn.completion.logprobs[start:end])))
    signals = turn.trace().rewards
    assert [signal.name for signal in signals] == ["step", "step"]
    assert signals[0].tokens[0] == 1  # after <step>
    assert signals[0].tokens[1] + 2 == signals[1].tokens[0]  # </step><step> between them


@pytest.mark.parametrize(
    "span",
    [Span(start=3, end=3, text=""), Span(start=0, end=3, text="xyz"), Span(start=0, end=900, text=TEXT)],
)
def test_spans_of_another_text_are_refused(span):
    with pytest.raises(ValueError, match="is not in the text of 2:1:0:solver:3"):
        turn_of().reward(STEP, 1.0, span=span)


def test_what_is_no_number_and_no_json_is_refused():
    turn = turn_of()
    with pytest.raises(TypeError, match=r"'step_ok' of 2:1:0:solver:3 is \{1, 2\}; expected list\[bool\] \| None"):
        turn.add_metadata(STEP_OK, {1, 2})
    with pytest.raises(ValueError, match=r"'score' of 2:1:0:solver:3 is inf; expected a number within ±1e\+100"):
        turn.add_finding(SCORE, math.inf)
    with pytest.raises(TypeError, match=r"'correct' is no Metadata; declare it once"):
        turn.add_metadata("correct", True)
    with pytest.raises(TypeError, match=r"is no Finding"):
        turn.add_finding(CORRECT, True)
    assert turn.metadata == {} and turn.trace().findings == {}
    assert turn.trace().rewards == ()


def test_a_sealed_turn_takes_nothing():
    turn = turn_of()
    turn.trace()
    for add in (
        lambda: turn.reward(OUTCOME, 1.0),
        lambda: turn.add_metadata(CORRECT, True),
        lambda: turn.add_finding(FINAL, True),
        lambda: turn.fail("x"),
    ):
        with pytest.raises(RuntimeError, match="sealed"):
            add()


@pytest.mark.parametrize(
    ("signal", "span", "code"),
    [
        ("outcome", None, "E_NOT_SIGNAL: rewards role 'solver' | 'outcome'"),
        (Signal("outcom"), None, "E_SIGNAL_NOT_DECLARED: outcome, step | 'outcome'"),
        (Signal("praise"), None, "E_SIGNAL_NOT_DECLARED: 'praise' | outcome, step"),
        (OUTCOME, Span(start=0, end=6, text="<step>"), "E_SIGNAL_PER: answer | no span | one"),
        (STEP, None, "E_SIGNAL_PER: span | a span | none"),
    ],
)
def test_a_turn_takes_only_what_the_protocol_declares(signal, span, code):
    with refuses(code):
        turn_of().reward(signal, 1.0, span=span)


def test_an_answer_has_one_value_of_a_signal_and_a_span_may_have_several():
    turn, span = turn_of(), Span(start=0, end=6, text="<step>")
    for value in (1.0, -1.0):
        turn.reward(STEP, value, span=span)
    turn.reward(OUTCOME, 1.0)
    with refuses("E_SIGNAL_GIVEN_TWICE", names=("'outcome'", "2:1:0:solver:3")):
        turn.reward(OUTCOME, 0.0)
    assert len(turn.trace().rewards) == 3
