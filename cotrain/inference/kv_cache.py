"""A key-value cache for rows that decode together, and the attention that reads it: prompts once for several rows, and
so what several rows have sampled alike.

A *tile* holds one prompt for up to eight rows; ``kv_cache.py`` reads it once for all of them. Prompts end at the last
column of their storage.

A *line* holds sampled tokens. The rows of a tile that have drawn the same tokens so far read one line, and the model
computes their next token once. Where they draw different tokens the line forks: each of them but the first goes on with
a copy. Every row draws by its own uniforms, so it draws what it would have drawn alone::

    row 0    a b c ▏             line 0    a b c ▏          row 1 and row 2 read line 1
    row 1    a b d ▏             line 1    a b d ▏          when row 2 draws another token than row 1,
    row 2    a b d ▏                                        it goes on with line 2, a copy of line 1

All lines are written at one shared *cursor*, so a decode step stores its keys with one copy into a view and reads them
without one. A line starts where the cursor stood when its rows entered::

    column   0 . . . . 5 . . . . 10 . .
    line 0   . s s s s s s s s s s s s ▏      start 1
    line 1   . . . . . . . . . s s s s ▏      start 9          ▏ = cursor

The columns from the least start to the cursor are the *window*. The column before it is read too, as the place where
``attend`` puts the prompt's score. When the cursor reaches the last column, the window moves to the left. Lines and
tiles stay dense: the last ones move into the places of the finished.

A layer with a sliding window reads the same columns, with a mask that follows the cursor once a line is longer than the
window.

Left out: pages, so that memory is rows × longest answer × 3/2 and tiles × longest prompt; giving back what a window has
left behind; windows of most types of model, which the engine treats as a limit of the context; and recurrent layers,
which it refuses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedConfig
from transformers.cache_utils import Cache

from cotrain.core.errors import ModelError

# -- Attention of one new token per line, to a prompt that several lines share and to the line's own tokens.
#
# Lines with one prompt form a *tile*, and their queries are the rows of one matrix: a prompt's keys and values are read
# once a tile instead of once a line (Juravsky et al. 2024, "Hydragen", arXiv:2402.05099). What a line has sampled is
# two small matrix products per line and key head. One softmax joins the two exactly. With prompt scores s_j and values
# v_j it needs of the prompt only
#
#     total = log Σ_j exp(s_j)        mixed = Σ_j exp(s_j - total) v_j
#
# as the prompt then is one more column of the own scores: a token with score ``total`` and value ``mixed``.
#
# Query heads of one key head are rows of the same left factor, so keys are never repeated. All factors have the head
# dimension innermost, which on a CPU these small products read fastest.


DECODE = "cotrain_decode"  # name of ``attend`` among the attention functions of transformers
_READS = "cotrain_reads"  # attribute of the keys that a cache hands to ``attend``


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTiles:
    """The prompts of one layer, in N tiles of T places each. K: key heads; H: query heads of a key head."""

    keys: Tensor  # [N * K, P, head_dim]
    values: Tensor  # [N * K, P, value's head_dim]
    mask: Tensor | None  # [N * K, 1, P], additive
    members: Tensor  # [N * K * T] of each place of each tile and head, the line and head; any where there is no line
    places: Tensor  # [L * K] of each line and head, its place


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReads:
    """The keys and values that a decode step of L lines reads in one layer. The first own column is a place for the
    prompt: its values are zero, and ``attend`` replaces its score."""

    keys: Tensor  # [L * K, 1 + W, head_dim] own, a strided view
    values: Tensor  # [L * K, 1 + W, value's head_dim], a strided view
    mask: Tensor | None  # [L * K, 1, 1 + W], additive
    prompts: PromptTiles


def with_reads(keys: Tensor, reads: DecodeReads) -> Tensor:
    """The same keys; ``attend`` finds in them what to read."""
    setattr(keys, _READS, reads)
    return keys


def decoding_problems(query: Tensor, options: Mapping[str, Any]) -> list[str]:
    """What a layer asks of its attention function that no function of decoding here computes: biases of its own, or
    several queries of a line. ``options``: as transformers passes them."""
    problems = [name for name in ("s_aux", "position_bias") if options.get(name) is not None]
    n_queries = query.shape[2]
    if n_queries != 1:
        problems.append(f"{n_queries} queries a row")
    return problems


def attend(
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
        query: ``[L, heads, 1, head_dim]``.
        key: ``[L, K, 1, head_dim]`` with ``DecodeReads``, which hold all else.
        softcap: scores become softcap · tanh(score / softcap) (Gemma 2).

    Returns ``[L, 1, heads, value's head_dim]``. Raises ModelError for what it cannot compute.
    """
    reads: DecodeReads | None = getattr(key, _READS, None)
    problems = decoding_problems(query, options)
    problems += ["a mask of its own"] * (attention_mask is not None)
    if problems or reads is None:
        problem = ", ".join(problems) or "other keys than the cache's"
        raise ModelError(
            f"the local engine cannot decode {type(module).__name__}: it uses {problem}", code="E_MODEL_NOT_DECODABLE"
        )
    lines, heads, _, width = query.shape
    queries = query.reshape(lines * key.shape[1], -1, width) * (width**-0.5 if scaling is None else scaling)
    queries = queries.to(reads.keys.dtype)
    device = query.device.type
    narrow = torch.is_autocast_enabled(device)  # the cache says what is computed in; to ask is cheap, a block is not
    with torch.autocast(device, enabled=False) if narrow else nullcontext():
        mixed, total = _attend_prompts(queries, reads.prompts, softcap)
        scores = _attention_scores(queries, reads.keys, reads.mask, softcap)
        scores[:, :, :1] = total
        weights = torch.softmax(scores, dim=-1).to(mixed.dtype)
        own = torch.bmm(weights, reads.values)
    return own.addcmul_(weights[:, :, :1], mixed).view(lines, 1, heads, -1), None


