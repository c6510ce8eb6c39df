"""DeepSeekMath-V2: a generator that checks itself, a verifier that scores it, and a meta-verifier that judges the
check.

Shao et al. 2025 (github.com/deepseek-ai/DeepSeek-Math-V2). With s the true score of a solution in {0, ½, 1}, s′ the
score that a review gives it, and R_meta what the meta-verifier says of the review's reasoning,

    verifier        R_V = R_format · (1 − |s′ − s|) · R_meta
    meta-verifier   the same distance for its own verdict, to whether the review is truly sound
    generator       R = R_format · (0.76 · R_Y + 0.24 · (1 − |s′ − R_Y|) · R_meta)

where R_Y is the verifier's score of the solution, s′ the generator's own, and R_meta that of its self-analysis: what it
earns needs no truth, and it earns most by finding what the verifier will find. A score is ½ for the verdict on the
answer and ½ for that on the steps, all of them; so is the true one, from the oracle (the paper: expert grades).
Verifier and meta-verifier are one policy. R_meta is the mean of ``votes`` verdicts, an unreadable one counting ½.

Controls are parameters: ``meta=False`` drops the meta-verifier (R_meta = 1), ``verifier="frozen"`` never trains it,
``labels="answer"`` scores by the answer alone, ``balance`` weighs both judges' samples by class (0 as in the
paper, ½ as in RL Tango, 1 so that right and wrong solutions, and sound and unsound reviews, weigh the same).
``analysis="asked"`` has the generator analyse itself in a second call, under the prompt of a verifier, for models that
have not learned to do so in one ("shipped").

Left out: re-initialising the generator from the verifier, rejection fine-tuning of both, and labels from many votes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from cotrain.rollout.verifier_roles import guarded_fields

PROOF = Signal("proof", meaning="R of the generator, in [0, 1]")
R_V = Signal("score", meaning="R_V of the verifier, in [0, 1]")
SOUNDNESS = Signal("soundness", meaning="1 where the meta-verifier is right about a review, else 0")
QUALITY, HONESTY = 0.76, 0.24  # weights of R_Y and of the self-analysis in the generator's reward

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
    Rewards: the generator's ``proof``, the verifier's ``score``, the meta-verifier's ``soundness``; the signal
    ``truth`` of both judges is the class for balancing. What cannot be read earns 0; a solution of which no review can
    be read is not rewarded."""
    turns = await roles.solver.many(samples, problem=task.prompt)
    solutions = [s for s in turns if await examine(task, roles, s) is not None]
    readable = [s for s in solutions if s.parsed.ok]
    for solution in solutions:
        if not solution.parsed.ok:
            solution.reward(PROOF, 0.0)
    review_turns = await gather([review(task, roles, s, n=reviews) for s in readable])
    analysed = readable if analysis == "asked" else []
    self_reviews = await gather([review(task, roles, s, group=s.group, role="analyst") for s in analysed])
    votes = votes if meta else 0
    await gather(
        [
            pay_analyses(task, roles, s, written, self_reviews[i] if analysed else [], votes, labels)
            for i, (s, written) in enumerate(zip(readable, review_turns, strict=True))
        ]
    )


async def pay_analyses(
    task: Task, roles: Roles, solution: Turn, written: list[Turn], self_analyses: list[Turn], votes: int, labels: str
) -> None:
    """Judge all analyses of one solution, those ``written`` about it and its ``self_analyses``, and reward
    everybody."""
    analyses = [(turn, turn.parsed, turn.text) for turn in (*written, *self_analyses)]
    if not self_analyses:
        analyses.append((solution, solution.parsed.review, solution.parsed.analysis))
    trust = await gather([judge_analysis(task, roles, solution, *a, votes, labels) for a in analyses])
    scores = [analysis_score(said.final, said.steps, labels) if said.ok else None for _, said, _ in analyses]
    truth = analysis_score(CORRECT.require(solution), STEP_OK.of(solution), labels)
    for turn, review_score, mark in zip(written, scores, trust, strict=False):
        turn.reward(CLASS_LABEL, float(CORRECT.require(solution)))
        turn.reward(R_V, 0.0 if review_score is None else (1.0 - abs(review_score - truth)) * mark)
    believed = [given for given in scores[: len(written)] if given is not None]
    if not believed:
        return
    reward = 0.0
    own_score = scores[-1]
    if own_score is not None:
        reward = proof_reward(own_score, sum(believed) / len(believed), trust[-1])
        solution.add_metadata(SELF_SCORE, own_score)
        solution.add_metadata(SELF_ERROR, abs(own_score - truth))
    for turn in (solution, *self_analyses):
        turn.reward(PROOF, reward)


