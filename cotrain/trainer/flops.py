"""The price of a step: floating-point operations by policy and part, the same on every machine, and seconds by stage.

With M the weights that a token is multiplied with, L layers and A = heads · head size::

    forward     2·M a token            + 4·L·A for each (query, key) pair: QKᵀ and the weighted values
    learning    forward, 2·M a token for the gradients of activations, 2·M a token for those of weights that are
                trained:
                6·M a token            + 12·L·A a pair        (4·M where an adapter is trained on a fixed base)

The table of input embeddings is looked up and multiplies nothing. The output layer counts where something is predicted:
after a prompt and at sampled tokens, never inside of a prompt. (Kaplan et al. 2020, arXiv 2001.08361, section 2.1, has
the forward pass; the backward pass is twice as dear.)

    prefill     prompts of the roles that speak          sampling    the tokens that they drew
    scoring     references, critics, reward models and whoever else is asked about given tokens
    learning    forward and backward of what was trained

A prompt that several answers of one step share counts once in each part, as engine and learner compute it. Of answers
to it each counts whole, although what they have in common is computed once where a model allows that. Everything is
counted from what was said, so the figures do not depend on batches, padding or device. Left out: evaluations,
optimiser steps, activations that are computed again to save memory, and that some layers do less (windows, experts that
rest).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cotrain.algorithms.contract import ContextTokens, LossTerm, with_context
from cotrain.core.types import FAILED, Episode
from cotrain.distributed.policy_handles import ComputeShape
from cotrain.learner.batching import computed_samples
from cotrain.trainer.policy_store import PolicyStore

PARTS = ("prefill", "sampling", "scoring", "learning")
Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]  # (prompt [P], sampled tokens [T])


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWork:
    """Counts of the tokens that went through a model."""

    tokens: int
    predicted: int  # places from which something was predicted
    pairs: int  # (query, key) pairs under the causal mask


def prefill_work(prompts: Iterable[tuple[int, ...]]) -> TokenWork:
    """Each distinct prompt once: P tokens, of which the last predicts."""
    lengths = [len(prompt) for prompt in set(prompts)]
    pairs = sum(length * (length + 1) // 2 for length in lengths)  # a token looks at itself and at those before it
    return TokenWork(tokens=sum(lengths), predicted=len(lengths), pairs=pairs)


def decoding_work(lengths: Iterable[tuple[int, int]]) -> TokenWork:
    """Answers of T tokens to prompts of P, as (P, T). The first token is predicted by the prompt, so T − 1 go through
    the model, the i-th after P + i − 1 others."""
    steps = 0
    pairs = 0
    for prompt_length, answer_length in lengths:
        steps += answer_length - 1
        pairs_with_prompt = (answer_length - 1) * prompt_length
        pairs_within_answer = answer_length * (answer_length - 1) // 2
        pairs += pairs_with_prompt + pairs_within_answer
    return TokenWork(tokens=steps, predicted=steps, pairs=pairs)


def sequence_work(sequences: Sequences) -> TokenWork:
    """Prompts and answers that are all known: each distinct prompt once, and every answer token is predicted."""
    prompts = prefill_work(prompt for prompt, _ in sequences)
    answers = decoding_work((len(prompt), len(answer)) for prompt, answer in sequences)
    predicted = sum(len(answer) for _, answer in sequences)
    return TokenWork(tokens=prompts.tokens + answers.tokens, predicted=predicted, pairs=prompts.pairs + answers.pairs)


def forward_flops(shape: ComputeShape, work: TokenWork) -> int:
    """Operations of a forward pass: 2·M a token, and the attention of each pair."""
    return 2 * _multiplied_weights(shape, work) + shape.pair * work.pairs


def learning_flops(shape: ComputeShape, work: TokenWork) -> int:
    """Operations of a forward and a backward pass."""
    weights = _multiplied_weights(shape, work)
    trained_share = shape.trained / (shape.body + shape.head)
    forward = 2 * weights
    gradients_of_activations = 2 * weights
    gradients_of_weights = round(2 * weights * trained_share)
    attention = 3 * shape.pair * work.pairs
    return forward + gradients_of_activations + gradients_of_weights + attention


def _multiplied_weights(shape: ComputeShape, work: TokenWork) -> int:
    """M, summed over tokens: all of the body for each token, and the output layer where something is predicted."""
    return shape.body * work.tokens + shape.head * work.predicted


class FlopsMeter:
    """Adds up what one step costs."""

    def __init__(self, policies: PolicyStore) -> None:
        shapes = {handle.name: handle.shape() for handle in policies}
        self._shapes = {name: shape for name, shape in shapes.items() if shape is not None}
        self._scoring = {handle.name for handle in policies if handle.spec.scores}
        self._spent: Counter[tuple[str, str]] = Counter()

    def count_rollouts(self, episodes: Sequence[Episode]) -> None:
        """Count what the roles were asked and said. A reward model that plays a role is asked and says nothing."""
        traces = [trace for episode in episodes for trace in episode.traces if trace.finish != FAILED]
        for name in sorted({trace.policy for trace in traces} & set(self._shapes)):
            shape = self._shapes[name]
            own_traces = [trace for trace in traces if trace.policy == name]
            prompts = prefill_work(trace.prompt_ids for trace in own_traces)
            answers = decoding_work(
                (len(trace.prompt_ids), len(trace.token_ids)) for trace in own_traces if trace.token_ids
            )
            prompt_part = "scoring" if name in self._scoring else "prefill"
            self._spent[name, prompt_part] += forward_flops(shape, prompts)
            self._spent[name, "sampling"] += forward_flops(shape, answers)

    def count_scoring(self, policy: str, sequences: Sequences, context_tokens: Sequence[ContextTokens]) -> None:
        """Count tokens of others that a policy was asked about. ``context_tokens``: those that stand between the
        sampled tokens of each sequence, which are computed, too."""
        whole_sequences = []
        for (prompt_ids, token_ids), context in zip(sequences, context_tokens, strict=True):
            whole_ids, _ = with_context(token_ids, context)
            whole_sequences.append((prompt_ids, whole_ids))
        self._spent[policy, "scoring"] += forward_flops(self._shapes[policy], sequence_work(whole_sequences))

    def count_learning(self, policy: str, term: LossTerm) -> None:
        """Count what a policy was trained on."""
        indices = computed_samples(term) if term.samples else ()
        sequences = []
        for index in indices:
            sample = term.samples[index]
            whole_ids, _ = with_context(sample.token_ids, sample.context_tokens)
            sequences.append((sample.prompt_ids, whole_ids))
        self._spent[policy, "learning"] += learning_flops(self._shapes[policy], sequence_work(sequences))

    def take_row(self) -> dict[str, int]:
        """``{policy}/flops/{part}`` since the last call."""
        spent = self._spent
        self._spent = Counter()
        return {f"{name}/flops/{part}": count for (name, part), count in sorted(spent.items()) if count}


# -- Wall seconds of a step, by what was done: ``with clock.stage("update"): …``


class StageClock:
    """Wall seconds of each stage, each second counted once: a stage inside of another one interrupts it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}  # by stage
        self._stage: str | None = None  # the one that runs now
        self._since = 0.0  # since when

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of the block as this stage's, also where it raises."""
        outer = self._stage
        self._enter(name)
        try:
            yield
        finally:
            self._enter(outer)

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.seconds.values())

    def _enter(self, name: str | None) -> None:
        now = time.perf_counter()
        if self._stage is not None:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage = name
        self._since = now
