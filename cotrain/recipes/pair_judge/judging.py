"""How pairs are judged: what a judge of each format is shown, what its judgements earn, and how its votes are counted.

Every pair is asked in both orders, so that a preference for a position is seen and earns nothing; formats that judge
replies one by one are asked about both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import tanh
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
from cotrain.metrics.heldout import Measure, reviews_of, traces_by_task
from cotrain.rollout import verifier_roles
from cotrain.rollout.pairs import say_replies
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.verifier_roles import comparison_fields, confidence, guarded_fields

Form = Literal["gram", "rmr1", "thinkrm", "graded", "grm", "yesno", "genrm", "steps", "scalar"]
Combine = Literal["majority", "mean"]
COMPARES = tuple(verifier_roles.COMPARISONS)

VERDICT: Signal = Signal("verdict", meaning="1 for a judgement that is right, -1 for any other; or how far it is right")
RIGHT = Signal("right", meaning="1 for a judgement that is right, else 0")
WEIGHT = Signal("weight", meaning="how much a reply counts as a text to imitate")


@gives(VERDICT.to("judge"), RIGHT.to("judge"), LABEL.to("judge"), LABEL.to("meta"), WEIGHT.to("reply"))
async def judge_pair(
    task: Task,
    roles: Roles,
    *,
    form: Form,
    most: Positive,
    asked: Positive = 1,
    orders: Literal["both", "random"] = "both",
    pay: Literal["sign", "score"] = "sign",
    meta: bool = False,
    solutions: float = 0.0,
) -> None:
    """``asked`` judgements of each order of a pair, or of each of its replies where the format judges them one by one.

    The judge's ``verdict`` is its reward. Its metadata ``correct`` says whether the first reply that it sees, or the
    only one, is the wanted one.
    """
    replies = await say_pair(task, roles, form, most)
    wanted, unwanted = replies
    if not wanted.failed:
        wanted.reward(WEIGHT, solutions)
    if not unwanted.failed:
        unwanted.reward(WEIGHT, 0.0)
    if wanted.failed or unwanted.failed:
        return
    if form == "scalar":
        await rate_replies(task, roles, replies)
        return

    compares = form in COMPARES
    pairs = [(wanted, unwanted), (unwanted, wanted)]
    if compares and orders == "random":
        pairs = [rng_of("order", task.id, wanted.id).choice(pairs)]

    calls = []
    for first, second in pairs:
        fields = fields_for_judge(roles, form, first, second)
        calls.append(roles.judge.many(asked, group=first.id, parent=first, problem=task.prompt, **fields))
    for (first, second), judgements in zip(pairs, await gather(calls), strict=True):
        truth = CORRECT.require(first)
        for turn in judgements:
            turn.add_metadata(CORRECT, truth)
            show_verdict(turn)
            turn.reward(RIGHT, float(is_right(turn, truth)))
            turn.reward(VERDICT, verdict_reward(turn, truth, pay))
        if meta:
            judged = [first, second] if compares else [first]
            await rate_judgements(task, roles, judged, judgements)


async def say_pair(task: Task, roles: Roles, form: Form, most: int) -> list[Turn]:
    """Both replies, the wanted one first; those fail that are too long, or that the format cannot judge."""
    replies = await say_replies(task, roles.reply, most=most)
    for turn in replies:
        if form == "steps" and not count_steps(turn.text):
            turn.fail("a reply without steps")
    return replies


def fields_for_judge(roles: Roles, form: Form, first: Turn, second: Turn) -> dict[str, Any]:
    """The fields of the judge's prompt: both replies, or the first alone where the format judges them one by one."""
    template_fields = roles.judge.fields
    nonce = roles.nonce(first)
    if form in COMPARES:
        return comparison_fields(template_fields, nonce, first.text, second.text)

    count = count_steps(first.text) if form == "steps" else 1
    fields = {"solution": first.text}
    if "nonce" in template_fields:
        fields = guarded_fields(nonce, solution=first.text)
    return {"count": count, **fields}


def count_steps(reply: str) -> int:
    """How many steps in tags a reply has; 0 where it is no solution in tags."""
    parsed = parse_solution(reply, {})
    if not isinstance(parsed, Solution):
        return 0
    return len(parsed.steps)


def is_right(turn: Turn, truth: bool) -> bool:
    """Is the verdict the truth? A tie and a text that cannot be read are not."""
    return bool(turn.parsed.ok) and turn.parsed.final == truth


