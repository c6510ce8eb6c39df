"""``PolicyHandle``: one interface to a policy, wherever it runs; and the handles of policies whose weights are in this
process.

A handle is what the trainer, the server and the export have of a policy. Each kind answers what it can; recipes are
held against what their policies may be asked before anything is built, so the refusals here are for code that goes
around that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch import nn
from transformers import PreTrainedModel

from cotrain.backend.shapes import ComputeShape, compute_shape
from cotrain.core.errors import ConfigError
from cotrain.core.state import State, take_fields
from cotrain.core.types import Completion, Trace
from cotrain.disk.parts import TensorParts
from cotrain.engine.contract import Engine, Request, SpeakerError
from cotrain.learn.contract import Given, Learner, LossTerm, UpdateReport
from cotrain.learn.scorer import Scorer
from cotrain.models.load import load_model, save_model
from cotrain.text.render import Renderer, Rendering

if TYPE_CHECKING:
    from cotrain.models.adapters import AdapterBase
    from cotrain.models.lora import Lora

Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]  # (prompt_ids [P], token_ids [T])
RankedTokens = list[tuple[float, list[tuple[int, float]]]]  # per token: its log-probability, the likeliest with theirs
Program = Callable[[Mapping[str, Any], Random], str]  # (the call's fields, addressed draws) → what it says
SCORING_SHORT = "scoring_out_of_memory"  # how often a pass that scores was halved
_SLICE = 2**24  # logits that are normalised at a time


class PolicySpec(Protocol):
    """A policy as a recipe names it (``config/policies.py`` has the kinds): what it may be asked, and how it builds
    itself."""

    @property
    def model(self) -> str: ...

    @property
    def kind(self) -> str: ...  # as people read it

    @property
    def head(self) -> str: ...  # what it predicts: "lm", "value" or "reward"; "" where it predicts nothing here

    @property
    def trained(self) -> bool: ...  # by a gradient

    @property
    def speaks(self) -> bool: ...  # its tokens are sampled from a language model of this run

    @property
    def scores(self) -> bool: ...  # it is asked, and answers with one number

    @property
    def source_policy(self) -> str | None: ...  # the policy whose weights it takes over after each update

    @property
    def lora(self) -> Lora | None: ...  # of its adapter

    def with_device_defaults(self, *, autocast: bool) -> Self: ...  # with what the device decides

    def build(self, name: str, room: Any) -> PolicyHandle: ...


class ModelSpec(PolicySpec, Protocol):
    """One whose model is held here."""

    @property
    def rows(self) -> int: ...  # answers that are decoded at a time

    @property
    def micro_tokens(self) -> int: ...

    @property
    def autocast(self) -> bool | None: ...

    @property
    def load_options(self) -> dict[str, Any]: ...  # arguments of ``load_model``


class PolicyHandle:
    """One policy. ``spec`` is what the recipe says of it, ``renderer`` None for one that is never asked (a critic)."""

    changes = False  # its weights change in the run, so it has state and versions
    sharded = False  # no process has all of its weights

    def __init__(self, name: str, spec: PolicySpec, renderer: Rendering | None) -> None:
        self.name, self.spec, self.renderer = name, spec, renderer

    @property
    def version(self) -> int:
        """Of the weights: how often they have changed."""
        return 0

    async def sample(self, request: Request) -> Completion:
        """What it says to a request. Errors: see ``Engine.sample``."""
        raise self._unsupported_error("is not asked anything")

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, given: Sequence[Given] = ()
    ) -> list[torch.Tensor]:
        """For each (prompt_ids [P], token_ids [T]): float32 ``[T]`` log-probabilities, or values of a critic.
        ``given``: what stands between the tokens of each."""
        raise self._unsupported_error("has no probabilities")

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        """At most one optimiser step."""
        raise self._unsupported_error("is not trained")

    def renew(self) -> None:
        """Begin anew with the optimiser, see ``Learner.renew``."""

    def restart(self) -> bool:
        """Go back to the weights of the start where an iteration of it is over; whether it did."""
        return False

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of the weights that may have changed, for an engine that holds its own."""
        return iter(())

    def follow(self, source: PolicyHandle, planned: int) -> bool:
        """Called after each update of the policy that it follows; whether its weights changed."""
        raise self._unsupported_error("follows nobody")

    def state(self) -> State:
        """What a checkpoint must hold beside ``tensors``; of policies that change."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def checkpoint_tensors(self) -> Mapping[str, torch.Tensor] | TensorParts:
        """``tensors`` for a checkpoint, or who writes them."""
        return self.tensors()

    def check_folder(self, folder: Path) -> None:
        """Raise ConfigError where whoever saves it cannot write there."""

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Exactly what ``state`` and ``tensors`` gave; raises StateError for anything else."""
        take_fields(f"policy {self.name!r}", state)
        take_fields(f"tensors of policy {self.name!r}", tensors)

    def save(self, directory: Path, *, merged: bool = False) -> None:
        """Write it as a model directory that plain transformers (or PEFT) load."""
        raise self._unsupported_error("has no weights that could be written")

    def shape(self) -> ComputeShape | None:
        """Of its model; None where there is none in this run."""
        return None

    def cache_answers(self, traces: Sequence[Trace]) -> None:
        """See ``Backend.cache_remote_answers``; only who answers from outside has something to remember."""

    def scoring_limit(self) -> int | None:
        """Tokens of a pass that scores, where they are fewer since memory ran out, and ``state`` does not hold them."""
        return None

    def set_scoring_limit(self, tokens: int | None) -> None:
        """What ``scoring_limit`` gave; None: as many as at the start."""

    def counts(self) -> dict[str, float]:
        """Work done for it that the engine does not count."""
        return {}

    async def close(self) -> None:
        """Let go of connections."""

    def _unsupported_error(self, why: str) -> ConfigError:
        return ConfigError(f"policy {self.name!r} is of kind {self.spec.kind!r} and {why}; let another policy do that")


