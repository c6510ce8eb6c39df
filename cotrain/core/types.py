"""The carriers that travel through one step of co-training: Task → Completion → Trace (with Rewards) → Episode.

All are frozen; lists are tuples. Token axes: ``[P]`` prompt tokens; ``[T]`` all tokens from the first sampled one on,
in a conversation of several turns those between the turns too, which were not sampled (``Trace.mask``). Ground truth
(``Trace.metadata``) is for telemetry and evaluation; an algorithm never reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

from cotrain.core.errors import ConfigError, StateError
from cotrain.core.seeding import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of characters ``[start, end)`` in a text, with what is there."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParseFailure:
    """A text that a parser could not read. It is a value, counted under its reason, never a silent verdict."""

    reason: str  # a short fixed phrase such as "no answer"; it is a metric's key
    format_score: float = 0.0  # in [0, 1]
    # The answer in tags of a text that is not readable otherwise. It is graded, so that metrics can say how many such
    # answers are right.
    tagged: str | None = field(default=None, compare=False)
    ok: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The grade of an answer: True, False, or None with the reason why it could not be graded."""

    value: bool | None
    reason: str | None = None  # a short fixed phrase, always set when value is None; with False it may say why

    def __post_init__(self) -> None:
        to_python = getattr(self.value, "item", None)  # of a bool of numpy or torch
        if to_python is not None:
            with suppress(ValueError, RuntimeError):  # it holds several
                object.__setattr__(self, "value", to_python())
        if self.value is not None and not isinstance(self.value, bool):
            raise ConfigError(
                f"Grade: value is {self.value!r}; expected True, False, or None with a reason (points for a part of an "
                "answer are a reward of their own, which the protocol gives)",
                code="E_GRADE_VALUE",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepVerdicts:
    """The oracle's verdict on each step of one solution."""

    ok: tuple[bool, ...]  # [K] one per step
    reasons: tuple[str, ...]  # [K] "" for a right step, else "premise", "arithmetic", "relation", "unneeded", ...

    @property
    def first_wrong(self) -> int | None:
        """0-based index of the first wrong step, None when every step is right."""
        return next((i for i, ok in enumerate(self.ok) if not ok), None)


class Grader(Protocol):
    """Grades the answers of a task source and, where it can, steps."""

    def grade(self, task: Task, text: str) -> Grade:
        """Is the answer in this solution text right? An unparsable text is ``Grade(value=False)``: no answer, no
        credit; ``value=None`` only when the grader itself failed."""
        ...

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        """Judge each step's text; None when this source has no oracle. A grader that never has one may leave this
        method out."""
        ...


def check_grade(grader: object, returned: Any) -> Grade:
    """What a grader returned. Raises ConfigError for anything but a Grade: it may be a user's own."""
    if isinstance(returned, Grade):
        return returned
    hint = ""
    if isinstance(returned, Coroutine):
        returned.close()
        hint = ", or with the name `agrade` if it is to be async"
    raise ConfigError(
        f"grader {type(grader).__name__} returned {_short(returned)}; expected Grade(value=True), Grade(value=False), "
        f"or Grade(value=None, reason='…') where it cannot say{hint}",
        code="E_GRADER_RETURNED",
    )


def check_step_verdicts(grader: object, returned: Any, steps: tuple[str, ...]) -> StepVerdicts | None:
    """What a grader said of ``steps``. Raises ConfigError for anything but a verdict on each of them, or None."""
    if returned is None:
        return None
    if isinstance(returned, StepVerdicts) and len(returned.ok) == len(steps):
        return returned
    returned_text = _short(returned)
    if isinstance(returned, StepVerdicts):
        returned_text = f"{len(returned.ok)} verdicts"
    raise ConfigError(
        f"grade_steps of grader {type(grader).__name__} returned {returned_text} on {len(steps)} steps; expected "
        "StepVerdicts(ok=…, reasons=…) with one of each for a step, or None",
        code="E_GRADER_RETURNED",
    )


def _short(value: object) -> str:
    is_plain = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if is_plain else f"a {type(value).__name__}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGrader:
    """Stands in a grader's place where there is nothing to grade."""

    reason: str

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=None, reason=self.reason)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


