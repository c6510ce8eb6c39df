"""What each metric means, in words a reader needs: label, unit, which direction is good, where it is healthy.

A metric's name is ``{role or policy}/{metric}``, with the name of a further split in front or behind. Unknown metrics
are shown under their own name, without a band. The limits are rules of thumb for reinforcement learning of language
models with verifiable rewards, wide on purpose; they say where to look, not what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from cotrain.core.statistics import Estimate

Limits = tuple[float, float]
ANY = (-math.inf, math.inf)
PERCENT = "\u202f%"  # a narrow no-break space before the sign


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """How to read one metric."""

    label: str
    share: bool = True  # shown in per cent
    better: int = 1  # +1 higher, -1 lower, 0 neither
    healthy: Limits = ANY
    tolerable: Limits = ANY  # beyond these: look at it
    advice: str = ""  # one sentence, shown when not healthy


_TABLE: dict[str, Meaning] = {
    "pass@1": Meaning(label="right at the first try"),
    "greedy": Meaning(label="right with greedy decoding"),
    "accuracy": Meaning(label="accuracy"),
    "step_accuracy": Meaning(label="right steps"),
    "ungraded": Meaning(
        label="answers without a grade", better=-1, healthy=(0, 0.005), tolerable=(0, 0.02),
        advice="Answers without a grade are left out of training: see failures by reason."),
    "sound_when_correct": Meaning(label="right answers with every step right"),
    "balanced_accuracy": Meaning(label="balanced accuracy"),
    "true_positive_rate": Meaning(label="right solutions accepted"),
    "true_negative_rate": Meaning(label="wrong solutions rejected"),
    "precision": Meaning(label="rejections that were deserved (precision)"),
    "recall": Meaning(label="wrong solutions found (recall)"),
    "f1": Meaning(label="F1 of finding wrong solutions"),
    "step_balanced_accuracy": Meaning(label="balanced accuracy on steps"),
    "step_true_positive_rate": Meaning(label="right steps accepted"),
    "step_true_negative_rate": Meaning(label="wrong steps rejected"),
    "step_f1": Meaning(label="F1 of finding wrong steps"),
    "first_error_accuracy": Meaning(label="first wrong step located"),
    "processbench_f1": Meaning(label="error location (ProcessBench F1)"),
    "right_verdict_wrong_step": Meaning(label="right verdict, wrong step blamed", better=-1),
    "calibration_error": Meaning(label="calibration error", better=-1),
    "parsed": Meaning(label="readable outputs"),
    "aligned": Meaning(label="reviews with one verdict for each step"),
    "unanimous": Meaning(label="solutions whose reviews all agree", better=0),
    "distinct_answers": Meaning(label="distinct answers to a problem", share=False, better=0),
    "majority_share": Meaning(label="answers that agree with the majority", better=0),
    "majority_accuracy": Meaning(label="problems whose majority is right"),
    "score": Meaning(label="mean score, a logit", share=False, better=0),
    "base_rate": Meaning(label="solutions that are right (base rate)", better=0),
    "true_positive_share": Meaning(label="solutions that are right (base rate)", better=0),
    "predicted_positive": Meaning(label="solutions called right", better=0),
    "gap": Meaning(label="called right minus right (gap)", better=0),
    "length": Meaning(label="length, tokens", share=False, better=0),
    "steps": Meaning(label="steps per solution", share=False, better=0),
    "truncated": Meaning(
        label="cut off at the length limit", better=-1, healthy=(0, 0.05), tolerable=(0, 0.2),
        advice="Texts run into the token limit: raise max_tokens, or look for answers that never end."),
    "parse_failures": Meaning(
        label="unreadable outputs", better=-1, healthy=(0, 0.05), tolerable=(0, 0.15),
        advice="Many outputs cannot be read and earn nothing: raise the format reward, or train on the format first."),
    "zero_spread_groups": Meaning(
        label="groups without spread", better=-1, healthy=(0, 0.6), tolerable=(0, 0.8),
        advice="In most groups all rewards are equal and teach nothing: change the difficulty, or use larger groups."),
    "entropy": Meaning(
        label="entropy per token, nats", share=False, better=0, healthy=(0.03, 1), tolerable=(0.01, 2),
        advice="Near zero it has stopped exploring, far above one it is losing its language: lower the learning rate."),
    "kl": Meaning(
        label="KL to the reference, nats per token", share=False, better=0, healthy=(0, 0.2), tolerable=(-0.05, 0.5),
        advice="The policy is far from where it started: raise the KL coefficient or lower the learning rate."),
    "grad_norm": Meaning(label="gradient norm", share=False, better=0),
    "loss": Meaning(label="loss", share=False, better=0),
    "clip_fraction": Meaning(
        label="clipped tokens", better=0, healthy=(0, 0.2), tolerable=(0, 0.4),
        advice="Many tokens sit at the clipping limit: lower the learning rate or make fewer updates from one batch."),
    "surprisal": Meaning(
        label="entropy by sampling (surprise at its own tokens), nats", share=False, better=0, healthy=(0.01, 1),
        tolerable=(0.003, 2),
        advice="Near zero it has stopped exploring, far above one it is losing its language: lower the learning rate."),
    "ratio": Meaning(label="probability ratio, new to old", share=False, better=0),
    "sampler_gap": Meaning(
        label="sampler against trainer, nats", share=False, better=-1, healthy=(0, 0.02), tolerable=(0, 0.1),
        advice="Sampler and trainer disagree about the same tokens: the sampler may hold old weights."),
}  # fmt: skip
_ORDER = tuple(_TABLE)
SPLITS = {
    "ood_length": "longer problems than in training",
    "ood_template": "problems in unseen wordings",
    "fixed": "on what the frozen start says",
}
FAMILIES = frozenset(
    {"reward", "advantage", "coverage", "count", "mix", "balance", "dropped", "parse_failure", "truth"}
)
PARTS = {"right": ", where right", "wrong": ", where wrong", "at_max": ", share at the maximum"}  # of one metric
PLAIN = frozenset(
    {"updates", "tokens", "tokens_per_second", "traces", "groups", "seconds", "lr", "skipped"}
)  # bookkeeping
_COUNTED = {
    "pass": "at least one of {k} right",
    "majority": "majority of {k} right",
    "best": "best of {k} by the verifier's score",
    "weighted": "vote of {k} weighted by the verifier",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A metric's name taken apart."""

    who: str  # role or policy; "" for a metric of the whole run
    metric: str
    split: str = ""  # a further set of problems, "" for the usual one