class ModelHandle(PolicyHandle):
    """A policy whose model this process holds."""

    spec: ModelSpec
    engine: Engine  # who samples from it; set by the backend

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        renderer: Rendering | None,
        model: nn.Module,
        *,
        activate: Callable[[], object] | None = None,
    ) -> None:
        """``activate``: called before each forward pass, to select an adapter of a module that others share, or
        none."""
        super().__init__(name, spec, renderer)
        self.model, self.activate = model, activate
        self.make_scorer: Callable[..., Scorer] = Scorer
        self.micro_tokens = self.most = spec.micro_tokens  # of a pass that scores; fewer once memory ran out
        self._shortages = 0

    async def sample(self, request: Request) -> Completion:
        return await self.engine.sample(request)

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, given: Sequence[Given] = ()
    ) -> list[torch.Tensor]:
        if self.activate is not None:
            self.activate()
        scorer = self.make_scorer(
            self.model, head=self.spec.head, micro_tokens=self.micro_tokens, autocast=bool(self.spec.autocast)
        )
        values = scorer.logprobs(sequences, temperature=temperature, given=given)
        self.micro_tokens, self._shortages = scorer.micro_tokens, self._shortages + scorer.shortages
        return values

    def scoring_limit(self) -> int | None:
        return None if self.micro_tokens == self.most else self.micro_tokens

    def set_scoring_limit(self, tokens: int | None) -> None:
        self.micro_tokens = self.most if tokens is None else min(self.most, tokens)

    def counts(self) -> dict[str, float]:
        return {f"{self.name}/{SCORING_SHORT}": float(self._shortages)}

    @torch.inference_mode()
    def top_logprobs(self, ids: Sequence[int], *, first: int, top: int) -> RankedTokens:
        """The model's own log-probabilities of the tokens from place ``first`` on, each with those of the ``top``
        likeliest."""
        if len(ids) <= first:
            return []
        if self.activate:
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

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        return ((name, parameter.detach()) for name, parameter in self.model.named_parameters())

    def save(self, directory: Path, *, merged: bool = False) -> None:
        renderer, model = self.renderer, self.model
        if not isinstance(renderer, Renderer) or merged:
            raise self._unsupported_error(
                "is no adapter to be merged" if merged else "has no tokenizer to be written with it"
            )
        if self.activate:  # the base of adapters, as it was before they were put into it
            model = load_model(self.spec.model, **self.spec.load_options)[0]
        elif not isinstance(model, PreTrainedModel):
            from cotrain.models.heads import ValueModel, classifier_of

            assert isinstance(model, ValueModel)
            fill = renderer.tokenizer.pad_token_id
            fill = renderer.tokenizer.eos_token_id if fill is None else fill
            model = classifier_of(model.body, model.head.weight, fill)
        assert isinstance(model, PreTrainedModel)
        save_model(model, renderer.tokenizer, directory)


class LearnerHandle(ModelHandle):
    """A policy with an optimiser."""

    changes = True

    def __init__(
        self,
        name: str,
        spec: ModelSpec,
        renderer: Rendering | None,
        model: nn.Module,
        learner: Learner,
        *,
        activate: Callable[[], object] | None = None,
        base: AdapterBase | None = None,
    ) -> None:
        """``base``: where its adapter lies, if its weights are one."""
        super().__init__(name, spec, renderer, model, activate=activate)
        self.learner, self.base = learner, base

    @property
    def version(self) -> int:
        return self.learner.updates

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        return self.learner.update(terms)

    def renew(self) -> None:
        self.learner.renew()

    def restart(self) -> bool:
        return self.learner.restart()

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, given: Sequence[Given] = ()
    ) -> list[torch.Tensor]:
        return self.learner.logprobs(sequences, temperature=temperature, given=given)

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
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
    """A function that speaks."""

    renderer: Rendering

    def __init__(self, name: str, spec: PolicySpec, renderer: Rendering, speak: Program) -> None:
        super().__init__(name, spec, renderer)
        self.speak = speak

    async def sample(self, request: Request) -> Completion:
        try:
            text = self.speak(request.fields, Random(request.seed))
            token_ids = (*self.renderer.encode(text, request.prompt_ids), self.renderer.stop_ids[0])
        except Exception as error:  # whatever it is, it ends the episode that asked and no other
            raise SpeakerError(f"program {self.name!r} at {request.address}: {error}") from error
        zeros = (0.0,) * len(token_ids)
        return Completion(token_ids=token_ids, logprobs=zeros, finish="stop", policy=self.name, version=0)
