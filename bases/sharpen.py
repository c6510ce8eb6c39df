"""A model that answers at temperature 1 as it did at a lower one: the scale of its last norm is multiplied.

    logits = W · norm(h) · scale,   softmax(factor · logits) = softmax(logits / T) with T = 1 / factor

Greedy answers stay as they are, up to rounding. A small model that learned by imitation is right in its greedy answer
more often than it is sure; without this a run of RL could earn by lower entropy alone. Embeddings are tied to the
output, so it is the norm that takes the factor. Left out: output layers with a bias or a soft cap, for which this is
not exact; they are refused.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

from cotrain.core.errors import ConfigError, ModelError


@torch.no_grad()
def sharpen(model: PreTrainedModel, factor: float) -> None:
    """Multiply all logits by ``factor``, in place. Raises ConfigError unless it is positive, ModelError where it
    cannot."""
    if not factor > 0:
        raise ConfigError(f"sharpen: the factor is {factor}; expected more than 0, such as 2.0")
    norm = getattr(getattr(model, "model", None), "norm", None)
    weight, head = getattr(norm, "weight", None), model.get_output_embeddings()
    other = (
        getattr(head, "bias", None) is not None or getattr(model.config, "final_logit_softcapping", None) is not None
    )
    if not isinstance(weight, nn.Parameter) or other:
        raise ModelError(
            f"sharpen: {type(model).__name__} has no plain output after a norm with a scale; expected a Llama or Qwen"
        )
    weight.mul_(factor)
