"""Learning from preferences that are given: a policy by DPO, or a reward model, before any RL.

A pair is a prompt, the reply that is wanted y⁺ and the one that is not y⁻ (``data/preferences.py``). Nothing is
sampled.

    dpo      −log σ(β m), m = [log π(y⁺) − log π(y⁻)] − [log π_ref(y⁺) − log π_ref(y⁻)], and π_ref the start
             (Rafailov et al. 2023, arXiv 2305.18290; ``algorithms/dpo.py``)
    reward   −log σ(s⁺ − s⁻), s the score of a head on the body of a model
             (Bradley & Terry 1952; Ouyang et al. 2022, arXiv 2203.02155; ``algorithms/reward_model.py``)

What is measured is the share of pairs with held-out prompts that are put in order, by m > 0 or by s⁺ > s⁻; equal values
count half, so that a policy begins at 0.5. ``rollout/pairs.py`` has the pairs of tasks without preferences.

Left out: rejected replies that the policy samples (``spin``), margins of the pairs, heads of several numbers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cotrain import (
    CORRECT,
    Objective,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Sampling,
    Task,
    constant_schedule,
    frozen,
    gather,
    gives,
    program,
    recipe,
    reward_model,
)
from cotrain.algorithms.dpo import CHOSEN, PairLoss, Preference
from cotrain.algorithms.reward_model import Pairwise
from cotrain.config.evaluation import ImplicitReward
from cotrain.core.arguments import Weight
from cotrain.core.notes import PROBLEM
from cotrain.core.signals import LABEL
from cotrain.formats.role_prompts import SOLVE_BARE
from cotrain.prompts.templates import SOLVE
from cotrain.rollout import common_roles
from cotrain.rollout.pairs import check_pairs, measure_pair_order, replies_of, say_replies, say_reply


@gives(CHOSEN.to("teacher"))
async def say_pair(task: Task, roles: Roles, *, most: int) -> None:
    """Both replies; a pair with one of more than ``most`` tokens, its prompt included, is not learned."""
    for turn in await say_replies(task, roles.teacher, most=most):
        if not turn.failed:
            turn.reward(CHOSEN, float(CORRECT.require(turn)))


@gives(LABEL.to("rater"))
async def rate_pair(task: Task, roles: Roles) -> None:
    """A score of each reply, without a reference answer."""
    rate = partial(roles.rater, problem=task.prompt, reference="", group=roles.rater.whole_group)
    for turn, wanted in zip(await gather([rate(solution=s) for s in replies_of(task)]), (True, False), strict=True):
        turn.add_finding(PROBLEM, task.prompt)
        turn.reward(LABEL, float(wanted))
        turn.add_metadata(CORRECT, wanted)


def once(made: Recipe) -> Recipe:
    """Measured by one rollout of each problem: nothing is drawn."""
    return replace(made, evaluation=replace(made.evaluation, greedy=False, group_size=1))


@recipe(reads="pairs", without=("kl", "group_size", "temperature"))
def dpo(
    run: RunConfig,
    *,
    beta: Weight = 0.1,  # β: how much a log-ratio to the start counts
    loss: PairLoss = "sigmoid",  # loss of a pair
    sft: float = 0.0,  # share of the wanted reply's cross-entropy in the loss
    max_tokens: int = 1024,  # tokens of prompt and reply together, at most; longer pairs are left out and counted
) -> Recipe:
    """A policy learns preferences that are given, without any RL.

    Nothing is sampled: −log σ(β m) of each pair, with m how much further than the start it prefers the wanted reply
    (Rafailov et al. 2023, arXiv 2305.18290).
    """
    check_pairs("dpo", run.problems)
    prompt = SOLVE if common_roles.is_terse(run.model) else SOLVE_BARE  # of a problem; messages stand as they are
    by = Preference(policy="generator", reference="reference", loss=loss, betas=(beta,), sft=sft)
    say = partial(say_pair, most=max_tokens)
    made = run.recipe(
        "dpo",
        policies={
            "generator": run.learner(),
            "reference": frozen(run.model),
            "teacher": program(say_reply, tokens_of="generator"),
        },
        roles={"teacher": Role(policy="teacher", prompt=prompt, sampling=Sampling(max_tokens=max_tokens))},
        objectives={"generator": Objective(policy="generator", role="teacher", algorithm=by)},
        schedule=constant_schedule(say, "generator", name="generator", group_size=1),
        evaluate=say,
        measures=(),
        implicit_rewards=(ImplicitReward(policy="generator", reference="reference", role="teacher"),),
    )
    return once(made)


@recipe(reads="pairs", without=("kl", "group_size", "temperature", "lora"))
def reward(
    run: RunConfig,
    *,
    anchor: Weight = 0.0,  # weight of cross-entropy of σ(score) beside the pairs, which holds the scores in place
) -> Recipe:
    """A reward model learns preferences that are given, before any RL.

    −log σ(s⁺ − s⁻) of each pair, with s the score of a head on the body of a model (Bradley & Terry 1952; Ouyang et al.
    2022, arXiv 2203.02155).
    """
    check_pairs("reward", run.problems)
    made = run.recipe(
        "reward",
        policies={"rm": reward_model(run.model, lr=run.lr)},
        roles={"rater": common_roles.rater("rm")},
        objectives={"rm": Objective(policy="rm", role="rater", algorithm=Pairwise(anchor=anchor))},
        schedule=constant_schedule(rate_pair, "rm", name="rm", group_size=1),
        evaluate=rate_pair,
        measures=(measure_pair_order("rater", "rm"),),
    )
    return once(made)
