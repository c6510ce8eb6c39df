"""Policy gradient from rewards: GRPO and its relatives. From the rewards of a batch to its loss, top to bottom.

    GRPO (DeepSeekMath, arXiv 2402.03300) with one reward an answer, in groups of answers to one problem:

    A_i     = (r_i − mean of the group) / standard deviation of the group            ``z_score``
    ρ_it    = π(y_it) / π_sampler(y_it)                                                ``PPOClip``
    l_it    = −min(ρ_it A_i, clip(ρ_it, 1 − low, 1 + high) A_i)                        ``PPOClip``
    KL_it   = π_ref / π − 1 − log(π_ref / π)                                           ``KLPenalty``, estimator k3
    L       = reduce(w_i l_it) + β reduce(KL_it) − η reduce(H_it)                      ``loss_of``

    reduce  the sum over tokens, divided as ``normalise`` says
    w_i     class weight of the sample (``balance``), else 1
    β       ``kl.weight``
    H_it    entropy of the distribution that the token was drawn from; η is the setting ``entropy``

1. ``PolicyGradient.credit``: rewards → advantages. 2. ``loss_of``: advantages → loss. The pure functions that they call
are in ``algorithms/functional/``, each with its equation; ``grpo.py`` has the usual combinations by name.

**Several rewards.** Usually there are one or two: of the whole answer, and of each of its steps. Every signal in
``reward_weights`` is a channel, and has advantages of its own:

1. ``baseline`` and ``advantage`` turn each of its rewards into an advantage z.
2. Each z is placed on the last token of its answer or span.
3. A token's advantage is the sum of all z at it or later. E.g. two steps that end at tokens 4 and 9: tokens 0–4 get
   z₁ + z₂, and tokens 5–9 get z₂. In general A(t) = Σ_{k: end_k ≥ t} z_k, so an outcome reaches all of its answer.
4. ``over_batch`` may rescale A over all tokens.

Then the *advantages* of the channels are mixed. With one reward of the answer, and one of its steps that has the weight
α, "convex" is

    A(i,t) = (1 − α) A_outcome(i) + α A_step(i,t)

In general there may be several of each kind. With w the weights of rewards per answer at this update, and α those of
rewards per span (a step):

    A(i,t) = (1 − Σ α_step) · Σ w_ans A_ans(i) + Σ α_step A_step(i,t)   advantage_mix="convex" (Tango, arXiv 2505.15034)
    A(i,t) =                  Σ w_ans A_ans(i) + Σ α_step A_step(i,t)   advantage_mix="add"

Or *rewards* are added before advantages are computed, and every token of an answer has the same advantage:

    r(i) = Σ w_ans r_ans(i) + Σ α_step r_step(i)                        advantage_mix="reward"

with r_step(i) the mean of the rewards of the answer's spans (``step_scale="1/K"``) or their sum ("one"); 0 for an
answer without such rewards.

E.g. RL Tango:

- The generator has ``reward_weights={OUTCOME: 1.0, STEP: decay(0.1, 1e-3)}``.
- The verifier's one reward is agreement + 0.8 · format: ``reward_weights={AGREEMENT: 1.0, FORMAT: 0.8},
  sum_rewards_first=True``, which adds them up before advantages are computed.

Rules:

- No steps (the review could not be read): A_step is 0, and the outcome advantage keeps the factor 1 − α.
- Many steps: all steps of a group share one mean and deviation, so answers with many steps weigh more.
- A per-answer reward is missing: the sample is dropped and counted.
- A trajectory of several samples (a conversation that is cut into pieces) has one reward for the whole: it counts once
  in its group, and all its samples get its advantage.
- Roles in ``baseline_roles`` count in the mean and deviation of a group, and in the metrics, but get no gradient here.
  So two policies can share one mean and deviation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cotrain.algorithms.class_balance import ClassBalance, Counts
from cotrain.algorithms.contract import (
    Batch,
    BatchTotals,
    Credit,
    Loss,
    MicroBatch,
    Needs,
    Sample,
    check_edited,
    check_row,
    check_token_losses,
)
from cotrain.algorithms.functional.advantages import group_is_flat, group_mean_std, leave_one_out, reward_to_go
from cotrain.algorithms.functional.late_torch import torch  # imported at first use, so that recipes load fast
from cotrain.algorithms.functional.policy_losses import (
    KL_ESTIMATORS,
    KLEstimator,
    clipped_ratio_loss,
    kl_estimate,
    token_log_ratio,
)
from cotrain.algorithms.functional.reductions import NORMALISES, Normalise, masked_sum, reduce_loss
from cotrain.algorithms.policy_loss import (
    GSPOClip,
    Observed,
    ScoreFunction,
    Shaped,
    TokenLoss,
    check_clip,
    outside_bounds,
    ratio_metrics,
    with_unit_ratio,
)
from cotrain.algorithms.running_mean import Baselines, RunningMean
from cotrain.algorithms.samples import (
    ADVANTAGE_MIXES,
    AdvantageMix,
    RewardWeights,
    StepScale,
    TokenRewards,
    check_rewards,
    check_step_scale,
    index_groups,
    one_per_trajectory,
    place_rewards,
    put_on_tokens,
    trajectories_of,
    usable_samples,
    weight_at,
)
from cotrain.core.arguments import check_called_with
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import Signal
from cotrain.core.types import State

__all__ = [
    "AdvantageFn",
    "KLPenalty",
    "OverBatch",
    "PPOClip",
    "PolicyGradient",
    "PolicyLossOptions",
    "RunningMean",
    "SampleEdit",
    "check_loss",
    "drop_flat_groups",
    "has_other_terms",
    "kl_penalty",
    "leave_one_out",
    "mean_baseline",
    "uses_ratio",
    "z_score",
]

# -- Advantage estimators: functions that compare a reward with the others of its group.
#
#     z_score         (r − mean) / std         GRPO, arXiv 2402.03300
#     mean_baseline   r − mean                 Dr. GRPO, arXiv 2503.20783
#     leave_one_out   r − mean of the others   RLOO, arXiv 2402.14740
#
# ``values`` ``[N]`` float64 are the rewards of one channel and ``group_ids`` ``[N]`` the index of each one's group; the
# result is ``[N]``, 0 in a flat group, whose rewards are all equal. Another estimator is another such function
# (docs/new-estimator.md).


# Types in quotes: torch is not imported yet when these lines run.
AdvantageFn = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]  # values [N], group ids [N] → advantages [N]


def z_score(values: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, divided by its sample standard deviation (n − 1, as verl and RL Tango have it)."""
    return group_mean_std(values, group_ids, std="sample")


