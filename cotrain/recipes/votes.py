"""TTRL and Co-rewarding: the most frequent answer of a group of samples is taken for the right one.

    ttrl           the label is the vote of the very answers that are rewarded
    co_rewarding   the label is the vote of other answers: to a paraphrase, or of a teacher

Answers are compared as text. Where only some problems have an answer (``--labelled answers``), both recipes learn from
the other problems.
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
    """``votes`` solutions elect a label. The first ``trained`` are rewarded for the label, or for the truth."""
    solutions = await attempts(task, roles, votes)
    label_turn = elected_turn(solutions)  # a solution that gives the label
    trained_solutions = solutions[:trained]
    only_voting = solutions[trained:]
    note_label(only_voting, label_turn)
    if labels == "vote":
        reward_vote(trained_solutions, label_turn)
    else:
        note_label(trained_solutions, label_turn)
        for solution in trained_solutions:
            solution.reward(OUTCOME, float(CORRECT.require(solution)))


@gives(VOTE.to("solver"), VOTE.to("rephrased"))
async def exchange_votes(task: Task, roles: Roles, *, samples: Positive) -> None:
    """Variant I: the role ``solver`` is asked the problem, the role ``rephrased`` a paraphrase of it. Each is rewarded
    for agreeing with the other's vote."""
    paraphrase = paraphrase_of(task)
    original_turns, rephrased_turns = await gather(
        [attempts(task, roles, samples), attempts(task, roles, samples, role="rephrased", problem=paraphrase)]
    )
    reward_vote(original_turns, elected_turn(rephrased_turns))
    reward_vote(rephrased_turns, elected_turn(original_turns))


@gives(VOTE.to("solver"))
async def learn_from_teacher(task: Task, roles: Roles, *, samples: Positive, rephrase: bool) -> None:
    """Variants II and III: the role ``solver`` is rewarded for agreeing with the vote of the role ``teacher``, which is
    asked a paraphrase where ``rephrase`` is True."""
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
    votes: int = 16,  # samples of a problem that elect its label
    labels: Literal["vote", "truth"] = "vote",  # an answer is rewarded for the label, or for the truth
) -> Recipe:
    """TTRL: reinforcement learning on problems without answers, towards the majority of one's own votes.

    Zuo et al. 2025 (arXiv 2504.16084). ``votes`` samples of a problem elect its label, the most frequent answer. The
    first ``group_size`` of them are trained on by GRPO, with reward 1 for the label and 0 else. This works as long as
    wrong answers differ from each other: then most rewards are right even where the label is wrong. Where wrong answers
    agree, the policy only becomes surer of them.

    ``--labelled test:64`` trains on the test problems themselves, as the paper does. ``labels="truth"`` is the control:
    the same samples, rewarded for the truth. Left out: extraction and simplification of answers.
    """
    if votes < run.group_size:
        raise ConfigError(
            f"ttrl: {votes} votes, of which {run.group_size} are to be trained on; raise votes or lower group_size",
            code="E_VOTES_BELOW_GROUP",
        )
    if labels == "truth":
        check_truth_is_known(run.problems, run.audits)
    signal = VOTE if labels == "vote" else OUTCOME
    learn = GRPO(reward_weights={signal: 1.0}, kl=run.kl_penalty())
    protocol = partial(vote, votes=votes, trained=run.group_size, labels=labels)
    return run.recipe(
        "ttrl" if labels == "vote" else "ttrl-truth",
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": common_roles.solver("generator", run.model)},
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=learn)},
        schedule=constant_schedule(
            protocol,
            "generator",
            name="generator",
            group_size=1,  # the protocol samples the whole group itself
            unlabelled=run.unlabelled_share(),
        ),
        evaluate=solve,
    )


@recipe
def co_rewarding(
    run: RunConfig,
    *,
    variant: Literal["I", "II", "III"] = "II",  # whose vote is the label
    teacher: Literal["ema", "frozen", "none"] | None = None,  # who labels; default: ema in variants II, III; none in I
    rate: float = 0.01,  # weight of the policy in the teacher's moving average, at the first update
    rate_end: float = 1e-5,  # weight of the policy in that average, at the last update
) -> Recipe:
    """Co-rewarding: labels come from a second group of answers, so that a consensus cannot reward itself.

    Zhang et al. 2025 (arXiv 2508.00410). No answer is known; a label is the most frequent answer of a group of samples.

        I    The policy answers the problem and a paraphrase of it, a group each. The label of either group rewards the
             other, and the policy learns from both by GRPO.
        II   A teacher, the moving average of the policy, samples a group of its own on the same problem. Its label
             rewards the policy, and the KL term is to the teacher.
        III  As II, but the teacher is asked the paraphrase.

    At each update the teacher becomes (1 − w) · teacher + w · policy. The weight w goes from ``rate`` to ``rate_end``
    along half a cosine: 0.01 → 1e-5 in the authors' script, 1e-4 at the end in the paper. Variant I has no teacher; its
    KL term is to the initial weights. Paraphrases come with the tasks; ``cotrain paraphrase`` has a model write them.

    Controls: ``teacher="frozen"`` is never moved; ``teacher="none"``, in variant II, is the majority vote of the policy
    itself; ``rate=1, rate_end=1`` makes the teacher a copy of the policy, which samples a second group.

    What differs from the authors' settings: in short runs the teacher hardly moves, 8 % of the way in 16 updates, where
    theirs goes 58 to 81 % in a whole run. Give a larger ``rate``.
    """
    default_teacher: Literal["none", "ema"] = "none" if variant == "I" else "ema"
    teacher = teacher or default_teacher
    has_teacher = teacher != "none"
    if (variant == "I" and has_teacher) or (variant == "III" and not has_teacher):
        raise ConfigError(
            f"co_rewarding: variant {variant} with teacher {teacher!r}; I has none, III needs 'ema' or 'frozen' (with "
            "rate=1 and rate_end=1 the teacher is the policy itself)",
            code="E_VARIANT_TEACHER",
        )
    if variant != "II":
        split = UNLABELLED if run.unlabelled_share() else "train"
        paraphrase_of(run.problems.get(split, 0))  # raises ConfigError where tasks have none

    penalty = kl_penalty("teacher" if has_teacher else "reference", run.kl)
    learn = GRPO(reward_weights={VOTE: 1.0}, kl=penalty)
    solver = common_roles.solver("generator", run.model)
    policies = {"generator": run.learner()}
    roles = {"solver": solver}
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn)}
    if variant == "I":
        roles["rephrased"] = solver
        objectives["rephrased"] = Objective(policy="generator", role="rephrased", algorithm=learn)

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

    name = f"co-rewarding-{variant}"
    if teacher != default_teacher:
        name += f"-{teacher}"
    return run.recipe(
        name,
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=constant_schedule(
            protocol,
            *objectives,
            name="generator",
            group_size=1,  # the protocol samples the whole group itself
            unlabelled=run.unlabelled_share(),
        ),
        evaluate=solve,
    )
