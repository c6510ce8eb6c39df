"""Interfaces and data of learning: ``Algorithm`` (rewards → advantages → loss), ``PolicyClient``, and what they
exchange.

    Trace ──▶ Sample ──Algorithm.credit──▶ Sample with advantages ──▶ LossTerm ──PolicyClient.update──▶ UpdateReport
                                                                         │
                                                       MicroBatch ──Algorithm.loss_of──▶ Loss

An *algorithm* is mathematics alone: which signals it reads, how they become advantages of tokens, and what its loss is.
It keeps no state and sees neither an engine nor a model. A *policy* has the methods of ``PolicyClient``, in whatever
process its model is. A *learner* (``learner/learner.py``) is a policy that is trained: it makes micro-batches of
samples, runs forward and backward, and asks the algorithm for the loss of each micro-batch.

Several objectives may train one policy. Their terms are summed into one optimiser step, each divided by its own number
of tokens, so that a role with long answers does not drown a role with short ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

from cotrain.algorithms.functional.late_torch import torch
from cotrain.core.errors import ConfigError
from cotrain.core.signals import Signal
from cotrain.core.types import Reward, State, Trace, take_fields

# -- Sampled tokens and context. A trace of several turns has tokens that the policy did not sample, such as the output
# of a tool: its context. Algorithms see the sampled tokens alone.
#
# ::
#
#     trace     │ a b <stop> │ <tool> 42 │ c <stop> │      reward on [5, 7)
#     sampled   │ a b <stop>               c <stop> │      reward on [3, 5), and the context is ((3, (<tool>, 42)),)
#
# Advantages, losses and totals run over sampled tokens, so no algorithm can put weight on a context token. Only the
# forward pass sees both (``learner/batching.py``).


ContextTokens = tuple[tuple[int, tuple[int, ...]], ...]  # (k, ids): ids in front of sampled token k, with rising k ≥ 1


class SplitTrace(NamedTuple):
    """A trace, split into what its policy sampled and the context between."""

    sampled: Trace  # with its sampled tokens alone, and with the spans of rewards shifted to them
    context_tokens: ContextTokens  # between the sampled ones, such as a tool's output


def split_context(trace: Trace) -> SplitTrace:
    """Split a trace into sampled tokens and context. A trace of one turn has no context and is returned as it is."""
    if not trace.turns:
        return SplitTrace(trace, ())
    mask = trace.mask
    n_sampled_before = [0, *accumulate(mask)]  # [T + 1] sampled tokens in front of each position
    context_tokens: list[tuple[int, tuple[int, ...]]] = []
    for turn, following in pairwise(trace.turns):
        if turn.end < following.start:
            context_tokens.append((n_sampled_before[turn.end], trace.token_ids[turn.end : following.start]))
    sampled_at = [i for i, is_sampled in enumerate(mask) if is_sampled]  # positions of sampled tokens

    rewards = []
    for reward in trace.rewards:
        if reward.tokens is not None:
            start, end = reward.tokens
            reward = replace(reward, tokens=(n_sampled_before[start], n_sampled_before[end]))
        rewards.append(reward)

    sampled_trace = replace(
        trace,
        token_ids=tuple(trace.token_ids[i] for i in sampled_at),
        logprobs=tuple(trace.logprobs[i] for i in sampled_at),
        rewards=tuple(rewards),
        turns=(),
    )
    return SplitTrace(sampled_trace, tuple(context_tokens))


def with_context(token_ids: tuple[int, ...], context_tokens: ContextTokens) -> tuple[tuple[int, ...], list[int]]:
    """Join sampled tokens with the context between them: all ids, and the positions of the sampled ones among them."""
    if not context_tokens:
        return token_ids, list(range(len(token_ids)))
    ids: list[int] = []
    sampled_at: list[int] = []
    context_before = dict(context_tokens)
    for k, token in enumerate(token_ids):
        ids += context_before.get(k, ())
        sampled_at.append(len(ids))
        ids.append(token)
    return tuple(ids), sampled_at


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
    value_policy: str | None = None  # the critic: policy whose value predictions are computed before credit
    scoring_policies: tuple[str, ...] = ()  # policies whose log-probabilities of sampled tokens ``credit`` reads
    temperature: float | None = None  # temperature of all log-probabilities; None: the role's
    head: str = "lm"  # "lm", "value" or "reward": what the trained policy must predict
    entropy: bool = False  # the loss wants the entropy of every token's distribution
    zero_advantage_has_gradient: bool = True  # False: samples with advantage 0 are left out of the forward pass
    baseline_roles: tuple[str, ...] = ()  # roles that are in the groups and are not trained: any policy may play them


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A trace as training data: its tokens, its rewards, and the advantage of each token. ``[T]`` runs over the sampled
    tokens alone.

    The trainer makes a sample of every trace (``algorithms/samples.py``). ``Algorithm.credit`` keeps some of them and
    sets the fields that the loss reads.
    """

    key: str  # address of its trace
    prompt_ids: tuple[int, ...]  # [P]
    token_ids: tuple[int, ...]  # [T]
    sampler_logprobs: torch.Tensor  # [T] float32 log-probabilities at sampling time
    advantages: torch.Tensor  # [T] float32, constants with respect to the weights; zeros until credit sets them
    weight: float = 1.0  # multiplies the sample's loss after all statistics (class balance)
    temperature: float = 1.0  # the logits are divided by this before log-probabilities are taken
    reference: torch.Tensor | None = None  # [T] float32 log-probabilities under the reference policy; set after credit
    targets: torch.Tensor | None = None  # [T] float32 regression targets (critics)
    old_values: torch.Tensor | None = None  # [T] float32 value predictions before each sampled token
    off_policy: bool = False  # True if it was sampled with another prompt than ``prompt_ids``
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
        """The same for all samples of a trajectory, which share its rewards."""
        return self.trajectory or self.key

    @property
    def episode_key(self) -> str:
        """The key without role and call, which is that of the episode: "3:0:1" of "3:0:1:solver:0"."""
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
    """Totals over the whole update, by which losses are divided: so splitting it into micro-batches changes nothing."""

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
    bounds: torch.Tensor | None = None  # [B, 2] ``Sample.bounds``


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One micro-batch's share of the loss of a term. ``value`` is divided by the totals of the whole update already.
    ``sums`` are sums over tokens, which the learner divides by the term's number of tokens."""

    value: torch.Tensor  # scalar, differentiable
    sums: Mapping[str, torch.Tensor]  # detached scalars, summed over sampled tokens


