"""The backend of one process: models, learners and engine on one device, or each policy on its own.

``policies.NAME.device`` puts a policy on another device than the run's: its weights, its optimiser and what it samples.
What crosses from one policy to another are tokens and log-probabilities, which lie in the machine's memory. So policies
on two devices can be updated next to each other (``lane_of``).

A frozen policy shares the module of another frozen one with the same weights, and adapters share their base with each
other and with the frozen policies on it, where they are on one device; no others share. The engine samples from the
very modules that the learners update, so publishing weights is a version number.

Another engine than the shipped one is a function, ``LocalBackend(engine=…)``: see docs/new-engine.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from cotrain.algorithms.policy_loss import Bounds
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.nearest_names import nearest_name
from cotrain.core.seeding import seed_of
from cotrain.core.types import Trace
from cotrain.distributed.contract import ProcessStats
from cotrain.distributed.policy_handles import (
    LearnerHandle,
    LearningSpec,
    ModelHandle,
    ModelSpec,
    PolicyHandle,
    PolicySpec,
    ProgramHandle,
    ProgramSpec,
    route_policies,
)
from cotrain.inference.contract import Engine
from cotrain.inference.local import LocalEngine
from cotrain.learner.learner import TorchLearner
from cotrain.learner.optim import has_bfloat16
from cotrain.models.load import load_model, load_renderer
from cotrain.prompts.render import Renderer, Rendering, generation_config_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from cotrain.models.adapters import AdapterBase
    from cotrain.models.offload import Residence

DEVICE_KINDS = ("cpu", "cuda", "mps")  # kinds of devices that are taken
MakeEngine = Callable[[Mapping[str, ModelHandle], str], Engine]  # (who is asked, by policy; device) → the engine


def make_local_engine(handles: Mapping[str, ModelHandle], device: str) -> Engine:
    """The local engine over the handles' own modules. ``device``: of policies that name none."""
    return LocalEngine(
        {name: handle.model for name, handle in handles.items() if handle.spec.generates},
        scorers={name: handle.model for name, handle in handles.items() if handle.spec.scores},
        activate={name: handle.activate for name, handle in handles.items() if handle.activate},
        max_rows={name: handle.spec.rows for name, handle in handles.items()},
        device={name: device_of(handle.spec, device) for name, handle in handles.items()},
        pack_weights=[name for name, handle in handles.items() if handle.spec.pack_weights is True],
        int8_weights=[name for name, handle in handles.items() if handle.spec.pack_weights == "int8"],
        autocast={name: torch.bfloat16 for name, handle in handles.items() if handle.spec.autocast},
        residence={name: handle.residence for name, handle in handles.items() if handle.residence},
    )


class LocalBackend:
    """Implements ``Backend``."""

    def __init__(
        self, device: str = "cpu", *, engine: MakeEngine = make_local_engine, bounds: Bounds | None = None
    ) -> None:
        """``device``: see ``resolve_device``. Raises ConfigError for one that torch does not see."""
        self.device = resolve_device(device)
        self._make = engine
        self.bounds = bounds
        check_device(self.device)
        self._handles: dict[str, PolicyHandle] = {}

    def open(self, policies: Mapping[str, PolicySpec], *, seed: int) -> dict[str, PolicyHandle]:
        factory = PolicyFactory(policies, seed, self.device)
        self._handles = {name: factory.get_handle(name) for name in policies}
        model_handles = {name: handle for name, handle in self._handles.items() if isinstance(handle, ModelHandle)}
        engine = self._make({n: h for n, h in model_handles.items() if h.spec.generates or h.spec.scores}, self.device)
        for handle in model_handles.values():
            handle.engine = engine
        self.engine = route_policies(self._handles, engine)
        return dict(self._handles)

    def publish(self, policy: str, version: int) -> None:
        self.engine.publish(policy, version)

    def lane_of(self, policy: str) -> str:
        """The device that the policy computes on."""
        return device_of(self._handles[policy].spec, self.device)

    def held_while_learning(self, computing: Collection[str], changed: Collection[str]) -> Collection[str] | None:
        """All policies on the devices that compute: no model is sampled from while another one uses its device."""
        models = {name: handle for name, handle in self._handles.items() if isinstance(handle, ModelHandle)}
        busy_devices = {self.lane_of(name) for name in computing if name in models}
        sampled = [name for name, handle in models.items() if handle.renderer is not None]
        held = [name for name in sampled if self.lane_of(name) in busy_devices]
        some_are_free = len(held) < len(sampled)
        return held if self.engine.can_hold and some_are_free else None

    def try_to_overlap(self) -> bool:
        """False: the engine samples from the very weights that are updated."""
        return False

    def cache_remote_answers(self, traces: Iterable[Trace]) -> None:
        cache_answers_by_policy(self._handles, traces)

    def restart_lost_processes(self) -> None:
        """There are none: a process that is lost here is the run itself."""

    def process_stats(self) -> dict[str, ProcessStats]:
        return {}

    def describe(self) -> dict[str, Any]:
        return {"kind": "local", "device": self.device}

    async def close(self) -> None:
        await asyncio.gather(*(handle.close() for handle in self._handles.values()))


