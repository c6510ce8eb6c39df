"""SSRL: one model is policy and search engine, and learns nothing from what it wrote as the engine.

Fan et al. 2025 (arXiv 2508.10874). While it answers, the model writes searches and, between markers, what they find
(``recipes/ssrl/self_search.py``). GRPO with 0.9 · right answer + 0.1 · format; the information is left out of the loss,
as if an engine had said it. The questions are about a world of facts that the model has learned
(``recipes/ssrl/world.py``): a search engine that knows nothing could not be one. At the end every model is measured
twice: as its own engine (``solver``), and with the world's library in its place (``grounded``), which is the authors'
step from simulation to the real thing.

Controls: ``mask=False`` learns the information like all other tokens; ``searches="real"`` has the library answer in
training too (Search-R1, arXiv 2503.09516). ``search``, an async function of your own, is the real engine for any other
problems; without it they have none, and a model is measured as its own engine alone.

Different from the authors' code: a library of a dozen sentences, found by a noun; no thoughts; no KL by default.
``shipped-games`` was taught the format, and the facts of ``World()`` with false ones among them.
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
    Role,
    RunConfig,
    Sampling,
    constant_schedule,
    measure_solver,
    recipe,
)
from cotrain.algorithms.advantage_edits import LeaveOut
from cotrain.algorithms.policy_gradient import drop_flat_groups
from cotrain.core.notes import GATHERED
from cotrain.core.shipped import SHIPPED_LANGUAGE_MODELS
from cotrain.metrics.heldout import measure_metadata
from cotrain.recipes.ssrl.self_search import OWN, SUPPORTED, parse_searched, search_both_ways, search_within
from cotrain.recipes.ssrl.world import World
from cotrain.rollout import common_roles
from cotrain.rollout.tools.search import Search, check_search

# Of solvers that write searches into their answers.
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
    mask: bool = True,  # leave what the model wrote as information out of the loss
    turns: int = 4,  # searches that the real engine answers, at most
    format_reward: float = 0.1,  # share of the reward that is for the format
    search: str | Search | None = None,  # the real engine: my_file.py:function of a query; World has one
) -> Recipe:
    assert not isinstance(search, str)  # the recipe has loaded it
    check_search(search, "ssrl")
    source = World() if run.tasks is None else run.tasks
    engine = search is not None or isinstance(source, World)
    if searches == "real" and not engine:
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
    if run.model in SHIPPED_LANGUAGE_MODELS and isinstance(source, World) and source != World():
        raise ConfigError(
            f"ssrl: the model {run.model!r} knows the facts of World() alone, and tasks is {source}",
            code="E_MODEL_KNOWS_OTHER_TASKS",
        )
    run = replace(run, tasks=source)
    short = common_roles.is_terse(run.model)
    solver = Role(
        policy="generator",
        prompt=SEARCH if short else SEARCH_FULL,
        sampling=Sampling(max_tokens=288 if short else 1024),
        parse=parse_searched,
    )
    rewards = {OUTCOME: 1.0 - format_reward} | ({FORMAT: format_reward} if format_reward else {})
    after = (drop_flat_groups, LeaveOut(OWN)) if mask else (drop_flat_groups,)
    learn = GRPO(reward_weights=rewards, sum_rewards_first=True, edit_after=after, kl=run.kl_penalty())
    return run.recipe(
        "ssrl" + ("" if searches == "self" else "-real") + ("" if mask else "-unmasked"),
        policies={"generator": run.learner(), **run.reference_policies()},
        roles={"solver": solver} | ({"grounded": solver} if engine else {}),
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=learn)},
        schedule=constant_schedule(
            partial(search_within, searches=searches, turns=turns, search=search), "generator", name="search"
        ),
        evaluate=partial(search_both_ways, turns=turns, search=search) if engine else search_within,
        measures=(
            measure_solver("solver", 8),
            *([measure_solver("grounded", 8)] if engine else []),
            *(
                [measure_metadata("solver", SUPPORTED), measure_metadata("solver", GATHERED)]
                if isinstance(source, World)
                else []
            ),
        ),
    )
