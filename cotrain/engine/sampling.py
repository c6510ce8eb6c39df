"""Drawing tokens: uniforms by counter, then the inverse of the cumulative distribution.

The t-th uniform of a request is the t-th output of SplitMix64 (Steele, Lea and Flood 2014, "Fast splittable
pseudorandom number generators") started at the request's seed. Nothing is carried from token to token, so a request
draws the same tokens in any batch, in any row and after any interruption.

The distribution is summed in integers: each probability becomes ``floor(p * 2**50)``. Integer sums do not depend on
the order of addition, and the token that is found has a weight of at least one: what is impossible is never drawn,
whatever the rounding. Weights below ``2**-50`` are lost, which no run can notice.

Left out: top-k, min-p and penalties. A policy gradient is about the distribution that was sampled from, and each of
these cuts it in a way that the learner would have to repeat.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cotrain.core.types import COLDEST

_MASK = 2**64 - 1
GAMMA = 0x9E3779B97F4A7C15  # the increment of SplitMix64
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_LEAST = -1e9  # a log-probability below which is none
_SCALE = 2.0**50  # of probabilities as integers; sums stay below 2**51, where float64 is exact


def hash_counter(seeds: Tensor, positions: Tensor) -> Tensor:
    """Output number ``positions`` (from 0) of SplitMix64 started at ``seeds``, as the int64 with the same 64 bits.

    Args: seeds [B] int64; positions [B] int64, non-negative. Products and sums wrap around, as in C with uint64.
    """
    z = seeds + (positions + 1) * _signed_int64(GAMMA)
    z = (z ^ _shift_right(z, 30)) * _signed_int64(_FIRST)
    z = (z ^ _shift_right(z, 27)) * _signed_int64(_SECOND)
    return z ^ _shift_right(z, 31)


def uniform_numbers(seeds: Tensor, positions: Tensor) -> Tensor:
    """[B] float64 in the open interval (0, 1): the upper 52 bits of the hash, at the middle of their cell."""
    return (_shift_right(hash_counter(seeds, positions), 12).double() + 0.5) * 2.0**-52


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
    greedy = temperature < COLDEST
    logp = torch.log_softmax(logits.float() / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)  # [B, V]
    if some_cut is None:
        some_cut = bool(((top_p < 1) & ~greedy).any())
    if some_cut:
        logp = torch.where((greedy | (top_p >= 1))[:, None], logp, _cut_top_p(logp, top_p))
    logp.clamp_(min=_LEAST)  # what is impossible adds 0 to the entropy, and not 0 times infinity
    p = logp.exp()
    entropies = -(p * logp).sum(-1)
    total = p.mul_(_SCALE).to(torch.int64).cumsum(-1)  # [B, V]
    mass = total[:, -1]
    target = torch.minimum((uniform * mass).to(torch.int64), mass - 1)
    tokens = torch.searchsorted(total, target[:, None], right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    if some_greedy is None:
        some_greedy = bool(greedy.any())
    if some_greedy:
        tokens = torch.where(greedy, logp.argmax(-1), tokens)
    return tokens, logp.gather(1, tokens[:, None]).squeeze(1), entropies


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
