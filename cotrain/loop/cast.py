"""The cast of a run: every policy's model, tokenizer, learner and counters, and what of it goes into a checkpoint.

A frozen policy shares the module of another frozen one with the same weights, and adapters share their base with each
other and with the frozen policies on it; no others share. The engine samples from the very modules that the learners
update, so publishing weights is a version number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cotrain.core.address import seed_of
from cotrain.core.errors import ConfigError
from cotrain.core.state import State, take
from cotrain.learn.spoken import Given
from cotrain.learn.torch_learner import TorchLearner, sequence_scores
from cotrain.loop.followers import Follower
from cotrain.loop.policies import PolicySpec, Program
from cotrain.models.heads import reward_model, value_model
from cotrain.models.load import load_model, load_tokenizer
from cotrain.models.optim import has_bfloat16
from cotrain.text.plain import ByteRenderer
from cotrain.text.render import Renderer, Rendering

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from cotrain.models.adapters import AdapterBase


@dataclass(slots=True, kw_only=True)
class Cast:
    """All policies of one run. ``updates`` counts optimiser steps."""

    specs: Mapping[str, PolicySpec]
    models: dict[str, nn.Module]  # none of a program
    renderers: dict[str, Rendering]
    learners: dict[str, TorchLearner]
    bases: dict[str, AdapterBase] = field(default_factory=dict)  # by model name, where adapters share one
    activate: dict[str, Callable[[], object]] = field(default_factory=dict)  # by policy on such a base: what has to be
    # called before each forward pass of its module
    followers: dict[str, Follower] = field(default_factory=dict)
    updates: dict[str, int] = field(default_factory=dict)

    def speaking(self) -> dict[str, nn.Module]:
        """The language models, by policy."""
        return {name: model for name, model in self.models.items() if self.specs[name].head == "lm"}

    def scoring(self) -> dict[str, nn.Module]:
        """The reward models, by policy."""
        return {name: model for name, model in self.models.items() if self.specs[name].head == "reward"}

    def programs(self) -> dict[str, Program]:
        return {name: spec.program for name, spec in self.specs.items() if spec.program is not None}

    def score(
        self,
        policy: str,
        pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
        *,
        temperature: float = 1.0,
        given: Sequence[Given] = (),
    ) -> list[torch.Tensor]:
        """Log-probabilities (or values) of sampled tokens under any policy: (prompt ``[P]``, tokens ``[T]``) → ``[T]``;
        ``given``: what stands between the tokens of each."""
        if policy in self.learners:
            return self.learners[policy].logprobs(pairs, temperature=temperature, given=given)
        spec = self.specs[policy]
        return sequence_scores(
            self.models[policy],
            pairs,
            head=spec.head,
            micro_tokens=spec.micro_tokens,
            temperature=temperature,
            autocast=bool(spec.autocast),
            activate=self.activate.get(policy),
            given=given,
        )

    def autocasts(self) -> dict[str, torch.dtype]:
        """The policies that compute in bfloat16 over float32 weights, as the engine is told."""
        return {name: torch.bfloat16 for name, spec in self.specs.items() if spec.autocast}

    def follow(self, policy: str, planned: int) -> list[str]:
        """Let the followers of a policy that was just updated follow; returns those whose weights changed."""
        source, updates = self.models[policy], self.updates[policy]
        mine = [(name, f) for name, f in self.followers.items() if f.rule.of == policy]
        return [name for name, follower in mine if follower.follow(source, updates, planned)]

    def versions(self) -> dict[str, int]:
        """Of every policy that changes and speaks: what the engine is told."""
        found = self.updates | {name: follower.version for name, follower in self.followers.items()}
        return {name: version for name, version in found.items() if name in self.renderers}

    def refuse_foreign(self, objective: str, speaker: str, others: Iterable[str]) -> None:
        """Raise ConfigError if one of these policies does not read the tokens that ``speaker`` samples."""
        mine = self.renderers[speaker]
        for name in others:
            other = self.renderers.get(name)
            if other is not None and vocabulary(other) != vocabulary(mine):
                raise ConfigError(
                    f"objective {objective!r}: policy {name!r} ({self.specs[name].model}) has another tokenizer than "
                    f"{speaker!r} ({self.specs[speaker].model}), whose tokens it is to score; use models with one tokenizer"
                )

    def state(self) -> State:
        return {
            "updates": dict(self.updates),
            "learners": {n: learner.state() for n, learner in self.learners.items()},
            "followers": {n: follower.state() for n, follower in self.followers.items()},
        }

    def tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """Weights and optimiser moments of every policy that changes, by policy."""
        return {name: part.tensors() for name, part in (self.learners | self.followers).items()}

    def load(self, state: Mapping[str, Any], tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        updates, learners, followers = take("cast", state, "updates", "learners", "followers")
        take("cast's learners", learners, *self.learners)
        take("cast's followers", followers, *self.followers)
        take("cast's tensors", tensors, *self.learners, *self.followers)
        for name, learner in self.learners.items():
            learner.load(learners[name], tensors[name])
        for name, follower in self.followers.items():
            follower.load(followers[name], tensors[name])
        self.updates = {name: int(updates[name]) for name in self.learners}


def assemble(policies: Mapping[str, PolicySpec], *, seed: int, device: str = "cpu") -> Cast:
    """Load every policy of a recipe. Raises ModelError for a model that cannot be used."""
    _check_device(device)
    narrow = device.startswith("cuda") and has_bfloat16(torch.device(device))
    policies = {n: replace(s, autocast=narrow) if s.autocast is None else s for n, s in policies.items()}
    models: dict[str, nn.Module] = {}
    renderers: dict[str, Rendering] = {}
    learners: dict[str, TorchLearner] = {}
    bases, activate = _bases(policies, seed, device), dict[str, Callable[[], object]]()
    shared: dict[tuple[Any, ...], tuple[nn.Module, Rendering]] = {
        _same(spec): (bases[spec.model].module, _renderer(bases[spec.model].module, bases[spec.model].tokenizer))
        for spec in {spec.model: spec for spec in policies.values() if spec.lora is not None}.values()
    }
    for name, spec in policies.items():
        if spec.program is not None:
            continue
        if spec.head != "lm":
            made = (
                reward_model(spec.model, **spec.loading)
                if spec.head == "reward"
                else value_model(spec.model, **spec.loading)
            )
            models[name] = made.to(device)
            if spec.head == "reward":
                renderers[name] = Renderer(load_tokenizer(spec.model, trust_remote_code=spec.trust_remote_code))
        elif spec.kind in ("adapter", "frozen") and _same(spec) in shared:
            models[name], renderers[name] = shared[_same(spec)]
            if spec.model in bases:
                activate[name] = partial(bases[spec.model].activate, name if spec.lora else None)
        else:
            model, tokenizer = load_model(spec.model, **spec.loading)
            models[name] = nn.Module.to(model, device).eval()
            renderers[name] = _renderer(model, tokenizer)
            if spec.kind == "frozen":
                shared[_same(spec)] = (models[name], renderers[name])
        if name not in activate:
            models[name].requires_grad_(spec.trained)
        if spec.trained:
            learners[name] = TorchLearner(
                models[name],
                lr=spec.lr,
                warmup=spec.lr_warmup,
                clip_norm=spec.clip_norm,
                weight_decay=spec.weight_decay,
                micro_tokens=spec.micro_tokens,
                autocast=bool(spec.autocast),
                recompute=spec.gradient_checkpointing,
                head=spec.head,
                activate=activate.get(name),
            )
    for name, spec in policies.items():
        if spec.program is not None:
            renderers[name] = ByteRenderer() if spec.tokens_of is None else renderers[spec.tokens_of]
    return Cast(
        specs=policies,
        models=models,
        renderers=renderers,
        learners=learners,
        bases=bases,
        activate=activate,
        followers={
            name: Follower(spec.follow, models[name], seed_of(seed, "follower", name))
            for name, spec in policies.items()
            if spec.follow is not None
        },
        updates=dict.fromkeys(learners, 0),
    )


def _bases(policies: Mapping[str, PolicySpec], seed: int, device: str) -> dict[str, AdapterBase]:
    """A base for each model on which a policy is an adapter, with all its adapters."""
    adapters = [(name, spec, spec.lora) for name, spec in policies.items() if spec.lora is not None]
    if not adapters:
        return {}
    from cotrain.models.adapters import AdapterBase  # here, as PEFT takes half a second that most runs do not need

    first = {spec.model: (name, spec) for name, spec, _ in reversed(adapters)}
    for name, spec in policies.items():
        if spec.kind in ("adapter", "frozen") and spec.model in first:
            _refuse_two_bases(name, spec, *first[spec.model])
    bases = {model: AdapterBase(model, **spec.loading) for model, (_, spec) in first.items()}
    for name, spec, lora in adapters:
        if lora.path is not None:
            bases[spec.model].load(name, lora.path)
        else:
            bases[spec.model].add(name, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    for base in bases.values():
        nn.Module.to(base.module, device)
    return bases


def _same(spec: PolicySpec) -> tuple[Any, ...]:
    """What two policies must have in common to share a module."""
    return (spec.model, *spec.loading.values())


def _refuse_two_bases(name: str, spec: PolicySpec, other: str, base: PolicySpec) -> None:
    """Adapters and frozen policies on one model share it in memory."""
    for field_name, value in spec.loading.items():
        expected = base.loading[field_name]
        if value != expected:
            raise ConfigError(
                f"policies {other!r} and {name!r} share the base {spec.model!r}, with {field_name} {expected!r} and "
                f"{value!r}; expected one value; set policies.{name}.{field_name}={expected} too"
            )


def _renderer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Renderer:
    """With the stop tokens that a model's authors wrote beside it; those that transformers makes up say nothing."""
    settings = model.generation_config
    return Renderer(tokenizer, None if settings is None or settings._from_model_config else settings)


def vocabulary(renderer: Rendering) -> dict[str, int] | None:
    """Token → id; None for a renderer of bytes."""
    return renderer.tokenizer.get_vocab() if isinstance(renderer, Renderer) else None


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r}: expected cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name!r}: torch {torch.__version__} sees no GPU here; use --device cpu, or see `cotrain doctor`"
        )
