"""The contracts of an algorithm, which turns rewards into a loss, and of a policy, which is asked where its model is.

An *algorithm* knows mathematics: which signals it reads, how they become per-token credit, and what its loss is. It is
synchronous, keeps no state and touches neither an engine nor a model. A *policy* answers ``PolicyClient``, wherever its
model is. A *learner* (``learner/learner.py``) answers those of one policy with its weights and its optimiser: it packs
samples, runs forward and backward, and asks the algorithm for the loss of each micro-batch.

Several objectives may train one policy: their terms are summed into one optimiser step, each normalised by its own
count, so that a role with long answers does not drown a role with short ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import NamedTuple, Protocol

from cotrain.algorithms.functional.late_torch import torch
from cotrain.core.errors import ConfigError
from cotrain.core.signals import Signal
from cotrain.core.types import Reward, State, Trace, take_fields

# -- What of a trace can be learned: the tokens that the policy sampled. What was given between its turns is context.
#
# ::
#
#     trace     │ a b <stop> │ <tool> 42 │ c <stop> │      reward on [5, 7)
#     sampled   │ a b <stop>               c <stop> │      reward on [3, 5), and the context is ((3, (<tool>, 42)),)
#
# Credit, losses and all their totals run over the sampled tokens alone, so no algorithm can put weight on a context
# token; only the forward pass sees both (``learner/batching.py``).


ContextTokens = tuple[tuple[int, tuple[int, ...]], ...]  # (k, ids): ids before the k-th sampled token, k ≥ 1, rising


class SplitTrace(NamedTuple):
    """A trace, split into what its policy sampled and what was given between."""

    sampled: Trace  # with its sampled tokens alone, and rewards moved with them
    context_tokens: ContextTokens  # between the sampled ones, such as a tool's output


def split_context(trace: Trace) -> SplitTrace:
    """Split a trace into sampled tokens and context. One of a single turn is all sampled."""
    if not trace.turns:
        return SplitTrace(trace, ())
    mask = trace.mask
    before = [0, *accumulate(mask)]  # sampled tokens in front of each place
    context_tokens: list[tuple[int, tuple[int, ...]]] = []
    for turn, following in zip(trace.turns, trace.turns[1:], strict=False):
        if turn.end < following.start:
            context_tokens.append((before[turn.end], trace.token_ids[turn.end : following.start]))
    sampled_places = [i for i, sampled in enumerate(mask) if sampled]

    rewards = []
    for reward in trace.rewards:
        if reward.tokens is not None:
            start, end = reward.tokens
            reward = replace(reward, tokens=(before[start], before[end]))
        rewards.append(reward)

    sampled_trace = replace(
        trace,
        token_ids=tuple(trace.token_ids[i] for i in sampled_places),
        logprobs=tuple(trace.logprobs[i] for i in sampled_places),
        rewards=tuple(rewards),
        turns=(),
    )
    return SplitTrace(sampled_trace, tuple(context_tokens))


def with_context(token_ids: tuple[int, ...], context_tokens: ContextTokens) -> tuple[tuple[int, ...], list[int]]:
    """Sampled tokens [N] with what was given between them [T], and the places [N] where the sampled ones stand."""
    if not context_tokens:
        return token_ids, list(range(len(token_ids)))
    ids: list[int] = []
    places: list[int] = []
    at = dict(context_tokens)
    for k, token in enumerate(token_ids):
        ids += at.get(k, ())
        places.append(len(ids))
        ids.append(token)
    return tuple(ids), places


Ids = tuple[int, ...]
Sequences = Sequence[tuple[Ids, Ids]]  # (prompt_ids [P], token_ids [T])


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of an algorithm, which are checked when the recipe is built."""

    reward_signals: tuple[Signal, ...] = ()  # rewards and labels that it reads; the protocol must give them
    on_policy: bool = True  # samples must be drawn by the policy that is trained
    off_policy_corrected: bool = True  # the loss corrects for updates since the samples were drawn (importance ratio)
    min_group_size: int = 1  # least number of traces in a group; checked at the first step that has too few
    reference_policy: str | None = None  # policy whose log-probabilities of the learned tokens the loss reads
    value_policy: str | None = None  # policy whose values are predicted before credit
    scoring_policies: tuple[str, ...] = ()  # policies whose log-probabilities of sampled tokens ``credit`` reads
    temperature: float | None = None  # temperature of all log-probabilities; None: the role's
    head: str = "lm"  # "lm", "value" or "reward": what the trained policy must predict
    entropy: bool = False  # the loss wants the entropy of every token's distribution
    zero_advantage_has_gradient: bool = True  # False: samples with advantage 0 are left out of the forward pass
    baseline_roles: tuple[str, ...] = ()  # roles that are in the groups and are not trained: any policy may play them


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trajectory as training data: tokens, what was said of them, and what they are worth, token by token.
    ``[T]`` runs over the sampled tokens alone.

    The trainer makes one of every trace (``algorithms/samples.py``); credit keeps some and sets what the loss reads.
    """

    key: str  # the address of its trace; samples are ordered by their place in the batch, not by this
    prompt_ids: tuple[int, ...]  # [P]
    token_ids: tuple[int, ...]  # [T]
    sampler_logprobs: torch.Tensor  # [T] float32 log-probabilities when sampled
    advantages: torch.Tensor  # [T] float32, constants with respect to the weights; zeros until credit sets them
    weight: float = 1.0  # multiplies the sample's loss after all statistics (class balance)
    temperature: float = 1.0  # the logits are divided by this before log-probabilities are taken
    reference: torch.Tensor | None = None  # [T] float32 log-probabilities under the reference policy; set after credit
    targets: torch.Tensor | None = None  # [T] float32 regression targets (critics)
    old_values: torch.Tensor | None = None  # [T] float32 value predictions before each sampled token
    off_policy: bool = False  # True if it answered another prompt than the one it is trained under
    role: str = ""  # role that said it
    group: str = ""  # group key: samples of one group are compared with each other
    rewards: tuple[Reward, ...] = ()  # rewards in the order in which the protocol gave them
    score: float | None = None  # output of a scoring policy
    scores: Mapping[str, torch.Tensor] = field(default_factory=dict)  # policy → [T] float32 log-probabilities
    context_tokens: ContextTokens = ()  # tokens between the sampled ones: context, without advantage or loss
    truncated: bool = False  # True if it was cut at its token limit
    limit: int = 0  # most tokens that it could have had; 0 if it is not known
    # bounds of π_learner / π_sampler (geometric mean over tokens); a sample outside of them has no gradient
    bounds: tuple[float, float] | None = None
    trajectory: str = ""  # key of the first of several samples that share one reward; "" for a sample of its own

    @property
    def trajectory_key(self) -> str:
        """The same for all samples of a trajectory, whose rewards for the whole of it are one value."""
        return self.trajectory or self.key

    @property
    def episode_key(self) -> str:
        """The episode that it belongs to: its key without role and call."""
        return self.key.rsplit(":", 2)[0]

    def rewards_for(self, signal: Signal) -> tuple[Reward, ...]:
        """Its rewards of this signal."""
        return tuple(reward for reward in self.rewards if reward.name == signal.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The samples that one objective learns from at one step."""

    samples: tuple[Sample, ...]  # one of each trace that did not fail, in address order
    updates: int = 0  # optimiser steps that the trained policy has made
    planned: int = 1  # updates that the recipe will make; decays run on these two numbers, not on the global step


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The result of an algorithm on a batch: samples with advantages, and why others were dropped."""

    samples: tuple[Sample, ...]
    metrics: Mapping[str, float]  # e.g. "groups", "zero_spread_groups", "advantage/outcome"
    dropped: Mapping[str, int] = field(default_factory=dict)  # reason → number of traces not trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTotals:
    """Totals over the whole update, so that splitting it into micro-batches changes nothing."""

    tokens: float  # number of sampled tokens in all samples of this term
    sequences: float  # number of samples of this term


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Some samples of one term, right-padded. ``[B, T]`` runs over sampled tokens only (prompts are cut off)."""

    token_ids: torch.Tensor  # [B, T] int64
    mask: torch.Tensor  # [B, T] float32, 1 on sampled tokens, 0 on padding
    sampler_logprobs: torch.Tensor  # [B, T]
    advantages: torch.Tensor  # [B, T]
    weights: torch.Tensor  # [B]
    reference: torch.Tensor | None  # [B, T]
    targets: torch.Tensor | None  # [B, T]
    old_values: torch.Tensor | None  # [B, T]
    off_policy: torch.Tensor | None = None  # [B] bool
    bounds: torch.Tensor | None = None  # [B, 2], of the samples'


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One micro-batch's share of a term: ``value`` already divided by the totals; metrics are *sums* over tokens,
    divided by the term's token count when reported."""

    value: torch.Tensor  # scalar, differentiable
    sums: Mapping[str, torch.Tensor]  # detached scalars, summed over sampled tokens


