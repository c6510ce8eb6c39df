"""The present architecture of karpathy/nanochat, as a model of transformers.

transformers' own ``NanoChat`` is what nanochat was until January 2026. Since then it has, besides rotary positions
(base 100,000), normalised queries and keys, squared ReLU and logits capped at 15:

- *windows*: in layers "S" a token sees a quarter of the context, in layers "L" all of it;
- *residual lambdas*: the input of layer i is ``r_i · x + s_i · x0``, where ``x0`` is the input of the first layer;
- *value embeddings*: every other layer, including the last one, adds a second embedding of the token to its values,
  through a gate that reads 12 features;
- *smear*: the embedding of the previous token is added to that of a token, through a gate that reads 24 features;
- *backout*: a part of the middle layer's output is subtracted before the output layer;
- queries and keys are multiplied by 1.2 after they were normalised.

The weights are nanochat's, under names in the style of transformers (``nanochat.py``). Importing this file registers
the classes, so that ``AutoConfig`` and ``AutoModelForCausalLM`` read a converted directory.

*Smear and caches.* The embedding of the previous token depends only on that token's id, so it is in no cache. Code that
decodes with a cache passes the previous tokens as ``previous_ids``; ``generate`` does so by itself. The token at
position 0 starts a document and has no previous token, so documents in one row, and padded rows, stay separate.

Cosines and sines of rotary angles are float32 here. nanochat rounds them to the dtype in which it computes. In bfloat16
this changes each by up to 2⁻⁹, a query or key by at most √2 · 2⁻⁹ of its length, and, as both have length 1.2 · √d, a
score by at most 1.44 · √d · √2 · 2⁻⁸: 0.09 for heads of d = 128, before the softmax.

Left out: the window of ``sequence_len`` tokens (the training length) that nanochat's layers "L" have, here they see
everything; and embeddings as inputs, as value embeddings need the tokens' ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    DynamicCache,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers.modeling_layers import GenericForSequenceClassification, GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

# Kinds of layers, by transformers' names.
FULL = "full_attention"
SLIDING = "sliding_attention"

TILE = 128  # short windows are multiples of this
LENGTH = 1.2  # length of normalised queries and keys, in units of √head_dim
VALUE_GATE = 12  # input features of the gates of value embeddings
SMEAR_GATE = 24  # input features of the gate of smear
VALUE_GATE_MOST = 3.0  # a gate of value embeddings is between 0 and this

_CACHE_FIELD = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"


def short_window(context: int) -> int:
    """The tokens before itself that a token sees in a layer "S": a quarter of the context, in whole tiles."""
    quarter = -(-context // 4)
    return -(-quarter // TILE) * TILE


def layer_kinds(pattern: str, layers: int, context: int) -> list[str]:
    """The kind of each layer, for nanochat's pattern of "S" and "L", which is repeated; the last layer is always "L".
    All layers are full if the window would be as long as the context."""
    if short_window(context) + 1 >= context:
        return [FULL] * layers
    kinds = []
    for layer in range(layers - 1):
        letter = pattern[layer % len(pattern)]
        kinds.append(SLIDING if letter == "S" else FULL)
    return [*kinds, FULL]


class NanoChatGPTConfig(PreTrainedConfig):
    """Sizes of a nanochat model; ``window_pattern``: letters "S" and "L", repeated over the layers."""

    model_type = "nanochat_gpt"
    reads_previous_token = True  # needs ``previous_ids`` with a cache
    keys_to_ignore_at_inference = ("past_key_values", "cache")

    def __init__(
        self,
        vocab_size: int = 32768,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 6,
        num_key_value_heads: int | None = None,
        max_position_embeddings: int = 2048,
        window_pattern: str = "SSSL",
        rope_theta: float = 100_000.0,
        final_logit_softcapping: float | None = 15.0,
        initializer_range: float = 0.02,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("tie_word_embeddings", False)
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = 4 * hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.window_pattern = window_pattern.upper()
        if not self.window_pattern or set(self.window_pattern) - set("SL"):
            raise ValueError(f"window_pattern is {window_pattern!r}; expected letters S and L, such as 'SSSL'")
        self.layer_types = layer_kinds(self.window_pattern, num_hidden_layers, max_position_embeddings)
        self.sliding_window = short_window(max_position_embeddings) + 1 if SLIDING in self.layer_types else None
        self.rope_theta = rope_theta
        self.final_logit_softcapping = final_logit_softcapping
        self.initializer_range = initializer_range
        self.use_cache = use_cache
        for derived in ("intermediate_size", "head_dim", "layer_types", "sliding_window"):
            kwargs.pop(derived, None)
        super().__init__(**kwargs)

    def has_value_embedding(self, layer: int) -> bool:
        """Every other layer has one, the last among them."""
        return layer % 2 == (self.num_hidden_layers - 1) % 2


def normalise(x: Tensor) -> Tensor:
    """Root mean square 1, without weights."""
    return F.rms_norm(x, (x.shape[-1],))


def rotary_table(positions: Tensor, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``[B, 1, L, head_dim / 2]`` in float32 of the angles at ``positions`` [B, L]."""
    channels = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device)
    frequencies = 1.0 / (base ** (channels / head_dim))
    angles = positions[:, None, :, None].float() * frequencies
    return angles.cos(), angles.sin()


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding of x ``[B, heads, L, head_dim]``. Features j and j + head_dim / 2 are a pair, which is rotated
    by the negative angle."""
    cos, sin = table
    left, right = _at_least_float32(x).chunk(2, dim=-1)
    return torch.cat([left * cos + right * sin, right * cos - left * sin], dim=-1)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention by plain matrix products; returns its weights, too. ``attention_mask`` is added to the scores."""
    repeat = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(repeat, 1)
    value = value.repeat_interleave(repeat, 1)
    scores = query @ key.transpose(2, 3) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class NanoChatGPTAttention(nn.Module):
    """Causal attention, perhaps within a window, with a value embedding in every other layer."""

    def __init__(self, config: NanoChatGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        self.sliding_window = config.sliding_window if config.layer_types[layer_idx] == SLIDING else None
        query_width = config.num_attention_heads * self.head_dim
        key_width = config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.value_embed: nn.Embedding | None = None
        if config.has_value_embedding(layer_idx):
            self.value_embed = nn.Embedding(config.vocab_size, key_width)
            self.value_gate = nn.Linear(VALUE_GATE, config.num_key_value_heads, bias=False)

    def forward(
        self,
        x: Tensor,
        input_ids: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: Cache | None,
        **kwargs: Any,
    ) -> Tensor:
        """x ``[B, L, H]``, normalised → ``[B, L, H]``."""
        shape = (*x.shape[:2], -1, self.head_dim)
        query = self.q_proj(x).view(shape)
        key = self.k_proj(x).view(shape)
        value = self.v_proj(x).view(shape)
        if self.value_embed is not None:
            gate = VALUE_GATE_MOST * torch.sigmoid(self.value_gate(x[..., :VALUE_GATE]))  # [B, L, K]
            value = value + (gate[..., None] * self.value_embed(input_ids).view(shape)).to(value.dtype)
        query = query.transpose(1, 2)
        key = key.transpose(1, 2)
        value = value.transpose(1, 2)
        query = (normalise(rotate(query, rotary)) * LENGTH).to(value.dtype)
        key = (normalise(rotate(key, rotary)) * LENGTH).to(value.dtype)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx)
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention
        )
        mixed, _ = attend(
            self, query, key, value, mask, scaling=self.scaling, sliding_window=self.sliding_window, **kwargs
        )
        result: Tensor = self.o_proj(mixed.reshape(*x.shape[:2], -1))
        return result