def mean_baseline(values: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group."""
    return group_mean_std(values, group_ids, std=None)


# -- Edits of samples, before their advantages are computed or afterwards. ``advantage_edits.py`` has
# more of them.

# Samples → those that are kept; and reason → number of samples that are left out for it.
SampleEdit = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, int]]]


def drop_flat_groups(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Drop flat groups: none of their tokens has an advantage, so they teach nothing and would cost a forward pass.

    A dropped group is neither in the totals that the loss is divided by nor in the KL term. The samples of flat groups
    are counted under the metric key "zero_spread"."""
    not_flat = {sample.group for sample in samples if bool(sample.advantages.any())}
    kept = [sample for sample in samples if sample.group in not_flat]
    n_dropped = len(samples) - len(kept)
    if n_dropped == 0:
        return kept, {}
    return kept, {"zero_spread": n_dropped}


# -- The loss: the clipped ratio at each token, the KL term, and the sum over tokens.
#
# - Old log-probabilities are those of the sampler, and are never recomputed.
# - On the first update of a batch, ρ = 1 up to rounding.
# - With several updates a batch (``updates_per_batch``) or asynchronous rollouts (``trainer/async_rollouts.py``), ρ
#   corrects for the updates since sampling. A recipe whose loss has no ρ is then refused (``uses_ratio``).
# - An engine may have weights of its own, as vLLM has. Then a sample whose ρ, averaged over its tokens, is out of
#   bounds adds nothing to the loss (``policy_loss.py``).
# - The metric ``sampler_trainer_diff`` is |log ρ|.


@dataclass(frozen=True, slots=True)
class PPOClip:
    """The clipped ratio of each token. A call returns losses ``[B, T]``, and metrics: name → ``[B, T]``."""

    low: float = 0.2
    high: float = 0.2

    def __post_init__(self) -> None:
        check_clip(type(self).__name__, self.low, self.high)

    def __call__(self, logprobs: torch.Tensor, batch: MicroBatch) -> tuple[torch.Tensor, Observed]:
        log_ratio = token_log_ratio(logprobs, batch.sampler_logprobs)
        losses, clipped = clipped_ratio_loss(log_ratio, batch.advantages, low=self.low, high=self.high)
        return losses, ratio_metrics(logprobs, batch, log_ratio, clipped)


PPO_CLIP = PPOClip()  # the clip of GRPO and PPO


@dataclass(frozen=True, slots=True)
class KLPenalty:
    """A KL term that keeps the policy near a reference policy."""

    to: str  # name of the reference policy
    weight: float = 1e-3  # β
    estimator: KLEstimator = "k3"

    def __post_init__(self) -> None:
        if self.estimator not in KL_ESTIMATORS:
            raise UnknownName("KL estimator", self.estimator, KL_ESTIMATORS)
        if not 0.0 <= self.weight < math.inf:
            raise ConfigError(
                f"KLPenalty: weight is {self.weight}, expected a number of at least 0; a negative one would pay "
                "for running away from the reference",
                code="E_KL_WEIGHT",
            )
        if self.estimator == "k1":
            raise ConfigError(
                "KLPenalty: the gradient of k1 has expectation zero; use 'k3' (as GRPO) or 'k2'",
                code="E_KL_GRADIENT_ZERO",
            )

    def of_tokens(self, logprobs: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
        """The estimated KL at each token, ``[B, T]``, not weighted. ``logprobs``: ``[B, T]``."""
        if batch.reference is None:
            raise ConfigError(
                f"the samples lack log-probabilities of {self.to!r}, the reference of the KL term",
                code="E_REFERENCE_LOGPROBS_MISSING",
            )
        return kl_estimate(logprobs, batch.reference, self.estimator)


def kl_penalty(to: str, weight: float) -> KLPenalty | None:
    """``KLPenalty``, or None where the coefficient is 0: then no reference is scored."""
    return KLPenalty(to, weight) if weight else None


@dataclass(frozen=True, kw_only=True)
class PolicyLossOptions:
    """The loss, with its options (equation at the top)."""

    loss: TokenLoss = PPO_CLIP  # the loss of each token
    # By what the sum over tokens is divided:
    #
    #     "token"      by the tokens of the update
    #     "sequence"   the sum of each sequence by its own tokens, then by the sequences of the update
    #     "constant"   by ``constant`` times the sequences of the update
    normalise: Normalise = "token"
    constant: float | None = None  # tokens per sequence, with normalise="constant"
    kl: KLPenalty | None = None
    entropy: float = 0.0  # η, the coefficient of the entropy

    def loss_of(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, totals: BatchTotals
    ) -> Loss:
        """One micro-batch's share of the loss, and sums over its tokens for the metrics.

        Args:
            predictions: ``[B, T]`` log π of the sampled tokens.
            entropy: ``[B, T]`` of the distribution that each was drawn from; needed when its coefficient is not zero.
            totals: tokens and sequences of the whole update, by which the sums are divided.

        Metrics: "clip_fraction", "ratio", "sampler_trainer_diff" (|log π_sampler − log π|), "sampler_trainer_kl" (k3 of
        the two), "surprisal" (−log π, whose mean on policy estimates the entropy), "kl" and "entropy" where they are
        computed, and "mismatch_masked" where samples have bounds (``policy_loss.py``).
        """
        logprobs = predictions  # other algorithms of this interface predict values or scores
        mask = batch.mask

        token_losses, observed = check_token_losses(self.loss, self.loss(logprobs, batch), mask)
        is_masked = outside_bounds(logprobs, batch)  # [B] bool
        if is_masked is not None:
            # The loss is computed again, with ratio 1 in the samples that are masked; ``observed`` keeps their ratio.
            # To set their losses to 0 is not enough: where the ratio overflows, 0 times its gradient (inf) is NaN.
            token_losses, _ = self.loss(logprobs, with_unit_ratio(batch, is_masked, logprobs))
            token_mask = is_masked[:, None].expand_as(mask)  # [B, T]
            token_losses = token_losses.masked_fill(token_mask, 0.0)
            observed["mismatch_masked"] = token_mask.to(mask.dtype)
        value = self._reduce(token_losses, mask, totals, weights=batch.weights)
        observed["surprisal"] = -logprobs

        if self.kl is not None:
            observed["kl"] = self.kl.of_tokens(logprobs, batch)
            value = value + self.kl.weight * self._reduce(observed["kl"], mask, totals)

        if entropy is not None:
            observed["entropy"] = entropy
            value = value - self.entropy * self._reduce(entropy, mask, totals)
        elif self.entropy:
            raise ConfigError(
                f"an entropy bonus of {self.entropy} needs the entropy of each token; none was given",
                code="E_ENTROPY_MISSING",
            )

        return Loss(value=value, sums={name: masked_sum(x.detach(), mask) for name, x in observed.items()})

    def _reduce(
        self, per_token: torch.Tensor, mask: torch.Tensor, totals: BatchTotals, weights: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The sum over tokens ``[B, T]``, divided as ``normalise`` says. ``weights``: ``[B]``."""
        return reduce_loss(
            per_token,
            mask,
            normalise=self.normalise,
            tokens=totals.tokens,
            sequences=totals.sequences,
            constant=self.constant,
            weights=weights,
        )


def check_kl_term(name: str, kl: object) -> None:
    """Raise ConfigError for a KL term that is none, such as its weight alone."""
    if kl is not None and not isinstance(kl, KLPenalty):
        raise ConfigError(
            f"{name}: kl is {kl!r}; expected a term with the name of its reference policy, such as "
            "KLPenalty('reference', 0.001), or run.kl_penalty() in a recipe",
            code="E_KL_NOT_TERM",
        )


def check_loss(loss: TokenLoss, normalise: Normalise = "token", constant: float | None = None) -> None:
    """Raise ConfigError unless ``PolicyLossOptions`` can work with these."""
    if not callable(loss):
        raise ConfigError(
            f"loss is {loss!r}, expected a function such as PPOClip(0.2, 0.2) or one of algorithms/policy_loss.py",
            code="E_LOSS_NOT_FUNCTION",
        )
    check_called_with("loss", loss, "logprobs", "batch")
    if normalise not in NORMALISES:
        raise UnknownName("normalise", normalise, NORMALISES)
    if (normalise == "constant") != (constant is not None):
        raise ConfigError(
            "normalise='constant' and constant=<tokens per sequence> belong together", code="E_NORMALISE_CONSTANT"
        )
    if constant is not None and not constant > 0.0:
        raise ConfigError(
            f"constant is {constant}, expected tokens per sequence, such as max_tokens", code="E_NORMALISE_CONSTANT"
        )


def uses_ratio(loss: TokenLoss) -> bool:
    """Whether the loss weighs a token by π_learner / π_sampler. True for a user's own loss, whose formula is not
    known."""
    base_loss = _on_policy_loss(loss)
    if isinstance(base_loss, ScoreFunction):
        return base_loss.cap is not None  # without a cap it is −A log π
    return True


def _on_policy_loss(loss: TokenLoss) -> TokenLoss:
    """The loss of samples that are trained with the prompt that they answered. Only ``Shaped`` has two losses: another
    one for samples whose prompt was changed after sampling."""
    return loss.on_policy if isinstance(loss, Shaped) else loss


def has_other_terms(loss: TokenLoss, kl: KLPenalty | None, entropy_coef: float) -> bool:
    """Whether a sample without any advantage may have a gradient: from KL or entropy, or from a user's own loss."""
    base_loss = _on_policy_loss(loss)
    is_user_loss = not isinstance(base_loss, PPOClip | GSPOClip | ScoreFunction)  # it is none of the package's
    has_kl = kl is not None and kl.weight != 0.0
    return has_kl or entropy_coef != 0.0 or is_user_loss


# -- The algorithm: from rewards to advantages; its loss is ``PolicyLossOptions.loss_of``.


# Rewards as tensors (``TokenRewards`` in ``samples.py``). A conversation that is cut into three samples has one reward
# for the whole, at three places: on the last token of each. Comments give the length of a tensor in brackets:
#
#     [N]         samples
#     [rewards]   each reward once: what advantages are computed of
#     [places]    each reward once for each sample that has it
#
# What is used of ``TokenRewards`` below:
#
#     unique_values           [rewards]           the value of each reward
#     unique_samples          [rewards]           the index of its sample, the first one of a conversation
#     unique_span_weights     [rewards]           1/2 where two reviews judged one span, 1 for a whole answer
#     gather_from_samples(x)  [N] → [rewards]     what belongs to the sample of each reward, e.g. its group
#     samples_with_value()                        the indices of samples that have any reward
#     put_on_tokens(…, x)     [rewards] → rows    a function: one row of tokens for each sample, 0 without a reward

OverBatch = Callable[["torch.Tensor"], "torch.Tensor"]  # [N] → [N], N tokens of the whole batch
MERGED = "merged"  # name of the channel that holds a sum of rewards, in the metrics too
NO_COUNTS: Counts = (0.0, 0.0)  # counts of the two classes before the first batch


class Channel(NamedTuple):
    """One kind of reward, or a sum of them, whose advantages are computed by themselves."""

    rewards: TokenRewards
    factor: float  # the factor of its advantages in the mixture


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(PolicyLossOptions):
    """GRPO and its relatives. Baselines and class counts are the state that ``credit`` returns."""

    reward_weights: RewardWeights  # signal → weight of its advantages
    # Which rewards are summed before advantages are computed:
    #
    #     sum_rewards_first=False    none: each has advantages of its own
    #     sum_rewards_first=True     those per answer; the advantages of those per span are mixed in afterwards
    #     advantage_mix="reward"     all, whatever ``sum_rewards_first`` says
    sum_rewards_first: bool = False
    advantage_mix: AdvantageMix = "convex"  # equations at the top
    step_scale: StepScale = "1/K"  # reward of one step among K: ±1/K (Tango), or ±1 ("one")
    baseline: RunningMean | None = None  # baseline that is subtracted first
    advantage: AdvantageFn | None = z_score  # the comparison within a group; None: there is none
    over_batch: OverBatch | None = None  # rescales the advantages of a channel over all tokens of the batch
    edit_before: tuple[SampleEdit, ...] = ()  # edits of the samples before advantages are computed, in order
    edit_after: tuple[SampleEdit, ...] = (drop_flat_groups,)  # edits of the samples once they have advantages, in order
    balance: ClassBalance | None = None
    baseline_roles: tuple[str, ...] = ()  # roles that are in the groups and are not trained here

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.reward_weights or not self.kl:  # a KL term alone is allowed, as for distillation
            check_rewards(name, self.reward_weights)
        check_step_scale(self.step_scale)
        check_loss(self.loss, self.normalise, self.constant)
        check_kl_term(name, self.kl)
        if self.advantage is not None and not callable(self.advantage):
            raise ConfigError(
                f"{name}: advantage is {self.advantage!r}, expected a function such as z_score, or None",
                code="E_ADVANTAGE_NOT_FUNCTION",
            )
        if self.advantage is not None:
            check_called_with(f"{name}: advantage", self.advantage, "values", "group_ids")
        if self.advantage_mix not in ADVANTAGE_MIXES:
            raise UnknownName("advantage_mix", self.advantage_mix, ADVANTAGE_MIXES)
        if self.balance is not None and self.balance.class_label in self.reward_weights:
            raise ConfigError(
                f"{name}: {self.balance.class_label.name!r} is both a reward and the label of the class balance",
                code="E_REWARD_IS_CLASS_LABEL",
            )
        if self.sum_rewards_first and not self._signals_of_kind("answer"):
            raise ConfigError(
                f"{name}: sum_rewards_first=True, but reward_weights has no per-answer signal to add up",
                code="E_NO_SIGNAL_TO_SUM",
            )
        # Weights that decay are checked where they start and where they end: before and after one planned update.
        self._check_span_weights(self._weights_at(0, planned=1))
        self._check_span_weights(self._weights_at(1, planned=1))

    def _weights_at(self, updates: int, planned: int) -> dict[Signal, float]:
        """The weight of each reward after ``updates`` of ``planned`` updates."""
        return {signal: weight_at(weight, updates, planned) for signal, weight in self.reward_weights.items()}

    def _signals_of_kind(self, per: str) -> list[Signal]:
        return [signal for signal in self.reward_weights if signal.per == per]

    def _outcome_share(self, weights: Mapping[Signal, float]) -> float:
        """Factor of the per-answer channels: 1 − Σ α of the per-span rewards if ``advantage_mix`` is "convex", else 1.
        Raises ConfigError as ``_check_span_weights`` does."""
        if self.advantage_mix != "convex":
            return 1.0
        # Checked at each update: weights that decay in different shapes may fit at the start and the end alone.
        self._check_span_weights(weights)
        return 1.0 - sum(weights[signal] for signal in self._signals_of_kind("span"))

    def _check_span_weights(self, weights: Mapping[Signal, float]) -> None:
        """Raise ConfigError where ``advantage_mix`` is "convex" and the weights of per-span rewards are no shares of 1:
        each in [0, 1], and together at most 1."""
        if self.advantage_mix != "convex":
            return
        alphas = {signal.name: weights[signal] for signal in self._signals_of_kind("span")}
        outcome_share = 1.0 - sum(alphas.values())
        if any(not 0.0 <= alpha <= 1.0 for alpha in alphas.values()) or outcome_share < -1e-9:
            raise ConfigError(
                f"{type(self).__name__}: weights of per-span rewards {alphas} must lie in [0, 1] and add up to at most "
                "1, the outcome has the rest; use advantage_mix='add' for free weights",
                code="E_SPAN_WEIGHTS",
            )

    def needs(self) -> Needs:
        signals = [*self.reward_weights]
        if self.balance is not None:
            signals.append(self.balance.class_label)
        compares_rewards = self.advantage is not None and bool(self.reward_weights)
        return Needs(
            reward_signals=tuple(signals),
            off_policy_corrected=uses_ratio(self.loss),
            min_group_size=2 if compares_rewards else 1,
            reference_policy=self.kl.to if self.kl else None,
            entropy=self.entropy != 0.0,
            zero_advantage_has_gradient=has_other_terms(self.loss, self.kl, self.entropy),
            baseline_roles=self.baseline_roles,
        )

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        # 1. The samples that have every reward of a whole answer, and their groups.
        samples, unusable = usable_samples(batch.samples, self.reward_weights)
        dropped = Counter(unusable)  # reason → number of samples
        for edit in self.edit_before:
            samples, left_out = check_edited(edit, edit(samples))
            dropped.update(left_out)
        group_ids, n_groups = index_groups(samples)

        # 2. Their rewards at the tokens that they were given for, and the weight of each reward now.
        rewards = {signal: place_rewards(samples, signal, self.step_scale) for signal in self.reward_weights}
        weights = self._weights_at(batch.updates, batch.planned)
        metrics = {"traces": float(len(samples)), "groups": float(n_groups)}
        metrics |= _reward_metrics(samples, rewards)
        if self.advantage_mix == "reward":
            # Usually ``advantage_mix/x`` is the factor of channel x, which part 3 logs. Here all signals are in one
            # channel, "merged", so for each of them the metric is its weight in the sum.
            metrics |= {f"advantage_mix/{signal.name}": weight for signal, weight in weights.items()}

        # 3. The advantages of each channel, mixed: A = Σ_c factor_c A_c.
        channels = self._reward_channels(samples, rewards, weights)
        mixed = [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
        baselines: Baselines = state.get("baselines", {})
        for name, channel in channels.items():
            advantages, baselines = self._channel_advantages(name, channel.rewards, samples, group_ids, baselines)
            metrics[f"advantage/{name}"] = _mean_absolute(advantages)
            metrics[f"advantage_mix/{name}"] = channel.factor
            if channel.factor:
                for total, part in zip(mixed, advantages, strict=True):
                    total += channel.factor * part  # in place: ``mixed`` holds these tensors
        if n_groups and self.reward_weights:
            metrics["zero_spread_groups"] = self._share_of_flat_groups(channels.values(), group_ids, n_groups)

        # 4. What is learned from: the roles that are trained, in groups that have an advantage.
        learned = [
            replace(sample, advantages=advantages)
            for sample, advantages in zip(samples, mixed, strict=True)
            if sample.role not in self.baseline_roles
        ]
        for edit in self.edit_after:
            learned, left_out = check_edited(edit, edit(learned))
            dropped.update(left_out)

        # 5. Class weights: from the class frequencies of all samples, on those that are learned from.
        new_state: State = {}
        if self.balance is not None:
            counts: Counts = state.get("classes", NO_COUNTS)
            learned, new_counts, balance_metrics = self.balance.weigh_samples(samples, learned, counts)
            metrics |= balance_metrics
            new_state["classes"] = new_counts

        # 6. State for the next batch.
        if self.baseline is not None:
            new_state["baselines"] = dict(sorted(baselines.items()))

        rounded = tuple(replace(sample, advantages=sample.advantages.to(torch.float32)) for sample in learned)
        return Credit(samples=rounded, metrics=metrics, dropped=dict(dropped)), new_state

    def _reward_channels(
        self, samples: Sequence[Sample], rewards: Mapping[Signal, TokenRewards], weights: Mapping[Signal, float]
    ) -> dict[str, Channel]:
        """All channels by name, per-answer ones first."""
        if self.advantage_mix == "reward":  # the weights are in the sum
            return {MERGED: Channel(_summed_rewards(samples, rewards, weights), factor=1.0)}

        outcome_share = self._outcome_share(weights)
        answer_weights = {signal: weights[signal] for signal in self._signals_of_kind("answer")}
        span_weights = {signal: weights[signal] for signal in self._signals_of_kind("span")}
        channels: dict[str, Channel] = {}
        if self.sum_rewards_first:
            channels[MERGED] = Channel(_summed_rewards(samples, rewards, answer_weights), outcome_share)
        else:
            for signal, weight in answer_weights.items():
                channels[signal.name] = Channel(rewards[signal], outcome_share * weight)
        for signal, alpha in span_weights.items():
            channels[signal.name] = Channel(rewards[signal], alpha)
        return channels

    def _share_of_flat_groups(self, channels: Iterable[Channel], group_ids: torch.Tensor, n_groups: int) -> float:
        """The share of flat groups: their rewards are all equal in every channel with a factor other than 0. Where
        rewards are not compared within groups, the whole batch is one group."""
        if self.advantage is None:
            group_ids = torch.zeros_like(group_ids)
            n_groups = 1
        is_flat = torch.ones(n_groups, dtype=torch.bool)  # until a channel has different rewards in the group
        for channel in channels:
            if channel.factor:
                group_of_reward = channel.rewards.gather_from_samples(group_ids)  # [rewards]
                is_flat &= group_is_flat(channel.rewards.unique_values, group_of_reward, n_groups)
        return float(is_flat.double().mean())

    def _channel_advantages(
        self, name: str, rewards: TokenRewards, samples: Sequence[Sample], group_ids: torch.Tensor, baselines: Baselines
    ) -> tuple[list[torch.Tensor], Baselines]:
        """The advantages of one channel, float64 ``[T]`` of each sample, and the baselines after it."""
        values = rewards.unique_values  # [rewards]
        if self.baseline is not None:  # the running mean of this channel over the earlier episodes of a role
            # For each reward the name of the mean that is subtracted, and the episode that it is of: [rewards].
            samples_of_rewards = [samples[index] for index in rewards.unique_samples.tolist()]
            keys = [f"{sample.role}/{name}" for sample in samples_of_rewards]
            episodes = [sample.episode_key for sample in samples_of_rewards]
            values, baselines = self.baseline.subtract_from(values, keys, episodes, baselines)
        if self.advantage is not None:
            group_of_reward = rewards.gather_from_samples(group_ids)
            advantages_of_rewards = self.advantage(values, group_of_reward)
            values = check_row(self.advantage, advantages_of_rewards, len(values), "rewards")

        # One [T] per sample: each reward's advantage on the token that the reward is placed on, 0 elsewhere.
        placed = put_on_tokens(samples, rewards, values)
        advantages = [reward_to_go(row) for row in placed]  # A(t): the sum of those at t or later

        # Samples without a value in this channel keep advantage 0.
        with_value = rewards.samples_with_value()
        if self.over_batch is not None and with_value:
            lengths = [len(advantages[i]) for i in with_value]
            joined = torch.cat([advantages[i] for i in with_value])  # all tokens of the batch, in one row
            rescaled_tokens = check_row(self.over_batch, self.over_batch(joined), len(joined), "tokens")
            rescaled = rescaled_tokens.split(lengths)
            for i, row in zip(with_value, rescaled, strict=True):
                advantages[i] = row
        return advantages, baselines


def _summed_rewards(
    samples: Sequence[Sample], rewards: Mapping[Signal, TokenRewards], weights: Mapping[Signal, float]
) -> TokenRewards:
    """One reward for each trajectory: the weighted sum over signals."""
    trajectories, n_trajectories = trajectories_of(samples)
    sums = torch.zeros(n_trajectories, dtype=torch.float64)
    for signal, weight in weights.items():
        signal_rewards = rewards[signal]
        # The factor 1/K of ``step_scale`` is in the values already. The span weight is applied here: 1/2 where two
        # reviews judged one step, so that the step counts once, with their mean; 1 for a whole answer.
        values = signal_rewards.unique_values * signal_rewards.unique_span_weights  # [rewards]
        trajectory_of_reward = signal_rewards.gather_from_samples(trajectories)
        sums.index_add_(0, trajectory_of_reward, weight * values)
    return one_per_trajectory(samples, sums)


def _mean_absolute(tokens: Sequence[torch.Tensor]) -> float:
    """Mean |A| over all tokens, 0 without any."""
    count = sum(map(len, tokens))
    if not count:
        return 0.0
    return float(sum(row.abs().sum() for row in tokens)) / count


def _reward_metrics(samples: Sequence[Sample], rewards: Mapping[Signal, TokenRewards]) -> dict[str, float]:
    """Means over trajectories.

    reward/x     the mean of a per-answer reward
    coverage/x   the share of trajectories in which a span has a reward
    count/x      the number of such spans, in the trajectories that have any
    """
    if not samples:
        return {}

    metrics: dict[str, float] = {}
    trajectories, n_trajectories = trajectories_of(samples)
    for signal, signal_rewards in rewards.items():
        if signal.per == "answer":
            values = signal_rewards.unique_values.tolist()
            metrics[f"reward/{signal.name}"] = sum(values) / n_trajectories
            continue

        n_spans = [0] * n_trajectories
        for trajectory, sample in zip(trajectories.tolist(), samples, strict=True):
            spans = {reward.tokens for reward in sample.rewards_for(signal)}  # several rewards may be on one span
            n_spans[trajectory] += len(spans)
        with_spans = [count for count in n_spans if count]
        metrics[f"coverage/{signal.name}"] = len(with_spans) / n_trajectories
        if with_spans:
            metrics[f"count/{signal.name}"] = sum(with_spans) / len(with_spans)
    return metrics