def cache_answers_by_policy(handles: Mapping[str, PolicyHandle], traces: Iterable[Trace]) -> None:
    """Let each policy remember the answers in its own traces."""
    by_policy: dict[str, list[Trace]] = {name: [] for name in handles}
    for trace in traces:
        by_policy[trace.policy].append(trace)
    for policy, own_traces in by_policy.items():
        handles[policy].cache_answers(own_traces)


def with_device_defaults(policies: Mapping[str, PolicySpec], device: str) -> dict[str, PolicySpec]:
    """The policies with the settings that depend on the device. To be called in the process that has the device."""
    groups = policies_by_device(policies, device)
    narrow = {place: place.startswith("cuda") and has_bfloat16(torch.device(place)) for place in groups}
    return {
        name: spec.with_device_defaults(autocast=narrow[device_of(spec, device)]) for name, spec in policies.items()
    }


def device_of(spec: PolicySpec, usual: str) -> str:
    """The device of a policy. ``usual``: of policies that name none."""
    own = getattr(spec, "device", None)
    if own is None or _with_device_number(resolve_device(own)) == _with_device_number(usual):
        return usual
    return _with_device_number(resolve_device(own))


def _with_device_number(device: str) -> str:
    """The same device with its number, where it has one: "cuda:0" for "cuda"."""
    place = torch.device(device)
    return place.type if place.type == "cpu" else f"{place.type}:{place.index or 0}"


