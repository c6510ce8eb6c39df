"""Constitutional AI: a model criticises and revises its own answers under drawn principles, and learns from that.

Bai et al. 2022 (arXiv 2212.08073). Two stages, on one set of weights:

    revise    a draft, a critique of it under a drawn principle, a revision, all by the model as it was when the stage
              began; the revision is learned by cross-entropy as an answer to the problem alone
    prefer    ``group_size`` answers; the critic says ``votes`` times whether a drawn principle is kept; the answers
              with the highest and the lowest share v are a pair with the soft label σ(γ (v⁺ − v⁻)), learned by DPO

The principles (``recipes/constitutional/principles.py``) are about form and not about being right, and a program checks
them: whether they are kept is noted, and paid for only in the control ``feedback="program"``. Controls: ``stages``
leaves one of the two out; ``learned="drafts"`` learns the drafts in as many steps, in place of the revisions.

Different from the paper: a pairwise loss on the labels takes the place of a preference model and PPO; one critique and
one revision; labels are votes and not log-probabilities; revisions are learned by the model that wrote them, where the
paper begins again with the pretrained one. ``shipped-games`` was taught to judge truly in most cases, and to mend
well. Left out: helpfulness data, chains of thought in the feedback.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    SFT,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Task,
    alternate,
    gather,
    gives,
    measure_solver,
    program,
    recipe,
    snapshot,
)
from cotrain.algorithms.dpo import CHOSEN, Preference
from cotrain.core.arguments import Positive, Weight
from cotrain.metrics.heldout import measure_metadata, measure_verifier
from cotrain.recipes.constitutional.principles import (
    KEPT,
    MENDED,
    WRITERS,
    ask_critic,
    keeps_principle,
    note_kept,
    principle_critic,
    principle_of,
    principle_reviser,
    revise_oneself,
    say,
    solve_and_criticise,
)
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import mean_verdict


@gives(CHOSEN.to("solver"))
async def prefer(
    task: Task, roles: Roles, *, samples: Positive = 2, votes: Positive = 4, checked: bool = False
) -> None:
    """``samples`` solutions under one drawn principle; each is worth the share of the critic's readable ``votes`` that
    say it is kept, or with ``checked`` whether it is. One that cannot be read is worth 0; one of which no vote can be
    read is left out."""
    solutions = await attempts(task, roles, samples)
    if not solutions:
        return
    name = principle_of(solutions[0])
    readable = [s for s in solutions if s.parsed.ok]
    verdicts = [] if checked else await gather([ask_critic(task, roles, s, name, n=votes) for s in readable])
    worth: dict[str, float | None] = {s.id: 0.0 for s in solutions}
    for i, solution in enumerate(readable):
        kept = float(keeps_principle(name, task.prompt, solution.tagged_text)) if checked else mean_verdict(verdicts[i])
        worth[solution.id] = kept
    for solution in solutions:
        note_kept(task, solution)
        if (value := worth[solution.id]) is not None:
            solution.reward(CHOSEN, value)


@recipe(model="shipped-games", group_size=4, steps=120, without=("kl",))
def constitutional(
    run: RunConfig,
    *,
    stages: Literal["both", "revise", "prefer"] = "both",  # which are played
    learned: Literal["revisions", "drafts"] = "revisions",  # what is learned in the first
    feedback: Literal["self", "program"] = "self",  # who says whether a principle is kept, in the second
    revising: int = 60,  # steps of the first stage
    iteration: int = 60,  # updates of the second with one reference
    beta: Weight = 0.1,  # β of DPO
    gamma: Weight = 4.0,  # γ of the soft labels
    votes: int = 4,  # of the critic on an answer
) -> Recipe:
    if run.group_size < 2 or min(votes, iteration, revising) < 1:
        settings_text = f"group_size {run.group_size}, votes {votes}, iteration {iteration}, revising {revising}"
        raise ConfigError(f"constitutional: {settings_text}; expected at least 2, 1, 1 and 1", code="E_SETTING_RANGE")
    common_roles.check_taught("constitutional", run.model)
    solver = common_roles.solver("generator", run.model)
    roles = {
        "solver": solver,
        "critic": principle_critic("generator", run.model),
        "reviser": principle_reviser("generator", run.model),
    }
    roles["student"] = common_roles.solver("author", run.model)
    policies = {"generator": run.learner(), "author": program(say, tokens_of="generator")}
    objectives: dict[str, Objective] = {}
    phases = []
    early = {}
    if stages != "prefer":
        policies["writer"] = snapshot(run.model, of="generator", every=revising)
        role_makers = (common_roles.solver, principle_critic, principle_reviser)
        roles |= {name: make("writer", run.model) for name, make in zip(WRITERS, role_makers, strict=True)}
        objectives["revise"] = Objective(policy="generator", role="student", algorithm=SFT())
        revise = partial(revise_oneself, learned=learned)
        phases.append(Phase(name="revise", protocol=revise, objectives=("revise",), group_size=1))
        early["revise"] = revising
    last = "revise"
    if stages != "revise":
        last = "prefer"
        first = revising if stages == "both" else 0
        policies["before"] = snapshot(run.model, of="generator", every=iteration, first=first)
        by = Preference(policy="generator", reference="before", betas=(beta,), soft=gamma)
        objectives["prefer"] = Objective(policy="generator", role="solver", algorithm=by)
        play = partial(prefer, samples=run.group_size, votes=votes, checked=feedback == "program")
        phases.append(Phase(name="prefer", protocol=play, objectives=("prefer",), group_size=1))
    leading = {last: objectives.pop(last)}  # the first one draws the same problems in every method
    return run.recipe(
        "constitutional" if stages == "both" else f"constitutional-{stages}",
        policies=policies,
        roles=roles,
        objectives=leading | objectives,
        schedule=alternate(*phases, ratio=tuple(int(p.name == last) for p in phases), warmup=early),
        evaluate=solve_and_criticise,
        measures=(
            measure_solver("solver", 8),
            measure_metadata("solver", KEPT),
            measure_metadata("reviser", MENDED),
            measure_verifier("critic"),
        ),
    )
