"""The one table of metrics: key, meaning, unit, direction, healthy range and advice of every number that a run writes.

``docs/metrics.md`` is generated from it (``python -m docs.metrics_page``), the report takes labels, directions and
bands from it, the alarms their limits: a limit exists once, here. Ranges are rules of thumb for reinforcement learning
of language models with verifiable rewards, wide on purpose; they say where to look, not what is wrong. What is learned
is in ``table_learning``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from cotrain.core.errors import ConfigError
from cotrain.metrics.metric import (
    ANY,
    BOTH,
    COUNT,
    FIRST,
    HELD_OUT,
    MAIN,
    NATS,
    NUMBER,
    SHARE,
    STEP,
    TOKENS,
    UNKNOWN,
    WORDS,
    Metric,
    Range,
)
from cotrain.metrics.table_learning import CREDIT, EXPLORING, LEARNING

inf = math.inf

RUN = (
    Metric(key="step", meaning="the step, from 0", unit=COUNT),
    Metric(key="phase", meaning="name of the schedule's phase", unit=WORDS),
    Metric(key="tokens", meaning="tokens sampled in training so far, all speaking models", unit=COUNT),
    Metric(
        key="replacements", unit=COUNT,
        meaning="problems that were sampled in place of those whose answers all earned the same; with `--refill` alone",
    ),
    Metric(
        key="audited", unit=COUNT,
        meaning="answers to problems without labels whose truth was looked up, for metrics; with `--audits` alone",
    ),
    Metric(
        key="gap", headline=MAIN, label="called right minus right (gap)",
        bounds=(-1.0, 1.0), best_value=0.0, healthy=(-inf, 0.1), at=BOTH,
        meaning="verdicts CORRECT minus solutions that are right, over readable reviews",
        advice="The verifier says CORRECT increasingly more often than is true: train it more often, or give its "
            "verdicts less weight.",
    ),
    Metric(key="{store}/size", label="problems in the pool", unit=COUNT, meaning="problems that a pool holds"),
    Metric(
        key="{store}/solved", label="share solved, in the pool", meaning="mean over its problems of the share of "
            "right answers",
    ),
    Metric(
        key="ramp/share", label="share of the problems, on the ramp",
        meaning="share of the training problems, the easiest first, among which the next problems are drawn; with "
            "`--ramp` alone",
    ),
    Metric(
        key="ramp/solve_rate", label="solve rate, for the ramp", trend="near `--target-solve-rate`",
        meaning="share of the step's graded answers that are right, of the roles of the first objective; of the step "
            "before where none was graded; with `--target-solve-rate` alone",
    ),
    Metric(
        key="broken_off", label="episodes broken off", better=-1, at=BOTH, headline=MAIN, healthy=(0, 0),
        meaning="share of episodes that the protocol broke off; the other figures leave them out; absent where there "
            "are none",
        advice="Episodes broke off: run.log has the reasons.",
    ),
    Metric(
        key="failures/{reason}", unit=COUNT, healthy=(0, 0),
        meaning="episodes that broke off, and what a role said that was kept from training",
    ),
)  # fmt: skip

SAID = (
    Metric(key="{role}/traces", meaning="training sequences", unit=COUNT),
    Metric(key="{role}/tokens", meaning="tokens sampled", unit=COUNT),
    Metric(
        key="{role}/failed", label="rollouts that failed", better=-1, at=BOTH, healthy=(0, 0),
        meaning="share of what a role said, each trajectory once, that failed and is not learned from: its agent or "
            "grader raised, or it was not to be had; absent where there is none",
        advice="What failed is left out of training: see failures by reason, and mend what fails.",
    ),
    Metric(key="{role}/length", meaning="mean tokens of a turn", label="length, tokens", unit=TOKENS, trend="steady"),
    Metric(
        key="{role}/length/p{k}", label="length, tokens, {k}th percentile",
        unit=TOKENS, trend="not all at the token limit", meaning="quantiles of it: p10, p50, p90",
    ),
    Metric(
        key="{role}/length/right", label="length, tokens, where right", unit=TOKENS, trend="near the next",
        meaning="its mean where the answer (of a verifier: the judged answer) is right",
    ),
    Metric(key="{role}/length/wrong", label="length, tokens, where wrong", unit=TOKENS,
        meaning="its mean where that is wrong"),
    Metric(
        key="{role}/entropy", label="entropy per token, nats", unit=NATS, healthy=(0.03, 1), tolerable=(0.01, 2),
        advice=EXPLORING,
        meaning="mean entropy of the distributions that the role's tokens were drawn from, over all sampled tokens of "
            "the step; absent where the engine does not tell it",
    ),
    Metric(
        key="{role}/truncated", label="cut off at the length limit", better=-1, healthy=(0, 0.05), tolerable=(0, 0.2),
        meaning="share of turns cut at the token limit",
        advice="Texts run into the token limit: raise `--max-tokens`, or look for answers that never end.",
    ),
    Metric(
        key="{role}/parse_failures", label="unreadable outputs", better=-1, healthy=(0, 0.05), tolerable=(0, 0.1),
        meaning="share of turns that could not be read",
        advice="Many outputs cannot be read and earn nothing: choose another --answer-format or --verdict, teach the "
            "format first (`cotrain teach`), or pay for it (--format-reward of grpo, tango, judged and others).",
    ),
    Metric(key="{role}/parse_failure/{reason}", unit=COUNT, meaning="how many, by reason"),
    Metric(
        key="{role}/call/{outcome}", label="calls: {outcome}", unit=COUNT, trend='mostly "ok"',
        meaning='calls of tools in its answers, by how they ended: "ok", "no output", "timeout", "bad call", '
            '"NameError" …',
    ),
    Metric(
        key="{role}/reward/{signal}", label="reward: {signal}", unit=UNKNOWN,
        meaning="mean of a reward (of a reward for steps: over steps)",
    ),
    Metric(
        key="{role}/reward/{signal}/right", label="reward: {signal}, where right", unit=UNKNOWN, trend="above the next",
        meaning="mean of a whole-trace reward where the answer is truly right",
    ),
    Metric(
        key="{role}/reward/{signal}/wrong", label="reward: {signal}, where wrong", unit=UNKNOWN,
        meaning="its mean where the answer is truly wrong",
    ),
    Metric(
        key="{role}/reward/{signal}/at_max", label="reward: {signal}, share at the maximum", healthy=(0, 0.9),
        meaning="share of values within 0.001 of the step's largest; at 1 nobody is told apart",
        advice="Nearly all get the largest value of this reward, so it tells nobody apart: ask for more than it pays "
            "for.",
    ),
    Metric(
        key="{role}/reward/{signal}/given", label="reward: {signal}, share that was given it",
        meaning="share of the traces that were given this reward, where some were not; the mean is of those alone",
    ),
    Metric(
        key="{role}/metadata/{name}", label="noted truth: {name}", unit=UNKNOWN, at=BOTH,
        meaning="mean of any number or boolean that the protocol noted as truth, such as `label_right` of a "
            "pseudo-label",
    ),
)  # fmt: skip

SOLVER = (
    Metric(
        key="{role}/pass@1", label="pass@1", better=1, at=HELD_OUT, headline=FIRST, trend="rising",
        meaning="share of samples that are right, at the role's own temperature",
    ),
    Metric(
        key="{role}/greedy", label="greedy accuracy", better=1, at=HELD_OUT, headline=FIRST, trend="rising",
        meaning="share of problems that are right at temperature 0",
    ),
    Metric(
        key="{role}/pass@{k}", label="pass@{k}", better=1, at=HELD_OUT, headline=FIRST, trend="rising",
        meaning="at least one of k samples is right, unbiased (arXiv 2107.03374)",
    ),
    Metric(
        key="{role}/majority@{k}", label="maj@{k}", better=1, at=HELD_OUT, headline=FIRST, trend="rising",
        meaning="the most frequent answer of k samples is right (maj@k, arXiv 2203.11171)",
    ),
    Metric(
        key="{role}/best@{k}", headline=MAIN, label="best of {k} by the verifier's score", better=1, at=HELD_OUT,
        trend="above majority", meaning="the sample of k that the verifier scores highest is right",
    ),
    Metric(
        key="{role}/tournament@{k}", headline=MAIN, label="winner of {k}", better=1, at=HELD_OUT,
        trend="above majority", meaning="the sample of k that wins comparisons of pairs is right (arXiv 2603.04304)",
    ),
    Metric(
        key="{role}/weighted@{k}", headline=MAIN, label="vote of {k} weighted by the verifier", better=1, at=HELD_OUT,
        trend="above majority",
        meaning="the answer with the largest sum of the verifier's scores is right (arXiv 2206.02336)",
    ),
    Metric(
        key="{policy}/exploitability", label="exploitability", unit=UNKNOWN, better=-1, at=HELD_OUT, headline=FIRST,
        trend="falling", meaning="what a best response wins against a player, mean of both seats; 0 cannot be beaten",
    ),
    Metric(
        key="{policy}/seen", label="probability behind exploitability", at=HELD_OUT, healthy=(0.95, 1),
        meaning="share of a player's probability that the moves it was seen to make stand for",
        advice="Exploitability rests on too few of the player's moves: raise `--set evaluation.group_size=N`.",
    ),
    Metric(
        key="{role}/ungraded", label="answers without a grade", better=-1, healthy=(0, 0.005), tolerable=(0, 0.02),
        meaning="share of answers that could not be graded, by the grader's fault or theirs, and were left out",
        advice="Answers without a grade are left out of training: see failures by reason.",
    ),
    Metric(key="{role}/accuracy", label="accuracy", better=1, trend="rising", meaning="share of answers that are "
        "right"),
    Metric(
        key="{role}/step_accuracy", headline=MAIN, label="right steps", better=1, at=BOTH, trend="rising",
        meaning="share of steps that are right, where an oracle judges them",
    ),
    Metric(
        key="{role}/sound_when_correct", label="right answers with every step right", better=1, trend="rising",
        meaning="of the right answers, the share with every step right",
    ),
    Metric(key="{role}/steps", label="steps per solution", unit=NUMBER, meaning="steps per solution"),
    Metric(
        key="{role}/distinct_answers", label="distinct answers to a problem", unit=NUMBER, healthy=(1, inf),
        meaning="distinct answers to a problem, compared as text, over problems with two or more",
        advice="All answers to a problem are the same, so a group teaches nothing: raise the temperature.",
    ),
    Metric(
        key="{role}/majority_share", label="answers that agree with the majority", at=BOTH,
        meaning="share of a problem's answers that say the most frequent one; held-out where no problem has an answer",
    ),
    Metric(
        key="{role}/majority_share/right", label="answers that agree with the majority, where right",
        trend="above the next", meaning="the same where the majority is right",
    ),
    Metric(
        key="{role}/majority_share/wrong", label="answers that agree with the majority, where wrong",
        meaning="the same where it is wrong",
    ),
    Metric(
        key="{role}/majority_accuracy", label="problems whose majority is right",
        better=1, trend="rising with the share",
        meaning="share of problems whose majority is right: the accuracy of a majority label",
    ),
)  # fmt: skip

VERIFIER = (
    Metric(
        key="{role}/balanced_accuracy", label="balanced accuracy", better=1, at=BOTH, headline=FIRST,
        trend="above 0.5, rising",
        meaning="mean of the true positive and the true negative rate; unreadable reviews count as mistaken",
    ),
    Metric(
        key="{role}/greedy_balanced_accuracy", label="greedy balanced accuracy", better=1, at=HELD_OUT, headline=FIRST,
        trend="above 0.5, rising", meaning="the same at temperature 0, on greedy solutions; with `fixed` on the "
            "start's sampled ones",
    ),
    Metric(
        key="{role}/greedy_pair_accuracy", label="greedy pairs in order", better=1, at=HELD_OUT, headline=FIRST,
        trend="above 0.5", meaning="pairs that a judge of pairs puts in order with one greedy judgement of each order",
    ),
    Metric(
        key="{role}/swap_agreement", label="same reply in both orders", better=1, at=HELD_OUT, headline=MAIN,
        trend="near 1", meaning="of pairs with a verdict in both orders: those in which it is the same reply",
    ),
    Metric(
        key="{role}/mcc", label="Matthews correlation", unit=NUMBER, bounds=(-1.0, 1.0), better=1, at=BOTH,
        trend="above 0, not falling",
        meaning="correlation of verdict and truth (MCC), 0 for a verifier who guesses; unreadable reviews count as "
            "mistaken; left out where all verdicts, or all truths, are one",
    ),
    Metric(
        key="{role}/mcc_undefined", label="without a Matthews correlation", better=-1, at=BOTH,
        meaning="1 where there were reviews and the Matthews correlation is left out, else 0: its mean is the share of "
            "rows without one",
    ),
    Metric(
        key="{role}/true_positive_rate", headline=MAIN, label="right solutions accepted", better=1, at=BOTH,
        meaning="share of right solutions called CORRECT",
    ),
    Metric(
        key="{role}/true_negative_rate", headline=MAIN, label="wrong solutions rejected", better=1, at=BOTH,
        meaning="share of wrong solutions called INCORRECT; the false positive rate is 1 minus it",
    ),
    Metric(
        key="{role}/error_precision", label="precision on wrong solutions", better=1, at=HELD_OUT, trend="rising",
        meaning="precision of the class \"wrong\": share of the solutions called INCORRECT that are wrong",
    ),
    Metric(
        key="{role}/error_recall", label="recall on wrong solutions", better=1, at=HELD_OUT, trend="rising",
        meaning="recall of the class \"wrong\": the true negative rate",
    ),
    Metric(
        key="{role}/error_f1", headline=MAIN, label="F1 on wrong solutions", better=1, at=HELD_OUT, trend="rising",
        meaning="harmonic mean of these two",
    ),
    Metric(
        key="{role}/step_balanced_accuracy", headline=MAIN, label="balanced accuracy on steps", better=1, at=BOTH,
        trend="above 0.5, rising", meaning="balanced accuracy over steps",
    ),
    Metric(
        key="{role}/greedy_step_balanced_accuracy", label="greedy balanced accuracy on steps", better=1, at=HELD_OUT,
        trend="above 0.5, rising", meaning="the same at temperature 0, on the same solutions as the greedy figure of "
            "answers",
    ),
    Metric(
        key="{role}/step_true_positive_rate", label="right steps accepted", better=1, at=BOTH,
        meaning="share of right steps called right",
    ),
    Metric(
        key="{role}/step_true_negative_rate", label="wrong steps rejected", better=1, at=BOTH,
        meaning="share of wrong steps called wrong",
    ),
    Metric(
        key="{role}/step_error_f1", label="F1 on wrong steps", better=1, at=HELD_OUT, trend="rising",
        meaning="the same over steps",
    ),
    Metric(
        key="{role}/first_error_accuracy", label="first wrong step located", better=1, at=HELD_OUT, trend="rising",
        meaning="of solutions with a wrong step, the share whose first one is located",
    ),
    Metric(
        key="{role}/processbench_f1", headline=MAIN, label="error location (ProcessBench F1)",
        better=1, at=HELD_OUT, trend="rising",
        meaning="its harmonic mean with the share of other solutions in which no step is blamed (arXiv 2412.06559)",
    ),
    Metric(
        key="{role}/right_verdict_wrong_step", label="right verdict, wrong step blamed",
        better=-1, at=BOTH, trend="falling",
        meaning="of wrong solutions rightly rejected, the share where another step is blamed than the first wrong one",
    ),
    Metric(
        key="{role}/calibration_error", label="calibration error", better=-1, at=HELD_OUT, healthy=(0, 0.1),
        meaning="expected calibration error of the probability of CORRECT, ten bins",
        advice="The verifier's probabilities are not its rates of being right: do not weigh votes by them.",
    ),
    Metric(
        key="{role}/parsed", label="readable outputs", better=1, at=HELD_OUT, healthy=(0.95, 1),
        meaning="readable outputs",
        advice="Many outputs cannot be read and earn nothing: choose another --answer-format or --verdict, or teach "
            "the format first (`cotrain teach`).",
    ),
    Metric(
        key="{role}/base_rate", label="solutions that are right (base rate)", at=BOTH, healthy=(0.1, 0.9),
        meaning="share of the reviewed solutions that are right",
        advice="Nearly all reviewed solutions are of one kind, so a verifier learns to say so: balance the classes.",
    ),
    Metric(
        key="{role}/predicted_positive", label="solutions called right", at=BOTH,
        meaning="share of readable reviews that say CORRECT",
    ),
    Metric(
        key="{role}/audit/payer", label="audited answers that the paying judge calls right",
        meaning="over the answers of a hidden audit, the share of the paying judge's readable reviews that say CORRECT",
        trend="rising no more than the next",
    ),
    Metric(
        key="{role}/audit/auditor", label="audited answers that the auditor calls right",
        meaning="over the same answers, the share that the auditor, which pays nobody, calls right",
    ),
    Metric(
        key="{role}/audit/answers", label="audited answers", unit=COUNT,
        meaning="answers of which both verdicts can be read",
    ),
    Metric(
        key="{role}/aligned", label="reviews with one verdict for each step", better=1, healthy=(0.9, 1),
        meaning="share of reviews with one verdict for each step",
        advice="Reviews do not fit the solutions' steps: see parse_failure by reason, and choose another --verdict, or "
            "teach the format first (`cotrain teach verifier`).",
    ),
    Metric(
        key="{role}/unanimous", label="solutions whose reviews all agree", healthy=(0, 0.8),
        meaning="of the solutions with two or more readable reviews, the share whose reviews all agree",
        advice="The reviews of a solution nearly always agree and teach nothing: raise the verifier's temperature.",
    ),
    Metric(
        key="{role}/score", label="mean score, a logit", unit=NUMBER, meaning="mean score (a logit) of a reward model",
    ),
    Metric(
        key="{role}/score/right", label="mean score, a logit, where right", unit=NUMBER, trend="above the next",
        meaning="the same where the answer is right",
    ),
    Metric(
        key="{role}/score/wrong", label="mean score, a logit, where wrong", unit=NUMBER,
        meaning="the same where it is wrong",
    ),
)  # fmt: skip

EVALUATION = (
    Metric(key="kind", meaning='"evaluation"', unit=WORDS),
    Metric(key="updates/{policy}", meaning="optimiser steps so far", unit=COUNT),
)

# If several names match, the first one counts.
TABLE: tuple[Metric, ...] = (*RUN, *SOLVER, *VERIFIER, *SAID, *CREDIT, *LEARNING, *EVALUATION)
_PLACES = {metric.name: place for place, metric in reversed(list(enumerate(TABLE)))}


def metric_with_key(key: str) -> Metric:
    """The line of the table with exactly this key. Raises KeyError where there is none."""
    return {m.key: m for m in TABLE}[key]


@lru_cache(maxsize=4096)
def metric_named(name: str) -> Metric | None:
    """The line that a metric's name (without whose it is) matches; the most literal one, of those the first."""
    if name in _PLACES:
        return TABLE[_PLACES[name]]
    return next((m for m in TABLE if m.name_pattern.fullmatch(name)), None)


