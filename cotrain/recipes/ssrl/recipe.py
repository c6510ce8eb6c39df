"""SSRL: one model is policy and search engine, and learns nothing from what it wrote as the engine.

Fan et al. 2025 (arXiv 2508.10874). While it answers, the policy writes searches and also what they find, between
markers (``recipes/ssrl/self_search.py``). It learns by GRPO from 0.9 · right answer + 0.1 · format. What it wrote as
the engine is left out of the loss, as a real engine's text would be.

The questions are about a world of facts that the model has learned (``recipes/ssrl/world.py``), since it could not
search in what it does not know. A model is evaluated twice: as its own engine (role ``solver``), and with the world's
library as the engine (role ``grounded``), which is the authors' step from simulation to a real search.

Controls are parameters:

- ``mask=False``: what the policy wrote as the engine is learned like all other tokens.
- ``searches="real"``: the real engine answers in training too (Search-R1, arXiv 2503.09516).

``search``, an async function of your own, is the real engine for any other problems. Without it these have none, and
the role ``grounded`` is left out.

What differs from the authors' code: the library has a dozen sentences, each found by a noun; there are no thoughts, and
no KL term by default. The default model ``shipped-games`` was taught the format, and the facts of ``World()`` with
false ones among them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from cotrain import (
    FORMAT,
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Recipe,
    RunConfig,
    constant_schedule,
    measure_solver,
    recipe,
)
from cotrain.algorithms.advantage_edits import LeaveOut
from cotrain.algorithms.policy_gradient import SampleEdit, drop_flat_groups
from cotrain.core.notes import GATHERED
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS
from cotrain.metrics.heldout import Measure, measure_metadata
from cotrain.recipes.ssrl.self_search import OWN, SUPPORTED, parse_searched, search_both_ways, search_within
from cotrain.recipes.ssrl.world import World
from cotrain.rollout import common_roles
from cotrain.rollout.tools.search import Search, check_search

# The prompts of a solver that writes searches into its answer.
SEARCH = "{problem}\nSearch and solve:"
SEARCH_FULL = """Answer the question below. It does not say all that is needed: the rest is known about the things \
that it names.

Whenever you need a fact, write the one word to search for as <search> ... </search>, and what the search finds as \
<found> ... </found>. If nobody answers a search, write from memory what it would find.
Then write every step of your reasoning in its own pair of tags, <step> ... </step>, and the final answer once, alone, \
as <answer> ... </answer>. Write nothing outside of the tags.

Question:
{problem}"""


@recipe(model="shipped-games", kl=0.0, group_size=5, steps=60)
def ssrl(
    run: RunConfig,
    *,
    searches: Literal["self", "real"] = "self",  # who answers searches in training
    mask: bool = True,  # leave what the model wrote as search results out of the loss
    turns: int = 4,  # searches that the real engine answers, at most
    format_reward: float = 0.1,  # share of the reward that is for the format
    search: str | Search | None = None,  # search engine: my_file.py:function of a query; World has one
) -> Recipe:
    assert not isinstance(search, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
    check_search(search, "ssrl")
    source = World() if run.tasks is None else run.tasks
    is_world = isinstance(source, World)
    has_engine = search is not None or is_world
    if searches == "real" and not has_engine:
        raise ConfigError(
            f"ssrl: {source.name} has no search engine; give --search my_file.py:function, or tasks=world",
            code="E_NO_SEARCH",
        )
    if turns < 1 or not 0.0 <= format_reward < 1.0:
        raise ConfigError(
            f"ssrl: turns is {turns} and format_reward {format_reward}; expected at least 1, and [0, 1)",
            code="E_SETTING_RANGE",
        )
    common_roles.check_taught("ssrl", run.model)
    if run.model in SHIPPED_LANGUAGE_MODELS and is_world and source != World():
        raise ConfigError(
            f"ssrl: the model {run.model!r} knows the facts of World() alone, and tasks is {source}",
            code="E_MODEL_KNOWS_OTHER_TASKS",
        )
    run = replace(run, tasks=source)

    solver = common_roles.make_role(
        "generator",
        run.model,
        terse=common_roles.Prompt(SEARCH, 288),
        full=common_roles.Prompt(SEARCH_FULL, 1024),
        parse=parse_searched,
    )
    roles = {"solver": solver}
    measures: list[Measure] = [measure_solver("solver", 8)]
    if has_engine:
        roles["grounded"] = solver  # the same policy, with the real engine: only evaluated
        measures.append(measure_solver("grounded", 8))
    if is_world:
        measures.append(measure_metadata("solver", SUPPORTED))
        measures.append(measure_metadata("solver", GATHERED))

    reward_weights = {OUTCOME: 1.0 - format_reward}
    if format_reward:
        reward_weights[FORMAT] = format_reward
    edits: list[SampleEdit] = [drop_flat_groups]
    if mask:
        edits.append(LeaveOut(OWN))
    learn = GRPO(reward_weights=reward_weights, sum_rewards_first=True, edit_after=tuple(edits), kl=run.kl_penalty())

    name = "ssrl"
    if searches == "real":
        name += "-real"
    if not mask:
        name += "-unmasked"
    protocol = partial(search_within, searches=searches, turns=turns, search=search)
    return run.recipe(
        name,
        policies={"generator": run.learner(), **run.reference_policies()},
        roles=roles,
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=learn)},
        schedule=constant_schedule(protocol, "generator", name="search"),
        evaluate=partial(search_both_ways, turns=turns, search=search) if has_engine else search_within,
        measures=tuple(measures),
    )
