"""Signals: what a protocol rewards, declared once as an object that protocol and recipe share.

::

    BREVITY = Signal("brevity", meaning="minus the number of tokens")

    @gives(OUTCOME.to("solver"), BREVITY.to("solver"))
    async def solve_briefly(task, roles): ...
        solution.reward(BREVITY, -120.0)

    GRPO(reward_weights={OUTCOME: 1.0, BREVITY: 0.1})

A recipe is refused when it is built if an objective of it reads a signal that no protocol gives; a protocol that gives
a signal which it has not declared ends the run. A protocol that calls others declares what they give too.

Left out: types of values; all are floats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from cotrain.core.arguments import bound_function, check_name_list
from cotrain.core.errors import ConfigError
from cotrain.core.nearest_names import nearest_name

RolloutFnT = TypeVar("RolloutFnT", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Signal:
    """One kind of reward or label. Two signals are the same when name and ``per`` are."""

    name: str  # name in ledger and metrics
    per: Literal["answer", "span"] = "answer"  # one value for a turn, or one for each rewarded span of its text
    role: str | None = field(default=None, compare=False, kw_only=True)  # role whose turns get it; None: any role
    meaning: str = field(default="", compare=False, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ConfigError(f"Signal: {self.name!r} is no name; use letters, digits and '_'", code="E_SIGNAL_NAME")
        if self.per not in ("answer", "span"):
            raise ConfigError(
                f"Signal {self.name!r}: per is {self.per!r}, expected 'answer' or 'span'", code="E_SIGNAL_PER"
            )

    def __str__(self) -> str:
        return self.name

    def to(self, role: str) -> Signal:
        """The same signal, given to the turns of this role."""
        return replace(self, role=role)


OUTCOME = Signal("outcome", meaning="1 for a right answer, else 0")
STEP = Signal("step", per="span", meaning="what a judge says of one step, in [-1, 1]")
FORMAT = Signal("format", meaning="how far the text has the format asked for, in [0, 1]")
AGREEMENT = Signal("agreement", meaning="1 for a verdict that is the label, else 0")
MATCH = Signal("match", meaning="share of a review's verdicts that are the labels, 0 for one that cannot be read")
CLASS_LABEL = Signal("class_label", meaning="the class of what was judged, 1 or 0: for class balance, never a reward")
LABEL = Signal("label", meaning="what a reward model shall say, in [0, 1]")


@dataclass(frozen=True, slots=True)
class DeclaredSignals:
    """The signals that a protocol declares."""

    protocol: str  # its name
    signals: tuple[Signal, ...]
    once: tuple[str, ...] = ()  # roles that take one turn in an episode

    def signals_for(self, role: str) -> tuple[Signal, ...]:
        """The signals that the protocol gives to turns of a role."""
        return tuple(signal for signal in self.signals if signal.role in (None, role))

    def check_signal(self, signal: Signal, role: str, *, span: bool) -> None:
        """Raise ConfigError where a protocol gives a turn of this role a signal that it has not declared. ``span``:
        whether it is given to a span of the turn's text."""
        where = f"protocol {self.protocol!r} rewards role {role!r}"
        if not isinstance(signal, Signal):
            raise ConfigError(
                f"{where} with {signal!r}; expected a signal, as in reward(OUTCOME, 1.0)", code="E_NOT_SIGNAL"
            )
        allowed = self.signals_for(role)
        if signal not in allowed:
            names = [signal.name for signal in allowed]
            nearest = nearest_name(signal.name, names)
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            declared = ", ".join(names) or "nothing"
            raise ConfigError(
                f"{where} with {signal.name!r}, but it declares {declared} for this role{hint}; name the signal in the "
                "@gives(...) above the protocol that is run",
                code="E_SIGNAL_NOT_DECLARED",
            )
        needs_span = signal.per == "span"
        if span != needs_span:
            expected = "a span" if needs_span else "no span"
            actual = "one" if span else "none"
            raise ConfigError(
                f"{where} with {signal.name!r}, which is per {signal.per}: expected {expected}, found {actual}",
                code="E_SIGNAL_PER",
            )


def gives(*signals: Signal, once: tuple[str, ...] = ()) -> Callable[[RolloutFnT], RolloutFnT]:
    """Declare, above a protocol, which signals it gives and to whom: ``@gives(OUTCOME.to("solver"))``. ``once``: roles
    that take one turn in an episode: a group of theirs has as many turns as a problem has episodes, and a recipe with
    too few episodes is refused."""
    for signal in signals:
        if not isinstance(signal, Signal):
            raise ConfigError(
                f"@gives names {signal!r}; expected signals, as in @gives(OUTCOME.to('solver'))", code="E_NOT_SIGNAL"
            )

    check_name_list("@gives: once", once)

    def attach_signals(protocol: RolloutFnT) -> RolloutFnT:
        protocol.gives = DeclaredSignals(protocol.__name__, signals, once)  # type: ignore[attr-defined]
        return protocol

    return attach_signals


def declared_by(protocol: Callable[..., Any]) -> DeclaredSignals | None:
    """The signals that a protocol declares; None when there is no ``@gives`` above it."""
    return getattr(bound_function(protocol), "gives", None)
