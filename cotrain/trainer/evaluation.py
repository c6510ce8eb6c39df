"""Evaluation: the same protocol, run on held-out problems without learning from it.

One collection at the roles' own temperature gives pass@k, votes, best-of-n and the verifier's figures; one greedy one,
all roles at temperature 0 and one episode a problem, gives greedy accuracy and the verifiers' greedy balanced accuracy
(on greedy solutions). The training split is never used: curves come from "validation", the before and after of a run
from "test" and, where the source has them, from out-of-distribution splits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotrain.config.evaluation import Evaluation
from cotrain.core.errors import ConfigError
from cotrain.core.seeding import seed_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import TOO_LONG, Episode, RolloutFn, Task
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, answer_agreement_of, trajectories_in, without_truth
from cotrain.rollout.runner import CollectHeldOut, RolloutRunner
from cotrain.trainer.checks import check_answers_graded, check_measured, check_roles_asked

GREEDY_NAMES = {  # figure → its name in the greedy collection, for those that are kept
    "pass@1": "greedy",
    "balanced_accuracy": "greedy_balanced_accuracy",
    "pair_accuracy": "greedy_pair_accuracy",
    "step_balanced_accuracy": "greedy_step_balanced_accuracy",
}
EVALUATION_STEP = -1  # the step in the addresses of evaluation episodes


def collect_at_once(
    runner: RolloutRunner,
    protocol: RolloutFn,
    tasks: Sequence[Task],
    *,
    split: str,
    group_size: int,
    what: str,
) -> tuple[Episode, ...]:
    """All episodes in one batch, of which nothing is kept."""
    return runner.collect(protocol, tasks, step=EVALUATION_STEP, split=split, group_size=group_size)


def measure_protocol(
    evaluation: Evaluation,
    runner: RolloutRunner,
    tasks: Sequence[Task],
    *,
    split: str,
    group_size: int,
    also_greedy: bool = True,
    collect: CollectHeldOut = collect_at_once,
) -> tuple[dict[str, Estimate], tuple[Episode, ...]]:
    """Run a protocol on held-out problems, and measure. Returns the metrics, and the sampled episodes that they are of.

    Episodes that broke off are left out and counted. ``also_greedy``: also measure greedy answers, where the evaluation
    asks for them. Raises TooManyFailures where most episodes broke off, TooLong where no problem fits, ConfigError for
    a protocol that asks nobody, or notes of no answer whether it is right.
    """
    where = f"held-out problems of {split}"

    def collect_held_out(held_out_runner: RolloutRunner, members: int, what: str) -> tuple[Episode, ...]:
        protocol = evaluation.protocol
        episodes = collect(held_out_runner, protocol, tasks, split=split, group_size=members, what=what)
        check_measured(where, episodes, held_out_runner.set_aside)
        check_roles_asked(where, protocol, episodes, "measured")
        for why, broken in _broken_by_reason(episodes).items():
            # ``set_aside`` has one text for each task: here one stands for all episodes that broke off for this reason.
            note = f"{len(broken)} of {len(episodes)} episodes on {where} broke off: {why}"
            runner.set_aside.setdefault(broken[0].task_id, note)
        return episodes

    sampled = collect_held_out(runner, group_size, "sampled")
    metrics: dict[str, Estimate] = {}
    for measure in evaluation.measures:
        measured = check_figures(measure, measure(sampled))
        _check_same_values(metrics, measured)
        metrics |= measured

    is_graded = any(task.gradable for task in tasks)
    if is_graded:
        check_answers_graded(where, sampled, metrics)
    else:
        metrics = without_truth(metrics) | answer_agreement_of(sampled)
    metrics |= broken_off_share(sampled) | failed_shares(sampled)

    if also_greedy and evaluation.greedy and is_graded:
        greedy = collect_held_out(runner.greedy_copy(), 1, "greedy")
        for measure in evaluation.measures:
            metrics |= renamed_as_greedy(check_figures(measure, measure(greedy)))
    return metrics, sampled


def figure_names(evaluation: Evaluation, roles: Iterable[str]) -> set[str] | None:
    """The names of all figures that ``measure_protocol`` may give; None where a measure does not say which it gives
    (``metrics/heldout.py: with_names``). Which of them are defined shows when episodes are there."""
    names = {"broken_off"}
    for role in roles:
        names |= {f"{role}/failed", f"{role}/majority_share"}
    for measure in evaluation.measures:
        figures = getattr(measure, "figures", None)
        if figures is None:
            return None
        names |= figures
        if evaluation.greedy:
            names |= {greedy for name in figures if (greedy := _greedy_name(name))}
    return names


def check_figures(measure: Measure, figures: Any) -> dict[str, Estimate]:
    """What a measure returned. Raises ConfigError for anything but figures by name: it may be a user's own."""
    is_named = isinstance(figures, Mapping)
    if is_named and all(isinstance(figure, Estimate) for figure in figures.values()):
        return dict(figures)
    name = getattr(measure, "__name__", type(measure).__name__)
    returned_text = repr(figures)
    if is_named:
        wrong = next(key for key, figure in figures.items() if not isinstance(figure, Estimate))
        returned_text = f"{wrong!r} as {figures[wrong]!r}"
    raise ConfigError(
        f"measure {name} returned {returned_text}; expected {{name: Estimate}}, as make_figure of "
        "cotrain.metrics.clusters makes it with its interval",
        code="E_MEASURE_RETURNED",
    )


