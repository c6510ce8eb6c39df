"""Somebody else's environment, with a policy of its own for each of its agents: environments of several agents written
for `verifiers`, and an OpenEnv environment whose class is loaded into this process, with its tools.

An environment says who speaks when and who earns what; each of its agents is a seat with a policy that learns from what
the seat earned (GRPO). ``shared`` has one policy play all seats, as prime-rl trains them. Seats that the environment
calls untrainable, such as a simulated user, stay as they were.

Each task is played in ``group_size`` episodes, whose rewards are compared in one of two ways:

- ``compare="seat"``: a seat's reward in an episode, the mean over its conversations, against its rewards in the other
  episodes of the task. All of its conversations learn from this one advantage, whatever the seat was asked in them.
- ``compare="prompt"``: the reward of each conversation, against those whose first prompt is the same. A seat that is
  asked something new each time learns nothing.

Control: ``learns`` names the seats that learn, and the others stay frozen. Left out: tools that run in another process,
containers, judge models (refused by name), the environment's own retries and time limits.
"""

from __future__ import annotations

from cotrain import GRPO, ConfigError, Recipe, RunConfig, constant_schedule, recipe
from cotrain.config.team import cast_roles, team_objectives, team_roles
from cotrain.core.arguments import Positive
from cotrain.core.errors import UnknownName
from cotrain.envs.played import SEAT_REWARD, SEAT_REWARD_VALUE, Compare, PlayedTasks
from cotrain.metrics.heldout import measure_metadata


@recipe(kl=0.0, tasks_per_step=8)
def environment(
    run: RunConfig,
    *,
    shared: bool = False,  # one policy for all seats that learn
    learns: str | None = None,  # seats that learn, with commas between; by default all that may
    compare: Compare = "seat",  # what a seat earned in an episode, or each conversation with the same first prompt
    turns: Positive = 16,  # turns of one conversation of a seat, at most
    max_tokens: Positive = 512,  # tokens of a turn, at most
) -> Recipe:
    source = run.tasks
    if not isinstance(source, PlayedTasks):
        raise ConfigError(
            "environment: no environment is named; expected --tasks environment:NAME, a taskset for verifiers with an "
            "environment of its own, environment:ENV+TASKSET, or openenv:FILE.py:CLASS, an environment of OpenEnv",
            code="E_ENVIRONMENT_NOT_NAMED",
        )
    trainable = source.seats()  # seat → whether the environment lets it learn
    seats = tuple(trainable)
    if learns:
        learners = [seat.strip() for seat in learns.split(",")]
    else:
        learners = [seat for seat in seats if trainable[seat]]
    for seat in learners:
        if seat not in seats:
            raise UnknownName(f"seat of {source.name}", seat, seats)
    if not learners:
        raise ConfigError(
            f"environment: no seat of {source.name} may learn ({', '.join(seats)}); name one in learns",
            code="E_NO_SEAT_LEARNS",
        )

    policies, policy_of_seat = cast_roles(run, seats, learners, shared=shared)
    roles = team_roles(policy_of_seat, max_tokens=max_tokens)
    algorithm = GRPO(reward_weights={SEAT_REWARD: 1.0}, kl=run.kl_penalty())
    objectives = team_objectives(learners, algorithm, shared=shared)

    protocol = source.make_protocol(seats, turns, compare)
    infinity = float("inf")  # an environment may pay any number
    return run.recipe(
        "environment-shared" if shared else "environment",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="play"),
        evaluate=protocol,
        measures=tuple(measure_metadata(seat, SEAT_REWARD_VALUE, low=-infinity, high=infinity) for seat in seats),
    )