def split_key(key: str) -> tuple[str, str]:
    """A metric's name as (who, metric): ``"generator/generator/loss"`` is the loss of "generator", and
    ``"solver/reward/outcome"`` the metric "reward/outcome" of "solver". A name without a slash belongs to nobody."""
    parts = key.split("/")
    if len(parts) == 1:
        return "", key
    cut = next((i for i in range(1, len(parts)) if parts[i] in FAMILIES or _known("/".join(parts[i:]))), 1)
    who = parts[:1] if len(set(parts[:cut])) == 1 else parts[:cut]
    return "/".join(who), "/".join(parts[cut:])


def take_apart(key: str, roles: Iterable[str]) -> Name:
    """The name of a figure: ``solver/pass@1``, ``solver/hard/pass@1`` or ``hard/solver/pass@1``, given the roles."""
    who, metric = split_key(key)
    first, _, second = who.partition("/")
    if second in roles and first not in roles:
        first, second = second, first
    return Name(who=first, metric=metric, split=second)


def where(split: str) -> str:
    """A further set of problems in words."""
    return SPLITS.get(split, f"{split.replace('_', ' ')} problems")


def meaning(metric: str, values: Iterable[float] = ()) -> Meaning:
    """How to read a metric. An unknown one is a share when all of ``values`` lie in [0, 1]."""
    if metric in _TABLE:
        return _TABLE[metric]
    kind, _, count = metric.partition("@")
    if kind in _COUNTED and count:
        return Meaning(label=_COUNTED[kind].format(k=count))
    seen = list(values)
    share = bool(seen) and all(0.0 <= v <= 1.0 for v in seen)
    whole, _, part = metric.rpartition("/")
    whole, remark = (whole, PARTS[part]) if whole and part in PARTS else (metric, "")
    label = whole.replace("reward/", "reward: ").replace("truth/", "noted truth: ").replace("_", " ")
    return Meaning(label=(_TABLE[whole].label if whole in _TABLE else label) + remark, share=share, better=0)


def _known(metric: str) -> bool:
    kind, _, count = metric.partition("@")
    return metric in _TABLE or metric in PLAIN or (kind in _COUNTED and bool(count))


def rank(metric: str) -> tuple[int, str]:
    """Sort key: the order of the table, pass@k and its kin right after pass@1, unknown ones last."""
    if metric in _ORDER:
        return (_ORDER.index(metric) * 10, metric)
    kind, _, count = metric.partition("@")
    if kind in _COUNTED and count:
        return (1 + tuple(_COUNTED).index(kind), count.zfill(4))
    return (10_000, metric)


def number(value: float, *, share: bool) -> str:
    """``0.614`` as ``61.4 %``, a plain number with three significant digits, thousands with thin spaces."""
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "unknown"
    if share:
        return _signless(100 * value, 1) + PERCENT
    if abs(value) >= 1000:
        return f"{value:,.0f}".replace(",", "\u202f").replace("-", "−")
    digits = 0 if value == int(value) else max(0, 2 - math.floor(math.log10(abs(value))))
    return _signless(value, min(digits, 6))


def points(value: float, *, share: bool) -> str:
    """A difference with its sign: ``+4.2 points`` for shares, ``−0.031`` otherwise."""
    if not math.isfinite(value):
        return "unknown"
    size = f"{100 * abs(value):.1f}" if share else number(abs(value), share=False)
    sign = "" if float(size.replace("\u202f", "")) == 0 else "−" if value < 0 else "+"
    return sign + size


def interval(estimate: Estimate, *, share: bool) -> str:
    """``57.0–65.1 %``, or ``unknown``."""
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "unknown"
    low, high = number(estimate.low, share=share), number(estimate.high, share=share)
    return f"{low.removesuffix(PERCENT)} to {high}"


def between(change: Estimate, *, share: bool) -> str:
    """The interval of a difference: ``+22.1 to +32.0 points``."""
    if not (math.isfinite(change.low) and math.isfinite(change.high)):
        return "unknown"
    unit = " points" if share else ""
    return f"{points(change.low, share=share)} to {points(change.high, share=share)}{unit}"


def _signless(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    text = text.removeprefix("-") if float(text) == 0 else text
    return text.replace("-", "−")
