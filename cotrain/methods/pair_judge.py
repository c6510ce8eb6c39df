"""Judges of pairs that reason, trained by RL on pairs of which one reply is wanted.

A judge reads a prompt and two replies, writes a rubric, a thought or principles first, as its format (``form``) has it,
and names the better one. Its reward is 1 where that is the wanted reply, and −1 where it is the other or the text
cannot be read (RM-R1, Chen et al. 2025, arXiv 2505.02387; Think-RM, Hong et al. 2025, arXiv 2505.16265; DeepSeek-GRM,
Liu et al. 2025, arXiv 2504.02495); with ``pay="score"`` how far it puts the wanted reply ahead, 2 P − 1. Every pair is
asked in both orders, and judgements of one order are compared with each other.

    form                          what the judge writes                                      read as
    gram                          a letter                                                   P(A)
    rmr1, thinkrm, graded         rubric and evaluation; a thought; a thought                a letter; a letter; −3 … 3
    grm                           principles and critique                                    points of both
    yesno, genrm, steps           of one reply alone: a word; a rationale; a review          P(Yes), the mean over votes
    scalar                        a number by a head, −log σ(s⁺ − s⁻) as in ``reward``       the number

``yesno`` and ``genrm`` are GenRM (Zhang et al. 2024, arXiv 2408.15240) without and with its chain of thought; ``steps``
is the package's own review step by step, which its small models can write.

On held-out pairs each order, or each reply, gets ``votes`` judgements. With ``keep`` a meta judge, a scalar head that
learns to tell right from wrong judgements, keeps the best of them (DeepSeek-GRM's meta RM).

Controls are parameters: ``learn="sft"`` is cross-entropy of its own right judgements, online, in the place of RL
(rejection fine-tuning), ``learn="none"`` a judge that stays as it is, ``orders="random"`` trains on one order of each
pair. ``solutions`` adds cross-entropy of the wanted replies, GenRM's mixture.

Left out: the authors' first stage, fine-tuning on what a stronger model wrote; more than two replies; a reward for
saying the same in both orders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import tanh
from typing import Any, Literal

from cotrain import CORRECT, FINAL, LABEL, SCORE
from cotrain import ConfigError, Objective, Positive, Recipe, Role, Roles, Sampling, Settings, Sft, Signal, Task, Turn
from cotrain import at_least, common_roles, gives, grpo, judges, program, recipe, reward_model, rng_of, single, together
from cotrain import verifying
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Trace
from cotrain.functional.aggregate import aggregate
from cotrain.learn.contract import Algorithm
from cotrain.learn.reward_model import Pairwise, Pointwise
from cotrain.metrics.clusters import Share, defined_figures, make_figure
from cotrain.metrics.heldout import Measure, reviews_of, traces_by_task
from cotrain.rollout.judges import comparison_fields, confidence, guarded_fields
from cotrain.rollout.pairs import check_pairs, say_replies, say_reply
from cotrain.rollout.reviews import show_verdict
from cotrain.text.parsers import Solution, parse_solution
from cotrain.text.prompts import SOLVE
from cotrain.text.role_prompts import SOLVE_BARE

Form = Literal["gram", "rmr1", "thinkrm", "graded", "grm", "yesno", "genrm", "steps", "scalar"]
Combine = Literal["majority", "mean"]
COMPARES = tuple(judges.COMPARISONS)
LETTERS = ("gram", "rmr1", "thinkrm")
FORMS: dict[str, Callable[..., Role]] = {  # the role of each, for a policy and its model
    **{name: partial(judges.comparer, form=name) for name in judges.COMPARISONS},
    "yesno": partial(judges.genrm, direct=True),
    "genrm": judges.genrm,
    "steps": common_roles.verifier,
}
STANDING = 1e-12  # a learning rate at which no float32 weight moves

VERDICT = Signal("verdict", meaning="1 for a judgement that is right, -1 for any other; or how far it is right")
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
    replies = await say_replies(task, roles.reply, most=most)
    for turn, weight in zip(replies, (solutions, 0.0), strict=True):
        if not turn.failed:
            turn.reward(WEIGHT, weight)
    if form == "steps":
        for turn in replies:
            if not count_steps(turn.text):
                turn.fail("a reply without steps")
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
    for (first, second), judgements in zip(pairs, await together(calls), strict=True):
        truth = CORRECT.known(first)
        for turn in judgements:
            turn.note(CORRECT, truth)
            show_verdict(turn)
            turn.reward(RIGHT, float(is_right(turn, truth)))
            turn.reward(VERDICT, verdict_reward(turn, truth, pay))
        if meta:
            seen = (first, second) if form in COMPARES else (first,)
            await rate_judgements(task, roles, seen, judgements)


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
    rate = partial(roles.judge, problem=task.prompt, reference="", group=task.id)
    for reply, turn in zip(replies, await together([rate(parent=r, solution=r.text) for r in replies]), strict=True):
        turn.note(CORRECT, CORRECT.known(reply))
        turn.show(SCORE, 0.5 + 0.5 * tanh(0.5 * turn.score))
        turn.reward(LABEL, float(CORRECT.known(reply)))


async def rate_judgements(task: Task, roles: Roles, seen: Sequence[Turn], judgements: Sequence[Turn]) -> None:
    """The meta judge's score of each judgement that can be read; its label is whether that is right."""
    material = "\n".join((task.prompt, *(reply.text for reply in seen)))
    readable = [turn for turn in judgements if turn.parsed.ok]
    rate = partial(roles.meta, problem=material, reference="", group=seen[0].id)
    for turn, rating in zip(readable, await together([rate(parent=t, solution=t.text) for t in readable]), strict=True):
        right = is_right(turn, CORRECT.known(turn))
        rating.note(CORRECT, right)
        rating.show(FINAL, rating.score > 0.0)
        rating.show(SCORE, rating.score)
        rating.reward(LABEL, float(right))


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


