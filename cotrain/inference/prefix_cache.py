"""A cache of keys and values of finished requests: the next turn of a conversation computes only its new tokens.

They are kept by the address of the request, and found by the one that names it in ``Request.continues``; the oldest go
first when there are too many tokens. So what is found depends on the work alone: whatever earlier rollouts left behind
is older than all that these leave, and goes before it. New weights empty it.

Left out: sharing the trunk of several continuations in memory; each entry is whole.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cotrain.core.seeding import Address

TOKENS = 2**16  # most tokens of all entries of one policy

Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer, [kv_heads, n, head_dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPrefix:
    """Tokens [n] with their keys and values."""

    ids: tuple[int, ...]
    layers: Layers


class PrefixStore:
    """The prefixes that are kept for one policy."""

    def __init__(self) -> None:
        self._entries: dict[Address, KeptPrefix] = {}  # the oldest first
        self._tokens = 0

    def put(self, address: Address, past: KeptPrefix) -> None:
        self._drop_entry(address)
        self._entries[address] = past
        self._tokens += len(past.ids)
        while self._tokens > TOKENS:
            self._drop_entry(next(iter(self._entries)))

    def find(self, address: Address | None, prompt_ids: tuple[int, ...]) -> KeptPrefix | None:
        """The kept prefix of this request, if the prompt begins with it and goes on."""
        past = None if address is None else self._entries.get(address)
        return past if past and len(past.ids) < len(prompt_ids) and prompt_ids[: len(past.ids)] == past.ids else None

    def clear(self) -> None:
        self._entries.clear()
        self._tokens = 0

    def _drop_entry(self, address: Address) -> None:
        past = self._entries.pop(address, None)
        self._tokens -= len(past.ids) if past else 0
