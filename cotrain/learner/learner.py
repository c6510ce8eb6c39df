"""A learner on one device: forward, backward, clip, finite check, step.

An update has one term for each objective. Each term is cut into micro-batches of its own and divided by its own totals
(``batching.py``); the gradients of all terms add up, then the optimiser makes one step. A loss or gradient that is not
finite changes nothing: neither weights nor moments nor the update count. If memory runs out, the update is repeated in
smaller micro-batches.

Weights are changed in place, so a local engine that shares them has the new ones at once. The state is a count and
named tensors; a learner that loads them continues bit by bit as the one that saved them would have (same device, same
thread count). Only trained weights are saved; the frozen base of an adapter is loaded from its own files.

``fsdp.py`` has the learner whose ranks hold shards. Left out: gradient scaling (bfloat16 needs none). On a GPU the
split of seconds into forward and backward is the time of launching kernels, not of computing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement
from time import perf_counter
from typing import Any

import torch
from torch import nn

from cotrain.algorithms.contract import ContextTokens, LossTerm, PolicyClient, Sequences, UpdateReport, check_loss_value
from cotrain.core.errors import ConfigError, StateError
from cotrain.core.types import State, take_fields
from cotrain.learner.batching import PlannedTerm, collate, full_sequences, move_to, plan_update
from cotrain.learner.logprobs import Scorer
from cotrain.learner.optim import (
    Optimizer,
    adamw,
    load_optimizer_tensors,
    lr_multiplier,
    optimizer_tensors,
)
from cotrain.models.memory import MEMORY_ERRORS, float64_device, release_gpu_cache

# Prefixes of tensor names.
MODEL = "model."
OPTIMIZER = "optimizer."

NON_FINITE = "non-finite"
MOST_COMPARED = 16  # most terms whose gradients are compared: each needs a copy, and pairs grow by the square
Gradients = Sequence[torch.Tensor | None]  # one gradient for each trained parameter


class TorchLearner(PolicyClient):
    """One policy and its optimiser."""

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        optimizer: Callable[..., Optimizer] = adamw,
        weight_decay: float = 0.0,
        clip_norm: float | None = 1.0,
        warmup: int = 0,
        decay: str = "constant",
        micro_tokens: int = 16384,
        autocast: bool = False,
        recompute: bool = False,
        head: str = "lm",
        term_norms: bool | None = None,
        activate: Callable[[], object] | None = None,
        scorer: Callable[..., Scorer] = Scorer,
        reset_every: int = 0,
        reset_to_start: bool = False,
        offload: bool = False,
    ) -> None:
        """
        Args:
            model: see ``Scorer``; parameters with ``requires_grad`` are trained, and must be float32 or float64.
            lr: learning rate after warm-up.
            optimizer: ``adamw`` of ``learner/optim.py``, or another, called with (model, lr=, weight_decay=).
            weight_decay: decoupled, on matrices only.
            clip_norm: the global gradient norm is scaled down to this; None for no clipping.
            warmup: updates over which the learning rate rises linearly; the first is made at lr / warmup.
            decay: how the learning rate falls after that, over all planned updates: "constant" (it does not), or a
                shape of ``learner/optim.py: lr_multiplier``; "wsd" falls over the last fifth.
            micro_tokens: tokens of one forward and backward pass, padding counted.
            autocast: bfloat16 arithmetic over float32 weights.
            recompute: activation checkpointing, see ``Scorer``.
            head: "lm", "value" or "reward".
            term_norms: also report the gradient norm of each term alone and the cosine between any two (costs a copy of
                the gradients for each term but the last); None: when an update has several terms, roles that share
                weights, and not more than ``MOST_COMPARED``.
            activate: called before each pass, to select the adapter of this policy on a shared base.
            scorer: makes the scorer of the model; takes the arguments of ``Scorer``.
            reset_every: updates of one iteration. Each iteration begins with a new optimiser and a new warm-up; 0:
                there is only one iteration.
            reset_to_start: keep a copy of the initial weights, so that ``reset_weights`` can restore them.
            offload: keep the optimiser's moments in the machine's own memory between updates, and the copy of the
                initial weights always.

        Raises ConfigError, ModelError.
        """
        if not lr > 0.0 or warmup < 0 or (clip_norm is not None and not clip_norm > 0.0):
            raise ConfigError(
                f"learner: lr {lr}, warmup {warmup}, clip_norm {clip_norm}; expected > 0, ≥ 0, > 0 or None",
                code="E_LEARNER_RANGE",
            )
        self._activate = activate or (lambda: None)
        self._activate()
        self._trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        narrow = [name for name, p in self._trained.items() if p.dtype not in (torch.float32, torch.float64)]
        if narrow:
            raise ConfigError(
                f"learner: trained weights such as {narrow[0]!r} are {self._trained[narrow[0]].dtype}, in which small "
                "updates are lost; load the model as float32 and set autocast=True",
                code="E_DTYPE_TRAINED",
            )
        self.model = model
        self.head = head
        self.scorer = scorer(model, head=head, micro_tokens=micro_tokens, autocast=autocast, recompute=recompute)
        self._optimizer = optimizer(model, lr=lr, weight_decay=weight_decay)
        self._lr = lr
        self._warmup = warmup
        self._decay = decay
        self._clip_norm = clip_norm
        self._updates = 0  # updates so far
        self._weights_reset_at = 0  # value of ``_updates`` when the weights were last reset
        self._optimizer_reset_at = 0  # value of ``_updates`` when the optimiser was last reset
        self._term_norms = term_norms
        self._reset_every = reset_every
        self._offload = offload
        self._initial_weights: dict[str, torch.Tensor] = {}
        if reset_to_start:
            copy_device = torch.device("cpu") if offload else self.scorer.device
            for name, parameter in self._trained.items():
                self._initial_weights[name] = parameter.detach().to(copy_device, copy=True)
        self._micro_tokens = micro_tokens  # as configured; ``scorer.micro_tokens`` is smaller once memory ran out

    @property
    def version(self) -> int:
        return self._updates

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        """One optimiser step on the sum of all terms. Raises ConfigError for an algorithm that trains another head.

        If memory runs out, the update starts again with micro-batches of half the size, and later updates keep that
        size. Losses are divided by totals of the whole update, so the gradient is the same except for rounding.
        """
        for term in terms:
            trained_head = term.algorithm.needs().head
            if trained_head != self.head:
                raise ConfigError(
                    f"objective {term.name!r} trains a {trained_head!r} head, this policy has {self.head!r}",
                    code="E_HEAD_MISMATCH",
                )
        while True:
            plan = plan_update(terms, micro_tokens=self.scorer.micro_tokens, shared=self.scorer.shared)
            try:
                report = self.apply_plan(plan)
                break
            except MEMORY_ERRORS as error:  # nothing has changed
                sequences_of_batches = []  # one list of sequences for each micro-batch
                for planned in plan:
                    for batch in planned.batches:
                        sequences_of_batches.append(full_sequences([planned.term.samples[i] for i in batch]))
                self.scorer.halve_batches(sequences_of_batches, error)  # raises ``error`` if no batch can be halved
            # Behind the handler, where ``error`` no longer holds the tensors of its frames.
            release_gpu_cache(self.scorer.device)

        oom_count = self.scorer.oom_count
        self.scorer.oom_count = 0
        if not oom_count:
            return report
        memory_metrics = {"out_of_memory": float(oom_count), "micro_tokens": float(self.scorer.micro_tokens)}
        return replace(report, metrics={**report.metrics, **memory_metrics})

    def apply_plan(self, plan: Sequence[PlannedTerm]) -> UpdateReport:
        """Run the micro-batches of a planned update, then the optimiser's step. Totals are those of the plan."""
        began = perf_counter()
        if not plan:
            return UpdateReport(stepped=False, skipped="no samples", metrics={})
        self._activate()
        self.model.eval()
        self._optimizer.zero_grad()
        metrics: dict[str, float] = {}
        try:
            # Forward and backward of each term; gradients add up in the parameters.
            compare_terms = self._term_norms
            if compare_terms is None:
                compare_terms = 1 < len(plan) <= MOST_COMPARED
            sums: list[Gradients] = []  # gradients summed up to and with each term, without the last one
            for term_index, planned in enumerate(plan):
                metrics |= self._run_term(planned)
                if compare_terms and term_index < len(plan) - 1:
                    sums.append(self._copy_gradients())

            if compare_terms:
                names = [planned.term.name for planned in plan]
                metrics |= _gradient_metrics(names, self.gradient_products(sums))

            # One step, unless a loss or the gradient is not finite.
            norm = self.clip_gradients(self._clip_norm or math.inf)
            losses = [metrics[f"{planned.term.name}/loss"] for planned in plan]
            is_finite = math.isfinite(norm) and all(map(math.isfinite, losses))
            multiplier = self._rate_multiplier(plan[0].term.planned)  # ``planned`` is the policy's, in all terms
            if is_finite:
                begins_iteration = self._updates > 0 and self._updates_in_iteration() == 0
                if begins_iteration:  # with a new optimiser
                    self._optimizer.clear_moments()
                if self._offload:
                    self._optimizer.move_state()  # to the device of the weights
                self._optimizer.step(multiplier)
                self._updates += 1
        finally:
            self._optimizer.zero_grad()
            self._offload_moments()

        metrics |= {
            "grad_norm": norm,
            "lr": self._lr * multiplier,
            "tokens": sum(planned.totals.tokens for planned in plan),
            "seconds": perf_counter() - began,
        }
        return UpdateReport(
            stepped=is_finite,
            skipped=None if is_finite else NON_FINITE,
            metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        )

    def _updates_in_iteration(self) -> int:
        """Updates since the optimiser was last new: since the iteration began, or since ``reset_optimizer``."""
        updates = self._updates - self._optimizer_reset_at
        if self._reset_every:
            return updates % self._reset_every
        return updates

    def _rate_multiplier(self, planned_updates: int) -> float:
        """The learning rate of the next update, as a share of ``lr``."""
        multiplier = 1.0
        if self._warmup:
            multiplier = min(1.0, (self._updates_in_iteration() + 1) / self._warmup)
        if self._decay != "constant":
            decay_fraction = 0.2 if self._decay == "wsd" else 1.0  # share of the updates in which the rate falls
            multiplier *= lr_multiplier(
                self._updates,
                planned_updates,
                warmup=0,  # it is in ``multiplier`` already
                decay_fraction=decay_fraction,
                shape=self._decay,
            )
        return multiplier

    def _copy_gradients(self) -> Gradients:
        copies: list[torch.Tensor | None] = []
        for parameter in self._trained.values():
            gradient = parameter.grad
            copies.append(None if gradient is None else gradient.clone())
        return copies

    # -- ``fsdp.py`` overrides these for learners that hold shards.

    def total_sums(self, sums: dict[str, float]) -> dict[str, float]:
        """Sums over all micro-batches of a term, given those over the micro-batches that ran on this rank."""
        return sums

    def clip_gradients(self, most: float) -> float:
        """Scale the gradients down to this global norm. Returns the norm that they had."""
        return float(nn.utils.clip_grad_norm_(self._trained.values(), most))

    def gradient_products(self, sums: Sequence[Gradients]) -> torch.Tensor:
        """Inner products of the gradients of all K terms, ``[K, K]`` float64 with zeros below the diagonal.

        ``sums``: gradients summed up to and with each term but the last; the parameters hold the sum of all terms.
        """
        return inner_products([*sums, [p.grad for p in self._trained.values()]], self.scorer.device)

    def reset_optimizer(self) -> None:
        """Clear the moments, and begin a new iteration with a new warm-up."""
        self._optimizer.clear_moments()
        self._optimizer_reset_at = self._updates

    def reset_weights(self) -> bool:
        """Restore the initial weights at the beginning of an iteration. Returns whether it did."""
        if not self._initial_weights:
            return False
        if self._updates == self._weights_reset_at:  # no update since the last reset
            return False
        if self._updates_in_iteration() != 0:
            return False
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(self._initial_weights[name])
        self._weights_reset_at = self._updates
        return True

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained weights as they are, not copied."""
        return ((name, parameter.detach()) for name, parameter in self._trained.items())

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        self._activate()
        return self.scorer.logprobs(sequences, temperature=temperature, context_tokens=context_tokens)

    def state(self) -> State:
        state: dict[str, Any] = {
            "updates": self._updates,
            "optimizer": sorted(optimizer_tensors(self._optimizer, self.model)),
        }
        if self.scorer.micro_tokens != self._micro_tokens:  # so that a resumed run sums in the same order
            state["micro_tokens"] = self.scorer.micro_tokens
        if self._initial_weights:
            state["weights_reset_at"] = self._weights_reset_at
        if self._optimizer_reset_at:
            state["optimizer_reset_at"] = self._optimizer_reset_at
        return state

    def tensors(self) -> dict[str, torch.Tensor]:
        """Copies of ``held_tensors`` on the CPU."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self.held_tensors().items()}

    def held_tensors(self) -> dict[str, torch.Tensor]:
        """Trained weights ``model.<parameter>``, moments ``optimizer.<parameter>:<field>``, as they are, not copied."""
        weights = {MODEL + name: parameter.detach() for name, parameter in self._trained.items()}
        moments = {OPTIMIZER + name: moment for name, moment in optimizer_tensors(self._optimizer, self.model).items()}
        return weights | moments

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what ``state`` and ``tensors`` returned. Raises StateError, with nothing changed, if it does not
        fit."""
        # ``state`` may lack these three; they are then those of a new learner.
        state = {"micro_tokens": self._micro_tokens, "weights_reset_at": 0, "optimizer_reset_at": 0, **state}
        fields = ("updates", "optimizer", "micro_tokens", "weights_reset_at", "optimizer_reset_at")
        updates, moments, micro_tokens, weights_reset_at, optimizer_reset_at = take_fields("learner", state, *fields)
        expected = {MODEL + name for name in self._trained} | {OPTIMIZER + name for name in moments}
        missing = sorted(expected - set(tensors))
        unknown = sorted(set(tensors) - expected)
        if missing or unknown:
            mismatch = f"{len(missing)} missing {missing[:2]}, {len(unknown)} unknown {unknown[:2]}"
            raise StateError(f"tensors of learner do not fit: {mismatch}", code="E_LEARNER_TENSORS_MISFIT")
        for name, parameter in self._trained.items():
            saved = tensors[MODEL + name]
            if saved.shape != parameter.shape or saved.dtype != parameter.dtype:
                raise StateError(
                    f"tensors of learner do not fit: {name!r} is {saved.dtype} {tuple(saved.shape)}, "
                    f"expected {parameter.dtype} {tuple(parameter.shape)}",
                    code="E_LEARNER_TENSORS_MISFIT",
                )
        load_optimizer_tensors(self._optimizer, self.model, {name: tensors[OPTIMIZER + name] for name in moments})
        self._offload_moments()
        with torch.no_grad():
            for name, parameter in self._trained.items():
                parameter.copy_(tensors[MODEL + name])
        self._updates = int(updates)
        self.scorer.micro_tokens = int(micro_tokens)
        self._weights_reset_at = int(weights_reset_at)
        self._optimizer_reset_at = int(optimizer_reset_at)

    def _offload_moments(self) -> None:
        """Move the optimiser's moments off the device, where ``offload`` asks for it."""
        if self._offload:
            self._optimizer.move_state(torch.device("cpu"))
            release_gpu_cache(self.scorer.device)

    def _run_term(self, planned: PlannedTerm) -> dict[str, float]:
        """Forward and backward of one objective. Returns its metrics with its name in front."""
        term = planned.term
        totals = planned.totals
        device = self.scorer.device
        sum_device = float64_device(device)

        # Sums stay on the device, so that nothing synchronises before the end.
        zero = torch.zeros((), dtype=torch.float64, device=sum_device)
        sums: dict[str, torch.Tensor] = defaultdict(lambda: zero)
        forward_seconds = 0.0
        backward_seconds = 0.0
        for indices, is_counted in self.scorer.local_batches(planned.batches):
            began = perf_counter()
            inputs, batch = collate([term.samples[i] for i in indices], shared=self.scorer.shared)
            wants_entropy = term.algorithm.needs().entropy
            predictions, entropies = self.scorer.predict(move_to(inputs, device), entropy=wants_entropy)
            loss = term.algorithm.loss_of(predictions, entropies, move_to(batch, device), totals)
            check_loss_value(term.algorithm, loss)
            forward_done = perf_counter()

            # Ranks with fewer micro-batches repeat one, since all must run the same number of passes. The repeated one
            # has no gradient and counts in no sum.
            weight = term.weight if is_counted else 0.0
            (loss.value * weight).backward()

            shares = {"loss": loss.value.detach().to(sum_device).double()}
            for name, value in loss.sums.items():
                shares[name] = value.to(sum_device).double() / planned.tokens
            for name, share in shares.items():
                sums[name] = sums[name] + (share if is_counted else 0.0)
            forward_seconds += forward_done - began
            backward_seconds += perf_counter() - forward_done

        values: list[float] = torch.stack(list(sums.values())).tolist()
        sums_of_all_ranks = self.total_sums(dict(zip(sums, values, strict=True)))
        metrics = {f"{term.name}/{name}": value for name, value in sums_of_all_ranks.items()}
        metrics[f"{term.name}/samples"] = totals.sequences
        metrics[f"{term.name}/tokens"] = totals.tokens
        flat_tokens = totals.tokens - planned.tokens  # tokens without a gradient: all their advantages are 0
        if flat_tokens:
            metrics[f"{term.name}/flat_tokens"] = flat_tokens
        metrics[f"{term.name}/forward_seconds"] = forward_seconds
        metrics[f"{term.name}/backward_seconds"] = backward_seconds
        return metrics


