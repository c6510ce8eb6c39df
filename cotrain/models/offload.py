"""Models that take turns on a device: who rests lies in the machine's own memory (``--offload``).

::

    play       generator | start, verifier rest          who computes has its weights on the device, and nobody else
    reference  start     | generator, verifier rest      of those that may rest
    update     generator | start, verifier rest

A policy is woken before each of its passes, by what selects its adapter too, so no phase has to be announced. What is
not asked for stays where it is until another policy needs the device: one that works alone is never moved. Parts are
the base of a model, without adapters, and each adapter. Copies are exact, so results have the same bits.

The moments of optimisers rest by themselves (``learner/learner.py``). Left out: pinned memory, copies next to
computation, and keys and values of conversations that go on, which stay on the device.
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
    """Whose weights are on the device of this process."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._modules: dict[Part, list[nn.Module]] = {}  # those whose own weights are the part
        self._here: set[Part] = set()  # on the device
        self._staying: set[Part] = set()  # parts of policies that never rest
        self._releases: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._awake = ""  # the policy that was woken last

    def add_policy(
        self, policy: str, model: nn.Module, *, rests: bool, adapter: bool, select: Callable[[], object] | None
    ) -> Callable[[], None]:
        """The function to call before each pass of a policy. ``model`` is in the machine's memory until then.
        ``adapter``: the policy is an adapter in it. ``select`` selects that adapter, or none of those there."""
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
            self._staying |= parts
        return partial(self._wake, policy, parts, select or _select_nothing)

    def on_rest(self, model: nn.Module, release: Callable[[], None]) -> None:
        """``release`` is called whenever the model leaves the device: what was made of it there goes too."""
        self._releases[id(model)].append(release)

    def _wake(self, policy: str, parts: set[Part], select: Callable[[], object]) -> None:
        if policy != self._awake:
            leaving = self._here - self._staying - parts
            for module, adapter in leaving:
                if not adapter:
                    for release in self._releases[module]:
                        release()
            self._move(leaving, HOST)
            self._here -= leaving
            release_gpu_cache(self.device)
            coming = parts - self._here
            self._here |= parts
            self._move(coming, self.device)
            self._awake = policy

        select()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _move(self, parts: Iterable[Part], device: torch.device) -> None:
        """Move the parts in place: whoever holds a parameter holds it still."""
        for part in parts:
            for module in self._modules[part]:
                module._apply(lambda tensor: tensor.to(device), recurse=False)


def _select_nothing() -> None:
    """There is no adapter."""
