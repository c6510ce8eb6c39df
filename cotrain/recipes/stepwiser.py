"""StepWiser: a generative judge of steps, trained by RL on Monte-Carlo labels instead of on the outcome alone.

Xiong et al. 2025 (arXiv 2508.19229). The policy that is trained is the judge; the solver stays frozen. Of each problem
that the solver sometimes solves, every solution is continued from the end of each of its steps, and the share of right
ends gives the step its label (``rollout/monte_carlo.py``). The judge is rewarded for the share of its verdicts that
equal the labels, and its reviews of one solution are compared with each other by GRPO. The upper clip is higher than
the lower one: with only two possible verdicts, reviews soon agree and teach nothing.

As many right as wrong steps count. The paper drops judging prompts of the larger class; here the steps that count are
drawn for each problem, and a solution without one is not reviewed.

Controls are parameters:

- ``labels``: "absolute", "relative" and "ratio" are the paper's; "oracle" is the truth of the steps (ceiling); "answer"
  has no continuations, and only the verdict on the answer counts.
- ``balance=False``: every step counts.
- ``clip=(0.2, 0.2)``: no higher upper clip.
- ``generator="trained"``: the solver learns beside the judge, by GRPO on the outcome. It never sees the verdicts; the
  labels follow its current weights.

What differs from the paper:

- One review judges all steps of a solution and its answer; theirs asks once for each chunk and shows no later one.
- Labels are made at each training step; theirs once. There are 8 continuations; theirs 16.
- Left out: self-segmentation (solutions come in steps), and search that takes rejected chunks back.
"""

from __future__ import annotations

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
    frozen,
    gives,
    recipe,
    rng_of,
    solve_then_verify,
)
from cotrain.algorithms.policy_gradient import PPOClip
from cotrain.core.arguments import Positive, Share, at_least
from cotrain.core.notes import Finding
from cotrain.core.signals import MATCH
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.monte_carlo import (
    ALPHA,
    GAMMA,
    balanced_places,
    completer_role,
    label_steps,
    review_verdicts,
    share_equal,
)
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import review_all

StepLabels = Literal["absolute", "relative", "ratio", "oracle", "answer"]
COUNTED = Finding[list[int]]("counted", list[int], "the steps whose labels count, by index")


@gives(OUTCOME.to("solver"), MATCH.to("verifier"))
async def judge_steps(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 4,
    reviews: Positive = 4,
    rollouts: Positive = 8,
    labels: StepLabels = "relative",
    alpha: float = ALPHA,
    gamma: float = GAMMA,
    balance: bool = True,
) -> None:
    """``samples`` solutions with reward ``outcome``. Where some are right and some wrong, those that can be read are
    labelled and reviewed.

    The verifier's reward ``match`` is the share of its counted verdicts that equal the label; 0 for a review that
    cannot be read.
    """
    solutions = await attempts(task, roles, samples)
    for solution in solutions:
        solution.reward(OUTCOME, float(CORRECT.require(solution)))
    is_solved_sometimes = len({CORRECT.require(solution) for solution in solutions}) == 2
    if not is_solved_sometimes:
        return

    # The label of each verdict, by the id of a solution: its K steps, and where the answer counts its answer last.
    readable = [solution for solution in solutions if solution.parsed.ok]
    labels_by_id: dict[str, list[bool]]
    verdicts: list[tuple[str, int]] = []  # (id of a solution, index of a verdict on it): those that may count
    if labels == "answer":
        labels_by_id = {}
        for solution in readable:
            n_steps = len(solution.parsed.steps)
            labels_by_id[solution.id] = [False] * n_steps + [CORRECT.require(solution)]  # steps never count
            verdicts.append((solution.id, n_steps))
    else:
        labels_by_id = await label_steps(
            task, roles, readable, labels_by=labels, rollouts=rollouts, alpha=alpha, gamma=gamma
        )
        for solution_id, solution_labels in labels_by_id.items():
            verdicts += [(solution_id, k) for k in range(len(solution_labels))]

    if balance:
        verdict_labels = [labels_by_id[solution_id][k] for solution_id, k in verdicts]
        places = balanced_places(verdict_labels, rng_of("balance", task.id, solutions[0].id))
        verdicts = [verdicts[i] for i in places]
    counting_steps: dict[str, list[int]] = {}  # id of a solution → indices of the verdicts on it that count
    for solution_id, k in verdicts:
        counting_steps.setdefault(solution_id, []).append(k)

    solutions_to_review = [solution for solution in solutions if solution.id in counting_steps]
    reviews_by_solution = await review_all(task, roles, solutions_to_review, n=reviews)
    for solution, review_turns in zip(solutions_to_review, reviews_by_solution, strict=True):
        indices = counting_steps[solution.id]
        for turn in review_turns:
            turn.add_finding(COUNTED, indices)
            match = 0.0
            if turn.parsed.ok:
                match = share_equal(review_verdicts(turn), labels_by_id[solution.id], indices)
            turn.reward(MATCH, match)


KL = 0.001  # default weight of the KL term of a generator that is trained; without one it is not used


@recipe(group_size=4, kl=KL)
def stepwiser(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the judge; by default the generator's model
    reviews: int = 4,  # reviews of each solution
    rollouts: int = 8,  # continuations from the end of each step
    verifier_lr: float = 2e-4,  # learning rate of the judge
    clip: tuple[float, float] = (0.2, 0.28),  # lower and upper clip of the judge's importance ratio
    labels: StepLabels = "relative",  # how continuations label a step (``rollout/monte_carlo.py``)
    alpha: Share = ALPHA,  # α of the labels
    gamma: Share = GAMMA,  # γ of the labels
    balance: bool = True,  # count as many right as wrong steps
    generator: Literal["frozen", "trained"] = "frozen",  # trained: the solver learns beside the judge
) -> Recipe:
    at_least(2, "stepwiser", group_size=run.group_size, reviews=reviews)
    at_least(1, "stepwiser", rollouts=rollouts)
    initial_judge = verifier_model or run.model
    trains_generator = generator == "trained"
    if not trains_generator and run.kl not in (0.0, KL):
        raise ConfigError(
            f"stepwiser: kl is {run.kl}, and pulls a generator that learns; add generator=trained",
            code="E_KL_WITHOUT_LEARNER",
        )

    learn_to_judge = GRPO(reward_weights={MATCH: 1.0}, loss=PPOClip(*clip))
    objectives = {"verifier": Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)}
    policies = {"generator": frozen(run.model), "verifier": run.learner(initial_judge, lr=verifier_lr)}
    if trains_generator:
        learn_to_solve = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
        objectives["generator"] = Objective(policy="generator", role="solver", algorithm=learn_to_solve)
        policies["generator"] = run.learner()
        policies |= run.reference_policies()

    solver = common_roles.solver("generator", run.model)
    protocol = partial(
        judge_steps,
        samples=run.group_size,
        reviews=reviews,
        rollouts=rollouts,
        labels=labels,
        alpha=alpha,
        gamma=gamma,
        balance=balance,
    )
    return run.recipe(
        "stepwiser" if labels == "relative" else f"stepwiser-{labels}",
        policies=policies,
        roles={
            "solver": solver,
            "completer": completer_role(solver),
            "verifier": common_roles.verifier("verifier", initial_judge),
        },
        objectives=objectives,
        schedule=constant_schedule(protocol, *objectives, name="verifier", group_size=1),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles() if trains_generator else None,
    )
