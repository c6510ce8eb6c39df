"""MAGRPO: several policies, each with its own optimiser, learn from one reward for what they do together.

Liu et al. 2025 (arXiv 2508.04652). Two agents see half of the numbers each (``methods/magrpo/halves.py``). Both write a
message of at most 8 tokens at once, hear the other's, and answer at once; the reward of a joint action is the share of
the two answers that are right. ``methods/magrpo/teams.py`` has the tree, the pairing of siblings and the returns, with
γ = 0.9. An answer's advantage is its return minus the mean of its agent at its node; the loss is the sum of −A log π
over its tokens, without ratio, clip or KL.

``estimator``: "mean" (MAGRPO), "raw" (MAREINFORCE), "rloo" (MARLOO), "std" (divided by the deviation within agent and
node, as AT-GRPO, arXiv 2510.11062, and Dr. MAS, arXiv 2602.08847, group answers). Controls: ``silent`` trains without
messages, the floor that ``Halves.guessing_accuracy`` bounds; ``sees="all"`` shows all numbers to both, the ceiling.
Evaluation always measures the team without its messages and with the two policies in each other's seat.

Different from the authors' code: all turns of a step are one update of each policy; sampling is at temperature 1
without cuts, so that log-probabilities are those of what was sampled (theirs samples at 0.6, top-p 0.6).
``embedded-games`` was taught the format by a teacher that is often wrong. Left out: the maximum as baseline, critics.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import CORRECT, ConfigError, Objective, Phase, Recipe, Settings
from cotrain import alternate, common_roles, noting, recipe
from cotrain.methods.magrpo.joint import Pairing
from cotrain.learn.policy_gradient import centred, leave_one_out, z_score
from cotrain.learn.losses import ScoreFunction
from cotrain.learn.policy_gradient import PolicyGradient
from cotrain.methods.magrpo.teams import (
    AGENTS,
    BOTH,
    JOINT,
    TELLS,
    cooperate,
    team_roles,
    together_and_apart,
)
from cotrain.methods.magrpo.halves import Halves

ESTIMATORS = {"mean": centred, "raw": None, "rloo": leave_one_out, "std": z_score}


@recipe(model="embedded-games", steps=150, kl=0.0, lr=1e-3, tasks_per_step=8, group_size=4, evaluation_tasks=64)
def magrpo(
    run: Settings,
    *,
    pairing: Pairing = "aligned",  # which answers of the two make a joint action
    estimator: Literal["mean", "raw", "rloo", "std"] = "mean",  # what is taken off a return
    gamma: float = 0.9,  # discount of what follows a message
    threshold: float | None = None,  # a branch ends where its mean reward is above it
    silent: bool = False,  # nobody hears a message
    sees: Literal["half", "all"] = "half",  # which numbers an agent sees
) -> Recipe:
    source = Halves() if run.tasks is None else run.tasks
    if not isinstance(source, Halves):
        raise ConfigError(f"magrpo: {source.name} is not seen by halves; expected --tasks halves")
    common_roles.check_taught("magrpo", run.model)
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"magrpo: gamma is {gamma}, expected a number in [0, 1]")
    run = replace(run, tasks=source)
    by = partial(
        PolicyGradient, advantage=ESTIMATORS[estimator], loss=ScoreFunction(), normalise="constant", constant=1.0
    )
    policies, objectives = {**run.start()}, {}
    for agent in AGENTS:
        policies[agent] = run.learner()
        objectives[agent] = Objective(
            policy=agent, on=agent, also=(f"{agent}_answer",), by=by(rewards={JOINT: 1.0}, kl=run.pull())
        )
    same = {agent: agent for agent in AGENTS}
    roles = team_roles(same, run.model) | team_roles(same, run.model, "silent_")
    roles |= team_roles(dict(zip(AGENTS, reversed(AGENTS), strict=True)), run.model, "swapped_")
    play = partial(
        cooperate,
        sees=sees,
        silent=silent,
        samples=run.group_size,
        pairing=pairing,
        gamma=gamma,
        threshold=threshold,
    )
    phase = Phase(name="team", protocol=play, objectives=AGENTS, group_size=1)
    answers = [f"{prefix}{agent}_answer" for prefix in ("", "silent_", "swapped_") for agent in AGENTS]
    return run.recipe(
        f"magrpo-{pairing}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluate=partial(together_and_apart, sees=sees, silent=silent),
        measures=(
            *(noting(name, CORRECT) for name in answers),
            *(noting(f"{prefix}alice_answer", BOTH) for prefix in ("", "silent_", "swapped_")),
            *(noting(agent, TELLS) for agent in AGENTS),
        ),
    )
