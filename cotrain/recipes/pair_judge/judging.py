"""How pairs are judged: what a judge of each format is shown, what its judgements earn, and how its votes are counted.

Every pair is asked in both orders, so that a preference for a position is seen and earns nothing; formats that judge
replies one by one are asked about both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
from cotrain.rollout import judges
from cotrain.rollout.judges import comparison_fields, confidence, guarded_fields
from cotrain.rollout.pairs import say_replies
from cotrain.rollout.reviews import show_verdict

Form = Literal["gram", "rmr1", "thinkrm", "graded", "grm", "yesno", "genrm", "steps", "scalar"]
Combine = Literal["majority", "mean"]
COMPARES = tuple(judges.COMPARISONS)

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
    The judge's ``verdict`` is its reward; it notes as ``correct`` whether the first, or the one, is the wanted reply.
    """
    replies = await say_pair(task, roles, form, most)
    for turn, weight in zip(replies, (solutions, 0.0), strict=True):
        if not turn.failed:
            turn.reward(WEIGHT, weight)
    if any(turn.failed for turn in replies):
        return
    if form == "scalar":
        await rate_replies(task, roles, replies)
        return
    pairs = list(zip(replies, reversed(replies), strict=True))
    if form in COMPARES and orders == "random":
        pairs = [rng_of("order", task.id, replies[0].id).choice(pairs)]
    shown = [shown_fields(roles, form, first, second) for first, second in pairs]
    calls = [
        roles.judge.many(asked, group=first.id, parent=first, problem=task.prompt, **fields)
        for (first, _), fields in zip(pairs, shown, strict=True)
    ]
    for (first, second), judgements in zip(pairs, await gather(calls), strict=True):
        truth = CORRECT.require(first)
        for turn in judgements:
            turn.add_metadata(CORRECT, truth)
            show_verdict(turn)
            turn.reward(RIGHT, float(is_right(turn, truth)))
            turn.reward(VERDICT, verdict_reward(turn, truth, pay))
        if meta:
            seen = (first, second) if form in COMPARES else (first,)
            await rate_judgements(task, roles, seen, judgements)


async def say_pair(task: Task, roles: Roles, form: Form, most: int) -> list[Turn]:
    """Both replies, the wanted one first; those fail that are too long, or that the format cannot judge."""
    replies = await say_replies(task, roles.reply, most=most)
    for turn in replies:
        if form == "steps" and not count_steps(turn.text):
            turn.fail("a reply without steps")
    return replies


def shown_fields(roles: Roles, form: Form, first: Turn, second: Turn) -> dict[str, Any]:
    """What the judge is shown: both replies, or the first alone where the format judges them one by one."""
    asked, mark = roles.judge.fields, roles.nonce(first)
    if form in COMPARES:
        return comparison_fields(asked, mark, first.text, second.text)
    fields = guarded_fields(mark, solution=first.text) if "nonce" in asked else {"solution": first.text}
    return {"count": count_steps(first.text) if form == "steps" else 1, **fields}


def count_steps(reply: str) -> int:
    """How many steps in tags a reply has; 0 where it is no solution in tags."""
    parsed = parse_solution(reply, {})
    return len(parsed.steps) if isinstance(parsed, Solution) else 0


def is_right(turn: Turn, truth: bool) -> bool:
    """Is the verdict the truth? A tie and a text that cannot be read are not."""
    return bool(turn.parsed.ok) and turn.parsed.final == truth


def verdict_reward(turn: Turn, truth: bool, pay: str) -> float:
    """±1; with ``pay`` "score" 2 P − 1, with P the probability or the share that the judgement gives to the truth."""
    if pay == "sign" or not turn.parsed.ok:
        return 1.0 if is_right(turn, truth) else -1.0
    ahead = 2.0 * (confidence(turn) or 0.0) - 1.0
    return ahead if truth else -ahead


async def rate_replies(task: Task, roles: Roles, replies: Sequence[Turn]) -> None:
    """The scalar judge's score of each reply."""
    rate = partial(roles.judge, problem=task.prompt, reference="", group=roles.judge.whole_group)
    for reply, turn in zip(replies, await gather([rate(parent=r, solution=r.text) for r in replies]), strict=True):
        if turn.failed:  # the reply is too long for it
            continue
        turn.add_metadata(CORRECT, CORRECT.require(reply))
        turn.add_finding(SCORE, probability_of(turn.score))
        turn.reward(LABEL, float(CORRECT.require(reply)))


async def rate_judgements(task: Task, roles: Roles, seen: Sequence[Turn], judgements: Sequence[Turn]) -> None:
    """The meta judge's score of each judgement that can be read; its label is whether that is right."""
    material = "\n".join((task.prompt, *(reply.text for reply in seen)))
    readable = [turn for turn in judgements if turn.parsed.ok]
    rate = partial(roles.meta, problem=material, reference="", group=seen[0].id)
    for turn, rating in zip(readable, await gather([rate(parent=t, solution=t.text) for t in readable]), strict=True):
        if rating.failed:
            continue
        right = is_right(turn, CORRECT.require(turn))
        rating.add_metadata(CORRECT, right)
        rating.add_finding(FINAL, rating.score > 0.0)
        rating.add_finding(SCORE, probability_of(rating.score))
        rating.reward(LABEL, float(right))


def probability_of(score: float) -> float:
    """σ(s)"""
    return 0.5 + 0.5 * tanh(0.5 * score)


def judging_pairs(*, combine: Combine, keep: int, compares: bool) -> Measure:
    """``judge/pair_accuracy``: pairs of which the wanted reply comes out ahead, by all votes of both sides (the orders,
    or the replies one by one); equal ones count half, and none of which nothing could be read. ``swap_agreement``: of
    pairs with a verdict in both orders, those in which it is the same reply."""

    def weigh_side(traces: Sequence[Trace], meta: Mapping[str, float]) -> float | None:
        read = [(str(t.address), score) for t in traces if (score := SCORE.of(t)) is not None]
        votes = [(s > 0.5) + 0.5 * (s == 0.5) if combine == "majority" else s for _, s in read]
        if keep:
            return aggregate("mean", votes, meta=[meta[address] for address, _ in read], top=keep)
        return aggregate("mean", votes)

    def measure(episodes: Sequence[Episode]) -> dict[str, Estimate]:
        meta = {judged: SCORE.of(one) or 0.0 for judged, [one] in reviews_of(episodes, "meta").items()}
        counts = {}
        for task, traces in traces_by_task(episodes, "judge").items():
            first, second = (weigh_side([t for t in traces if CORRECT.of(t) is side], meta) for side in (True, False))
            one, other = (0.5 if side is None else side for side in (first, second))
            read, told = first is not None or second is not None, 0.5 not in (one, other)
            counts[task] = {
                "ordered": read * ((one > other) + 0.5 * (one == other)),
                "pairs": 1.0,
                "same": float(told and (one > 0.5) != (other > 0.5)),
                "told": float(told),
            }
        found = {"judge/pair_accuracy": make_figure(counts, Share("ordered", "pairs"), len(counts))}
        if compares:
            both = sum(row["told"] for row in counts.values())
            found["judge/swap_agreement"] = make_figure(counts, Share("same", "told"), both)
        return defined_figures(found)

    return measure
