"""Activation checkpointing (Chen et al. 2016, arXiv 1604.06174) in evaluation mode.

A layer keeps only its input and is computed again in the backward pass. This costs one more forward pass and saves the
memory of all activations inside of layers.

transformers has the same as ``gradient_checkpointing_enable``, but only in training mode, where dropout would be on and
the learner's log-probabilities would not be those of the sampler. So the forward methods of layers are wrapped here for
the time of a pass. A layer also reads the configuration (which attention function to use); it is set to the same value
when the layer is computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer

from cotrain.core.errors import ModelError


def check_recompute(model: nn.Module) -> None:
    """Raise ModelError for a model whose layers are not known to be pure functions of their inputs."""
    if not _recomputable_layers(model):
        raise ModelError(
            f"{type(model).__name__} has no layer that transformers can checkpoint; set gradient_checkpointing=false",
            code="E_NO_GRADIENT_CHECKPOINTING",
        )


@contextmanager
def recompute_layers(model: nn.Module, enabled: bool = True) -> Iterator[None]:
    """Within the block, a forward pass with gradient keeps only the inputs of layers."""
    layers = _recomputable_layers(model) if enabled and torch.is_grad_enabled() else []
    for layer in layers:
        layer.forward = partial(
            checkpoint,
            layer.forward,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=partial(_pass_contexts, _layer_configs(layer)),
        )

    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _recomputable_layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _layer_configs(layer: nn.Module) -> list[PreTrainedConfig]:
    """The configurations of a layer and its parts, each once."""
    configs = [getattr(module, "config", None) for module in layer.modules()]
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


def _pass_contexts(
    configs: list[PreTrainedConfig],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts of the forward pass, and of the second computation, which has the attention of now."""
    return nullcontext(), _attention_as(configs, [config._attn_implementation for config in configs])


@contextmanager
def _attention_as(configs: list[PreTrainedConfig], names: list[str]) -> Iterator[None]:
    """Within the block, each configuration names this attention function."""
    before = [config._attn_implementation for config in configs]
    for config, name in zip(configs, names, strict=True):
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name
