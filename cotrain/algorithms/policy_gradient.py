"""Policy gradient from rewards: GRPO and its relatives. From the rewards of a batch to its loss, top to bottom.

    GRPO (DeepSeekMath, arXiv 2402.03300) with one reward an answer, in groups of answers to one problem:

    A_i     = (r_i − mean of the group) / standard deviation of the group            ``z_score``
    ρ_it    = π(y_it) / π_sampler(y_it)                                                ``PPOClip``
    l_it    = −min(ρ_it A_i, clip(ρ_it, 1 − low, 1 + high) A_i)                        ``PPOClip``
    KL_it   = π_ref / π − 1 − log(π_ref / π)                                           ``KLPenalty``, estimator k3
    L       = reduce(w_i l_it) + β reduce(KL_it) − η reduce(H_it)                      ``policy_loss``

1. ``PolicyGradient.credit``: rewards → advantages. 2. ``policy_loss``: advantages → loss. The pure functions that they
call are in ``algorithms/functional/``, each with its equation; ``grpo.py`` has the usual combinations by name.

**Several rewards.** Every signal of ``rewards`` is a channel. Its values are compared (``baseline``, ``advantage``),
stand on the last token of the answer or span, and are summed towards the front: A(t) = Σ_{k: end_k ≥ t} z_k, so an
outcome reaches every token and a token answers for every step that ends at it or later. ``over_batch`` may rescale
them over all tokens. Then *advantages* are mixed. With channels o per answer and p per span, and weights at s updates
of S planned:

    A(i,t) = (1 − Σ_p α_p) · Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            advantage_mix="convex" (RL Tango, arXiv
    2505.15034) A(i,t) =                 Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            advantage_mix="add"

Or *rewards* are added before anything is compared, and every token of an answer has the same advantage:

    r(i) = Σ_o w_o r_o(i) + Σ_p α_p r_p(i)                                advantage_mix="reward"

with r_p(i) the mean of an answer's values per span (``step_scale="1/K"``) or their sum ("one"), and 0 for an answer
without any.

``reward_weights={OUTCOME: 1.0, STEP: decay(0.1, 1e-3)}`` is Tango's generator. Its verifier is paid one reward,
agreement +
0.8 · format: ``reward_weights={AGREEMENT: 1.0, FORMAT: 0.8}, sum_rewards_first=True`` adds up the per-answer values
before anything is compared. A sample without steps (its review could not be read) has process advantage 0, and its
outcome advantage keeps the factor 1 − α; the steps of a group are one pool, so samples of many steps weigh more in it.
A sample that lacks a per-answer reward is dropped and counted. Samples of one trajectory share a reward of the whole:
it is one value of its group, and its advantage goes to all of them. Roles in ``beside`` are in the groups and in these
metrics, and are learned from by nobody here: so two policies can share one mean and deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from cotrain.algorithms.class_balance import ClassBalance
from cotrain.algorithms.contract import Batch, Credit, Loss, MicroBatch, Needs, Normaliser, Sample
from cotrain.algorithms.functional.credit import group_is_flat, group_mean_std, leave_one_out, reward_to_go
from cotrain.algorithms.functional.late_torch import torch
from cotrain.algorithms.functional.policy_losses import KL_ESTIMATORS, clipped_ratio_loss, kl_estimate, token_log_ratio
from cotrain.algorithms.functional.policy_losses import KLEstimator as KlEstimator
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
    on_tokens,
    place_rewards,
    trajectories_of,
    usable_samples,
    weight_at,
)
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import Signal
from cotrain.core.types import State

# -- Advantage estimators: what a value is worth beside the others of its group. Each is a function that is passed.
#
#     z_score         (r − mean) / std         GRPO, arXiv 2402.03300
#     mean_baseline   r − mean                 Dr. GRPO, arXiv 2503.20783
#     leave_one_out   r − mean of the others   RLOO, arXiv 2402.14740
#
# ``values`` ``[N]`` float64 are the rewards of one channel and ``pools`` ``[N]`` the index of each one's group; the
# result is ``[N]``, 0 in a group without spread. Another estimator
# is another such function (docs/new-estimator.md).


__all__ = ["AdvantageFn", "RunningMean", "leave_one_out", "mean_baseline", "z_score"]

AdvantageFn = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]  # values [N], pools [N] → advantages [N]


def z_score(values: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group, divided by its sample standard deviation (n − 1, as verl and RL Tango have it)."""
    return group_mean_std(values, group_ids, std="sample")


