"""Weights of linear layers in oneDNN's layout, for decoding on a CPU in float32.

Of few rows ``F.linear`` on a CPU lays the weight out anew at every call, which takes longer than the product. Laid out
once after every update, decoding of a model that is larger than the caches is some 1.5 times as fast; a small model,
whose weights stay in the caches, gets slower. It costs 4 bytes a weight. The numbers are the same up to rounding, which
the engine's check of decoded logits holds against the model's own forward pass.

Left out: layers narrower than ``NARROWEST``, such as those of adapters, which gain nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from cotrain.models.linear import OneDNNLinear, multiply

NARROWEST = 64
PROBE_ROWS = 32  # rows of a probe
PROBE_NUMBERS = 2**25  # numbers in all of its matrices together
PROBE_TURNS = 5  # passes of each kind
LEAST_GAIN = 1.1


LayOut = Callable[[nn.Linear], Callable[[Tensor], Tensor]]  # layer → its product with its present weights


def lay_out_onednn(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
    """The layer's product with its present weights in oneDNN's layout."""
    weight = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach().contiguous())
    return partial(multiply, weight=weight, bias=layer.bias)


def can_lay_out(module: nn.Module) -> bool:
    """Whether this is a linear layer in float32 (not one in 4 bits, say) that is wide enough."""
    if type(module) not in (nn.Linear, OneDNNLinear):
        return False
    weight = module._parameters["weight"]
    return weight is not None and weight.dtype == torch.float32 and min(weight.shape) >= NARROWEST


class PackedWeights:
    """Packed weights of one module, which several policies may share. Has the methods of ``HalfPrecisionCopies``."""

    def __init__(self, model: nn.Module, lay_out: LayOut = lay_out_onednn, *, approximate: bool = False) -> None:
        """Nothing is laid out before ``refresh``. ``approximate``: products differ from the layers' by more than
        rounding in float32."""
        self.model = model
        self.approximate = approximate
        self._lay_out = lay_out
        self._packed: dict[nn.Linear, tuple[tuple[int, int], Callable[[Tensor], Tensor]]] = {}

    @torch.inference_mode()
    def refresh(self) -> None:
        """Lay out what has changed since the last call: whatever writes to a tensor raises its version."""
        packed = {}
        for module in self.model.modules():
            if not can_lay_out(module) or "forward" in vars(module):
                continue
            assert isinstance(module, nn.Linear)
            state = (module.weight.data_ptr(), module.weight._version)
            old = self._packed.pop(module, None)
            if old and old[0] != state:
                old = None  # its memory is free before the new one is made
            packed[module] = old or (state, self._lay_out(module))
        self._packed = packed

    def clear(self) -> None:
        self._packed = {}

    @contextmanager
    def use_copies(self) -> Iterator[None]:
        """Within the block, the layers compute with what was laid out."""
        for module, (_, forward) in self._packed.items():
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module in self._packed:
                del vars(module)["forward"]


def can_pack() -> bool:
    """Whether this build of torch has oneDNN's layout."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


@torch.inference_mode()
def measure_gain(shapes: Sequence[tuple[int, int]]) -> float:
    """How many times as fast products with ``PROBE_ROWS`` rows are when weights of these shapes (out, in) are laid out
    beforehand: the fastest of a few passes over the first of them, with the threads that torch has now."""
    layers: list[nn.Linear] = []
    numbers = 0
    for out, width in shapes:
        if min(out, width) >= NARROWEST and (not layers or numbers + out * width <= PROBE_NUMBERS):
            layers.append(nn.Linear(width, out, bias=False, device="meta"))  # which draws nothing
            layers[-1].weight = nn.Parameter(torch.full((out, width), 0.01), requires_grad=False)
            numbers += out * width

    inputs = {layer.in_features: torch.ones(PROBE_ROWS, layer.in_features) for layer in layers}
    kinds: list[list[Callable[[Tensor], Tensor]]] = [
        [layer.forward for layer in layers],
        list(map(lay_out_onednn, layers)),
    ]
    seconds: list[list[float]] = [[], []]
    for _ in range(PROBE_TURNS):
        for measured, products in zip(seconds, kinds, strict=True):
            began = time.perf_counter()
            for layer, product in zip(layers, products, strict=True):
                product(inputs[layer.in_features])
            measured.append(time.perf_counter() - began)
    return min(seconds[0]) / min(seconds[1]) if layers else 1.0