class NanoChatGPTMLP(nn.Module):
    """Feed-forward with the square of a ReLU."""

    def __init__(self, config: NanoChatGPTConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(F.relu(self.fc1(x)).square())
        return result


class NanoChatGPTLayer(GradientCheckpointingLayer):
    """Attention and feed-forward, each on normalised input and added to the residual stream."""

    def __init__(self, config: NanoChatGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = NanoChatGPTAttention(config, layer_idx)
        self.mlp = NanoChatGPTMLP(config)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        x = x + self.self_attn(normalise(x), **kwargs)
        result: Tensor = x + self.mlp(normalise(x))
        return result


class NanoChatGPTPreTrainedModel(PreTrainedModel):
    """Attributes that transformers expects of the classes below."""

    config: NanoChatGPTConfig
    config_class = NanoChatGPTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["NanoChatGPTLayer"]  # type: ignore[misc]
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_attention_backend = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, NanoChatGPTModel):  # as nanochat does: no smear, lambdas that fall with depth
            steps = torch.linspace(0.0, 1.0, self.config.num_hidden_layers)
            init.copy_(module.resid_lambdas, 1.15 - 0.10 * steps)
            init.copy_(module.x0_lambdas, 0.20 - 0.15 * steps)
            init.zeros_(module.smear_lambda)
            init.constant_(module.backout_lambda, 0.2)


class NanoChatGPTModel(NanoChatGPTPreTrainedModel):
    """Token ids → normalised hidden states, ready for the output layer."""

    def __init__(self, config: NanoChatGPTConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.smear_gate = nn.Linear(SMEAR_GATE, 1, bias=False)
        self.smear_lambda = nn.Parameter(torch.zeros(1))
        self.resid_lambdas = nn.Parameter(torch.ones(config.num_hidden_layers))
        self.x0_lambdas = nn.Parameter(torch.zeros(config.num_hidden_layers))
        self.backout_lambda = nn.Parameter(torch.zeros(1))
        self.layers = nn.ModuleList([NanoChatGPTLayer(config, layer) for layer in range(config.num_hidden_layers)])
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Mapping[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        previous_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """As in other models of transformers, with two differences.

        Args:
            attention_mask: may also be a mask for each kind of layer, "full_attention" and "sliding_attention".
            previous_ids: ``[B, L]`` the token before each of ``input_ids``; arbitrary at position 0. By default the one
                before it in ``input_ids``. Required with a cache that contains tokens.
        """
        if input_ids is None or inputs_embeds is not None:
            raise ValueError("nanochat needs input_ids: its value embeddings are looked up by token")
        cache = past_key_values if cache is None else cache
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        if position_ids is None:
            n_cached = cache.get_seq_length() if cache is not None else 0
            position_ids = torch.arange(n_cached, n_cached + input_ids.shape[1], device=input_ids.device)[None]

        # Smear: each token takes up the embedding of the previous one.
        embeddings = normalise(self.embed_tokens(input_ids))
        previous = self._previous_embeddings(embeddings, previous_ids, cache, kwargs.get("branches"))
        gate = self.smear_lambda * torch.sigmoid(self.smear_gate(embeddings[..., :SMEAR_GATE]))
        gate = gate * self._has_token_before(position_ids, attention_mask, input_ids.shape[1])[..., None]
        x0 = embeddings + (gate * previous).to(embeddings.dtype)

        x = x0
        masks = self._layer_masks(x, attention_mask, position_ids, cache)
        rotary = rotary_table(position_ids, self.config.head_dim, self.config.rope_theta)
        hidden_states = []
        middle = x
        for i, layer in enumerate(self.layers):
            hidden_states.append(x)
            x = layer(
                self.resid_lambdas[i] * x + self.x0_lambdas[i] * x0,
                input_ids=input_ids,
                rotary=rotary,
                mask=masks[self.config.layer_types[i]],
                cache=cache,
                **{name: value for name, value in kwargs.items() if not name.startswith("output_")},
            )
            if i == len(self.layers) // 2:
                middle = x

        x = normalise(x - self.backout_lambda * middle)
        outputs: dict[str, Any] = {_CACHE_FIELD: cache}
        if kwargs.get("output_hidden_states"):
            outputs["hidden_states"] = (*hidden_states, x)
        return BaseModelOutputWithPast(last_hidden_state=x, **outputs)

    def _previous_embeddings(
        self, embeddings: Tensor, previous_ids: Tensor | None, cache: Cache | None, branches: Any
    ) -> Tensor:
        """[B, L, H]: the embedding of the previous token of each token; arbitrary at position 0."""
        if branches is not None:
            return embeddings[:, branches.before.to(embeddings.device)]
        if previous_ids is not None:
            return normalise(self.embed_tokens(previous_ids.clamp(min=0)))
        if cache is not None and cache.get_seq_length():
            raise ValueError("nanochat with a cache that holds tokens needs previous_ids, the token before each")
        return torch.cat([embeddings[:, :1], embeddings[:, :-1]], dim=1)

    @staticmethod
    def _has_token_before(position_ids: Tensor, attention_mask: object, length: int) -> Tensor:
        """[B, L] bool: whether each token has a previous one in its document."""
        has_previous = position_ids > 0
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2 and attention_mask.shape[1] == length:
            follows_padding = F.pad(attention_mask[:, :-1], (1, 0)) == 0  # rows that are padded on the left
            return has_previous & ~follows_padding
        return has_previous

    def _layer_masks(
        self,
        x: Tensor,
        attention_mask: Tensor | Mapping[str, Tensor | None] | None,
        position_ids: Tensor,
        cache: Cache | None,
    ) -> Mapping[str, Tensor | None]:
        """The mask of each kind of layer."""
        if isinstance(attention_mask, Mapping):
            return attention_mask
        parameters = signature(create_causal_mask).parameters  # their names differ between versions of transformers
        arguments = {
            "config": self.config,
            "inputs_embeds": x,
            "input_embeds": x,
            "attention_mask": attention_mask,
            "cache": cache,
            "past_key_values": cache,
            "position_ids": position_ids,
            "cache_position": position_ids[0],
        }
        arguments = {name: value for name, value in arguments.items() if name in parameters}
        masks: dict[str, Tensor | None] = {FULL: create_causal_mask(**arguments)}
        if self.config.sliding_window is not None:
            masks[SLIDING] = create_sliding_window_causal_mask(**arguments)
        return masks


class NanoChatGPTForCausalLM(NanoChatGPTPreTrainedModel, GenerationMixin):
    """The language model."""

    def __init__(self, config: NanoChatGPTConfig) -> None:
        super().__init__(config)
        self.model = NanoChatGPTModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Mapping[str, Tensor | None] | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        previous_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """As in other models of transformers; ``previous_ids``: see ``NanoChatGPTModel``. Logits are float32 or
        wider."""
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=past_key_values if cache is None else cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            previous_ids=previous_ids,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = _at_least_float32(self.lm_head(outputs.last_hidden_state[:, kept]))
        cap = self.config.final_logit_softcapping
        if cap is not None:
            logits = cap * torch.tanh(logits / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.vocab_size)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            **{_CACHE_FIELD: outputs.get(_CACHE_FIELD)},
        )
        return output.to_tuple() if return_dict is False else output

    def prepare_inputs_for_generation(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As in other models, with ``previous_ids`` of the tokens that are passed to ``forward``."""
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(input_ids, *args, **kwargs)
        passed_ids = inputs["input_ids"]
        previous_ids = F.pad(input_ids, (1, 0))[:, :-1]  # the first token has none
        inputs["previous_ids"] = previous_ids[:, -passed_ids.shape[1] :]
        return inputs


class NanoChatGPTForSequenceClassification(GenericForSequenceClassification, NanoChatGPTPreTrainedModel):
    """A reward model: one number for a whole text."""


AutoConfig.register(NanoChatGPTConfig.model_type, NanoChatGPTConfig)
AutoModel.register(NanoChatGPTConfig, NanoChatGPTModel)
AutoModelForCausalLM.register(NanoChatGPTConfig, NanoChatGPTForCausalLM)
AutoModelForSequenceClassification.register(NanoChatGPTConfig, NanoChatGPTForSequenceClassification)
