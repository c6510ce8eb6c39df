"""Scalar heads: the body of a causal LM with one number per token instead of logits, for critics and reward models.

Critics (GAE, PPO): the head starts at zero, so that a new critic predicts 0 everywhere and the first advantages are the
returns themselves. The body starts with the weights of the policy (Ouyang et al. 2022, arXiv 2203.02155, section 3.5).

Reward models: the score of a text is the number at its last token. They are made from a causal LM with a new head, or
loaded from a ``…ForSequenceClassification`` with one label, as they are on the Hub and as ``classifier_of`` makes them.
Their head has no bias.

Left out: heads of several numbers, and a body that critic and policy share (a critic's gradient would then change the
policy).
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from cotrain.core.errors import ModelError
from cotrain.core.seeding import seed_of
from cotrain.models.load import load_classifier, load_model


class ValueModel(nn.Module):
    """Token ids ``[B, L]`` → float32 values ``[B, L]``: entry t is the value after reading tokens 0 to t."""

    def __init__(self, body: PreTrainedModel, bias: bool = True) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(body.config.get_text_config().hidden_size, 1, bias=bias, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)
        if bias:
            nn.init.zeros_(self.head.bias)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``attention_mask`` ``[B, L]`` or ``[B, 1, L, L]`` and ``position_ids`` ``[B, L]``, as the body takes them."""
        hidden = self.body(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):  # values need more than the 8 bits of bfloat16
            return self.head(hidden.float()).squeeze(-1)


def value_model(name: str | os.PathLike[str], seed: int = 0, scale: float = 0.0, **loading: Any) -> ValueModel:
    """A fresh critic on the body of a causal LM (directory, Hub name, or "shipped").

    ``scale`` is the standard deviation of the head's weights, drawn at ``seed``; at 0 all values are exactly 0.
    ``loading``: as for ``load_model``.
    Raises ModelError as ``load_model`` does, and for a model without a separate body.
    """
    model, _ = load_model(name, **loading)
    critic = ValueModel(_body_of(name, model))
    if scale:
        generator = torch.Generator().manual_seed(seed_of("value head", seed))
        nn.init.normal_(critic.head.weight, std=scale, generator=generator)
    return critic.eval()


def reward_model(name: str | os.PathLike[str], **loading: Any) -> ValueModel:
    """A reward model: a ``…ForSequenceClassification`` with its own head, or a causal LM (directory, Hub name, or
    "shipped") with a new head of zeros. Raises ModelError as ``value_model`` does, and for a head that is not linear
    without bias."""
    classifier = load_classifier(name, **loading)
    if classifier is None:
        model, _ = load_model(name, **loading)
        return ValueModel(_body_of(name, model), bias=False).eval()
    scorer = ValueModel(_body_of(name, classifier), bias=False)
    head = getattr(classifier, "score", None)
    if not isinstance(head, nn.Linear) or head.bias is not None or head.weight.shape != scorer.head.weight.shape:
        raise ModelError(
            f"model {str(name)!r}: its head is not one weight for each feature; expected `score`, linear without bias",
            code="E_REWARD_HEAD",
        )
    with torch.no_grad():
        scorer.head.weight.copy_(head.weight)
    return scorer.eval()


def classifier_of(body: PreTrainedModel, weight: torch.Tensor, pad_id: int | None) -> PreTrainedModel:
    """A ``…ForSequenceClassification`` with one label: a copy of ``body`` with ``weight`` [1, H] as its head.

    ``pad_id``: the padding token; transformers takes the score at the last token before padding. Raises ModelError for
    an architecture without such a class in transformers.
    """
    config = copy.deepcopy(body.config)
    config.num_labels = 1
    config.pad_token_id = pad_id
    if type(config) not in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        raise ModelError(
            f"{type(body).__name__}: transformers has no sequence classification for it, so no reward model can be "
            "written",
            code="E_NO_SEQUENCE_CLASSIFICATION",
        )
    model = AutoModelForSequenceClassification.from_config(config)
    model.base_model.load_state_dict(body.state_dict())
    with torch.no_grad():
        model.score.weight.copy_(weight)
    result: PreTrainedModel = model.eval()
    return result


def rating_by_words(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, right: str, wrong: str
) -> PreTrainedModel:
    """A language model as a reward model: the score is the logit of the first token of ``right`` minus that of
    ``wrong``. Raises ModelError if both words begin with the same token."""
    right_first = tokenizer.encode(right, add_special_tokens=False)[:1]
    wrong_first = tokenizer.encode(wrong, add_special_tokens=False)[:1]
    if right_first == wrong_first:
        raise ModelError(
            f"{right!r} and {wrong!r} begin with the same token; take words that this tokenizer tells apart at once",
            code="E_VERDICT_WORDS_ALIKE",
        )
    output_rows = model.get_output_embeddings().weight.detach()
    head_weight = (output_rows[right_first[0]] - output_rows[wrong_first[0]]).float()[None]
    return classifier_of(_body_of(model.name_or_path or "here", model), head_weight, tokenizer.pad_token_id)


def _body_of(name: str | os.PathLike[str], model: PreTrainedModel) -> PreTrainedModel:
    """The model without its head. Raises ModelError for one that has no separate body."""
    body = model.base_model
    if body is model or not isinstance(body, PreTrainedModel):
        raise ModelError(
            f"model {str(name)!r}: {type(model).__name__} has no body apart from its head", code="E_MODEL_WITHOUT_BODY"
        )
    return body