@runtime_checkable
class AsyncGrader(Protocol):
    """A grader that works outside of this process, so that many answers are graded at once."""

    async def agrade(self, task: Task, text: str) -> Grade:
        """``grade`` for a running event loop, which it does not block."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem. ``id`` finds it again in its source; nothing else of it is stored with a run."""

    id: str  # "source/split/index"
    prompt: str  # the problem as a solver sees it
    gold: str | None  # gold answer, None when there is none
    solution: str | None  # a worked solution in the text format of the solver, None when there is none
    difficulty: float  # number of operations for procedural problems, 0 where unknown
    grader: Grader = field(repr=False, compare=False)
    paraphrases: tuple[str, ...] = ()  # the same problem in other words; answer and grader hold for them too
    labelled: bool = True  # may rewards and training use its gold answer? If not, that is for metrics alone
    gradable: bool = True  # can anybody say whether an answer is right? If not, no metadata say so
    whole: bool = False  # is the whole response graded, as a program is, and not an answer in it

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("prompt", self.prompt), ("gold", self.gold)):
            is_missing_gold = name == "gold" and value is None
            if not isinstance(value, str) and not is_missing_gold:
                expected = "a text, or None where there is no answer" if name == "gold" else "a text"
                raise ConfigError(f"Task {self.id!r}: {name} is {value!r}; expected {expected}", code="E_TASK_FIELD")

    def grade(self, text: str) -> Grade:
        return check_grade(self.grader, self.grader.grade(self, text))

    def grade_steps(self, steps: tuple[str, ...]) -> StepVerdicts | None:
        judge = getattr(self.grader, "grade_steps", None)
        if judge is None:
            return None
        return check_step_verdicts(self.grader, judge(self, steps), steps)


@runtime_checkable
class TaskSource(Protocol):
    """Problems addressable by (split, index). Splits: "train", "validation", "test", and any others the source
    names."""

    @property
    def name(self) -> str: ...

    def get(self, split: str, index: int) -> Task:
        """The same task for the same (split, index), always. Finite sources raise IndexError past ``size``."""
        ...

    def size(self, split: str) -> int | None:
        """Number of tasks in a split; None when it is endless. Unknown splits raise UnknownName."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON settings from which the source can be built again (saved in ``recipe.json``)."""
        ...


def has_split(source: TaskSource, split: str) -> bool:
    """True if a source has this split; not every one has out-of-distribution problems. A source of the user's own may
    raise KeyError for one that it does not have; UnknownName is a LookupError too."""
    try:
        source.size(split)
    except LookupError:
        return False
    return True


COLDEST = 1e-6  # temperature below which sampling is greedy: logits divided by less may leave the range of float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters of a role."""

    max_tokens: int
    temperature: float = 1.0  # 0, and all below ``COLDEST``, is greedy
    top_p: float = 1.0
    stop: tuple[str, ...] = ()  # a completion ends with the token by which its text contains one of these

    @property
    def is_greedy(self) -> bool:
        return self.temperature < COLDEST


