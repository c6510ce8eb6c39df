"""``PolicyHandle``: one interface to a policy, wherever it runs; and the handles of policies whose weights are in this
process.

Trainer, server and export use a policy through its handle. A handle refuses what its kind of policy cannot do; a recipe
that would ask for it is refused before, when it is built. ``algorithms/contract.py: PolicyClient`` has the methods that
run where the policy's model is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from cotrain.algorithms.contract import ContextTokens, LossTerm, PolicyClient, Sequences, UpdateReport
from cotrain.core.errors import ConfigError
from cotrain.core.types import Completion, State, Trace
from cotrain.core.verbosity import print_notice
from cotrain.inference.contract import Engine, HoldingEngine, MemoryLimitedEngine, Request, ServingEngine, SpeakerError
from cotrain.learner.learner import TorchLearner
from cotrain.learner.logprobs import Scorer
from cotrain.models.load import load_model, save_model
from cotrain.prompts.render import Renderer, Rendering
from cotrain.storage.tensor_files import TensorParts

if TYPE_CHECKING:
    from cotrain.distributed.local import PolicyFactory
    from cotrain.models.adapters import AdapterBase
    from cotrain.models.lora import Lora
    from cotrain.models.offload import Residence

RankedTokens = list[tuple[float, list[tuple[int, float]]]]  # per token: its log-probability, the likeliest with theirs
Program = Callable[[Mapping[str, Any], Random], str]  # (the call's fields, random draws of its address) → its text
SCORING_OOM = "scoring_out_of_memory"  # key of how often a scoring pass was halved
_SLICE = 2**24  # logits that are normalised at a time


class PolicySpec(Protocol):
    """A policy as a recipe describes it: what it can do, and how its handle is built. ``config/policies.py`` has the
    kinds."""

    @property
    def model(self) -> str: ...

    @property
    def kind(self) -> str: ...  # name of the kind in messages

    @property
    def head(self) -> str: ...  # what it predicts: "lm", "value" or "reward"; "" where it predicts nothing here

    @property
    def is_trained(self) -> bool: ...  # True if gradients train it

    @property
    def generates(self) -> bool: ...  # True if its tokens are sampled from a language model of this run

    @property
    def scores(self) -> bool: ...  # True if it answers with one number

    @property
    def source_policy(self) -> str | None: ...  # the policy whose weights it takes over after each update

    @property
    def lora(self) -> Lora | None: ...  # settings of its adapter

    @property
    def shares_base(self) -> bool: ...  # True if it shares its weights in memory with the adapters on its model

    def with_device_defaults(self, *, autocast: bool) -> Self: ...  # with the settings that depend on the device

    def build(self, name: str, factory: PolicyFactory) -> PolicyHandle: ...


class ModelSpec(PolicySpec, Protocol):
    """A policy whose model this run loads."""

    @property
    def rows(self) -> int: ...  # most answers that are decoded at a time

    @property
    def micro_tokens(self) -> int: ...

    @property
    def autocast(self) -> bool | None: ...

    @property
    def pack_weights(self) -> bool | Literal["int8"] | None: ...  # a copy of the weights for decoding

    @property
    def device(self) -> str | None: ...  # a device of its own; None: the run's

    @property
    def load_options(self) -> dict[str, Any]: ...  # arguments of ``load_model``

    @property
    def trust_remote_code(self) -> bool: ...

    @property
    def offload(self) -> bool: ...  # its weights lie elsewhere while another policy computes


class LearningSpec(ModelSpec, Protocol):
    """A policy with an optimiser of its own."""

    @property
    def learner_options(self) -> dict[str, Any]: ...  # arguments of ``TorchLearner``


class ProgramSpec(PolicySpec, Protocol):
    """A Python function that plays a role."""

    @property
    def speak(self) -> Program: ...

    @property
    def tokens_of(self) -> str | None: ...  # the policy by whose tokenizer its text is tokenized


class PolicyHandle(PolicyClient):
    """One policy. ``spec``: its description in the recipe. ``renderer``: None for a policy that is never prompted, such
    as a critic."""

    engine: Engine | None = None  # the engine that samples from it; set by the backend
    tell: Callable[[str], None] = staticmethod(print_notice)  # receives messages about its server; a run logs them, too
    trouble = ""  # why the last request without an answer had none, and what helps
    changes = False  # True if its weights change in the run; then it has state and versions
    sharded = False  # True if no process has all of its weights

    def __init__(self, name: str, spec: PolicySpec, renderer: Rendering | None) -> None:
        self.name = name
        self.spec = spec
        self.renderer = renderer

    async def sample(self, request: Request) -> Completion:
        """Its answer to a request. Errors: see ``Engine.sample``."""
        if self.engine is None:
            raise self._unsupported_error("is not asked anything")
        return await self.engine.sample(request)

    def checkpoint_tensors(self) -> Mapping[str, torch.Tensor] | TensorParts:
        """``tensors`` for a checkpoint, or an object that writes them."""
        return self.tensors()

    def check_folder(self, folder: Path) -> None:
        """Raise ConfigError if the process that saves its checkpoints cannot write to this folder."""

    def save(self, directory: Path, *, merged: bool = False) -> None:
        """Write it as a model directory that plain transformers (or PEFT) load."""
        raise self._unsupported_error("has no weights that could be written")

    def shape(self) -> ComputeShape | None:
        """The shape of its model; None if this run has none."""
        return None

    def cache_answers(self, traces: Sequence[Trace]) -> None:
        """See ``Backend.cache_remote_answers``. Only remote policies remember anything."""

    def counts(self) -> dict[str, float]:
        """Work done for it that the engine does not count."""
        return {}

    async def close(self) -> None:
        """Close its connections."""

    def _unsupported_error(self, why: str) -> ConfigError:
        return ConfigError(
            f"policy {self.name!r} is of kind {self.spec.kind!r} and {why}; let another policy do that",
            code="E_POLICY_CANNOT",
        )


class ModelHandle(PolicyHandle):
    """A policy whose model this process holds."""

    spec: ModelSpec
    residence: Residence | None = None  # where policies take turns on a device; set by ``PolicyFactory``

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        renderer: Rendering | None,
        model: nn.Module,
        *,
        activate: Callable[[], object] | None = None,
        base: AdapterBase | None = None,
    ) -> None:
        """``activate``: called before each forward pass, to select an adapter of a module that others share, or
        none, and to have its weights on the device; ``base``: that of those adapters."""
        super().__init__(name, spec, renderer)
        self.model = model
        self.activate = activate
        self.base = base
        self.make_scorer: Callable[..., Scorer] = Scorer
        self.micro_tokens = self.most = spec.micro_tokens  # tokens of a scoring pass; fewer once memory ran out
        self._oom_count = 0
        self._scorer: Scorer | None = None  # made by the first ``logprobs`` after the weights changed

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        if self.activate is not None:
            self.activate()
        scorer = self._present_scorer()
        scorer.micro_tokens = self.micro_tokens
        oom_count_before = scorer.oom_count
        values = scorer.logprobs(sequences, temperature=temperature, context_tokens=context_tokens)
        self.micro_tokens = scorer.micro_tokens
        self._oom_count += scorer.oom_count - oom_count_before
        return values

    def _present_scorer(self) -> Scorer:
        """The scorer of the model as it is now. Making one checks the model by two small passes, so one is kept for as
        long as the weights stay the same. To be called after ``activate``."""
        if self._scorer is None:
            self._scorer = self.make_scorer(
                self.model, head=self.spec.head, micro_tokens=self.micro_tokens, autocast=bool(self.spec.autocast)
            )
        return self._scorer

    def forget_scorer(self) -> None:
        """To be called when the weights have changed in place."""
        self._scorer = None

    def scoring_limit(self) -> int | None:
        return None if self.micro_tokens == self.most else self.micro_tokens

    def set_scoring_limit(self, tokens: int | None) -> None:
        self.micro_tokens = self.most if tokens is None else min(self.most, tokens)

    def counts(self) -> dict[str, float]:
        return {f"{self.name}/{SCORING_OOM}": float(self._oom_count)}

    @torch.inference_mode()
    def top_logprobs(self, ids: Sequence[int], *, first: int, top: int) -> RankedTokens:
        """The model's own log-probabilities of the tokens from place ``first`` on, each with those of the ``top``
        likeliest."""
        if len(ids) <= first:
            return []
        if self.activate is not None:
            self.activate()
        inputs = torch.tensor([ids], device=next(self.model.parameters()).device)
        logits = self.model(input_ids=inputs, use_cache=False, logits_to_keep=len(ids) - first + 1).logits[0, :-1]
        tokens: RankedTokens = []
        for part in logits.split(max(1, _SLICE // logits.shape[-1])):
            logp = part.float().log_softmax(-1)
            targets = inputs[0, first + len(tokens) :][: len(part), None]
            values, best = logp.topk(top)
            ranked = zip(best.tolist(), values.tolist(), strict=True)
            own_logprobs = logp.gather(1, targets)[:, 0].tolist()
            tokens += [(own, list(zip(*pair, strict=True))) for own, pair in zip(own_logprobs, ranked, strict=True)]
        return tokens

    def shape(self) -> ComputeShape | None:
        return compute_shape(self.name, self.spec, self.model)

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        return ((name, parameter.detach()) for name, parameter in self.model.named_parameters())

    def save(self, directory: Path, *, merged: bool = False) -> None:
        renderer = self.renderer
        model = self.model
        if not isinstance(renderer, Renderer) or merged:
            raise self._unsupported_error(
                "is no adapter to be merged" if merged else "has no tokenizer to be written with it"
            )
        options = self.spec.load_options
        if self.base is not None or options.pop("load_in_4bit", False):  # as it was before adapters were put into it
            model = load_model(self.spec.model, **options)[0]
        elif not isinstance(model, PreTrainedModel):
            from cotrain.models.heads import ValueModel, classifier_of

            assert isinstance(model, ValueModel)
            fill = renderer.tokenizer.pad_token_id
            fill = renderer.tokenizer.eos_token_id if fill is None else fill
            model = classifier_of(model.body, model.head.weight, fill)
        assert isinstance(model, PreTrainedModel)
        save_model(model, renderer.tokenizer, directory)


class LearnerHandle(ModelHandle):
    """A policy with an optimiser: its learner does what is asked."""

    changes = True

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        renderer: Rendering | None,
        model: nn.Module,
        *,
        learner: TorchLearner,
        activate: Callable[[], object] | None = None,
        base: AdapterBase | None = None,
    ) -> None:
        """Arguments as of ``ModelHandle``; ``base``: the model that its adapter is on, if it is an adapter."""
        super().__init__(name, spec, renderer, model, activate=activate, base=base)
        self.learner = learner

    @property
    def version(self) -> int:
        return self.learner.version

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        return self.learner.update(terms)

    def reset_optimizer(self) -> None:
        self.learner.reset_optimizer()

    def reset_weights(self) -> bool:
        return self.learner.reset_weights()

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        return self.learner.logprobs(sequences, temperature=temperature, context_tokens=context_tokens)

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        return self.learner.weights()

    def state(self) -> State:
        return self.learner.state()

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.learner.tensors()

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        self.learner.load(state, tensors)

    def save(self, directory: Path, *, merged: bool = False) -> None:
        if self.base is None:
            return super().save(directory, merged=merged)
        if merged:
            from cotrain.models.adapters import merge_into_base  # with PEFT, which only adapters need

            save_model(merge_into_base(self.base, self.name), self.base.tokenizer, directory)
        else:
            self.base.save(self.name, directory)
            self.base.tokenizer.save_pretrained(directory)


class ProgramHandle(PolicyHandle):
    """A Python function that plays a role."""

    renderer: Rendering

    def __init__(self, name: str, spec: PolicySpec, renderer: Rendering, speak: Program) -> None:
        super().__init__(name, spec, renderer)
        self.speak = speak

    async def sample(self, request: Request) -> Completion:
        try:
            text = self.speak(request.fields, Random(request.seed))
            token_ids = self.renderer.encode_reply(text, request.prompt_ids)
        except Exception as error:  # whatever it is, it ends the episode that asked and no other
            raise SpeakerError(f"program {self.name!r} at {request.address}: {error}") from error
        zeros = (0.0,) * len(token_ids)
        return Completion(token_ids=token_ids, logprobs=zeros, finish="stop", policy=self.name, version=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeShape:
    """A model, as far as its price goes."""

    body: int  # weights that multiply every token
    head: int  # weights of the output layer
    pair: int  # operations of one (query, key) pair: 4 · layers · heads · head size
    trained: int = 0  # weights of body and head that get a gradient


def compute_shape(name: str, spec: PolicySpec, model: nn.Module) -> ComputeShape:
    """The shape of a policy's model; of the adapters on a shared base only its own counts."""
    full_model: Any = model
    core = full_model if spec.head == "lm" else full_model.body
    config = core.config.get_text_config()
    own = {p for path, p in model.named_parameters() if ".lora_" not in path or f".policy-{name}." in path}
    embedding = core.get_input_embeddings().weight
    head = core.get_output_embeddings().weight if spec.head == "lm" else full_model.head.weight
    weights = sum(map(_count_weights, own))
    body = weights - embedding.numel()
    if head is not embedding:
        body -= head.numel()
    adapter = sum(p.numel() for path, p in model.named_parameters() if f".policy-{name}." in path)
    heads = getattr(config, "num_attention_heads", None) or 0  # none where a model has no attention
    size = getattr(config, "head_dim", None) or config.hidden_size // max(1, heads)
    trained = 0
    if spec.lora:
        trained = adapter
    elif spec.is_trained:
        trained = body + head.numel()
    return ComputeShape(
        body=body,
        head=head.numel(),
        pair=4 * config.num_hidden_layers * heads * size,
        trained=trained,
    )


