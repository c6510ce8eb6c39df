"""Multi-Agent Evolve: one model proposes problems, solves them, and judges both. Nobody is told what is right.

Chen et al. 2025 (arXiv 2510.23595). One policy is trained in three roles, by task-relative REINFORCE++: the advantages
of a role are whitened over the tokens of that role alone. Proposer and solver are paid by the judge's scores, the judge
by its format (``recipes/mae/evolve.py`` has the equations). A question whose score is at least ``quality`` enters the
pool from which solvers draw.

The judge never hears the truth. ``judge/balanced_accuracy``, ``judge/calibration_error`` and ``gap`` compare it with
the program that works the problems out.

Controls are parameters:

- ``judge="frozen"``: judges with weights of their own, which are never trained.
- ``judge="oracle"``: the truth pays, where the program knows it (ceiling).
- ``truth``: share of the truth in the judge's reward.
- ``quality=0``: every question enters the pool.

What differs from the authors' code:

- The loss of each role is a mean over its own tokens; theirs is one mean over all.
- The judge gives one score; theirs fills three pairs of tags.
- No repetition penalty.

The default model ``shipped-proposer`` was taught the formats by examples that a program wrote. Its scores there were
true with probability 0.8, else drawn by a coin: this is all that the judge knows of the truth when it begins.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import ConfigError, Objective, Recipe, RunConfig, constant_schedule, frozen, measure_solver, recipe
from cotrain.algorithms.grpo import ReinforcePP
from cotrain.core.arguments import Weight
from cotrain.core.verbosity import print_note
from cotrain.metrics.heldout import Measure, measure_metadata, measure_verifier
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
    example_rate: float = 0.5,  # how often the proposer sees a problem of the pool, from 0 to 1
    entropy: Weight = 0.001,  # weight of the entropy bonus of each role
    cap: int = 16384,  # problems that the pool holds
    gate: str | Check | None = None,  # works a question out, to measure: my_file.py:function, of a problem
) -> Recipe:
    assert not isinstance(gate, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
    reader = reader_of(run.problems, gate, "mae", run.seed)
    if not reader.works_out:
        what = f"no program works out problems of {run.problems.name}"
        if judge == "oracle" or truth:
            raise ConfigError(
                f"mae: {what}, which judge=oracle and truth need; give --gate my_file.py:function", code="E_NO_GATE"
            )
        print_note(f"mae: {what}: whether questions are valid, and answers to them right, is not measured")
    common_roles.check_taught("mae", run.model)
    shares = {"truth": truth, "quality": quality, "example_rate": example_rate}
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:
            raise ConfigError(f"mae: {name} is {share}, expected a share from 0 to 1", code="E_SETTING_RANGE")

    judging_policy = "judge" if judge == "frozen" else "generator"
    solver = common_roles.solver("generator", run.model)
    roles = {
        "solver": solver,  # answers questions of the pool
        "trial": solver,  # answers a new question, to measure its difficulty; earns nothing
        "proposer": proposer_role("generator", run.model, reader),
        "judge": answer_judge(judging_policy, run.model),
        "rater": question_rater(judging_policy, run.model),
    }
    policies = {"generator": run.learner(), **run.reference_policies()}

    def make_objective(role: str, *extra_roles: str) -> Objective:
        """The generator learns from the turns of one role; whitening is over these turns."""
        learn = ReinforcePP(reward_weights={EARNED: 1.0}, entropy=entropy, kl=run.kl_penalty())
        return Objective(policy="generator", role=role, extra_roles=extra_roles, algorithm=learn)

    objectives = {"generator": make_objective("solver"), "proposer": make_objective("proposer")}
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
    else:
        objectives["judge"] = make_objective("judge", "rater")

    protocol = partial(
        evolve,
        samples=run.group_size,
        votes=votes,
        quality=quality,
        example_rate=example_rate,
        truth=truth,
        oracle=judge == "oracle",
        reader=reader,
    )
    # The protocol itself samples each group of answers, so a step draws every task once.
    schedule = constant_schedule(protocol, *objectives, name="play", group_size=1, stores=("pool",))

    measures: list[Measure] = [measure_solver("solver", 8)]
    if reader.works_out:
        measures.append(measure_metadata("proposer", VALID))
        measures.append(measure_verifier("rater", gap="rater/gap"))
    measures.append(measure_verifier("judge"))

    return run.recipe(
        "mae" if judge == "trained" else f"mae-{judge}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(examine_all, votes=votes, reader=reader),
        measures=tuple(measures),
        stores={"pool": TaskPool(cap=cap)},
    )