def _attend_prompts(queries: Tensor, prompts: PromptTiles, softcap: float | None) -> tuple[Tensor, Tensor]:
    """``mixed`` [L * K, H, value's head_dim] and ``total`` [L * K, H, 1] for queries [L * K, H, head_dim]."""
    tiled = queries.index_select(0, prompts.members).view(prompts.keys.shape[0], -1, queries.shape[2])
    scores = _attention_scores(tiled, prompts.keys, prompts.mask, softcap)  # [N * K, T * H, P]
    weights = torch.softmax(scores, dim=-1)
    total = scores.amax(-1) - weights.amax(-1).log_()
    mixed = torch.bmm(weights.to(prompts.values.dtype), prompts.values)
    per_head = queries.shape[1]
    return (
        mixed.view(-1, per_head, mixed.shape[2]).index_select(0, prompts.places),
        total.view(-1, per_head, 1).index_select(0, prompts.places),
    )


def _attention_scores(queries: Tensor, keys: Tensor, mask: Tensor | None, softcap: float | None) -> Tensor:
    keys = keys.transpose(1, 2)
    if softcap is not None:
        capped = softcap * torch.tanh(torch.bmm(queries, keys).float() / softcap)
        return capped if mask is None else capped + mask
    scores = torch.bmm(queries, keys) if mask is None else torch.baddbmm(mask.to(queries.dtype), queries, keys)
    return scores.float()


AttentionInterface.register(DECODE, attend)


@contextmanager
def use_attention(config: PreTrainedConfig, name: str) -> Iterator[None]:
    """Within the block, models that hold this configuration compute attention with the function of that name."""
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before


FAR = -3e4  # added to the score of a token before the window: finite, as a whole prompt may lie there
TILE = 8  # rows that read a prompt together; a tile of few lines costs as much as the fullest one
_LEAST = 16  # least number of lines or tiles that are allocated


def cache_argument(model: nn.Module, cache: Cache) -> dict[str, Cache]:
    """``cache`` by the name that the model's ``forward`` has for it: "cache" from transformers 5.24 on."""
    kind: Any = type(model)
    return {_cache_parameter(kind): cache}


@lru_cache
def _cache_parameter(kind: Any) -> str:
    return "cache" if "cache" in signature(kind.forward).parameters else "past_key_values"


