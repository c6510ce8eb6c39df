"""GenPRM: a generative process reward model by supervised learning from its own reviews that agree with step labels.

Zhao et al. 2025 (arXiv 2504.00891). The verifier is trained, by cross-entropy on its own reviews (rejection
fine-tuning, ``algorithms/sft.py``); the generator is frozen. Steps of solutions get labels by relative progress,
MC(k) / MC(k−1) ≥ 0.8 (``rollout/monte_carlo.py``). A review is learned if its verdict on every step and on the answer
equals the label. The consensus filter leaves out solutions where a majority of the reviews contradicts a label, since
one of the two must be wrong; in the paper this is about half. As in the released code, as many right as wrong solutions
of a problem are labelled, and none of a problem that has one kind only.

Controls are parameters:

- ``consensus=False``: no filter.
- ``labels``: other rules, or "oracle", the truth of the steps (ceiling).
- ``balance=False``: every readable solution is labelled.
- ``review_format="genprm"`` has a chat model write reviews in the paper's format. With ``tool="python"`` their programs
  are run while they are written (``rollout/tools/calls.py``), and what these print is not learned; ``tool="none"`` is
  the control. The shipped models know no programs.

``stepwiser`` trains the same judge by RL.

What differs from the paper: there QwQ-32B writes the reviews, so that the filter compares labels with a stronger judge.
Here the verifier teaches itself: labels are compared with the majority of its own reviews, and it learns what it
already finds. Left out: 32 to 128 continuations by difficulty (here ``rollouts`` for all), and the critic that refines
solutions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal, cast

from cotrain import (
    CORRECT,
    SFT,
    ConfigError,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    constant_schedule,
    frozen,
    gives,
    recipe,
    rng_of,
    solve_then_verify,
)
from cotrain.core.arguments import Positive, Share, at_least
from cotrain.core.notes import Metadata
from cotrain.core.signals import MATCH
from cotrain.grading.isolation import working_sandbox
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.monte_carlo import (
    GAMMA,
    Labels,
    balanced_places,
    completer_role,
    label_steps,
    majority_contradicts,
    review_verdicts,
    share_equal,
)
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import TOOLS, Tool, review_all

TO_LEARN = Signal("kept", meaning="1 for a review that is to be learned, else 0")
CONSENSUS = Metadata[bool]("consensus", bool, "did the solution pass the filter: no majority of reviews contradicts it")


@gives(MATCH.to("verifier"), TO_LEARN.to("verifier"))
async def agreeing_reviews(
    task: Task,
    roles: Roles,
    *,
    samples: Positive = 4,
    reviews: Positive = 4,
    rollouts: Positive = 8,
    labels: Labels = "ratio",
    gamma: float = GAMMA,
    balance: bool = True,
    consensus: bool = True,
    tool: Tool = "none",
) -> None:
    """Readable solutions, labelled and reviewed. A review has two rewards: ``match``, the share of its verdicts that
    equal the label, and ``kept``, 1 if it is to be learned: all verdicts equal the label, and its solution passed the
    filter."""
    solutions = await attempts(task, roles, samples)
    readable = [solution for solution in solutions if solution.parsed.ok]
    if balance and solutions:
        grades = [CORRECT.require(solution) for solution in readable]
        places = balanced_places(grades, rng_of("balance", task.id, solutions[0].id))
        readable = [readable[i] for i in places]

    labels_by_id = await label_steps(task, roles, readable, labels_by=labels, rollouts=rollouts, gamma=gamma)
    solutions_with_labels = [solution for solution in readable if solution.id in labels_by_id]
    reviews_by_solution = await review_all(task, roles, solutions_with_labels, n=reviews, tool=tool)
    for solution, review_turns in zip(solutions_with_labels, reviews_by_solution, strict=True):
        true_verdicts = labels_by_id[solution.id]  # [K + 1] one per step, and last that of the answer
        verdicts_of_reviews = [review_verdicts(turn) for turn in review_turns if turn.parsed.ok]
        has_consensus = not majority_contradicts(verdicts_of_reviews, true_verdicts)
        solution.add_metadata(CONSENSUS, has_consensus)
        passes_filter = has_consensus or not consensus
        for turn in review_turns:
            match = 0.0
            if turn.parsed.ok:
                match = share_equal(review_verdicts(turn), true_verdicts)
            turn.chat.reward(MATCH, match)
            turn.chat.reward(TO_LEARN, float(match == 1.0 and passes_filter))


@recipe(group_size=4, without=("kl",))
def genprm(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier (rate ``lr``); by default the generator's
    reviews: int = 4,  # reviews of each solution
    rollouts: int = 8,  # continuations from the end of each step
    labels: Labels = "ratio",  # how continuations label a step (``rollout/monte_carlo.py``)
    gamma: Share = GAMMA,  # γ of the labels
    balance: bool = True,  # label as many right as wrong solutions
    consensus: bool = True,  # leave out solutions whose reviews contradict the labels
    review_format: Literal["steps", "genprm"] = "steps",  # format of the verifier's reviews
) -> Recipe:
    # The setting ``tool`` is the verifier's where it is "python" or "none"; any other tool is the solver's.
    tool: Tool = "none"
    if run.tool in TOOLS:
        tool = cast(Tool, run.tool)
        run = replace(run, tool=None)
    at_least(1 + balance, "genprm", group_size=run.group_size)
    at_least(1, "genprm", reviews=reviews, rollouts=rollouts)
    initial_verifier = verifier_model or run.model
    if tool != "none" and (review_format != "genprm" or common_roles.is_terse(initial_verifier)):
        raise ConfigError(
            f"genprm: tool {tool!r} runs the programs of review_format='genprm' by a chat model, but it is "
            f"{review_format!r} and the verifier's model {initial_verifier!r}; change these (verifier_model names a "
            "model), or leave tool='none'",
            code="E_TOOL_WITHOUT_CHAT_MODEL",
        )
    if tool == "python":
        working_sandbox()  # raises where programs cannot be run, before anything is loaded

    solver = common_roles.solver("generator", run.model)
    if review_format == "genprm":
        verifier = verifier_roles.genprm("verifier", initial_verifier, runs=tool == "python")
    else:
        verifier = verifier_roles.verifier_role("verifier", initial_verifier, review_format)
    imitate_reviews = SFT(where=TO_LEARN, at_least=1.0)
    protocol = partial(
        agreeing_reviews,
        samples=run.group_size,
        reviews=reviews,
        rollouts=rollouts,
        tool=tool,
        labels=labels,
        gamma=gamma,
        balance=balance,
        consensus=consensus,
    )
    return run.recipe(
        "genprm" if consensus else "genprm-unfiltered",
        policies={"generator": frozen(run.model), "verifier": run.learner(initial_verifier)},
        roles={"solver": solver, "completer": completer_role(solver), "verifier": verifier},
        objectives={"verifier": Objective(policy="verifier", role="verifier", algorithm=imitate_reviews)},
        schedule=constant_schedule(protocol, "verifier", name="verifier", group_size=1),
        evaluate=partial(solve_then_verify, tool=tool),
        measures=measure_solver_and_verifier("verifier"),
    )
