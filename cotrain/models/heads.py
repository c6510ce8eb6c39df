"""A value function on a language model: the body of a causal LM with one number per token instead of a vocabulary.

For critics (GAE, PPO). The head begins at zero, so that a fresh critic predicts 0 everywhere and the first advantages
are the returns themselves; the body begins as the policy it criticises, which already reads the task (Ouyang et al.
2022, arXiv 2203.02155, section 3.5).

And for reward models, whose score of a text is the number at its last token: fresh on a causal LM, or a
``…ForSequenceClassification`` with one label, as the Hub has them and as ``classifier_of`` makes them. Their head has
no bias there.

Left out: heads of several numbers, and sharing the body with a policy (``policy`` and critic would then share an
optimiser, and a critic's gradient would move the policy).
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
    """Values ``[B, L]`` in float32 for token ids ``[B, L]``: place t is the value after reading tokens 0..t."""

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
        """Masks and positions as the body takes them: ``[B, L]`` or ``[B, 1, L, L]``, and ``[B, L]``."""
        hidden = self.body(
            input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        with torch.autocast(hidden.device.type, enabled=False):  # a value is told apart by more than eight bits
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
    """A reward model: of transformers' kind with the head that it has, or a causal LM (directory, Hub name, or
    "shipped") with one that begins at zero. Raises ModelError as ``value_model`` does, and for a head that is more
    than a weight per feature."""
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
    """A copy of a body with ``weight`` [1, H] as its head, as transformers' ``…ForSequenceClassification`` with one
    label.

    ``pad_id``: the token that fills batches there, where the score is taken before the first one of the end. Raises
    ModelError for an architecture of which transformers has no such class.
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
    """A language model as a reward model: its score is how much likelier, in logits, the next token begins ``right``
    than ``wrong``. Raises ModelError where both begin with the same token."""
    first = [tokenizer.encode(word, add_special_tokens=False)[:1] for word in (right, wrong)]
    if first[0] == first[1]:
        raise ModelError(
            f"{right!r} and {wrong!r} begin with the same token; take words that this tokenizer tells apart at once",
            code="E_VERDICT_WORDS_ALIKE",
        )
    rows = model.get_output_embeddings().weight.detach()
    odds = (rows[first[0][0]] - rows[first[1][0]]).float()[None]
    return classifier_of(_body_of(model.name_or_path or "here", model), odds, tokenizer.pad_token_id)


def _body_of(name: str | os.PathLike[str], model: PreTrainedModel) -> PreTrainedModel:
    body = model.base_model
    if body is model or not isinstance(body, PreTrainedModel):
        raise ModelError(
            f"model {str(name)!r}: {type(model).__name__} has no body apart from its head", code="E_MODEL_WITHOUT_BODY"
        )
    return body
