"""Somebody else's environment, with a policy of its own for each of its agents: environments of several agents written
for `verifiers`, and an OpenEnv environment whose class is loaded into this process, with its tools.

An environment says who speaks when and who earns what; each of its agents is a seat with a policy that learns from what
the seat earned (GRPO). ``shared`` has one policy play all seats, as prime-rl trains them. Seats that the environment
calls untrainable, such as a simulated user, stay as they were.

What a seat earned in the ``group_size`` episodes of a task is compared, though it may have been asked different things
in them (``compare="seat"``): one value an episode, the mean over its conversations, and all of them learn from it. With
"prompt" each conversation is compared, with those that began with the same words, so that a seat which is asked
something new each time learns nothing.

Control: ``learns`` names the seats that learn, and the others stay frozen. Left out: tools that run in another process,
containers, judge models (refused by name), the environment's own retries and time limits.
"""

from __future__ import annotations

from cotrain import GRPO, ConfigError, Phase, Recipe, Role, RunConfig, Sampling, alternate, recipe
from cotrain.config.team import cast_roles, team_objectives
from cotrain.core.arguments import Positive
from cotrain.core.errors import UnknownName
from cotrain.envs.played import EARNED, EARNINGS, Compare, PlayedTasks
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
    may_learn = source.seats()  # seat → whether it may learn
    if learns:
        learners = [name.strip() for name in learns.split(",")]
    else:
        learners = [name for name, may in may_learn.items() if may]
    for name in learners:
        if name not in may_learn:
            raise UnknownName(f"seat of {source.name}", name, may_learn)
    if not learners:
        raise ConfigError(
            f"environment: no seat of {source.name} may learn ({', '.join(may_learn)}); name one in learns",
            code="E_NO_SEAT_LEARNS",
        )

    policies, policy_of_seat = cast_roles(run, may_learn, learners, shared=shared)
    algorithm = GRPO(reward_weights={EARNED: 1.0}, kl=run.kl_penalty())
    objectives = team_objectives(learners, algorithm, shared=shared)

    sampling = Sampling(max_tokens=max_tokens)
    protocol = source.make_protocol(tuple(may_learn), turns, compare)
    return run.recipe(
        "environment-shared" if shared else "environment",
        policies=policies,
        roles={
            seat: Role(policy=policy, prompt="{problem}", sampling=sampling) for seat, policy in policy_of_seat.items()
        },
        objectives=objectives,
        schedule=alternate(Phase(name="play", protocol=protocol, objectives=tuple(objectives)), ratio=(1,)),
        evaluate=protocol,
        measures=tuple(measure_metadata(name, EARNINGS, low=-float("inf"), high=float("inf")) for name in may_learn),
    )
