"""Scoring by a forward pass: log-probabilities and entropies of sampled tokens, or values, with or without gradient.

Sequences share a common prefix if the model's attention allows that (``batching.py``). The body of the model runs over
whole rows; the output layer only over the positions that predict a sampled token, so logits of prompts are never
computed. Only these logits become float32. If there are too many of them, they are computed in slices, and again in the
backward pass (a vocabulary of 150,000 and 16,000 tokens would need 10 GB at once).

A learner and a frozen policy (a reference) score through the same code, so that equal weights give equal numbers.

Some models scale or soft-cap their logits after the output layer. The same is done to the slices here, and compared
with the model's own forward when a scorer is made.

Dropout is off, always: the tokens were sampled without it. Left out: the auxiliary losses by which routers of mixtures
of experts are balanced in pretraining, which are no part of log π.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from cotrain.algorithms.contract import ContextTokens, Sequences, with_context
from cotrain.core.errors import ConfigError, ModelError
from cotrain.learner.batching import ForwardInput, batches_of, forward_input_of, move_to
from cotrain.models.memory import MEMORY_ERRORS, out_of_memory, release_gpu_cache
from cotrain.models.shared_prefix import can_branch, use_branches

Finish = Callable[[torch.Tensor], torch.Tensor]  # transforms logits [n, V] after a model's output layer
HEADS = ("lm", "value", "reward")  # "reward" is a value model that is asked once, after the whole prompt


class Scorer:
    """Scores with one model, which others may share, and whose weights may change in place."""

    def __init__(
        self,
        model: nn.Module,
        *,
        head: str = "lm",
        micro_tokens: int = 16384,
        autocast: bool = False,
        logits_at_once: int = 2**26,
        recompute: bool = False,
    ) -> None:
        """
        Args:
            model: "lm": a causal LM of transformers, plain or with adapters; "value": token ids ``[B, L]`` → values
                ``[B, L]``, such as ``models.heads.ValueModel``.
            head: "lm", "value" or "reward".
            micro_tokens: padded tokens of one forward pass.
            autocast: bfloat16 arithmetic over float32 weights.
            logits_at_once: most numbers in one slice of logits (tokens times vocabulary).
            recompute: activation checkpointing: layers keep only their inputs and are computed again in the backward
                pass (``models/activation_checkpointing.py``).

        Raises ModelError for a model that changes its logits after the output layer in an unknown way, or cannot
        recompute.
        """
        if head not in HEADS:
            raise ConfigError(f"head is {head!r}, expected one of {HEADS}", code="E_HEAD_NAME")
        self.model = model.eval()
        self.head = head
        self.micro_tokens = micro_tokens
        self.oom_count = 0  # how often micro_tokens was halved because memory ran out
        self.autocast = autocast
        self.logits_at_once = logits_at_once
        self.recompute = recompute
        if recompute:
            from cotrain.models.activation_checkpointing import check_recompute

            check_recompute(model)
        # True: sequences share common prefixes, in the shared layout of ``batching.py``.
        self.shared = head == "lm" and can_branch(model)
        if head == "lm":
            self._find_layers()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def predict(self, inputs: ForwardInput, *, entropy: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """``[B, T]`` log-probabilities of sampled tokens at their temperatures (of other heads: values), 0 on padding;
        and, if asked for, their entropies ``[B, T]``.

        ``inputs`` must be on the model's device. Differentiable unless inside ``torch.no_grad``.
        """
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.autocast):
            if self.head != "lm":
                with self._recompute_activations(self.model):
                    values = self.model(input_ids=inputs.input_ids)  # [B, L]
                at_places = _at_least_float32(values[inputs.row, inputs.column])  # [U], places that predict tokens
                flat = at_places[inputs.source]  # [N], sampled tokens
                flat_entropy = None
            else:
                hidden = self._hidden_states(inputs)  # [B, L, H]
                flat, flat_entropy = self._sliced_logprobs(hidden[inputs.row, inputs.column], inputs, entropy)

        # ``flat`` [N] runs over sampled tokens; each goes to its place in [B, T].
        predictions = flat.new_zeros(inputs.mask.shape).masked_scatter(inputs.mask, flat)
        if flat_entropy is None:
            return predictions, None
        return predictions, flat.new_zeros(inputs.mask.shape).masked_scatter(inputs.mask, flat_entropy)

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        """Float32 ``[T]`` on the CPU, without gradient, for each (prompt_ids, token_ids), in their order.

        ``context_tokens``: of each sequence, the tokens between its sampled ones. If memory runs out, everything is
        computed again in smaller passes (``halve_batches``)."""
        context = context_tokens or [()] * len(sequences)
        inputs_to_plan = []  # (prompt ids, sampled ids with the context between them)
        for (prompt_ids, token_ids), own_context in zip(sequences, context, strict=True):
            ids, _ = with_context(token_ids, own_context)
            inputs_to_plan.append((prompt_ids, ids))
        self.model.eval()
        while True:
            plan = batches_of(inputs_to_plan, micro_tokens=self.micro_tokens, shared=self.shared)
            try:
                results = self._run_passes(plan, sequences, temperature, context)
            except MEMORY_ERRORS as error:
                passes = []
                for indices in plan:
                    passes.append([sequences[i] for i in indices])
                self.halve_batches(passes, error)
            else:
                return self.complete_logprobs(results)
            # Behind the handler, where ``error`` no longer holds the tensors of its frames.
            release_gpu_cache(self.device)

    def halve_batches(self, passes: Sequence[Sequences], error: BaseException) -> None:
        """Lower ``micro_tokens`` after memory ran out in one of these passes, to half of the tokens of the largest pass
        that has several sequences, or to half of itself where that is less. Raises ``error`` itself if it is not about
        memory, and ConfigError if every pass has one sequence already."""
        if not out_of_memory(error):
            raise error

        tokens_of_passes = []
        longest = 0
        for sequences in passes:
            lengths = [len(prompt_ids) + len(token_ids) for prompt_ids, token_ids in sequences]
            longest = max(longest, *lengths)
            if len(sequences) > 1:
                tokens_of_passes.append(sum(lengths))

        if not tokens_of_passes:
            raise ConfigError(
                f"the memory of {self.device} does not hold one sequence of {longest} tokens; set "
                "gradient_checkpointing=true for this policy, lower max_tokens, or take a smaller model",
                code="E_MEMORY_FOR_SEQUENCE",
            ) from error
        self.micro_tokens = max(1, min(self.micro_tokens, max(tokens_of_passes)) // 2)
        self.oom_count += 1

    def _run_passes(
        self,
        plan: Sequence[tuple[int, ...]],
        sequences: Sequences,
        temperature: float,
        context_tokens: Sequence[ContextTokens],
    ) -> list[torch.Tensor]:
        """The log-probabilities of each sequence, after a forward pass over each batch of the plan."""
        results = [torch.zeros(len(token_ids)) for _, token_ids in sequences]
        with self.without_gradient():
            for indices, is_counted in self.local_batches(plan):
                forward_input = forward_input_of(
                    [sequences[i] for i in indices],
                    [temperature] * len(indices),
                    context_tokens=[context_tokens[i] for i in indices],
                    shared=self.shared,
                )
                predictions, _ = self.predict(move_to(forward_input, self.device))
                if not is_counted:  # a batch that is repeated, as all ranks run the same number of passes
                    continue
                on_cpu = predictions.float().cpu()
                for b, i in enumerate(indices):
                    results[i] = on_cpu[b, : len(results[i])].clone()
        return results

    # -- ``fsdp.py`` overrides these for models in shards.

    def without_gradient(self) -> AbstractContextManager[object]:
        """A context for passes without a backward pass."""
        return torch.no_grad()

    def local_batches(self, plan: Sequence[tuple[int, ...]]) -> Iterable[tuple[tuple[int, ...], bool]]:
        """The batches to run on this rank, and whether the result of each is counted."""
        return ((indices, True) for indices in plan)

    def complete_logprobs(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results of all batches, given those of this rank, with zeros for sequences that ran on another rank."""
        return results

    # -- the forward pass

    def _recompute_activations(self, module: torch.nn.Module) -> AbstractContextManager[None]:
        if not self.recompute:
            return nullcontext()
        from cotrain.models.activation_checkpointing import recompute_layers

        return recompute_layers(module)

    def _hidden_states(self, inputs: ForwardInput) -> torch.Tensor:
        """Last hidden states ``[B, L, H]``; ``[1, L, H]`` in the shared layout."""
        if inputs.branches is None:
            with self._recompute_activations(self._body):
                return self._body(input_ids=inputs.input_ids, use_cache=False).last_hidden_state
        with use_branches(self._body), self._recompute_activations(self._body):
            output = self._body(
                input_ids=inputs.input_ids,
                position_ids=inputs.branches.positions,
                branches=inputs.branches,
                use_cache=False,
            )
        return output.last_hidden_state

    def _sliced_logprobs(
        self, hidden: torch.Tensor, inputs: ForwardInput, entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Hidden states of places ``[U, H]`` → log-probabilities and entropies of sampled tokens ``[N]``.

        All places at once if their logits are at most ``logits_at_once`` numbers. Else in slices of sampled tokens,
        where the logits of a place that predicts two tokens are computed once for each of them."""
        slice_length = max(1, self.logits_at_once // self._vocabulary)
        compute = partial(_logprobs_at_places, self._output, self._finish)
        if len(hidden) <= slice_length:
            return compute(hidden, inputs.source, inputs.targets, inputs.temperatures, entropy)

        logprobs = []
        entropies = []
        slices = zip(inputs.source.split(slice_length), inputs.targets.split(slice_length), strict=True)
        for source, targets in slices:
            temperatures = None if inputs.temperatures is None else inputs.temperatures[source]
            # ``hidden[source]`` has a row for each token of the slice, so token i is predicted at place i.
            own_place = torch.arange(len(source), device=source.device)
            arguments = (hidden[source], own_place, targets, temperatures, entropy)
            if torch.is_grad_enabled():  # keep no logits: they are computed again in the backward pass
                slice_logprobs, slice_entropies = checkpoint(compute, *arguments, use_reentrant=False)
            else:
                slice_logprobs, slice_entropies = compute(*arguments)
            logprobs.append(slice_logprobs)
            entropies.append(slice_entropies)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None

    def _find_layers(self) -> None:
        """Find body and output layer. Calling them one after the other must give the logits of the model's forward."""
        model: Any = self.model
        name = type(model).__name__
        if not isinstance(model.get_input_embeddings(), nn.Embedding) or model.get_output_embeddings() is None:
            raise ModelError(
                f"{name} has no embedding and output layer that can be called; use a causal LM",
                code="E_MODEL_NOT_CAUSAL",
            )
        self._body = model.get_decoder()
        self._output = model.get_output_embeddings()
        self._vocabulary: int = model.get_input_embeddings().num_embeddings
        ids = torch.arange(min(4, self._vocabulary), device=self.device)[None]
        with torch.no_grad():
            model_logits = model(input_ids=ids, use_cache=False).logits
            hidden = getattr(self._body(input_ids=ids, use_cache=False), "last_hidden_state", None)
            if hidden is None:
                raise ModelError(
                    f"{name} does not hand out its last hidden state; use another causal LM", code="E_MODEL_NOT_CAUSAL"
                )
            output_logits = _at_least_float32(self._output(hidden))

        narrow = model_logits.dtype in (torch.bfloat16, torch.float16)
        tolerance = (1e-2 if narrow else 1e-5) * model_logits.abs().max()
        for finish in _possible_finishes(model.config.get_text_config()):
            own_logits = output_logits if finish is None else finish(output_logits)
            same_shape = own_logits.shape == model_logits.shape
            is_near = same_shape and (own_logits - model_logits).abs().max() <= tolerance
            # Infinite or NaN logits cannot be compared: then the first candidate is taken, a configured cap first.
            if is_near or not bool(model_logits.isfinite().all()):
                self._finish = finish
                return
        raise ModelError(
            f"{name} changes its logits after its output layer in a way that is not known; expected nothing, "
            f"final_logit_softcapping, or a scale ({', '.join(SCALES)})",
            code="E_MODEL_LOGITS_CHANGED",
        )


SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")  # Cohere; Granite and HyperCLOVA X; Falcon-H1


def _possible_finishes(config: Any) -> Iterator[Finish | None]:
    """Candidates for what a model with this configuration does to its logits after the output layer; None: nothing."""
    configured = [getattr(config, name, None) for name in SCALES]
    factors = [float(value) for value in configured if value]
    scales = [*factors, *(1.0 / factor for factor in factors), 1.0]  # some models multiply, some divide

    caps: list[float | None] = [None]
    configured_cap = getattr(config, "final_logit_softcapping", None)
    if configured_cap:
        caps.insert(0, float(configured_cap))  # tried first: small logits hardly feel a cap

    for cap in caps:
        for scale in scales:
            if cap is None and scale == 1.0:
                yield None
            else:
                yield partial(_scale_and_cap, scale=scale, cap=cap)


def _scale_and_cap(logits: torch.Tensor, *, scale: float, cap: float | None) -> torch.Tensor:
    """scale · logits, then cap · tanh(logits / cap) (Gemma 2, arXiv 2408.00118, section 2)."""
    logits = logits * scale
    if cap is None:
        return logits
    return cap * torch.tanh(logits / cap)


def _logprobs_at_places(
    output: nn.Module,
    finish: Finish | None,
    hidden: torch.Tensor,
    source: torch.Tensor,
    targets: torch.Tensor,
    temperatures: torch.Tensor | None,
    entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probabilities ``[n]`` of tokens and, if wanted, entropies ``[n]``.

    Args:
        output: the output layer.
        finish: what the model does to its logits after that; None: nothing.
        hidden: ``[u, H]`` last hidden states of places.
        source: ``[n]`` index of the place that predicts each token.
        targets: ``[n]`` the tokens.
        temperatures: ``[u]``; None: all are 1.
    """
    logits = _at_least_float32(output(hidden))  # [u, V]
    if finish is not None:
        logits = finish(logits)
    if temperatures is not None:
        logits = logits / temperatures[:, None]
    log_normaliser = logits.logsumexp(-1)  # [u]
    logprobs = logits[source, targets] - log_normaliser[source]
    if not entropy:
        return logprobs, None
    entropies = log_normaliser - (logits.softmax(-1) * logits).sum(-1)  # [u]
    return logprobs, entropies[source]


def _at_least_float32(values: torch.Tensor) -> torch.Tensor:
    if values.dtype == torch.float64:
        return values
    return values.float()
