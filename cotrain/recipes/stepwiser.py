"""StepWiser: a generative judge of steps, trained by RL on Monte-Carlo labels instead of on the outcome alone.

Xiong et al. 2025 (arXiv 2508.19229). Of problems that the solver sometimes solves, every solution is continued from the
end of each of its steps; how often that ends right gives each step a label (``rollout/monte_carlo.py``). The verifier
is paid the share of its verdicts that are the labels, and compared with its other reviews of the same solution (GRPO,
clip-higher: with two possible verdicts, reviews soon agree and teach nothing). The paper balances by down-sampling the
larger class of judging prompts; here the step verdicts of a problem are drawn so that as many right as wrong steps
count, and a solution without a drawn step is not reviewed.

Controls are parameters: ``labels="absolute"|"relative"|"ratio"|"oracle"|"answer"`` ("oracle" is the truth of the steps:
the ceiling; "answer" counts the verdict on the answer alone, without continuations), ``balance=False`` counts every
step, ``clip=(0.2, 0.2)`` drops clip-higher, ``generator="trained"`` trains the solver beside the verifier (GRPO on the
outcome; it never sees the verdicts, and the labels then follow its current weights).

Unlike the paper, one review judges all steps of a solution and its answer, where the paper asks once for each chunk and
shows no later one; labels are made anew at each step instead of once; 8 continuations stand for 16. Left out:
self-segmentation (solutions come in steps), and search that takes rejected chunks back.
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
    review_verdicts,
    share_right,
    step_labels,
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
    """``samples`` solutions with reward ``outcome``; where some are right and some wrong, those that can be read are
    labelled and reviewed. Verifier reward ``match``: share of the drawn verdicts that are the label, 0 if
    unreadable."""
    graded = await attempts(task, roles, samples)
    for solution in graded:
        solution.reward(OUTCOME, float(CORRECT.require(solution)))
    if len({CORRECT.require(s) for s in graded}) < 2:
        return
    readable = [s for s in graded if s.parsed.ok]
    if labels == "answer":
        labels_by_id = {s.id: [False] * len(s.parsed.steps) + [CORRECT.require(s)] for s in readable}
        places = [(s.id, len(s.parsed.steps)) for s in readable]
    else:
        labels_by_id = await step_labels(
            task, roles, readable, kind=labels, rollouts=rollouts, alpha=alpha, gamma=gamma
        )
        places = []
        for solution_id, solution_labels in labels_by_id.items():
            places += [(solution_id, k) for k in range(len(solution_labels))]

    if balance:
        place_labels = [labels_by_id[solution_id][k] for solution_id, k in places]
        kept = balanced_places(place_labels, rng_of("balance", task.id, graded[0].id))
        places = [places[i] for i in kept]
    counted_steps: dict[str, list[int]] = {}  # id of a solution → its steps that count
    for solution_id, k in places:
        counted_steps.setdefault(solution_id, []).append(k)

    judged = [solution for solution in graded if solution.id in counted_steps]
    review_turns = await review_all(task, roles, judged, n=reviews)
    for solution, turns in zip(judged, review_turns, strict=True):
        steps = counted_steps[solution.id]
        step_labels_of_solution = labels_by_id[solution.id]
        for turn in turns:
            turn.add_finding(COUNTED, steps)
            match = 0.0
            if turn.parsed.ok:
                match = share_right(review_verdicts(turn), step_labels_of_solution, steps)
            turn.reward(MATCH, match)


KL = 0.001  # with generator="trained"


@recipe(group_size=4, kl=KL)
def stepwiser(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # begins the verifier; by default the generator's model
    reviews: int = 4,  # of a solution
    rollouts: int = 8,  # continuations of a beginning
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    clip: tuple[float, float] = (0.2, 0.28),  # lower and upper clip of its ratio
    labels: StepLabels = "relative",  # of steps, see ``rollout/monte_carlo.py``
    alpha: Share = ALPHA,  # α of the labels
    gamma: Share = GAMMA,  # γ of the labels
    balance: bool = True,  # count as many right as wrong steps
    generator: Literal["frozen", "trained"] = "frozen",  # does it learn?
) -> Recipe:
    at_least(2, "stepwiser", group_size=run.group_size, reviews=reviews)
    at_least(1, "stepwiser", rollouts=rollouts)
    initial_verifier = verifier_model or run.model
    trained = generator == "trained"
    if not trained and run.kl not in (0.0, KL):
        raise ConfigError(
            f"stepwiser: kl is {run.kl}, and pulls a generator that learns; add generator=trained",
            code="E_KL_WITHOUT_LEARNER",
        )
    by = GRPO(reward_weights={MATCH: 1.0}, loss=PPOClip(*clip))
    objectives = {"verifier": Objective(policy="verifier", role="verifier", algorithm=by)}
    policies = {"generator": frozen(run.model), "verifier": run.learner(initial_verifier, lr=verifier_lr)}
    if trained:
        learn_to_solve = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
        objectives["generator"] = Objective(policy="generator", role="solver", algorithm=learn_to_solve)
        policies |= {"generator": run.learner(), **run.reference_policies()}
    solver = common_roles.solver("generator", run.model)
    play = partial(
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
            "verifier": common_roles.verifier("verifier", initial_verifier),
        },
        objectives=objectives,
        schedule=constant_schedule(play, *objectives, name="verifier", group_size=1),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
        frozen_roles=run.frozen_roles() if trained else None,
    )
