"""The batch that is being decoded: settings of each request as tensors, and the tokens that it has sampled so far.

Nothing here is done row by row while a row runs; its tokens leave the tensors when it has finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cotrain.core import entropy
from cotrain.core.types import Completion
from cotrain.engine.cache import fill_gaps
from cotrain.engine.contract import Request
from cotrain.engine.sampling import uniform_numbers
from cotrain.text.stops import StopWatch

LAST, DRAWN, MOST, PROMPT, SEED = range(5)  # last token; tokens drawn, to draw at most, in the prompt; seed
_NO_TOKEN = -1


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A request that waits or runs, and what it has sampled, once it has finished."""

    request: Request
    future: asyncio.Future[Completion]
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    entropies: bytes = b""
    score: float | None = None
    watch: StopWatch | None = None  # for stop strings
    broken: bool = False  # its logits were not numbers

    @property
    def sort_key(self) -> tuple[Any, ...]:
        return (self.request.address, self.request.seed)

    @property
    def finish(self) -> str:
        """ "stop" or "length", of a row that has finished."""
        stopped = self.watch is not None and self.watch.count is not None
        return "stop" if stopped or self.token_ids[-1] in self.request.stop_ids else "length"


class Rows:
    """R running rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.items: list[Row] = []
        self.broken: set[int] = set()  # rows whose logits were not numbers; they leave with those that have finished
        self._state = torch.zeros(0, 5, dtype=torch.int64, device=device)  # [R, 5]
        self._sampling = torch.zeros(0, 2, device=device)  # [R, 2] temperature, top_p
        self._stops = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [R, S], padded with _NO_TOKEN
        self._tokens = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [R, largest max_tokens]
        self._logprobs = torch.zeros(0, 0, device=device)  # [R, largest max_tokens]
        self._entropies = torch.zeros(0, 0, device=device)  # [R, largest max_tokens]

    def __len__(self) -> int:
        return len(self.items)

    @property
    def last_tokens(self) -> Tensor:
        """[R, 1] the tokens to feed next."""
        return self._state[:, LAST : LAST + 1]

    @property
    def positions(self) -> Tensor:
        """[R, 1] where these tokens stand in their sequences."""
        return (self._state[:, PROMPT] + self._state[:, DRAWN] - 1)[:, None]

    def draw_settings(self, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of the rows from ``first`` on: the uniforms of their next tokens, temperatures and top_p."""
        state, sampling = self._state[first:], self._sampling[first:]
        return uniform_numbers(state[:, SEED], state[:, DRAWN]), sampling[:, 0], sampling[:, 1]

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Append rows that have drawn nothing yet."""
        requests = [row.request for row in rows]
        most = max(r.sampling.max_tokens for r in requests)
        stops = max(len(r.stop_ids) for r in requests)
        state = [[_NO_TOKEN, 0, r.sampling.max_tokens, len(r.prompt_ids), r.seed] for r in requests]
        sampling = [[r.sampling.temperature, r.sampling.top_p] for r in requests]
        padded = [[*r.stop_ids, *[_NO_TOKEN] * (stops - len(r.stop_ids))] for r in requests]
        self._state = _stack_padded(self._state, torch.tensor(state))
        self._sampling = _stack_padded(self._sampling, torch.tensor(sampling))
        self._stops = _stack_padded(self._stops, torch.tensor(padded, dtype=torch.int64))
        self._tokens = _stack_padded(self._tokens, torch.zeros(len(rows), most, dtype=torch.int64))
        self._logprobs = _stack_padded(self._logprobs, torch.zeros(len(rows), most))
        self._entropies = _stack_padded(self._entropies, torch.zeros(len(rows), most))
        self.items += rows

    def append_tokens(self, first: int, tokens: Tensor, logprobs: Tensor, entropies: Tensor) -> None:
        """Append a token to every row from ``first`` on."""
        state = self._state[first:]
        at = state[:, DRAWN : DRAWN + 1]
        self._tokens[first:].scatter_(1, at, tokens[:, None])
        self._logprobs[first:].scatter_(1, at, logprobs[:, None])
        self._entropies[first:].scatter_(1, at, entropies[:, None])
        state[:, LAST] = tokens
        state[:, DRAWN] += 1

    def collect_finished(self) -> list[int]:
        """The rows with nothing more to draw, which get their tokens, and those that are broken."""
        stopped = self.find_stopped()
        done = self._done_mask()
        done[list(stopped)] = True
        done_rows = done.nonzero()[:, 0]
        finished: list[int] = done_rows.tolist()
        broken, self.broken = self.broken, set()
        for i in broken:
            self.items[i].broken = True
        if finished:
            columns = (
                self._state[done_rows, DRAWN],
                self._tokens[done_rows],
                self._logprobs[done_rows],
                self._entropy_levels(done_rows),
            )
            for i, count, *values in zip(finished, *(x.tolist() for x in columns), strict=True):
                self._store_tokens(i, stopped.get(i, count), *values)
        return sorted({*finished, *broken})

    def find_stopped(self) -> dict[int, int]:
        """The rows whose text contains a stop string, with the number of their tokens up to and with its end."""
        watched = [(i, row.watch) for i, row in enumerate(self.items) if row.watch is not None]
        if not watched:
            return {}
        rows, first = [i for i, _ in watched], min(watch.seen for _, watch in watched)
        counts: list[int] = self._state[rows, DRAWN].tolist()
        tokens = self._tokens[rows, first : max(counts)].tolist()
        ends = {}
        for (i, watch), count, ids in zip(watched, counts, tokens, strict=True):
            end = watch.read(ids[watch.seen - first : count - first])
            if end is not None:
                ends[i] = end
        return ends

    def _store_tokens(self, i: int, count: int, ids: list[int], values: list[float], levels: list[int]) -> None:
        """Give a row that has finished its first ``count`` tokens."""
        row = self.items[i]
        row.token_ids, row.logprobs, row.entropies = tuple(ids[:count]), tuple(values[:count]), bytes(levels[:count])

    def _entropy_levels(self, rows: Tensor) -> Tensor:
        """[r, largest max_tokens] uint8: the entropies of these rows as levels."""
        return (
            (self._entropies[rows].clamp(min=0).sqrt() * entropy.PER_ROOT)
            .round()
            .clamp(max=entropy.MOST)
            .to(torch.uint8)
        )

    def _done_mask(self) -> Tensor:
        """[R] bool: has as many tokens as it may, or a stop token."""
        last, full = self._state[:, LAST : LAST + 1], self._state[:, DRAWN] == self._state[:, MOST]
        return full | (self._stops == last).any(1)

    def row_tokens(self) -> list[list[int]]:
        """The tokens of every row so far."""
        counts: list[int] = self._state[:, DRAWN].tolist()
        tokens = self._tokens[:, : max(counts, default=0)].tolist()
        return [ids[:count] for ids, count in zip(tokens, counts, strict=True)]

    def remove_rows(self, holes: Sequence[int], movers: Sequence[int], keep: int) -> None:
        """Keep ``keep`` rows: those at ``movers`` move into ``holes``."""
        fill_gaps(self.items, holes, movers, keep)
        stores = ("_state", "_sampling", "_stops", "_tokens", "_logprobs", "_entropies")
        if holes:
            to, source = torch.tensor([holes, movers], device=self.device)
            for values in (getattr(self, name) for name in stores):
                values[to] = values[source]
        for name in stores:
            setattr(self, name, getattr(self, name)[:keep])


def _stack_padded(old: Tensor, new: Tensor) -> Tensor:
    """``new`` below ``old``; the narrower one is padded with _NO_TOKEN."""
    width = max(old.shape[1], new.shape[1])
    return torch.cat([F.pad(x.to(old.device), (0, width - x.shape[1]), value=_NO_TOKEN) for x in (old, new)])
