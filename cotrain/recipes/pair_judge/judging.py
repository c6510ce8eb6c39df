"""How pairs are judged: what a judge of each format is shown, what its judgements earn, and how its votes are counted.

Every pair is shown in both orders, so that a preference for a position is seen and earns nothing. A format that judges
replies one by one is shown both replies, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cotrain import CORRECT, Roles, Signal, Task, Turn, gather, gives, rng_of
from cotrain.algorithms.functional.aggregate import aggregate
from cotrain.core.arguments import Positive
from cotrain.core.notes import FINAL, SCORE
from cotrain.core.signals import LABEL
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Trace
from cotrain.formats.solutions import Solution, parse_solution
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, reviews_of, traces_by_task, with_names
from cotrain.rollout import verifier_roles
from cotrain.rollout.pairs import say_replies
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.verifier_roles import comparison_fields, confidence, guarded_fields

Form = Literal["gram", "rmr1", "thinkrm", "graded", "grm", "yesno", "genrm", "steps", "scalar"]
Combine = Literal["majority", "mean"]
COMPARING_FORMS = tuple(verifier_roles.COMPARISONS)  # the judge reads both replies at once; in other forms one

VERDICT: Signal = Signal("verdict", meaning="1 for a judgement that is right, -1 for any other; or how far it is right")
IS_RIGHT = Signal("right", meaning="1 for a judgement that is right, else 0")
SFT_WEIGHT = Signal("weight", meaning="how much a reply counts as a text to imitate")


@gives(VERDICT.to("judge"), IS_RIGHT.to("judge"), LABEL.to("judge"), LABEL.to("meta"), SFT_WEIGHT.to("reply"))
async def judge_pair(
    task: Task,
    roles: Roles,
    *,
    form: Form,
    max_tokens: Positive,
    judgements: Positive = 1,
    orders: Literal["both", "random"] = "both",
    pay: Literal["sign", "score"] = "sign",
    meta: bool = False,
    solutions: float = 0.0,
) -> None:
    """``judgements`` of each order of a pair, or of each of its replies where the format judges them one by one.

    The judge is rewarded by ``verdict``. Metadata ``correct`` of a judgement: is the first reply that it sees, or the
    only one, the chosen one? ``meta``: a meta judge rates the judgements. ``solutions``: weight of cross-entropy of the
    chosen reply.
    """
    replies = await say_pair(task, roles, form, max_tokens)
    chosen_reply, rejected_reply = replies
    if not chosen_reply.failed:
        chosen_reply.reward(SFT_WEIGHT, solutions)
    if not rejected_reply.failed:
        rejected_reply.reward(SFT_WEIGHT, 0.0)
    if chosen_reply.failed or rejected_reply.failed:
        return
    if form == "scalar":
        await rate_replies(task, roles, replies)
        return

    compares = form in COMPARING_FORMS
    orders_to_judge = [(chosen_reply, rejected_reply), (rejected_reply, chosen_reply)]
    if compares and orders == "random":
        orders_to_judge = [rng_of("order", task.id, chosen_reply.id).choice(orders_to_judge)]

    calls = []
    for reply_a, reply_b in orders_to_judge:
        fields = fields_for_judge(roles, form, reply_a, reply_b)
        calls.append(roles.judge.many(judgements, group=reply_a.id, parent=reply_a, problem=task.prompt, **fields))

    for (reply_a, reply_b), turns in zip(orders_to_judge, await gather(calls), strict=True):
        label = CORRECT.require(reply_a)
        for turn in turns:
            turn.add_metadata(CORRECT, label)
            show_verdict(turn)
            turn.reward(IS_RIGHT, float(is_right(turn, label)))
            turn.reward(VERDICT, verdict_reward(turn, label, pay))
        if meta:
            replies_shown = [reply_a, reply_b] if compares else [reply_a]
            await rate_judgements(task, roles, replies_shown, turns)


async def say_pair(task: Task, roles: Roles, form: Form, max_tokens: int) -> list[Turn]:
    """Both replies as turns, the chosen one first. A pair that is too long fails, and a reply that the format cannot
    judge."""
    replies = await say_replies(task, roles.reply, most=max_tokens)
    for turn in replies:
        if form == "steps" and not count_steps(turn.text):
            turn.fail("a reply without steps")
    return replies


def fields_for_judge(roles: Roles, form: Form, reply_a: Turn, reply_b: Turn) -> dict[str, Any]:
    """The fields of the judge's prompt: both replies, or the first alone where the format judges them one by one."""
    template_fields = roles.judge.fields
    nonce = roles.nonce(reply_a)
    if form in COMPARING_FORMS:
        return comparison_fields(template_fields, nonce, reply_a.text, reply_b.text)

    count = count_steps(reply_a.text) if form == "steps" else 1
    fields = {"solution": reply_a.text}
    if "nonce" in template_fields:
        fields = guarded_fields(nonce, solution=reply_a.text)
    return {"count": count, **fields}


def count_steps(reply: str) -> int:
    """How many steps in tags a reply has; 0 where it is no solution in tags."""
    solution = parse_solution(reply, {})
    if not isinstance(solution, Solution):
        return 0
    return len(solution.steps)


def is_right(turn: Turn, label: bool) -> bool:
    """Is the verdict the label? A tie and a text that cannot be read are not."""
    return bool(turn.parsed.ok) and turn.parsed.final == label