FAILED = "failed"  # ``Completion.finish`` where an engine could not sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled for one request."""

    token_ids: tuple[int, ...]  # [T] sampled tokens, the stop token included
    logprobs: tuple[float, ...]  # [T] log-probability of each under the distribution it was drawn from
    finish: str  # "stop" (a stop token was sampled, or a stop string completed), "length", or "failed"
    policy: str  # policy that sampled
    version: int  # version of its weights
    score: float | None = None  # output of a scoring policy's head after the prompt
    failure: str | None = None  # why nothing was sampled, if ``finish`` is "failed": a server's fault, a full context
    entropies: bytes = b""  # [T] of the distribution of each token, as levels (``core/entropy.py``); b"" where unknown
    parts: tuple[TurnRange, ...] = ()  # sampled ranges if a tool wrote in between; () if all tokens were sampled
    calls: tuple[str, ...] = ()  # what came of each tool call

    @property
    def sampled_count(self) -> int:
        """Number of sampled tokens."""
        return sum(part.end - part.start for part in self.parts) if self.parts else len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The value of one signal, for a whole trace (``tokens`` None) or for a half-open range of its sampled tokens."""

    name: str  # name of the signal
    value: float
    tokens: tuple[int, int] | None = None  # [start, end) in token_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRange:
    """One turn of a trace that has several."""

    start: int  # [start, end) in token_ids
    end: int
    finish: str  # "stop" or "length"
    # Whether it continues the answer of the turn before in a new message, with the tokens of the answer's limit that
    # that turn left.
    goes_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One training sequence: what one role said, in one turn or in several turns that extend each other, token by
    token.

    ::

        prompt_ids                │ token_ids
        system user … <assistant> │ 6 * 7 = ? <stop> │ <tool> 42 <assistant> │ So 42. <stop>
                            mask  │ T …              │ F …                   │ T …
    """

    address: Address
    role: str
    policy: str
    version: int  # version of the policy's weights when it spoke
    group: str  # group key: traces of one role with the same key are compared with each other
    prompt_ids: tuple[int, ...]  # [P] everything before the first sampled token
    token_ids: tuple[int, ...]  # [T] all tokens from then on, those between turns too; the last one is sampled
    logprobs: tuple[float, ...]  # [T] sampler log-probabilities; 0 between turns
    text: str  # decoded text of token_ids without control tokens
    finish: str  # "stop" or "length", of the last turn
    rewards: tuple[Reward, ...]
    failure: str | None = None  # reason this trace may not be trained on, or None
    findings: Mapping[str, Any] = field(default_factory=dict)  # JSON view of the parser's result, for ledger and report
    # Ground truth: for telemetry and evaluation, never for training.
    metadata: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None  # address of the trace this one judges, if any
    score: float | None = None  # output of a scoring policy, whose one token is the stop token
    turns: tuple[TurnRange, ...] = ()  # range of each turn; () if one turn is all of token_ids
    entropies: bytes = b""  # [T] as in a Completion, 0 between turns; b"" where an engine does not tell them
    # Address of the first of several traces that share one reward, such as a player's moves; "" for a trace by itself.
    trajectory: str = ""

    @property
    def trajectory_id(self) -> str:
        """The same for all traces of one trajectory, which is what a reward is paid for, and what counts once."""
        return self.trajectory or str(self.address)

    @property
    def mask(self) -> tuple[bool, ...]:
        """[T] True where the policy sampled."""
        if not self.turns:
            return (True,) * len(self.token_ids)
        mask = [False] * len(self.token_ids)
        for turn in self.turns:
            mask[turn.start : turn.end] = [True] * (turn.end - turn.start)
        return tuple(mask)

    @property
    def sampled_count(self) -> int:
        """Number of sampled tokens."""
        return sum(turn.end - turn.start for turn in self.turns) if self.turns else len(self.token_ids)


UNLABELLED = "unlabelled"  # the split of training problems without a gold answer
# Failure of an episode whose problem does not fit a model's context, and of a turn whose prompt does not fit because of
# what other roles said.
TOO_LONG = "prompt too long"
BROKEN_OFF = "protocol failed"  # failure of the traces of an episode that broke off; the episode's own says why
SAYING = ", saying: "  # in a failure: before it is a short fixed phrase, behind it a server's own words


def kind_of_failure(failure: str) -> str:
    """The short fixed phrase of a failure, by which failures are counted."""
    return failure.partition(SAYING)[0]


# A protocol: an async function of a task, of the roles of one episode, and of the stores that its phase names. Its
# result is ignored. Options are bound to it by keyword, as in ``partial(solve_then_verify, reviews=8)``. Type checkers
# compare them with the protocol's signature, and so does ``check_protocol`` when the recipe is built.
RolloutFn = Callable[..., Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One rollout of a protocol on one task."""

    step: int
    task: int  # position in the step's draw
    member: int  # index among the G episodes of this task
    task_id: str
    traces: tuple[Trace, ...]  # sorted by address
    failure: str | None = None  # why the protocol broke off; None if it did not


# -- State that can be saved. Its owner has the methods ``state()`` and ``load()``; ``load`` takes all of it or none.

State = dict[str, Any]  # JSON values only; tensors are saved next to it, by name


def take_fields(owner: str, state: Mapping[str, Any], *fields: str) -> list[Any]:
    """The values of these fields, in order. Raises StateError where one is missing, or the state has others, too;
    ``owner``: whose state it is, for the message."""
    missing = [field for field in fields if field not in state]
    unknown = [field for field in state if field not in fields]
    if missing or unknown:
        raise StateError(
            f"state of {owner} does not fit: missing {missing or 'nothing'}, unknown {unknown or 'nothing'}",
            code="E_STATE_MISFIT",
        )
    return [state[field] for field in fields]


class Store(Protocol):
    """Something that a run collects and that grows from step to step (``rollout/stores.py``)."""

    def with_episodes(self, episodes: Sequence[Episode], step: int) -> Store:
        """The store as it is after a step with these episodes."""
        ...

    def metrics(self) -> dict[str, float]: ...

    def state(self) -> State: ...

    def restore_state(self, state: State) -> Store:
        """A store as the one that gave this state by ``state``. Raises StateError."""
        ...
