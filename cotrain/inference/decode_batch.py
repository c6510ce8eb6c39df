"""The batch that is being decoded: settings of each request as tensors, the tokens that it has sampled, and how the
next one is drawn.

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
from cotrain.core.types import COLDEST, Completion
from cotrain.inference.contract import Request
from cotrain.inference.kv_cache import fill_gaps
from cotrain.models.memory import float64_device
from cotrain.prompts.decoding import StopMatcher

# -- Drawing tokens: uniforms by counter, then the inverse of the cumulative distribution.
#
# The t-th uniform of a request is the t-th output of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
# pseudorandom number generators") started at the request's seed. Nothing is carried from token to token, so a request
# draws the same tokens in any batch, in any row and after any interruption.
#
# The distribution is summed in integers: each probability becomes ``floor(p * 2**50)``. Integer sums do not depend on
# the order of addition, and the token that is found has a weight of at least one: what is impossible is never drawn,
# whatever the rounding. Weights below ``2**-50`` are lost, which no run can notice.
#
# Left out: top-k, min-p and penalties. A policy gradient is about the distribution that was sampled from, and each of
# these cuts it in a way that the learner would have to repeat.


_MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15  # the increment of SplitMix64
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_AT_ONCE = 2**18  # logits that a CPU draws from at once: what is made of them stays in its caches
_LEAST = -1e9  # a log-probability below which is none
_LARGE = 8192  # least columns of a vocabulary that is searched in blocks
_BLOCK = 512  # columns of a block
_SCALE = 2.0**50  # scale of probabilities as integers; sums stay below 2**51, where float64 is exact


def hash_counter(seeds: Tensor, positions: Tensor) -> Tensor:
    """Output number ``positions`` (from 0) of SplitMix64 started at ``seeds``, as the int64 with the same 64 bits.

    Args:
        seeds: ``[B]`` int64.
        positions: ``[B]`` int64, non-negative.

    Products and sums wrap around, as in C with uint64.
    """
    z = seeds + (positions + 1) * _signed_int64(GAMMA)
    z = (z ^ _shift_right(z, 30)) * _signed_int64(_FIRST)
    z = (z ^ _shift_right(z, 27)) * _signed_int64(_SECOND)
    return z ^ _shift_right(z, 31)


def uniform_numbers(seeds: Tensor, positions: Tensor) -> Tensor:
    """[B] float64 in the open interval (0, 1): the upper 52 bits of the hash, at the middle of their cell."""
    wide = float64_device(seeds.device)
    bits = _shift_right(hash_counter(seeds.to(wide), positions.to(wide)), 12)
    return (bits.double() + 0.5) * 2.0**-52


def draw_tokens(
    logits: Tensor,
    uniform: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    *,
    some_greedy: bool | None = None,
    some_cut: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw one token per row.

    Args:
        logits: [B, V] of any float type.
        uniform: [B] float64 in (0, 1).
        temperature: [B] float32; below ``COLDEST`` tokens are greedy, and ``uniform`` and ``top_p`` are not used.
        top_p: [B] float32 in (0, 1]: the likeliest tokens that hold this mass between them are kept, at least one.
        some_greedy, some_cut: may a row be greedy, and may another's ``top_p`` be below 1? None looks, which on a GPU
            waits for it.

    Returns tokens [B] int64, their log-probabilities [B] float32 under the distribution that was sampled from (divided
    by the temperature, cut and renormalised), and its entropy [B] float32 in nats; of greedy tokens those of the plain
    softmax. Rows with a logit that is not a number give a log-probability that is not a number.
    """
    rows, vocabulary = logits.shape
    rows_at_once = max(1, _AT_ONCE // vocabulary)
    if logits.device.type != "cpu" or rows <= rows_at_once:
        return _draw_at_once(logits, uniform, temperature, top_p, some_greedy=some_greedy, some_cut=some_cut)
    parts = []
    for part in zip(*(x.split(rows_at_once) for x in (logits, uniform, temperature, top_p)), strict=True):
        parts.append(_draw_at_once(*part, some_greedy=some_greedy, some_cut=some_cut))
    tokens, logprobs, entropies = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(logprobs), torch.cat(entropies)


def _draw_at_once(
    logits: Tensor,
    uniform: Tensor,
    temperature: Tensor,
    top_p: Tensor,
    *,
    some_greedy: bool | None,
    some_cut: bool | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``draw_tokens`` of all rows together."""
    device = logits.device
    wide = float64_device(logits.device)
    if wide != device:
        logits = logits.to(wide)
        uniform = uniform.to(wide)
        temperature = temperature.to(wide)
        top_p = top_p.to(wide)
    greedy = temperature < COLDEST
    scaled = logits / torch.where(greedy, 1.0, temperature)[:, None]  # in float32, whatever the logits are
    logp = torch.log_softmax(scaled.float(), dim=-1)  # [B, V]
    if some_cut is None:
        some_cut = bool(((top_p < 1) & ~greedy).any())
    if some_cut:
        logp = torch.where((greedy | (top_p >= 1))[:, None], logp, _cut_top_p(logp, top_p))
    logp.clamp_(min=_LEAST)  # a token of probability 0 adds 0 to the entropy, and not 0 times infinity
    p = logp.exp()
    entropies = -(p * logp).sum(-1)
    tokens = _find_tokens(p.mul_(_SCALE).to(torch.int64), uniform)
    if some_greedy is None:
        some_greedy = bool(greedy.any())
    if some_greedy:
        tokens = torch.where(greedy, logp.argmax(-1), tokens)
    logprobs = logp.gather(1, tokens[:, None]).squeeze(1)
    return tokens.to(device), logprobs.to(device), entropies.to(device)


def _find_tokens(weights: Tensor, uniform: Tensor) -> Tensor:
    """[B] where the running sum of a row of ``weights`` [B, V] passes ``uniform`` of its whole. A large vocabulary is
    looked through in two stages, blocks and then the columns of one, so that its running sums are never written."""
    size = weights.shape[-1]
    if size < _LARGE:
        total = weights.cumsum(-1)
        return torch.searchsorted(total, _find_targets(total, uniform), right=True).squeeze(1).clamp(max=size - 1)
    whole = size // _BLOCK * _BLOCK
    parts = weights[:, :whole].unflatten(1, (-1, _BLOCK)).sum(-1), weights[:, whole:].sum(-1, keepdim=True)
    sums = torch.cat(parts, dim=1)  # [B, blocks]
    total = sums.cumsum(-1)
    target = _find_targets(total, uniform)
    block = torch.searchsorted(total, target, right=True).clamp(max=total.shape[1] - 1)
    before = (total - sums).gather(1, block)
    columns = block * _BLOCK + torch.arange(_BLOCK, device=weights.device)
    within = weights.gather(1, columns.clamp(max=size - 1)).cumsum(-1)
    tokens = block * _BLOCK + torch.searchsorted(within, target - before, right=True)
    return tokens.squeeze(1).clamp(max=size - 1)


def _find_targets(total: Tensor, uniform: Tensor) -> Tensor:
    """[B, 1] the sum that the token must pass, of running sums ``total`` [B, N]."""
    mass = total[:, -1]
    return torch.minimum((uniform * mass).to(torch.int64), mass - 1)[:, None]


def _cut_top_p(logp: Tensor, top_p: Tensor) -> Tensor:
    """Log-probabilities [B, V] renormalised over the smallest set of likeliest tokens whose mass reaches ``top_p``."""
    ranked, order = logp.sort(dim=-1, descending=True, stable=True)
    before = ranked.double().exp().cumsum(-1).roll(1, dims=-1)  # mass of the likelier tokens
    before[:, 0] = -1.0  # below every ``top_p``, also one that is 0 as a float32
    keep = torch.zeros_like(logp, dtype=torch.bool).scatter(1, order, before < top_p[:, None].double())
    return torch.log_softmax(logp.masked_fill(~keep, -torch.inf), dim=-1)


def _signed_int64(constant: int) -> int:
    """The int64 with the bits of an unsigned 64-bit constant."""
    return (constant & _MASK) - (2**64 if constant >> 63 else 0)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch shifts int64 arithmetically, so the copies of the sign are masked off."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


# Last token, and the one before it; tokens drawn, to draw at most, in the prompt; seed.
LAST, PREVIOUS, DRAWN, MOST, PROMPT, SEED = range(6)
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
    stop_matcher: StopMatcher | None = None  # for stop strings
    broken: bool = False  # its logits were not numbers

    @property
    def sort_key(self) -> tuple[Any, ...]:
        return (self.request.address, self.request.seed)

    @property
    def finish(self) -> str:
        """ "stop" or "length", of a row that has finished."""
        stopped = self.stop_matcher is not None and self.stop_matcher.count is not None
        return "stop" if stopped or self.token_ids[-1] in self.request.stop_ids else "length"


class Rows:
    """R running rows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.items: list[Row] = []
        self.broken: set[int] = set()  # rows whose logits were not numbers; they leave with those that have finished
        self._state = torch.zeros(0, 6, dtype=torch.int64, device=device)  # [R, 6]
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
    def previous_tokens(self) -> Tensor:
        """[R, 1] the tokens before these."""
        return self._state[:, PREVIOUS : PREVIOUS + 1]

    @property
    def positions(self) -> Tensor:
        """[R, 1] where these tokens stand in their sequences."""
        return (self._state[:, PROMPT] + self._state[:, DRAWN] - 1)[:, None]

    def draw_settings(self, first: int) -> tuple[Tensor, Tensor, Tensor]:
        """The uniform numbers of the next tokens, temperatures and top_p of the rows from ``first`` on."""
        state = self._state[first:]
        sampling = self._sampling[first:]
        return uniform_numbers(state[:, SEED], state[:, DRAWN]), sampling[:, 0], sampling[:, 1]

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Append rows that have drawn nothing yet."""
        requests = [row.request for row in rows]
        most = max(r.sampling.max_tokens for r in requests)
        stops = max(len(r.stop_ids) for r in requests)
        state = [[r.prompt_ids[-1], _NO_TOKEN, 0, r.sampling.max_tokens, len(r.prompt_ids), r.seed] for r in requests]
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
        state[:, PREVIOUS] = state[:, LAST]
        state[:, LAST] = tokens
        state[:, DRAWN] += 1

    def collect_finished(self) -> list[int]:
        """The rows with nothing more to draw, which get their tokens, and those that are broken."""
        stopped = self.find_stopped()
        done = self._done_mask()
        done[list(stopped)] = True
        done_rows = done.nonzero()[:, 0]
        finished: list[int] = done_rows.tolist()
        broken = self.broken
        self.broken = set()
        for i in broken:
            self.items[i].broken = True
        if finished:
            sampled = self._state[done_rows, DRAWN], self._tokens[done_rows], self._logprobs[done_rows]
            columns = (x.tolist() for x in (*sampled, self._entropy_levels(done_rows)))
            for i, count, *values in zip(finished, *columns, strict=True):
                self._store_tokens(i, stopped.get(i, count), *values)
        return sorted({*finished, *broken})

    def find_stopped(self) -> dict[int, int]:
        """The rows whose text contains a stop string, with the number of their tokens up to and with its end."""
        matched_rows = [(i, row.stop_matcher) for i, row in enumerate(self.items) if row.stop_matcher is not None]
        if not matched_rows:
            return {}
        rows = [i for i, _ in matched_rows]
        first = min(matcher.seen for _, matcher in matched_rows)
        counts: list[int] = self._state[rows, DRAWN].tolist()
        tokens = self._tokens[rows, first : max(counts)].tolist()
        ends = {}
        for (i, matcher), count, ids in zip(matched_rows, counts, tokens, strict=True):
            end = matcher.read(ids[matcher.seen - first : count - first])
            if end is not None:
                ends[i] = end
        return ends

    def _store_tokens(self, i: int, count: int, ids: list[int], values: list[float], levels: list[int]) -> None:
        """Give a row that has finished its first ``count`` tokens."""
        row = self.items[i]
        row.token_ids = tuple(ids[:count])
        row.logprobs = tuple(values[:count])
        row.entropies = bytes(levels[:count])

    def _entropy_levels(self, rows: Tensor) -> Tensor:
        """[r, largest max_tokens] uint8: the entropies of these rows as levels."""
        levels = (self._entropies[rows].clamp(min=0).sqrt() * entropy.LEVELS_PER_ROOT_NAT).round()
        return levels.clamp(max=entropy.MAX_LEVEL).to(torch.uint8)

    def _done_mask(self) -> Tensor:
        """[R] bool: has as many tokens as it may, or a stop token."""
        last = self._state[:, LAST : LAST + 1]
        full = self._state[:, DRAWN] == self._state[:, MOST]
        return full | (self._stops == last).any(1)

    def row_tokens(self) -> list[list[int]]:
        """The tokens of every row so far."""
        counts: list[int] = self._state[:, DRAWN].tolist()
        tokens = self._tokens[:, : max(counts, default=0)].tolist()
        return [ids[:count] for ids, count in zip(tokens, counts, strict=True)]

    def remove_rows(self, holes: Sequence[int], movers: Sequence[int], keep: int) -> None:
        """Keep ``keep`` rows: those at ``movers`` move into ``holes``."""
        fill_gaps(self.items, holes, movers, keep)
        moves = torch.tensor([holes, movers], device=self.device) if holes else None

        def kept_rows(values: Tensor) -> Tensor:
            if moves is not None:
                to, source = moves
                values[to] = values[source]
            return values[:keep]

        self._state = kept_rows(self._state)
        self._sampling = kept_rows(self._sampling)
        self._stops = kept_rows(self._stops)
        self._tokens = kept_rows(self._tokens)
        self._logprobs = kept_rows(self._logprobs)
        self._entropies = kept_rows(self._entropies)


def _stack_padded(old: Tensor, new: Tensor) -> Tensor:
    """``new`` below ``old``; the narrower one is padded with _NO_TOKEN."""
    width = max(old.shape[1], new.shape[1])
    old = F.pad(old, (0, width - old.shape[1]), value=_NO_TOKEN)
    new = F.pad(new.to(old.device), (0, width - new.shape[1]), value=_NO_TOKEN)
    return torch.cat([old, new])
