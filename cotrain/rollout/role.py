"""``Role``, a speaker of a recipe: prompt, policy, sampling and parser; and ``Turn``, one of its answers in a protocol.

A role is a prompt template, a policy, a sampling setting and a parser. Calling it gives a turn, which collects what
the protocol has to say about it and becomes a ``Trace``::

    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, 1.0)                        # may be trained on
    solution.reward(STEP, -1.0, span=solution.parsed.steps[2])
    solution.add_metadata(CORRECT, True)                         # ground truth: telemetry only
    solution.add_finding(ANSWER, "12")                          # what the parser found: ledger and report
    solution.fail("ungraded")                            # not trained on, but counted

Rewards for a span of characters are stored as a range of the sampled tokens; nothing is tokenised a second time. A
turn that was cut at ``max_tokens`` is not failed automatically: its parser will say what is missing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cotrain.core.arguments import check_called_with, check_kind
from cotrain.core.errors import ConfigError
from cotrain.core.notes import Finding, Metadata
from cotrain.core.seeding import Address
from cotrain.core.signals import DeclaredSignals, Signal
from cotrain.core.types import Completion, ParseFailure, Reward, Sampling, Span, Trace
from cotrain.core.user_code import INTERRUPTS
from cotrain.formats.solutions import (
    TAGS,
    UNFINISHED,
    SelfCheck,
    Solution,
    parse_solution,
    scored_failure,
    tagged_solution,
)
from cotrain.prompts.decoding import char_to_tokens, stop_in
from cotrain.prompts.render import Rendering
from cotrain.prompts.templates import OTHERS_FIELDS, fields_of
from cotrain.prompts.thoughts import closes_thought

if TYPE_CHECKING:
    from cotrain.rollout.conversation import Conversation

LARGEST = 1e6  # magnitude of a reward
OUT_OF_RANGE = "reward {} out of range"  # failure of a turn that was given another one
SolverTool = str | Callable[[str], Any]  # "calculator", or a function of what was written (``token_calls.py``)
Parser = Callable[[str, Mapping[str, Any]], Any]  # (text, the call's fields) → a value with ``.ok``


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role: its prompt, how it is sampled, and how its replies are parsed."""

    policy: str  # name of the policy that plays it
    prompt: str  # template of the user message, with {field} marks
    sampling: Sampling
    parse: Parser | None = None  # None: turns of this role are not parsed
    system: str | None = None  # system message, used verbatim
    words: tuple[str, ...] = ()  # verdict words of its reply, kept out of what it is shown (``formats/sanitize.py``)
    answer_format: str = TAGS  # format in which the answer of a solver is read (``formats/answers.py``)
    step_format: str | None = None  # format in which a solution is split into steps (``formats/steps.py``); None: tags
    # if the answer has tags, else lines
    verdict_format: str = TAGS  # format in which the review of a verifier is read (``formats/free_verdicts.py``)
    tool: SolverTool | None = None  # answers calls between control tokens (``token_calls.py``)

    def __post_init__(self) -> None:
        where = f"a role of policy {self.policy!r}"
        check_kind(f"{where}: policy", self.policy, str, "the name that the policy has in `policies`")
        check_kind(f"{where}: sampling", self.sampling, Sampling, "Sampling(max_tokens=…)")
        if self.parse is not None:
            check_called_with(f"{where}: parse", self.parse, "text", "fields")
        if self.answer_format != TAGS:
            from cotrain.formats.answers import check_answer

            check_answer(self.answer_format)
        if self.step_format is not None:
            from cotrain.formats.steps import check_steps

            check_steps(self.step_format)
        if self.is_free_form and self.parse is not parse_solution:
            what = f"steps {self.step_format!r}" if self.answer_format == TAGS else f"answer {self.answer_format!r}"
            raise ConfigError(
                f"a role of policy {self.policy!r}: {what} is for roles that write solutions; leave it out",
                code="E_ROLE_SETTING_UNSUITED",
            )
        if self.verdict_format == TAGS:
            return
        from cotrain.formats.free_verdicts import check_verdict

        check_verdict(self.verdict_format)
        if not self.words or "review" in fields_of(self.prompt):
            raise ConfigError(
                f"a role of policy {self.policy!r}: verdict {self.verdict_format!r} is for roles that judge "
                "solutions in steps; leave it out",
                code="E_ROLE_SETTING_UNSUITED",
            )

    @property
    def is_free_form(self) -> bool:
        """True if it writes solutions in a format of its own, without tags."""
        return self.answer_format != TAGS or self.step_format not in (None, TAGS)

    def with_temperature(self, temperature: float) -> Role:
        """The same role, sampled at this temperature."""
        return replace(self, sampling=replace(self.sampling, temperature=temperature))

    def parse_reply(self, text: str, fields: Mapping[str, Any], *, thinking: bool = False) -> Any:
        """Parse a reply; None for a role without a parser. ``thinking``: the prompt opened a thought, which the text
        continues."""
        if thinking and self.parse is not None and not closes_thought(text):
            return scored_failure(UNFINISHED, missing=1)
        if self.is_free_form:
            from cotrain.formats.answers import free_solution

            return free_solution(text, self.answer_format, self.step_format)
        if self.verdict_format != TAGS:
            from cotrain.formats.free_verdicts import free_review

            has_count = "count" in fields_of(self.prompt)
            count = int(fields["count"]) if has_count else None
            return free_review(text, self.verdict_format, count)
        if self.parse is None:
            return None
        parsed = self.parse(text, fields)
        if parsed is None:
            name = getattr(self.parse, "__name__", type(self.parse).__name__)
            raise ConfigError(
                f"a role of policy {self.policy!r}: its parser {name} returned None; expected what the protocol is to "
                "read, such as a value with `ok`, or ParseFailure(reason=…) for a text that cannot be read",
                code="E_PARSED_NONE",
            )
        return parsed

    def format_solution(self, solution: str) -> str:
        """A solution in tags, written as this role writes it, so that ``parse_reply`` finds the same. Text that is no
        such solution is left as it is."""
        if not self.is_free_form:
            return solution
        parsed = tagged_solution(solution)
        if not isinstance(parsed, Solution):
            return solution
        from cotrain.formats.answers import write_own

        steps = [step.text for step in parsed.steps]
        return write_own(steps, parsed.answer, self.answer_format, self.step_format)

    def prompt_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that its prompt asks for, made safe where others wrote them (``formats/sanitize.py``)."""
        names = fields_of(self.prompt)  # other fields of the call are for the parser alone
        prompt_fields = {name: value for name, value in fields.items() if name in names}
        if not OTHERS_FIELDS & prompt_fields.keys():
            return prompt_fields
        from cotrain.formats.sanitize import guard_fields

        return guard_fields(self.prompt, prompt_fields, self.words, self.verdict_format)


def as_reward(value: Any) -> float | None:
    """Whatever a protocol gives, as a reward: a number no larger than ``LARGEST``. None for what is no number, for NaN,
    and for what is infinite or too large."""
    if isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except INTERRUPTS:
        raise
    except BaseException:  # noqa: BLE001  whatever an object of the user's raises
        return None
    return number if abs(number) <= LARGEST else None


def _is_one_number(value: Any) -> bool:
    """Whether a value is one number, if perhaps one that is no reward: a tensor or an array of several is not."""
    shape = getattr(value, "shape", ())
    return hasattr(value, "__float__") and math.prod(shape) == 1


class Turn:
    """One answer of a role, while its episode runs. ``trace()`` finishes it."""

    def __init__(
        self,
        *,
        address: Address,
        group: str,
        parent: Turn | None,
        prompt_ids: tuple[int, ...],
        completion: Completion,
        renderer: Rendering,
        declared: DeclaredSignals,
        stop: tuple[str, ...] = (),
        chat: Conversation | None = None,
        first: Turn | None = None,
    ) -> None:
        """``stop``: strings after which its text ends. ``chat``: the conversation that it is a turn of. ``first``: the
        first turn of the training sequence that it extends; None: it begins one."""
        self.address = address
        self.group = group
        self.parent = parent
        self.prompt_ids = prompt_ids
        self.completion = completion

        text = renderer.decode(completion.token_ids)
        stop_place = stop_in(text, stop)
        if stop_place is not None:
            _, end = stop_place
            text = text[:end]  # the rest of its last token is no part of the text
        self._text = text

        self.first = first or self
        self.tokens_left = 0  # tokens that its limit left for the rest of the response
        self.goes_on = False  # see ``TurnRange.goes_on``
        self.parsed: Any = None  # value that the role's parser returned
        self.metadata: dict[str, Any] = {}  # metadata that ``add_metadata`` wrote
        self._renderer = renderer
        self._chat = chat
        self._offsets: list[int] | None = None  # where each token begins in the text, once it is needed
        self._declared = declared  # rewards that the protocol declares
        self._rewards: list[Reward] = []
        self._findings: dict[str, Any] = {}
        self._failure: str | None = None
        self._trace: Trace | None = None

    @property
    def chat(self) -> Conversation:
        """The conversation that it is a turn of; raises RuntimeError for one that was made without."""
        if self._chat is None:
            raise RuntimeError(f"turn {self.id} is of no conversation")
        return self._chat

    @property
    def text(self) -> str:
        """What was sampled, as text. It cannot be changed: the ledger and all who judge the turn read the same."""
        return self._text

    @property
    def id(self) -> str:
        """The address as text: names this turn as a group or a parent."""
        return str(self.address)

    @property
    def tokens(self) -> int:
        """Number of sampled tokens, with the one that ended it."""
        return self.completion.sampled_count

    @property
    def finish(self) -> str:
        """ "stop" or "length"."""
        return self.completion.finish

    @property
    def failed(self) -> bool:
        return self._failure is not None

    @property
    def score(self) -> float:
        """The score that a scoring policy gave the prompt: its head's output, a logit for verifiers. Raises ValueError
        for a policy that speaks."""
        if self.completion.score is None:
            raise ValueError(f"{self.id}: policy {self.completion.policy!r} speaks and gives no score")
        return self.completion.score

    @property
    def score_probability(self) -> float:
        """σ(score): the probability that a score stands for as a logit. By tanh, which never overflows."""
        return 0.5 * (1.0 + math.tanh(0.5 * self.score))

    def reward(self, signal: Signal, value: float, *, span: Span | None = None) -> None:
        """Give a reward to the whole turn, or to the tokens that hold ``span``, as the signal is per answer or per
        span. A value that is not finite, or one beyond ``LARGEST``, fails the turn.

        Raises ConfigError, which ends the run, for a value that is no number, a signal that the protocol does not
        declare or that is of the other kind, or a second value for an answer; ValueError when the span is not of this
        turn's text.
        """
        if span is None and any(reward.name == signal.name for reward in self._rewards):
            raise ConfigError(
                f"signal {signal.name!r} is given to turn {self.id} twice; give it once, for example the mean",
                code="E_SIGNAL_GIVEN_TWICE",
            )
        reward = self.reward_for(signal, value, span=span)
        if reward is not None:
            self._rewards.append(reward)

    def reward_for(self, signal: Signal, value: float, *, span: Span | None = None) -> Reward | None:
        """The reward that ``reward`` would add, without adding it; None where it fails the turn."""
        self._check_open()
        self._declared.check_signal(signal, self.address.role, span=span is not None)
        number = as_reward(value)
        if number is None and not _is_one_number(value):
            kind = type(value).__name__
            if hasattr(value, "shape"):
                kind += f" of shape {tuple(value.shape)}"
            raise ConfigError(
                f"protocol {self._declared.protocol!r} gives {signal.name!r} to role {self.address.role!r} as "
                f"{kind}; expected a number",
                code="E_SIGNAL_NOT_NUMBER",
            )
        if number is None:  # not a number, infinite, or too large
            self.fail(OUT_OF_RANGE.format(signal.name))
            return None
        tokens = None if span is None else self.token_range(span)
        return Reward(name=signal.name, value=number, tokens=tokens)

    def add_metadata(self, key: Metadata[Any], value: Any) -> None:
        """Record ground truth about this turn. Telemetry and evaluation read it, algorithms never do.

        Raises TypeError for a key that is not declared (``core/notes.py``) or a value of another type than its own,
        ValueError for a number that is not finite; so does ``show``.
        """
        self._check_open()
        self.metadata |= {_key_name(key, Metadata): key.checked_json(value, self.id)}

    def add_finding(self, key: Finding[Any], value: Any) -> None:
        """Record a part of the parser's result, for ledger and report."""
        self._check_open()
        self._findings |= {_key_name(key, Finding): key.checked_json(value, self.id)}

    def fail(self, reason: str) -> None:
        """Keep this turn out of training; the first reason stands and is counted."""
        self._check_open()
        self._failure = self._failure or reason

    def token_range(self, span: Span) -> tuple[int, int]:
        """The half-open range of sampled tokens that holds a span of ``text``; tokens across an edge included."""
        is_whole = len(span.text) == span.end - span.start
        is_in_text = self.text[span.start : span.end] == span.text
        if not (span.text and is_whole and is_in_text):
            raise ValueError(f"span [{span.start}, {span.end}) {span.text[:20]!r} is not in the text of {self.id}")
        if self._offsets is None:
            self._offsets = self._renderer.offsets(self.completion.token_ids)
        return char_to_tokens(self._offsets, span.start, span.end)

    def probability(self, span: Span) -> float:
        """The probability with which the tokens of a span were sampled, given all before them: in [0, 1]."""
        start, end = self.token_range(span)
        return math.exp(math.fsum(self.completion.logprobs[start:end]))

    @property
    def tagged_text(self) -> str:
        """The text that graders and verifiers read: in tags, also where the role writes in words of its own."""
        parsed = self.parsed
        if isinstance(parsed, Solution | SelfCheck) and parsed.tagged is not None:
            return parsed.tagged
        return self.text

    def text_to_grade(self, text: str | None = None, *, whole: bool = False) -> str | None:
        """The text that is graded; None where its parser found no answer. ``text``: the whole solution, where that is
        more than this turn. ``whole``: the grader reads all that was said, unless it ends inside of a thought."""
        whole_text = self.tagged_text if text is None else text
        if not isinstance(self.parsed, ParseFailure):
            return whole_text
        ends_in_thought = self.parsed.reason == UNFINISHED
        if whole and not ends_in_thought:
            return whole_text
        return self.parsed.tagged

    def trace(self) -> Trace:
        """The finished turn, as a sequence of its own with all before it as its prompt (``finish_conversations`` joins
        them). The same trace each time; after the first, nothing can be added."""
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
                entropies=self.completion.entropies,
                text=self.text,
                finish=self.completion.finish,
                rewards=tuple(self._rewards),
                failure=self._failure,
                findings=dict(self._findings),
                metadata=dict(self.metadata),
                parent=None if self.parent is None else self.parent.first.id,
                score=self.completion.score,
                turns=self.completion.parts,
            )
        return self._trace

    def _check_open(self) -> None:
        if self._trace is not None:
            raise RuntimeError(f"turn {self.id} is sealed: its episode is over")


def _key_name(key: Any, kind: type[Metadata[Any]] | type[Finding[Any]]) -> str:
    if not isinstance(key, kind):
        raise TypeError(f"{key!r} is no {kind.__name__}; declare it once, as the keys in core/notes.py are")
    return str(key.name)
