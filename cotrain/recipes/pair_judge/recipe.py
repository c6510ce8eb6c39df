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

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import (
    GRPO,
    SFT,
    ConfigError,
    Objective,
    Recipe,
    Role,
    RunConfig,
    Sampling,
    constant_schedule,
    program,
    recipe,
    reward_model,
)
from cotrain.algorithms.contract import Algorithm
from cotrain.algorithms.reward_model import Pairwise, Pointwise
from cotrain.core.arguments import Weight, at_least
from cotrain.formats.role_prompts import SOLVE_BARE
from cotrain.metrics.heldout import measure_verifier
from cotrain.prompts.templates import SOLVE
from cotrain.recipes.pair_judge.judging import (
    COMPARES,
    RIGHT,
    VERDICT,
    WEIGHT,
    Combine,
    Form,
    judge_pair,
    judging_pairs,
)
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.pairs import check_pairs, say_reply

LETTERS = ("gram", "rmr1", "thinkrm")
FORMS: dict[str, Callable[..., Role]] = {  # the role of each, for a policy and its model
    **{name: partial(verifier_roles.comparer, form=name) for name in verifier_roles.COMPARISONS},
    "yesno": partial(verifier_roles.genrm, direct=True),
    "genrm": verifier_roles.genrm,
    "steps": common_roles.verifier,
}
STANDING = 1e-30  # a learning rate at which no float32 weight moves


@recipe(reads="pairs", kl=0.0)
def pair_judge(
    run: RunConfig,
    *,
    form: Form | None = None,  # what the judge writes; by default rmr1, and steps of a model that knows short formats
    learn: Literal["rl", "sft", "none"] = "rl",  # rl: from all judgements; sft: imitate right ones; none: learn nothing
    pay: Literal["sign", "score"] = "sign",  # reward: ±1, or how far the wanted reply is put ahead
    orders: Literal["both", "random"] = "both",  # orders in which a pair is judged, in training
    votes: int = 8,  # judgements of each order of a held-out pair, or of each reply
    keep: int = 0,  # votes that a meta judge keeps, the best; 0: all, and no meta judge
    combine: Combine | None = None,  # votes count as verdicts or by their scores; by default letters are verdicts
    solutions: Weight = 0.0,  # weight of cross-entropy of wanted replies beside the judgements (GenRM)
    rm_lr: float = 2e-4,  # learning rate of the meta judge
    max_tokens: int = 1024,  # tokens of prompt and reply, at most; pairs with a longer one are left out and counted
) -> Recipe:
    check_pairs("pair_judge", run.problems)
    form = form or ("steps" if common_roles.is_terse(run.model) else "rmr1")
    check_choices(run, form, learn, votes, keep, solutions)
    rate = STANDING if learn == "none" else run.lr
    policies = {
        "judge": reward_model(run.model, lr=rate) if form == "scalar" else run.learner(lr=rate),
        "says": program(say_reply, tokens_of="judge"),
        **(run.reference_policies() if learn == "rl" else {}),
    }
    prompt = SOLVE if common_roles.is_terse(run.model) else SOLVE_BARE
    roles = {
        "judge": common_roles.rater("judge") if form == "scalar" else FORMS[form]("judge", run.model),
        "reply": Role(policy="says", prompt=prompt, sampling=Sampling(max_tokens=max_tokens)),
    }
    by: Algorithm = SFT(where=RIGHT) if learn == "sft" else GRPO(reward_weights={VERDICT: 1.0}, kl=run.kl_penalty())
    objectives = {"judge": Objective(policy="judge", role="judge", algorithm=Pairwise() if form == "scalar" else by)}
    if solutions:
        objectives["solutions"] = Objective(policy="judge", role="reply", algorithm=SFT(weight=WEIGHT))
    if keep:
        policies["meta"] = reward_model(run.model, lr=rm_lr)
        roles["meta"] = common_roles.rater("meta")
        objectives["meta"] = Objective(policy="meta", role="meta", algorithm=Pointwise())
    protocol = partial(judge_pair, form=form, most=max_tokens, meta=bool(keep))
    train = partial(protocol, asked=run.group_size, orders=orders, pay=pay, solutions=solutions)
    combine = combine or ("majority" if form in LETTERS else "mean")
    measured = judging_pairs(combine=combine, keep=keep, compares=form in COMPARES)
    made = run.recipe(
        "pair_judge" if learn == "rl" else f"pair_judge-{learn}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(train, *objectives, name="judge", group_size=1),
        evaluate=protocol,
        measures=(
            measured,
            *(() if form == "scalar" else (measure_verifier("judge"),)),
            *((measure_verifier("meta", gap="meta/gap"),) if keep else ()),
        ),
    )
    scalar = form == "scalar"
    return replace(made, evaluation=replace(made.evaluation, greedy=not scalar, group_size=1 if scalar else votes))


def check_choices(run: RunConfig, form: Form, learn: str, votes: int, keep: int, solutions: float) -> None:
    """Raise ConfigError for what does not go together."""
    at_least(1, "pair_judge", votes=votes)
    if not 0 <= keep <= votes:
        raise ConfigError(
            f"pair_judge: keep={keep} of votes={votes}; expected from 0 to as many as there are", code="E_SETTING_RANGE"
        )
    if learn != "rl" and run.kl:
        raise ConfigError(
            f"pair_judge: learn={learn!r} has no KL term; leave out kl={run.kl}", code="E_LEARN_WITHOUT_KL"
        )
    if learn == "none" and solutions:
        raise ConfigError(
            "pair_judge: learn='none' keeps the judge as it is; leave out solutions", code="E_SOLUTIONS_WITHOUT_LEARNER"
        )
    if form == "scalar" and (learn == "sft" or keep or solutions or run.lora or run.kl):
        raise ConfigError(
            "pair_judge: form='scalar' says one number by a head and learns by its own loss; leave out learn='sft', "
            "keep, solutions, lora and kl",
            code="E_SCALAR_JUDGE_SETTINGS",
        )
