"""Labels that nobody gave: the most frequent answer of a group of samples is taken for the right one.

    ttrl           the vote of the very answers that are paid
    co_rewarding   the vote of another view: of a paraphrase, or of a teacher

Answers are compared as text. Where only some problems have an answer (``--labelled answers``), both learn from the
others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import (
    CORRECT,
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    constant_schedule,
    ema,
    frozen,
    gather,
    gives,
    recipe,
    rng_of,
    solve,
)
from cotrain.algorithms.policy_gradient import kl_penalty
from cotrain.core.arguments import Positive
from cotrain.core.types import UNLABELLED, RolloutFn
from cotrain.data.labels import check_truth_is_known
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.votes import VOTE, elected_turn, note_label, reward_vote


@gives(VOTE.to("solver"), OUTCOME.to("solver"))
async def vote(
    task: Task, roles: Roles, *, votes: Positive, trained: Positive, labels: Literal["vote", "truth"] = "vote"
) -> None:
    """``votes`` answers elect a label; the first ``trained`` are rewarded: ``vote``, or ``outcome`` with the truth."""
    solutions = await attempts(task, roles, votes)
    label = elected_turn(solutions)
    note_label(solutions[trained:], label)
    if labels == "vote":
        reward_vote(solutions[:trained], label)
        return
    note_label(solutions[:trained], label)
    for solution in solutions[:trained]:
        solution.reward(OUTCOME, float(CORRECT.require(solution)))


@gives(VOTE.to("solver"), VOTE.to("rephrased"))
async def exchange_votes(task: Task, roles: Roles, *, samples: Positive) -> None:
    """Variant I: role ``solver`` is asked the problem, role ``rephrased`` a paraphrase; each is paid by the other's
    vote."""
    paraphrase = paraphrase_of(task)
    original, rephrased = await gather(
        [attempts(task, roles, samples), attempts(task, roles, samples, role="rephrased", problem=paraphrase)]
    )
    reward_vote(original, elected_turn(rephrased))
    reward_vote(rephrased, elected_turn(original))


@gives(VOTE.to("solver"))
async def learn_from_teacher(task: Task, roles: Roles, *, samples: Positive, rephrase: bool) -> None:
    """Variants II and III: the vote of role ``teacher``, which may be asked a paraphrase, pays role ``solver``."""
    question = paraphrase_of(task) if rephrase else task.prompt
    students, teachers = await gather(
        [attempts(task, roles, samples), attempts(task, roles, samples, role="teacher", problem=question)]
    )
    reward_vote(students, elected_turn(teachers))


def paraphrase_of(task: Task) -> str:
    """One of the task's paraphrases, always the same. Raises ConfigError where it has none."""
    if not task.paraphrases:
        raise ConfigError(
            f"co_rewarding: task {task.id} has no paraphrase, and variants I and III need one for each training task; "
            "have `cotrain paraphrase` write a file with them, or use variant II",
            code="E_TASK_WITHOUT_PARAPHRASE",
        )
    return rng_of("paraphrase", task.id).choice(task.paraphrases)


@recipe
def ttrl(
    run: RunConfig,
    *,
    votes: int = 16,  # samples that elect the label
    labels: Literal["vote", "truth"] = "vote",  # what pays
) -> Recipe:
    """TTRL: reinforcement learning on problems without answers, towards the majority of one's own votes.

    Zuo et al. 2025 (arXiv 2504.16084). ``votes`` samples of a problem elect its label, the most frequent answer; an
    answer equal to it earns 1. GRPO learns from the first ``group_size`` samples. It works as long as wrong answers are
    scattered: then most rewards are right even where the label is wrong. When they agree, the consensus feeds on
    itself.

    ``--labelled test:64`` trains on the test problems themselves, as the paper does. ``labels="truth"`` is the control:
    the same samples, paid by the truth. Left out: extraction and simplification of answers.
    """
    if votes < run.group_size:
        raise ConfigError(
            f"ttrl: {votes} votes, of which {run.group_size} are to be trained on; raise votes or lower group_size",
            code="E_VOTES_BELOW_GROUP",
        )
    if labels == "truth":
        check_truth_is_known(run.problems, run.audits)
    payment = VOTE if labels == "vote" else OUTCOME
    learn = GRPO(reward_weights={payment: 1.0}, kl=run.kl_penalty())
    election = partial(vote, votes=votes, trained=run.group_size, labels=labels)
    return run.recipe(
        "ttrl" if labels == "vote" else "ttrl-truth",
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=learn)},
        schedule=constant_schedule(
            election, "generator", name="generator", group_size=1, unlabelled=run.unlabelled_share()
        ),
        evaluate=solve,
    )


