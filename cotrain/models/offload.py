"""Models that take turns on a device: policies that do not compute are in the machine's own memory (``--offload``).

::

    stage      on the device      in the machine's memory
    rollout    generator          reference, verifier
    reference  reference          generator, verifier
    update     generator          reference, verifier

Before each pass of a policy a function is called that loads its weights and selects its adapter, so stages need not be
announced. Weights are moved away only when another policy needs the device, so a policy that works alone is never
moved. The parts that are moved are the base of a model (without adapters) and each adapter. Copies are exact, so
results have the same bits.

The learner moves the moments of its optimiser itself (``learner/learner.py``). Left out: pinned memory, copies during
computation, and the keys and values of conversations that continue, which stay on the device.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from cotrain.models.memory import release_gpu_cache

Part = tuple[int, str]  # (id of the module, the policy of the adapter; "" for the base)
HOST = torch.device("cpu")
ADAPTER = "policy-"  # begins the name of each adapter's layers (``adapters.py``)


class Residence:
    """Keeps track of whose weights are on the device of this process, and moves them."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._modules: dict[Part, list[nn.Module]] = {}  # modules whose own parameters make up the part
        self._on_device: set[Part] = set()
        self._never_moved: set[Part] = set()  # parts of policies without offload
        self._releases: dict[int, list[Callable[[], None]]] = defaultdict(list)  # id of a model → see ``on_rest``
        self._current = ""  # the policy that was loaded last

    def add_policy(
        self, policy: str, model: nn.Module, *, rests: bool, adapter: bool, select: Callable[[], object] | None
    ) -> Callable[[], None]:
        """Register a policy. Returns the function to call before each of its passes.

        Args:
            model: the policy's model, which is in the machine's memory until then.
            rests: whether it may be moved off the device.
            adapter: whether the policy is an adapter in ``model``.
            select: selects that adapter, or no adapter for the base; None if the model has none.
        """
        base = (id(model), "")
        parts = {base}
        modules = [(path.split("."), module) for path, module in model.named_modules()]

        def is_in_adapter(path: list[str]) -> bool:
            return any(name.startswith(ADAPTER) for name in path)

        self._modules[base] = [module for path, module in modules if not is_in_adapter(path)]
        if adapter:
            own = (id(model), policy)
            self._modules[own] = [module for path, module in modules if path[-1] == ADAPTER + policy]
            parts.add(own)
        if not rests:
            self._never_moved |= parts
        return partial(self._load, policy, parts, select or _select_nothing)

    def on_rest(self, model: nn.Module, release: Callable[[], None]) -> None:
        """Call ``release`` whenever the model leaves the device, to free what was derived from its weights there."""
        self._releases[id(model)].append(release)

    def _load(self, policy: str, parts: set[Part], select: Callable[[], object]) -> None:
        """Move the parts of a policy to the device, and others away from it; then select its adapter."""
        if policy != self._current:
            leaving = self._on_device - self._never_moved - parts
            for model_id, adapter in leaving:
                if not adapter:
                    for release in self._releases[model_id]:
                        release()
            self._move(leaving, HOST)
            self._on_device -= leaving
            release_gpu_cache(self.device)

            coming = parts - self._on_device
            self._on_device |= parts
            self._move(coming, self.device)
            self._current = policy

        select()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _move(self, parts: Iterable[Part], device: torch.device) -> None:
        """Move the parts in place, so that references to parameters stay valid."""
        for part in parts:
            for module in self._modules[part]:
                module._apply(lambda tensor: tensor.to(device), recurse=False)


def _select_nothing() -> None:
    """Do nothing: the model has no adapter."""
