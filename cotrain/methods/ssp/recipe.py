"""Search Self-Play: one model writes questions that need searching, and answers them by searching.

Lu et al. 2025 (arXiv 2510.18821). ``methods/ssp/searching.py`` has the game. The proposer is told an answer, searches,
and writes a question; it must keep the rules, and a reader must find the answer among the proposer's passages and
``noise`` others, without searching. ``group_size`` solvers search for the question. The proposer's turns earn 1 − p
without a baseline (REINFORCE) and are learned first; the solvers' turns are compared with each other (GRPO). Rejected
questions are replaced by older ones; the pool is part of every checkpoint. Nobody rewarded knows what the program
knows: ``proposer/truth/valid`` holds the reader against it.

Controls: ``noise=0`` verifies without noise passages, ``verify=False`` not at all; ``proposer="frozen"`` searches and
writes as the model did at its start; ``invalid=-0.1`` is the penalty with which its authors saw valid
proposals vanish (they chose 0).

Different from the authors' code: the library is the facts of one word problem, and a search finds one sentence by its
noun; a proposer is told where to begin, since numbers cannot be searched for; the reader is the model at its start, not
a larger judge, and is asked ``reads`` times; each turn is asked anew with all that was found. The pool is never wiped.
``embedded-games`` was taught to search and to write questions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import OUTCOME, ConfigError, Objective, Phase, Recipe, Role, Sampling, Settings
from cotrain import alternate, common_roles, frozen, grpo, noting, recipe, solving
from cotrain.learn.policy_gradient import PolicyGradient
from cotrain.rollout.proposals import LEARNABLE
from cotrain.methods.ssp.searching import GATHERED, find_and_solve, search_and_play
from cotrain.rollout.stores import TaskPool
from cotrain.tasks.words.source import WordProblems, study_problems
from cotrain.rollout.proposals import PROPOSE, PROPOSE_FULL


@recipe(model="embedded-games", kl=0.0, group_size=5, steps=100)
def ssp(
    run: Settings,
    *,
    turns: int = 5,  # searches of one question, at most
    noise: int = 4,  # passages about something else that the reader sees too
    reads: int = 3,  # answers of the reader; more than half must be the question's
    verify: bool = True,  # ask the reader at all
    proposer: Literal["trained", "frozen"] = "trained",  # does it learn?
    invalid: float = 0.0,  # reward of what is no question
    cap: int = 16384,  # questions that the pool holds
) -> Recipe:
    source = study_problems((1, 2)) if run.tasks is None else run.tasks
    if not isinstance(source, WordProblems) or source.modulus is not None or source.max_value > 99:
        raise ConfigError(f"ssp: {source.name} is no library; expected --tasks words, without a modulus, up to 99")
    if min(turns, reads) < 1 or noise < 0:
        raise ConfigError(f"ssp: turns is {turns}, reads {reads} and noise {noise}; expected at least 1, 1 and 0")
    common_roles.check_taught("ssp", run.model)
    run, short, learns = replace(run, tasks=source), common_roles.speaks_short(run.model), proposer == "trained"
    writer = "generator" if learns else "proposer"
    writes = Role(
        policy=writer,
        prompt=PROPOSE if short else PROPOSE_FULL,
        sampling=Sampling(max_tokens=64 if short else 256),
    )
    solver = common_roles.solver("generator", run.model)
    roles = {"solver": solver, "searcher": common_roles.planner("generator", run.model), "proposer": writes}
    roles |= {"seeker": common_roles.planner(writer, run.model), "reader": replace(solver, policy="start")}
    policies = {"generator": run.learner(), "start": frozen(run.model)}
    solves = grpo(rewards={OUTCOME: 1.0}, kl=run.pull())
    objectives = {"generator": Objective(policy="generator", on="solver", also=("searcher",), by=solves)}
    if learns:
        # a rejected question earns 0 and counts in the mean, so that ``invalid`` changes its reward alone
        pays = PolicyGradient(rewards={LEARNABLE: 1.0}, advantage=None, after=())
        objectives["proposer"] = Objective(policy=writer, on="proposer", also=("seeker",), by=pays)
    else:
        policies["proposer"] = frozen(run.model)
    play = partial(
        search_and_play,
        samples=run.group_size,
        noise=noise,
        reads=reads,
        verify=verify,
        turns=turns,
        invalid=invalid,
    )
    phase = Phase(
        name="play",
        protocol=play,
        objectives=tuple(objectives),
        group_size=1,
        stores=("pool",),
        in_turn=("proposer", "generator") if learns else (),
    )
    return run.recipe(
        "ssp" if learns else "ssp-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(phase, ratio=(1,)),
        evaluate=partial(find_and_solve, turns=turns),
        measures=(solving("solver", 8), noting("solver", GATHERED)),
        stores={"pool": TaskPool(cap=cap)},
    )
