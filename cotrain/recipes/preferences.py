"""Learning from preferences that are given: a policy by DPO, or a reward model, before any RL.

A pair is a prompt x, the chosen reply y⁺ and the rejected one y⁻ (``data/preferences.py``). Nothing is sampled: a
program "says" both replies, so that they are turns with tokens, from which an objective can learn.

    dpo      −log σ(β m), m = [log π(y⁺) − log π(y⁻)] − [log π_ref(y⁺) − log π_ref(y⁻)], and π_ref the start
             (Rafailov et al. 2023, arXiv 2305.18290; ``algorithms/dpo.py``)
    reward   −log σ(s⁺ − s⁻), s the score of a head on the body of a model
             (Bradley & Terry 1952; Ouyang et al. 2022, arXiv 2203.02155; ``algorithms/reward_model.py``)

The metric is the share of held-out pairs with m > 0, or with s⁺ > s⁻. Equal values count half, so that a policy begins
at 0.5. ``rollout/pairs.py`` makes pairs of tasks without preferences.

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
async def say_pair(task: Task, roles: Roles, *, max_tokens: int) -> None:
    """Both replies of the data set as turns, the chosen one with the reward ``CHOSEN`` = 1, the rejected one with 0.

    A pair fails if prompt and reply of one of the two have more than ``max_tokens`` tokens.
    """
    for turn in await say_replies(task, roles.teacher, most=max_tokens):
        if not turn.failed:
            is_chosen = CORRECT.require(turn)
            turn.reward(CHOSEN, float(is_chosen))


@gives(LABEL.to("rater"))
async def rate_pair(task: Task, roles: Roles) -> None:
    """A turn of the reward model for each reply, with its score s and the reward ``LABEL``: 1 for y⁺, 0 for y⁻."""
    group = roles.rater.whole_group
    calls = []
    for reply in replies_of(task):
        calls.append(roles.rater(problem=task.prompt, reference="", solution=reply, group=group))
    chosen_turn, rejected_turn = await gather(calls)

    for turn, is_chosen in ((chosen_turn, True), (rejected_turn, False)):
        turn.add_finding(PROBLEM, task.prompt)
        turn.reward(LABEL, float(is_chosen))
        turn.add_metadata(CORRECT, is_chosen)


def evaluated_once(recipe: Recipe) -> Recipe:
    """The recipe with one rollout of each problem in evaluations, as nothing in it is random."""
    return replace(recipe, evaluation=replace(recipe.evaluation, greedy=False, group_size=1))


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
    prompt = SOLVE if common_roles.is_terse(run.model) else SOLVE_BARE  # for problems; conversations are shown as such
    algorithm = Preference(policy="generator", reference="reference", loss=loss, betas=(beta,), sft=sft)
    protocol = partial(say_pair, max_tokens=max_tokens)
    dpo_recipe = run.recipe(
        "dpo",
        policies={
            "generator": run.learner(),
            "reference": frozen(run.model),
            "teacher": program(say_reply, tokens_of="generator"),
        },
        roles={"teacher": Role(policy="teacher", prompt=prompt, sampling=Sampling(max_tokens=max_tokens))},
        objectives={"generator": Objective(policy="generator", role="teacher", algorithm=algorithm)},
        schedule=constant_schedule(protocol, "generator", name="generator", group_size=1),
        evaluate=protocol,
        measures=(),
        implicit_rewards=(ImplicitReward(policy="generator", reference="reference", role="teacher"),),
    )
    return evaluated_once(dpo_recipe)


@recipe(reads="pairs", without=("kl", "group_size", "temperature", "lora"))
def reward(
    run: RunConfig,
    *,
    anchor: Weight = 0.0,  # weight of cross-entropy of σ(s) with the label beside the pairs; it keeps s from drifting
) -> Recipe:
    """A reward model learns preferences that are given, before any RL.

    −log σ(s⁺ − s⁻) of each pair, with s the score of a head on the body of a model (Bradley & Terry 1952; Ouyang et al.
    2022, arXiv 2203.02155).
    """
    check_pairs("reward", run.problems)
    reward_recipe = run.recipe(
        "reward",
        policies={"rm": reward_model(run.model, lr=run.lr)},
        roles={"rater": common_roles.rater("rm")},
        objectives={"rm": Objective(policy="rm", role="rater", algorithm=Pairwise(anchor=anchor))},
        schedule=constant_schedule(rate_pair, "rm", name="rm", group_size=1),
        evaluate=rate_pair,
        measures=(measure_pair_order("rater", "rm"),),
    )
    return evaluated_once(reward_recipe)
