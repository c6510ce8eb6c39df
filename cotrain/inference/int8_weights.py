"""Linear layers with weights of 8 bits, for a sampler on a CPU.

::

    W ≈ s(W) · q(W)                     q(v) = round(v / s(v)) in 8 bits, s(v) = max |v| / 127
    x ≈ s(x) · (q(x) + r(x) / 254)      r(x) = round(254 · (x / s(x) − q(x))) in 8 bits: what q(x) has rounded away
    y = x Wᵀ + b ≈ s(x) s(W) · (q(x) q(W)ᵀ + r(x) q(W)ᵀ / 254) + b

Each output of a layer has a scale, computed when its weights are laid out; each row of the input has one, computed at
each call. The two products are one of twice as many rows, so the weights are read once. Sums of whole numbers are
exact (``check_products``): what a row gets does not depend on the rows beside it. A copy takes 1 byte a weight. The
learner's weights are read, never changed.

With q(x) alone the inputs of real models lose too much: single numbers are 40 times as large as the rest of their row,
which then is rounded to nothing. With r(x) the error is that of the weights.

The numbers are not those of float32: sampler and learner differ by some hundredths of a nat a token
(``sampler_trainer_diff``). The loss corrects for it by its importance ratio, as samples carry the log-probabilities
with which they were drawn.

Left out: layers narrower than ``NARROWEST`` and matrices outside of linear layers stay in float32, and one warning
counts them. Embeddings are looked up and not multiplied. Keys and values are not quantised, so attention is exact.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from cotrain.core.errors import ModelError
from cotrain.inference.packed_weights import NARROWEST, can_lay_out

LARGEST = 127  # of a quantised number; −128 is not used, so that the range is symmetric
FINER = 2 * LARGEST  # how much finer the steps of r are: what is rounded away is at most half a step of q
LEAST_SCALE = 1e-12  # of a row or a channel that is all zeros
BLOCK = 8192  # outputs that are computed at a time, so that their whole numbers stay in the caches


def lay_out_int8(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The layer's product with its present weights in 8 bits."""
    blocks = []
    for part in layer.weight.detach().split(BLOCK):  # [at most BLOCK, in]
        scale = _scale_of(part)
        weight = (part / scale).round_().to(torch.int8).t().contiguous()  # as the product reads it
        blocks.append((weight, scale[:, 0]))
    return partial(multiply_int8, blocks=blocks, out=layer.out_features, bias=layer.bias)


def multiply_int8(rows: Tensor, blocks: Sequence[tuple[Tensor, Tensor]], out: int, bias: Tensor | None) -> Tensor:
    """``[…, in]`` → ``[…, out]``. ``blocks``: weights, int8 ``[in, at most BLOCK]``, and scales of their outputs."""
    flat = rows.reshape(-1, rows.shape[-1])
    n_rows = len(flat)
    row_scale = _scale_of(flat)  # [n, 1]
    scaled = flat / row_scale
    coarse = scaled.round()
    fine = scaled.sub_(coarse).mul_(FINER).round_()
    whole = torch.cat([coarse, fine]).to(torch.int8)  # [2n, in]

    output = flat.new_empty(n_rows, out)
    for (weight, scale), place in zip(blocks, output.split(BLOCK, dim=1), strict=True):
        products = torch._int_mm(whole, weight)
        place.copy_(products[:n_rows]).add_(products[n_rows:], alpha=1 / FINER)
        place.mul_(row_scale).mul_(scale)
    if bias is not None:
        output.add_(bias)
    return output.view(*rows.shape[:-1], out)


def _scale_of(matrix: Tensor) -> Tensor:
    """``[n, 1]``, one for each row. Not a number where the row holds such, so that its products are none either."""
    return matrix.abs().amax(1, keepdim=True).div_(LARGEST).clamp_(min=LEAST_SCALE)


def check_products(policy: str) -> None:
    """Raise ModelError where sums are not exact: processors without instructions for it add pairs in 16 bits."""
    numbers = torch.full((64, 64), LARGEST, dtype=torch.int8)
    for sign in (1, -1):
        if bool((torch._int_mm(numbers, sign * numbers) != sign * 64 * LARGEST**2).any()):
            raise ModelError(
                f"policy {policy!r}: this processor's products of 8 bits are not exact, as their sums overflow 16 "
                "bits; leave out pack_weights=int8",
                code="E_EIGHT_BIT_PRODUCTS",
            )


def check_layers(policy: str, model: nn.Module) -> None:
    """Raise ModelError for a model without a layer that can be quantised; warn of matrices that stay in float32."""
    quantised = 0
    left_out: Counter[str] = Counter()  # numbers in matrices, by why they stay
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            continue
        for weight in module.parameters(recurse=False):
            if weight.ndim < 2:
                continue
            if can_lay_out(module):
                quantised += weight.numel()
            elif isinstance(module, nn.Linear) and min(weight.shape) < NARROWEST:
                left_out[f"narrower than {NARROWEST}"] += weight.numel()
            else:
                left_out[f"of {type(module).__name__}"] += weight.numel()

    reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(left_out.items()))
    if not quantised:
        raise ModelError(
            f"policy {policy!r}: {type(model).__name__} has no linear layer for int8 weights (numbers in matrices: "
            f"{reasons or 0}); expected layers at least {NARROWEST} wide; leave out pack_weights=int8",
            code="E_EIGHT_BIT_NO_LAYER",
        )
    if left_out:
        share = quantised / (quantised + left_out.total())
        warnings.warn(
            f"policy {policy!r}: {share:.1%} of the weights in matrices are sampled in int8; in float32 stay {reasons}",
            RuntimeWarning,
            stacklevel=4,
        )
