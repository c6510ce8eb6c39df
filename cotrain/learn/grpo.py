"""GRPO (DeepSeekMath, arXiv 2402.03300) with several reward channels, mixed as RL Tango mixes them (arXiv 2505.15034).

Every signal named in ``mix`` is a channel. Each channel is normalised on its own, within the traces that share a
group; then *advantages* are mixed, never rewards. With outcome channels o (whole traces), process channels p (spans,
named in ``process``), and weights at s updates of S planned:

    A(i,t) = (1 − Σ_p α_p) · Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            blend="convex" (Tango)
    A(i,t) =                 Σ_o w_o A_o(i) + Σ_p α_p A_p(i,t)            blend="add"

``mix={"outcome": 1.0, "step": decay(0.1, 1e-3)}`` is Tango's generator. Its verifier is paid one reward, agreement +
0.8 · format: ``mix={"agreement": 1.0, "format": 0.8}, merge=True`` adds up the whole-trace signals before anything is
normalised. A trace without step signals (its review could not be read) has process advantage 0, and its outcome
advantage keeps the factor 1 − α. A trace that lacks a whole-trace signal is dropped and counted.

Groups in which no token has an advantage teach nothing and are dropped before they cost a forward pass; totals of the
normaliser then count the others alone, and the KL term does not see them. ``drop_zero_spread=False`` keeps them.

Left out: length penalties, dynamic resampling until enough groups have spread, several epochs over a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from cotrain.core.errors import ConfigError, StateError, UnknownName
from cotrain.core.state import State, take
from cotrain.functional.credit import ema_baseline
from cotrain.functional.reductions import Normalise
from cotrain.learn.balance import ClassBalance, Counts, class_weights, update_counts
from cotrain.learn.channels import ESTIMATORS, Centre, Channel, Estimator, centre_of, step_channel, whole_channel
from cotrain.learn.contract import Annotated, Credit, Loss, MicroBatch, Needs, Normaliser
from cotrain.learn.mixing import Mixing, refuse_weightless, weight_at
from cotrain.learn.policy_term import Kl, PolicyTerm, Ratio, policy_loss
from cotrain.learn.signals import Reading, StepScale, check_step_scale, read_all, sample_of
from cotrain.learn.subsample import Subsample, draw

MERGED = "merged"  # name of the channel that holds the sum of all whole-trace signals


@dataclass(slots=True)
class _Memory:
    """What an instance remembers between updates."""

    baselines: dict[str, tuple[float, int]] = field(default_factory=dict)  # "role/channel" → running mean, batches
    classes: Counts = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Grpo:
    """Settings, and the state of baseline and class balance. ``dataclasses.replace`` gives a copy without history."""

    mix: Mapping[str, float | Mixing]  # signal → weight
    process: tuple[str, ...] = ("step",)  # those of ``mix`` that are given for spans of tokens
    merge: bool = False  # add up the weighted whole-trace signals to one reward before normalising
    blend: Literal["convex", "add"] = "convex"
    estimator: Estimator = "grpo"  # see channels.py
    std: bool = True  # divide by the sample standard deviation (n − 1); False: Dr. GRPO
    step_scale: StepScale = "1/K"  # a step of a trace of K steps is worth ±1/K (Tango), or ±1 ("one")
    drop_zero_spread: bool = True
    balance: ClassBalance | None = None
    subsample: Subsample | None = None  # of every group, after advantages; see subsample.py
    baseline_decay: float = 0.95  # of the running mean of "ema"
    clip: tuple[float, float] | None = (0.2, 0.2)  # (low, high); None for plain REINFORCE
    ratio: Ratio = "token"  # "sequence": GSPO
    truncate: float | None = None  # cap of the importance weight of plain REINFORCE
    shaping: float | None = None  # γ of the loss of off-policy samples, see policy_term.py
    normalise: Normalise = "token"
    constant: float | None = None  # tokens per sequence, with normalise="constant"
    kl: Kl | None = None
    entropy: float = 0.0
    _memory: _Memory = field(init=False, repr=False, compare=False, default_factory=_Memory)

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not self.mix:
            raise ConfigError(f"{name}: mix names no signal; expected for example mix={{'outcome': 1.0}}")
        refuse_weightless(name, self.mix)
        if self.estimator not in ESTIMATORS:
            raise UnknownName("estimator", self.estimator, ESTIMATORS)
        if self.blend not in ("convex", "add"):
            raise UnknownName("blend", self.blend, ("add", "convex"))
        if not 0.0 <= self.baseline_decay < 1.0:
            raise ConfigError(f"{name}: baseline_decay {self.baseline_decay} must be in [0, 1)")
        if self.balance is not None and self.balance.label in self.mix:
            raise ConfigError(f"{name}: {self.balance.label!r} is both a reward and the label of the class balance")
        if self.merge and not self._outcomes:
            raise ConfigError(f"{name}: merge=True, but mix has no whole-trace signal to add up")
        check_step_scale(self.step_scale)
        self._term()
        if self.blend == "convex":
            for edge in (0, 1):
                self._rest({n: weight_at(self.mix[n], edge, 1) for n in self._steps})

    @property
    def _steps(self) -> list[str]:
        return [name for name in self.mix if name in self.process]

    @property
    def _outcomes(self) -> list[str]:
        return [name for name in self.mix if name not in self.process]

    def _term(self) -> PolicyTerm:
        return PolicyTerm(
            clip=self.clip,
            ratio=self.ratio,
            truncate=self.truncate,
            shaping=self.shaping,
            normalise=self.normalise,
            constant=self.constant,
            kl=self.kl,
            entropy=self.entropy,
        )

    def _rest(self, alphas: Mapping[str, float]) -> float:
        """1 − Σ_p α_p."""
        rest = 1.0 - sum(alphas.values())
        if any(not 0.0 <= alpha <= 1.0 for alpha in alphas.values()) or rest < -1e-9:
            raise ConfigError(
                f"{type(self).__name__}: weights of process channels {dict(alphas)} must lie in [0, 1] and add up to "
                "at most 1, the outcome has the rest; use blend='add' for free weights"
            )
        return rest

    def needs(self) -> Needs:
        return Needs(
            group=2 if self.estimator in ("grpo", "rloo") else 1,
            reference=self.kl.reference if self.kl else None,
            entropy=self.entropy != 0.0,
        )

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        label = self.balance.label if self.balance else None
        read = read_all(traces, whole=self._outcomes, process=self._steps, step_scale=self.step_scale, label=label)
        readings, dropped = read.kept, dict(read.dropped)
        weights = {name: weight_at(weight, updates, planned) for name, weight in self.mix.items()}
        names = list(dict.fromkeys(r.annotated.trace.group for r in readings))
        index = {name: i for i, name in enumerate(names)}
        pools = torch.tensor([index[r.annotated.trace.group] for r in readings], dtype=torch.int64)
        channels, factors = self._channels(readings, weights, pools, len(names))

        mixed = [torch.zeros(reading.length, dtype=torch.float64) for reading in readings]
        flat = torch.ones(len(names), dtype=torch.bool)
        for name, channel in channels.items():
            if factors[name]:
                flat &= channel.flat
                for total, part in zip(mixed, channel.tokens, strict=True):
                    total += factors[name] * part

        alive = {int(pool) for pool, total in zip(pools, mixed, strict=True) if bool(total.any())}
        kept = [i for i in range(len(readings)) if int(pools[i]) in alive or not self.drop_zero_spread]
        if len(kept) < len(readings):
            dropped["zero_spread"] = len(readings) - len(kept)
        if self.subsample is not None:
            drawn = self._subsample(readings, kept, mixed)
            if left := len(set(kept) - set(drawn)):
                dropped["subsample"] = left
            kept = drawn
        scales, balance_metrics = self._balance(readings, kept)
        samples = tuple(sample_of(readings[i].annotated, mixed[i], weight=w) for i, w in zip(kept, scales, strict=True))

        metrics = {"traces": float(len(readings)), "groups": float(len(names))}
        if names:
            metrics["zero_spread_groups"] = float(flat.double().mean())
        for name in self._outcomes:
            if readings:
                metrics[f"reward/{name}"] = sum(r.whole[name] for r in readings) / len(readings)
        for name in self._steps:
            counts = [r.steps[name].count for r in readings if r.steps[name].count]
            if readings:
                metrics[f"coverage/{name}"] = len(counts) / len(readings)
            if counts:
                metrics[f"count/{name}"] = sum(counts) / len(counts)
        for name, channel in channels.items():
            metrics[f"advantage/{name}"] = channel.magnitude
            metrics[f"mix/{name}"] = factors[name]
        return Credit(samples=samples, metrics=metrics | balance_metrics, dropped=dropped)

    def _channels(
        self, readings: Sequence[Reading], weights: Mapping[str, float], pools: torch.Tensor, groups: int
    ) -> tuple[dict[str, Channel], dict[str, float]]:
        """All channels, and the factor by which the advantages of each enter the mixture."""
        whitened = self.estimator == "reinforce++"
        rest = self._rest({n: weights[n] for n in self._steps}) if self.blend == "convex" else 1.0
        outcomes = {n: [r.whole[n] for r in readings] for n in self._outcomes}
        factors = {n: rest * weights[n] for n in self._outcomes} | {n: weights[n] for n in self._steps}
        if self.merge:
            sums = [sum(weights[n] * r.whole[n] for n in self._outcomes) for r in readings]
            outcomes = {MERGED: sums}
            factors = {MERGED: rest} | {n: weights[n] for n in self._steps}
        channels = {
            n: whole_channel(readings, values, pools, groups, self._centre(n, readings, whole=True), whitened)
            for n, values in outcomes.items()
        }
        for n in self._steps:
            centre = self._centre(n, readings, whole=False)
            channels[n] = step_channel(readings, n, pools, groups, centre, whitened)
        return channels, factors

    def _centre(self, name: str, readings: Sequence[Reading], *, whole: bool) -> Centre:
        if self.estimator != "ema":
            return centre_of(self.estimator, self.std)
        roles = [r.annotated.trace.role for r in readings for _ in range(1 if whole else len(r.steps[name].values))]

        def running_mean(values: torch.Tensor, pools: torch.Tensor) -> torch.Tensor:
            centred = torch.zeros_like(values)
            for role in sorted(set(roles)):
                mine = torch.tensor([r == role for r in roles])
                ema, count = self._memory.baselines.get(f"{role}/{name}", (0.0, 0))
                centred[mine], ema, count = ema_baseline(values[mine], ema, count, decay=self.baseline_decay)
                self._memory.baselines[f"{role}/{name}"] = (ema, count)
            return centred

        return running_mean

    def _subsample(
        self, readings: Sequence[Reading], kept: Sequence[int], advantages: Sequence[torch.Tensor]
    ) -> list[int]:
        assert self.subsample is not None
        groups: dict[str, list[int]] = {}
        for i in kept:
            groups.setdefault(readings[i].annotated.trace.group, []).append(i)
        drawn: list[int] = []
        for mine in groups.values():
            keys = [str(readings[i].annotated.trace.address) for i in mine]
            drawn += [mine[j] for j in draw(self.subsample, keys, [float(advantages[i].abs().mean()) for i in mine])]
        return sorted(drawn)

    def _balance(self, readings: Sequence[Reading], kept: Sequence[int]) -> tuple[list[float], dict[str, float]]:
        """Weights of the kept traces; the counts are those of all traces, as if none had been dropped."""
        if self.balance is None:
            return [1.0] * len(kept), {}
        labels = [r.label for r in readings]
        if labels and all(label is None for label in labels):
            raise ConfigError(
                f"{type(self).__name__}: the class balance reads signal {self.balance.label!r}, but no trace has it; "
                "let the protocol reward it with 1 or 0"
            )
        counts = self._memory.classes = update_counts(self._memory.classes, labels, self.balance.ema)
        scales = class_weights(counts, [labels[i] for i in kept], self.balance.power)
        metrics = {"balance/unlabelled": float(sum(label is None for label in labels))}
        if sum(counts) > 0.0:
            metrics["balance/positive"] = counts[1] / sum(counts)
        for side, wanted in (("negative", False), ("positive", True)):
            mine = [scale for i, scale in zip(kept, scales, strict=True) if labels[i] is wanted]
            if mine:
                metrics[f"balance/weight_{side}"] = mine[0]
        return scales, metrics

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return policy_loss(self._term(), predictions, entropy, batch, normaliser)

    def state(self) -> State:
        baselines = {key: [ema, count] for key, (ema, count) in sorted(self._memory.baselines.items())}
        return {"baselines": baselines, "classes": list(self._memory.classes)}

    def load(self, state: State) -> None:
        baselines, classes = take(type(self).__name__, state, "baselines", "classes")
        if len(classes) != 2 or any(len(entry) != 2 for entry in baselines.values()):
            raise StateError(f"state of {type(self).__name__} does not fit: classes {classes}, baselines {baselines}")
        self._memory.baselines = {key: (float(ema), int(count)) for key, (ema, count) in baselines.items()}
        self._memory.classes = (float(classes[0]), float(classes[1]))
