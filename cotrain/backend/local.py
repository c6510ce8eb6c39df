"""The backend of one process: models, learners and engine on one device.

A frozen policy shares the module of another frozen one with the same weights, and adapters share their base with each
other and with the frozen policies on it; no others share. The engine samples from the very modules that the learners
update, so publishing weights is a version number.

Another engine than the embedded one is a function, ``LocalBackend(engine=…)``: see docs/new-engine.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from cotrain.backend.contract import ProcessStats
from cotrain.backend.handles import LearnerHandle, ModelHandle, PolicyHandle, PolicySpec, ProgramHandle, route_policies
from cotrain.core.address import seed_of
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.types import Trace
from cotrain.engine.contract import Engine
from cotrain.engine.embedded import EmbeddedEngine
from cotrain.learn.losses import Bounds
from cotrain.learn.torch_learner import TorchLearner
from cotrain.models.load import load_model, load_renderer
from cotrain.models.optim import has_bfloat16
from cotrain.text.render import Renderer, Rendering, generation_config_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from cotrain.models.adapters import AdapterBase
    from cotrain.models.offload import Residence

DEVICE_KINDS = ("cpu", "cuda")  # of devices that are taken
MakeEngine = Callable[[Mapping[str, ModelHandle], str], Engine]  # (who is asked, by policy; device) → the engine


def make_embedded_engine(handles: Mapping[str, ModelHandle], device: str) -> Engine:
    """The embedded engine over the handles' own modules."""
    return EmbeddedEngine(
        {name: handle.model for name, handle in handles.items() if handle.spec.speaks},
        scorers={name: handle.model for name, handle in handles.items() if handle.spec.scores},
        activate={name: handle.activate for name, handle in handles.items() if handle.activate},
        max_rows={name: handle.spec.rows for name, handle in handles.items()},
        device=device,
        pack_weights=[name for name, handle in handles.items() if handle.spec.pack_weights],
        autocast={name: torch.bfloat16 for name, handle in handles.items() if handle.spec.autocast},
        residence=next((handle.residence for handle in handles.values() if handle.residence), None),
    )


class LocalBackend:
    """Implements ``Backend``."""

    def __init__(
        self, device: str = "cpu", *, engine: MakeEngine = make_embedded_engine, bounds: Bounds | None = None
    ) -> None:
        """``device``: see ``resolve_device``. Raises ConfigError for one that torch does not see."""
        self.device, self._make, self.bounds = resolve_device(device), engine, bounds
        check_device(self.device)
        self._handles: dict[str, PolicyHandle] = {}

    def open(self, policies: Mapping[str, PolicySpec], *, seed: int) -> dict[str, PolicyHandle]:
        factory = PolicyFactory(policies, seed, self.device)
        self._handles = {name: factory.get_handle(name) for name in policies}
        model_handles = {name: handle for name, handle in self._handles.items() if isinstance(handle, ModelHandle)}
        engine = self._make({n: h for n, h in model_handles.items() if h.spec.speaks or h.spec.scores}, self.device)
        for handle in model_handles.values():
            handle.engine = engine
        self.engine = route_policies(self._handles, engine)
        return dict(self._handles)

    def publish(self, policy: str, version: int) -> None:
        self.engine.publish(policy, version)

    def enable_overlap(self) -> bool:
        """The engine's weights are the learners'."""
        return False

    def cache_remote_answers(self, traces: Iterable[Trace]) -> None:
        cache_answers_by_policy(self._handles, traces)

    def restart_lost_processes(self) -> None:
        """Nothing here is lost without the run itself."""

    def process_stats(self) -> dict[str, ProcessStats]:
        return {}

    def describe(self) -> dict[str, Any]:
        return {"kind": "local", "device": self.device}

    async def close(self) -> None:
        await asyncio.gather(*(handle.close() for handle in self._handles.values()))


