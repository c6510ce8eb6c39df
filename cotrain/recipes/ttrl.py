"""TTRL: reinforcement learning on problems without answers, towards the majority of one's own votes.

Zuo et al. 2025 (arXiv 2504.16084). ``votes`` samples of a problem elect its label, the most frequent answer; an answer
equal to it earns 1. GRPO learns from the first ``group_size`` samples. It works as long as wrong answers are scattered:
then most rewards are right even where the label is wrong. When they agree, the consensus feeds on itself.

Where only some problems have an answer (``--labelled answers``), it learns from the others. ``--labelled test:64``
trains on the test problems themselves, as the paper does. ``labels="truth"`` is the control: the same samples, paid by
the truth. Left out: extraction and simplification of answers (they are compared as text).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    CORRECT,
    OUTCOME,
    ConfigError,
    Objective,
    Positive,
    Recipe,
    Roles,
    Settings,
    Task,
    attempts,
    common_roles,
    gives,
    grpo,
    recipe,
    single,
    solve,
)
from cotrain.data.labels import check_truth_is_known
from cotrain.rollout.votes import VOTE, elected_turn, note_label, reward_vote


@gives(VOTE.to("solver"), OUTCOME.to("solver"))
async def vote(
    task: Task, roles: Roles, *, votes: Positive, trained: Positive, labels: Literal["vote", "truth"] = "vote"
) -> None:
    """``votes`` answers elect a label; the first ``trained`` are rewarded: ``vote``, or ``outcome`` with the truth."""
    solutions = await attempts(task, roles, votes)
    label = elected_turn(solutions)
    note_label(solutions[trained:], label)
    if labels == "vote":
        reward_vote(solutions[:trained], label)
        return
    note_label(solutions[:trained], label)
    for solution in solutions[:trained]:
        solution.reward(OUTCOME, float(CORRECT.require(solution)))


@recipe
def ttrl(
    run: Settings,
    *,
    votes: int = 16,  # samples that elect the label
    labels: Literal["vote", "truth"] = "vote",  # what pays
) -> Recipe:
    if votes < run.group_size:
        raise ConfigError(
            f"ttrl: {votes} votes, of which {run.group_size} are to be trained on; raise votes or lower group_size"
        )
    learn = grpo(rewards={VOTE if labels == "vote" else OUTCOME: 1.0}, kl=run.pull())
    if labels == "truth":
        check_truth_is_known(run.problems, run.audits)
    election = partial(vote, votes=votes, trained=run.group_size, labels=labels)
    return run.recipe(
        "ttrl" if labels == "vote" else "ttrl-truth",
        policies={"generator": run.learner(), **run.start()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", on="solver", by=learn)},
        schedule=single(election, "generator", name="generator", group_size=1, unlabelled=run.unlabelled_share()),
        evaluate=solve,
    )
