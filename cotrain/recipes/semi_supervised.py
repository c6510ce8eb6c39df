"""Reinforcement learning where few problems have labels: who pays for the answers to the others?

``--labelled`` says which training problems have a label (``data/labels.py``). Answers to these are paid the truth.
Of each batch a share has no labels, and ``rest`` says what pays there:

    none      nothing: whole batches of labelled problems (the control)
    vote      agreement with the majority of the group (TTRL, Zuo et al. 2025, arXiv 2504.16084)
    frozen    a verifier that was taught on labelled problems and then stays as it is
    learning  a verifier that goes on learning on labelled problems, from the present generator's solutions
    both      agreement with the answer for which the learning verifier's scores sum highest, a weighted vote
    truth     the truth (the ceiling)

A verifier pays the share of its reviews that call the solution right. Its own reward is agreement with the label and
0.8 for the format, with RL Tango's class weights. It is taught for ``warmup`` steps before the generator begins; one
that goes on learning then takes turns with the generator. To teach a frozen one as long, give it a longer warm-up: then
the two differ by when they are taught, and on whose solutions.

Left out:

- step verdicts as rewards (see ``tango``);
- a share of unlabelled problems that grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    GRPO,
    ClassBalance,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    alternate,
    frozen,
    gives,
    measure_solver,
    recipe,
    solve,
    solve_then_verify,
)
from cotrain.config.policies import Policy
from cotrain.core.arguments import NotNegative, Positive
from cotrain.core.signals import CLASS_LABEL
from cotrain.data.labels import check_truth_is_known
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import mean_verdict, review_all, reward_review
from cotrain.rollout.votes import agrees_with, elected_turn

PAY = Signal("pay", meaning="what an answer earns: the truth where the problem has a label, else what stands in for it")
Rest = Literal["none", "vote", "frozen", "learning", "both", "truth"]
JUDGED: tuple[Rest, ...] = ("frozen", "learning", "both")


@gives(PAY.to("solver"))
async def solve_with_few_labels(task: Task, roles: Roles, *, group: Positive, rest: Rest, reviews: NotNegative) -> None:
    """``group`` answers to a problem, each paid. An answer of which no review can be read is not learned from."""
    solutions = await attempts(task, roles, group)

    payments: list[float | None]
    if task.labelled or rest == "truth":
        payments = [float(CORRECT.require(solution)) for solution in solutions]
    elif rest == "vote":
        payments = label_agreement(solutions, elected_turn(solutions))
    elif rest == "both":
        scores = await score_solutions(task, roles, solutions, reviews)
        payments = label_agreement(solutions, heaviest_answer(solutions, scores))
    else:
        payments = await score_solutions(task, roles, solutions, reviews)

    for solution, payment in zip(solutions, payments, strict=True):
        if payment is not None:
            solution.reward(PAY, payment)


async def score_solutions(task: Task, roles: Roles, solutions: Sequence[Turn], reviews: int) -> list[float | None]:
    """The share of each solution's readable reviews that call it right.

    0 for a solution that cannot be read itself, and None for one of which no review can be read.
    """
    readable = [solution for solution in solutions if solution.parsed.ok]
    review_turns = await review_all(task, roles, readable, n=reviews)

    scores: dict[str, float | None] = {solution.id: 0.0 for solution in solutions}
    for solution, turns in zip(readable, review_turns, strict=True):
        scores[solution.id] = mean_verdict(turns)
    return [scores[solution.id] for solution in solutions]


def heaviest_answer(solutions: Sequence[Turn], scores: Sequence[float | None]) -> Turn | None:
    """The first solution of the answer whose scores sum highest; None where no score is above 0."""
    sums: dict[str, float] = {}
    for solution, score in zip(solutions, scores, strict=True):
        if solution.parsed.ok and score:
            answer = solution.parsed.answer
            sums[answer] = sums.get(answer, 0.0) + score
    if not sums:
        return None

    heaviest = max(sums, key=lambda answer: sums[answer])
    for solution in solutions:
        if solution.parsed.ok and solution.parsed.answer == heaviest:
            return solution
    return None


def label_agreement(solutions: Sequence[Turn], label: Turn | None) -> list[float | None]:
    """1 for each solution that gives the label's answer, else 0."""
    return [float(agrees_with(solution, label)) for solution in solutions]


