"""Prefill: one forward pass over waiting prompts, which gives their keys and values and the first logits.

Reviews of the eight solutions to one problem begin alike: the problem is half of each prompt. Where the model's
attention can be replaced (``models.shared_prefix``), prompts that begin alike are computed as one beginning and their
endings, without padding; elsewhere each on its own, in rows padded on the left. Of a conversation that goes on
(``prefix_cache.py``) only what is new.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from cotrain.core.errors import ModelError
from cotrain.inference.kv_cache import cache_argument, previous_argument, use_attention
from cotrain.inference.prefix_cache import KeptPrefix
from cotrain.models.shared_prefix import BRANCHES, RECTANGLE, can_branch, common_length, masks_by_kind, prefix_tree

TOKENS = {"cpu": 2048, "cuda": 16384}  # most tokens of one forward pass, padding counted
PADDING = 1.25  # a padded batch has at most so many times the tokens of its prompts
WORTH = 1 / 3  # the least share of a prompt that is worth computing apart

Prompt = tuple[int, ...]
Families = list[tuple[int, list[Prompt]]]  # how many tokens they share, all of its own for a prompt that is alone
Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """U prompts, the shorter ones padded on the left."""

    prompts: Sequence[Prompt]
    logits: Tensor  # [U, V] after each prompt
    layers: Layers  # each [U, kv_heads, L, head_dim]
    computed: int  # tokens that went through the model, without padding


def prefill(model: nn.Module, config: PreTrainedConfig, prompts: Sequence[Prompt]) -> Iterator[Prefilled]:
    """All of these different prompts, some at a time, in an order that depends on them alone."""
    device = next(model.parameters()).device
    budget = TOKENS.get(device.type, TOKENS["cpu"])
    if not prompts:
        return
    if can_branch(model):
        places = sys.maxsize if device.type == "cpu" else RECTANGLE * budget  # a CPU computes without padding
        for families in _batch_families(_group_by_prefix(prompts, places), budget, places):
            yield _prefill_families(model, config, families, device)
    else:
        for batch in _padded_batches(sorted(prompts, key=lambda ids: (len(ids), ids)), budget):
            yield _prefill_padded(model, config, batch, device)


def continue_prefill(
    model: nn.Module, config: PreTrainedConfig, prompts: Mapping[Prompt, KeptPrefix], dtype: torch.dtype | None
) -> Iterator[Prefilled]:
    """As ``prefill`` for prompts that begin with tokens whose keys and values are kept: only what is new is computed.

    ``dtype``: of the keys that the model computes, where it is not that in which they are kept.
    """
    device = next(model.parameters()).device
    budget = TOKENS.get(device.type, TOKENS["cpu"])
    order = sorted(prompts, key=lambda ids: (len(ids) - len(prompts[ids].ids), len(ids), ids))
    while order:
        count = 1
        while count < len(order) and (count + 1) * max(map(len, order[: count + 1])) <= budget:
            count += 1
        yield _prefill_continued(model, config, [(ids, prompts[ids]) for ids in order[:count]], device, dtype)
        order = order[count:]


def _prefill_continued(
    model: nn.Module,
    config: PreTrainedConfig,
    prompts: list[tuple[Prompt, KeptPrefix]],
    device: torch.device,
    dtype: torch.dtype | None,
) -> Prefilled:
    """Compute the new tokens of some prompts, whose beginnings are kept.

    Kept and new tokens are each padded on the left; no query sees a pad but the pad itself.
    """
    olds = [len(past.ids) for _, past in prompts]  # kept tokens of each prompt
    news = [len(prompt) - old for (prompt, _), old in zip(prompts, olds, strict=True)]  # its new tokens
    old = max(olds)
    new = max(news)

    # Inputs [U, new], and before each token the previous one, which some models read.
    ids = []
    previous = []
    for (prompt, _), n in zip(prompts, news, strict=True):
        pad = (0,) * (new - n)
        ids.append(pad + prompt[-n:])
        previous.append(pad + prompt[-n - 1 : -1])

    # Each new token sees kept tokens, and new ones up to itself.
    hidden_old = old - torch.tensor(olds)  # [U], pads in front of kept tokens
    hidden_new = new - torch.tensor(news)  # [U], pads in front of new ones
    columns = torch.arange(new)
    past_seen = (torch.arange(old) >= hidden_old[:, None])[:, None].expand(-1, new, -1)  # [U, new, old]
    own_seen = (columns[:, None] >= columns) & (columns >= hidden_new[:, None, None])  # [U, new, new]
    mask = torch.cat([past_seen, own_seen | torch.eye(new, dtype=torch.bool)], -1)[:, None].to(device)
    positions = (torch.tensor(olds)[:, None] + columns - hidden_new[:, None]).clamp(min=0)

    # The kept keys and values of each layer, padded.
    cache = DynamicCache()
    _, first_past = prompts[0]
    for layer in range(len(first_past.layers)):
        keys = []
        values = []
        for (_, past), length in zip(prompts, olds, strict=True):
            past_keys, past_values = past.layers[layer]
            keys.append(F.pad(past_keys, (0, 0, old - length, 0)))
            values.append(F.pad(past_values, (0, 0, old - length, 0)))
        all_keys = torch.stack(keys)
        all_values = torch.stack(values)
        if dtype is not None:
            all_keys = all_keys.to(dtype)
            all_values = all_values.to(dtype)
        cache.update(all_keys, all_values, layer)

    old_positions = torch.arange(old) - hidden_old[:, None]
    key_positions = torch.cat([old_positions, positions], 1).to(device)
    output = _masked_forward(
        model,
        config,
        torch.tensor(ids, device=device),
        positions.to(device),
        mask,
        cache,
        key_positions,
        torch.tensor(previous, device=device),
    )

    # Keys and values of whole prompts, [U, kv_heads, L, head_dim], padded on the left once.
    longest = max(map(len, (prompt for prompt, _ in prompts)))
    places = []
    for o, n in zip(olds, news, strict=True):
        kept_places = range(old - o, old)
        new_places = range(old + new - n, old + new)
        places.append([0] * (longest - o - n) + [*kept_places, *new_places])
    index = torch.tensor(places, device=device)  # [U, L]
    rows = torch.arange(len(prompts), device=device)[:, None]
    layers = []
    for layer_keys, layer_values in map(_layer_tensors, cache.layers):
        layers.append((layer_keys[rows, :, index].transpose(1, 2), layer_values[rows, :, index].transpose(1, 2)))
    whole = [prompt for prompt, _ in prompts]
    return Prefilled(prompts=whole, logits=output.logits[:, -1], layers=layers, computed=sum(news))


def _group_by_prefix(prompts: Sequence[Prompt], places: int) -> Families:
    """Prompts that begin alike, as many as ``_batch_families`` puts together."""
    families: Families = []
    for prompt in sorted(prompts):
        if families:
            shared, family = families[-1]
            common = common_length(family[0][:shared], prompt)
            full = (len(family) + 1) * max(map(len, (*family, prompt))) > places
            if common >= WORTH * len(prompt) and not full:
                families[-1] = (common, [*family, prompt])
                continue
        families.append((len(prompt), [prompt]))
    return families


def _batch_families(families: Families, budget: int, places: int) -> Iterator[Families]:
    """Some families at a time: at most ``budget`` tokens, and ``places`` with each prompt as long as the longest.
    Longest prompts first, so that like stands with like."""
    batch: Families = []
    for family in sorted(families, key=lambda f: -max(map(len, f[1]))):
        lengths = [len(prompt) for _, members in (*batch, family) for prompt in members]
        tokens = sum(lengths) - sum(shared * (len(members) - 1) for shared, members in (*batch, family))
        if batch and (tokens > budget or len(lengths) * max(lengths) > places):
            yield batch
            batch = []
        batch.append(family)
    yield batch


def _prefill_families(
    model: nn.Module, config: PreTrainedConfig, families: Families, device: torch.device
) -> Prefilled:
    prompts = [prompt for _, family in families for prompt in family]
    tree = prefix_tree(prompts)
    branches = tree.branches.to(device)
    last = torch.tensor([where[-1] for where in tree.places], device=device)
    cache = DynamicCache()
    with use_attention(config, BRANCHES):
        output: Any = model(
            input_ids=torch.tensor([tree.ids], device=device),
            position_ids=branches.positions,
            branches=branches,
            **cache_argument(model, cache),
            use_cache=True,
            logits_to_keep=last,
        )

    longest = max(map(len, tree.places))
    index = torch.tensor([[0] * (longest - len(where)) + where for where in tree.places], device=device)  # [U, L]
    layers = []
    for layer in cache.layers:
        keys, values = _layer_tensors(layer)  # [1, kv_heads, N, head_dim]
        layers.append((keys[0][:, index].transpose(0, 1), values[0][:, index].transpose(0, 1)))
    return Prefilled(prompts=prompts, logits=output.logits[0], layers=layers, computed=len(tree.ids))


def _prefill_padded(
    model: nn.Module, config: PreTrainedConfig, prompts: list[Prompt], device: torch.device
) -> Prefilled:
    """Pads attend to themselves and nothing else attends to them."""
    longest = max(map(len, prompts))
    pads = torch.tensor([longest - len(prompt) for prompt in prompts], device=device)
    ids = torch.tensor([(0,) * (longest - len(prompt)) + prompt for prompt in prompts], device=device)
    columns = torch.arange(longest, device=device)
    mask = None
    if len(prompts[0]) < longest:  # they are sorted by length
        causal = columns[:, None] >= columns
        seen = causal & (columns >= pads[:, None, None])  # [U, L, L]
        mask = (seen | torch.eye(longest, dtype=torch.bool, device=device))[:, None]
    cache = DynamicCache()
    positions = (columns - pads[:, None]).clamp(min=0)
    output = _masked_forward(model, config, ids, positions, mask, cache, positions)
    layers = [_layer_tensors(layer) for layer in cache.layers]
    return Prefilled(prompts=prompts, logits=output.logits[:, -1], layers=layers, computed=sum(map(len, prompts)))


def _masked_forward(
    model: nn.Module,
    config: PreTrainedConfig,
    ids: Tensor,
    positions: Tensor,
    mask: Tensor | None,
    cache: DynamicCache,
    key_positions: Tensor,
    previous_ids: Tensor | None = None,
) -> Any:
    """The model's output for tokens [U, L]; ``mask`` [U, 1, L, S] is True where a query looks at one of S keys, which
    stand at ``key_positions``. ``previous_ids``: the token before each, where some of them are in the cache alone."""
    kind = "eager" if config._attn_implementation == "eager" else "sdpa"  # also for models that sdpa cannot compute
    masks: Any = None
    if mask is not None:
        masks = masks_by_kind(config, mask, positions, key_positions)
        if kind == "eager":  # which adds it to the scores
            dtype = next(model.parameters()).dtype
            added = partial(_added_mask, dtype=dtype)
            masks = {name: added(m) for name, m in masks.items()} if isinstance(masks, dict) else added(masks)

    with use_attention(config, kind):
        return model(
            input_ids=ids,
            attention_mask=masks,
            position_ids=positions,
            **cache_argument(model, cache),
            **({} if previous_ids is None else previous_argument(config, previous_ids)),
            use_cache=True,
            logits_to_keep=1,
        )


def _added_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)


def _padded_batches(prompts: list[Prompt], budget: int) -> Iterator[list[Prompt]]:
    """Cut prompts sorted by length into prefill batches: at most ``budget`` padded tokens each, and little padding."""
    batch: list[Prompt] = []
    tokens = 0
    for prompt in prompts:
        padded = (len(batch) + 1) * len(prompt)
        if batch and (padded > budget or padded > PADDING * (tokens + len(prompt))):
            yield batch
            batch = []
            tokens = 0
        batch.append(prompt)
        tokens += len(prompt)
    yield batch


def _layer_tensors(layer: object) -> tuple[Tensor, Tensor]:
    """Keys and values of a prefilled layer."""
    if isinstance(layer, DynamicLayer) and isinstance(layer.keys, Tensor) and isinstance(layer.values, Tensor):
        return layer.keys, layer.values
    raise ModelError(
        f"the local engine cannot decode a model with a cache layer of kind {type(layer).__name__}",
        code="E_MODEL_NOT_DECODABLE",
    )