def previous_argument(config: PreTrainedConfig, ids: Tensor) -> dict[str, Tensor]:
    """``ids``, the token before each that is fed, for a model that reads it next to its cache."""
    return {"previous_ids": ids} if getattr(config, "reads_previous_token", False) else {}


class KeyValueStore:
    """Keys and values of every layer, each ``[lines, kv_heads, columns, head_dim]`` and contiguous."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.lines = self.columns = 0  # allocated, or to be allocated by ``create``

    def create(self, layers: Sequence[tuple[Tensor, Tensor]], dtype: torch.dtype | None) -> None:
        """Allocate for the layers of a model, given by keys and values of any size."""
        self.keys = [self._make_zeros(keys, dtype) for keys, _ in layers]
        self.values = [self._make_zeros(values, dtype) for _, values in layers]

    def grow(self, lines: int, columns: int, *, at_end: bool) -> None:
        """Make room for so many lines and columns. What is stored keeps its columns, ``at_end`` counted from the
        end."""
        before = (self.lines, self.columns)
        if lines > self.lines:
            self.lines = max(self.lines, _LEAST)
            while self.lines < lines:
                self.lines *= 2
        if columns > self.columns:
            self.columns = max(columns, self.columns + self.columns // 4)
        if (self.lines, self.columns) == before:
            return
        old_columns = slice(self.columns - before[1], None) if at_end else slice(before[1])
        for tensors in (self.keys, self.values):
            for i, old in enumerate(tensors):
                tensors[i] = self._make_zeros(old, old.dtype)
                tensors[i][: before[0], :, old_columns] = old

    def copy(self, sources: Sequence[int], targets: Sequence[int], columns: slice) -> None:
        """Copy these columns from some lines to others, one by one; no line is both."""
        for tensor in (*self.keys, *self.values):
            for source, target in zip(sources, targets, strict=True):
                tensor[target, :, columns] = tensor[source, :, columns]

    def _make_zeros(self, like: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Zeros, as a masked column must hold finite numbers: 0 × inf is not a number."""
        return like.new_zeros((self.lines, like.shape[1], self.columns, like.shape[3]), dtype=dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TileMap:
    """Which lines read which tiles, for layers with K key heads; see ``PromptTiles``."""

    members: Tensor  # [N * K * T]
    places: Tensor  # [L * K]
    own_mask: Tensor | None  # [L * K, 1, columns], additive
    prompt_mask: Tensor | None  # [N * K, 1, P]


@dataclass(frozen=True, slots=True, kw_only=True)
class _WindowMasks:
    """Masks of one step for layers with a window: L lines, N tiles, K key heads."""

    own: Tensor  # [L * K, 1, columns], additive
    prompts: Tensor  # [N * K, 1, P]


class SharedPrefixCache(Cache):
    """Keys and values of all running rows. Owns the storage, the cursor, the lines, the starts and the tiles.

    transformers calls ``update`` once per layer and decode step.
    """

    def __init__(self, dtype: torch.dtype | None = None, windows: Sequence[int | None] = ()) -> None:
        """``dtype``: what to store; None stores what the model computes. ``windows``: how many tokens each layer sees,
        the newest among them; None: all, and so it is for every layer where nothing is given."""
        super().__init__(layers=[])
        self.dtype = dtype
        self.windows = list(windows)
        self.own = KeyValueStore()
        self.prompts = KeyValueStore()
        self.row_lines: list[int] = []  # [R] line of each running row
        self.starts: list[int] = []  # [L] first own column of each line
        self.tiles: list[int] = []  # [L] tile of each line
        self.lengths: list[int] = []  # [N] tokens of each tile's prompt
        self.cursor = 1  # the column that the next decode step writes
        self.speakers = self.readers = torch.empty(0, dtype=torch.int64)  # [L] a row of each line, [R] line of each row
        self._first = 0  # the column before the window
        self._layers: list[DecodeReads] = []  # reads of all columns; empty if lines have come, gone or moved since
        self._near: dict[tuple[int, int], _WindowMasks] = {}  # by key heads and window, where it hides something

    def __len__(self) -> int:
        return len(self.own.keys)

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store one token per line ``[L, kv_heads, 1, head_dim]`` at the cursor; tell ``attend`` what to read."""
        layer = self._layers[layer_idx]
        window = slice(self._first, self.cursor + 1)
        layer.keys.select(1, self.cursor).copy_(key_states.flatten(0, 2))
        layer.values.select(1, self.cursor).copy_(value_states.flatten(0, 2))
        mask = layer.mask
        prompts = layer.prompts
        near = self._near.get((key_states.shape[1], self.windows[layer_idx] or 0)) if self.windows else None
        if near is not None:
            mask = near.own
            prompts = replace(prompts, mask=near.prompts)
        mask = None if mask is None else mask[:, :, window]
        reads = DecodeReads(keys=layer.keys[:, window], values=layer.values[:, window], mask=mask, prompts=prompts)
        return with_reads(key_states, reads), value_states

    def make_room(self, rows: int, tiles: int, longest: int, most: int) -> None:
        """Prepare for so many more rows and tiles, with prompts of up to ``longest`` tokens, answers of up to ``most``.

        There are as many lines as rows, since all of them may part. Own columns are so many that moving to the left is
        rare: at most every ``most / 2`` steps.
        """
        if not self.row_lines:
            self.cursor = 1
        self.own.grow(len(self.row_lines) + rows, 1 + most + most // 2, at_end=False)
        self.prompts.grow(len(self.lengths) + tiles, longest, at_end=True)

    def add_rows(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        index: Sequence[int],
        lengths: Sequence[int],
        sizes: Sequence[int],
    ) -> None:
        """Append a tile for each entry of ``index``, the prefilled prompt that it holds.

        ``layers`` have keys and values ``[U, kv_heads, L, head_dim]`` of U prompts, padded on the left. The prompt has
        ``lengths`` tokens, and ``sizes`` rows read it, which are appended in this order. They share a line, as none of
        them has drawn anything.
        """
        if not self.own.keys:
            self.own.create(layers, self.dtype)
            self.prompts.create(layers, self.dtype)
        first = len(self.lengths)
        tiles = slice(first, first + len(index))
        columns = slice(-layers[0][0].shape[2], None)
        chosen = torch.tensor(index, device=layers[0][0].device)
        lines = range(len(self.starts), len(self.starts) + len(sizes))
        for old in (*self.own.keys, *self.own.values):  # what others left there is hidden, and may be no number
            old[lines.start : lines.stop, :, : self.cursor] = 0
        for new, keys, values in zip(layers, self.prompts.keys, self.prompts.values, strict=True):
            for source, target in zip(new, (keys, values), strict=True):
                target[tiles, :, : columns.start] = 0
                target[tiles, :, columns] = source.index_select(0, chosen)

        self.lengths += lengths
        self.row_lines += [line for line, size in zip(lines, sizes, strict=True) for _ in range(size)]
        self.tiles += range(first, first + len(sizes))
        self.starts += [self.cursor] * len(sizes)
        self._layers = []

    def part_rows(self, tokens: Tensor) -> None:
        """Give rows that have drawn different tokens different lines. ``tokens`` [R]: the newest of each row.

        Of the rows of a line, the first one and those that have drawn the same keep it.
        """
        if len(self.starts) == len(self.row_lines):
            return  # each row has a line of its own
        lines: dict[tuple[int, int], int] = {}  # by the line so far and the newest token
        kept: set[int] = set()
        forked: list[int] = []  # the lines that are copied
        for row, key in enumerate(zip(self.row_lines, tokens.tolist(), strict=True)):
            line = key[0]
            if key not in lines and line in kept:
                lines[key] = len(self.starts) + len(forked)
                forked.append(line)
            elif key not in lines:
                lines[key] = line
                kept.add(line)
            self.row_lines[row] = lines[key]

        if not forked:
            return
        targets = range(len(self.starts), len(self.starts) + len(forked))
        self.own.copy(forked, targets, slice(min(self.starts), self.cursor))
        self.starts += [self.starts[line] for line in forked]
        self.tiles += [self.tiles[line] for line in forked]
        self._layers = []

    def remove_rows(self, holes: Sequence[int], movers: Sequence[int], keep: int) -> None:
        """Keep ``keep`` rows: those at ``movers`` move into ``holes``, and what is behind ``keep`` is forgotten.

        Lines and tiles that nobody reads any more go likewise.
        """
        fill_gaps(self.row_lines, holes, movers, keep)
        holes, movers, keep = _moves_of_unused(len(self.starts), self.row_lines)
        self.own.copy(movers, holes, slice(min(self.starts), self.cursor))
        for per_line in (self.starts, self.tiles):
            fill_gaps(per_line, holes, movers, keep)
        self.row_lines = _numbers_after_moves(self.row_lines, holes, movers)
        holes, movers, keep = _moves_of_unused(len(self.lengths), self.tiles)
        self.prompts.copy(movers, holes, slice(-max(self.lengths), None))
        fill_gaps(self.lengths, holes, movers, keep)
        self.tiles = _numbers_after_moves(self.tiles, holes, movers)
        self._layers = []

    def copy_row(self, row: int, token_count: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of a row's keys and values in every layer, each ``[kv_heads, P + token_count, …]``: of its prompt and
        of the first ``token_count`` tokens that were fed after it."""
        line = self.row_lines[row]
        tile = self.tiles[line]
        start = self.starts[line]
        prompt = slice(-self.lengths[tile], None)
        own = slice(start, start + token_count)
        pairs = zip(
            zip(self.prompts.keys, self.own.keys, strict=True),
            zip(self.prompts.values, self.own.values, strict=True),
            strict=True,
        )
        return [
            (torch.cat([k[tile, :, prompt], ok[line, :, own]], 1), torch.cat([v[tile, :, prompt], ov[line, :, own]], 1))
            for (k, ok), (v, ov) in pairs
        ]

    def prepare_step(self, device: torch.device) -> None:
        """See to it that the coming decode step has a column to write and knows what to read."""
        if self.cursor == self.own.columns:
            self.move_left()
        if not self._layers:
            self._first = min(self.starts) - 1
            self._layers = self._arrange_layers(device)
            rows = {line: row for row, line in enumerate(self.row_lines)}
            self.speakers = torch.tensor([rows[line] for line in range(len(self.starts))], device=device)
            self.readers = torch.tensor(self.row_lines, device=device)
        self._near = {}
        for layer, window in zip(self._layers, self.windows, strict=bool(self.windows)):
            key = (len(layer.keys) // len(self.starts), window or 0)
            if window is not None and key not in self._near and self._longest() >= window:
                self._near[key] = self._mask_window(layer, window, device)

    def _longest(self) -> int:
        """Tokens of the longest line before the one that the coming step feeds."""
        return max(
            self.lengths[tile] + self.cursor - start for tile, start in zip(self.tiles, self.starts, strict=True)
        )

    def _mask_window(self, layer: DecodeReads, window: int, device: torch.device) -> _WindowMasks:
        """The masks of what the coming step must not read in a layer with a window. The lines of a tile entered
        together, so they are as long as each other."""
        heads = len(layer.keys) // len(self.starts)
        longest = layer.prompts.keys.shape[1]
        own_distance = self.cursor - torch.arange(self.own.columns, device=device)
        own = torch.where(own_distance >= window, FAR, 0.0)[None, None]
        written = [0] * len(self.lengths)
        for tile, start in zip(self.tiles, self.starts, strict=True):
            written[tile] = self.cursor - start
        to_end = longest - torch.arange(longest, device=device)  # the last token of a prompt is 1 before the first own
        distance = torch.tensor(written, device=device)[:, None] + to_end
        prompts = torch.where(distance >= window, FAR, 0.0).repeat_interleave(heads, 0)[:, None]
        if layer.mask is not None:
            own = own + layer.mask
        if layer.prompts.mask is not None:
            prompts = prompts + layer.prompts.mask
        return _WindowMasks(own=own.expand(len(layer.keys), -1, -1), prompts=prompts)

    def move_left(self) -> None:
        """Move the window to the first columns."""
        lines = len(self.starts)
        low = min(self.starts)
        for tensor in (*self.own.keys, *self.own.values):
            tensor[:lines, :, 1 : 1 + self.cursor - low] = tensor[:lines, :, low : self.cursor].clone()
        self.starts = [1 + start - low for start in self.starts]
        self.cursor += 1 - low
        self._layers = []

    def _arrange_layers(self, device: torch.device) -> list[DecodeReads]:
        """The keys and values that the decode steps of each layer read, until lines come, go or move."""
        lines = len(self.starts)
        tiles = len(self.lengths)
        longest = max(self.lengths)
        layers = []
        maps: dict[int, _TileMap] = {}  # by key heads, which layers may differ in
        for keys, values, prompt_keys, prompt_values in zip(
            self.own.keys, self.own.values, self.prompts.keys, self.prompts.values, strict=True
        ):
            heads = keys.shape[1]
            if heads not in maps:
                maps[heads] = self._map_tiles(heads, device)
            tile_map = maps[heads]
            values[:lines, :, self._first] = 0
            prompts = PromptTiles(
                keys=prompt_keys[:tiles].flatten(0, 1)[:, -longest:],
                values=prompt_values[:tiles].flatten(0, 1)[:, -longest:],
                mask=tile_map.prompt_mask,
                members=tile_map.members,
                places=tile_map.places,
            )
            own_keys = keys[:lines].flatten(0, 1)
            own_values = values[:lines].flatten(0, 1)
            layers.append(DecodeReads(keys=own_keys, values=own_values, mask=tile_map.own_mask, prompts=prompts))
        return layers

    def _map_tiles(self, heads: int, device: torch.device) -> _TileMap:
        """Give each line a seat in its tile, and mask the columns that it must not read."""
        tiles = len(self.lengths)
        longest = max(self.lengths)
        lines_in_tile = [0] * tiles
        seats = []  # [L]
        for tile in self.tiles:
            seats.append(lines_in_tile[tile])
            lines_in_tile[tile] += 1
        most = max(lines_in_tile)

        # The place of (tile, head, seat) in a row of all of them, [L · heads].
        head = torch.arange(heads, device=device)
        tile, seat = torch.tensor([self.tiles, seats], device=device)[:, :, None]
        places = ((tile * heads + head) * most + seat).flatten()
        members = torch.zeros(tiles * heads * most, dtype=torch.int64, device=device)
        members[places] = torch.arange(len(places), device=device)
        return _TileMap(
            members=members,
            places=places,
            own_mask=_hidden_mask(self.starts, self.own.columns, heads, device),
            prompt_mask=_hidden_mask([longest - length for length in self.lengths], longest, heads, device),
        )


def plan_moves(count: int, gone: Collection[int]) -> tuple[list[int], list[int], int]:
    """Moves that keep ``count`` places dense when some are given up: the holes to fill, the places that move there, and
    how many places stay."""
    keep = count - len(gone)
    holes = [i for i in sorted(gone) if i < keep]
    movers = [i for i in range(keep, count) if i not in gone]
    return holes, movers, keep


def _moves_of_unused(count: int, in_use: Collection[int]) -> tuple[list[int], list[int], int]:
    """``plan_moves`` where all but some places are given up."""
    unused = set(range(count)).difference(in_use)
    return plan_moves(count, unused)


def _numbers_after_moves(numbers: Sequence[int], holes: Sequence[int], movers: Sequence[int]) -> list[int]:
    """The same places, by their numbers after the moves."""
    new_number = dict(zip(movers, holes, strict=True))
    return [new_number.get(number, number) for number in numbers]


def fill_gaps(values: list[Any], holes: Sequence[int], movers: Sequence[int], keep: int) -> None:
    """Make the moves of ``plan_moves`` in a list."""
    for hole, mover in zip(holes, movers, strict=True):
        values[hole] = values[mover]
    del values[keep:]


def _hidden_mask(hidden: Sequence[int], columns: int, heads: int, device: torch.device) -> Tensor | None:
    """Additive mask ``[n * heads, 1, columns]`` that hides the first ``hidden`` [n] columns; None when these are the
    same for all and so outside of what is read."""
    if min(hidden) == max(hidden):
        return None
    seen = torch.arange(columns, device=device) >= torch.tensor(hidden, device=device)[:, None]
    return torch.where(seen, 0.0, -torch.inf).repeat_interleave(heads, 0)[:, None]