def verdict_reward(turn: Turn, label: bool, pay: str) -> float:
    """±1 for a right or wrong verdict. With ``pay`` "score" 2 P − 1, where P is the judgement's probability of the
    label."""
    if pay == "sign" or not turn.parsed.ok:
        return 1.0 if is_right(turn, label) else -1.0
    margin = 2.0 * (confidence(turn) or 0.0) - 1.0  # how far it puts the first reply ahead
    return margin if label else -margin


async def rate_replies(task: Task, roles: Roles, replies: Sequence[Turn]) -> None:
    """A turn of the scalar judge for each reply, with its score s and the label: 1 for the chosen reply, else 0."""
    group = roles.judge.whole_group
    calls = [
        roles.judge(problem=task.prompt, reference="", group=group, parent=reply, solution=reply.text)
        for reply in replies
    ]
    for reply, rating in zip(replies, await gather(calls), strict=True):
        if rating.failed:  # the reply is too long for it
            continue
        is_chosen = CORRECT.require(reply)
        rating.add_metadata(CORRECT, is_chosen)
        rating.add_finding(SCORE, rating.score_probability)
        rating.reward(LABEL, float(is_chosen))


async def rate_judgements(task: Task, roles: Roles, replies: Sequence[Turn], judgements: Sequence[Turn]) -> None:
    """A turn of the meta judge for each judgement that can be read, with its score and the label: is it right?"""
    material = "\n".join([task.prompt, *(reply.text for reply in replies)])
    readable = [turn for turn in judgements if turn.parsed.ok]
    calls = [
        roles.meta(problem=material, reference="", group=replies[0].id, parent=turn, solution=turn.text)
        for turn in readable
    ]
    for turn, rating in zip(readable, await gather(calls), strict=True):
        if rating.failed:
            continue
        judgement_is_right = is_right(turn, CORRECT.require(turn))
        rating.add_metadata(CORRECT, judgement_is_right)
        rating.add_finding(FINAL, rating.score > 0.0)
        rating.add_finding(SCORE, rating.score_probability)
        rating.reward(LABEL, float(judgement_is_right))


# -- What is measured of a judge


def measure_judged_pairs(*, combine: Combine, keep: int, compares: bool) -> Measure:
    """``judge/pair_accuracy``: the share of pairs in which the chosen reply comes out ahead, by all votes.

    A pair with equal votes counts half, and one without any vote that can be read counts as missed.

    ``judge/swap_agreement``: the share of pairs in which both orders prefer the same reply, of those in which both
    orders have a verdict. Only where the judge ``compares``.

    Args:
        combine: votes count as verdicts ("majority"), or by their scores ("mean").
        keep: votes of each order that a meta judge keeps; 0: all, and no meta judge.
        compares: the judge reads both replies at once.
    """

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        meta_scores = {}
        for judgement, [rating] in reviews_of(episodes, "meta").items():
            meta_scores[judgement] = SCORE.of(rating) or 0.0

        counts = {}
        for task, traces in traces_by_task(episodes, "judge").items():
            # The first reply that a judgement saw, or the only one, was the chosen one, or the rejected one.
            chosen_first = [trace for trace in traces if CORRECT.of(trace) is True]
            rejected_first = [trace for trace in traces if CORRECT.of(trace) is False]
            counts[task] = count_pair(
                mean_vote(chosen_first, combine, keep, meta_scores),
                mean_vote(rejected_first, combine, keep, meta_scores),
            )

        figures = {"judge/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), len(counts))}
        if compares:
            n_decided = sum(count["decided"] for count in counts.values())
            figures["judge/swap_agreement"] = make_figure(counts, Share("agreeing", "decided"), n_decided)
        return defined_figures(figures)

    names = ["judge/pair_accuracy"]
    if compares:
        names.append("judge/swap_agreement")
    return with_names(measure, roles=["judge"], figures=names)


def mean_vote(traces: Sequence[Trace], combine: Combine, keep: int, meta_scores: Mapping[str, float]) -> float | None:
    """The mean vote for the first reply of these judgements, in [0, 1]; None where no vote can be read.

    ``meta_scores``: by the address of a judgement. With ``keep`` only the votes with the highest ones count.
    """
    votes = []
    meta = []
    for trace in traces:
        score = SCORE.of(trace)
        if score is None:
            continue
        votes.append(as_vote(score, combine))
        if keep:
            meta.append(meta_scores[str(trace.address)])
    if keep:
        return aggregate("mean", votes, meta=meta, top=keep)
    return aggregate("mean", votes)


def as_vote(score: float, combine: Combine) -> float:
    """The score itself, or with "majority" 1, 0, or 1/2 for a tie."""
    if combine != "majority":
        return score
    if score == 0.5:
        return 0.5
    return float(score > 0.5)


def count_pair(vote_chosen_first: float | None, vote_rejected_first: float | None) -> dict[str, float]:
    """The counts of one pair, from the mean vote for the first reply in both orders; None for no vote."""
    has_votes = vote_chosen_first is not None or vote_rejected_first is not None
    for_chosen = 0.5 if vote_chosen_first is None else vote_chosen_first
    for_rejected = 0.5 if vote_rejected_first is None else vote_rejected_first

    ordered = 0.0
    if has_votes and for_chosen > for_rejected:
        ordered = 1.0
    elif has_votes and for_chosen == for_rejected:
        ordered = 0.5
    is_decided = for_chosen != 0.5 and for_rejected != 0.5
    agrees = is_decided and (for_chosen > 0.5) != (for_rejected > 0.5)  # the other reply is first, so another side wins
    return {"ordered": ordered, "pairs": 1.0, "agreeing": float(agrees), "decided": float(is_decided)}