class Algorithm(Protocol):
    """Turns rewards into a loss. Its fields are frozen options; its state is passed in and returned."""

    def needs(self) -> Needs: ...

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        """Compute the advantage of each token from rewards. Returns the new state, too: ``state`` is {} before the
        first batch, then what the last call returned, and is not changed in place."""
        ...

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        """The loss of a micro-batch. ``predictions`` ``[B, T]``: log-probabilities of the sampled tokens (head "lm"),
        values (head "value"), or scores ``[B, 1]`` (head "reward"). ``entropy`` ``[B, T]`` if ``needs().entropy``."""
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

    stepped: bool  # False: no step was made, as there were no samples or the gradient was not finite
    skipped: str | None  # the reason if no step was made
    metrics: Mapping[str, float]  # "{objective}/loss", "{objective}/entropy", "grad_norm", "lr", "tokens", "seconds" …


class PolicyClient:
    """The methods of a policy. Those written here are of a policy that never changes.

    ``learner/learner.py`` (trained), ``config/followers.py`` (averages, snapshots) and
    ``distributed/policy_handles.py`` implement them in the process that has the model;
    ``distributed/remote_policies.py`` calls another process."""

    @property
    def version(self) -> int:
        """Number of changes of the weights; for a learner its optimizer steps, without skipped ones."""
        return 0

    def update(self, terms: Sequence[LossTerm]) -> UpdateReport:
        """Make at most one optimiser step, on the sum of all terms, each divided by its own totals."""
        raise self._unsupported_error("is not trained")

    def reset_optimizer(self) -> None:
        """Make the next update, and its warm-up of the learning rate, as with a new optimiser. Only between updates."""

    def reset_weights(self) -> bool:
        """Restore the initial weights, if an iteration is over and the policy is configured so. Returns whether it did.
        Only between updates."""
        return False

    def logprobs(
        self, sequences: Sequences, *, temperature: float = 1.0, context_tokens: Sequence[ContextTokens] = ()
    ) -> list[torch.Tensor]:
        """Log-probabilities, or a critic's values, float32 ``[T]``, for each (prompt_ids [P], token_ids [T]), without
        gradient. ``context_tokens``: of each sequence; () if none has any."""
        raise self._unsupported_error("has no probabilities")

    def weights(self) -> Iterable[tuple[str, torch.Tensor]]:
        """(name, tensor) of the weights that may have changed, for an engine that holds its own."""
        return ()

    def follow(self, source: PolicyClient, planned: int) -> bool:
        """Take over weights from ``source``, which has made one more of its ``planned`` updates. Returns whether own
        weights changed."""
        raise self._unsupported_error("follows nobody")

    def state(self) -> State:
        """The JSON state that a checkpoint holds next to ``tensors``, for a policy that changes."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of a checkpoint: weights under ``model.``, moments of the optimiser under ``optimizer.``."""
        return {}

    def load(self, state: State, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore what ``state`` and ``tensors`` returned. Raises StateError for missing and unknown names."""
        # A policy that never changes has neither: any name in them is an unknown one.
        take_fields("a policy that does not change", state)
        take_fields("tensors of a policy that does not change", tensors)

    def scoring_limit(self) -> int | None:
        """Most tokens of a scoring pass, where that was lowered because memory ran out; None where it was not, and
        where ``state`` has the limit."""
        return None

    def set_scoring_limit(self, tokens: int | None) -> None:
        """Set what ``scoring_limit`` returned; None for the configured limit."""

    def _unsupported_error(self, why: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} {why}; let another policy do that", code="E_ALGORITHM_CANNOT")


# -- Checks of what an algorithm, or a function that one is made of, returns: it may be a user's own. Without them a
# wrong shape shows far from its cause, as an error of an operation on tensors, or never. Each of them raises
# ConfigError, one line that names the function and what it was to return.


ALGORITHM_METHODS = ("needs", "credit", "loss_of")


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the class of an object that is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def kind_text(value: Any) -> str:
    """What a value is, in few words: a tensor by its shape, all else by its type."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, tuple):
        return f"({', '.join(map(kind_text, value))})" if value else "()"
    return "None" if value is None else f"a {type(value).__name__}"


def check_row(function: Callable[..., Any], row: Any, length: int, what: str) -> torch.Tensor:
    """A row of floating-point numbers, one for each of ``length`` things. ``what``: those things, for the message."""
    is_row = isinstance(row, torch.Tensor) and row.is_floating_point() and tuple(row.shape) == (length,)
    if not is_row:
        raise ConfigError(
            f"{name_of(function)} returned {kind_text(row)}; expected a tensor of floating-point numbers of shape "
            f"({length},), one for each of the {what} that it was given",
            code="E_ADVANTAGE_RETURNED",
        )
    return row


def check_edited(edit: Callable[..., Any], returned: Any) -> tuple[list[Sample], dict[str, int]]:
    """What an edit of samples returns: the samples that are kept, and how many were left out by reason."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not (is_pair and isinstance(returned[0], Sequence) and isinstance(returned[1], Mapping)):
        raise ConfigError(
            f"{name_of(edit)} returned {kind_text(returned)}; expected (the samples that are kept, "
            "{reason: number of samples left out})",
            code="E_EDIT_RETURNED",
        )
    return list(returned[0]), dict(returned[1])


def check_token_losses(
    loss: Callable[..., Any], returned: Any, mask: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What the loss of each token returns: losses of the shape of ``mask`` ``[B, T]``, and metrics of the same."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    is_shaped = is_pair and isinstance(returned[0], torch.Tensor) and returned[0].shape == mask.shape
    if not (is_shaped and isinstance(returned[1], Mapping)):
        raise ConfigError(
            f"loss {name_of(loss)} returned {kind_text(returned)}; expected (the loss of each token, a tensor of shape "
            f"{tuple(mask.shape)}; a dict of metrics of the same shape, which may be empty)",
            code="E_TOKEN_LOSS_RETURNED",
        )
    wrong = [name for name, value in returned[1].items() if getattr(value, "shape", None) != mask.shape]
    if wrong:
        raise ConfigError(
            f"loss {name_of(loss)} returned the metric {wrong[0]!r} as {kind_text(returned[1][wrong[0]])}; expected a "
            f"tensor of shape {tuple(mask.shape)}, one value for each token",
            code="E_TOKEN_LOSS_RETURNED",
        )
    return returned


def check_algorithm(where: str, algorithm: Any) -> Needs:
    """Raise ConfigError for what is no algorithm, such as the function ``GRPO`` that was not called; returns what an
    algorithm needs."""
    missing = [method for method in ALGORITHM_METHODS if not callable(getattr(algorithm, method, None))]
    if missing:
        given = f"{kind_text(algorithm)}, without {' and '.join(missing)}"
        if callable(algorithm):
            given = f"the function {name_of(algorithm)}, which was not called"
        raise ConfigError(
            f"{where}: algorithm is {given}; expected an algorithm, "
            "such as GRPO(reward_weights={OUTCOME: 1.0}), or an object with the methods needs, credit and loss_of",
            code="E_NOT_ALGORITHM",
        )
    needs = algorithm.needs()
    if not isinstance(needs, Needs):
        raise ConfigError(
            f"{where}: needs() of {type(algorithm).__name__} returned {kind_text(needs)}; expected "
            "Needs(reward_signals=(OUTCOME,), …) of cotrain.algorithms.contract",
            code="E_NOT_NEEDS",
        )
    return needs


def check_credit(algorithm: Algorithm, returned: Any) -> tuple[Credit, State]:
    """What ``credit`` returns: samples with advantages, and the state for the next batch."""
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not (is_pair and isinstance(returned[0], Credit) and isinstance(returned[1], dict)):
        raise ConfigError(
            f"credit of {type(algorithm).__name__} returned {kind_text(returned)}; expected (Credit(samples=…, "
            "metrics=…), the state for the next batch, a dict, which is {} where nothing is remembered)",
            code="E_CREDIT_RETURNED",
        )
    return returned


def fields_of_object(thing: object) -> dict[str, Any]:
    """The fields of an object as they are now, for ``check_unchanged``."""
    return dict(getattr(thing, "__dict__", {}))


def check_unchanged(algorithm: Algorithm, fields_before: Mapping[str, Any], state: State) -> None:
    """Raise ConfigError for an algorithm that set a field of its own in ``credit``: no checkpoint has its fields, so a
    resumed run would begin with the old value. A field may be a copy of a number or a text in ``state``, which a
    checkpoint has.

    Args:
        fields_before: what ``fields_of_object`` returned before ``credit``.
        state: what ``credit`` was given.
    """
    saved_values = [value for value in state.values() if isinstance(value, int | float | str)]
    for name, value in fields_of_object(algorithm).items():
        has_changed = name in fields_before and fields_before[name] is not value
        is_saved = isinstance(value, int | float | str) and value in saved_values
        if has_changed and not is_saved:
            raise ConfigError(
                f"credit of {type(algorithm).__name__} changed self.{name}, which no checkpoint holds; what it "
                f"remembers is its state: read state.get({name!r}), and return the new one as the second value",
                code="E_ALGORITHM_CHANGED_ITSELF",
            )


def check_loss_value(algorithm: Algorithm, returned: Any) -> Loss:
    """What ``loss_of`` returns: one number, by which the weights can be changed."""
    if not isinstance(returned, Loss):
        raise ConfigError(
            f"loss_of of {type(algorithm).__name__} returned {kind_text(returned)}; expected "
            "Loss(value=…, sums={}) of cotrain.algorithms.contract",
            code="E_LOSS_RETURNED",
        )
    value = returned.value
    if not isinstance(value, torch.Tensor) or value.dim():
        raise ConfigError(
            f"loss_of of {type(algorithm).__name__} returned a loss that is {kind_text(value)}; expected one "
            "number, the sum over tokens divided by the totals",
            code="E_LOSS_RETURNED",
        )
    if not value.requires_grad:
        raise ConfigError(
            f"loss_of of {type(algorithm).__name__} returned a loss that does not depend on the weights, so that "
            "nothing can be learned from it; compute it from `predictions`, without detach() and without numpy",
            code="E_LOSS_WITHOUT_GRADIENT",
        )
    return returned
