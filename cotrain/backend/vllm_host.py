"""One engine of vLLM in a process of its own, in the Python of an environment that has vLLM. Knows no Ray.

What arrives as weights are the learners' parameters, by their names in transformers; vLLM knows a model's weights by
the names of its directory, which are the same for the models that it was tried with, and an adapter's by those of PEFT.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cotrain.backend.engine_host import BaseEngineHost, Weights
from cotrain.core.errors import ModelError
from cotrain.engine.vllm_engine import VllmEngine, VllmSettings
from cotrain.models.load import load_tokenizer, model_directory
from cotrain.models.lora import Lora
from cotrain.text.render import Renderer


class VllmHost(BaseEngineHost):
    """The policies of a run that speak with one set of weights, or with adapters on it."""

    def __init__(self, policies: Mapping[str, Any], settings: VllmSettings, device: str, threads: int) -> None:
        """``policies``: as the backend has settled them, all on one model; ``threads``: of the CPU."""
        torch.set_num_threads(threads)
        self._adapters = {name: _adapter_config(spec.lora) for name, spec in policies.items() if spec.lora is not None}
        first_spec = next(iter(policies.values()))
        narrow = first_spec.autocast or first_spec.dtype == "bfloat16"
        engine = VllmEngine(
            model_directory(first_spec.model, trust_remote_code=first_spec.trust_remote_code),
            {name: self._adapters[name]["r"] if name in self._adapters else None for name in policies},
            dtype="bfloat16" if narrow else "float32",
            settings=settings,
            device=device,
            trust_remote_code=first_spec.trust_remote_code,
        )
        renderer = Renderer(load_tokenizer(first_spec.model, trust_remote_code=first_spec.trust_remote_code))
        super().__init__(engine, dict.fromkeys(policies, renderer))
        self._vllm = engine

    def load_weights(self, policy: str, weights: Weights) -> None:
        named = [(name, torch.from_numpy(array.copy())) for name, array in weights.items()]
        if policy not in self._adapters:
            self._vllm.load_weights(policy, named)
            return
        saved = [(saved_name(name, policy), tensor) for name, tensor in named]
        targets = sorted({name.split(".lora_")[0].rpartition(".")[2] for name, _ in saved})
        self._vllm.load_weights(policy, saved, {**self._adapters[policy], "target_modules": targets})


def saved_name(name: str, policy: str) -> str:
    """A weight's name in an adapter's directory, of that in the module (``models/adapters.py``)."""
    return "base_model.model." + name.replace(f".policy-{policy}.", ".")


def _adapter_config(lora: Lora) -> dict[str, Any]:
    """What vLLM has to know of an adapter, as PEFT writes it."""
    rank, alpha = lora.rank, lora.alpha
    if lora.path is not None:
        try:
            saved = json.loads((Path(lora.path) / "adapter_config.json").read_text(encoding="utf-8"))
            rank, alpha = int(saved["r"]), int(saved["lora_alpha"])
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"adapter {lora.path}: no rank in its adapter_config.json ({error})") from error
    return {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": alpha, "bias": "none"}
