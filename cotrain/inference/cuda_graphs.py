"""Decoding on a GPU by CUDA graphs: steps of fixed shape are recorded once, and results are looked at every few steps.

A decode step of a small model is a thousand short kernels, and launching them takes longer than running them. Here a
step reads and writes tensors that stay where they are, in a view of as many lines and columns as the rows need, rounded
up (``static_kv_cache.py``). The first step in a view is recorded; every later one is a single launch. Tokens are drawn
on the device by the same functions as elsewhere, outside of the recording, and nothing waits for them: up to ``LOOK``
steps are queued before the host asks which rows have finished. A row that finishes in between stands still.

Same requests, same state: same batches, as views and looks follow from counts. On a CPU the same steps run unrecorded
when asked for, and tests record them with a tape of torch operations.

Weights are read where they lie; when they, or the storage, have moved, recordings are thrown away. If a recording
fails, steps run unrecorded from then on: one warning, with the reason, and ``unrecorded_steps`` counts them.

Left out: giving memory back between rollouts, but to another model; speculative decoding; TF32 (float32 stays float32).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from cotrain.inference.decode_batch import DRAWN, LAST, PREVIOUS, Row, Rows, draw_tokens
from cotrain.inference.half_precision import HalfPrecisionCopies
from cotrain.inference.kv_cache import cache_argument, previous_argument, use_attention
from cotrain.inference.scheduler import EngineCounts, Scheduler
from cotrain.inference.static_kv_cache import SLOTS, StaticCache, columns_for, lines_for
from cotrain.models.memory import out_of_memory
from cotrain.models.shared_prefix import layer_windows

LOOK = 8  # decode steps between two looks at what has finished
Run = Callable[[], None]
Recorder = Callable[[Run], Run]  # records what a run asks of the device; the result asks the same again


def recorder_for(device: torch.device) -> Recorder | None:
    """CUDA graphs that share one pool of memory, or None where there are none."""
    if device.type != "cuda":
        return None
    stream = torch.cuda.Stream(device)
    pool = torch.cuda.graph_pool_handle()
    graphs = WeakSet[torch.cuda.CUDAGraph]()

    def record(run: Run) -> Run:
        nonlocal pool
        if not graphs:  # PyTorch takes no graph into a pool that has lost its last one
            pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        before = torch.cuda.current_stream(device)
        try:
            with (
                torch.cuda.device(device),
                torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"),
            ):
                run()
        finally:
            torch.cuda.set_stream(before)  # which a recording that fails does not

        graphs.add(graph)
        return graph.replay

    return record


@dataclass(slots=True, kw_only=True)
class StaticCounts(EngineCounts):
    """Work done by one such scheduler."""

    recordings: int = 0
    recorded_steps: int = 0  # decode steps that were one launch
    unrecorded_steps: int = 0


class DeferredRows(Rows):
    """Rows that stand still once they have finished, until somebody looks; and that keep what is not a number."""

    def append_tokens(self, first: int, tokens: Tensor, logprobs: Tensor, entropies: Tensor) -> None:
        """Append a token to every row from ``first`` on that has not finished."""
        state = self._state[first:]
        live = (state[:, DRAWN] == 0) | ~self._done_mask()[first:]
        at = state[:, DRAWN : DRAWN + 1].clamp(max=self._tokens.shape[1] - 1)

        def write(values: Tensor, new: Tensor) -> None:
            rows = values[first:]
            rows.scatter_(1, at, torch.where(live[:, None], new[:, None], rows.gather(1, at)))

        write(self._tokens, tokens)
        write(self._logprobs, logprobs)
        write(self._entropies, entropies)
        state[:, PREVIOUS] = torch.where(live, state[:, LAST], state[:, PREVIOUS])
        state[:, LAST] = torch.where(live, tokens, state[:, LAST])
        state[:, DRAWN] += live

    def collect_finished(self) -> list[int]:
        """The rows with nothing more to draw, which get their tokens, and those whose logits were not numbers. The one
        place where the host waits for the device; a stop string is seen here, and what was drawn after it is thrown
        away."""
        stopped = self.find_stopped()
        done, wrong = torch.stack([self._done_mask(), self._logprobs.isnan().any(1)]).tolist()
        broken = [i for i, flag in enumerate(wrong) if flag]
        for i in broken:
            self.items[i].broken = True
        finished = [i for i, flag in enumerate(done) if flag or i in stopped]
        if finished:
            indices = torch.tensor(finished, device=self.device)  # a mask would be waited for at every use
            counts: list[int] = self._state[indices, DRAWN].tolist()
            columns = (
                x[:, : max(counts)].tolist()
                for x in (self._tokens[indices], self._logprobs[indices], self._entropy_levels(indices))
            )
            for i, count, *values in zip(finished, counts, *columns, strict=True):
                self._store_tokens(i, stopped.get(i, count), *values)
        return sorted({*finished, *broken})


class StaticScheduler(Scheduler):
    """As ``Scheduler``, with decode steps of fixed shape. Its rows' log-probabilities differ from a ``Scheduler``'s by
    rounding."""

    casts_kept = False  # a recording must not read them
    counts: StaticCounts
    running: DeferredRows
    _cache: StaticCache  # type: ignore[assignment]
    _copies: HalfPrecisionCopies | None

    def __init__(self, policy: str, model: nn.Module, *, recorder: Recorder | None = None, **options: Any) -> None:
        """``recorder``: see there; None runs every step unrecorded. ``options``: as of ``Scheduler``."""
        self._record = recorder
        self._recordings: dict[tuple[int, int], Run] = {}
        self._home: tuple[int, ...] = ()
        self._weights: tuple[int, ...] = ()
        super().__init__(policy, model, **options)

    def step(self, entering: int) -> list[Row]:
        """As ``Scheduler.step``, with up to LOOK tokens of every running row."""
        rows = super().step(entering)
        self.counts.sampled_tokens += sum(len(row.token_ids) for row in rows)
        return rows

    def release(self) -> None:
        super().release()
        self._recordings.clear()

    def _reset_rows(self) -> None:
        self._cache = StaticCache(self.autocast, layer_windows(self.config))
        self.running = DeferredRows(self.device)
        self.counts = StaticCounts()
        self._recordings.clear()
        self._home = ()
        self._ids = self._previous_ids = self._positions = self._logits = torch.empty(0)

    def _decode_step(self) -> None:
        """Tokens for every running row, until some may have finished by their length, at most LOOK."""
        rows = self.running
        cache = self._cache
        ends = [len(row.request.prompt_ids) + row.request.sampling.max_tokens - 1 for row in rows.items]
        steps = min(LOOK, max(end - filled for end, filled in zip(ends, cache.filled, strict=True)))
        run = self._prepare_run(steps)
        for _ in range(steps):
            self._copy_inputs()
            run()
            self._draw_tokens(self._logits[: len(rows)], 0)
        self._count_steps(steps)

    def _next_logits(self) -> Tensor:
        """[R, V] after the last token of every running row; for ``_verify_logits``."""
        self._prepare_run(1)()
        self._count_steps(1)
        return self._logits[: len(self.running)]

    def _prepare_run(self, steps: int) -> Run:
        """The function that makes the logits of one step, for so many steps: a recording where that works."""
        store = self._cache.store
        count = len(self.running)
        home = (store.keys[0].data_ptr(), store.lines, store.columns)
        if home != self._home:
            self._recordings.clear()
            self._home = home
            self._ids = torch.zeros(store.lines, 1, dtype=torch.int64, device=self.device)
            self._previous_ids = torch.zeros_like(self._ids)
            self._positions = torch.zeros_like(self._ids)
            self._logits = torch.empty(0)

        lines = min(lines_for(count), store.lines)
        columns = min(columns_for(max(self._cache.filled) + steps), store.columns)
        for static in (self._ids, self._previous_ids, self._positions):
            static[count:lines].zero_()
        self._copy_inputs()
        run = partial(self._run_forward, lines, columns)
        if self._record is None:
            return run
        if (lines, columns) not in self._recordings:
            run()  # loads kernels and makes room for logits, which must not happen while recording
            try:
                self._recordings[lines, columns] = self._record(run)
            except RuntimeError as error:
                if out_of_memory(error):  # half as many rows may find room
                    raise
                self._stop_recording(error)
                return run
            self.counts.recordings += 1
        return self._recordings[lines, columns]

    def _stop_recording(self, error: RuntimeError) -> None:
        """Use no recordings from now on, and say so."""
        self._record = None
        self._recordings.clear()
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        warnings.warn(
            f"policy {self.policy!r}: decode steps could not be recorded as a CUDA graph ({reason}); they run "
            "unrecorded, with the same results and several times as slowly",
            RuntimeWarning,
            stacklevel=2,
        )

    def _copy_inputs(self) -> None:
        """Put the rows' last tokens where the step reads them."""
        count = len(self.running)
        self._ids[:count].copy_(self.running.last_tokens)
        self._previous_ids[:count].copy_(self.running.previous_tokens)
        self._positions[:count].copy_(self.running.positions)

    def _run_forward(self, lines: int, columns: int) -> None:
        """One step of the first ``lines`` lines over the first ``columns`` columns, into the place for logits."""
        positions = self._positions[:lines]
        mask = self._cache.set_view(positions, columns)
        with use_attention(self.config, SLOTS):
            output = self.model(
                input_ids=self._ids[:lines],
                position_ids=positions,
                attention_mask=mask,
                **cache_argument(self.model, self._cache),
                **previous_argument(self.config, self._previous_ids[:lines]),
                use_cache=True,
                logits_to_keep=1,
            )

        logits = output.logits[:, -1]
        if not len(self._logits):
            self._logits = logits.new_zeros(self._cache.store.lines, logits.shape[1])
        self._logits[:lines] = logits

    def _count_steps(self, steps: int) -> None:
        self._cache.filled = [filled + steps for filled in self._cache.filled]
        self.counts.decode_steps += steps
        self.counts.decode_rows += steps * len(self.running)
        if self._record is None:
            self.counts.unrecorded_steps += steps
        else:
            self.counts.recorded_steps += steps

    def _draw_tokens(self, logits: Tensor, first: int) -> None:
        """Draw the next token of every row from ``first`` on, and note it; without waiting for either."""
        samplings = [row.request.sampling for row in self.running.items[first:]]
        greedy = any(sampling.is_greedy for sampling in samplings)
        cut = any(sampling.top_p < 1 and not sampling.is_greedy for sampling in samplings)
        self.running.append_tokens(
            first, *draw_tokens(logits, *self.running.draw_settings(first), some_greedy=greedy, some_cut=cut)
        )

    @contextmanager
    def _inference_state(self, activate: bool = True, copies: bool = True) -> Iterator[None]:
        with super()._inference_state(activate, copies):
            if not self.running:
                self._forget_moved_weights()
            yield

    def _forget_moved_weights(self) -> None:
        """Before an empty scheduler starts: forget recordings of weights that have moved."""
        pointers = tuple(tensor.data_ptr() for tensor in (*self.model.parameters(), *self.model.buffers()))
        pointers += self._copies.data_pointers() if self._copies else ()
        if pointers != self._weights:
            self._recordings.clear()
            self._weights = pointers
