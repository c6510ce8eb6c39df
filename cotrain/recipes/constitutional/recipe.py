"""Constitutional AI: a model criticises and revises its own answers under drawn principles, and learns from that.

Bai et al. 2022 (arXiv 2212.08073). One policy is trained, in two stages:

    revise    The model as it was when the stage began drafts an answer, criticises it under a drawn principle, and
              revises it. The policy learns the revision by cross-entropy, as an answer to the problem alone.
    prefer    The policy gives ``group_size`` answers. The critic says ``votes`` times whether a drawn principle is
              kept; v is the share of its votes. The answers with the highest and the lowest v are a pair with the soft
              label σ(γ (v⁺ − v⁻)), from which the policy learns by DPO.

The principles (``recipes/constitutional/principles.py``) are about form and not about being right. A program can check
them, but what it finds is only measured, except in the control ``feedback="program"``.

Controls are parameters:

- ``stages``: only one of the two stages.
- ``sft_on="drafts"``: the first stage learns the drafts instead of the revisions, in as many steps.
- ``feedback="program"``: the program pays in the second stage, in place of the critic.

What differs from the paper:

- A pairwise loss on the labels takes the place of a preference model and PPO.
- Labels are shares of votes; theirs are log-probabilities.
- Each draft has one critique and one revision.
- Revisions are learned by the model that wrote them; theirs by the pretrained one.
- Left out: helpfulness data, and chains of thought in the feedback.

The default model ``shipped-games`` was taught to judge truly in most cases, and to mend well.
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
    """``samples`` solutions, rewarded for keeping one drawn principle.

    The reward is the share of the critic's readable ``votes`` that say it is kept; with ``checked`` it is 1 or 0, as
    the program finds. A solution that cannot be read earns 0. One of which no vote can be read has no reward and is not
    learned from.
    """
    solutions = await attempts(task, roles, samples)
    if not solutions:
        return
    name = principle_of(solutions[0])
    readable = [solution for solution in solutions if solution.parsed.ok]

    kept_shares: list[float | None]  # one for each readable solution
    if checked:
        kept_shares = [float(keeps_principle(name, task.prompt, solution.tagged_text)) for solution in readable]
    else:
        verdicts = await gather([ask_critic(task, roles, solution, name, n=votes) for solution in readable])
        kept_shares = [mean_verdict(verdicts_on_one) for verdicts_on_one in verdicts]

    rewards: dict[str, float | None] = {solution.id: 0.0 for solution in solutions}
    for solution, share in zip(readable, kept_shares, strict=True):
        rewards[solution.id] = share
    for solution in solutions:
        note_kept(task, solution)
        reward = rewards[solution.id]
        if reward is not None:
            solution.reward(CHOSEN, reward)


@recipe(model="shipped-games", group_size=4, steps=120, without=("kl",))
def constitutional(
    run: RunConfig,
    *,
    stages: Literal["both", "revise", "prefer"] = "both",  # stages that are run
    sft_on: Literal["revisions", "drafts"] = "revisions",  # what the first stage learns
    feedback: Literal["self", "program"] = "self",  # who says in the second stage whether a principle is kept
    revising: int = 60,  # steps of the first stage
    iteration: int = 60,  # updates of the second stage before DPO's reference is renewed
    beta: Weight = 0.1,  # β of DPO
    gamma: Weight = 4.0,  # γ of the soft labels
    votes: int = 4,  # verdicts of the critic on each answer
) -> Recipe:
    if run.group_size < 2 or min(votes, iteration, revising) < 1:
        settings_text = f"group_size {run.group_size}, votes {votes}, iteration {iteration}, revising {revising}"
        raise ConfigError(f"constitutional: {settings_text}; expected at least 2, 1, 1 and 1", code="E_SETTING_RANGE")
    common_roles.check_taught("constitutional", run.model)
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "critic": principle_critic("generator", run.model),
        "reviser": principle_reviser("generator", run.model),
        "student": common_roles.solver("author", run.model),  # repeats what is to be learned, under the solver's prompt
    }
    policies = {"generator": run.learner(), "author": program(say, tokens_of="generator")}
    objectives: dict[str, Objective] = {}
    phases = []
    warmup = {}

    # Stage one: revisions by a copy of the generator that stays as it was when the stage began, learned by SFT.
    if stages != "prefer":
        policies["writer"] = snapshot(run.model, of="generator", every=revising)
        drafter_name, critic_name, reviser_name = WRITERS
        roles[drafter_name] = common_roles.solver("writer", run.model)
        roles[critic_name] = principle_critic("writer", run.model)
        roles[reviser_name] = principle_reviser("writer", run.model)
        objectives["revise"] = Objective(policy="generator", role="student", algorithm=SFT())
        protocol = partial(revise_oneself, sft_on=sft_on)
        phases.append(Phase(name="revise", protocol=protocol, objectives=("revise",), group_size=1))
        warmup["revise"] = revising

    # Stage two: DPO on pairs of answers, against a reference that is renewed every ``iteration`` updates.
    last_stage = "revise"
    if stages != "revise":
        last_stage = "prefer"
        first_update = revising if stages == "both" else 0
        policies["before"] = snapshot(run.model, of="generator", every=iteration, first=first_update)
        dpo = Preference(policy="generator", reference="before", betas=(beta,), soft=gamma)
        objectives["prefer"] = Objective(policy="generator", role="solver", algorithm=dpo)
        pairs = partial(prefer, samples=run.group_size, votes=votes, checked=feedback == "program")
        phases.append(Phase(name="prefer", protocol=pairs, objectives=("prefer",), group_size=1))

    # After the warm-up only the last stage has a share of the steps. Its objective leads, so that it draws the same
    # problems as the leading objective of any other recipe with this seed.
    ratio = tuple(int(phase.name == last_stage) for phase in phases)
    leading = {last_stage: objectives.pop(last_stage)}

    return run.recipe(
        "constitutional" if stages == "both" else f"constitutional-{stages}",
        policies=policies,
        roles=roles,
        objectives=leading | objectives,
        schedule=alternate(*phases, ratio=ratio, warmup=warmup),
        evaluate=solve_and_criticise,
        measures=(
            measure_solver("solver", 8),
            measure_metadata("solver", KEPT),
            measure_metadata("reviser", MENDED),
            measure_verifier("critic"),
        ),
    )
