"""Signals, and what a protocol declares to give."""

import pytest

from cotrain.core.errors import ConfigError
from cotrain.core.signals import OUTCOME, STEP, DeclaredSignals, Signal, declared_by, gives


def test_a_signal_is_the_same_for_every_role_and_in_any_words():
    assert OUTCOME == OUTCOME.to("solver") == Signal("outcome", meaning="something else")
    assert {OUTCOME: 1.0}[OUTCOME.to("verifier")] == 1.0 and str(OUTCOME) == "outcome"
    assert Signal("step") != STEP  # per span, per answer


def test_a_protocol_says_what_it_gives_to_whom():
    @gives(OUTCOME.to("solver"), STEP)
    async def play(task, roles):
        pass

    declared = declared_by(play)
    assert declared == DeclaredSignals("play", (OUTCOME, STEP))
    assert declared.signals_for("solver") == (OUTCOME, STEP) and declared.signals_for("verifier") == (STEP,)
    assert declared_by(lambda task, roles: None) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Signal(""), "is no name"),
        (lambda: Signal("two words"), "'two words' is no name"),
        (lambda: Signal("x", per="token"), "expected 'answer' or 'span'"),
        (lambda: gives("outcome"), "@gives names 'outcome'; expected signals"),
        (lambda: gives(lambda task, roles: None), "expected signals, as in @gives"),  # without parentheses
    ],
)
def test_nonsense_is_refused(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
