"""DeepSeekMath-V2: a generator that checks itself, a verifier that scores it, and a meta-verifier that judges the
check.

Shao et al. 2025 (github.com/deepseek-ai/DeepSeek-Math-V2). Two policies learn in turn: a generator that writes a
solution with an analysis of it, and a verifier, which also plays the meta-verifier. All learn by GRPO:

    verifier        R_V = R_format · (1 − |s′ − s|) · R_meta
    meta-verifier   1 where its verdict on a review is the truth, else 0
    generator       R = R_format · (0.76 · R_Y + 0.24 · (1 − |s′ − R_Y|) · R_meta)

- s is the true score of a solution: 0, ½ or 1, half for the answer and half for its steps, if all are right. The oracle
  gives it (the paper: expert grades).
- s′ is the score that an analysis gives the solution, by its verdicts: a review, or the generator's self-analysis.
- R_Y is the mean score of the verifier's reviews. So the generator's reward needs no truth, and is highest if its
  self-analysis finds what the verifier will find.
- R_meta is the share of ``votes`` verdicts of the meta-verifier that call an analysis sound; an unreadable one is ½.

Controls are parameters:

- ``meta=False``: no meta-verifier (R_meta = 1).
- ``verifier="frozen"``: the verifier is never trained.
- ``labels="answer"``: scores are for the answer alone.
- ``balance``: power of the class weights of both judges: 0 as in the paper, ½ as in RL Tango; with 1, right and wrong
  solutions weigh the same, and so do sound and unsound reviews.
- ``analysis="asked"``: the generator analyses itself in a second call, under the prompt of a verifier. This is for
  models that have not learned to do so in one ("shipped").

Left out: re-initialising the generator from the verifier, rejection fine-tuning of both, and labels from many votes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from cotrain import (
    CORRECT,
    GRPO,
    ClassBalance,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    alternate,
    examine,
    frozen,
    gather,
    gives,
    recipe,
)
from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.notes import STEP_OK, Metadata
from cotrain.core.signals import CLASS_LABEL
from cotrain.metrics.heldout import measure_solver_and_verifier, measure_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.reviews import review, show_verdict
from cotrain.rollout.verifier_roles import fields_to_show

PROOF = Signal("proof", meaning="R of the generator, in [0, 1]")
R_V = Signal("score", meaning="R_V of the verifier, in [0, 1]")
SOUNDNESS = Signal("soundness", meaning="1 where the meta-verifier is right about a review, else 0")
SOLUTION_WEIGHT = 0.76  # weight of R_Y in the generator's reward
ANALYSIS_WEIGHT = 0.24  # weight of the self-analysis in the generator's reward

SELF_SCORE = Metadata[float]("self_score", float, "the score that a solution gives itself")
SELF_ERROR = Metadata[float]("self_error", float, "its distance from the true score")


@gives(PROOF.to("solver"), PROOF.to("analyst"), R_V.to("verifier"), SOUNDNESS.to("meta"), CLASS_LABEL)
async def prove(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 1,
    reviews: NotNegative = 1,
    votes: Positive = 1,
    meta: bool = True,
    labels: Literal["steps", "answer"] = "steps",
    analysis: Literal["inline", "asked"] = "inline",
) -> None:
    """``samples`` solutions with self-analysis, ``reviews`` of each, ``votes`` on each review and each self-analysis.

    Rewards: the generator's ``proof``, the verifier's ``score``, the meta-verifier's ``soundness``. The class label of
    both judges is for balancing. What cannot be read earns 0. A solution of which no review can be read has no reward
    and is not learned from.
    """
    turns = await roles.solver.many(samples, problem=task.prompt)
    solutions = [turn for turn in turns if await examine(task, roles, turn) is not None]
    readable = []
    for solution in solutions:
        if solution.parsed.ok:
            readable.append(solution)
        else:
            solution.reward(PROOF, 0.0)

    reviews_by_solution = await gather([review(task, roles, solution, n=reviews) for solution in readable])
    if analysis == "asked":
        calls = [review(task, roles, solution, group=solution.group, role="analyst") for solution in readable]
        self_reviews_by_solution = await gather(calls)
    else:
        self_reviews_by_solution = [[] for _ in readable]

    n_votes = votes if meta else 0
    payments = []
    for solution, review_turns, self_reviews in zip(
        readable, reviews_by_solution, self_reviews_by_solution, strict=True
    ):
        payments.append(pay_analyses(task, roles, solution, review_turns, self_reviews, n_votes, labels))
    await gather(payments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """A text about a solution, by the verifier or by the generator itself."""

    turn: Turn  # the turn that it stands in
    verdicts: Any  # parsed: ``final`` and ``steps``, or a ParseFailure
    text: str


async def pay_analyses(
    task: Task,
    roles: Roles,
    solution: Turn,
    review_turns: Sequence[Turn],
    self_reviews: Sequence[Turn],
    n_votes: int,
    labels: str,
) -> None:
    """Judge all analyses of one solution, and reward everybody.

    ``self_reviews``: the generator's self-analysis where it was asked for in a call of its own, else nothing.
    """
    analyses = [Analysis(turn=turn, verdicts=turn.parsed, text=turn.text) for turn in (*review_turns, *self_reviews)]
    if not self_reviews:
        inline = solution.parsed
        analyses.append(Analysis(turn=solution, verdicts=inline.review, text=inline.analysis))
    r_metas = await gather([judge_analysis(task, roles, solution, analysis, n_votes, labels) for analysis in analyses])

    scores: list[float | None] = []  # s′ of each analysis, None for one that cannot be read
    for analysis in analyses:
        verdicts = analysis.verdicts
        scores.append(analysis_score(verdicts.final, verdicts.steps, labels) if verdicts.ok else None)
    is_right = CORRECT.require(solution)
    true_score = analysis_score(is_right, STEP_OK.of(solution), labels)

    # The verifier's reviews come first in these lists, and the self-analysis last.
    review_scores = scores[: len(review_turns)]
    for turn, score, r_meta in zip(review_turns, review_scores, r_metas, strict=False):
        turn.reward(CLASS_LABEL, float(is_right))
        if score is None:
            turn.reward(R_V, 0.0)
        else:
            turn.reward(R_V, (1.0 - abs(score - true_score)) * r_meta)

    readable_scores = [score for score in review_scores if score is not None]
    if not readable_scores:
        return
    r_y = sum(readable_scores) / len(readable_scores)
    own_score = scores[-1]
    reward = 0.0
    if own_score is not None:
        reward = proof_reward(own_score, r_y, r_metas[-1])
        solution.add_metadata(SELF_SCORE, own_score)
        solution.add_metadata(SELF_ERROR, abs(own_score - true_score))
    for turn in (solution, *self_reviews):
        turn.reward(PROOF, reward)


async def judge_analysis(
    task: Task, roles: Roles, solution: Turn, analysis: Analysis, n_votes: int, labels: str
) -> float:
    """R_meta of one analysis: 0 if it cannot be read, and 1 if there are no votes. The votes on it are one group."""
    verdicts = analysis.verdicts
    if not verdicts.ok or not n_votes:
        return float(verdicts.ok)

    is_sound = verdicts.final == CORRECT.require(solution)
    steps_ok = STEP_OK.of(solution)
    if labels == "steps" and steps_ok is not None:
        is_sound = is_sound and list(verdicts.steps) == steps_ok

    turn = analysis.turn
    fields = fields_to_show(roles.meta.fields, roles.nonce(turn), solution=solution.tagged_text, review=analysis.text)
    vote_turns = await roles.meta.many(n_votes, group=f"{turn.id}/votes", parent=turn, problem=task.prompt, **fields)
    votes = []
    for vote in vote_turns:
        vote.add_metadata(CORRECT, is_sound)
        show_verdict(vote)
        vote.reward(CLASS_LABEL, float(is_sound))
        vote.reward(SOUNDNESS, float(vote.parsed.ok and vote.parsed.final == is_sound))
        votes.append(float(vote.parsed.final) if vote.parsed.ok else 0.5)
    return sum(votes) / n_votes


def analysis_score(final: bool, steps: Sequence[bool] | None, labels: str) -> float:
    """0, ½ or 1: ½ for the answer and ½ for the steps; the answer alone where the steps are not judged."""
    if labels == "answer" or not steps:
        return float(final)
    return 0.5 * (final + all(steps))


def proof_reward(own_score: float, r_y: float, r_meta: float) -> float:
    """The generator's reward, from its own score s′, the verifier's R_Y and R_meta of the self-analysis; all in
    [0, 1]."""
    return SOLUTION_WEIGHT * r_y + ANALYSIS_WEIGHT * (1.0 - abs(own_score - r_y)) * r_meta


@recipe(model="shipped-roles", steps=160)
def dsm(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    reviews: int = 8,  # reviews of a solution, in a step of the verifier
    opinions: int = 2,  # reviews of a solution, in a step of the generator: their mean score is R_Y
    votes: int = 2,  # verdicts of the meta-verifier on each analysis
    warmup: int = 40,  # first steps, in which only the verifier is trained
    ratio: tuple[int, int] = (3, 1),  # steps of the generator and of the verifier, in turn
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    verifier: Literal["trained", "frozen"] = "trained",  # frozen: it is never trained
    meta: bool = True,  # a meta-verifier judges reviews and self-analyses
    labels: Literal["steps", "answer"] = "steps",  # steps: a score is for answer and steps; answer: for the answer
    analysis: Literal["inline", "asked"] = "inline",  # the self-analysis ends the solution, or has a call of its own
    balance: float = 0.0,  # power of the class weights of both judges
) -> Recipe:
    initial_verifier = verifier_model or run.model
    trains_verifier = verifier == "trained"
    is_inline = analysis == "inline"

    policies = {"generator": run.learner()}
    if trains_verifier:
        policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
    else:
        policies["verifier"] = frozen(initial_verifier)
    policies |= run.reference_policies()

    roles = {}
    if is_inline:
        roles["solver"] = common_roles.self_checker("generator", run.model)
    else:
        roles["solver"] = common_roles.solver("generator", run.model)
    roles["verifier"] = common_roles.verifier("verifier", initial_verifier)
    if not is_inline:
        roles["analyst"] = common_roles.verifier("generator", run.model)
    if meta:
        roles["meta"] = common_roles.meta_verifier("verifier", initial_verifier)

    # The generator learns from its solutions, and from its self-analyses where these are calls of their own.
    learn_to_prove = GRPO(reward_weights={PROOF: 1.0}, kl=run.kl_penalty())
    self_analysis = () if is_inline else ("analyst",)
    objectives = {
        "generator": Objective(policy="generator", role="solver", extra_roles=self_analysis, algorithm=learn_to_prove)
    }

    # The policy "verifier" learns in two roles, from R_V as the verifier and from its truth as the meta-verifier.
    class_balance = ClassBalance(power=balance) if balance else None
    if trains_verifier:
        learn_to_review = GRPO(reward_weights={R_V: 1.0}, balance=class_balance)
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_review)
    if trains_verifier and meta:
        learn_to_judge_reviews = GRPO(reward_weights={SOUNDNESS: 1.0}, balance=class_balance)
        objectives["meta"] = Objective(policy="verifier", role="meta", algorithm=learn_to_judge_reviews)

    protocol = partial(prove, votes=votes, meta=meta, labels=labels, analysis=analysis)
    generator_phase = Phase(
        name="generator",
        protocol=partial(protocol, samples=run.group_size, reviews=opinions),
        objectives=("generator",),
        group_size=1,  # the protocol samples a group of solutions itself
    )
    if trains_verifier:
        verifier_phase = Phase(
            name="verifier",
            protocol=partial(protocol, reviews=reviews),
            objectives=("verifier", "meta") if meta else ("verifier",),
            group_size=1,
        )
        schedule = alternate(generator_phase, verifier_phase, ratio=ratio, warmup={"verifier": warmup})
    else:
        schedule = alternate(generator_phase, ratio=ratio[:1])

    measures = list(measure_solver_and_verifier("verifier"))
    if meta:
        measures.insert(0, measure_verifier("meta", gap="meta/gap"))
    return run.recipe(
        "dsm",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(protocol, votes=1),
        measures=tuple(measures),
        frozen_roles=run.frozen_roles(),
    )
