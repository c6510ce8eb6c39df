"""Losses of a policy on a micro-batch. Each is a function of log-probabilities and batch, chosen by passing it.

    Clipped(low, high)           −min(r A, clip(r, 1 − low, 1 + high) A)       PPO, GRPO; low ≠ high: DAPO
    ClippedSequence(low, high)   the same with r the mean ratio of a sequence  GSPO, arXiv 2507.18071
    ScoreFunction(cap)           −A log π, times min(r, cap) where cap is set   REINFORCE
    Shaped(gamma, otherwise)     −A π / (π + γ) where another prompt was answered, elsewhere another loss

``policy_loss`` adds what they have in common, with the sample weight w on the policy gradient alone:

    L = reduce(w · l_pg) + β · reduce(KL estimate) − η · reduce(H)

Old log-probabilities are those of the sampler. In the first update of a batch the policy that samples is the policy
that learns, and r = 1 up to rounding. After it (``updates_per_batch``), and with a lag (``trainer/async_rollouts.py``),
r corrects for the updates between them, and a loss without r is refused. ``sampler_trainer_diff`` is the distance of
the two; what is too far off is left out where an engine holds its own. Not done: recomputing old log-probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch

from cotrain.algorithms.contract import Loss, MicroBatch, Normaliser, Sample
from cotrain.algorithms.functional.policy_losses import (
    ESTIMATORS,
    Estimator,
    clipped_ratio_loss,
    kl_estimate,
    reinforce_loss,
    sequence_log_ratio,
    shaped_loss,
    token_log_ratio,
    truncated_importance,
)
from cotrain.algorithms.functional.reductions import NORMALISES, Normalise, masked_sum, reduce_loss
from cotrain.core.errors import ConfigError, UnknownName

Observed = dict[str, torch.Tensor]  # [B, T] each, for the metrics: "clip_fraction", "ratio", "sampler_trainer_diff"
TokenLoss = Callable[[torch.Tensor, MicroBatch], tuple[torch.Tensor, Observed]]  # log π [B, T], batch → loss [B, T]


def _clip_metrics(
    logprobs: torch.Tensor, batch: MicroBatch, log_ratio: torch.Tensor, clipped: torch.Tensor
) -> Observed:
    return {
        "clip_fraction": clipped,
        "ratio": log_ratio.exp(),
        "sampler_trainer_diff": (logprobs - batch.sampler_logprobs).abs(),
        "sampler_trainer_kl": kl_estimate(batch.sampler_logprobs, logprobs, "k3"),
    }


def _check_clip(name: str, low: float, high: float) -> None:
    if not (0.0 <= low <= 1.0 and 0.0 <= high < math.inf):
        raise ConfigError(f"{name}: clip ({low}, {high}); expected low in [0, 1] and high of at least 0")


@dataclass(frozen=True, slots=True)
class Clipped:
    """The clipped ratio of each token."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        _check_clip(type(self).__name__, self.low, self.high)

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        log_ratio = token_log_ratio(logprobs, batch.sampler_logprobs)
        losses, clipped = clipped_ratio_loss(log_ratio, batch.advantages, low=self.low, high=self.high)
        return losses, _clip_metrics(logprobs, batch, log_ratio, clipped)


CLIPPED = Clipped()  # as GRPO and PPO have it


