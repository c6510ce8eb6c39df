"""Signals, and what a protocol declares to give."""

import pytest

from cotrain.core.signals import OUTCOME, STEP, DeclaredSignals, Signal, declared_by, gives
from tests.sentences import refuses


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
    ("make", "code"),
    [
        (lambda: Signal(""), "E_SIGNAL_NAME"),
        (lambda: Signal("two words"), "E_SIGNAL_NAME: 'two words'"),
        (lambda: Signal("x", per="token"), "E_SIGNAL_PER"),
        (lambda: gives("outcome"), "E_NOT_SIGNAL: 'outcome'"),
        (lambda: gives(lambda task, roles: None), "E_NOT_SIGNAL"),  # without parentheses
    ],
)
def test_nonsense_is_refused(make, code):
    with refuses(code):
        make()
