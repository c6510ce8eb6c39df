"""Checks of a step's episodes that end a run: nothing can be learned from them, or they show that something is
wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from textwrap import shorten
from typing import TYPE_CHECKING

from cotrain.config.schedule import Phase, RolloutFn
from cotrain.core.errors import ConfigError, ServerSilent, TooLong, TooManyFailures
from cotrain.core.notes import CORRECT
from cotrain.core.types import TOO_LONG, Episode, Trace
from cotrain.distributed.policy_handles import PolicyHandle
from cotrain.rollout.runner import RolloutRunner, protocol_name

if TYPE_CHECKING:
    from cotrain.config.recipe import Objective

PROPORTION_OF_FAILURES = 0.5  # a step in which more episodes than this broke off stops the run


def check_rollouts(
    step: int, phase: Phase, objectives: Mapping[str, Objective], episodes: Sequence[Episode], executor: RolloutRunner
) -> None:
    """The episodes of one step, which ``executor`` has played."""
    check_mass_failure(f"step {step + 1}", episodes, executor.set_aside)
    check_roles_asked(f"phase {phase.name!r}", phase.protocol, episodes)
    asked = executor.fields_by_group.pop(step, {})
    for name in phase.objectives:
        check_one_prompt_per_group(name, objectives[name], episodes, asked)


def check_mass_failure(where: str, episodes: Sequence[Episode], set_aside: Mapping[str, str]) -> None:
    """``where``: which episodes these are, "step 3"; ``set_aside``: the problems that did not fit, and why."""
    failed = [episode.failure for episode in episodes if episode.failure]
    if failed and set(failed) == {TOO_LONG} and len(failed) == len(episodes):
        raise TooLong(f"no problem fits, {where}: {next(iter(set_aside.values()))}")
    if len(failed) > PROPORTION_OF_FAILURES * len(episodes):
        raise TooManyFailures(f"{where}: {len(failed)} of {len(episodes)} episodes failed, the first with: {failed[0]}")


def check_measured(where: str, episodes: Sequence[Episode], set_aside: Mapping[str, str]) -> None:
    """The same of held-out problems, of which those that did not fit are left out, however many they are."""
    check_mass_failure(where, [e for e in episodes if e.failure != TOO_LONG] or episodes, set_aside)


def check_servers_answer(where: str, handles: Iterable[PolicyHandle], outside: Mapping[str, float]) -> None:
    """A server that is gone is not to be trained without, nor measured. ``outside``: what the policies counted
    ``where``."""
    for handle in handles:
        answers, failed = (outside.get(f"{handle.name}/remote/{what}", 0.0) for what in ("answers", "failed"))
        if failed > PROPORTION_OF_FAILURES * answers:
            raise ServerSilent(
                f"{where}: {failed:.0f} of {answers:.0f} requests to policy {handle.name!r} had no answer: "
                f"{handle.trouble}, and resume or ask again"
            )


def check_roles_asked(where: str, protocol: RolloutFn, episodes: Sequence[Episode], what: str = "learned") -> None:
    """A protocol that asks nobody. ``what`` cannot be done with that."""
    if episodes and not any(episode.traces or episode.failure for episode in episodes):
        raise ConfigError(
            f"{where}: protocol {protocol_name(protocol)!r} asked no role in any of {len(episodes)} episodes, so "
            f"nothing can be {what}; call one, as in `await roles.solver(problem=task.prompt)`",
            code="E_NO_ROLE_ASKED",
        )


def check_answers_graded(where: str, episodes: Sequence[Episode], figures: Iterable[str]) -> None:
    """A solver that is measured, and of whose answers nobody noted whether they are right: its 0 would be no figure."""
    for role in [name.removesuffix("/pass@1") for name in figures if name.endswith("/pass@1")]:
        answers = [trace for e in episodes for trace in e.traces if trace.role == role and not trace.failure]
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
    """An algorithm that compares traces must compare answers to one prompt, unless the protocol says what a group is.
    ``asked_fields``: ``RolloutContext.fields_by_group``."""
    needs, first = objective.algorithm.needs(), dict[str, Mapping[str, str]]()
    for trace in (
        trace for e in episodes for trace in e.traces if trace.role in objective.roles and needs.min_group_size > 1
    ):
        fields = asked_fields.get(str(replace(trace.address, path=())))
        read = {reward.name for reward in trace.rewards} & set(map(str, needs.reward_signals))
        if fields is None or trace.failure or not read:
            continue  # its group has a name, or it is not compared
        first_fields = first.setdefault(trace.group, fields)
        for field_name in (field for field in fields if fields[field] != first_fields[field]):
            texts = first_fields[field_name], fields[field_name]
            first_text, this_text = (shorten(text, 50, placeholder=" …") for text in texts)
            raise ConfigError(
                f"objective {name!r} compares the answers of role {trace.role!r} to one task with each other, but they "
                f"were asked different things: {field_name} was {first_text!r} and {this_text!r}; name what is to be "
                f"compared, as in roles.{trace.role}(group=…) with one name for one prompt, or "
                f"group=roles.{trace.role}.whole_group where all of them are meant",
                code="E_ANSWERS_NOT_COMPARABLE",
            )


def check_group_sizes(name: str, objective: Objective, traces: Sequence[Trace], episodes: int) -> None:
    """An algorithm that compares traces must get some to compare. A role that speaks in some episodes only (a digest of
    what a search found) may be alone by chance; then its traces have no spread and are counted as such."""
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
