"""A generator imitates its right solutions, and a verifier learns by DPO to prefer right solutions to wrong ones.

V-STaR (Hosseini et al. 2024, arXiv 2402.06457), at every step instead of in rounds. The verifier never speaks: it is
trained on what the generator wrote, and log π_verifier − log π_reference of a solution is its score. Both also learn
from an archive of earlier pairs, which a program says again in their tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from cotrain import (
    CORRECT,
    SFT,
    Objective,
    Recipe,
    Roles,
    RunConfig,
    Task,
    constant_schedule,
    frozen,
    gives,
    measure_solver,
    program,
    recipe,
    rng_of,
)
from cotrain.algorithms.dpo import CHOSEN, Preference
from cotrain.config.evaluation import ImplicitReward
from cotrain.core.arguments import Positive, Weight
from cotrain.core.notes import Finding
from cotrain.core.types import Episode
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts

Pair = tuple[str, str, str]  # a problem, a right and a wrong solution
NEW_PAIR = Finding[Pair]("new_pair", Pair, "a problem, a right and a wrong solution")


@dataclass(frozen=True)
class Archive:
    """A store: pairs in the order in which they came; of more than ``cap`` the oldest leave."""

    cap: int = 512
    pairs: tuple[Pair, ...] = ()

    def draw(self, rng: Random) -> Pair | None:
        return rng.choice(self.pairs) if self.pairs else None

    def with_episodes(self, episodes: Sequence[Episode], step: int) -> Archive:
        new_pairs = [NEW_PAIR.of(trace) for episode in episodes for trace in episode.traces if NEW_PAIR.is_in(trace)]
        pairs = [*self.pairs, *map(tuple, new_pairs)]
        return replace(self, pairs=tuple(pairs[-self.cap :]))

    def metrics(self) -> dict[str, float]:
        return {"size": float(len(self.pairs))}

    def state(self) -> dict[str, Any]:
        return {"pairs": [list(pair) for pair in self.pairs]}

    def restore_state(self, state: Mapping[str, Any]) -> Archive:
        return replace(self, pairs=tuple(map(tuple, state["pairs"])))


@gives(CHOSEN.to("solver"), CHOSEN.to("archivist"))
async def solve_and_recall(task: Task, roles: Roles, *, samples: Positive = 1, archive: Archive | None = None) -> None:
    """``archive``: the store of the phase; None on held-out problems, where nothing is recalled."""
    solutions = await attempts(task, roles, samples)
    for solution in solutions:
        solution.reward(CHOSEN, float(CORRECT.require(solution)))

    right = [solution for solution in solutions if CORRECT.require(solution)]
    wrong = [solution for solution in solutions if not CORRECT.require(solution)]
    if right and wrong:
        right[0].add_finding(NEW_PAIR, (task.prompt, right[0].text, wrong[0].text))

    if archive is None or not solutions:
        return
    first = solutions[0]
    old_pair = archive.draw(rng_of("recall", first.id))
    if old_pair is not None:
        problem, old_right, old_wrong = old_pair
        for text, value in ((old_right, 1.0), (old_wrong, 0.0)):
            said = await roles.archivist(problem=problem, solution=text, group=f"{first.id}/old")
            said.reward(CHOSEN, value)


def say_again(fields: Mapping[str, Any], rng: Random) -> str:
    """The policy of the role ``archivist``, a program: it says an old solution."""
    return str(fields["solution"])


@recipe(steps=40, tasks_per_step=8, without=("kl",))
def v_star(
    run: RunConfig,
    *,
    beta: Weight = 0.1,  # of DPO
    verifier_lr: float = 1e-4,  # learning rate of the verifier
) -> Recipe:
    """A generator imitates its right solutions; a verifier learns by DPO to prefer them to wrong ones."""
    imitate = SFT(where=CHOSEN)
    prefer = Preference(policy="verifier", reference="reference", betas=(beta,))
    solver = common_roles.solver("generator", run.model)
    protocol = partial(solve_and_recall, samples=run.group_size)
    return run.recipe(
        "v_star",
        policies={
            "generator": run.learner(),
            "verifier": run.learner(lr=verifier_lr),
            "reference": frozen(run.model),
            "archivist": program(say_again, tokens_of="generator"),
        },
        roles={"solver": solver, "archivist": replace(solver, policy="archivist")},
        objectives={
            "generator": Objective(policy="generator", role="solver", extra_roles=("archivist",), algorithm=imitate),
            "verifier": Objective(policy="verifier", role="solver", extra_roles=("archivist",), algorithm=prefer),
        },
        schedule=constant_schedule(
            protocol,
            "generator",
            "verifier",
            group_size=1,  # the protocol samples the whole group itself
            stores=("archive",),
        ),
        stores={"archive": Archive()},
        evaluate=solve_and_recall,
        measures=(measure_solver("solver", 8),),
        implicit_rewards=(ImplicitReward(policy="verifier", reference="reference"),),
    )
