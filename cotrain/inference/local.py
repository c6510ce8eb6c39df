"""The local engine: continuous batching in this process, with the very modules that the learners update.

One scheduler per policy (``scheduler.py``) over one key-value cache (``kv_cache.py``). ``advance`` lets the schedulers
take turns, one decode step or one admission each, until a row has finished. Weights are shared in place, so publishing
them is a number, and memory holds each model once.

The same requests in the same state give the same batches, and so the same bits: nothing is ordered by arrival.
Float rounding does depend on the batch that a row shares, so other requests may change a log-probability in its last
digits.

Each policy's model is on one device; those of two policies may be on two. Left out, as a model that fits one device
next to its optimiser does not need them: paged memory, speculative decoding, a model on several devices. Prompts are
shared only within one admission; what goes on is a conversation (``prefix_cache.py``), until new weights.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cotrain.core.errors import ConfigError, ModelError, UnknownName
from cotrain.core.seeding import Address
from cotrain.core.types import Completion
from cotrain.inference.contract import Request
from cotrain.inference.decode_batch import Row
from cotrain.inference.scheduler import Scheduler
from cotrain.prompts.decoding import StopMatcher

if TYPE_CHECKING:
    from cotrain.inference.half_precision import HalfPrecisionCopies
    from cotrain.inference.packed_weights import PackedWeights
    from cotrain.inference.scoring import ScoringScheduler
    from cotrain.models.offload import Residence

FinishedRow = tuple["Scheduler | ScoringScheduler", Row]  # and who has finished it
ROWS = 256  # that one policy decodes at a time, where nothing else is said


class LocalEngine:
    """Samples from several causal language models of transformers. Implements ``Engine``.

    Two policies may name one module; each still has its own rows and version.
    """

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        *,
        scorers: Mapping[str, nn.Module] | None = None,
        activate: Mapping[str, Callable[[], object]] | None = None,
        max_rows: int | Mapping[str, int] = ROWS,
        device: str | torch.device | Mapping[str, str] = "cpu",
        autocast: torch.dtype | Mapping[str, torch.dtype] | None = None,
        pack_weights: Collection[str] = (),
        int8_weights: Collection[str] = (),
        static: bool | None = None,
        recorded: bool = True,
        residence: Mapping[str, Residence] | None = None,
    ) -> None:
        """
        Args:
            device: of all, or by policy.
            models: by policy. They are moved to their ``device``, unless ``residence`` does that, and from then on
                shared, never copied.
            scorers: scoring policies, by name: value models whose last value is the answer (``scoring.py``).
            activate: by policy, called before each forward pass of its module, to select its adapter on a base that
                several policies share; no entry, no call.
            max_rows: rows that one policy decodes at a time, of all or by policy.
            autocast: dtype of matrix products and of the cache, e.g. ``torch.bfloat16``, for all policies or by policy;
                None, or no entry, computes in the weights' own.
            pack_weights: policies that decode with weights in another layout (``packed_weights.py``), where they
                compute in float32 on a CPU. A model that cannot has a warning.
            int8_weights: policies that sample with weights and inputs of layers in 8 bits (``int8_weights.py``), in
                float32 on a CPU alone.
            static: decode in steps of fixed shape (``cuda_graphs.py``); None: on a GPU. A model that cannot falls back
                to the other way with a warning.
            residence: by policy, where its model takes turns on its device with others; ``activate`` moves them.
            recorded: on a GPU, record such steps as CUDA graphs; False is there to compare with.

        Raises ModelError for a model that this engine cannot decode, or not with int8 weights; ConfigError for
        max_rows < 1, and for int8 weights in other arithmetic than float32 on a CPU.
        """
        rows = max_rows if isinstance(max_rows, Mapping) else dict.fromkeys(models, max_rows)
        if (least := min(rows.values(), default=1)) < 1:
            raise ConfigError(f"max_rows is {least}; the engine needs at least 1 row", code="E_ENGINE_ROWS")
        adapters = activate or {}
        kinds = autocast if isinstance(autocast, Mapping) else dict.fromkeys([*models, *(scorers or {})], autocast)
        residences = residence or {}
        factories: dict[torch.device, _SchedulerFactory] = {}
        schedulers: dict[str, Scheduler | ScoringScheduler] = {}
        for name, model in {**models, **(scorers or {})}.items():
            place = torch.device(device[name] if isinstance(device, Mapping) else device)
            if place not in factories:
                factories[place] = _SchedulerFactory(place, place.type != "cpu" if static is None else static, recorded)
            make = factories[place]
            if name in residences:
                adapters[name]()
            else:
                model.to(place)
            kind = kinds.get(name)
            select = adapters.get(name)
            if name in models:
                room = rows.get(name, ROWS)
                schedulers[name] = make(
                    name,
                    model,
                    max_rows=room,
                    autocast=kind,
                    activate=select,
                    pack=name in pack_weights,
                    int8=name in int8_weights,
                )
            else:
                from cotrain.inference.scoring import ScoringScheduler

                schedulers[name] = ScoringScheduler(name, model, autocast=kind, activate=select)

            if name in residences:
                schedulers[name].takes_turns = True
                residences[name].on_rest(model, schedulers[name].release)

        self._schedulers = dict(sorted(schedulers.items()))
        self._first = {name: scheduler.at_once for name, scheduler in schedulers.items()}
        self._held: frozenset[str] = frozenset()
        self._pause: _Pause | None = None

    async def sample(self, request: Request) -> Completion:
        """Wait for the completion of one request; ``advance`` makes it. Errors: see ``Engine``."""
        scheduler = self._scheduler_of(request.policy)
        scheduler.check(request)
        stop_matcher = StopMatcher(stop, request.decode) if (stop := request.sampling.stop) and request.decode else None
        row = Row(request=request, future=asyncio.get_running_loop().create_future(), stop_matcher=stop_matcher)
        scheduler.waiting.append(row)
        return await row.future

    def advance(self) -> bool:
        """Let the schedulers take turns until a row has finished; then resolve what has, in the order of addresses.

        Returns False when no request waits or runs. A row whose logits are not numbers fails alone, with
        FloatingPointError. Whatever a forward pass raises goes through; the rows stay unfinished, and are dropped at
        the next call if their callers were cancelled. It stops before a step of a policy that is held, and goes on
        there when it is called again.
        """
        schedulers = list(self._schedulers.items())
        for _, scheduler in schedulers:
            scheduler.drop_cancelled()
        turn = self._pause or _Pause()
        self._pause = None
        while True:
            while turn.place < len(schedulers):
                name, scheduler = schedulers[turn.place]
                entering = scheduler.ready_count(patient=self._may_bring_more(scheduler, turn.finished))
                if entering or scheduler.running:
                    if name in self._held:
                        self._pause = turn
                        return True
                    turn.idle = False
                    turn.finished += [(scheduler, row) for row in scheduler.step(entering)]
                turn.place += 1

            if turn.idle:
                return False
            if turn.finished:
                _resolve_futures(turn.finished)
                return True
            turn = _Pause()

    def _may_bring_more(self, scheduler: Scheduler | ScoringScheduler, finished: Sequence[FinishedRow]) -> bool:
        """May rows of other schedulers lead to more requests of this one? Those that run will end, and those that have
        finished in this round are answered when it is over: a solution, of which reviews are asked then."""
        if any(other is not scheduler for other, _ in finished):
            return True
        return any(other.running for other in self._schedulers.values() if other is not scheduler)

    @property
    def is_paused(self) -> bool:
        """See ``HoldingEngine``."""
        return self._pause is not None

    def hold(self, policies: Collection[str]) -> None:
        """See ``HoldingEngine``."""
        self._held = frozenset(policies)
        self._pause = None

    def release(self) -> None:
        """See ``HoldingEngine``."""
        self._held = frozenset()

    def step(self) -> bool:
        """One admission or one decode step (on a GPU a few) of every scheduler, for servers: what waits enters at once,
        so that no answer waits for the end of another. What shares a batch then depends on the clock; training never
        calls this.

        Resolves what has finished; returns False when no request waits or runs. Errors: as ``advance``.
        """
        idle = True
        finished: list[FinishedRow] = []
        for scheduler in self._schedulers.values():
            scheduler.drop_cancelled()
            entering = len(scheduler.waiting)
            if isinstance(scheduler, Scheduler):
                entering = min(entering, scheduler.at_once - len(scheduler.running))
            if entering or scheduler.running:
                idle = False
                finished += [(scheduler, row) for row in scheduler.step(entering)]
        _resolve_futures(finished)
        return not idle

    def running_tokens(self) -> dict[Address, list[int]]:
        """The tokens that each running request has sampled so far, by its address: token ids [T]."""
        tokens = {}
        for scheduler in self._schedulers.values():
            if isinstance(scheduler, Scheduler):
                rows = scheduler.running
                for row, ids in zip(rows.items, rows.row_tokens(), strict=True):
                    tokens[row.request.address] = ids
        return tokens

    def check(self, request: Request) -> None:
        """Raise what ``sample`` would raise for this request."""
        self._scheduler_of(request.policy).check(request)

    def context(self, policy: str) -> int:
        """Tokens of the longest sequence that a policy takes, prompt and answer together. Raises UnknownName."""
        return self._scheduler_of(policy).context

    def publish(self, policy: str, version: int) -> None:
        """Note the version of a policy's weights. Raises UnknownName, and RuntimeError while rows of it run: their
        first tokens come from other weights."""
        scheduler = self._scheduler_of(policy)
        scheduler.drop_cancelled()
        if scheduler.running:
            raise RuntimeError(
                f"policy {policy!r} was published while {len(scheduler.running)} of its rows were running"
            )
        scheduler.publish(version)

    def counts(self) -> dict[str, float]:
        """``{policy}/requests``, ``…/prompt_tokens``, ``…/prefill_tokens`` (each shared prompt once),
        ``…/reused_tokens`` (kept from the turn before), ``…/sampled_tokens``, ``…/decode_steps``, ``…/decode_rows``
        (their sum over the steps), ``…/computed_rows`` (of these, what the model computed: once where rows have drawn
        the same; not in steps of fixed shape), ``…/seconds``, ``…/out_of_memory`` (how often rows began again, half as
        many at a time); on a GPU also ``…/recordings``, ``…/recorded_steps`` and ``…/unrecorded_steps``."""
        return {
            f"{policy}/{name}": float(count)
            for policy, scheduler in self._schedulers.items()
            for name, count in asdict(scheduler.counts).items()
        }

    def limits(self) -> dict[str, int]:
        """See ``MemoryLimitedEngine``."""
        now = {policy: scheduler.at_once for policy, scheduler in self._schedulers.items()}
        return {policy: count for policy, count in now.items() if count != self._first[policy]}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        """See ``MemoryLimitedEngine``. Raises UnknownName."""
        for policy in limits:
            self._scheduler_of(policy)
        for policy, scheduler in self._schedulers.items():
            scheduler.at_once = limits.get(policy, self._first[policy])

    def _scheduler_of(self, policy: str) -> Scheduler | ScoringScheduler:
        if policy not in self._schedulers:
            raise UnknownName("policy", policy, self._schedulers)
        return self._schedulers[policy]


@dataclass(slots=True)
class _Pause:
    """The progress of a round of the schedulers."""

    place: int = 0  # the place of the scheduler whose turn it is
    idle: bool = True  # did none of those before it have anything to do?
    finished: list[FinishedRow] = field(default_factory=list)  # in this round


class _SchedulerFactory:
    """Makes schedulers, which share copies of a model's weights; ``fixed``: of fixed shapes, which share memory of
    recordings, and other schedulers for a model that they cannot decode."""

    def __init__(self, device: torch.device, fixed: bool, recorded: bool) -> None:
        self._fixed = fixed
        self._may_pack = device.type == "cpu" and not fixed
        self._recorder = None
        if fixed and recorded:
            from cotrain.inference.cuda_graphs import recorder_for

            self._recorder = recorder_for(device)
        self._copies: dict[tuple[int, torch.dtype], HalfPrecisionCopies] = {}
        self._packed: dict[int, PackedWeights] = {}
        self._int8: dict[int, PackedWeights] = {}

    def __call__(
        self,
        policy: str,
        model: nn.Module,
        *,
        max_rows: int,
        autocast: torch.dtype | None,
        activate: Callable[[], object] | None,
        pack: bool,
        int8: bool,
    ) -> Scheduler:
        if int8:
            if not self._may_pack or autocast:
                raise ConfigError(
                    f"policy {policy!r}: int8 weights are for sampling in float32 on a CPU; leave out "
                    "pack_weights=int8 on another device and with autocast=true",
                    code="E_EIGHT_BIT_PLACE",
                )
            return self._with_int8(policy, model, max_rows=max_rows, activate=activate)
        copies = None
        if autocast:
            from cotrain.inference.half_precision import HalfPrecisionCopies

            copies = self._copies.setdefault((id(model), autocast), HalfPrecisionCopies(model, autocast))
        options: dict[str, Any] = {"max_rows": max_rows, "autocast": autocast, "activate": activate, "copies": copies}
        plain = partial(Scheduler, policy, model, **options)
        if pack and self._may_pack and not autocast:
            from cotrain.inference.packed_weights import PackedWeights

            try:
                return plain(copies=self._packed.setdefault(id(model), PackedWeights(model)))
            except ModelError as error:
                del self._packed[id(model)]
                warnings.warn(f"policy {policy!r}: decoded without packed weights ({error})", RuntimeWarning, 3)
        if not self._fixed:
            return plain()
        from cotrain.inference.cuda_graphs import StaticScheduler

        try:
            return StaticScheduler(policy, model, recorder=self._recorder, **options)
        except ModelError as error:
            scheduler = plain()
            warnings.warn(
                f"policy {policy!r}: not decoded in steps of fixed shape, so slowly on a GPU ({error})",
                RuntimeWarning,
                stacklevel=3,
            )
            return scheduler

    def _with_int8(
        self, policy: str, model: nn.Module, *, max_rows: int, activate: Callable[[], object] | None
    ) -> Scheduler:
        from cotrain.inference.int8_weights import check_layers, check_products, lay_out_int8
        from cotrain.inference.packed_weights import PackedWeights

        check_products(policy)
        check_layers(policy, model)
        if id(model) not in self._int8:
            self._int8[id(model)] = PackedWeights(model, lay_out_int8, approximate=True)
        try:
            return Scheduler(
                policy, model, max_rows=max_rows, autocast=None, activate=activate, copies=self._int8[id(model)]
            )
        except ModelError as error:
            raise ModelError(f"{error}, or leave out pack_weights=int8", code=error.code) from error


def _resolve_futures(finished: Sequence[FinishedRow]) -> None:
    """Hand out what has finished, in the order of addresses."""
    for scheduler, row in sorted(finished, key=lambda pair: pair[1].sort_key):
        try:
            row.future.set_result(scheduler.completion(row))
        except FloatingPointError as error:  # its own affair, whoever shared its batch
            row.future.set_exception(error)