def mean_baseline(values: torch.Tensor, group_ids: torch.Tensor) -> torch.Tensor:
    """Minus the mean of the group."""
    return group_mean_std(values, group_ids, std=None)


# -- what is done to samples before their rewards are compared, or once their advantages are known (and
# ``advantage_edits.py``)

SampleEdit = Callable[[Sequence[Sample]], tuple[list[Sample], dict[str, int]]]


def drop_flat_groups(samples: Sequence[Sample]) -> tuple[list[Sample], dict[str, int]]:
    """Groups in which no token has an advantage teach nothing and would cost a forward pass. The totals of the
    normaliser then count the others alone, and the KL term does not see them."""
    alive = {sample.group for sample in samples if bool(sample.advantages.any())}
    kept = [sample for sample in samples if sample.group in alive]
    return kept, {"zero_spread": len(samples) - len(kept)} if len(kept) < len(samples) else {}


# -- The loss: the clipped ratio at each token, the KL term, and the sum over tokens.
#
# Old log-probabilities are those of the sampler. In the first update of a batch the policy that samples is the policy
# that learns, and ρ = 1 up to rounding. After it (``updates_per_batch``), and with a lag
# (``trainer/async_rollouts.py``), ρ corrects for the updates between them, and a loss without ρ is refused.
# ``sampler_trainer_diff`` is the distance of the two; what is too far off is left out where an engine holds its own
# weights. Not done: recomputing old log-probabilities.


@dataclass(frozen=True, slots=True)
class PPOClip:
    """The clipped ratio of each token."""

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
    estimator: KlEstimator = "k3"

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


def kl_penalty(to: str, weight: float) -> KLPenalty | None:
    """``KLPenalty``, or None where the coefficient is 0: then no reference is scored."""
    return KLPenalty(to, weight) if weight else None