@gives(AGREEMENT.to("verifier"), FORMAT.to("verifier"), CLASS_LABEL.to("verifier"))
async def teach_the_verifier(task: Task, roles: Roles, *, group: Positive, reviews: NotNegative) -> None:
    """The verifier reviews ``group`` answers to a labelled problem."""
    solutions = await attempts(task, roles, group)
    readable = [solution for solution in solutions if solution.parsed.ok]
    review_turns = await review_all(task, roles, readable, n=reviews)
    for solution, turns in zip(readable, review_turns, strict=True):
        is_right = CORRECT.require(solution)
        for turn in turns:
            reward_review(turn, is_right)


@recipe(labelled="16")
def semi_supervised(
    run: RunConfig,
    *,
    rest: Rest = "learning",  # who pays for answers to problems without labels
    unlabelled: float = 0.5,  # share of a batch without labels; with rest=none there are none
    warmup: int = 15,  # first steps, in which only the verifier is trained
    reviews: int = 2,  # reviews of a solution
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    review_format: verifier_roles.ReviewFormat = "steps",  # format of the verifier's reviews
) -> Recipe:
    has_verifier = rest in JUDGED
    trains_verifier = has_verifier and (rest != "frozen" or warmup > 0)
    if has_verifier and reviews < 2:
        raise ConfigError(
            f"semi_supervised: reviews is {reviews}; expected at least 2, which are compared", code="E_SETTING_RANGE"
        )
    if rest == "truth":
        check_truth_is_known(run.problems, run.audits)

    # The generator learns from what an answer earns, whoever pays it.
    learn_to_solve = GRPO(reward_weights={PAY: 1.0}, kl=run.kl_penalty())
    policies: dict[str, Policy] = {"generator": run.learner(), **run.reference_policies()}
    roles = {"solver": common_roles.solver("generator", run.model)}
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}

    # The verifier learns from labels: its rewards are added up before the reviews of one solution are compared.
    if has_verifier:
        initial_verifier = verifier_model or run.model
        roles["verifier"] = verifier_roles.verifier_role("verifier", initial_verifier, review_format)
        if trains_verifier:
            policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
        else:
            policies["verifier"] = frozen(initial_verifier)
    if trains_verifier:
        learn_to_judge = GRPO(
            reward_weights={AGREEMENT: 1.0, FORMAT: 0.8},
            sum_rewards_first=True,
            balance=ClassBalance(),
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    # A protocol samples the whole group of a problem, because a vote needs all of its answers: a phase's group is 1.
    generator_phase = Phase(
        name="generator",
        protocol=partial(solve_with_few_labels, group=run.group_size, rest=rest, reviews=reviews),
        objectives=("generator",),
        group_size=1,
        unlabelled=0.0 if rest == "none" else unlabelled,
    )
    verifier_phase = Phase(
        name="verifier",
        protocol=partial(teach_the_verifier, group=run.group_size, reviews=reviews),
        objectives=("verifier",),
        group_size=1,
    )

    if trains_verifier:
        ratio = (1, 0) if rest == "frozen" else (1, 1)
        schedule = alternate(generator_phase, verifier_phase, ratio=ratio, warmup={"verifier": warmup})
    else:
        schedule = alternate(generator_phase, ratio=(1,))

    return run.recipe(
        "semi-supervised" if rest == "learning" else f"semi-supervised-{rest}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=solve_then_verify if has_verifier else solve,
        measures=measure_solver_and_verifier("verifier") if has_verifier else (measure_solver("solver", 8),),
    )