def cache_answers_by_policy(handles: Mapping[str, PolicyHandle], traces: Iterable[Trace]) -> None:
    """Tell each policy of its own traces."""
    by_policy: dict[str, list[Trace]] = {name: [] for name in handles}
    for trace in traces:
        by_policy[trace.policy].append(trace)
    for policy, own_traces in by_policy.items():
        handles[policy].cache_answers(own_traces)


def with_device_defaults(policies: Mapping[str, PolicySpec], device: str) -> dict[str, PolicySpec]:
    """The policies with what the device decides, for the process that has it."""
    narrow = device.startswith("cuda") and has_bfloat16(torch.device(device))
    return {name: spec.with_device_defaults(autocast=narrow) for name, spec in policies.items()}


def resolve_device(name: str) -> str:
    """The device that ``--device`` means: "auto" is cuda where there is one, else cpu."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


class PolicyFactory:
    """What policies ask for while they build themselves."""

    def __init__(self, policies: Mapping[str, Any], seed: int, device: str) -> None:
        self.policies: Mapping[str, Any] = with_device_defaults(policies, device)
        self.seed, self.device = seed, device
        self._built: dict[str, PolicyHandle] = {}
        self.residence: Residence | None = None  # where policies take turns on the device
        if torch.device(device).type != "cpu" and any(getattr(s, "offload", False) for s in policies.values()):
            from cotrain.models.offload import Residence

            self.residence = Residence(device)
        self._bases = _adapter_bases(policies, seed, "cpu" if self.residence else device)
        self._shared: dict[tuple[Any, ...], tuple[nn.Module, Rendering]] = {
            _sharing_key(spec): (base.module, _make_renderer(base.module, base.tokenizer))
            for base, spec in ((self._bases[s.model], s) for s in policies.values() if s.lora is not None)
        }

    def get_handle(self, name: str) -> PolicyHandle:
        """The handle of a policy, built now if it was not yet. Raises UnknownName."""
        if name not in self.policies:
            raise UnknownName("policy", name, self.policies)
        if name not in self._built:
            self._built[name] = handle = self.policies[name].build(name, self)
            if isinstance(handle, ModelHandle):
                handle.residence = self.residence
        return self._built[name]

    def seed_of(self, name: str) -> int:
        """Of what a following policy draws."""
        return seed_of(self.seed, "follower", name)

    def language_model(self, spec: Any) -> tuple[nn.Module, Rendering]:
        """A module of its own, with its renderer; ``place`` puts it on the device."""
        model, tokenizer = load_model(spec.model, **spec.load_options)
        return model.eval(), _make_renderer(model, tokenizer)

    def place(
        self, name: str, spec: Any, model: nn.Module, base: AdapterBase | None = None
    ) -> Callable[[], object] | None:
        """Put a policy's model on the device, or let it take turns there; what is to be called before each of its
        passes. ``base``: whose adapters lie in it."""
        own = spec.lora is not None
        select = partial(base.activate, name if own else None) if base else None
        if self.residence is None:
            model.to(self.device)
            return select
        return self.residence.add_policy(name, model, rests=spec.offload, adapter=own, select=select)

    def scoring_renderer(self, spec: Any) -> Rendering:
        return load_renderer(spec.model, trust_remote_code=spec.trust_remote_code)

    def build_trainable(self, name: str, spec: Any, model: nn.Module, renderer: Rendering | None) -> LearnerHandle:
        """All weights of a module, with an optimiser."""
        model.requires_grad_(True)
        activate = self.place(name, spec, model)
        learner = self.make_learner(model, spec, activate)
        return LearnerHandle(name, spec, renderer, model, learner=learner, activate=activate)

    def build_adapter(self, name: str, spec: Any) -> LearnerHandle:
        """The adapter of this policy on the base that it shares, with an optimiser."""
        model, renderer, activate, base = self.adapter_module(name, spec)
        learner = self.make_learner(model, spec, activate)
        return LearnerHandle(name, spec, renderer, model, learner=learner, activate=activate, base=base)

    def make_learner(self, model: nn.Module, spec: Any, activate: Callable[[], object] | None = None) -> TorchLearner:
        return TorchLearner(model, **spec.learner_options, activate=activate)

    def adapter_module(self, name: str, spec: Any) -> tuple[nn.Module, Rendering, Callable[[], object], AdapterBase]:
        """The module in which an adapter lies, its renderer, what selects the adapter, and the base."""
        (model, renderer), base = self._shared[_sharing_key(spec)], self._bases[spec.model]
        activate = self.place(name, spec, model, base)
        assert activate is not None
        return model, renderer, activate, base

    def build_frozen(self, name: str, spec: Any) -> ModelHandle:
        """A module that others may share: the base of adapters with none of them active, or another frozen policy's."""
        if _sharing_key(spec) not in self._shared:
            model, renderer = self.language_model(spec)
            self._shared[_sharing_key(spec)] = model.requires_grad_(False), renderer
        model, renderer = self._shared[_sharing_key(spec)]
        base = self._bases.get(spec.model)
        return ModelHandle(name, spec, renderer, model, activate=self.place(name, spec, model, base), base=base)

    def build_program(self, name: str, spec: Any) -> ProgramHandle:
        from cotrain.text.plain import ByteRenderer

        teller = None if spec.tokens_of is None else self.renderer_of(spec.tokens_of)
        return ProgramHandle(name, spec, teller or ByteRenderer(), spec.speak)

    def renderer_of(self, name: str) -> Rendering | None:
        return self.get_handle(name).renderer


