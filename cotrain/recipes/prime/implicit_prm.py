"""PRIME (arXiv 2502.01456): process rewards without process labels, from a model trained on outcomes alone.

An *implicit* process reward model φ is a language model that learns without speaking. Its reward for a token of an
answer is a log-ratio, and the sum of them over an answer is trained to tell right from wrong:

    r_t = log π_φ(y_t | ·) − log π_ref(y_t | ·)              loss  CE(σ(β Σ_t r_t), outcome)

``ImplicitPrm`` is φ's objective, ``Prime`` the generator's, ``PrimeValues`` that of PPO's critic. As in the authors'
code: β scales the loss and not the rewards; the rewards of the whole batch are divided by the largest |Σ_{u≥t} r_u|, so
that no return exceeds 1. Groups of which too few or too many answers are right are left out (0.2 to 0.8). How answers
are compared (their §4.4):

    rloo         each channel has its leave-one-out baseline, the process channel that of the *mean* token reward of the
                 others; returns of both are added and whitened over the batch
    reinforce++  no baseline within a group; whitened over the batch (arXiv 2501.03262)
    grpo         both are standardised within their group, the process channel over all of its tokens (DeepSeekMath,
                 arXiv 2402.03300, §4.1.3), and not over the batch
    ppo          no comparison: the sum of both, token by token with the outcome on the last one, minus what a critic
                 predicts, by GAE (``algorithms/ppo.py``); whitened over the batch

Left out: the buffer that is refilled until a batch is full (the batch is smaller instead), and one forward pass for
scoring and updating φ (here two).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cotrain.algorithms.contract import Batch, Credit, Loss, MicroBatch, Needs, Normaliser, Sample
from cotrain.algorithms.functional.credit import group_mean_std, leave_one_out, reward_to_go, whiten
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.likelihood import outcome_cross_entropy
from cotrain.algorithms.functional.reductions import masked_sum
from cotrain.algorithms.functional.values import gae
from cotrain.algorithms.policy_gradient import PPO_CLIP, KLPenalty, check_loss, has_other_terms, policy_loss, uses_ratio
from cotrain.algorithms.policy_loss import TokenLoss
from cotrain.algorithms.ppo import ValueRegression, old_values_of
from cotrain.algorithms.samples import first_samples, index_groups, trajectories_of, usable_samples, value_of
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import OUTCOME, Signal
from cotrain.core.types import State

PrimeEstimator = Literal["rloo", "reinforce++", "grpo", "ppo"]


@dataclass(frozen=True, kw_only=True)
class ImplicitPrm:
    """φ's side: learns from the generator's answers and their outcomes."""

    reference: str = "reference"
    outcome: Signal = OUTCOME
    beta: float = 0.05

    def needs(self) -> Needs:
        return Needs(reward_signals=(self.outcome,), on_policy=False, reference=self.reference)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        graded, dropped = usable_samples(batch.samples, (self.outcome,))
        samples = tuple(replace(s, targets=torch.full((len(s.token_ids),), value_of(s, self.outcome))) for s in graded)
        return Credit(samples=samples, metrics={"traces": float(len(graded))}, dropped=dropped), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        assert batch.targets is not None and batch.reference is not None  # credit and the reference pass set them
        outcomes = batch.targets[:, 0]
        losses = outcome_cross_entropy(predictions, batch.reference, batch.mask, outcomes, beta=self.beta)
        rewards = predictions.detach() - batch.reference
        says = torch.where(batch.mask > 0, rewards, torch.zeros_like(rewards)).sum(1) > 0
        mean = normaliser.tokens / normaliser.sequences  # sums are divided by all tokens, this one is of answers
        return Loss(
            value=losses.sum() / normaliser.sequences,
            sums={
                "accuracy": ((says == (outcomes > 0.5)).float() * mean).sum(),
                "reward": masked_sum(rewards, batch.mask),
            },
        )


@dataclass(frozen=True, kw_only=True)
class Prime:
    """The generator's side."""

    prm: str = "prm"
    reference: str = "reference"
    outcome: Signal = OUTCOME
    process_weight: float = 5.0  # of the process returns, before whitening
    outcome_weight: float = 5.0
    keep: tuple[float, float] = (0.2, 0.8)  # share of right answers of a group that is learned from
    max_return_norm: bool = True
    estimator: PrimeEstimator = "rloo"
    values: str = "critic"  # of ppo: the policy that predicts returns, and λ of the advantages
    lam: float = 0.95
    loss: TokenLoss = PPO_CLIP
    kl: KLPenalty | None = None

    def __post_init__(self) -> None:
        low, high = self.keep
        if not 0.0 <= low <= high <= 1.0:
            raise ConfigError(
                f"Prime: keep {self.keep} must be (low, high) shares of right answers within [0, 1]",
                code="E_SETTING_RANGE",
            )
        if not self.outcome_weight and not self.process_weight:
            raise ConfigError(
                "Prime: the weights of outcome and process are both 0, so that nothing is learned; raise one",
                code="E_WEIGHTS_ALL_ZERO",
            )
        if self.estimator not in get_args(PrimeEstimator):
            raise UnknownName("estimator of Prime", self.estimator, get_args(PrimeEstimator))
        if not 0.0 <= self.lam <= 1.0:
            raise ConfigError(f"Prime: lam is {self.lam}; expected a number in [0, 1]", code="E_SETTING_RANGE")
        check_loss(self.loss)

    def needs(self) -> Needs:
        scores = (self.prm, self.reference) if self.process_weight else ()
        pull = self.kl.to if self.kl else None
        zeros = has_other_terms(self.loss, self.kl, 0.0)
        ratio = uses_ratio(self.loss)
        values = self.values if self.estimator == "ppo" else None
        return Needs(
            reward_signals=(self.outcome,),
            min_group_size=2,
            scores=scores,
            values=values,
            reference=pull,
            zero_advantage_has_gradient=zeros,
            off_policy_corrected=ratio,
        )

    def keep_samples(self, batch: Batch) -> tuple[list[Sample], dict[str, float], dict[str, int]]:
        """Those that are learned from, metrics, and why others are left out."""
        graded, dropped = usable_samples(batch.samples, (self.outcome,))
        groups: dict[str, list[Sample]] = {}
        for sample in graded:
            groups.setdefault(sample.group, []).append(sample)
        low, high = self.keep
        kept_groups = [group for group in groups.values() if low <= self._share_right(group) <= high]
        kept_samples = [sample for group in kept_groups for sample in group]
        if len(kept_samples) < len(graded):
            dropped["accuracy filter"] = len(graded) - len(kept_samples)
        metrics = {"traces": float(len(graded)), "groups": float(len(groups)), "kept_groups": float(len(kept_groups))}
        return kept_samples, metrics, dropped

    def _share_right(self, group: Sequence[Sample]) -> float:
        """Mean outcome of the answers of a group; the samples of a trajectory are one answer."""
        answers = first_samples(group)
        return sum(value_of(answer, self.outcome) for answer in answers) / len(answers)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        kept_samples, metrics, dropped = self.keep_samples(batch)
        if not kept_samples:
            return Credit(samples=(), metrics=metrics, dropped=dropped), state
        group_ids, _ = index_groups(kept_samples)
        outcomes = torch.tensor([value_of(s, self.outcome) for s in kept_samples], dtype=torch.float64)
        rewards = self._process_rewards(kept_samples)
        if self.process_weight:
            metrics |= _process_metrics(rewards, outcomes)
        if self.estimator == "ppo":
            streams = zip(kept_samples, self.token_rewards(kept_samples), strict=True)
            returns = [gae(paid, old_values_of(s, self.values), lam=self.lam)[0] for s, paid in streams]
        else:
            answers, (trajectories, _) = first_samples(kept_samples), trajectories_of(kept_samples)
            values = torch.tensor([value_of(answer, self.outcome) for answer in answers], dtype=torch.float64)
            answer_group_ids, _ = index_groups(answers)
            compared = {
                "rloo": leave_one_out(values, answer_group_ids),
                "reinforce++": values,
                "grpo": group_mean_std(values, answer_group_ids, std="sample"),
            }[self.estimator][trajectories]
            returns = [(self.outcome_weight * compared[i]).repeat(len(s.token_ids)) for i, s in enumerate(kept_samples)]
            for i, tokens in enumerate(self._compare_tokens(rewards, group_ids) if self.process_weight else ()):
                returns[i] = returns[i] + self.process_weight * reward_to_go(tokens)
        whole = torch.cat(returns) if self.estimator == "grpo" else whiten(torch.cat(returns))
        token_advantages = whole.split([len(s.token_ids) for s in kept_samples])
        samples = tuple(
            replace(s, advantages=part.to(torch.float32), old_values=None)
            for s, part in zip(kept_samples, token_advantages, strict=True)
        )
        return Credit(samples=samples, metrics=metrics, dropped=dropped), state

    def token_rewards(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """float64 ``[T]`` of each: both channels as one reward after each token, the outcome on the last."""
        streams = [self.process_weight * rewards for rewards in self._process_rewards(samples)]
        for sample, stream in zip(samples, streams, strict=True):
            stream[-1] += self.outcome_weight * value_of(sample, self.outcome)
        return streams

    def _process_rewards(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """float64 ``[T]`` of each: log-ratios, scaled so that no return of the batch exceeds 1; 0 without weight."""
        if not self.process_weight:
            return [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
        rewards = [(s.scores[self.prm] - s.scores[self.reference]).double() for s in samples]
        if self.max_return_norm:
            largest = max((float(reward_to_go(r).abs().max()) for r in rewards), default=0.0)
            rewards = [r / largest for r in rewards] if largest > 0.0 else rewards
        return rewards

    def _compare_tokens(self, rewards: Sequence[torch.Tensor], group_ids: torch.Tensor) -> Sequence[torch.Tensor]:
        """The process rewards ``[T]`` of each answer, beside those of its group."""
        if self.estimator == "grpo":
            lengths = torch.tensor([len(r) for r in rewards])
            return group_mean_std(torch.cat(list(rewards)), group_ids.repeat_interleave(lengths), std="sample").split(
                lengths.tolist()
            )
        if self.estimator == "reinforce++":
            return rewards
        shift = leave_one_out(torch.stack([r.mean() for r in rewards]), group_ids)
        counts = torch.bincount(group_ids).double()[group_ids]
        # r_t · N/(N−1) − Σ_j mean_j/(N−1): each token against the others' mean token; 0 for an answer that is alone
        scales = torch.where(counts > 1, counts / (counts - 1.0), 0.0)
        return [(r - r.mean()) * scales[i] + shift[i] for i, r in enumerate(rewards)]

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return policy_loss(predictions, entropy, batch, normaliser, loss=self.loss, kl=self.kl)


@dataclass(frozen=True, kw_only=True)
class PrimeValues:
    """The critic's side of the estimator ``ppo``: it learns the λ-returns of what ``paid_by`` pays."""

    paid_by: Prime

    @property
    def _by(self) -> ValueRegression:
        return ValueRegression(
            reward_weights={self.paid_by.outcome: 1.0}, values=self.paid_by.values, lam=self.paid_by.lam
        )

    def needs(self) -> Needs:
        return replace(self._by.needs(), scores=self.paid_by.needs().scores)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, _, dropped = self.paid_by.keep_samples(batch)
        return self._by.regress(samples, self.paid_by.token_rewards(samples), dropped), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return self._by.loss_of(predictions, entropy, batch, normaliser)


def _process_metrics(rewards: Sequence[torch.Tensor], outcomes: torch.Tensor) -> dict[str, float]:
    """How well the sum of rewards tells right from wrong, before this update: over all pairs, and each answer's
    sign."""
    sums = torch.stack([r.sum() for r in rewards])
    right, wrong = sums[outcomes > 0.5], sums[outcomes <= 0.5]
    found = {"process/reward": float(sums.mean())}
    if len(right) and len(wrong):
        margins = right[:, None] - wrong[None, :]
        found["process/pair_accuracy"] = float(((margins > 0).double() + 0.5 * (margins == 0).double()).mean())
    return found