@recipe
def co_rewarding(
    run: RunConfig,
    *,
    variant: Literal["I", "II", "III"] = "II",  # whose label pays
    teacher: Literal["ema", "frozen", "none"] | None = None,  # by default an average, and none in I
    rate: float = 0.01,  # share of the policy that the teacher takes up at the first update
    rate_end: float = 1e-5,  # share that it takes up at the last update
) -> Recipe:
    """Co-rewarding: labels of a second view, so that a consensus cannot pay itself.

    Zhang et al. 2025 (arXiv 2508.00410). No answer is known; a label is the most frequent answer of a group of samples.

        I    the problem and a paraphrase of it are sampled in a group each; the label of either pays the other, and the
             policy learns from both, standardised inside of each group
        II   a teacher, the moving average of the policy, samples its own group on the same problem; its label pays the
             policy, and the KL term pulls towards it too
        III  as II, but the teacher is asked the paraphrase

    ``rate`` → ``rate_end`` is the share of the policy that the teacher takes up at each update, along half a cosine
    (0.01 → 1e-5 in the authors' script, 1e-4 at the end in the paper). Controls: ``teacher="frozen"`` never moves it,
    ``teacher="none"`` (II) is the majority vote of the policy itself; ``rate=1, rate_end=1`` is the vote of a second
    group of the policy. I has no teacher; its KL term pulls towards the start.

    Different from the authors' settings: in short runs the teacher hardly moves (8 % of the way in 16 updates; theirs
    goes 58 to 81 % in a whole run); give a larger ``rate``. Paraphrases come with the task: ``cotrain paraphrase`` has
    a model write them.
    """
    usual: Literal["none", "ema"] = "none" if variant == "I" else "ema"
    teacher = teacher or usual
    if (variant == "I" and teacher != "none") or (variant == "III" and teacher == "none"):
        raise ConfigError(
            f"co_rewarding: variant {variant} with teacher {teacher!r}; I has none, III needs 'ema' or 'frozen' (with "
            "rate=1 and rate_end=1 the teacher is the policy itself)",
            code="E_VARIANT_TEACHER",
        )
    if variant != "II":
        paraphrase_of(run.problems.get(UNLABELLED if run.unlabelled_share() else "train", 0))

    has_teacher = teacher != "none"
    penalty = kl_penalty("teacher" if has_teacher else "reference", run.kl)
    algorithm = GRPO(reward_weights={VOTE: 1.0}, kl=penalty)
    solver = common_roles.solver("generator", run.model)
    policies = {"generator": run.learner()}
    roles = {"solver": solver}
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=algorithm)}
    if variant == "I":
        roles["rephrased"] = solver
        objectives["rephrased"] = Objective(policy="generator", role="rephrased", algorithm=algorithm)

    if teacher == "ema":
        policies["teacher"] = ema(run.model, of="generator", rate=rate, rate_end=rate_end)
    elif teacher == "frozen":
        policies["teacher"] = frozen(run.model)
    else:
        policies |= run.reference_policies()
    if has_teacher:
        roles["teacher"] = replace(solver, policy="teacher")

    protocol: RolloutFn
    if variant == "I":
        protocol = partial(exchange_votes, samples=run.group_size)
    elif has_teacher:
        protocol = partial(learn_from_teacher, samples=run.group_size, rephrase=variant == "III")
    else:
        protocol = partial(vote, votes=run.group_size, trained=run.group_size)
    return run.recipe(
        f"co-rewarding-{variant}" + ("" if teacher == usual else f"-{teacher}"),
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(
            protocol, *objectives, name="generator", group_size=1, unlabelled=run.unlabelled_share()
        ),
        evaluate=solve,
    )
