"""Copies in half precision of the weights of linear layers, for a sampler that computes in it over float32 weights.

Under autocast every decode step reads a float32 matrix, writes it as bfloat16 and reads that: 10 bytes a weight where
decoding, which is bound by memory, needs 2. A copy that is made once before a batch saves four fifths of that, and the
numbers are the same, bit for bit. It costs 2 bytes a weight. Other weights (norms, embeddings, which are looked up) are
left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class HalfPrecisionCopies:
    """The copies of one module, which several policies may share."""

    approximate = True  # products differ from the layers' by more than rounding in float32

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        """``dtype``: of the copies. None are made before ``refresh``."""
        self.model = model
        self.dtype = dtype
        self._copies: list[tuple[nn.Linear, str, Tensor]] = []

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the present weights, in place where there is a copy of the same shape."""
        copies = {(id(module), name): copy for module, name, copy in self._copies}
        self._copies = []
        for module in self.model.modules():
            if not isinstance(module, nn.Linear):
                continue
            for name in ("weight", "bias"):
                weights = module._parameters.get(name)
                if weights is not None and weights.dtype == torch.float32:
                    copy = copies.get((id(module), name))
                    if copy is None or copy.shape != weights.shape or copy.device != weights.device:
                        copy = torch.empty_like(weights, dtype=self.dtype, requires_grad=False)
                    self._copies.append((module, name, copy.copy_(weights)))

    def clear(self) -> None:
        self._copies = []

    def data_pointers(self) -> tuple[int, ...]:
        """The addresses of the copies in memory."""
        return tuple(copy.data_ptr() for _, _, copy in self._copies)

    @contextmanager
    def use_copies(self) -> Iterator[None]:
        """Within the block, the layers compute with their copies."""
        originals = [module._parameters[name] for module, name, _ in self._copies]
        for module, name, copy in self._copies:
            module._parameters[name] = copy  # type: ignore[assignment]
        try:
            yield
        finally:
            for (module, name, _), weights in zip(self._copies, originals, strict=True):
                module._parameters[name] = weights
