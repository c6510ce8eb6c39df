"""The loss of a policy on a micro-batch: clipped or plain policy gradient, KL to a reference, entropy.

    L = reduce(w · l_pg) + β · reduce(KL estimate) − η · reduce(H)

The sample weight w (class balance) multiplies the policy gradient alone. All algorithms that learn from advantages
share these settings and this function. Where ``shaping`` is γ, samples that answered another prompt than the one they are
learned under have l_pg = −A · π / (π + γ).

Old log-probabilities are those of the sampler: one update is made from each batch, so the policy that samples is the
policy that learns, and r = 1 up to rounding. ``sampler_gap`` measures that rounding, and shows at once when a sampler
uses stale weights. Left out: several epochs over one batch, and recomputing old log-probabilities before the update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.functional.kl import ESTIMATORS, Estimator, kl_estimate
from cotrain.functional.policy_losses import (
    clipped_ratio,
    reinforce,
    sequence_log_ratio,
    shaped,
    token_log_ratio,
    truncated_importance,
)
from cotrain.functional.reductions import NORMALISES, Normalise, masked_sum, reduce_loss
from cotrain.learn.contract import Loss, MicroBatch, Normaliser

Ratio = Literal["token", "sequence"]


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
                f"Kl: the coefficient is {self.coefficient}, expected a number of at least 0; a negative one would pay for "
                "running away from the reference"
            )
        if self.estimator == "k1":
            raise ConfigError("Kl: the gradient of k1 has expectation zero; use 'k3' (as GRPO) or 'k2'")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTerm:
    """Settings of the loss, validated once."""

    clip: tuple[float, float] | None  # (low, high); None is plain REINFORCE
    ratio: Ratio = "token"  # "sequence" is GSPO's
    truncate: float | None = None  # cap of the importance weight of REINFORCE; None for weight 1
    shaping: float | None = None  # γ of π / (π + γ), the loss of off-policy samples; None treats them like the others
    normalise: Normalise = "token"
    constant: float | None = None  # tokens that stand for a sequence, with normalise="constant"
    kl: Kl | None = None
    entropy: float = 0.0  # η

    def __post_init__(self) -> None:
        if self.normalise not in NORMALISES:
            raise UnknownName("normalise", self.normalise, NORMALISES)
        if self.ratio not in ("token", "sequence"):
            raise UnknownName("ratio", self.ratio, ("token", "sequence"))
        if (self.normalise == "constant") != (self.constant is not None):
            raise ConfigError("normalise='constant' and constant=<tokens per sequence> belong together")
        if self.constant is not None and not self.constant > 0.0:
            raise ConfigError(f"constant is {self.constant}, expected tokens per sequence, such as max_tokens")
        if self.clip is not None:
            low, high = self.clip
            if not (0.0 <= low <= 1.0 and high >= 0.0):
                raise ConfigError(f"clip={self.clip}: expected (low in [0, 1], high ≥ 0)")
            if self.truncate is not None:
                raise ConfigError("truncate is the importance weight of plain REINFORCE; set clip=None with it")
        elif self.ratio == "sequence":
            raise ConfigError("ratio='sequence' needs clip=(low, high)")
        if self.truncate is not None and not self.truncate > 0.0:
            raise ConfigError(f"truncate is {self.truncate}, expected a positive cap")
        if self.shaping is not None and not self.shaping > 0.0:
            raise ConfigError(f"shaping is {self.shaping}, expected γ > 0, such as 0.1, or None")


def policy_loss(
    term: PolicyTerm, logprobs: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
) -> Loss:
    """One micro-batch's share (equation at the top), and sums over its tokens for the metrics.

    Args:
        logprobs: ``[B, T]`` log π of the sampled tokens.
        entropy: ``[B, T]`` of the distribution that each was drawn from; needed when its coefficient is not zero.

    Metrics: "clip_fraction", "ratio", "sampler_gap" (|log π_sampler − log π|), "surprisal" (−log π, whose mean on
    policy estimates the entropy), and "kl" and "entropy" where they are computed.
    """
    mask = batch.mask

    def share(per_token: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return reduce_loss(
            per_token,
            mask,
            normalise=term.normalise,
            tokens=normaliser.tokens,
            sequences=normaliser.sequences,
            constant=term.constant,
            weights=weights,
        )

    behaviour, elsewhere = batch.behaviour, None
    if term.shaping is not None and batch.off_policy is not None:
        elsewhere = batch.off_policy[:, None].expand_as(logprobs)
        behaviour = torch.where(elsewhere, logprobs.detach(), behaviour)  # no ratio, no gap: nobody sampled them so
    if term.ratio == "sequence":
        log_ratio = sequence_log_ratio(logprobs, behaviour, mask)
    else:
        log_ratio = token_log_ratio(logprobs, behaviour)
    if term.clip is not None:
        losses, clipped = clipped_ratio(log_ratio, batch.advantages, low=term.clip[0], high=term.clip[1])
    else:
        losses, clipped = reinforce(logprobs, batch.advantages), torch.zeros_like(logprobs)
        if term.truncate is not None:
            losses = losses * truncated_importance(logprobs, behaviour, cap=term.truncate)
    if elsewhere is not None and term.shaping is not None:
        losses = torch.where(elsewhere, shaped(logprobs, batch.advantages, gamma=term.shaping), losses)
    value = share(losses, batch.weights)
    observed = {
        "clip_fraction": clipped,
        "ratio": log_ratio.exp(),
        "sampler_gap": (logprobs - behaviour).abs(),
        "surprisal": -logprobs,
    }
    if term.kl is not None:
        if batch.reference is None:
            raise ConfigError(
                f"the samples lack log-probabilities of {term.kl.reference!r}, the reference of the KL term"
            )
        observed["kl"] = kl_estimate(logprobs, batch.reference, term.kl.estimator)
        value = value + term.kl.coefficient * share(observed["kl"])
    if entropy is not None:
        observed["entropy"] = entropy
        value = value - term.entropy * share(entropy)
    elif term.entropy:
        raise ConfigError(f"an entropy bonus of {term.entropy} needs the entropy of each token; none was given")
    return Loss(value=value, sums={name: masked_sum(x.detach(), mask) for name, x in observed.items()})
