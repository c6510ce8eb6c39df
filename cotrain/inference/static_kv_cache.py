"""A key-value cache of fixed shapes: one line for a row, and the column is the position.

::

    row 0    p p p p p s s s . . . .        p: prompt, s: sampled; what is right of them is hidden
    row 1    p p s s s s s s s . . .
             └─── columns of the view ──┘   a view of some lines and columns is all that a decode step looks at

What a decode step does depends on tensors alone (tokens, positions) once lines and columns of its view are chosen, so
it can be recorded (``cuda_graphs.py``). Lines that no row has stand at position 0 and are computed for nothing.

Left out: sharing of prompts, which ``kv_cache.py`` has: each row holds its own prompt. Memory is lines × columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from cotrain.core.errors import ModelError
from cotrain.inference.kv_cache import KeyValueStore, decoding_problems, fill_gaps
from cotrain.models.shared_prefix import FULL, SLIDING

SLOTS = "cotrain_slots"  # name of ``attend_slots`` among the attention functions of transformers
LEAST_LINES = 8
LEAST_COLUMNS = 128


def lines_for(rows: int) -> int:
    """Lines of a view for so many rows: the next power of two."""
    return max(LEAST_LINES, 1 << (rows - 1).bit_length())


def columns_for(tokens: int) -> int:
    """Columns of a view for so many tokens: the next of 128, 192, 256, 384, 512, 768 …"""
    power = max(LEAST_COLUMNS, 1 << (tokens - 1).bit_length())
    between = power // 4 * 3
    return between if tokens <= between > LEAST_COLUMNS else power


class StaticCache(Cache):
    """Keys and values of all running rows. transformers calls ``update`` once per layer and decode step."""

    def __init__(self, dtype: torch.dtype | None = None, windows: Sequence[int | None] = ()) -> None:
        """``dtype``: what to store; None stores what the model computes. ``windows``: as of ``SharedPrefixCache``."""
        super().__init__(layers=[])
        self.dtype = dtype
        self.window = next((window for window in windows if window is not None), None)
        self.store = KeyValueStore()
        self.lengths: list[int] = []  # [R] tokens of each row's prompt
        self.filled: list[int] = []  # [R] tokens of each row that are stored; an upper bound between two looks
        self.lines = self.columns = 0  # size of the present view
        self._at: Tensor = torch.empty(0)  # [lines, 1, 1, 1] the column that each line writes

    def __len__(self) -> int:
        return len(self.store.keys)

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self)

    def make_room(self, rows: int, tiles: int, longest: int, most: int) -> None:
        """Prepare for so many more rows, with prompts of up to ``longest`` tokens and answers of up to ``most``.

        ``tiles`` is not used: a prompt is stored for each row.
        """
        self.store.grow(lines_for(len(self.filled) + rows), columns_for(longest + most), at_end=False)

    def add_rows(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        index: Sequence[int],
        lengths: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        """As ``SharedPrefixCache.add_rows``: ``layers`` are U prompts padded on the left; of prompt ``index``, of
        ``lengths`` tokens, come ``sizes`` rows."""
        if not self.store.keys:
            self.store.create(layers, self.dtype)
        device = layers[0][0].device
        width = layers[0][0].shape[2]
        sources = [i for i, size in zip(index, sizes, strict=True) for _ in range(size)]
        tokens = [length for length, size in zip(lengths, sizes, strict=True) for _ in range(size)]
        which, pads = torch.tensor([sources, [width - count for count in tokens]], device=device)[:, :, None]
        columns = (torch.arange(width, device=device) + pads).clamp(max=width - 1)  # [rows, width]
        lines = slice(len(self.filled), len(self.filled) + len(tokens))
        for new, keys, values in zip(layers, self.store.keys, self.store.values, strict=True):
            for source, target in zip(new, (keys, values), strict=True):
                target[lines, :, :width] = source[which, :, columns].transpose(1, 2)
                target[lines, :, width:] = 0  # what a row before left there: a masked column must hold finite numbers

        self.filled += tokens
        self.lengths += tokens

    def remove_rows(self, holes: Sequence[int], movers: Sequence[int], keep: int) -> None:
        """Keep ``keep`` rows: those at ``movers`` move into ``holes``."""
        if holes:
            used = min(max(self.filled), self.store.columns)
            to, source = torch.tensor([list(holes), list(movers)], device=self.store.keys[0].device)
            for tensor in (*self.store.keys, *self.store.values):
                tensor[:, :, :used].index_copy_(0, to, tensor[:, :, :used].index_select(0, source))
        fill_gaps(self.filled, holes, movers, keep)
        fill_gaps(self.lengths, holes, movers, keep)

    def copy_row(self, row: int, token_count: int) -> list[tuple[Tensor, Tensor]]:
        """As ``SharedPrefixCache.copy_row``."""
        end = self.lengths[row] + token_count
        return [
            (keys[row, :, :end].clone(), values[row, :, :end].clone())
            for keys, values in zip(self.store.keys, self.store.values, strict=True)
        ]

    def set_view(self, positions: Tensor, columns: int) -> Tensor | dict[str, Tensor]:
        """Choose what the coming step looks at: the first lines, as many as ``positions`` ``[lines, 1]`` has, and the
        first columns. Returns the mask ``[lines, 1, 1, columns]``, added to scores; where layers have windows, that of
        each kind of layer."""
        self.lines = len(positions)
        self.columns = columns
        self._at = positions[:, :, None, None]
        places = torch.arange(columns, device=positions.device)
        seen = places <= positions
        if self.window is None:
            return self._additive_mask(seen)
        near = places > positions - self.window
        return {FULL: self._additive_mask(seen), SLIDING: self._additive_mask(seen & near)}

    def _additive_mask(self, seen: Tensor) -> Tensor:
        """[lines, 1, 1, columns] numbers to add to scores, from [lines, columns] True where a column is seen."""
        dtype = self.store.keys[0].dtype
        return torch.where(seen, 0.0, -torch.inf).to(dtype)[:, None, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one token per line ``[lines, kv_heads, 1, head_dim]``; returns the view of this layer."""
        views = []
        for store, new in ((self.store.keys, key_states), (self.store.values, value_states)):
            view = store[layer_idx][: self.lines, :, : self.columns]
            view.scatter_(2, self._at.expand(new.shape), new.to(view.dtype))
            views.append(view)
        return views[0], views[1]


def attend_slots(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one query token per line, in the form that transformers calls attention functions.

    Args:
        query: ``[lines, heads, 1, head_dim]``. Query heads of one key head are queries of one head, so keys are not
            repeated.
        key, value: ``[lines, K, columns, …]``.
        attention_mask: as ``StaticCache.view`` gives it.

    Returns ``[lines, 1, heads, value's head_dim]``. Raises ModelError for what it cannot compute.
    """
    problems = decoding_problems(query, options)
    problems += ["a soft cap"] * (softcap is not None)
    if problems or attention_mask is None:
        problem = ", ".join(problems) or "no mask"
        raise ModelError(
            f"decoding of fixed shape cannot compute {type(module).__name__}: it uses {problem}",
            code="E_MODEL_NOT_DECODABLE",
        )
    lines, heads, _, width = query.shape
    queries = query.reshape(lines, key.shape[1], -1, width).to(key.dtype)
    mixed = F.scaled_dot_product_attention(queries, key, value, attn_mask=attention_mask, scale=scaling)
    return mixed.reshape(lines, 1, heads, -1), None


AttentionInterface.register(SLOTS, attend_slots)
