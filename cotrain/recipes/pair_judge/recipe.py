"""Judges of pairs that reason, trained by RL on pairs of a chosen and a rejected reply.

A judge reads a prompt and two replies, writes a rubric, a thought or principles first, as its format (``form``) has it,
and names the better one. Its reward is 1 if that is the chosen reply, and −1 if it is the other one or the text cannot
be read (RM-R1, Chen et al. 2025, arXiv 2505.02387; Think-RM, Hong et al. 2025, arXiv 2505.16265; DeepSeek-GRM, Liu et
al. 2025, arXiv 2504.02495). With ``pay="score"`` it is 2 P − 1, where P is the probability of the chosen reply. Every
pair is shown in both orders, and judgements of one order are compared with each other.

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

Controls:

- ``learn="sft"`` imitates the judge's own right judgements, online, in the place of RL (rejection fine-tuning).
- ``learn="none"`` is a judge that does not learn.
- ``orders="random"`` trains on one order of each pair.
- ``solutions`` adds cross-entropy of the chosen replies, GenRM's mixture.

Left out: the authors' first stage, fine-tuning on texts of a stronger model; more than two replies; a reward for the
same verdict in both orders.
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
    COMPARING_FORMS,
    IS_RIGHT,
    SFT_WEIGHT,
    VERDICT,
    Combine,
    Form,
    judge_pair,
    measure_judged_pairs,
)
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.pairs import check_pairs, say_reply

LETTER_FORMS = ("gram", "rmr1", "thinkrm")  # the verdict is a letter
ROLE_MAKERS: dict[str, Callable[..., Role]] = {  # form → function of a policy and its model
    **{form: partial(verifier_roles.comparer, form=form) for form in verifier_roles.COMPARISONS},
    "yesno": partial(verifier_roles.genrm, direct=True),
    "genrm": verifier_roles.genrm,
    "steps": common_roles.verifier,
}
LR_OF_NO_CHANGE = 1e-30  # at this learning rate no float32 weight moves


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
    is_terse = common_roles.is_terse(run.model)
    if form is None:
        form = "steps" if is_terse else "rmr1"
    if combine is None:
        combine = "majority" if form in LETTER_FORMS else "mean"
    check_choices(run, form, learn, votes, keep, solutions)
    is_scalar = form == "scalar"

    # The judge, a program that "says" the replies of the data set, and a meta judge.
    lr = LR_OF_NO_CHANGE if learn == "none" else run.lr
    if is_scalar:
        policies = {"judge": reward_model(run.model, lr=lr)}
        roles = {"judge": common_roles.rater("judge")}
    else:
        policies = {"judge": run.learner(lr=lr)}
        roles = {"judge": ROLE_MAKERS[form]("judge", run.model)}
    policies["says"] = program(say_reply, tokens_of="judge")
    roles["reply"] = Role(
        policy="says", prompt=SOLVE if is_terse else SOLVE_BARE, sampling=Sampling(max_tokens=max_tokens)
    )
    if learn == "rl":
        policies |= run.reference_policies()

    objectives = {"judge": Objective(policy="judge", role="judge", algorithm=judge_algorithm(run, form, learn))}
    if solutions:
        objectives["solutions"] = Objective(policy="judge", role="reply", algorithm=SFT(weight=SFT_WEIGHT))
    measures = [measure_judged_pairs(combine=combine, keep=keep, compares=form in COMPARING_FORMS)]
    if not is_scalar:
        measures.append(measure_verifier("judge"))
    if keep:
        policies["meta"] = reward_model(run.model, lr=rm_lr)
        roles["meta"] = common_roles.rater("meta")
        objectives["meta"] = Objective(policy="meta", role="meta", algorithm=Pointwise())
        measures.append(measure_verifier("meta", gap="meta/gap"))

    protocol = partial(judge_pair, form=form, max_tokens=max_tokens, meta=bool(keep))
    training_protocol = partial(protocol, judgements=run.group_size, orders=orders, pay=pay, solutions=solutions)
    judge_recipe = run.recipe(
        "pair_judge" if learn == "rl" else f"pair_judge-{learn}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(training_protocol, *objectives, name="judge", group_size=1),
        evaluate=protocol,
        measures=tuple(measures),
    )
    n_rollouts = 1 if is_scalar else votes  # a scalar judge gives the same score each time
    evaluation = replace(judge_recipe.evaluation, greedy=not is_scalar, group_size=n_rollouts)
    return replace(judge_recipe, evaluation=evaluation)


def judge_algorithm(run: RunConfig, form: Form, learn: str) -> Algorithm:
    """The algorithm of the judge: −log σ(s⁺ − s⁻) of a scalar judge, SFT of right judgements, or GRPO."""
    if form == "scalar":
        return Pairwise()
    if learn == "sft":
        return SFT(where=IS_RIGHT)
    return GRPO(reward_weights={VERDICT: 1.0}, kl=run.kl_penalty())


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
    has_settings_of_a_writer = bool(learn == "sft" or keep or solutions or run.lora or run.kl)
    if form == "scalar" and has_settings_of_a_writer:
        raise ConfigError(
            "pair_judge: form='scalar' says one number by a head and learns by its own loss; leave out learn='sft', "
            "keep, solutions, lora and kl",
            code="E_SCALAR_JUDGE_SETTINGS",
        )
