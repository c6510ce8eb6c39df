"""Search Self-Play: one model writes questions that need searching, and answers them by searching.

Lu et al. 2025 (arXiv 2510.18821). One policy is trained as proposer and as solver (``recipes/ssp/searching.py`` has the
game). The proposer is told an answer, searches, and writes a question; it earns 1 − p, where p is the share of the
solvers that are right, and learns from it by REINFORCE without a baseline. ``group_size`` solvers search for the
question and earn 1 for the answer; they learn by GRPO, after the proposer.

A question is rejected if it breaks the rules, or if a reader does not find the answer among the proposer's passages and
``noise`` others. Solvers then get an older question, from a pool that is part of every checkpoint. A program that knows
the truth enters no reward: ``proposer/metadata/valid`` compares the reader with it.

Controls are parameters:

- ``noise=0``: the reader sees no noise passages. ``verify=False``: there is no reader.
- ``proposer="frozen"``: the proposer's turns come from the initial weights and are not learned.
- ``invalid=-0.1``: the penalty with which the authors saw valid proposals vanish; they chose 0.

``search``, an async function of your own, is the library for any tasks with answers: a question is written for the
answer of a training task, whose own question the proposer never sees.

What differs from the authors' code:

- Without ``search`` the library is the facts of one word problem, and a search finds one sentence by its noun. The
  proposer is told a noun to begin with, since a number cannot be searched for.
- The reader is the initial model, asked ``reads`` times; theirs is a larger judge.
- Each turn has a prompt of its own, with all that was found so far.
- The pool is never wiped.

The default model ``shipped-search`` was taught to search, and to work a question out before it writes it.
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
    Recipe,
    RunConfig,
    constant_schedule,
    frozen,
    measure_solver,
    recipe,
)
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.core.notes import GATHERED
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.metrics.heldout import Measure, measure_metadata
from cotrain.recipes.ssp.searching import OwnLibrary, answer_to_ask_for, find_and_solve, search_and_play
from cotrain.rollout import common_roles
from cotrain.rollout.proposals import LEARNABLE, PROPOSE, PROPOSE_FULL, parse_proposal
from cotrain.rollout.readers import TextReader
from cotrain.rollout.stores import TaskPool
from cotrain.rollout.tools.search import Search, check_search

# The prompts of chat models with a search of the user's: for the solver's searches, the proposer's, and its question.
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
    verify: bool = True,  # a reader checks each question
    proposer: Literal["trained", "frozen"] = "trained",  # frozen: it is not trained
    invalid: float = 0.0,  # reward of a question that is rejected
    cap: int = 16384,  # questions that the pool holds
    search: str | Search | None = None,  # library to search, for any tasks: my_file.py:function of a query
) -> Recipe:
    assert not isinstance(search, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
    check_search(search, "ssp")
    source = study_problems((1, 2)) if run.tasks is None else run.tasks
    own = None  # the user's library; None: the facts of word problems
    if search is not None:
        own = OwnLibrary(search=search, reader=TextReader(source=source, seed=run.seed))
        answer_to_ask_for(source.get("train", 0))  # raises ConfigError where tasks have no answers
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
    trains_proposer = proposer == "trained"
    proposing_policy = "generator" if trains_proposer else "proposer"

    # Who searches before they answer, or write a question, is a role of its own, with a prompt for the next search.
    solver = common_roles.solver("generator", run.model)
    roles = {
        "solver": solver,
        "searcher": common_roles.planner("generator", run.model),
        "proposer": common_roles.make_role(
            proposing_policy,
            run.model,
            terse=common_roles.Prompt(PROPOSE, 192),
            full=common_roles.Prompt(PROPOSE_FULL, 256),
            parse=parse_proposal,
        ),
        "seeker": common_roles.planner(proposing_policy, run.model),
        "reader": replace(solver, policy="reference"),
    }
    if own is not None and not common_roles.is_terse(run.model):
        roles["searcher"] = replace(roles["searcher"], prompt=SEARCH_OWN)
        roles["seeker"] = replace(roles["seeker"], prompt=SEEK_OWN)
        roles["proposer"] = replace(roles["proposer"], prompt=WRITE_OWN)

    policies = {"generator": run.learner(), "reference": frozen(run.model)}
    learn_to_solve = GRPO(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    objectives = {
        "generator": Objective(policy="generator", role="solver", extra_roles=("searcher",), algorithm=learn_to_solve)
    }
    if trains_proposer:
        # REINFORCE without a baseline. No edits of samples: a rejected question with reward 0 stays in the mean, so
        # that ``invalid`` changes its reward and nothing else.
        learn_to_propose = PolicyGradient(reward_weights={LEARNABLE: 1.0}, advantage=None, edit_after=())
        objectives["proposer"] = Objective(
            policy="generator", role="proposer", extra_roles=("seeker",), algorithm=learn_to_propose
        )
    else:
        policies["proposer"] = frozen(run.model)

    protocol = partial(
        search_and_play,
        samples=run.group_size,
        noise=noise,
        reads=reads,
        verify=verify,
        turns=turns,
        invalid=invalid,
        own=own,
    )
    schedule = constant_schedule(
        protocol,
        *objectives,
        name="play",
        group_size=1,  # the protocol samples a group of solvers itself
        stores=("pool",),
        in_turn=("proposer", "generator") if trains_proposer else (),  # two updates, the proposer's first
    )

    measures: list[Measure] = [measure_solver("solver", 8)]
    if own is None:
        measures.append(measure_metadata("solver", GATHERED))

    return run.recipe(
        "ssp" if trains_proposer else "ssp-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(find_and_solve, turns=turns, own=own),
        measures=tuple(measures),
        stores={"pool": TaskPool(cap=cap)},
    )