def _adapter_bases(policies: Mapping[str, Any], seed: int, device: str) -> dict[str, AdapterBase]:
    """A base for each model on which a policy is an adapter, with all its adapters."""
    adapters = [(name, spec, spec.lora) for name, spec in policies.items() if spec.lora is not None]
    if not adapters:
        return {}
    from cotrain.models.adapters import AdapterBase  # here, as PEFT takes half a second that most runs do not need

    first = check_shared_bases(policies)
    bases = {model: AdapterBase(model, **spec.load_options) for model, (_, spec) in first.items()}
    for name, spec, lora in adapters:
        if lora.path is not None:
            bases[spec.model].load(name, lora.path)
        else:
            bases[spec.model].add(name, rank=lora.rank, alpha=lora.alpha, targets=lora.targets, seed=seed)
    for base in bases.values():
        nn.Module.to(base.module, device)
    return bases


def _sharing_key(spec: Any) -> tuple[Any, ...]:
    """What two policies must have in common to share a module."""
    return (spec.model, *spec.load_options.values())


def check_shared_bases(policies: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """The first adapter on each model, by name and policy: with it all adapters and frozen policies on that model share
    the base in memory. Raises ConfigError where they do not load it alike."""
    first = {spec.model: (name, spec) for name, spec in reversed([*policies.items()]) if spec.lora is not None}
    for name, spec in policies.items():
        if spec.model not in first or not spec.shares_base:
            continue
        other, base = first[spec.model]
        for field_name in {**spec.load_options, **base.load_options}:
            value, expected = (one.load_options.get(field_name, False) for one in (spec, base))
            if value != expected:
                raise ConfigError(
                    f"policies {other!r} and {name!r} share the base {spec.model!r}, with {field_name} {expected!r} "
                    f"and {value!r}; expected one value; set policies.{name}.{field_name}={expected} too"
                )
    return first


def _make_renderer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Renderer:
    """With the stop tokens that a model's authors wrote beside it."""
    return Renderer(tokenizer, generation_config_of(model))


def check_device(name: str) -> None:
    """Raise ConfigError for a device that is not there."""
    try:
        kind, index = torch.device(name).type, torch.device(name).index or 0
    except RuntimeError:
        kind, index = "", 0
    if kind not in DEVICE_KINDS:
        raise ConfigError(f"--device {name!r}: expected auto, cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name!r}: torch {torch.__version__} sees no GPU here; use --device cpu, or see `cotrain doctor`"
        )
    if kind == "cuda" and index >= torch.cuda.device_count():
        raise ConfigError(f"--device {name!r}: there are {torch.cuda.device_count()} GPUs here, counted from cuda:0")
