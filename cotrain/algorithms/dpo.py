"""Preferences between two answers, learned by the policy itself: DPO and SPIN.

With m = [log π(y⁺) − log π(y⁻)] − [log π_ref(y⁺) − log π_ref(y⁻)], sums over tokens at temperature 1,
y⁺ the answer of a group with the highest value of the signal ``better`` and y⁻ the one with the lowest:

    sigmoid   −c log σ(β m) − (1 − c) log σ(−β m)    DPO, arXiv 2305.18290; SPIN, arXiv 2401.01335
    hinge     max(0, 1 − β m)                        SPIN's option

c is 1, or with ``soft`` = γ the label σ(γ (v⁺ − v⁻)) of the two values (DPO+, arXiv 2409.16636). ``sft`` = α mixes in
the cross-entropy of y⁺ per token: (1 − α) · pair + α · SFT. The loss is the mean over pairs. A group whose values are
all equal is no pair. Answers may come from any policy, in this policy's tokens.

How the two answers of a pair can be in different micro-batches: a batch is used for one update, by the weights that
scored it. So m and the slope ∂L/∂m are known beforehand, and a loss that is linear in the log-probabilities, with these
slopes as advantages, has the same gradient:

    L = −Σ_pairs [ a⁺ log π(y⁺) + a⁻ log π(y⁻) ] / pairs,    a⁺ = −∂L/∂m,  a⁻ = ∂L/∂m

``betas`` has one β for each iteration of ``every`` updates; after the last one it stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from cotrain.algorithms.contract import Batch, BatchTotals, Credit, Loss, MicroBatch, Needs, Sample
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.reductions import masked_sum
from cotrain.algorithms.samples import usable_samples, value_of
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import Signal
from cotrain.core.types import State

CHOSEN = Signal("chosen", meaning="how much better than others an answer of its group is")
PairLoss = Literal["sigmoid", "hinge"]
PAIR_LOSSES: tuple[PairLoss, ...] = ("sigmoid", "hinge")


def loss_slope(loss: str, margin: float, beta: float, label: float = 1.0) -> float:
    """∂L/∂m at the margin m. ``label``: c."""
    if loss == "hinge":
        return -beta if beta * margin < 1.0 else 0.0
    return beta * (_sigmoid(beta * margin) - label)


def _sigmoid(x: float) -> float:
    """σ(x), which stays above 0 for margins far below 0, where ``Turn.score_probability`` is 0."""
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    return math.exp(x) / (1.0 + math.exp(x))  # the same, without overflow of exp(−x)


@dataclass(frozen=True, kw_only=True)
class Preference:
    """DPO and its relatives. The fields are options; there is no state."""

    policy: str  # the policy that learns
    reference: str  # the reference policy
    better: Signal = CHOSEN
    loss: PairLoss = "sigmoid"
    betas: tuple[float, ...] = (0.1,)  # one for each iteration
    every: int = 1  # updates of an iteration
    soft: float | None = None  # γ of soft labels
    sft: float = 0.0  # α

    def __post_init__(self) -> None:
        if self.loss not in PAIR_LOSSES:
            raise UnknownName("loss of a preference", self.loss, PAIR_LOSSES)
        if not self.betas or not all(0.0 < beta < math.inf for beta in self.betas) or self.every < 1:
            raise ConfigError(
                f"Preference: betas {self.betas} every {self.every} updates; expected numbers above 0, and at least 1",
                code="E_PREFERENCE_RANGE",
            )
        if not 0.0 <= self.sft < 1.0:
            raise ConfigError(
                f"Preference: sft is {self.sft}, expected a share from 0 to below 1", code="E_PREFERENCE_RANGE"
            )

    def needs(self) -> Needs:
        scored = (self.policy, self.reference)
        return Needs(
            reward_signals=(self.better,),
            on_policy=False,
            off_policy_corrected=False,
            min_group_size=2,
            scoring_policies=scored,
            temperature=1.0,
        )

    def beta_at(self, updates: int) -> float:
        """β after so many updates."""
        return self.betas[min(updates // self.every, len(self.betas) - 1)]

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        valued, dropped = usable_samples(batch.samples, (self.better,))
        groups: dict[str, list[Sample]] = {}
        for sample in valued:
            groups.setdefault(sample.group, []).append(sample)

        beta = self.beta_at(batch.updates)
        learned: list[Sample] = []
        margins: list[float] = []
        better_logprobs: list[float] = []
        worse_logprobs: list[float] = []
        for group in groups.values():
            values = [value_of(sample, self.better) for sample in group]
            high = max(values)
            low = min(values)
            if high == low:
                dropped["no pair"] = dropped.get("no pair", 0) + len(group)
                continue
            if len(group) > 2:
                dropped["not in the pair"] = dropped.get("not in the pair", 0) + len(group) - 2

            chosen = group[values.index(high)]
            rejected = group[values.index(low)]
            margin = self._log_ratio_sum(chosen) - self._log_ratio_sum(rejected)
            label = 1.0 if self.soft is None else _sigmoid(self.soft * (high - low))

            # Advantages are the factors of the log-probabilities in the linear loss (see the module).
            pair_advantage = -(1.0 - self.sft) * loss_slope(self.loss, margin, beta, label)
            sft_advantage = self.sft / len(chosen.token_ids)
            learned.append(_with_advantage(chosen, pair_advantage + sft_advantage))
            learned.append(_with_advantage(rejected, -pair_advantage))

            margins.append(margin)
            better_logprobs.append(float(chosen.scores[self.policy].sum()))
            worse_logprobs.append(float(rejected.scores[self.policy].sum()))

        metrics = {"traces": float(len(valued)), "pairs": float(len(margins)), "beta": beta}
        if margins:
            metrics |= {
                "margin": _mean(margins),
                "pair_accuracy": _mean([float(m > 0.0) + 0.5 * float(m == 0.0) for m in margins]),
                "logprob/better": _mean(better_logprobs),
                "logprob/worse": _mean(worse_logprobs),
            }
        return Credit(samples=tuple(learned), metrics=metrics, dropped=dropped), state

    def _log_ratio_sum(self, sample: Sample) -> float:
        """Σ_t log π − log π_ref over the tokens of a sample."""
        logprobs = sample.scores[self.policy].double()
        reference = sample.scores[self.reference].double()
        return float((logprobs - reference).sum())

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        n_pairs = totals.sequences / 2
        value = -masked_sum(batch.advantages * predictions, batch.mask) / n_pairs
        return Loss(value=value, sums={"surprisal": masked_sum(-predictions.detach(), batch.mask)})


def _with_advantage(sample: Sample, advantage: float) -> Sample:
    """The sample with one advantage at all of its tokens."""
    return replace(sample, advantages=torch.full((len(sample.token_ids),), advantage))


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)