def _count_weights(parameter: nn.Parameter) -> int:
    """The number of weights in a tensor: of 4 bits, two are in a byte."""
    if parameter.dtype == torch.uint8:
        return 2 * parameter.numel()
    return parameter.numel()


class RoutingEngine:
    """All policies of a run as one engine. A request to a policy with a model goes to the engine below, which forms the
    batches; one to a program or a remote policy goes to its handle. The engine below also gets requests to policies
    without a handle, and refuses unknown ones. Implements ``Engine`` and ``MemoryLimitedEngine``."""

    def __init__(self, handles: Mapping[str, PolicyHandle], engine: Engine) -> None:
        self.handles = handles
        self.engine = engine
        # Policy → what answers for it: the engine that has its model, or the handle of a program or a remote policy.
        self._answers = {name: handle.engine or handle for name, handle in handles.items()}

    def engine_of(self, policy: str) -> Engine | PolicyHandle:
        """What answers requests to a policy; for a policy without a handle the engine below."""
        return self._answers.get(policy, self.engine)

    async def sample(self, request: Request) -> Completion:
        return await self.engine_of(request.policy).sample(request)

    def advance(self) -> bool:
        return self.engine.advance()

    def publish(self, policy: str, version: int) -> None:
        self.engine.publish(policy, version)

    def counts(self) -> dict[str, float]:
        own = self.engine.counts()
        for handle in self.handles.values():
            own |= handle.counts()
        return own

    @property
    def can_hold(self) -> bool:
        """Whether the engine below can go on without some policies, those that are held."""
        return isinstance(self.engine, HoldingEngine)

    @property
    def is_paused(self) -> bool:
        return isinstance(self.engine, HoldingEngine) and self.engine.is_paused

    def hold(self, policies: Collection[str]) -> None:
        if isinstance(self.engine, HoldingEngine):
            self.engine.hold(policies)

    def release(self) -> None:
        if isinstance(self.engine, HoldingEngine):
            self.engine.release()

    def limits(self) -> dict[str, int]:
        return self.engine.limits() if isinstance(self.engine, MemoryLimitedEngine) else {}

    def set_limits(self, limits: Mapping[str, int]) -> None:
        if isinstance(self.engine, MemoryLimitedEngine):
            self.engine.set_limits(limits)


class ServingRoutingEngine(RoutingEngine):
    """The same over an engine that can also serve. Implements ``ServingEngine``, too."""

    def __init__(self, handles: Mapping[str, PolicyHandle], engine: ServingEngine) -> None:
        super().__init__(handles, engine)
        self.step = engine.step
        self.running_tokens = engine.running_tokens
        self.check = engine.check
        self.context = engine.context


def route_policies(handles: Mapping[str, PolicyHandle], engine: Engine) -> RoutingEngine:
    """All policies as one engine, which can serve if the engine below can."""
    if isinstance(engine, ServingEngine):
        return ServingRoutingEngine(handles, engine)
    return RoutingEngine(handles, engine)
