"""A key-value cache in columns, and the attention that reads it one token at a time.

All running rows write at one shared *cursor*, so a decode step stores its keys with one copy into a view and reads
them without one. Rows are right-aligned: a row's prompt ends where the cursor stood when it entered, and each row has
its own start::

    column   0 . . . . 5 . . . . 10 . . . . 15
    row 0    . . P P P P P s s s s s s s s s ▏      start 2, entered when the cursor stood at 7
    row 1    . . . . . . . . P P P P s s s s ▏      start 8, entered at 12          ▏ = cursor

What a row attends to is ``[start, cursor]``; the columns between the least start and the cursor are the *window*.
When the cursor reaches the last column, the window moves to the left; a prompt longer than the cursor's column moves
it to the right. Rows stay dense: the last ones move into the places of the finished.

Attention at query length one is two small matrix products per row and key head, with the query heads of one key head
as the rows of the left factor: keys are never repeated, and nothing but the mask is built per step. In memory the keys
have columns innermost, the order in which the products read them. On a CPU this takes a third of the time of
``scaled_dot_product_attention``.

Left out: pages, so that memory is rows × (longest prompt + answer) × 3/2; sliding windows, which the engine treats as
a limit of the context; and recurrent layers, which it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PreTrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

from cotrain.core.errors import ModelError

DECODE = "cotrain_decode"  # name of ``attend_one`` among the attention functions of transformers
_ROWS = 16  # least number of rows that are allocated


class Columns(Cache):
    """Keys and values of all running rows, per layer ``[rows, kv_heads, columns, head_dim]``.

    Owns the storage, the cursor and the starts. transformers calls ``update`` once per layer and decode step.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        """``dtype``: what to store; None stores what the model computes."""
        super().__init__(layers=[])
        self.dtype = dtype
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.starts: list[int] = []  # [R] first column of each running row
        self.cursor = 0  # the column that the next decode step writes
        self.low = 0  # least start
        self._size = (0, 0)  # rows, columns to allocate

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self.keys)

    @property
    def columns(self) -> int:
        """Columns allocated."""
        return self._size[1]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one token per row ``[R, kv_heads, 1, head_dim]`` at the cursor; return views of the window."""
        rows, end = len(self.starts), self.cursor + 1
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[:rows, :, self.cursor : end] = key_states
        values[:rows, :, self.cursor : end] = value_states
        return keys[:rows, :, self.low : end], values[:rows, :, self.low : end]

    def mask(self, device: torch.device) -> Tensor | None:
        """Additive mask ``[R, 1, 1, W]`` over the window of the coming step; None when every row fills the window."""
        if self.low == max(self.starts):
            return None
        window = torch.arange(self.low, self.cursor + 1, device=device)
        starts = torch.tensor(self.starts, device=device)
        return torch.zeros(len(starts), len(window), device=device).masked_fill_(window < starts[:, None], -torch.inf)[
            :, None, None
        ]

    def make_room(self, rows: int, longest: int, need: int) -> int:
        """Prepare for ``rows`` more rows with prompts of up to ``longest`` tokens, none growing past ``need`` tokens.

        Returns by how many columns the running rows were moved. Storage is zeroed: a masked column must hold finite
        numbers, as 0 × inf is not a number.
        """
        if not self.starts:
            self.cursor = self.low = longest
        most, columns = self._size
        rows += len(self.starts)
        if rows > most:
            most = max(_ROWS, most)
            while most < rows:
                most *= 2
        if columns < need + need // 2:  # so much that moving to the left is rare: at most every need / 2 steps
            columns = max(need + need // 2, columns + columns // 4)
        if (most, columns) != self._size:
            self._size = (most, columns)
            self.keys = [self._grown(old, columns_last=True) for old in self.keys]
            self.values = [self._grown(old, columns_last=False) for old in self.values]
        return self.move(longest - self.cursor) if longest > self.cursor else 0

    def move(self, by: int) -> int:
        """Move the window and the cursor by so many columns (negative: to the left); returns ``by``."""
        rows = len(self.starts)
        for store in (*self.keys, *self.values):
            store[:rows, :, self.low + by : self.cursor + by] = store[:rows, :, self.low : self.cursor].clone()
        self.starts = [start + by for start in self.starts]
        self.cursor += by
        self.low += by
        return by

    def enter(self, prefilled: DynamicCache, index: Tensor, lengths: Sequence[int]) -> None:
        """Append a row for each entry of ``index`` [A], the prefilled row to copy; its prompt has ``lengths`` tokens.

        The prefilled keys are padded on the left; here they end at the cursor.
        """
        layers = [_stored(layer) for layer in prefilled.layers]
        if not self.keys:
            self.keys = [self._grown(keys[:0], columns_last=True) for keys, _ in layers]
            self.values = [self._grown(values[:0], columns_last=False) for _, values in layers]
        rows = slice(len(self.starts), len(self.starts) + len(lengths))
        columns = slice(self.cursor - layers[0][0].shape[2], self.cursor)
        for (new_keys, new_values), keys, values in zip(layers, self.keys, self.values, strict=True):
            keys[rows, :, columns] = new_keys.index_select(0, index).to(keys.dtype)
            values[rows, :, columns] = new_values.index_select(0, index).to(values.dtype)
        self.starts += [self.cursor - length for length in lengths]
        self.low = min(self.starts)

    def leave(self, holes: Sequence[int], movers: Sequence[int], keep: int) -> None:
        """Keep ``keep`` rows: those at ``movers`` move into ``holes``, and what is behind ``keep`` is forgotten."""
        if holes:
            for store in (*self.keys, *self.values):
                store[holes, :, self.low : self.cursor] = store[movers, :, self.low : self.cursor]
        for hole, mover in zip(holes, movers, strict=True):
            self.starts[hole] = self.starts[mover]
        del self.starts[keep:]
        self.low = min(self.starts, default=self.cursor)

    def _grown(self, old: Tensor, columns_last: bool) -> Tensor:
        """A copy with room for more; ``columns_last``: in memory, columns are the innermost dimension."""
        (rows, columns), (_, heads, _, width) = self._size, old.shape
        shape = (rows, heads, width, columns) if columns_last else (rows, heads, columns, width)
        new = torch.zeros(shape, dtype=self.dtype or old.dtype, device=old.device)
        new = new.transpose(2, 3) if columns_last else new
        if old.shape[0]:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new


def attend_one(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention of one query token per row, in the form that transformers calls attention functions.

    Args: query [R, heads, 1, head_dim]; key, value [R, kv_heads, W, head_dim], strided views; attention_mask additive
    [R, 1, 1, W] or None. Returns [R, 1, heads, value's head_dim]. Raises ModelError for what it cannot compute.
    """
    unknown = [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]
    if unknown or query.shape[2] != 1:
        problem = ", ".join(unknown) or f"{query.shape[2]} queries a row"
        raise ModelError(f"the embedded engine cannot decode {type(module).__name__}: it uses {problem}")
    rows, heads, _, width = query.shape
    groups = query.reshape(rows, key.shape[1], heads // key.shape[1], width)
    scores = torch.matmul(groups * (width**-0.5 if scaling is None else scaling), key.transpose(2, 3))
    if attention_mask is not None:
        scores += attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).reshape(rows, 1, heads, value.shape[3]), None


def _stored(layer: object) -> tuple[Tensor, Tensor]:
    """Keys and values of a prefilled layer."""
    if isinstance(layer, DynamicLayer) and isinstance(layer.keys, Tensor) and isinstance(layer.values, Tensor):
        return layer.keys, layer.values
    raise ModelError(f"the embedded engine cannot decode a model with a cache layer of kind {type(layer).__name__}")


AttentionInterface.register(DECODE, attend_one)


@contextmanager
def attention(config: PreTrainedConfig, name: str) -> Iterator[None]:
    """Within the block, models that hold this configuration compute attention with the function of that name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
