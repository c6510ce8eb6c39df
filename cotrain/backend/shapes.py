"""The dimensions of a policy's model that its FLOPs depend on (``train/flops.py`` has the arithmetic)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from cotrain.backend.handles import PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeShape:
    """A model, as far as its price goes."""

    body: int  # weights that multiply every token
    head: int  # weights of the output layer
    pair: int  # operations of one (query, key) pair: 4 · layers · heads · head size
    trained: int = 0  # weights of body and head that get a gradient


def compute_shape(name: str, spec: PolicySpec, model: nn.Module) -> ComputeShape:
    """The shape of a policy's model; of the adapters on a shared base only its own counts."""
    full_model: Any = model
    core = full_model if spec.head == "lm" else full_model.body
    config = core.config.get_text_config()
    own = {p for path, p in model.named_parameters() if ".lora_" not in path or f".policy-{name}." in path}
    embedding = core.get_input_embeddings().weight
    head = core.get_output_embeddings().weight if spec.head == "lm" else full_model.head.weight
    body = sum(p.numel() for p in own) - embedding.numel() - (0 if head is embedding else head.numel())
    adapter = sum(p.numel() for path, p in model.named_parameters() if f".policy-{name}." in path)
    heads = getattr(config, "num_attention_heads", None) or 0  # none where a model has no attention
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, heads)
    return ComputeShape(
        body=body,
        head=head.numel(),
        pair=4 * config.num_hidden_layers * heads * size,
        trained=adapter if spec.lora else body + head.numel() if spec.trained else 0,
    )