# -- Which of two values is the better one: what chooses among checkpoints, or among learning rates, asks this.

LARGER = "larger"  # as of "solver/pass@1"
SMALLER = "smaller"  # as of "verifier/calibration_error"
NEAREST = "nearest"  # those near the metric's ``best_value``, as of "gap"
NEITHER = "neither"  # as of "verifier/base_rate", which says of what kind the problems are
UNTOLD = "untold"  # the table does not say: a figure of a user's own measure, or what a protocol noted


def better_values(figure: str) -> str:
    """Which values of a figure of held-out problems, such as "verifier/fixed/balanced_accuracy", are the better ones:
    one of the words above. A name that the table has for training steps alone may be that of a user's own measure."""
    metric = _metric_of_figure(figure)
    if metric is None:
        return UNTOLD
    if metric.better > 0:
        return LARGER
    if metric.better < 0:
        return SMALLER
    if metric.best_value is not None:
        return NEAREST
    is_own = metric.unit == UNKNOWN or metric.at == STEP
    return UNTOLD if is_own else NEITHER


def goodness(figure: str, value: float) -> float:
    """A number by which values of one figure are ranked: the better value has the larger one. Where the table does not
    say which values are better, the larger ones are taken to be."""
    metric = _metric_of_figure(figure)
    if metric is None:
        return value
    if metric.best_value is not None:
        return -abs(value - metric.best_value)
    return -value if metric.better < 0 else value