def inner_products(running_sums: Sequence[Gradients], device: torch.device) -> torch.Tensor:
    """The inner products of K gradients, ``[K, K]`` float64, upper half. ``running_sums``: [K] the first gradient, the
    sum of the first two, and so on, since each backward pass adds to the gradients of those before it."""
    sum_device = float64_device(device)
    n_terms = len(running_sums)
    products = torch.zeros(n_terms, n_terms, dtype=torch.float64, device=sum_device)
    for sums in zip(*running_sums, strict=True):  # one parameter at a time
        gradients = []  # each term's gradient of this parameter
        previous = None
        for running_sum in sums:
            if previous is None or running_sum is None:
                gradients.append(running_sum)
            else:
                gradients.append(running_sum - previous)
            previous = running_sum
        for (i, one), (j, other) in combinations_with_replacement(enumerate(gradients), 2):
            if one is not None and other is not None:
                products[i, j] += (one * other).to(sum_device).sum(dtype=torch.float64)
    return products


def _gradient_metrics(names: Sequence[str], products: torch.Tensor) -> dict[str, float]:
    """``{term}/grad_norm`` of each term, ``{term}/grad_share`` of the sum of norms, ``cosine/{term}/{term}`` of each
    two terms, from the inner products ``[K, K]`` of their gradients."""
    norms = products.diagonal().sqrt().tolist()
    total = sum(norms)
    metrics = {f"{name}/grad_norm": norm for name, norm in zip(names, norms, strict=True)}
    if len(norms) > 1 and total > 0.0:
        metrics |= {f"{name}/grad_share": norm / total for name, norm in zip(names, norms, strict=True)}
    for i, j in combinations(range(len(names)), 2):
        if norms[i] > 0.0 and norms[j] > 0.0:
            metrics[f"cosine/{names[i]}/{names[j]}"] = float(products[i, j]) / (norms[i] * norms[j])
    return metrics