def resolve_device(name: str) -> str:
    """The device that ``--device`` means: "auto" is cuda where there is one, else cpu."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


class PolicyFactory:
    """Makes the models and handles of policies, which call its methods while they build themselves."""

    def __init__(self, policies: Mapping[str, PolicySpec], seed: int, device: str) -> None:
        check_policy_devices(policies)
        self.policies: Mapping[str, PolicySpec] = with_device_defaults(policies, device)
        self.seed = seed
        self.device = device
        self._built: dict[str, PolicyHandle] = {}
        self._residences: dict[str, Residence] = {}  # by device: where policies take turns on it
        for spec in policies.values():
            place = device_of(spec, device)
            if getattr(spec, "offload", False) and place != "cpu" and place not in self._residences:
                from cotrain.models.offload import Residence

                self._residences[place] = Residence(place)
        self._bases: dict[tuple[str, str], AdapterBase] = {}  # by model and device
        for place, group in policies_by_device(policies, device).items():
            bases = _adapter_bases(group, seed, "cpu" if place in self._residences else place)
            self._bases |= {(model, place): base for model, base in bases.items()}
        self._shared: dict[tuple[Any, ...], tuple[nn.Module, Rendering]] = {}
        for spec in _sharing_bases(policies).values():
            if spec.lora is not None and self._sharing_key(spec) not in self._shared:
                base = self._bases[spec.model, device_of(spec, device)]
                self._shared[self._sharing_key(spec)] = base.module, _make_renderer(base.module, base.tokenizer)

    def get_handle(self, name: str) -> PolicyHandle:
        """The handle of a policy, built now if it was not yet. Raises UnknownName."""
        if name not in self.policies:
            raise UnknownName("policy", name, self.policies)
        if name not in self._built:
            self._built[name] = handle = self.policies[name].build(name, self)
            if isinstance(handle, ModelHandle):
                handle.residence = self._residences.get(self.device_of(handle.spec))
        return self._built[name]

    def device_of(self, spec: PolicySpec) -> str:
        """The device on which a policy computes."""
        return device_of(spec, self.device)

    def _base_of(self, spec: ModelSpec) -> AdapterBase | None:
        """The base with the adapters on this policy's model, if there are any on its device."""
        return self._bases.get((spec.model, self.device_of(spec)))

    def _sharing_key(self, spec: ModelSpec) -> tuple[Any, ...]:
        """The settings that two policies must have in common to share a module."""
        return (self.device_of(spec), spec.model, *spec.load_options.values())

    def seed_of(self, name: str) -> int:
        """The seed of the draws of a following policy."""
        return seed_of(self.seed, "follower", name)

    def language_model(self, spec: ModelSpec) -> tuple[nn.Module, Rendering]:
        """A module of its own, with its renderer; ``place`` puts it on the device."""
        model, tokenizer = load_model(spec.model, **spec.load_options)
        return model.eval(), _make_renderer(model, tokenizer)

    def place(
        self, name: str, spec: ModelSpec, model: nn.Module, base: AdapterBase | None = None
    ) -> Callable[[], object] | None:
        """Put a policy's model on the device, or let it take turns there. Returns the function to call before each of
        its passes. ``base``: the adapters in the model."""
        is_adapter = spec.lora is not None
        select: Callable[[], object] | None = None
        if base is not None:
            select = partial(base.activate, name if is_adapter else None)
        residence = self._residences.get(self.device_of(spec))
        if residence is None:
            model.to(self.device_of(spec))
            return select
        return residence.add_policy(name, model, rests=spec.offload, adapter=is_adapter, select=select)

    def scoring_renderer(self, spec: ModelSpec) -> Rendering:
        return load_renderer(spec.model, trust_remote_code=spec.trust_remote_code)

    def build_trainable(
        self, name: str, spec: LearningSpec, model: nn.Module, renderer: Rendering | None
    ) -> LearnerHandle:
        """All weights of a module, with an optimiser."""
        model.requires_grad_(True)
        activate = self.place(name, spec, model)
        learner = self.make_learner(model, spec, activate)
        return LearnerHandle(name, spec, renderer, model, learner=learner, activate=activate)

    def build_adapter(self, name: str, spec: LearningSpec) -> LearnerHandle:
        """The adapter of this policy on the base that it shares, with an optimiser."""
        model, renderer, activate, base = self.adapter_module(name, spec)
        learner = self.make_learner(model, spec, activate)
        return LearnerHandle(name, spec, renderer, model, learner=learner, activate=activate, base=base)

    def make_learner(
        self, model: nn.Module, spec: LearningSpec, activate: Callable[[], object] | None = None
    ) -> TorchLearner:
        return TorchLearner(model, **spec.learner_options, activate=activate)

    def adapter_module(
        self, name: str, spec: ModelSpec
    ) -> tuple[nn.Module, Rendering, Callable[[], object], AdapterBase]:
        """The module in which an adapter lies, its renderer, what selects the adapter, and the base."""
        model, renderer = self._shared[self._sharing_key(spec)]
        base = self._base_of(spec)
        assert base is not None
        activate = self.place(name, spec, model, base)
        assert activate is not None
        return model, renderer, activate, base

    def build_frozen(self, name: str, spec: ModelSpec) -> ModelHandle:
        """A module that others may share: the base of adapters with none of them active, or another frozen policy's."""
        key = self._sharing_key(spec)
        if key not in self._shared:
            model, renderer = self.language_model(spec)
            self._shared[key] = model.requires_grad_(False), renderer
        model, renderer = self._shared[key]
        base = self._base_of(spec)
        return ModelHandle(name, spec, renderer, model, activate=self.place(name, spec, model, base), base=base)

    def build_program(self, name: str, spec: ProgramSpec) -> ProgramHandle:
        from cotrain.prompts.byte_tokenizer import ByteRenderer

        teller = None if spec.tokens_of is None else self.renderer_of(spec.tokens_of)
        return ProgramHandle(name, spec, teller or ByteRenderer(), spec.speak)

    def renderer_of(self, name: str) -> Rendering | None:
        return self.get_handle(name).renderer


