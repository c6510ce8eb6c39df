"""GenPRM: a generative process reward model by supervised learning from its own reviews that agree with step labels.

Zhao et al. 2025 (arXiv 2504.00891). Steps of solutions get labels by relative progress, MC(k) / MC(k−1) ≥ 0.8
(``rollout/monte_carlo.py``). Reviews that say of every step, and of the answer, what the label says are learned by
cross-entropy (rejection fine-tuning, ``algorithms/sft.py``); but of no solution where reviews and labels contradict
each other: one of the two is wrong, and the consensus filter does not ask which. It drops about half of the paper's
solutions. As in the released code, as many right as wrong solutions of a problem are labelled, and no problem that has
one kind only.

Controls are parameters: ``consensus=False`` learns every agreeing review, ``labels`` other rules or "oracle" (the truth
of the steps: the ceiling), ``balance=False`` labels every readable solution. ``stepwiser`` is the same judge by RL.

Unlike the paper, the verifier teaches itself, online: there QwQ-32B writes the reviews, so the filter compares labels
with a stronger judge. Here it compares them with the majority of the verifier's own reviews, and what it already finds
is what it learns. ``review_format="genprm"`` has a chat model write the reviews in the paper's format, and
``tool="python"`` runs the programs in them while they are written (``rollout/tools/calls.py``); what they print is in
the sequence and not learned, and ``tool="none"`` is the control. The shipped models know no programs. Left out: 32 to
128 continuations by difficulty (``rollouts`` for all), and the critic that refines solutions."""

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
    majority_contradicts,
    review_verdicts,
    share_right,
    step_labels,
)
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import TOOLS, Tool, review_all

KEPT = Signal("kept", meaning="1 for a review that is to be learned, else 0")
CONSENSUS = Metadata[bool]("consensus", bool, "did the solution pass the filter: no majority of reviews contradicts it")


@gives(MATCH.to("verifier"), KEPT.to("verifier"))
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
    """Readable solutions, labelled and reviewed. Verifier rewards, for a whole review: ``match``, the share of its
    verdicts that are the label, and ``kept``, 1 on what is to be learned: all verdicts are the label, and the solution
    passed the filter."""
    solutions = await attempts(task, roles, samples)
    readable = [s for s in solutions if s.parsed.ok]
    if balance and solutions:
        kept_places = balanced_places(
            [CORRECT.require(s) for s in readable], rng_of("balance", task.id, solutions[0].id)
        )
        readable = [readable[i] for i in kept_places]
    labels_by_id = await step_labels(task, roles, readable, kind=labels, rollouts=rollouts, gamma=gamma)
    judged = [s for s in readable if s.id in labels_by_id]
    review_turns = await review_all(task, roles, judged, n=reviews, tool=tool)
    for solution, turns in zip(judged, review_turns, strict=True):
        right = labels_by_id[solution.id]
        passed = not majority_contradicts([review_verdicts(turn) for turn in turns if turn.parsed.ok], right)
        solution.add_metadata(CONSENSUS, passed)
        for turn in turns:
            match = share_right(review_verdicts(turn), right) if turn.parsed.ok else 0.0
            turn.chat.reward(MATCH, match)
            turn.chat.reward(KEPT, float(match == 1.0 and (passed or not consensus)))


@recipe(group_size=4, without=("kl",))
def genprm(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # begins the verifier, which ``lr`` is for
    reviews: int = 4,  # of a solution
    rollouts: int = 8,  # continuations of a beginning
    labels: Labels = "ratio",  # of steps, see ``rollout/monte_carlo.py``
    gamma: Share = GAMMA,  # γ of the labels
    balance: bool = True,  # label as many right as wrong solutions
    consensus: bool = True,  # leave out solutions whose reviews contradict the labels
    review_format: Literal["steps", "genprm"] = "steps",  # format of the verifier's reviews
) -> Recipe:
    tool: Tool = "none"  # of the reviews, whose programs "python" runs; any other one is the solver's
    if run.tool in TOOLS:
        tool = cast(Tool, run.tool)
        run = replace(run, tool=None)
    at_least(1 + balance, "genprm", group_size=run.group_size)
    at_least(1, "genprm", reviews=reviews, rollouts=rollouts)
    critic = verifier_model or run.model
    solver = common_roles.solver("generator", run.model)
    if tool != "none" and (review_format != "genprm" or common_roles.is_terse(critic)):
        raise ConfigError(
            f"genprm: tool {tool!r} runs the programs of review_format='genprm' by a chat model, but it is "
            f"{review_format!r} and the verifier's model {critic!r}; change these (verifier_model names a model), or "
            "leave tool='none'",
            code="E_TOOL_WITHOUT_CHAT_MODEL",
        )
    if tool == "python":
        working_sandbox()  # where programs cannot be run it is said here, before anything is loaded
    if review_format == "genprm":
        verifier = verifier_roles.genprm("verifier", critic, runs=tool == "python")
    else:
        verifier = verifier_roles.verifier_role("verifier", critic, review_format)
    play = partial(
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
        policies={"generator": frozen(run.model), "verifier": run.learner(critic)},
        roles={"solver": solver, "completer": completer_role(solver), "verifier": verifier},
        objectives={"verifier": Objective(policy="verifier", role="verifier", algorithm=SFT(where=KEPT, at_least=1.0))},
        schedule=constant_schedule(play, "verifier", name="verifier", group_size=1),
        evaluate=partial(solve_then_verify, tool=tool),
        measures=measure_solver_and_verifier("verifier"),
    )