def check_has_best_value(setting: str, figure: str) -> None:
    """Raise ConfigError for a figure of which no value is better than another one. ``setting``: what was given it."""
    if better_values(figure) == NEITHER:
        raise ConfigError(
            f"{setting}: of {figure!r} neither larger nor smaller values are better, so none is the best; expected a "
            "figure with a better direction, such as 'solver/pass@1' (docs/metrics.md shows it of each)",
            code="E_NO_BEST_VALUE",
        )


def untold_note(setting: str, figure: str) -> str:
    """A note on a figure of which the table does not say which values are better; "" for any other."""
    if better_values(figure) != UNTOLD:
        return ""
    return f"note: {setting}: which values of {figure} are better is not known; the largest is taken for the best"


def _metric_of_figure(figure: str) -> Metric | None:
    """The line of the table for a figure's name. Whose it is, and on which problems, stands in front: the metric is the
    longest end of the name that the table has."""
    parts = figure.split("/")
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((metric for end in ends if (metric := metric_named(end))), None)


def labelled_metric(name: str, values: Iterable[float] = ()) -> Metric:
    """How to read a metric, with its label filled in. Where its unit is not known it is a share if all ``values`` lie
    in [0, 1]."""
    metric = metric_named(name) or Metric(key="{name}", meaning="", unit=UNKNOWN)
    seen = list(values)
    unit = metric.unit or (SHARE if seen and all(0.0 <= v <= 1.0 for v in seen) else NUMBER)
    return replace(metric, label=metric.label_of(name), unit=unit)


def limits_of(name: str, values: Iterable[float] = ()) -> Range:
    """The range of values of a metric: its intervals end there, and those of its changes at the distance of the two
    ends. A name that the table does not have is a share where ``meaning`` takes it for one."""
    metric = metric_named(name)
    if metric is not None:
        return metric.limits
    return (0.0, 1.0) if labelled_metric(name, values).is_share else ANY


def table_rank(name: str) -> tuple[int, int, str]:
    """Sort key: the order of the table; unknown names last."""
    metric = metric_named(name)
    if metric is None:
        return len(TABLE), 0, name
    count = name.rpartition("@")[2]
    return TABLE.index(metric), int(count) if count.isdigit() else 0, name


def is_headline(name: str, *levels: str) -> bool:
    """Does this figure stand first in summaries and reports? ``levels``: ``FIRST``, ``MAIN``, by default both."""
    metric = metric_named(name)
    return metric is not None and metric.headline in (levels or (FIRST, MAIN))
