"""Placement of engines: one for all policies with the local engine, one for each set of weights with vLLM, or
several replicas of each. And of learners: one process for all policies, or processes of their own for some.

Policies with the same weights share an engine of vLLM: adapters and frozen policies on one base. Policies that score
instead of speaking have an local engine of their own, as vLLM does not run their heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cotrain.core.errors import ConfigError, unknown_message
from cotrain.distributed.engine_host import EngineHost, VllmHost
from cotrain.distributed.policy_handles import PolicySpec
from cotrain.inference.vllm import DEFAULT_SETTINGS, VllmSettings
from cotrain.models.load import model_directory

ENGINE = "the engine's process"  # its name in messages
LEARNERS = "the learners' process"  # likewise
LEAST_HEAD = 32  # least size of an attention head on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlacement:
    """One engine in a process of its own."""

    what: str  # as messages name it
    host: type  # the host class of its process
    policies: tuple[str, ...]  # the policies that it samples from
    settings: tuple[Any, ...]  # arguments of the host
    tested: bool  # is it asked at the start whether new weights arrive?


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerPlacement:
    """Learners of some policies, in a process of their own or in several ranks."""

    what: str  # as messages name it
    policies: tuple[str, ...]
    world: int = 1  # ranks


PolicySpecs = Mapping[str, PolicySpec]
# (policies, seed, device, threads) → engines
PlacementRule = Callable[[PolicySpecs, int, str, int], list[EnginePlacement]]


def one_local_engine(
    policies: PolicySpecs, seed: int, device: str, threads: int, *, tested: bool = False
) -> list[EnginePlacement]:
    """One local engine for all policies."""
    policy_names = tuple(name for name, spec in policies.items() if spec.generates or spec.scores)
    settings = (policies, seed, device, threads)
    return [EnginePlacement(what=ENGINE, host=EngineHost, policies=policy_names, settings=settings, tested=tested)]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmPlacement:
    """A ``PlacementRule``: vLLM for all policies that generate."""

    settings: VllmSettings = DEFAULT_SETTINGS

    def __call__(self, policies: PolicySpecs, seed: int, device: str, threads: int) -> list[EnginePlacement]:
        for name, spec in policies.items():
            if spec.generates and getattr(spec, "load_in_4bit", False):
                raise ConfigError(
                    f"policy {name!r}: vLLM samples from whole weights; load_in_4bit goes with --engine local",
                    code="E_VLLM_FOUR_BIT",
                )
            if spec.generates and device == "cpu":
                check_heads(name, spec)

        places = []
        for names in self.group_by_weights(policies):
            group = {name: policies[name] for name in names}
            what = f"the engine's process of {' and '.join(names)}"
            settings = (group, self.settings, device, threads)
            places.append(EnginePlacement(what=what, host=VllmHost, policies=names, settings=settings, tested=True))

        scoring = {name: spec for name, spec in policies.items() if spec.scores}
        if scoring:
            rest = one_local_engine(scoring, seed, device, threads)[0]
            places.append(replace(rest, what=f"the engine's process of {' and '.join(scoring)}"))
        return places

    def group_by_weights(self, policies: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """Policies that generate, by the weights with which they do."""
        names_by_weights: dict[tuple[Any, ...], list[str]] = {}
        for name, spec in policies.items():
            if spec.generates:
                alone = spec.lora is None and (spec.is_trained or spec.source_policy is not None)
                weights = (name,) if alone else (None, spec.model, *spec.load_options.values(), spec.autocast)
                names_by_weights.setdefault(weights, []).append(name)
        return [tuple(names) for names in names_by_weights.values()]


def learners_label(policy: str | None = None) -> str:
    """The name of learners in messages: of one policy, or of all that have no process of their own."""
    return LEARNERS if policy is None else f"{LEARNERS} of {policy}"


def rank_label(what: str, rank: int, world: int) -> str:
    """The name of a rank in messages."""
    return f"{what} (rank {rank} of {world})"


def process_names(what: str, world: int) -> list[str]:
    """The names of the processes of a placement of learners, one for each rank."""
    return [what] if world == 1 else [rank_label(what, rank, world) for rank in range(world)]


def place_learners(policies: PolicySpecs, world: int, worlds: Mapping[str, int]) -> list[LearnerPlacement]:
    """Where the policies learn: those that ``worlds`` names in processes of their own, of so many ranks, together with
    the policies that follow them, the others in one, of ``world`` ranks. Raises ConfigError."""
    for name in worlds:
        if name not in policies:
            raise ConfigError(
                f"the --cluster file: {unknown_message('policy', name, policies)}, in [learner.{name}]",
                code="E_CLUSTER_POLICY",
            )
        if not policies[name].head:
            raise ConfigError(
                f"the --cluster file: [learner.{name}] is about policy {name!r} of kind {policies[name].kind!r}, which "
                "has no model in this run; leave the table out",
                code="E_CLUSTER_POLICY",
            )
        source = policies[name].source_policy
        if source is not None:
            raise ConfigError(
                f"the --cluster file: [learner.{name}]: policy {name!r} takes over the weights of {source!r} and is "
                f"held where that learns; leave the table out, or give [learner.{source}]",
                code="E_CLUSTER_POLICY",
            )

    # A policy with a table of its own has processes of its own; all others share those of None.
    homes: dict[str | None, list[str]] = {None: []}
    for name in worlds:
        homes[name] = []
    for name, spec in policies.items():
        if spec.head:
            leader = spec.source_policy or name
            homes[leader if leader in worlds else None].append(name)

    placements = []
    for home, names in homes.items():
        if names:
            world_here = world if home is None else worlds[home]
            placements.append(LearnerPlacement(what=learners_label(home), policies=tuple(names), world=world_here))
    return placements


def with_replicas(placing: PlacementRule, count: int) -> PlacementRule:
    """A rule with so many processes in place of each, which answer for the same policies."""
    if count == 1:
        return placing

    def place_replicas(policies: PolicySpecs, seed: int, device: str, threads: int) -> list[EnginePlacement]:
        replicas = []
        for place in placing(policies, seed, device, threads):
            for number in range(1, count + 1):
                replicas.append(replace(place, what=f"{place.what} (replica {number} of {count})"))
        return replicas

    return place_replicas


def check_heads(name: str, spec: Any) -> None:
    """Raises ConfigError for attention heads that vLLM does not run on a CPU; reads ``config.json`` alone."""
    from transformers import AutoConfig

    directory = model_directory(spec.model, trust_remote_code=spec.trust_remote_code)
    config: Any = AutoConfig.from_pretrained(directory, trust_remote_code=spec.trust_remote_code).get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if size < LEAST_HEAD or size % 16:
        raise ConfigError(
            f"policy {name!r}: {spec.model!r} has attention heads of size {size}, and vLLM on a CPU runs multiples "
            f"of 16 from {LEAST_HEAD} on; take another model, or --engine local",
            code="E_VLLM_HEAD_SIZE",
        )
