"""Who speaks, and what was said: ``Role`` in a recipe, ``Turn`` in a protocol.

A role is a prompt template, a policy, a sampling setting and a parser. Calling it gives a turn, which collects what
the protocol has to say about it and becomes a ``Trace``::

    solution = await roles.solver(problem=task.prompt)
    solution.reward("outcome", 1.0)                      # may be trained on
    solution.reward("step", -1.0, span=solution.parsed.steps[2])
    solution.note(correct=True)                          # ground truth: telemetry only
    solution.show(answer="12")                           # what the parser found: ledger and report
    solution.fail("ungraded")                            # not trained on, but counted

Rewards for a span of characters are stored as a range of the sampled tokens; nothing is tokenised a second time. A
turn that was cut at ``max_tokens`` is not failed automatically: its parser will say what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cotrain.core.address import Address
from cotrain.core.types import Completion, Sampling, Signal, Span, Trace
from cotrain.text.render import Rendering
from cotrain.text.spans import char_to_tokens

LARGEST = 1e6  # magnitude of a reward
Parser = Callable[[str, Mapping[str, Any]], Any]  # (text, the call's fields) → a value with ``.ok``


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """How one speaker is asked, sampled and understood."""

    policy: str  # whose weights
    prompt: str  # template of the user message, with {field} marks
    sampling: Sampling
    parse: Parser | None = None  # None: turns of this role have no parsed value
    system: str | None = None  # a system message in front, taken as it stands


class Turn:
    """One answer of a role, while its episode is played. ``trace()`` seals it."""

    def __init__(
        self,
        *,
        address: Address,
        group: str,
        parent: Turn | None,
        prompt_ids: tuple[int, ...],
        completion: Completion,
        renderer: Rendering,
    ) -> None:
        self.address, self.group, self.parent = address, group, parent
        self.prompt_ids, self.completion = prompt_ids, completion
        self.text = renderer.decode(completion.token_ids)
        self.parsed: Any = None  # what the role's parser returned
        self.truth: dict[str, Any] = {}  # what ``note`` said
        self.before: tuple[Turn, ...] = ()  # turns that this one goes on from, as parts of one answer (``tools.py``)
        self._renderer = renderer
        self._offsets: list[int] | None = None
        self._signals: list[Signal] = []
        self._shown: dict[str, Any] = {}
        self._failure: str | None = None
        self._learn_ids: tuple[int, ...] | None = None
        self._trace: Trace | None = None

    @property
    def id(self) -> str:
        """The address as text: names this turn as a group or a parent."""
        return str(self.address)

    @property
    def finish(self) -> str:
        """ "stop" or "length"."""
        return self.completion.finish

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def score(self) -> float:
        """What a scoring policy said of the prompt: its head's output, a logit for judges. Raises ValueError for a
        policy that speaks."""
        if self.completion.score is None:
            raise ValueError(f"{self.id}: policy {self.completion.policy!r} speaks and gives no score")
        return self.completion.score

    def reward(self, name: str, value: float, *, span: Span | None = None) -> None:
        """Add a signal for the whole turn, or for the tokens that hold ``span``. A value that is no number of a size that can
        be learned from fails the turn, as nothing can be learned from it.

        Raises ValueError when the span is empty or not of this turn's text.
        """
        self._open()
        if not abs(value) <= LARGEST:  # not a number, infinite, or too large
            self.fail(f"reward {name} out of range")
            return
        self._signals.append(Signal(name=name, value=float(value), tokens=None if span is None else self.tokens(span)))

    def note(self, **truth: Any) -> None:
        """Ground truth about this turn, as JSON values. Telemetry and evaluation read it, algorithms never do.

        Raises TypeError or ValueError for what JSON cannot hold; so does ``show``.
        """
        self._open()
        self.truth |= {key: _json(f"{self.id} note({key})", value) for key, value in truth.items()}

    def show(self, **found: Any) -> None:
        """What the parser found, as JSON values, for ledger and report."""
        self._open()
        self._shown |= {key: _json(f"{self.id} show({key})", value) for key, value in found.items()}

    def fail(self, reason: str) -> None:
        """Keep this turn out of training; the first reason stands and is counted."""
        self._open()
        self._failure = self._failure or reason

    def cut(self, end: int) -> None:
        """Keep the text before character ``end``, with the tokens that hold it, as if sampling had stopped there.

        What was sampled behind it is thrown away: it is no part of the trace, so nothing can learn it. Where ``end`` is the
        first place of its kind, such as a closing tag, the tokens kept are distributed as under a stop string. A token across
        the edge stays whole. Raises ValueError where nothing is left, RuntimeError when a signal has been given.
        """
        self._open()
        if self._signals:
            raise RuntimeError(f"turn {self.id} has been rewarded and cannot be cut any more")
        _, kept = self.tokens(Span(start=0, end=end, text=self.text[:end]))
        told = self.completion
        self.completion = replace(told, token_ids=told.token_ids[:kept], logprobs=told.logprobs[:kept], finish="stop")
        self.text, self._offsets = self._renderer.decode(self.completion.token_ids), None

    def learn_under(self, other: Turn) -> None:
        """Let it be learned as an answer to what ``other`` was asked: a refinement as if there had been no critique."""
        self._open()
        self._learn_ids = other.prompt_ids

    def tokens(self, span: Span) -> tuple[int, int]:
        """The half-open range of sampled tokens that holds a span of ``text``; tokens across an edge included."""
        if not span.text or len(span.text) != span.end - span.start or self.text[span.start : span.end] != span.text:
            raise ValueError(f"span [{span.start}, {span.end}) {span.text[:20]!r} is not in the text of {self.id}")
        if self._offsets is None:
            self._offsets = self._renderer.offsets(self.completion.token_ids)
        return char_to_tokens(self._offsets, span.start, span.end)

    def probability(self, span: Span) -> float:
        """The probability with which the tokens of a span were sampled, given all before them: in [0, 1]."""
        start, end = self.tokens(span)
        return math.exp(math.fsum(self.completion.logprobs[start:end]))

    def trace(self) -> Trace:
        """Seal the turn. The same trace each time; after the first, nothing can be added."""
        if self._trace is None:
            self._trace = Trace(
                address=self.address,
                role=self.address.role,
                policy=self.completion.policy,
                version=self.completion.version,
                group=self.group,
                prompt_ids=self.prompt_ids,
                token_ids=self.completion.token_ids,
                logprobs=self.completion.logprobs,
                text=self.text,
                finish=self.completion.finish,
                signals=tuple(self._signals),
                failure=self._failure,
                parsed=dict(self._shown),
                truth=dict(self.truth),
                parent=None if self.parent is None else self.parent.id,
                score=self.completion.score,
                learn_ids=self._learn_ids,
            )
        return self._trace

    def _open(self) -> None:
        if self._trace is not None:
            raise RuntimeError(f"turn {self.id} is sealed: its episode is over")


def _json(where: str, value: Any) -> Any:
    """The value with tuples as lists, as it will be read back from the ledger. Raises TypeError for what is no JSON
    value, ValueError for a number that is not finite."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: {value} is not a JSON value")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json(where, item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _json(where, item) for key, item in value.items()}
    raise TypeError(f"{where}: a {type(value).__name__} is not a JSON value")
