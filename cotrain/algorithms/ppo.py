"""PPO (arXiv 1707.06347) with a critic: generalised advantage estimation (GAE, arXiv 1506.02438).

Two objectives train two policies: ``PPO`` trains the one that samples, ``ValueRegression`` the critic, which never
samples. Both read the critic's values from before the update.

One critic predicts one return, so all rewards are added up: each is placed on the last token of the answer, or of its
span, and multiplied by its weight.

Left out: a KL penalty inside the reward (use ``kl=``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotrain.algorithms.contract import Batch, BatchTotals, Credit, Loss, MicroBatch, Needs, Sample
from cotrain.algorithms.functional.advantages import whiten
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.reductions import Normalise, masked_sum, reduce_loss
from cotrain.algorithms.functional.values import gae, value_loss
from cotrain.algorithms.policy_gradient import (
    PolicyLossOptions,
    check_kl_term,
    check_loss,
    has_other_terms,
    uses_ratio,
)
from cotrain.algorithms.samples import (
    RewardWeights,
    StepScale,
    check_rewards,
    check_step_scale,
    place_rewards,
    put_on_tokens,
    trajectories_of,
    usable_samples,
    weight_at,
)
from cotrain.core.errors import ConfigError
from cotrain.core.types import State


@dataclass(frozen=True, kw_only=True)
class PPO(PolicyLossOptions):
    """Advantages and loss of the policy."""

    reward_weights: RewardWeights
    values: str = "critic"  # policy that is the critic
    step_scale: StepScale = "1/K"
    gamma: float = 1.0
    lam: float = 0.95
    whiten: bool = True  # normalise advantages over all tokens of the batch

    def __post_init__(self) -> None:
        _check_settings(type(self).__name__, self.reward_weights, self.step_scale, self.gamma, self.lam)
        check_loss(self.loss, self.normalise, self.constant)
        check_kl_term(type(self).__name__, self.kl)

    def needs(self) -> Needs:
        return Needs(
            reward_signals=tuple(self.reward_weights),
            off_policy_corrected=uses_ratio(self.loss),
            value_policy=self.values,
            reference_policy=self.kl.to if self.kl else None,
            entropy=self.entropy != 0.0,
            zero_advantage_has_gradient=has_other_terms(self.loss, self.kl, self.entropy),
        )

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, dropped = usable_samples(batch.samples, self.reward_weights)
        token_rewards = _token_rewards(samples, batch, self.reward_weights, self.step_scale)
        advantages: list[torch.Tensor] = []  # [T] of each sample
        for sample, rewards in zip(samples, token_rewards, strict=True):
            values = old_values_of(sample, self.values)
            sample_advantages, _ = gae(rewards, values, gamma=self.gamma, lam=self.lam)
            advantages.append(sample_advantages)

        metrics = _reward_metrics(samples, token_rewards)
        if advantages:
            all_advantages = torch.cat(advantages)
            metrics["advantage"] = float(all_advantages.abs().mean())
            if self.whiten:
                lengths = [len(part) for part in advantages]
                advantages = list(whiten(all_advantages).split(lengths))

        learned = tuple(
            replace(sample, advantages=part.to(torch.float32), old_values=None)
            for sample, part in zip(samples, advantages, strict=True)
        )
        return Credit(samples=learned, metrics=metrics, dropped=dropped), state


@dataclass(frozen=True, kw_only=True)
class ValueRegression:
    """Regression of the critic towards λ-returns.

    With λ = 1 and no clipping the target is the plain discounted reward-to-go, which needs no old values.
    """

    reward_weights: RewardWeights
    values: str | None = "critic"  # the critic's own policy; None: old values are not needed
    step_scale: StepScale = "1/K"
    gamma: float = 1.0
    lam: float = 1.0
    clip: float | None = None  # most that a value may move in one update
    normalise: Normalise = "token"

    def __post_init__(self) -> None:
        _check_settings(type(self).__name__, self.reward_weights, self.step_scale, self.gamma, self.lam)
        if self.values is None and (self.lam != 1.0 or self.clip is not None):
            raise ConfigError(
                "ValueRegression: lam < 1 and clip need old values; set values to the critic's policy",
                code="E_OLD_VALUES_NEEDED",
            )
        if self.clip is not None and not self.clip > 0.0:
            raise ConfigError(f"ValueRegression: clip {self.clip} must be positive", code="E_LOSS_RANGE")
        if self.normalise not in ("token", "sequence"):
            raise ConfigError(
                f"ValueRegression: normalise {self.normalise!r}, expected 'token' or 'sequence'", code="E_NORMALISE"
            )

    def needs(self) -> Needs:
        return Needs(reward_signals=tuple(self.reward_weights), on_policy=False, value_policy=self.values, head="value")

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, dropped = usable_samples(batch.samples, self.reward_weights)
        token_rewards = _token_rewards(samples, batch, self.reward_weights, self.step_scale)
        return self.regress(samples, token_rewards, dropped), state

    def regress(
        self, samples: Sequence[Sample], token_rewards: Sequence[torch.Tensor], dropped: dict[str, int]
    ) -> Credit:
        """The samples with λ-returns as targets. ``token_rewards``: of each sample, the reward after each token,
        float64 ``[T]``."""
        learned: list[Sample] = []
        squared_errors: list[torch.Tensor] = []
        all_returns: list[torch.Tensor] = []
        for sample, rewards in zip(samples, token_rewards, strict=True):
            old = torch.zeros_like(rewards) if self.values is None else old_values_of(sample, self.values)
            _, returns = gae(rewards, old, gamma=self.gamma, lam=self.lam)
            learned.append(replace(sample, targets=returns.float(), old_values=old.float(), temperature=1.0))
            squared_errors.append((returns - old).square())
            all_returns.append(returns)

        metrics = _reward_metrics(samples, token_rewards)
        # Explained variance 1 − E(R − V)² / Var R: 1 for a perfect critic, 0 for one that predicts the mean.
        if all_returns and self.values is not None:
            variance = float(torch.cat(all_returns).var(correction=0))
            if variance > 0.0:
                metrics["explained_variance"] = 1.0 - float(torch.cat(squared_errors).mean()) / variance
        return Credit(samples=tuple(learned), metrics=metrics, dropped=dropped)

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        if batch.targets is None:
            raise ConfigError(
                "ValueRegression: the samples have no targets; they were made by another algorithm",
                code="E_TARGETS_MISSING",
            )
        losses = value_loss(predictions, batch.targets, old=batch.old_values, clip=self.clip)
        value = reduce_loss(
            losses,
            batch.mask,
            normalise=self.normalise,
            tokens=totals.tokens,
            sequences=totals.sequences,
            weights=batch.weights,
        )
        error = (predictions - batch.targets).abs()
        return Loss(value=value, sums={"value_error": masked_sum(error.detach(), batch.mask)})


def _token_rewards(
    samples: Sequence[Sample], batch: Batch, reward_weights: RewardWeights, scale: StepScale
) -> list[torch.Tensor]:
    """The reward after each token, float64 ``[T]``, of each sample."""
    token_rewards = [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
    # Per-span signals first: the sum below has the same order, and so the same bits, every time.
    spans_first = sorted(reward_weights, key=lambda signal: signal.per == "answer")
    for signal in spans_first:
        weight = weight_at(reward_weights[signal], batch.updates, batch.planned)
        channel = place_rewards(samples, signal, scale)
        for total, part in zip(token_rewards, put_on_tokens(samples, channel, channel.unique_values), strict=True):
            total += weight * part
    return token_rewards


def old_values_of(sample: Sample, policy: str) -> torch.Tensor:
    """The critic's values from before the update, float64 ``[T]``. Raises ConfigError if a token has none."""
    values = sample.old_values
    if values is None or len(values) != len(sample.token_ids):
        where = f"sample {sample.key} of {len(sample.token_ids)} tokens"
        raise ConfigError(
            f"{where} has {0 if values is None else len(values)} values of policy {policy!r}", code="E_VALUES_MISSING"
        )
    return values.to(torch.float64)


def _reward_metrics(samples: Sequence[Sample], token_rewards: Sequence[torch.Tensor]) -> dict[str, float]:
    """``return``: the mean over trajectories of the mean return of their samples."""
    metrics = {"traces": float(len(token_rewards))}
    if not token_rewards:
        return metrics
    trajectories, count = trajectories_of(samples)
    sizes = torch.bincount(trajectories, minlength=count).tolist()  # samples of each trajectory
    shares = [
        rewards.sum() / sizes[trajectory]
        for trajectory, rewards in zip(trajectories.tolist(), token_rewards, strict=True)
    ]
    metrics["return"] = float(sum(shares)) / count
    return metrics


def _check_settings(name: str, rewards: RewardWeights, step_scale: StepScale, gamma: float, lam: float) -> None:
    check_rewards(name, rewards)
    check_step_scale(step_scale)
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ConfigError(f"{name}: gamma {gamma} and lam {lam} must be in [0, 1]", code="E_GAE_RANGE")