@dataclass(frozen=True, slots=True)
class ClippedSequence:
    """The clipped ratio of each sequence, at all of its tokens."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _check_clip(type(self).__name__, self.low, self.high)

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        log_ratio = sequence_log_ratio(logprobs, batch.sampler_logprobs, batch.mask)
        losses, clipped = clipped_ratio_loss(log_ratio, batch.advantages, low=self.low, high=self.high)
        return losses, _clip_metrics(logprobs, batch, log_ratio, clipped)


@dataclass(frozen=True, slots=True)
class ScoreFunction:
    """The plain policy gradient; ``cap`` truncates the importance weight, None leaves it at 1."""

    cap: float | None = None

    def __post_init__(self) -> None:
        if self.cap is not None and not self.cap > 0.0:
            raise ConfigError(f"ScoreFunction: cap is {self.cap}, expected a positive one, or None")

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        losses = reinforce_loss(logprobs, batch.advantages)
        if self.cap is not None:
            losses = losses * truncated_importance(logprobs, batch.sampler_logprobs, cap=self.cap)
        log_ratio = token_log_ratio(logprobs, batch.sampler_logprobs)
        return losses, _clip_metrics(logprobs, batch, log_ratio, torch.zeros_like(logprobs))


@dataclass(frozen=True, slots=True)
class Shaped:
    """Samples that answered another prompt have the shaped loss and neither ratio nor gap, as nobody sampled them
    so."""

    gamma: float
    otherwise: TokenLoss = field(default_factory=ScoreFunction)

    def __post_init__(self) -> None:
        if not self.gamma > 0.0:
            raise ConfigError(f"Shaped: gamma is {self.gamma}, expected γ > 0, such as 0.1")

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        if batch.off_policy is None:
            return self.otherwise(logprobs, batch)
        elsewhere = batch.off_policy[:, None].expand_as(logprobs)
        sampler_logprobs = torch.where(elsewhere, logprobs.detach(), batch.sampler_logprobs)
        losses, observed = self.otherwise(logprobs, replace(batch, sampler_logprobs=sampler_logprobs))
        return torch.where(elsewhere, shaped_loss(logprobs, batch.advantages, gamma=self.gamma), losses), observed


@dataclass(frozen=True, slots=True)
class Kl:
    """A pull towards a reference policy."""

    reference: str  # policy whose log-probabilities are scored
    coefficient: float = 1e-3  # β
    estimator: Estimator = "k3"

    def __post_init__(self) -> None:
        if self.estimator not in ESTIMATORS:
            raise UnknownName("KL estimator", self.estimator, ESTIMATORS)
        if not 0.0 <= self.coefficient < math.inf:
            raise ConfigError(
                f"Kl: the coefficient is {self.coefficient}, expected a number of at least 0; a negative one would pay "
                "for running away from the reference"
            )
        if self.estimator == "k1":
            raise ConfigError("Kl: the gradient of k1 has expectation zero; use 'k3' (as GRPO) or 'k2'")


def pull_to(reference: str, coefficient: float) -> Kl | None:
    """``Kl``, or None where the coefficient is 0: then no reference is scored."""
    return Kl(reference, coefficient) if coefficient else None


def check_loss(loss: TokenLoss, normalise: Normalise = "token", constant: float | None = None) -> None:
    """Raise ConfigError unless ``policy_loss`` can work with these."""
    if not callable(loss):
        raise ConfigError(
            f"loss is {loss!r}, expected a function of algorithms/policy_loss.py, such as Clipped(0.2, 0.2)"
        )
    if normalise not in NORMALISES:
        raise UnknownName("normalise", normalise, NORMALISES)
    if (normalise == "constant") != (constant is not None):
        raise ConfigError("normalise='constant' and constant=<tokens per sequence> belong together")
    if constant is not None and not constant > 0.0:
        raise ConfigError(f"constant is {constant}, expected tokens per sequence, such as max_tokens")


def uses_ratio(loss: TokenLoss) -> bool:
    """Does it weigh samples by how much likelier they are to the learner than to whoever drew them? A user's own is
    taken to."""
    if isinstance(loss, Shaped):
        return uses_ratio(loss.otherwise)
    return not (isinstance(loss, ScoreFunction) and loss.cap is None)


def has_other_terms(loss: TokenLoss, kl: Kl | None, bonus: float) -> bool:
    """May a sample without any advantage have a gradient? By KL or entropy, or by a user's own loss."""
    own = loss.otherwise if isinstance(loss, Shaped) else loss
    known = isinstance(own, Clipped | ClippedSequence | ScoreFunction)
    return not known or bool(bonus) or (kl is not None and kl.coefficient != 0.0)


