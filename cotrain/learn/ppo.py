"""PPO (arXiv 1707.06347) with a critic: advantages from generalised estimation (GAE, arXiv 1506.02438).

Two objectives on two policies: ``Ppo`` trains the one that speaks, ``ValueRegression`` the critic, a policy that
learns without speaking. Both read the values that were annotated before either was updated.

Here rewards are added up, since one critic predicts one return: whole-trace signals stand on the last token, span
signals on the last token of their span, each times its weight. A trace without span signals has none to add.

Left out: several epochs over a batch, and a KL penalty inside the reward (use ``kl=``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from cotrain.core.errors import ConfigError
from cotrain.core.state import State, take
from cotrain.functional.credit import place, whiten
from cotrain.functional.reductions import Normalise, masked_sum, reduce_loss
from cotrain.functional.values import gae, value_loss
from cotrain.learn.contract import Annotated, Credit, Loss, MicroBatch, Needs, Normaliser
from cotrain.learn.mixing import refuse_weightless
from cotrain.learn.policy_term import Kl, PolicyTerm, policy_loss
from cotrain.learn.signals import Reading, StepScale, check_step_scale, read_all, sample_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """How signals become one stream of token rewards."""

    mix: Mapping[str, float]  # signal → weight
    process: tuple[str, ...] = ("step",)  # those of ``mix`` that are given for spans of tokens
    step_scale: StepScale = "1/K"

    def __post_init__(self) -> None:
        if not self.mix:
            raise ConfigError("mix names no signal; expected for example mix={'outcome': 1.0}")
        refuse_weightless("mix", self.mix)
        check_step_scale(self.step_scale)

    def read(self, traces: Sequence[Annotated]) -> tuple[list[Reading], dict[str, int]]:
        whole = [name for name in self.mix if name not in self.process]
        steps = [name for name in self.mix if name in self.process]
        read = read_all(traces, whole=whole, process=steps, step_scale=self.step_scale)
        return read.kept, dict(read.dropped)

    def tokens(self, reading: Reading) -> torch.Tensor:
        """float64 ``[T]``: the reward after each token."""
        rewards = torch.zeros(reading.length, dtype=torch.float64)
        for name, steps in reading.steps.items():
            values = torch.tensor(steps.values, dtype=torch.float64) * torch.tensor(steps.shares, dtype=torch.float64)
            rewards += self.mix[name] * place(values, torch.tensor(steps.ends, dtype=torch.int64), reading.length)
        rewards[-1] += sum(self.mix[name] * value for name, value in reading.whole.items())
        return rewards


@dataclass(frozen=True, kw_only=True)
class Ppo:
    """The policy's side. ``values`` names the critic's policy."""

    mix: Mapping[str, float]
    values: str = "critic"
    process: tuple[str, ...] = ("step",)
    step_scale: StepScale = "1/K"
    gamma: float = 1.0
    lam: float = 0.95
    whiten: bool = True  # advantages over all tokens of the batch
    clip: tuple[float, float] = (0.2, 0.2)
    normalise: Normalise = "token"
    constant: float | None = None
    kl: Kl | None = None
    entropy: float = 0.0

    def __post_init__(self) -> None:
        _check_discounts(type(self).__name__, self.gamma, self.lam)
        self._rewards()
        self._term()

    def _rewards(self) -> Rewards:
        return Rewards(mix=self.mix, process=self.process, step_scale=self.step_scale)

    def _term(self) -> PolicyTerm:
        return PolicyTerm(
            clip=self.clip, normalise=self.normalise, constant=self.constant, kl=self.kl, entropy=self.entropy
        )

    def needs(self) -> Needs:
        reference = self.kl.reference if self.kl else None
        return Needs(values=self.values, reference=reference, entropy=self.entropy != 0.0)

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        rewards = self._rewards()
        readings, dropped = rewards.read(traces)
        streams = [rewards.tokens(reading) for reading in readings]
        advantages = []
        for reading, stream in zip(readings, streams, strict=True):
            values = _values(reading, self.values)
            advantages.append(gae(stream, values, gamma=self.gamma, lam=self.lam)[0])
        metrics = _reward_metrics(readings, streams)
        if advantages:
            metrics["advantage"] = float(torch.cat(advantages).abs().mean())
            if self.whiten:
                advantages = list(whiten(torch.cat(advantages)).split([len(a) for a in advantages]))
        samples = tuple(sample_of(r.annotated, a) for r, a in zip(readings, advantages, strict=True))
        return Credit(samples=samples, metrics=metrics, dropped=dropped)

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        return policy_loss(self._term(), predictions, entropy, batch, normaliser)

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)


@dataclass(frozen=True, kw_only=True)
class ValueRegression:
    """The critic's side: regression of λ-returns. ``values`` names its own policy where old values are needed.

    With λ = 1 and no clipping the target is the plain discounted reward-to-go and nothing has to be annotated.
    """

    mix: Mapping[str, float]
    values: str | None = "critic"
    process: tuple[str, ...] = ("step",)
    step_scale: StepScale = "1/K"
    gamma: float = 1.0
    lam: float = 1.0
    clip: float | None = None  # how far a value may move in one update and still be paid for it
    normalise: Normalise = "token"

    def __post_init__(self) -> None:
        _check_discounts(type(self).__name__, self.gamma, self.lam)
        if self.values is None and (self.lam != 1.0 or self.clip is not None):
            raise ConfigError("ValueRegression: lam < 1 and clip need old values; set values to the critic's policy")
        if self.clip is not None and not self.clip > 0.0:
            raise ConfigError(f"ValueRegression: clip {self.clip} must be positive")
        if self.normalise not in ("token", "sequence"):
            raise ConfigError(f"ValueRegression: normalise {self.normalise!r}, expected 'token' or 'sequence'")
        self._rewards()

    def _rewards(self) -> Rewards:
        return Rewards(mix=self.mix, process=self.process, step_scale=self.step_scale)

    def needs(self) -> Needs:
        return Needs(on_policy=False, values=self.values, head="value")

    def credit(self, traces: Sequence[Annotated], *, updates: int, planned: int) -> Credit:
        rewards = self._rewards()
        readings, dropped = rewards.read(traces)
        streams = [rewards.tokens(reading) for reading in readings]
        samples, left, spread = [], [], []
        for reading, stream in zip(readings, streams, strict=True):
            old = torch.zeros_like(stream) if self.values is None else _values(reading, self.values)
            returns = gae(stream, old, gamma=self.gamma, lam=self.lam)[1]
            left.append((returns - old).square())
            spread.append(returns)
            sample = sample_of(reading.annotated, torch.zeros_like(stream), temperature=1.0)
            samples.append(replace(sample, targets=returns.float(), old_values=old.float()))
        metrics = _reward_metrics(readings, streams)
        if spread and self.values is not None:  # 1 − E(R − V)² / Var R: 1 is a perfect critic, 0 is the mean
            variance = float(torch.cat(spread).var(correction=0))
            if variance > 0.0:
                metrics["explained_variance"] = 1.0 - float(torch.cat(left).mean()) / variance
        return Credit(samples=tuple(samples), metrics=metrics, dropped=dropped)

    def loss(
        self, predictions: torch.Tensor, entropy: torch.Tensor | None, batch: MicroBatch, normaliser: Normaliser
    ) -> Loss:
        if batch.targets is None:
            raise ConfigError("ValueRegression: the samples have no targets; they were made by another algorithm")
        losses = value_loss(predictions, batch.targets, old=batch.old_values, clip=self.clip)
        value = reduce_loss(
            losses,
            batch.mask,
            normalise=self.normalise,
            tokens=normaliser.tokens,
            sequences=normaliser.sequences,
            weights=batch.weights,
        )
        error = (predictions - batch.targets).abs()
        return Loss(value=value, sums={"value_error": masked_sum(error.detach(), batch.mask)})

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        take(type(self).__name__, state)


def _values(reading: Reading, policy: str) -> torch.Tensor:
    values = reading.annotated.values
    if values is None or len(values) != reading.length:
        where = f"trace {reading.annotated.trace.address} of {reading.length} tokens"
        raise ConfigError(f"{where} has {0 if values is None else len(values)} values of policy {policy!r}")
    return values.to(torch.float64)


def _reward_metrics(readings: Sequence[Reading], streams: Sequence[torch.Tensor]) -> dict[str, float]:
    metrics = {"traces": float(len(readings))}
    if readings:
        metrics["return"] = float(sum(stream.sum() for stream in streams)) / len(readings)
    return metrics


def _check_discounts(name: str, gamma: float, lam: float) -> None:
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ConfigError(f"{name}: gamma {gamma} and lam {lam} must be in [0, 1]")