@recipe(kl=0.0)
def pair_judge(
    run: Settings,
    *,
    form: Form | None = None,  # what the judge writes; by default rmr1, and steps of a model that knows short formats
    learn: Literal["rl", "sft", "none"] = "rl",  # from all judgements by RL, from right ones by imitation, or not
    pay: Literal["sign", "score"] = "sign",  # ±1, or how far the wanted reply is put ahead
    orders: Literal["both", "random"] = "both",  # of a pair, in training
    votes: int = 8,  # judgements of each order of a held-out pair, or of each reply
    keep: int = 0,  # of these votes, the best by a meta judge; 0: all, and no meta judge
    combine: Combine | None = None,  # votes count as verdicts or by their scores; by default letters are verdicts
    solutions: float = 0.0,  # weight of cross-entropy of wanted replies beside the judgements (GenRM)
    meta_lr: float = 2e-4,  # learning rate of the meta judge
    max_tokens: int = 1024,  # of prompt and reply together; pairs with a longer one are left out and counted
) -> Recipe:
    check_pairs("pair_judge", run.problems)
    form = form or ("steps" if common_roles.speaks_short(run.model) else "rmr1")
    check_choices(run, form, learn, votes, keep, solutions)
    rate = STANDING if learn == "none" else run.lr
    policies = {
        "judge": reward_model(run.model, lr=rate) if form == "scalar" else run.learner(lr=rate),
        "says": program(say_reply, tokens_of="judge"),
        **(run.start() if learn == "rl" else {}),
    }
    prompt = SOLVE if common_roles.speaks_short(run.model) else SOLVE_BARE
    roles = {
        "judge": common_roles.rater("judge") if form == "scalar" else FORMS[form]("judge", run.model),
        "reply": Role(policy="says", prompt=prompt, sampling=Sampling(max_tokens=max_tokens)),
    }
    by: Algorithm = Sft(where=RIGHT) if learn == "sft" else grpo(rewards={VERDICT: 1.0}, kl=run.pull())
    objectives = {"judge": Objective(policy="judge", on="judge", by=Pairwise() if form == "scalar" else by)}
    if solutions:
        objectives["solutions"] = Objective(policy="judge", on="reply", by=Sft(weight=WEIGHT))
    if keep:
        policies["meta"], roles["meta"] = reward_model(run.model, lr=meta_lr), common_roles.rater("meta")
        objectives["meta"] = Objective(policy="meta", on="meta", by=Pointwise())
    play = partial(judge_pair, form=form, most=max_tokens, meta=bool(keep))
    train = partial(play, asked=run.group_size, orders=orders, pay=pay, solutions=solutions)
    combine = combine or ("majority" if form in LETTERS else "mean")
    measured = judging_pairs(combine=combine, keep=keep, compares=form in COMPARES)
    made = run.recipe(
        "pair_judge" if learn == "rl" else f"pair_judge-{learn}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=single(train, *objectives, name="judge", group_size=1),
        evaluate=play,
        measures=(
            measured,
            *(() if form == "scalar" else (verifying("judge"),)),
            *((verifying("meta"),) if keep else ()),
        ),
    )
    scalar = form == "scalar"
    return replace(made, evaluation=replace(made.evaluation, greedy=not scalar, group_size=1 if scalar else votes))


def check_choices(run: Settings, form: Form, learn: str, votes: int, keep: int, solutions: float) -> None:
    """Raise ConfigError for what does not go together."""
    at_least(1, "pair_judge", votes=votes)
    if not 0 <= keep <= votes or solutions < 0.0:
        raise ConfigError(
            f"pair_judge: keep={keep} of votes={votes} and solutions={solutions}; expected from 0 to as many as there "
            "are, and a weight from 0"
        )
    if learn != "rl" and run.kl:
        raise ConfigError(f"pair_judge: learn={learn!r} has no KL term; leave out kl={run.kl}")
    if learn == "none" and solutions:
        raise ConfigError("pair_judge: learn='none' keeps the judge as it is; leave out solutions")
    if form == "scalar" and (learn == "sft" or keep or solutions or run.lora or run.kl):
        raise ConfigError(
            "pair_judge: form='scalar' says one number by a head and learns by its own loss; leave out learn='sft', "
            "keep, solutions, lora and kl"
        )
