"""Learning from preferences that are given: a policy by DPO, or a reward model, before any RL.

A pair is a prompt, the reply that is wanted y⁺ and the one that is not y⁻ (``tasks/pairs.py``). Nothing is sampled.

    dpo      −log σ(β m), m = [log π(y⁺) − log π(y⁻)] − [log π_ref(y⁺) − log π_ref(y⁻)], and π_ref the start
             (Rafailov et al. 2023, arXiv 2305.18290; ``learn/preference.py``)
    reward   −log σ(s⁺ − s⁻), s the score of a head on the body of a model
             (Bradley & Terry 1952; Ouyang et al. 2022, arXiv 2203.02155; ``learn/reward_model.py``)

What is measured is the share of pairs with held-out prompts that are put in order, by m > 0 or by s⁺ > s⁻; equal values
count half, so that a policy begins at 0.5. Of tasks without preferences, as the word problems are, a worked solution is
wanted, and unwanted is the same with another number written over its answer.

Left out: rejected replies that the policy samples (``spin``), margins of the pairs, heads of several numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from cotrain import CORRECT, LABEL, ConfigError, Objective, Recipe, Role, Roles, Sampling, Settings, Task
from cotrain import common_roles, frozen, gives, program, recipe, reward_model, rng_of, single, together
from cotrain.core.notes import PROBLEM
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode
from cotrain.config.evaluation import Implied
from cotrain.learn.preference import CHOSEN, PairLoss, Preference
from cotrain.learn.reward_model import Pairwise
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import traces_by_task
from cotrain.tasks.pairs import ChatTask, messages_of
from cotrain.tasks.words.corrupt import another_answer
from cotrain.text.prompts import SOLVE
from cotrain.text.role_prompts import SOLVE_BARE

TOO_LONG = "pair too long"


def replies_of(task: Task) -> tuple[str, str]:
    """The wanted and the unwanted reply."""
    wanted = task.solution or ""
    if isinstance(task, ChatTask):
        return wanted, task.rejected or ""
    return wanted, another_answer(wanted, task.answer or "", rng_of("unwanted", task.id))


@gives(CHOSEN.to("teacher"))
async def say_pair(task: Task, roles: Roles, *, most: int) -> None:
    """Both replies; a pair with one of more than ``most`` tokens, its prompt included, is not learned."""
    turns = []
    for reply in replies_of(task):
        chat = roles.teacher.begin(problem=task.prompt, solution=reply, group=task.id)
        chat.messages = messages_of(task) or chat.messages
        turns.append(await chat.say())
    too_long = any(len(turn.prompt_ids) + turn.tokens > most for turn in turns)
    for turn, wanted in zip(turns, (True, False), strict=True):
        turn.show(PROBLEM, task.prompt)
        if too_long:
            turn.fail(TOO_LONG)
            continue
        turn.reward(CHOSEN, float(wanted))
        turn.note(CORRECT, wanted)


@gives(LABEL.to("rater"))
async def rate_pair(task: Task, roles: Roles) -> None:
    """A score of each reply, without a reference answer."""
    rate = partial(roles.rater, problem=task.prompt, reference="", group=task.id)
    for turn, wanted in zip(await together([rate(solution=s) for s in replies_of(task)]), (True, False), strict=True):
        turn.show(PROBLEM, task.prompt)
        turn.reward(LABEL, float(wanted))
        turn.note(CORRECT, wanted)


def say_reply(fields: Mapping[str, Any], rng: Random) -> str:
    return str(fields["solution"])


def pairs_in_order(episodes: Sequence[Episode]) -> dict[str, Estimate]:
    """``rm/pair_accuracy``: of a wanted and an unwanted reply to one prompt, how often the wanted has the higher
    score."""
    counts = {}
    for task, traces in traces_by_task(episodes, "rater").items():
        scores = {wanted: [t.score or 0.0 for t in traces if CORRECT.of(t) is wanted] for wanted in (True, False)}
        pairs = [(a > b) + 0.5 * (a == b) for a in scores[True] for b in scores[False]]
        counts[task] = {"ordered": float(sum(pairs)), "pairs": float(len(pairs))}
    total = sum(row["pairs"] for row in counts.values())
    return defined_figures({"rm/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), total)})


def once(made: Recipe) -> Recipe:
    """Measured in one play: nothing is drawn."""
    return replace(made, evaluation=replace(made.evaluation, greedy=False, group_size=1))


def check_pairs(method: str, run: Settings) -> None:
    """Raise ConfigError for problems of which no pair can be made."""
    if run.problems.size("train") != 0 and run.problems.get("train", 0).solution is None:
        raise ConfigError(
            f"{method}: the tasks {run.problems.name!r} are no preferences; expected --data FILE with prompt, chosen "
            "and rejected, or tasks with worked solutions"
        )


@recipe(without=("kl", "group_size", "temperature"))
def dpo(
    run: Settings,
    *,
    beta: float = 0.1,  # β: how much a log-ratio to the start counts
    loss: PairLoss = "sigmoid",  # of a pair
    sft: float = 0.0,  # share of the wanted reply's cross-entropy in the loss
    max_tokens: int = 1024,  # of prompt and reply together; longer pairs are left out and counted
) -> Recipe:
    check_pairs("dpo", run)
    prompt = SOLVE if common_roles.speaks_short(run.model) else SOLVE_BARE  # of a problem; messages stand as they are
    by = Preference(policy="generator", reference="start", loss=loss, betas=(beta,), sft=sft)
    say = partial(say_pair, most=max_tokens)
    made = run.recipe(
        "dpo",
        policies={
            "generator": run.learner(),
            "start": frozen(run.model),
            "teacher": program(say_reply, tokens_of="generator"),
        },
        roles={"teacher": Role(policy="teacher", prompt=prompt, sampling=Sampling(max_tokens=max_tokens))},
        objectives={"generator": Objective(policy="generator", on="teacher", by=by)},
        schedule=single(say, "generator", name="generator", group_size=1),
        evaluate=say,
        measures=(),
        implied=(Implied(policy="generator", reference="start", role="teacher"),),
    )
    return once(made)


@recipe(without=("kl", "group_size", "temperature", "lora"))
def reward(
    run: Settings,
    *,
    anchor: float = 0.0,  # weight of cross-entropy of σ(score) beside the pairs, which holds the scores in place
) -> Recipe:
    check_pairs("reward", run)
    made = run.recipe(
        "reward",
        policies={"rm": reward_model(run.model, lr=run.lr)},
        roles={"rater": common_roles.rater("rm")},
        objectives={"rm": Objective(policy="rm", on="rater", by=Pairwise(anchor=anchor))},
        schedule=single(rate_pair, "rm", name="rm", group_size=1),
        evaluate=rate_pair,
        measures=(pairs_in_order,),
    )
    return once(made)