def policy_loss(
    logprobs: torch.Tensor,
    entropy: torch.Tensor | None,
    batch: MicroBatch,
    normaliser: Normaliser,
    *,
    loss: TokenLoss,
    normalise: Normalise = "token",
    constant: float | None = None,
    kl: KLPenalty | None = None,
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
            raise ConfigError(
                f"the samples lack log-probabilities of {kl.to!r}, the reference of the KL term",
                code="E_REFERENCE_LOGPROBS_MISSING",
            )
        observed["kl"] = kl_estimate(logprobs, batch.reference, kl.estimator)
        value = value + kl.weight * reduce_term(observed["kl"])
    if entropy is not None:
        observed["entropy"] = entropy
        value = value - bonus * reduce_term(entropy)
    elif bonus:
        raise ConfigError(
            f"an entropy bonus of {bonus} needs the entropy of each token; none was given", code="E_ENTROPY_MISSING"
        )
    return Loss(value=value, sums={name: masked_sum(x.detach(), mask) for name, x in observed.items()})


def check_loss(loss: TokenLoss, normalise: Normalise = "token", constant: float | None = None) -> None:
    """Raise ConfigError unless ``policy_loss`` can work with these."""
    if not callable(loss):
        raise ConfigError(
            f"loss is {loss!r}, expected a function such as PPOClip(0.2, 0.2) or one of algorithms/policy_loss.py",
            code="E_LOSS_NOT_FUNCTION",
        )
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
    """Does it weigh samples by how much likelier they are to the learner than to whoever drew them? A user's own is
    taken to."""
    if isinstance(loss, Shaped):
        return uses_ratio(loss.otherwise)
    return not (isinstance(loss, ScoreFunction) and loss.cap is None)


def has_other_terms(loss: TokenLoss, kl: KLPenalty | None, bonus: float) -> bool:
    """May a sample without any advantage have a gradient? By KL or entropy, or by a user's own loss."""
    own = loss.otherwise if isinstance(loss, Shaped) else loss
    known = isinstance(own, PPOClip | GSPOClip | ScoreFunction)
    return not known or bool(bonus) or (kl is not None and kl.weight != 0.0)


@dataclass(frozen=True, kw_only=True)
class PolicyLoss:
    """Options of ``policy_loss`` for an algorithm that uses it."""

    loss: TokenLoss = PPO_CLIP
    normalise: Normalise = "token"
    constant: float | None = None  # tokens per sequence, with normalise="constant"
    kl: KLPenalty | None = None
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


# -- The algorithm: from rewards to advantages; its loss is ``policy_loss``.


OverBatch = Callable[["torch.Tensor"], "torch.Tensor"]  # [N] → [N], N tokens of the whole batch
SUMMED = "merged"  # name of the channel that holds a sum of rewards


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(PolicyLoss):
    """GRPO and its relatives. Baselines and class counts are the state that ``credit`` returns."""

    reward_weights: RewardWeights  # signal → weight of its advantages
    sum_rewards_first: bool = False  # add up the weighted per-answer rewards before advantages are computed
    advantage_mix: AdvantageMix = "convex"
    step_scale: StepScale = "1/K"  # reward of one step among K: ±1/K (Tango), or ±1 ("one")
    baseline: RunningMean | None = None  # baseline that is subtracted first
    advantage: AdvantageFn | None = z_score  # values [N], group ids [N] → advantages [N]; None: no comparison within
    # groups
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
        if self.advantage is not None and not callable(self.advantage):
            raise ConfigError(
                f"{name}: advantage is {self.advantage!r}, expected a function such as z_score, or None",
                code="E_ADVANTAGE_NOT_FUNCTION",
            )
        if self.advantage_mix not in ADVANTAGE_MIXES:
            raise UnknownName("advantage_mix", self.advantage_mix, ADVANTAGE_MIXES)
        if self.balance is not None and self.balance.class_label in self.reward_weights:
            raise ConfigError(
                f"{name}: {self.balance.class_label.name!r} is both a reward and the label of the class balance",
                code="E_REWARD_IS_CLASS_LABEL",
            )
        if self.sum_rewards_first and not self._signals_of_kind("answer"):
            raise ConfigError(
                f"{name}: sum_rewards_first=True, but rewards has no per-answer signal to add up",
                code="E_NO_SIGNAL_TO_SUM",
            )
        for edge in (0, 1):  # weights that decay are checked at both ends
            self._outcome_share({signal: weight_at(weight, edge, 1) for signal, weight in self.reward_weights.items()})

    def _signals_of_kind(self, per: str) -> list[Signal]:
        return [signal for signal in self.reward_weights if signal.per == per]

    def _outcome_share(self, weights: Mapping[Signal, float]) -> float:
        """Weight of the per-answer channels: 1 − Σ_p α_p, or 1."""
        if self.advantage_mix != "convex":
            return 1.0
        alphas = {signal.name: weights[signal] for signal in self._signals_of_kind("span")}
        outcome_share = 1.0 - sum(alphas.values())
        if any(not 0.0 <= alpha <= 1.0 for alpha in alphas.values()) or outcome_share < -1e-9:
            raise ConfigError(
                f"{type(self).__name__}: weights of per-span rewards {alphas} must lie in [0, 1] and add up to at most "
                "1, the outcome has the rest; use advantage_mix='add' for free weights",
                code="E_SPAN_WEIGHTS",
            )
        return outcome_share

    def needs(self) -> Needs:
        return Needs(
            reward_signals=(*self.reward_weights, *([self.balance.class_label] if self.balance else [])),
            off_policy_corrected=uses_ratio(self.loss),
            min_group_size=2 if self.advantage and self.reward_weights else 1,
            reference=self.kl.to if self.kl else None,
            entropy=self.entropy != 0.0,
            zero_advantage_has_gradient=has_other_terms(self.loss, self.kl, self.entropy),
            baseline_roles=self.baseline_roles,
        )

    def credit(self, batch: Batch, state: State) -> tuple[Credit, State]:
        # 1. The samples that have every reward of a whole answer, and their groups.
        samples, dropped = usable_samples(batch.samples, self.reward_weights)
        for change in self.edit_before:
            samples, left_out = change(samples)
            dropped |= left_out
        group_index, n_groups = index_groups(samples)

        # 2. Their rewards at the tokens that they were given for, and the weight of each reward now.
        rewards = {signal: place_rewards(samples, signal, self.step_scale) for signal in self.reward_weights}
        weights = {
            signal: weight_at(weight, batch.updates, batch.planned) for signal, weight in self.reward_weights.items()
        }
        metrics = {"traces": float(len(samples)), "groups": float(n_groups)} | _reward_metrics(samples, rewards)
        if self.advantage_mix == "reward":  # with one summed reward there is one channel, so the weights of its parts
            # are reported here
            metrics |= {f"advantage_mix/{signal.name}": weight for signal, weight in weights.items()}

        # 3. The advantages of each channel, mixed.
        baselines: Baselines = state.get("baselines", {})
        mixed = [torch.zeros(len(sample.token_ids), dtype=torch.float64) for sample in samples]
        compare_ids = group_index
        n_compared = n_groups
        if self.advantage is None:  # without an estimator of groups a reward is compared with all of the batch
            compare_ids = torch.zeros_like(group_index)
            n_compared = min(n_groups, 1)
        has_no_spread = torch.ones(n_compared, dtype=torch.bool)
        for name, (channel, factor) in self._reward_channels(samples, rewards, weights).items():
            tokens, baselines = self._channel_advantages(name, channel, samples, group_index, baselines)
            metrics |= {f"advantage/{name}": _mean_absolute(tokens), f"advantage_mix/{name}": factor}
            if factor:
                owners = channel.sample_index[channel.first_index]
                has_no_spread &= group_is_flat(channel.values[channel.first_index], compare_ids[owners], n_compared)
                for total, part in zip(mixed, tokens, strict=True):
                    total += factor * part
        if n_groups and self.reward_weights:
            metrics["zero_spread_groups"] = float(has_no_spread.double().mean())

        # 4. What is learned from: the roles that are trained, in groups that have an advantage.
        learned = [
            replace(sample, advantages=advantages)
            for sample, advantages in zip(samples, mixed, strict=True)
            if sample.role not in self.baseline_roles
        ]
        for change in self.edit_after:
            learned, left_out = change(learned)
            dropped |= left_out

        # 5. What is remembered: baselines, and the counts of class balance, which weighs samples.
        memory: State = {}
        if self.baseline is not None:
            memory["baselines"] = dict(sorted(baselines.items()))
        if self.balance is not None:
            counts = state.get("classes", (0.0, 0.0))
            learned, memory["classes"], balance_metrics = self.balance.weigh_samples(samples, learned, counts)
            metrics |= balance_metrics
        rounded = tuple(replace(sample, advantages=sample.advantages.to(torch.float32)) for sample in learned)
        return Credit(samples=rounded, metrics=metrics, dropped=dropped), memory

    def _reward_channels(
        self, samples: Sequence[Sample], rewards: Mapping[Signal, TokenRewards], weights: Mapping[Signal, float]
    ) -> dict[str, tuple[TokenRewards, float]]:
        """All channels, per-answer ones first, with the factor by which their advantages enter the mixture."""
        outcome_share, answers = self._outcome_share(weights), self._signals_of_kind("answer")
        spans = self._signals_of_kind("span")
        if self.advantage_mix == "reward":
            return {SUMMED: (_summed_rewards(samples, rewards, weights), outcome_share)}
        if self.sum_rewards_first:
            answer_weights = {signal: weights[signal] for signal in answers}
            channels = {SUMMED: (_summed_rewards(samples, rewards, answer_weights), outcome_share)}
        else:
            channels = {signal.name: (rewards[signal], outcome_share * weights[signal]) for signal in answers}
        return channels | {signal.name: (rewards[signal], weights[signal]) for signal in spans}

    def _channel_advantages(
        self, name: str, channel: TokenRewards, samples: Sequence[Sample], group_ids: torch.Tensor, baselines: Baselines
    ) -> tuple[list[torch.Tensor], Baselines]:
        """The advantages of one channel, float64 ``[T]`` of each sample, and the baselines after it."""
        values, owners = channel.values[channel.first_index], channel.sample_index[channel.first_index]
        if self.baseline is not None:
            keys = [f"{samples[owner].role}/{name}" for owner in owners.tolist()]
            games = [samples[owner].episode_key for owner in owners.tolist()]
            values, baselines = self.baseline(values, keys, games, baselines)
        if self.advantage is not None:
            values = self.advantage(values, group_ids[owners])
        tokens = [reward_to_go(part) for part in on_tokens(samples, channel, values[channel.reward_index])]
        valued_indices = sorted(set(channel.sample_index.tolist()))  # samples without a value in this channel keep
        # advantage 0
        if self.over_batch is not None and valued_indices:
            lengths = [len(tokens[i]) for i in valued_indices]
            rescaled = self.over_batch(torch.cat([tokens[i] for i in valued_indices])).split(lengths)
            for i, part in zip(valued_indices, rescaled, strict=True):
                tokens[i] = part
        return tokens, baselines


def _summed_rewards(
    samples: Sequence[Sample], rewards: Mapping[Signal, TokenRewards], weights: Mapping[Signal, float]
) -> TokenRewards:
    """One value for each trajectory, on the last token of its samples: the weighted sum of all its values. Several
    values of one span count as their mean."""
    trajectories, count = trajectories_of(samples)
    totals = torch.zeros(count, dtype=torch.float64)
    for signal, weight in weights.items():
        channel = rewards[signal]
        given = channel.values[channel.first_index] * channel.shares[channel.first_index]
        totals.index_add_(0, trajectories[channel.sample_index[channel.first_index]], weight * given)
    firsts = dict(reversed([(trajectory, at) for at, trajectory in enumerate(trajectories.tolist())]))
    return TokenRewards(
        values=totals[trajectories],
        shares=torch.ones(len(samples), dtype=torch.float64),
        token_index=torch.tensor([len(sample.token_ids) - 1 for sample in samples], dtype=torch.int64),
        sample_index=torch.arange(len(samples)),
        first_index=torch.tensor([firsts[trajectory] for trajectory in range(count)], dtype=torch.int64),
        reward_index=trajectories,
    )


def _mean_absolute(tokens: Sequence[torch.Tensor]) -> float:
    """Mean |A| over tokens."""
    count = sum(map(len, tokens))
    return float(sum(part.abs().sum() for part in tokens)) / count if count else 0.0


def _reward_metrics(samples: Sequence[Sample], channels: Mapping[Signal, TokenRewards]) -> dict[str, float]:
    """Means over trajectories: of per-answer rewards; of per-span ones the share that has any, and how many spans these
    have."""
    metrics: dict[str, float] = {}
    trajectories, number = trajectories_of(samples)
    for signal, channel in channels.items() if samples else ():
        if signal.per == "answer":
            metrics[f"reward/{signal.name}"] = sum(channel.values[channel.first_index].tolist()) / number
            continue
        counts = [0] * number
        for trajectory, sample in zip(trajectories.tolist(), samples, strict=True):
            counts[trajectory] += len({reward.tokens for reward in sample.rewards_for(signal)})
        span_counts = [count for count in counts if count]
        metrics[f"coverage/{signal.name}"] = len(span_counts) / number
        if span_counts:
            metrics[f"count/{signal.name}"] = sum(span_counts) / len(span_counts)
    return metrics
