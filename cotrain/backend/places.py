"""Placement of engines: one for all policies with the embedded engine, one for each set of weights with vLLM, or
several replicas of each.

Policies with the same weights share an engine of vLLM: adapters and frozen policies on one base. Policies that score
instead of speaking have an embedded engine of their own, as vLLM does not run their heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cotrain.backend.engine_host import EngineHost, VllmHost
from cotrain.backend.handles import PolicySpec
from cotrain.core.errors import ConfigError
from cotrain.engine.vllm_engine import DEFAULT_SETTINGS, VllmSettings
from cotrain.models.load import model_directory

ENGINE = "the engine's process"  # as messages name it
LEAST_HEAD = 32  # of attention on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlacement:
    """One engine in a process of its own."""

    what: str  # as messages name it
    host: type  # of its process
    policies: tuple[str, ...]  # that it answers for
    settings: tuple[Any, ...]  # arguments of the host
    tested: bool  # is it asked at the start whether new weights arrive?


PolicySpecs = Mapping[str, PolicySpec]
# (policies, seed, device, threads) → engines
PlacementRule = Callable[[PolicySpecs, int, str, int], list[EnginePlacement]]


def embedded_alone(
    policies: PolicySpecs, seed: int, device: str, threads: int, *, tested: bool = False
) -> list[EnginePlacement]:
    """One embedded engine for all."""
    asked = tuple(name for name, spec in policies.items() if spec.speaks or spec.scores)
    settings = (policies, seed, device, threads)
    return [EnginePlacement(what=ENGINE, host=EngineHost, policies=asked, settings=settings, tested=tested)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlacement:
    """A ``PlacementRule``: vLLM for whoever speaks."""

    settings: VllmSettings = DEFAULT_SETTINGS

    def __call__(self, policies: PolicySpecs, seed: int, device: str, threads: int) -> list[EnginePlacement]:
        for name, spec in policies.items():
            if spec.speaks and getattr(spec, "load_in_4bit", False):
                raise ConfigError(
                    f"policy {name!r}: vLLM samples from whole weights; load_in_4bit goes with --engine embedded"
                )
            if spec.speaks and device == "cpu":
                refuse_heads(name, spec)
        places = []
        for names in self.group_by_weights(policies):
            group = {name: policies[name] for name in names}
            what = f"the engine's process of {' and '.join(names)}"
            settings = (group, self.settings, device, threads)
            places.append(EnginePlacement(what=what, host=VllmHost, policies=names, settings=settings, tested=True))
        scoring = {name: spec for name, spec in policies.items() if spec.scores}
        if scoring:
            rest = embedded_alone(scoring, seed, device, threads)[0]
            places.append(replace(rest, what=f"the engine's process of {' and '.join(scoring)}"))
        return places

    def group_by_weights(self, policies: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """Policies that speak, by the weights that they speak with."""
        names_by_weights: dict[tuple[Any, ...], list[str]] = {}
        for name, spec in policies.items():
            if spec.speaks:
                alone = spec.lora is None and (spec.trained or spec.source_policy is not None)
                weights = (name,) if alone else (None, spec.model, *spec.load_options.values(), spec.autocast)
                names_by_weights.setdefault(weights, []).append(name)
        return [tuple(names) for names in names_by_weights.values()]


def with_replicas(placing: PlacementRule, count: int) -> PlacementRule:
    """So many processes in place of each, which answer for the same policies."""
    if count == 1:
        return placing

    def all_of(policies: PolicySpecs, seed: int, device: str, threads: int) -> list[EnginePlacement]:
        return [
            replace(place, what=f"{place.what} (replica {number} of {count})")
            for place in placing(policies, seed, device, threads)
            for number in range(1, count + 1)
        ]

    return all_of


def refuse_heads(name: str, spec: Any) -> None:
    """Raises ConfigError for attention heads that vLLM does not run on a CPU; reads ``config.json`` alone."""
    from transformers import AutoConfig

    directory = model_directory(spec.model, trust_remote_code=spec.trust_remote_code)
    config: Any = AutoConfig.from_pretrained(directory, trust_remote_code=spec.trust_remote_code).get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size < LEAST_HEAD or size % 16:
        raise ConfigError(
            f"policy {name!r}: {spec.model!r} has attention heads of size {size}, and vLLM on a CPU runs multiples "
            f"of 16 from {LEAST_HEAD} on; take another model, or --engine embedded"
        )
