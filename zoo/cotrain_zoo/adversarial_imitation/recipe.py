"""Imitation of an expert against a discriminator that learns to tell the two apart: GAD and RARO in one recipe.

There are prompts x and one expert's reply y* to each; nobody says what is right. The generator is trained by GRPO on
what the discriminator makes of its replies y, and the discriminator learns from the same replies.

    gad    Ye et al. 2025, arXiv 2511.10643: a scalar D; y earns D(x, y), and D learns by −log σ(D(x, y*) − D(x, y))
    raro   Cai & Provilkov 2025, arXiv 2511.21667: a critic that speaks names the expert's of two replies, or a tie;
           y earns 1 where it is named, ``tie`` for a tie, else 0; the critic, trained by GRPO, 1 where it names y*,
           ``tie``, else 0; ``critiques`` of each reply are compared with each other, y earns their mean

``warmup`` steps come first: the generator learns y* by cross-entropy, the discriminator learns as it always does. The
critic reads both replies in a drawn order (``form="pair"``). ``form="steps"`` is the package's review of one reply
alone, in which CORRECT says "the expert's", for small models that cannot read two; y* and y then weigh the same. Truth
is measured where there is any, and never paid.

Controls: ``discriminator="frozen"`` stops it after the warm-up; ``spin`` and ``spin --control sft`` learn the same
demonstrations without one. ``replay`` shows it replies of an earlier generator too, ``weights="shared"`` is one policy
in both roles.

Different from the papers: GAD's reference of the KL term is the generator after its warm-up, here it is the start; RARO
keeps old replies in a buffer, here an earlier generator writes new ones. Left out: RARO's hiding of the generator's
thought from its critic, which is the model's own format (``<think>``).
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    GRPO,
    SFT,
    ClassBalance,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Role,
    RunConfig,
    Sampling,
    alternate,
    frozen,
    measure_solver,
    program,
    recipe,
    reward_model,
    snapshot,
)
from cotrain.algorithms.contract import Algorithm
from cotrain.algorithms.reward_model import Pairwise
from cotrain.config.evaluation import ImplicitReward
from cotrain.core.arguments import NotNegative, Share, at_least
from cotrain.formats.role_prompts import SOLVE_BARE
from cotrain.metrics.heldout import measure_selection, measure_verifier
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.pairs import SPLITS, check_demonstrations, measure_pair_order, say_reply
from cotrain_zoo.adversarial_imitation.protocol import LIKENESS, TELL_APART, TOLD, Form, imitate, parse_origin

MOST = 512  # tokens of a reply to a conversation


@recipe
def adversarial_imitation(
    run: RunConfig,
    *,
    variant: Literal["gad", "raro"] = "gad",  # variant of the method: a scalar discriminator, or a critic that speaks
    discriminator: Literal["trained", "frozen"] = "trained",  # frozen: it is not trained after the warm-up
    discriminator_model: str | None = None,  # initial weights of the discriminator; by default the generator's model
    discriminator_lr: float = 2e-4,  # learning rate of the discriminator
    warmup: NotNegative = 20,  # steps in which the generator learns the expert's replies by cross-entropy
    form: Literal["pair", "steps"] | None = None,  # what raro's critic reads; steps of models that know them
    critiques: int = 4,  # critiques of each reply, in raro
    tie: Share = 0.5,  # reward of both replies for a tie, in raro
    replay: NotNegative = 0,  # replies of an earlier generator that the discriminator learns from too
    weights: Literal["own", "shared"] = "own",  # two policies, or one in both roles, in raro
) -> Recipe:
    chats = check_demonstrations("adversarial_imitation", run.problems, splits=SPLITS)
    initial_discriminator = discriminator_model or run.model
    is_scalar = variant == "gad"
    learns = discriminator == "trained"
    shape: Form
    if is_scalar:
        shape = "scalar"
    elif form is not None:
        shape = form
    elif common_roles.is_terse(initial_discriminator) and not chats:
        shape = "steps"
    else:
        shape = "pair"
    check_choices(variant, shape, chats, learns, warmup, weights, typed_form=form)
    at_least(2, "adversarial_imitation", group_size=run.group_size, critiques=2 if is_scalar else critiques)

    policies = {
        "generator": run.learner(),
        "expert": program(say_reply, tokens_of="generator"),
        **run.reference_policies(),
    }
    policy = "generator" if weights == "shared" else "discriminator"
    if policy == "discriminator":
        if is_scalar:
            policies[policy] = reward_model(initial_discriminator, lr=discriminator_lr)
        elif learns or warmup > 0:
            policies[policy] = run.learner(initial_discriminator, lr=discriminator_lr)
        else:
            policies[policy] = frozen(initial_discriminator)
    if replay:
        policies["former"] = snapshot(run.model, of="generator", every=5, keep=8, pick="random")

    def make_speaker(policy: str) -> Role:
        if chats:
            return Role(policy=policy, prompt=SOLVE_BARE, sampling=Sampling(max_tokens=MOST))
        return common_roles.solver(policy, run.model)

    roles = {
        "solver": make_speaker("generator"),
        "expert": make_speaker("expert"),
        "discriminator": discriminator_role(policy, initial_discriminator, shape),
    }
    if replay:
        roles["former"] = make_speaker("former")

    # The generator learns to be taken for the expert, and the discriminator to tell them apart.
    learn_to_imitate = GRPO(reward_weights={LIKENESS: 1.0}, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_imitate)}
    if learns or warmup:
        learn_to_discriminate: Algorithm = Pairwise()
        if not is_scalar:
            balance = ClassBalance(power=1.0) if shape == "steps" else None
            learn_to_discriminate = GRPO(reward_weights={TOLD: 1.0}, balance=balance)
        objectives["discriminator"] = Objective(policy=policy, role="discriminator", algorithm=learn_to_discriminate)
    if warmup:
        objectives["expert"] = Objective(policy="generator", role="expert", algorithm=SFT())

    protocol = partial(imitate, form=shape, critiques=critiques, tie=tie, samples=run.group_size, replay=replay)
    learners = ("generator", "discriminator") if learns else ("generator",)
    phases = [Phase(name="generator", protocol=protocol, objectives=learners, group_size=1)]
    if warmup:
        phases.append(Phase(name="warmup", protocol=protocol, objectives=("expert", "discriminator"), group_size=1))
    figures = (
        measure_pair_order("discriminator", "discriminator") if shape != "pair" else measure_verifier("discriminator")
    )
    return run.recipe(
        f"adversarial_imitation-{variant}" if learns else f"adversarial_imitation-{variant}-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(*phases, ratio=(1, 0)[: len(phases)], warmup={"warmup": warmup} if warmup else {}),
        evaluate=partial(imitate, form=shape, tie=tie, orders=2 if shape == "pair" else 1),
        measures=(
            figures,
            *(() if chats else (measure_solver("solver", 8), measure_selection("solver", "discriminator", 8))),
        ),
        implicit_rewards=(ImplicitReward(policy="generator", role="expert", replies=True),),
    )


def discriminator_role(policy: str, model: str, form: Form) -> Role:
    if form == "scalar":
        return common_roles.rater(policy)
    if form == "steps":
        return common_roles.verifier(policy, model)
    if common_roles.is_terse(model):
        return verifier_roles.comparer(policy, model, "gram")
    return Role(policy=policy, prompt=TELL_APART, parse=parse_origin, sampling=Sampling(max_tokens=2048))


def check_choices(
    variant: str, form: Form, chats: bool, learns: bool, warmup: int, weights: str, typed_form: Form | None
) -> None:
    """Raise ConfigError for what does not go together."""
    where = "adversarial_imitation"
    if variant == "gad" and (typed_form or weights == "shared"):
        raise ConfigError(
            f"{where}: form and weights are of variant='raro'; a scalar discriminator reads one reply",
            code="E_FORM_OF_RARO",
        )
    if form == "steps" and chats:
        raise ConfigError(
            f"{where}: form='steps' reads solutions in steps, and replies to conversations have none",
            code="E_FORM_OF_CONVERSATIONS",
        )
    if not learns and weights == "shared":
        raise ConfigError(
            f"{where}: weights='shared' learns with the generator; leave out discriminator='frozen'",
            code="E_SHARED_WEIGHTS_FROZEN",
        )
    if not learns and not warmup and variant == "gad":
        raise ConfigError(
            f"{where}: discriminator='frozen' and warmup=0 leave a head of zeros, which pays all replies the same; "
            "expected a warm-up",
            code="E_DISCRIMINATOR_NEVER_TRAINED",
        )