async def judge_analysis(
    task: Task, roles: Roles, solution: Turn, turn: Turn, analysis_parsed: Any, analysis: str, votes: int, labels: str
) -> float:
    """R_meta of one analysis: 0 if it did not parse, and 1 if there are no votes. Votes on it are one group."""
    if not analysis_parsed.ok or not votes:
        return float(analysis_parsed.ok)
    ok = STEP_OK.of(solution) if labels == "steps" else None
    sound = analysis_parsed.final == CORRECT.require(solution) and (ok is None or list(analysis_parsed.steps) == ok)
    fields = {"solution": solution.tagged_text, "review": analysis}
    if "nonce" in roles.meta.fields:
        fields = guarded_fields(roles.nonce(turn), **fields)
    verdicts = await roles.meta.many(votes, group=f"{turn.id}/votes", parent=turn, problem=task.prompt, **fields)
    for verdict in verdicts:
        verdict.add_metadata(CORRECT, sound)
        show_verdict(verdict)
        verdict.reward(CLASS_LABEL, float(sound))
        verdict.reward(SOUNDNESS, float(verdict.parsed.ok and verdict.parsed.final == sound))
    return sum(float(v.parsed.final) if v.parsed.ok else 0.5 for v in verdicts) / votes


def analysis_score(final: bool, steps: Sequence[bool] | None, labels: str) -> float:
    """0, ½ or 1: ½ for the answer and ½ for the steps; the answer alone where the steps are not judged."""
    return float(final) if labels == "answer" or not steps else 0.5 * (final + all(steps))


def proof_reward(own_score: float, given: float, trust: float) -> float:
    """The generator's reward: its own score, the verifier's, and R_meta of the self-analysis, all in [0, 1]."""
    return QUALITY * given + HONESTY * (1.0 - abs(own_score - given)) * trust


@recipe(model="shipped-roles", steps=160)
def dsm(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    reviews: int = 8,  # of a solution, in a step of the verifier
    opinions: int = 2,  # reviews that score a solution, in a step of the generator
    votes: int = 2,  # of the meta-verifier on a review
    warmup: int = 40,  # first steps, in which only the verifier is trained
    ratio: tuple[int, int] = (3, 1),  # steps of the generator and of the verifier, in turn
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    verifier: Literal["trained", "frozen"] = "trained",  # does it learn?
    meta: bool = True,  # judge reviews, too
    labels: Literal["steps", "answer"] = "steps",  # what a score is made of
    analysis: Literal["inline", "asked"] = "inline",  # how the generator judges itself
    balance: float = 0.0,  # power of the class weights of both judges
) -> Recipe:
    judging = verifier_model or run.model
    trained = verifier == "trained"
    inline = analysis == "inline"
    both = 1 + trained  # phases
    weighed = ClassBalance(power=balance) if balance else None
    prover = GRPO(reward_weights={PROOF: 1.0}, kl=run.kl_penalty())
    learn = {
        "generator": Objective(
            policy="generator", role="solver", extra_roles=() if inline else ("analyst",), algorithm=prover
        )
    }
    for role, signal in (("verifier", R_V), ("meta", SOUNDNESS)):
        if trained and (meta or role == "verifier"):
            by = GRPO(reward_weights={signal: 1.0}, balance=weighed)
            learn[role] = Objective(policy="verifier", role=role, algorithm=by)
    play = partial(prove, votes=votes, meta=meta, labels=labels, analysis=analysis)
    scored = partial(play, samples=run.group_size, reviews=opinions)
    reviewed = partial(play, reviews=reviews)
    phases = [
        Phase(name="generator", protocol=scored, objectives=("generator",), group_size=1),
        Phase(name="verifier", protocol=reviewed, objectives=tuple(learn)[1:], group_size=1),
    ][:both]
    roles = {
        "solver": (common_roles.self_checker if inline else common_roles.solver)("generator", run.model),
        "verifier": common_roles.verifier("verifier", judging),
    }
    if not inline:
        roles["analyst"] = common_roles.verifier("generator", run.model)
    if meta:
        roles["meta"] = common_roles.meta_verifier("verifier", judging)
    judge = run.learner(judging, lr=verifier_lr) if trained else frozen(judging)
    return run.recipe(
        "dsm",
        policies={"generator": run.learner(), "verifier": judge, **run.reference_policies()},
        roles=roles,
        objectives=learn,
        schedule=alternate(*phases, ratio=ratio[:both], warmup={"verifier": warmup} if trained else {}),
        evaluate=partial(play, votes=1),
        measures=(
            *((measure_verifier("meta", gap="meta/gap"),) if meta else ()),
            *measure_solver_and_verifier("verifier"),
        ),
        frozen_roles=run.frozen_roles(),
    )