class Algorithm(Protocol):
    """Turns rewards into a loss. Its fields are frozen options; its state is passed in and returned."""

    def needs(self) -> Needs: ...

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        """Rewards → per-token advantages, and the new state. ``state`` is {} before the first batch, then what the last
        call handed back; it is not changed."""
        ...

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        """``predictions`` ``[B, T]``: log-probabilities of the sampled tokens (head "lm"), values (head "value")
        or scores ``[B, 1]`` (head "reward")."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """One objective's share of an update."""

    name: str  # name of the objective
    algorithm: Algorithm
    samples: tuple[Sample, ...]
    weight: float = 1.0  # weight of its loss among the terms of the update
    planned: int = 1  # updates that the recipe will make; decays of the learning rate run on these


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """The result of one call of ``update``."""

    stepped: bool  # False when there was nothing to learn from, or the guard refused the gradient
    skipped: str | None  # reason when not stepped
    metrics: Mapping[str, float]  # "{objective}/loss", "{objective}/entropy", "grad_norm", "lr", "tokens", "seconds" …


class PolicyClient:
    """The methods of a policy in the process that has its model. ``learner/learner.py``,
    ``distributed/policy_handles.py`` and ``config/followers.py`` do it, ``distributed/remote_policies.py`` asks another
    process; each has these methods written out. Here are the answers of a policy that never changes."""

    @property
    def version(self) -> int:
        """Number of changes of the weights; for a learner its optimizer steps, without skipped ones."""
        return 0

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        """Make at most one optimiser step, on the sum of all terms, each divided by its own totals over the update."""
        raise self._unsupported_error("is not trained")

    def reset_optimizer(self) -> None:
        """Between updates: the next one is made, and its learning rate warmed up, as by a new optimiser. Twice is as
        once."""

    def reset_weights(self) -> bool:
        """Between updates: the weights of the start again, where an iteration is over and the policy asks for that;
        whether it did."""
        return False

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        """For each (prompt_ids [P], token_ids [T]): float32 ``[T]`` log-probabilities, or values of a critic, without
        gradient. ``given``: what stands between the tokens of each; () for nothing anywhere."""
        raise self._unsupported_error("has no probabilities")

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """(name, tensor) of the weights that may have changed, for an engine that holds its own."""
        return ()

    def follow(self, source: PolicyClient, planned: int) -> bool:
        """After each of ``planned`` updates of the policy that it follows; whether its weights changed."""
        raise self._unsupported_error("follows nobody")

    def state(self) -> State:
        """The JSON state that a checkpoint holds next to ``tensors``, for a policy that changes."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything to be saved: weights under ``model.``, optimiser moments under ``optimizer.``."""
        return {}

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Exactly what ``state`` and ``tensors`` gave; missing and unknown names raise StateError."""
        take_fields("a policy that does not change", state)
        take_fields("tensors of a policy that does not change", tensors)

    def scoring_limit(self) -> int | None:
        """The tokens of a scoring pass, if they are fewer since memory ran out, and ``state`` does not hold them."""
        return None

    def set_scoring_limit(self, tokens: int | None) -> None:
        """Set what ``scoring_limit`` returned; None for as many as at the start."""

    def _unsupported_error(self, why: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} {why}; let another policy do that", code="E_ALGORITHM_CANNOT")
