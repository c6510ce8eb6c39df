"""Search Self-Play: one model writes questions that need searching, and answers them by searching.

Lu et al. 2025 (arXiv 2510.18821). ``recipes/ssp/searching.py`` has the game. The proposer is told an answer, searches,
and writes a question; it must keep the rules, and a reader must find the answer among the proposer's passages and
``noise`` others, without searching. ``group_size`` solvers search for the question. The proposer's turns earn 1 − p
without a baseline (REINFORCE) and are learned first; the solvers' turns are compared with each other (GRPO). Rejected
questions are replaced by older ones; the pool is part of every checkpoint. Nobody rewarded knows what the program
knows: ``proposer/metadata/valid`` holds the reader against it.

Controls: ``noise=0`` verifies without noise passages, ``verify=False`` not at all; ``proposer="frozen"`` searches and
writes as the model did at its start; ``invalid=-0.1`` is the penalty with which its authors saw valid
proposals vanish (they chose 0).

``search``, an async function of your own, is the library for any tasks with answers: a question is written for the
answer of a training task, whose own question the proposer never sees.

Different from the authors' code: without ``search`` the library is the facts of one word problem, a search finds one
sentence by its noun, and a proposer is told where to begin, since numbers cannot be searched for; the reader is the
model at its start, not a larger judge, and is asked ``reads`` times; each turn is asked anew with all that was found.
The pool is never wiped. ``shipped-search`` was taught to search, and to work a question out before it writes it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import (
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Role,
    RunConfig,
    Sampling,
    alternate,
    frozen,
    measure_solver,
    recipe,
)
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.core.notes import GATHERED
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.metrics.heldout import measure_metadata
from cotrain.recipes.ssp.searching import OwnLibrary, answer_to_ask_for, find_and_solve, search_and_play
from cotrain.rollout import common_roles
from cotrain.rollout.proposals import LEARNABLE, PROPOSE, PROPOSE_FULL, parse_proposal
from cotrain.rollout.readers import TextReader
from cotrain.rollout.stores import TaskPool
from cotrain.rollout.tools.search import Search, check_search

# Of chat models with a search of the user's: solver and proposer search, the proposer writes.
_HOW = """ Write the next search, a few words about what is still missing, as <search> ... </search>
Write nothing else, and search for nothing twice. If what was found is enough, write <search>nothing</search>

{question}"""
SEARCH_OWN = (
    "The question below is to be answered with the help of a search. What it found so far stands below it." + _HOW
)
SEEK_OWN = (
    "A question is to be written that has the answer below, for somebody who has to search for it more than once. "
    "Search for facts that lead to this answer first. What was found so far stands below it." + _HOW
)
WRITE_OWN = """Write one question whose only answer is the one below. Whoever answers it can search as you did, but \
sees neither the answer nor what you found. So name what they are to search for, do not tell the answer, and ask for \
something that takes several of the facts that were found. End with a question mark. Write the question alone, as \
<problem> ... </problem>

{hint}"""


@recipe(model="shipped-search", kl=0.0, group_size=5, steps=100)
def ssp(
    run: RunConfig,
    *,
    turns: int = 5,  # searches of one question, at most
    noise: int = 4,  # passages about something else that the reader sees too
    reads: int = 3,  # answers of the reader; more than half must be the question's
    verify: bool = True,  # ask the reader at all
    proposer: Literal["trained", "frozen"] = "trained",  # does it learn?
    invalid: float = 0.0,  # reward of what is no question
    cap: int = 16384,  # questions that the pool holds
    search: str | Search | None = None,  # the library, for any tasks: my_file.py:function of a query
) -> Recipe:
    assert not isinstance(search, str)  # the recipe has loaded it
    check_search(search, "ssp")
    source = study_problems((1, 2)) if run.tasks is None else run.tasks
    own = None if search is None else OwnLibrary(search=search, reader=TextReader(source=source, seed=run.seed))
    if own is not None:
        answer_to_ask_for(source.get("train", 0))
    elif not isinstance(source, WordProblems) or source.modulus is not None or source.max_value > 99:
        raise ConfigError(
            f"ssp: {source.name} is no library; give --search my_file.py:function, or --tasks words, without a "
            "modulus, up to 99",
            code="E_NO_SEARCH",
        )
    if min(turns, reads) < 1 or noise < 0:
        raise ConfigError(
            f"ssp: turns is {turns}, reads {reads} and noise {noise}; expected at least 1, 1 and 0",
            code="E_SETTING_RANGE",
        )
    common_roles.check_taught("ssp", run.model)
    run = replace(run, tasks=source)
    short = common_roles.is_terse(run.model)
    learns = proposer == "trained"
    writer = "generator" if learns else "proposer"
    writes = Role(
        policy=writer,
        prompt=PROPOSE if short else PROPOSE_FULL,
        parse=parse_proposal,
        sampling=Sampling(max_tokens=192 if short else 256),
    )
    solver = common_roles.solver("generator", run.model)
    roles = {"solver": solver, "searcher": common_roles.planner("generator", run.model), "proposer": writes}
    roles |= {"seeker": common_roles.planner(writer, run.model), "reader": replace(solver, policy="reference")}
    if own is not None and not short:
        prompts = {"searcher": SEARCH_OWN, "seeker": SEEK_OWN, "proposer": WRITE_OWN}
        roles |= {name: replace(roles[name], prompt=prompt) for name, prompt in prompts.items()}
    policies = {"generator": run.learner(), "reference": frozen(run.model)}
    solves = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    objectives = {
        "generator": Objective(policy="generator", role="solver", extra_roles=("searcher",), algorithm=solves)
    }
    if learns:
        # a rejected question earns 0 and counts in the mean, so that ``invalid`` changes its reward alone
        pays = PolicyGradient(reward_weights={LEARNABLE: 1.0}, advantage=None, edit_after=())
        objectives["proposer"] = Objective(policy=writer, role="proposer", extra_roles=("seeker",), algorithm=pays)
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
        own=own,
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
        evaluate=partial(find_and_solve, turns=turns, own=own),
        measures=(measure_solver("solver", 8), *([measure_metadata("solver", GATHERED)] if own is None else [])),
        stores={"pool": TaskPool(cap=cap)},
    )
