"""MAGRPO: several policies, each with its own optimiser, learn from one reward for what they do together.

Liu et al. 2025 (arXiv 2508.04652). ``joint_reward`` is a function of your own: ``agents`` agents see a problem, answer
at once for ``turns`` turns, each time knowing what all of them said, and the function rewards what they say at a turn
together. Without it, two agents see half of the numbers each (``recipes/magrpo/halves.py``): both write a message of at
most 8 tokens at once, hear the other's, and answer at once; the reward of a joint action is the share of the two
answers that are right. ``recipes/magrpo/tree.py`` has the tree, the pairing of siblings and the returns, with γ = 0.9.
An answer's advantage is its return minus the mean of its agent at its node; the loss is the sum of −A log π
over its tokens, without ratio, clip or KL.

``estimator``: "mean" (MAGRPO), "raw" (MAREINFORCE), "rloo" (MARLOO), "std" (divided by the deviation within agent and
node, as AT-GRPO, arXiv 2510.11062, and Dr. MAS, arXiv 2602.08847, group answers). Controls: ``silent`` trains without
messages, the floor that ``Halves.guessing_accuracy`` bounds; ``sees="all"`` shows all numbers to both, the ceiling.
Evaluation always measures the team without its messages and with the two policies in each other's seat.

Different from the authors' code: all turns of a step are one update of each policy; sampling is at temperature 1
without cuts, so that log-probabilities are those of what was sampled (theirs samples at 0.6, top-p 0.6).
``shipped-games`` was taught the format by a teacher that is often wrong. Left out: the maximum as baseline, critics.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

from cotrain import ConfigError, Objective, Phase, Recipe, RunConfig, alternate, recipe
from cotrain.algorithms.policy_gradient import PolicyGradient, leave_one_out, mean_baseline, z_score
from cotrain.algorithms.policy_loss import ScoreFunction
from cotrain.core.arguments import Positive
from cotrain.core.types import RolloutFn
from cotrain.metrics.heldout import Measure
from cotrain.recipes.magrpo.halves import Halves
from cotrain.recipes.magrpo.joint import Pairing
from cotrain.recipes.magrpo.rewarded import (
    MOST,
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
    pairing: Pairing = "aligned",  # which answers of the agents make a joint action
    estimator: Literal["mean", "raw", "rloo", "std"] = "mean",  # what is taken off a return
    gamma: float = 0.9,  # discount of what follows a turn
    threshold: float | None = None,  # a branch ends where its mean reward is above it
    silent: bool = False,  # nobody hears a message
    sees: Literal["half", "all"] = "half",  # which numbers an agent sees
    joint_reward: str | JointReward | None = None,  # for any problems: my_file.py:function of the task and all texts
    agents: Positive = 2,  # how many of them joint_reward rewards together
    turns: Positive = 2,  # and how often each of them answers
) -> Recipe:
    if not 0.0 <= gamma <= 1.0:
        raise ConfigError(f"magrpo: gamma is {gamma}, expected a number in [0, 1]", code="E_SETTING_RANGE")
    shape: dict[str, Any] = {"samples": run.group_size, "pairing": pairing, "gamma": gamma, "threshold": threshold}
    measures: tuple[Measure, ...] = MEASURES
    if joint_reward is not None:
        assert not isinstance(joint_reward, str)  # the recipe has loaded it
        if silent or sees != "half" or not 2 <= agents <= MOST:
            raise ConfigError(
                f"magrpo: joint_reward with {agents} agents, silent={silent} and sees={sees!r}; expected 2 to {MOST} "
                "agents, and neither silent nor sees, which are about halves",
                code="E_SETTING_RANGE",
            )
        check_joint_reward(joint_reward)
        names = tuple(f"agent{i + 1}" for i in range(agents))
        roles = agent_roles(agents, turns)
        measures = (measure_joint_reward,)
        evaluate: RolloutFn = partial(act_together, reward=joint_reward, agents=agents, turns=turns)
        play: RolloutFn = partial(evaluate, **shape)
    else:
        run = replace(run, tasks=_halves_of(run, agents, turns))
        names = AGENTS
        roles = halves_roles(run.model)
        evaluate = partial(together_and_apart, sees=sees, silent=silent)
        play = partial(cooperate, sees=sees, silent=silent, **shape)
    by = partial(
        PolicyGradient, advantage=ESTIMATORS[estimator], loss=ScoreFunction(), normalise="constant", constant=1.0
    )
    policies = {**run.reference_policies()}
    objectives = {}
    for agent in names:
        policies[agent] = run.learner()
        later = tuple(name for name in (f"{agent}_answer",) if name in roles)
        objectives[agent] = Objective(
            policy=agent, role=agent, extra_roles=later, algorithm=by(reward_weights={JOINT: 1.0}, kl=run.kl_penalty())
        )
    phase = Phase(name="team", protocol=play, objectives=names, group_size=1)
    return run.recipe(
        f"magrpo-{pairing}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluate=evaluate,
        measures=measures,
    )


def _halves_of(run: RunConfig, agents: int, turns: int) -> Halves:
    """The problems of two agents without a reward function."""
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
