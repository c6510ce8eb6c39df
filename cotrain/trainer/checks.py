"""Checks of a step's episodes that end a run: nothing can be learned from them, or they show that something is
wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING

from cotrain.config.schedule import Phase
from cotrain.core.errors import ConfigError, ServerSilent, TooLong, TooManyFailures
from cotrain.core.notes import CORRECT
from cotrain.core.types import TOO_LONG, Episode, RolloutFn, Trace
from cotrain.distributed.policy_handles import PolicyHandle
from cotrain.rollout.runner import RolloutRunner, protocol_name

if TYPE_CHECKING:
    from cotrain.config.recipe import Objective

PROPORTION_OF_FAILURES = 0.5  # a step in which more episodes than this broke off stops the run


def check_rollouts(step: int, phase: Phase, episodes: Sequence[Episode], set_aside: Mapping[str, str]) -> None:
    """Check the episodes of the step that is due. ``set_aside``: the problems that did not fit, and why."""
    check_mass_failure(f"step {step + 1}", episodes, set_aside)
    check_roles_asked(f"phase {phase.name!r}", phase.protocol, episodes)


def check_comparable(
    step: int, phase: Phase, objectives: Mapping[str, Objective], episodes: Sequence[Episode], runner: RolloutRunner
) -> None:
    """Check the episodes of a step that ``runner`` has just collected. With ``--async-steps`` that is long before they
    are due, and a checkpoint that is saved meanwhile has no more than the episodes."""
    asked = runner.prompt_fields.pop(step, {})
    for name in phase.objectives:
        check_one_prompt_per_group(name, objectives[name], episodes, asked)


def check_mass_failure(where: str, episodes: Sequence[Episode], set_aside: Mapping[str, str]) -> None:
    """Raise TooManyFailures where most episodes broke off, TooLong where no problem fitted. ``where``: which episodes
    these are, "step 3"; ``set_aside``: the problems that did not fit, and why."""
    failed = [episode.failure for episode in episodes if episode.failure]
    all_too_long = set(failed) == {TOO_LONG} and len(failed) == len(episodes)
    if all_too_long:
        # A batch that an earlier process collected, and this one restored with --async-steps, has no reasons any more.
        reasons = [set_aside[episode.task_id] for episode in episodes if episode.task_id in set_aside]
        raise TooLong(f"no problem fits, {where}: {reasons[0] if reasons else TOO_LONG}")
    if len(failed) > PROPORTION_OF_FAILURES * len(episodes):
        raise TooManyFailures(f"{where}: {len(failed)} of {len(episodes)} episodes failed, the first with: {failed[0]}")


def check_measured(where: str, episodes: Sequence[Episode], set_aside: Mapping[str, str]) -> None:
    """Check held-out problems in the same way; those that did not fit are left out, however many they are."""
    fitting = [episode for episode in episodes if episode.failure != TOO_LONG]
    check_mass_failure(where, fitting or episodes, set_aside)


def mostly_failed(episodes: Sequence[Episode]) -> bool:
    """Whether most of these episodes broke off, or most of what one policy was asked for failed, as where a server or
    the program of an agent is gone: whoever measures again when it is back is to have other ones."""
    fitting = [episode for episode in episodes if episode.failure != TOO_LONG]
    failures_by_policy: dict[str, list[bool]] = {}
    for episode in fitting:
        for trace in episode.traces:
            failures_by_policy.setdefault(trace.policy, []).append(trace.failure not in (None, TOO_LONG))
    broken_off = [episode.failure is not None for episode in fitting]
    outcomes = [broken_off, *failures_by_policy.values()]
    return any(sum(failed) > PROPORTION_OF_FAILURES * len(failed) for failed in outcomes)


def check_servers_answer(where: str, handles: Iterable[PolicyHandle], outside: Mapping[str, float]) -> None:
    """Raise ServerSilent for a server that is gone: the run would train without it, or measure nothing. ``outside``:
    what the policies counted ``where``."""
    for handle in handles:
        answers = outside.get(f"{handle.name}/remote/answers", 0.0)
        failed = outside.get(f"{handle.name}/remote/failed", 0.0)
        if failed > PROPORTION_OF_FAILURES * answers:
            raise ServerSilent(
                f"{where}: {failed:.0f} of {answers:.0f} requests to policy {handle.name!r} had no answer: "
                f"{handle.trouble}, and resume or ask again"
            )


def check_roles_asked(where: str, protocol: RolloutFn, episodes: Sequence[Episode], what: str = "learned") -> None:
    """Raise ConfigError for a protocol that asks nobody. ``what``: cannot be done with that, "learned"."""
    asks = any(episode.traces or episode.failure for episode in episodes)
    if episodes and not asks:
        raise ConfigError(
            f"{where}: protocol {protocol_name(protocol)!r} asked no role in any of {len(episodes)} episodes, so "
            f"nothing can be {what}; call one, as in `await roles.solver(problem=task.prompt)`",
            code="E_NO_ROLE_ASKED",
        )


def check_answers_graded(where: str, episodes: Sequence[Episode], figures: Iterable[str]) -> None:
    """Raise ConfigError for a solver of whose answers nobody noted whether they are right: its 0 would be no figure."""
    solvers = [name.removesuffix("/pass@1") for name in figures if name.endswith("/pass@1")]
    traces = [trace for episode in episodes for trace in episode.traces if not trace.failure]
    for role in solvers:
        answers = [trace for trace in traces if trace.role == role]
        if answers and all(CORRECT.of(trace) is None for trace in answers):
            raise ConfigError(
                f"{where}: measure_solver({role!r}) counts right answers, but the protocol notes of none of "
                f"{len(answers)} whether it is right; let it call `await examine(task, roles, turn)`, or give "
                "`evaluate` a protocol that does, such as cotrain.solve",
                code="E_ANSWERS_NOT_EXAMINED",
            )


def check_one_prompt_per_group(
    name: str, objective: Objective, episodes: Sequence[Episode], asked_fields: Mapping[str, Mapping[str, str]]
) -> None:
    """Raise ConfigError where an algorithm would compare answers to different prompts, unless the protocol says what a
    group is. ``asked_fields``: ``RolloutContext.fields_by_address``."""
    needs = objective.algorithm.needs()
    if needs.min_group_size <= 1:
        return  # it compares nothing
    compared_rewards = {str(signal) for signal in needs.reward_signals}
    fields_of_group: dict[str, Mapping[str, str]] = {}  # what the first trace of each was asked
    for episode in episodes:
        for trace in episode.traces:
            fields = asked_fields.get(str(replace(trace.address, path=())))  # None: its group has a name
            rewarded = any(reward.name in compared_rewards for reward in trace.rewards)
            if fields is None or trace.role not in objective.roles or trace.failure or not rewarded:
                continue
            first_fields = fields_of_group.setdefault(trace.group, fields)
            _check_same_fields(name, trace.role, first_fields, fields)


def _check_same_fields(name: str, role: str, first: Mapping[str, str], other: Mapping[str, str]) -> None:
    """Raise ConfigError where two traces of one group were asked different things."""
    for field, text in other.items():
        if text != first[field]:
            first_text = shorten(first[field], 50, placeholder=" …")
            other_text = shorten(text, 50, placeholder=" …")
            raise ConfigError(
                f"objective {name!r} compares the answers of role {role!r} to one task with each other, but they "
                f"were asked different things: {field} was {first_text!r} and {other_text!r}; name what is to be "
                f"compared, as in roles.{role}(group=…) with one name for one prompt, or "
                f"group=roles.{role}.whole_group where all of them are meant",
                code="E_ANSWERS_NOT_COMPARABLE",
            )


def check_group_sizes(name: str, objective: Objective, traces: Sequence[Trace], episodes: int) -> None:
    """Raise ConfigError where an algorithm that compares traces has none to compare. A role that speaks in some
    episodes only (a digest of what a search found) may be alone by chance; then its traces have no spread and are
    counted as such."""
    groups = {trace.trajectory_id: trace.group for trace in traces}  # all that was paid as one is one to compare
    if len(groups) < episodes:
        return
    least = objective.algorithm.needs().min_group_size
    largest = max(Counter(groups.values()).values(), default=least)
    if largest < least:
        raise ConfigError(
            f"objective {name!r} uses {type(objective.algorithm).__name__}, which compares at least {least} traces of "
            f"one group, but role {objective.role!r} had {largest} in each; raise the group size, "
            "or let the protocol give turns that are to be compared one `group`",
            code="E_GROUP_TOO_SMALL_AT_PLAY",
        )