def fixed_solutions_group_size(evaluation: Evaluation) -> int:
    """Solutions per problem where verifiers are evaluated on a frozen solver's solutions. That comes in addition to the
    evaluation of the recipe, so it has a quarter of its solutions."""
    return max(1, evaluation.group_size // 4)


def broken_off_share(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """``broken_off``: the share of episodes that the protocol broke off, which all other figures leave out; nothing
    where there is none."""
    if not any(map(_break_of, episodes)):
        return {}
    counts: dict[int, dict[str, float]] = {}
    for episode in episodes:
        row = counts.setdefault(episode.task, {"broken": 0.0, "all": 0.0})
        row["broken"] += bool(_break_of(episode))
        row["all"] += 1.0
    return defined_figures({"broken_off": make_figure(counts, Share("broken", "all"), len(episodes))})


def failed_shares(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """``{role}/failed``: the share of what a role said, each trajectory once, that failed in an episode that did not
    break off; nothing for a role of which nothing failed."""
    counts: dict[str, dict[int, dict[str, float]]] = {}
    for episode in episodes:
        for trajectory in trajectories_in(episode):
            row = counts.setdefault(trajectory.role, {}).setdefault(episode.task, {"failed": 0.0, "all": 0.0})
            row["failed"] += float(trajectory.failure is not None and episode.failure is None)
            row["all"] += 1.0
    figures = {}
    for role, rows in sorted(counts.items()):
        if any(row["failed"] for row in rows.values()):
            total = sum(row["all"] for row in rows.values())
            figures[f"{role}/failed"] = make_figure(rows, Share("failed", "all"), total)
    return defined_figures(figures)


def _check_same_values(found: Mapping[str, Estimate], figures: Mapping[str, Estimate]) -> None:
    """Raise ConfigError where two measures give one figure different values."""
    for key in figures.keys() & found.keys():
        first = found[key].value
        second = figures[key].value
        if not math.isclose(first, second, abs_tol=1e-9):
            hint = "leave one out, or give it another name, as in measure_judge('second', gap='second/gap')"
            raise ConfigError(
                f"evaluation: two measures give {key!r}, {first:.3f} and {second:.3f}; {hint}", code="E_MEASURES_ALIKE"
            )


def _broken_by_reason(episodes: Sequence[Episode]) -> dict[str, list[Episode]]:
    """The episodes that the protocol broke off, by why."""
    broken: dict[str, list[Episode]] = {}
    for episode in episodes:
        why = _break_of(episode)
        if why:
            broken.setdefault(why, []).append(episode)
    return broken


def _break_of(episode: Episode) -> str:
    """Why the protocol broke off; "" where it did not, and where its problem was too long."""
    return "" if episode.failure in (None, TOO_LONG) else str(episode.failure)


def renamed_as_greedy(figures: Mapping[str, Estimate]) -> dict[str, Estimate]:
    """The figures of a greedy collection that are kept, by their names there."""
    greedy: dict[str, Estimate] = {}
    for key, value in figures.items():
        name = _greedy_name(key)
        if name:
            greedy[name] = value
    return greedy


def _greedy_name(key: str) -> str:
    """The name of a figure in the greedy collection; "" for one that is not kept there."""
    role, _, name = key.partition("/")
    return f"{role}/{GREEDY_NAMES[name]}" if name in GREEDY_NAMES else ""


def evaluation_seed(seed: int) -> int:
    """Seed of the evaluation's draws: the same before and after, and apart from every training draw."""
    return seed_of("evaluation", seed)