def policy_loss(
    logprobs: torch.Tensor,
    entropy: torch.Tensor | None,
    batch: MicroBatch,
    normaliser: Normaliser,
    *,
    loss: TokenLoss,
    normalise: Normalise = "token",
    constant: float | None = None,
    kl: Kl | None = None,
    bonus: float = 0.0,
) -> Loss:
    """One micro-batch's share (equation at the top), and sums over its tokens for the metrics.

    Args:
        logprobs: ``[B, T]`` log π of the sampled tokens.
        entropy: ``[B, T]`` of the distribution that each was drawn from; needed when its coefficient is not zero.
        normalise, constant: as in ``functional.reductions.reduce_loss``.
        bonus: η, the coefficient of the entropy.

    Metrics: "clip_fraction", "ratio", "sampler_trainer_diff" (|log π_sampler − log π|), "sampler_trainer_kl" (k3 of the
    two), "surprisal" (−log π, whose mean on policy estimates the entropy), "kl" and "entropy" where they are computed,
    and "mismatch_masked" where samples have bounds (``policy_loss.py``).
    """
    mask = batch.mask

    def reduce_term(per_token: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return reduce_loss(
            per_token,
            mask,
            normalise=normalise,
            tokens=normaliser.tokens,
            sequences=normaliser.sequences,
            constant=constant,
            weights=weights,
        )

    left_out = outside_bounds(logprobs, batch)
    losses, observed = loss(logprobs, batch)
    if left_out is not None:
        losses, _ = loss(logprobs, with_unit_ratio(batch, left_out, logprobs))
        losses = losses.masked_fill(left_out[:, None], 0.0)
        observed["mismatch_masked"] = left_out[:, None].expand_as(mask).to(mask)
    value = reduce_term(losses, batch.weights)
    observed["surprisal"] = -logprobs
    if kl is not None:
        if batch.reference is None:
            raise ConfigError(f"the samples lack log-probabilities of {kl.reference!r}, the reference of the KL term")
        observed["kl"] = kl_estimate(logprobs, batch.reference, kl.estimator)
        value = value + kl.coefficient * reduce_term(observed["kl"])
    if entropy is not None:
        observed["entropy"] = entropy
        value = value - bonus * reduce_term(entropy)
    elif bonus:
        raise ConfigError(f"an entropy bonus of {bonus} needs the entropy of each token; none was given")
    return Loss(value=value, sums={name: masked_sum(x.detach(), mask) for name, x in observed.items()})


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """Settings of ``policy_loss``, of an algorithm that learns by it."""

    loss: TokenLoss = CLIPPED
    normalise: Normalise = "token"
    constant: float | None = None  # tokens per sequence, with normalise="constant"
    kl: Kl | None = None
    entropy: float = 0.0  # coefficient of the bonus

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return policy_loss(
            predictions,
            entropy,
            batch,
            normaliser,
            loss=self.loss,
            normalise=self.normalise,
            constant=self.constant,
            kl=self.kl,
            bonus=self.entropy,
        )


# -- An engine that holds weights of its own computes log-probabilities a little other than the learner, or, when
# something is wrong, very much so. What is made of that difference:
#
#     k3 = r − 1 − log r, r = π_trainer / π_sampler       at each sampled token; its mean estimates KL
#     r̄ = exp(mean over a sample's tokens of log r)       a sample with r̄ outside of its bounds has no policy gradient
#
# Bounds are loose: they leave out what was sampled from other weights, and rounding never (in bfloat16 its r̄ was
# within 1 ± 0.02, docs/cluster-seen.md). What is left out still counts in the tokens and sequences that the loss is
# divided by: its gradient is zero and not unknown. Samples that answered another prompt have no sampler beside them.


Bounds = tuple[float, float]  # of r̄
LOOSE: Bounds = (0.5, 2.0)


def with_bounds(samples: Iterable[Sample], bounds: Bounds | None) -> tuple[Sample, ...]:
    """The samples with these bounds; None: as they are."""
    return tuple(samples) if bounds is None else tuple(replace(sample, bounds=bounds) for sample in samples)


def outside_bounds(logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor | None:
    """``[B]`` bool, True where r̄ is outside of the bounds; None where there are none. ``logprobs`` ``[B, T]``."""
    if batch.bounds is None:
        return None
    mean = sequence_log_ratio(logprobs.detach(), batch.sampler_logprobs, batch.mask)[:, 0]
    low, high = batch.bounds.to(mean).log().unbind(-1)
    outside = ~((low <= mean) & (mean <= high))
    return outside if batch.off_policy is None else outside & ~batch.off_policy


def with_unit_ratio(batch: MicroBatch, left_out: torch.Tensor, logprobs: torch.Tensor) -> MicroBatch:
    """The batch with r = 1 in the samples that are left out, so that their losses are finite. ``left_out`` [B] bool."""
    sampler = torch.where(left_out[:, None], logprobs.detach(), batch.sampler_logprobs)
    return replace(batch, sampler_logprobs=sampler)


def bounds_of(samples: Iterable[Sample]) -> torch.Tensor | None:
    """``[B, 2]``; None where no sample has any."""
    found = [sample.bounds for sample in samples]
    if not any(found):
        return None
    return torch.tensor([bounds or (0.0, math.inf) for bounds in found], dtype=torch.float64)
