"""A value function on a language model: the body of a causal LM with one number per token instead of a vocabulary.

For critics (GAE, PPO). The head begins at zero, so that a fresh critic predicts 0 everywhere and the first advantages
are the returns themselves; the body begins as the policy it criticises, which already reads the task (Ouyang et al.
2022, arXiv 2203.02155, section 3.5).

Left out: heads of several numbers, and sharing the body with a policy (``policy`` and critic would then share an
optimiser, and a critic's gradient would move the policy).
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from cotrain.core.address import seed_of
from cotrain.core.errors import ModelError
from cotrain.models.load import load_model


class ValueModel(nn.Module):
    """Values ``[B, L]`` in float32 for token ids ``[B, L]``: place t is the value after reading tokens 0..t."""

    def __init__(self, body: PreTrainedModel) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.config.get_text_config().hidden_size, 1, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Masks and positions as the body takes them: ``[B, L]`` or ``[B, 1, L, L]``, and ``[B, L]``."""
        hidden = self.body(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):  # a value is told apart by more than eight bits
            return self.head(hidden.float()).squeeze(-1)


def value_model(name: str | os.PathLike[str], seed: int = 0, scale: float = 0.0, **loading: Any) -> ValueModel:
    """A fresh critic on the body of a causal LM (directory, Hub name, or "embedded").

    ``scale`` is the standard deviation of the head's weights, drawn at ``seed``; at 0 all values are exactly 0.
    ``loading``: as for ``load_model``.
    Raises ModelError as ``load_model`` does, and for a model without a separate body.
    """
    model, _ = load_model(name, **loading)
    body = model.base_model
    if body is model or not isinstance(body, PreTrainedModel):
        raise ModelError(f"model {str(name)!r}: {type(model).__name__} has no body apart from its head")
    critic = ValueModel(body)
    if scale:
        generator = torch.Generator().manual_seed(seed_of("value head", seed))
        nn.init.normal_(critic.head.weight, std=scale, generator=generator)
    return critic.eval()