def verdict_reward(turn: Turn, truth: bool, pay: str) -> float:
    """±1; with ``pay`` "score" 2 P − 1, with P the probability or the share that the judgement gives to the truth."""
    if pay == "sign" or not turn.parsed.ok:
        return 1.0 if is_right(turn, truth) else -1.0
    lead_of_first = 2.0 * (confidence(turn) or 0.0) - 1.0
    return lead_of_first if truth else -lead_of_first


async def rate_replies(task: Task, roles: Roles, replies: Sequence[Turn]) -> None:
    """The scalar judge's score of each reply."""
    group = roles.judge.whole_group
    calls = [
        roles.judge(problem=task.prompt, reference="", group=group, parent=reply, solution=reply.text)
        for reply in replies
    ]
    for reply, rating in zip(replies, await gather(calls), strict=True):
        if rating.failed:  # the reply is too long for it
            continue
        is_wanted = CORRECT.require(reply)
        rating.add_metadata(CORRECT, is_wanted)
        rating.add_finding(SCORE, probability_of(rating.score))
        rating.reward(LABEL, float(is_wanted))


async def rate_judgements(task: Task, roles: Roles, replies: Sequence[Turn], judgements: Sequence[Turn]) -> None:
    """The meta judge's score of each judgement of these replies that can be read; its label is whether that is
    right."""
    material = "\n".join([task.prompt, *(reply.text for reply in replies)])
    readable = [turn for turn in judgements if turn.parsed.ok]
    calls = [
        roles.meta(problem=material, reference="", group=replies[0].id, parent=turn, solution=turn.text)
        for turn in readable
    ]
    for turn, rating in zip(readable, await gather(calls), strict=True):
        if rating.failed:
            continue
        judged_rightly = is_right(turn, CORRECT.require(turn))
        rating.add_metadata(CORRECT, judged_rightly)
        rating.add_finding(FINAL, rating.score > 0.0)
        rating.add_finding(SCORE, probability_of(rating.score))
        rating.reward(LABEL, float(judged_rightly))


def probability_of(score: float) -> float:
    """σ(s)"""
    return 0.5 + 0.5 * tanh(0.5 * score)


def judging_pairs(*, combine: Combine, keep: int, compares: bool) -> Measure:
    """``judge/pair_accuracy``: pairs of which the wanted reply comes out ahead, by all votes of both sides (the orders,
    or the replies one by one). A pair with equal votes counts half; one without any readable vote counts as missed.

    ``judge/swap_agreement``: of the pairs with a verdict in both orders, those in which it is the same reply.
    """

    def vote_of(score: float) -> float:
        if combine != "majority":
            return score
        if score == 0.5:
            return 0.5
        return float(score > 0.5)

    def combined_vote(traces: Sequence[Trace], meta_scores: Mapping[str, float]) -> float | None:
        """All votes of one side; None where none can be read."""
        votes = []
        meta = []
        for trace in traces:
            score = SCORE.of(trace)
            if score is not None:
                votes.append(vote_of(score))
                if keep:
                    meta.append(meta_scores[str(trace.address)])
        if keep:
            return aggregate("mean", votes, meta=meta, top=keep)
        return aggregate("mean", votes)

    def count_pair(wanted_vote: float | None, unwanted_vote: float | None) -> dict[str, float]:
        is_read = wanted_vote is not None or unwanted_vote is not None
        for_wanted = 0.5 if wanted_vote is None else wanted_vote
        for_unwanted = 0.5 if unwanted_vote is None else unwanted_vote

        ordered = 0.0
        if is_read and for_wanted > for_unwanted:
            ordered = 1.0
        elif is_read and for_wanted == for_unwanted:
            ordered = 0.5
        is_decided = for_wanted != 0.5 and for_unwanted != 0.5
        is_same_reply = is_decided and (for_wanted > 0.5) != (for_unwanted > 0.5)
        return {"ordered": ordered, "pairs": 1.0, "same": float(is_same_reply), "told": float(is_decided)}

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        meta_scores = {}
        for judgement, [rating] in reviews_of(episodes, "meta").items():
            meta_scores[judgement] = SCORE.of(rating) or 0.0

        counts = {}
        for task, traces in traces_by_task(episodes, "judge").items():
            of_wanted = [trace for trace in traces if CORRECT.of(trace) is True]
            of_unwanted = [trace for trace in traces if CORRECT.of(trace) is False]
            counts[task] = count_pair(combined_vote(of_wanted, meta_scores), combined_vote(of_unwanted, meta_scores))

        figures = {"judge/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), len(counts))}
        if compares:
            n_decided = sum(count["told"] for count in counts.values())
            figures["judge/swap_agreement"] = make_figure(counts, Share("same", "told"), n_decided)
        return defined_figures(figures)

    return measure
