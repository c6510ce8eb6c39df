"""MAGRPO: several policies, each with its own optimiser, learn from one reward for what they do together.

Liu et al. 2025 (arXiv 2508.04652). Each agent is a policy, and all are trained at every step. Agents answer at once,
turn by turn, and a joint action, which is one answer of each, has one reward. The return of a joint action is its
reward plus γ = 0.9 times the mean return of what follows (``recipes/magrpo/tree.py``); an answer has the sum over its
joint actions. The advantage A of an answer is its return minus the mean over the answers of its agent at its node. Its
loss is the sum of −A log π over its tokens, without importance ratio, clip or KL.

There are two games:

- ``joint_reward``, a function of your own: ``agents`` agents see a problem and answer for ``turns`` turns, knowing all
  that was said before. The function rewards what all say at a turn.
- Without it, two agents see half of the numbers each (``recipes/magrpo/halves.py``). Both write a message of at most 8
  tokens, hear the other's, and answer with the sum. The reward is the share of the two answers that are right.

Controls are parameters:

- ``estimator``: "mean" (MAGRPO), "raw" (MAREINFORCE: no baseline), "rloo" (MARLOO), and "std", divided by the standard
  deviation too, as in AT-GRPO (arXiv 2510.11062) and Dr. MAS (arXiv 2602.08847).
- ``silent``: trains without messages. ``Halves.guessing_accuracy`` is the most that can be reached (floor).
- ``sees="all"``: both see all numbers (ceiling).

The evaluation also measures the team without messages, and with the two policies in each other's seat.

What differs from the authors' code: all turns of a step are one update of each policy. Sampling is at temperature 1
without top-p, so that log-probabilities are those of what was sampled; theirs samples at 0.6 with top-p 0.6. The
default model ``shipped-games`` was taught the format by a teacher that is often wrong. Left out: the maximum as
baseline, and critics.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cotrain import ConfigError, Objective, Recipe, RunConfig, constant_schedule, recipe
from cotrain.algorithms.policy_gradient import PolicyGradient, leave_one_out, mean_baseline, z_score
from cotrain.algorithms.policy_loss import ScoreFunction
from cotrain.core.arguments import Positive
from cotrain.core.types import RolloutFn
from cotrain.metrics.heldout import Measure
from cotrain.recipes.magrpo.halves import Halves
from cotrain.recipes.magrpo.joint import Pairing
from cotrain.recipes.magrpo.rewarded import (
    MOST_AGENTS,
    JointReward,
    act_together,
    agent_roles,
    check_joint_reward,
    measure_joint_reward,
)
from cotrain.recipes.magrpo.teams import AGENTS, MEASURES, cooperate, halves_roles, together_and_apart
from cotrain.recipes.magrpo.tree import JOINT
from cotrain.rollout import common_roles

ESTIMATORS = {"mean": mean_baseline, "raw": None, "rloo": leave_one_out, "std": z_score}


@recipe(model="shipped-games", steps=150, kl=0.0, lr=1e-3, tasks_per_step=8, group_size=4, evaluation_tasks=64)
def magrpo(
    run: RunConfig,
    *,
    pairing: Pairing = "aligned",  # choice of the answers that make a joint action
    estimator: Literal["mean", "raw", "rloo", "std"] = "mean",  # how returns of one agent at one node are compared
    gamma: float = 0.9,  # discount γ of what follows a turn
    threshold: float | None = None,  # a branch ends after a node whose mean reward is above it
    silent: bool = False,  # nobody hears a message
    sees: Literal["half", "all"] = "half",  # numbers that an agent sees
    joint_reward: str | JointReward | None = None,  # reward of all texts: my_file.py:function of the task and texts
    agents: Positive = 2,  # number of agents, with joint_reward
    turns: Positive = 2,  # answers of each agent in one game, with joint_reward
) -> Recipe:
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"magrpo: gamma is {gamma}, expected a number in [0, 1]", code="E_SETTING_RANGE")
    tree: dict[str, Any] = {"samples": run.group_size, "pairing": pairing, "gamma": gamma, "threshold": threshold}
    measures: tuple[Measure, ...] = MEASURES
    if joint_reward is not None:
        assert not isinstance(joint_reward, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
        if silent or sees != "half" or not 2 <= agents <= MOST_AGENTS:
            raise ConfigError(
                f"magrpo: joint_reward with {agents} agents, silent={silent} and sees={sees!r}; expected 2 to "
                f"{MOST_AGENTS} agents, and neither silent nor sees, which are about halves",
                code="E_SETTING_RANGE",
            )
        check_joint_reward(joint_reward)
        agent_names = tuple(f"agent{i + 1}" for i in range(agents))
        roles = agent_roles(agents, turns)
        measures = (measure_joint_reward,)
        evaluate: RolloutFn = partial(act_together, reward=joint_reward, agents=agents, turns=turns)
        protocol: RolloutFn = partial(evaluate, **tree)
    else:
        run = replace(run, tasks=_halves_of(run, agents, turns))
        agent_names = AGENTS
        roles = halves_roles(run.model)
        evaluate = partial(together_and_apart, sees=sees, silent=silent)
        protocol = partial(cooperate, sees=sees, silent=silent, **tree)

    # Each agent learns from its turns: those of the first turn have a role of their own.
    policies = {**run.reference_policies()}
    objectives = {}
    for agent in agent_names:
        policies[agent] = run.learner()
        later_role = f"{agent}_answer"
        learn = PolicyGradient(
            reward_weights={JOINT: 1.0},
            advantage=ESTIMATORS[estimator],
            loss=ScoreFunction(),
            normalise="constant",
            constant=1.0,
            kl=run.kl_penalty(),
        )
        objectives[agent] = Objective(
            policy=agent, role=agent, extra_roles=(later_role,) if later_role in roles else (), algorithm=learn
        )

    return run.recipe(
        f"magrpo-{pairing}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(protocol, *agent_names, name="team", group_size=1),  # ``tree`` samples groups
        evaluate=evaluate,
        measures=measures,
    )


def _halves_of(run: RunConfig, agents: int, turns: int) -> Halves:
    """The problems of the game without a reward function. Raises ConfigError for settings that it cannot have."""
    source = Halves() if run.tasks is None else run.tasks
    if not isinstance(source, Halves):
        raise ConfigError(
            f"magrpo: nothing rewards a team on {source.name}; give --joint-reward my_file.py:function, or --tasks "
            "halves",
            code="E_NO_JOINT_REWARD",
        )
    if (agents, turns) != (2, 2):
        raise ConfigError(
            f"magrpo: {agents} agents and {turns} turns need --joint-reward my_file.py:function; halves have 2 of each",
            code="E_NO_JOINT_REWARD",
        )
    common_roles.check_taught("magrpo", run.model)
    return source