def _adapter_bases(policies: Mapping[str, PolicySpec], seed: int, device: str) -> dict[str, AdapterBase]:
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


def policies_by_device(policies: Mapping[str, PolicySpec], usual: str) -> dict[str, dict[str, PolicySpec]]:
    """The policies that compute on each device, in their order. ``usual``: of those that name none."""
    groups: dict[str, dict[str, PolicySpec]] = {}
    for name, spec in policies.items():
        groups.setdefault(device_of(spec, usual), {})[name] = spec
    return groups


def check_policy_devices(policies: Mapping[str, PolicySpec]) -> None:
    """Raise ConfigError for a device of a policy's own that is not there."""
    for name, spec in policies.items():
        own = getattr(spec, "device", None)
        if own is not None:
            check_device(resolve_device(own), flag=f"policies.{name}.device")


def _sharing_bases(policies: Mapping[str, PolicySpec]) -> dict[str, ModelSpec]:
    """The policies that share a base with adapters on their model: these themselves, and frozen ones."""
    return {name: cast("ModelSpec", spec) for name, spec in policies.items() if spec.shares_base}


def check_shared_bases(policies: Mapping[str, PolicySpec]) -> dict[str, tuple[str, ModelSpec]]:
    """The first adapter on each model, by name and policy: with it all adapters and frozen policies on that model share
    the base in memory. Raises ConfigError where they do not load it alike."""
    sharing = _sharing_bases(policies)
    first = {spec.model: (name, spec) for name, spec in reversed([*sharing.items()]) if spec.lora is not None}
    for name, spec in sharing.items():
        if spec.model not in first:
            continue
        other, base = first[spec.model]
        for field_name in {**spec.load_options, **base.load_options}:
            value = spec.load_options.get(field_name, False)
            expected = base.load_options.get(field_name, False)
            if value != expected:
                raise ConfigError(
                    f"policies {other!r} and {name!r} share the base {spec.model!r}, with {field_name} {expected!r} "
                    f"and {value!r}; expected one value; set policies.{name}.{field_name}={expected} too",
                    code="E_BASE_SHARED_UNLIKE",
                )
    return first


def _make_renderer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Renderer:
    """The renderer with the stop tokens that a model's authors wrote next to it."""
    return Renderer(tokenizer, generation_config_of(model))


def check_device(name: str, flag: str = "--device") -> None:
    """Raise ConfigError for a device that is not there. ``flag``: where it was named."""
    try:
        kind = torch.device(name).type
        index = torch.device(name).index or 0
    except RuntimeError:
        kind = ""
        index = 0

    if kind not in DEVICE_KINDS:
        near = "cuda" if "gpu" in name.lower() else nearest_name(name, ("auto", *DEVICE_KINDS))
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{flag} {name!r}: expected auto, cpu, cuda, cuda:N or mps{hint}", code="E_DEVICE_NAME")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"{flag} {name!r}: torch {torch.__version__} sees no GPU here; use cpu, or see `cotrain doctor`",
            code="E_NO_GPU",
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            f"{flag} {name!r}: torch {torch.__version__} sees no GPU of Apple's here; use cpu", code="E_NO_GPU"
        )
    if kind == "cuda" and index >= torch.cuda.device_count():
        raise ConfigError(
            f"{flag} {name!r}: there are {torch.cuda.device_count()} GPUs here, counted from cuda:0", code="E_NO_GPU"
        )
