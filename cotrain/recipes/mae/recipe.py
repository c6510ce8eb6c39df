"""Multi-Agent Evolve: one model proposes problems, solves them, and judges both. Nobody is told what is right.

Chen et al. 2025 (arXiv 2510.23595). ``recipes/mae/evolve.py`` has who earns what. The three roles learn in one update
by task-relative REINFORCE++: advantages are whitened over all tokens of a role's own part of the batch. A question
enters the pool where its judge's score is at least ``quality`` (0.7), and solvers draw from the pool. The judge earns
format alone and never hears the truth; ``judge/balanced_accuracy``, ``judge/calibration_error`` and ``gap`` hold it
against the program that works the problems out.

Controls: ``judge="frozen"`` has judges of their own weights, which stay as they were taught; "oracle" pays by the truth
where the program knows it, the ceiling; ``truth`` is the share of the truth in the judge's reward; ``quality=0`` lets
every question in.

Different from the authors' code: each role's loss is a mean over its own tokens, where theirs is one mean over all; one
judge's score takes the place of three pairs of tags; no repetition penalty. ``shipped-proposer`` has learned the
formats from a program that writes problems, and scores truly with probability 0.8, else by a coin: what the judge knows
of truth at its start comes from there.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import ConfigError, Objective, Phase, Recipe, RunConfig, alternate, frozen, measure_solver, recipe
from cotrain.algorithms.grpo import ReinforcePP
from cotrain.core.arguments import Weight
from cotrain.core.verbosity import print_note
from cotrain.metrics.heldout import measure_metadata, measure_verifier
from cotrain.recipes.mae.evolve import EARNED, evolve, examine_all, question_rater
from cotrain.recipes.mae.evolve import answer_judge as answer_judge
from cotrain.rollout import common_roles
from cotrain.rollout.proposals import VALID, proposer_role
from cotrain.rollout.readers import Check, reader_of
from cotrain.rollout.stores import TaskPool


@recipe(model="shipped-proposer", kl=0.0, group_size=4)
def mae(
    run: RunConfig,
    *,
    judge: Literal["trained", "frozen", "oracle"] = "trained",  # whose scores pay
    truth: float = 0.0,  # share of the truth in the judge's reward
    quality: float = 0.7,  # least score of a question that enters the pool
    votes: int = 1,  # scores of one text
    shown: float = 0.5,  # how often the proposer sees a problem of the pool
    entropy: Weight = 0.001,  # weight of the entropy bonus of each role
    cap: int = 16384,  # problems that the pool holds
    gate: str | Check | None = None,  # works a question out, to measure: my_file.py:function, of a problem
) -> Recipe:
    assert not isinstance(gate, str)  # the recipe has loaded it
    reader = reader_of(run.problems, gate, "mae", run.seed)
    if not reader.works_out:
        what = f"no program works out problems of {run.problems.name}"
        if judge == "oracle" or truth:
            raise ConfigError(
                f"mae: {what}, which judge=oracle and truth need; give --gate my_file.py:function", code="E_NO_GATE"
            )
        print_note(f"mae: {what}: whether questions are valid, and answers to them right, is not measured")
    common_roles.check_taught("mae", run.model)
    shares = {"truth": truth, "quality": quality, "shown": shown}
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"mae: {name} is {share}, expected a share from 0 to 1", code="E_SETTING_RANGE")
    scorer = "judge" if judge == "frozen" else "generator"
    solver = common_roles.solver("generator", run.model)
    roles = {"solver": solver, "trial": solver, "proposer": proposer_role("generator", run.model, reader)}
    roles |= {"judge": answer_judge(scorer, run.model), "rater": question_rater(scorer, run.model)}
    policies = {"generator": run.learner(), **run.reference_policies()}

    def make_objective(on: str, *also: str) -> Objective:
        by = ReinforcePP(reward_weights={EARNED: 1.0}, entropy=entropy, kl=run.kl_penalty())
        return Objective(policy="generator", role=on, extra_roles=also, algorithm=by)

    objectives = {"generator": make_objective("solver"), "proposer": make_objective("proposer")}
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
    else:
        objectives["judge"] = make_objective("judge", "rater")
    play = partial(
        evolve,
        samples=run.group_size,
        votes=votes,
        quality=quality,
        shown_share=shown,
        truth=truth,
        oracle=judge == "oracle",
        reader=reader,
    )
    phase = Phase(name="play", protocol=play, objectives=tuple(objectives), group_size=1, stores=("pool",))
    return run.recipe(
        "mae" if judge == "trained" else f"mae-{judge}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluate=partial(examine_all, votes=votes, reader=reader),
        measures=(
            measure_solver("solver", 8),
            *(
                (measure_metadata("proposer", VALID), measure_verifier("rater", gap="rater/gap"))
                if reader.works_out
                else ()
            ),
            measure_verifier("judge"),
        ),
        stores={"pool": TaskPool(cap=cap)},
    )
