"""PRIME (arXiv 2502.01456): process rewards without process labels, from a model trained on outcomes alone.

An *implicit* process reward model φ is a language model that learns without speaking. Its reward for a token of an
answer is a log-ratio, and the sum of them over an answer is trained to tell right from wrong:

    r_t = log π_φ(y_t | ·) − log π_ref(y_t | ·)              loss  CE(σ(β Σ_t r_t), outcome)

``ImplicitPrm`` is φ's objective, ``Prime`` the generator's, ``PrimeValues`` that of PPO's critic. As in the authors'
code: β scales the loss and not the rewards; the rewards of the whole batch are divided by the largest |Σ_{u≥t} r_u|, so
that no return exceeds 1. Groups of which too few or too many answers are right are left out (0.2 to 0.8). How answers
are compared (their §4.4):

    rloo         the baseline of an answer's outcome is the mean outcome of the others of its group; that of its token
                 rewards is the others' mean token reward. The returns of both are added, and whitened over the batch
    reinforce++  no baseline within a group; whitened over the batch (arXiv 2501.03262)
    grpo         both are standardised within their group, token rewards over all tokens of the group (DeepSeekMath,
                 arXiv 2402.03300, §4.1.3); not whitened
    ppo          one reward for each token, process and outcome added up, with the outcome on the last token; a critic's
                 predictions are subtracted by GAE (``algorithms/ppo.py``); whitened over the batch

Left out:

- the buffer that is refilled until a batch is full: the batch is smaller instead;
- one forward pass for scoring and updating φ: there are two here;
- answers of several turns as one in the loss of φ, which takes the sum of each of their sequences by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from cotrain.algorithms.contract import Batch, BatchTotals, Credit, Loss, MicroBatch, Needs, Sample
from cotrain.algorithms.functional.advantages import group_mean_std, leave_one_out, reward_to_go, whiten
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.likelihood import outcome_cross_entropy
from cotrain.algorithms.functional.reductions import masked_sum
from cotrain.algorithms.functional.values import gae
from cotrain.algorithms.policy_gradient import (
    PPO_CLIP,
    KLPenalty,
    PolicyLossOptions,
    check_kl_term,
    check_loss,
    has_other_terms,
    uses_ratio,
)
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
        return Needs(reward_signals=(self.outcome,), on_policy=False, reference_policy=self.reference)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        """Every graded answer, with its outcome as the target of each of its tokens."""
        usable, drop_counts = usable_samples(batch.samples, (self.outcome,))

        samples = []
        for sample in usable:
            outcome = value_of(sample, self.outcome)
            targets = torch.full((len(sample.token_ids),), outcome)
            samples.append(replace(sample, targets=targets))

        metrics = {"traces": float(len(samples))}
        return Credit(samples=tuple(samples), metrics=metrics, dropped=drop_counts), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        assert batch.targets is not None and batch.reference is not None  # credit and the reference pass set them
        outcomes = batch.targets[:, 0]  # [B]: all tokens of an answer have the same target
        losses = outcome_cross_entropy(predictions, batch.reference, batch.mask, outcomes, beta=self.beta)

        rewards = predictions.detach() - batch.reference
        answer_rewards = torch.where(batch.mask > 0, rewards, torch.zeros_like(rewards)).sum(1)
        is_hit = (answer_rewards > 0) == (outcomes > 0.5)

        # The learner divides every sum by the number of tokens. Accuracy is a mean over sequences, so it is scaled.
        tokens_per_sequence = totals.tokens / totals.sequences
        sums = {
            "accuracy": (is_hit.float() * tokens_per_sequence).sum(),
            "reward": masked_sum(rewards, batch.mask),
        }
        return Loss(value=losses.sum() / totals.sequences, sums=sums)


@dataclass(frozen=True, kw_only=True)
class Prime:
    """The generator's side: the outcome and the log-ratios of φ become one advantage for each token."""

    prm: str = "prm"  # policy φ
    reference: str = "reference"  # policy that φ is compared with
    outcome: Signal = OUTCOME
    process_weight: float = 5.0  # weight of the process returns, before whitening
    outcome_weight: float = 5.0  # weight of the outcome's advantage
    keep: tuple[float, float] = (0.2, 0.8)  # groups with a share of right answers in this range are learned from
    max_return_norm: bool = True  # divide the process rewards by the largest return
    estimator: PrimeEstimator = "rloo"
    values: str = "critic"  # policy that predicts returns, for the estimator ppo
    lam: float = 0.95  # λ of GAE, for the estimator ppo
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
        check_kl_term(type(self).__name__, self.kl)

    def needs(self) -> Needs:
        has_process_rewards = self.process_weight != 0
        return Needs(
            reward_signals=(self.outcome,),
            min_group_size=2,
            scoring_policies=(self.prm, self.reference) if has_process_rewards else (),
            value_policy=self.values if self.estimator == "ppo" else None,
            reference_policy=self.kl.to if self.kl else None,
            zero_advantage_has_gradient=has_other_terms(self.loss, self.kl, 0.0),  # no entropy bonus
            off_policy_corrected=uses_ratio(self.loss),
        )

    def keep_samples(self, batch: Batch) -> tuple[list[Sample], dict[str, float], dict[str, int]]:
        """The samples that are learned from, metrics, and reason → how many others are left out for it."""
        usable, drop_counts = usable_samples(batch.samples, (self.outcome,))
        groups: dict[str, list[Sample]] = {}
        for sample in usable:
            groups.setdefault(sample.group, []).append(sample)

        low, high = self.keep
        kept_samples: list[Sample] = []
        n_kept_groups = 0
        for group in groups.values():
            if low <= self._share_right(group) <= high:
                kept_samples += group
                n_kept_groups += 1

        if len(kept_samples) < len(usable):
            drop_counts["accuracy filter"] = len(usable) - len(kept_samples)
        metrics = {
            "traces": float(len(usable)),
            "groups": float(len(groups)),
            "kept_groups": float(n_kept_groups),
        }
        return kept_samples, metrics, drop_counts

    def _share_right(self, group: Sequence[Sample]) -> float:
        """The mean outcome of a group's answers; the samples of a trajectory are one answer."""
        answers = first_samples(group)
        return sum(value_of(answer, self.outcome) for answer in answers) / len(answers)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, metrics, drop_counts = self.keep_samples(batch)
        if not samples:
            return Credit(samples=(), metrics=metrics, dropped=drop_counts), state

        process_rewards = self._process_rewards(samples)
        if self.process_weight:
            metrics |= self._process_metrics(samples, process_rewards)

        if self.estimator == "ppo":
            advantages = self._advantages_over_critic(samples)
        else:
            advantages = self._advantages_in_group(samples, process_rewards)

        all_advantages = torch.cat(advantages)
        if self.estimator != "grpo":
            all_advantages = whiten(all_advantages)
        lengths = [len(sample.token_ids) for sample in samples]
        samples_with_advantages = []
        for sample, sample_advantages in zip(samples, all_advantages.split(lengths), strict=True):
            # The loss of the generator reads no predictions of the critic.
            samples_with_advantages.append(
                replace(sample, advantages=sample_advantages.to(torch.float32), old_values=None)
            )
        return Credit(samples=tuple(samples_with_advantages), metrics=metrics, dropped=drop_counts), state

    def _advantages_over_critic(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """float64 ``[T]`` for each sample: the rewards of both channels, minus what the critic predicted, by GAE."""
        advantages = []
        for sample, rewards in zip(samples, self.token_rewards(samples), strict=True):
            advantage, _ = gae(rewards, old_values_of(sample, self.values), lam=self.lam)
            advantages.append(advantage)
        return advantages

    def _advantages_in_group(
        self, samples: Sequence[Sample], process_rewards: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """float64 ``[T]`` for each sample: the outcome's advantage on every token, plus each token's process return."""
        advantages = []
        for sample, outcome_advantage in zip(samples, self._outcome_advantages(samples), strict=True):
            advantages.append((self.outcome_weight * outcome_advantage).repeat(len(sample.token_ids)))
        if not self.process_weight:
            return advantages

        group_ids, _ = index_groups(samples)
        for i, rewards in enumerate(self._compare_process_rewards(process_rewards, group_ids)):
            advantages[i] = advantages[i] + self.process_weight * reward_to_go(rewards)
        return advantages

    def _outcome_advantages(self, samples: Sequence[Sample]) -> torch.Tensor:
        """float64 ``[N]``: the outcome of each sample's answer, compared with the answers of its group."""
        answers = first_samples(samples)
        outcomes = self._outcomes_of(answers)
        group_ids, _ = index_groups(answers)
        if self.estimator == "rloo":
            advantages = leave_one_out(outcomes, group_ids)
        elif self.estimator == "grpo":
            advantages = group_mean_std(outcomes, group_ids, std="sample")
        else:
            advantages = outcomes
        answer_of_sample, _ = trajectories_of(samples)  # [N] index: an answer of several turns has several samples
        return advantages[answer_of_sample]

    def _outcomes_of(self, samples: Sequence[Sample]) -> torch.Tensor:
        """float64 ``[N]``."""
        return torch.tensor([value_of(sample, self.outcome) for sample in samples], dtype=torch.float64)

    def _process_metrics(self, samples: Sequence[Sample], rewards: Sequence[torch.Tensor]) -> dict[str, float]:
        """The mean of the answers' summed process rewards, and how well the sums tell right from wrong: the share of
        all pairs of a right and a wrong answer in which the right one has the larger sum; equal sums count half."""
        answer_of_sample, n_answers = trajectories_of(samples)  # an answer of several turns has several samples
        sample_sums = torch.stack([sample_rewards.sum() for sample_rewards in rewards])
        sums = torch.zeros(n_answers, dtype=torch.float64).index_add(0, answer_of_sample, sample_sums)
        outcomes = self._outcomes_of(first_samples(samples))
        metrics = {"process/reward": float(sums.mean())}

        right = sums[outcomes > 0.5]
        wrong = sums[outcomes <= 0.5]
        if len(right) and len(wrong):
            margins = right[:, None] - wrong[None, :]
            is_larger = (margins > 0).double()
            is_equal = (margins == 0).double()
            metrics["process/pair_accuracy"] = float((is_larger + 0.5 * is_equal).mean())
        return metrics

    def token_rewards(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """float64 ``[T]`` for each sample: both channels as one reward after each token, the outcome on the last."""
        token_rewards = [self.process_weight * rewards for rewards in self._process_rewards(samples)]
        for sample, rewards in zip(samples, token_rewards, strict=True):
            rewards[-1] += self.outcome_weight * value_of(sample, self.outcome)
        return token_rewards

    def _process_rewards(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """float64 ``[T]`` for each sample: its log-ratios, scaled so that no return of the batch exceeds 1.

        All 0 where the process channel has no weight, for then φ has not scored the samples.
        """
        if not self.process_weight:
            return [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
        rewards = [(sample.scores[self.prm] - sample.scores[self.reference]).double() for sample in samples]
        if not self.max_return_norm:
            return rewards
        largest_return = 0.0
        for sample_rewards in rewards:
            largest_return = max(largest_return, float(reward_to_go(sample_rewards).abs().max()))
        if largest_return > 0.0:
            rewards = [sample_rewards / largest_return for sample_rewards in rewards]
        return rewards

    def _compare_process_rewards(
        self, rewards: Sequence[torch.Tensor], group_ids: torch.Tensor
    ) -> Sequence[torch.Tensor]:
        """The process rewards ``[T]`` of each sample, compared with those of its group as the estimator has it."""
        if self.estimator == "reinforce++":
            return rewards

        if self.estimator == "grpo":
            lengths = torch.tensor([len(r) for r in rewards])
            token_group_ids = group_ids.repeat_interleave(lengths)
            all_rewards = group_mean_std(torch.cat(list(rewards)), token_group_ids, std="sample")
            return all_rewards.split(lengths.tolist())

        # rloo, as in the authors' code: with N answers in a group and m_j the mean token reward of answer j,
        #
        #     A_t = (N · r_t − Σ_j m_j) / (N − 1)
        #         = (r_t − m) · N / (N − 1)            the token, within its answer, whose mean is m
        #           + (m − mean of the others' m_j)    the answer, within its group: leave-one-out
        #
        # An answer that is alone in its group gets 0.
        answer_means = torch.stack([sample_rewards.mean() for sample_rewards in rewards])
        answer_advantages = leave_one_out(answer_means, group_ids)
        group_sizes = torch.bincount(group_ids).double()[group_ids]  # [N] N of each answer's group
        scales = torch.where(group_sizes > 1, group_sizes / (group_sizes - 1.0), 0.0)
        compared_rewards = []
        for i, sample_rewards in enumerate(rewards):
            within_answer = (sample_rewards - sample_rewards.mean()) * scales[i]
            compared_rewards.append(within_answer + answer_advantages[i])
        return compared_rewards

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        return PolicyLossOptions(loss=self.loss, kl=self.kl).loss_of(predictions, entropy, batch, totals)


@dataclass(frozen=True, kw_only=True)
class PrimeValues:
    """The critic's side of the estimator ``ppo``: it learns the λ-returns of the generator's token rewards."""

    paid_by: Prime  # the generator's objective, whose rewards these are

    @property
    def _regression(self) -> ValueRegression:
        return ValueRegression(
            reward_weights={self.paid_by.outcome: 1.0}, values=self.paid_by.values, lam=self.paid_by.lam
        )

    def needs(self) -> Needs:
        return replace(self._regression.needs(), scoring_policies=self.paid_by.needs().scoring_policies)

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        samples, _, drop_counts = self.paid_by.keep_samples(batch)
        return self._regression.regress(samples, self.paid_by.token_rewards(samples), drop_counts), state

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        return self._regression.loss_of(predictions, entropy, batch, totals)
