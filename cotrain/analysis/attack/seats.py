"""``cotrain xplay RUN [RUN …] --seats FIRST SECOND``: players of a game with two seats, of all steps and seeds, against
each other.

A debater that beats the one it was trained with may have learned that one's habits. The matrix shows it: the policy of
the row plays the role FIRST, that of the column the role SECOND, and everybody else (author, judge) plays as in the
row's run, at its step. All play the protocol that the recipe is evaluated by, on the same held-out problems. Runs meet
that play one game: the same protocol and options, roles that are asked and sampled in the same way, and the same models
in the roles of everybody else. What trains the players may differ.

    won        mean of ``--signal`` over the turns of the role FIRST that have it
    either     where both seats have one prompt: won by the row's policy over both seats; of a constant sum the figures
               of (i, j) and (j, i) add up to 1
    judge      where the role ``judge`` gave verdicts: their balanced accuracy and Matthews correlation, and the gap

Steps are those whose checkpoints the runs still have, and 0, the start. Written to ``seats.json`` in the first run.
Left out: intervals over runs, each of which is one training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotrain.analysis.attack.matrix import (
    MatrixCells,
    estimate_json,
    matrix_lines,
    point_names,
    problems_text,
    write_figures,
)
from cotrain.analysis.attack.xplay import RunPoint, Say, check_same_problems, points_of
from cotrain.config.evaluation import held_out
from cotrain.config.policies import Policy
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.signals import declared_by
from cotrain.core.types import Episode, Task
from cotrain.core.verbosity import count_of
from cotrain.distributed.local import LocalBackend
from cotrain.metrics.clusters import Figure, make_figure, mean_of_values
from cotrain.metrics.heldout import measure_verifier, traces_by_task
from cotrain.runs import manifest, opening
from cotrain.runs.changes import recipe_to_measure
from cotrain.runs.directory import RunDirectory, resolved_json
from cotrain.storage.episode_json import episode_from_json, episode_to_json
from cotrain.storage.kept_work import KeptWork, claim_place, kept_work
from cotrain.trainer.checks import check_measured, check_servers_answer
from cotrain.trainer.evaluation import EVALUATION_STEP, evaluation_seed
from cotrain.trainer.trainer import CoTrainer

FILE = "seats.json"
FORMAT = 1
RIVAL = "rival"
SHOWN = ("balanced_accuracy", "mcc")  # figures of the verifier


def play_seats(
    directories: Sequence[Path | str],
    *,
    roles: tuple[str, str],
    every: int,
    signal: str = "won",
    problems: int = 64,
    n: int = 1,
    split: str = "test",
    device: str = "cpu",
    out: Path | str | None = None,
    say: Say = lambda text: None,
) -> dict[str, Any]:
    """Play all pairs and write ``seats.json``. ``every``: steps between checkpoints that play; the last one plays too.
    ``n``: episodes of a problem.

    Raises ConfigError for runs that play other games or other problems, UnknownName for a role or signal there is not,
    RunDirectoryError for what is no run.
    """
    recipes = {str(directory): recipe_to_measure(directory) for directory in directories}
    first = next(iter(recipes.values()))
    for run, recipe in recipes.items():
        for role in roles:
            if role not in recipe.roles:
                raise UnknownName(f"role of {run} (--seats)", role, recipe.roles)
            if not recipe.policies[recipe.roles[role].policy].is_trained:
                raise ConfigError(
                    f"xplay: role {role!r} of {run} is not trained; name two seats that are with --seats",
                    code="E_SEAT_NOT_TRAINED",
                )
    check_same_problems(recipes)
    check_same_games(recipes, roles)
    declared = declared_by(first.evaluation.protocol)
    signal_names = [one.name for one in declared.signals_for(roles[0]) if one.per == "answer"] if declared else []
    if signal not in signal_names:
        raise UnknownName(f"signal of role {roles[0]!r} (--signal)", signal, signal_names)
    points = [point for run, recipe in recipes.items() for point in points_of(run, recipe, every)]
    tasks = held_out(first.tasks, split, problems, first.seed)
    place = RunDirectory(out or directories[0]).path
    claim_place(place)
    depends_on = {
        "what": "seats",
        "points": [opening.point_stamp(point.run, point.step) for point in points],
        "roles": [[roles, resolved_json(recipe)] for recipe in recipes.values()],
        "problems": [problems, n, split, first.seed],
    }
    with kept_work(place / FILE, depends_on, say) as work:
        played = _play_pairs(points, recipes, roles, tasks, n, split, device, say, work)
        cells = _pair_cells(played, recipes, roles, signal)
        figures = {
            "every": every,
            "seats": list(roles),
            "signal": signal,
            "split": split,
            "problems": len(tasks),
            "asked": problems,
            "n": n,
            "players": [point.json() for point in points],
            "cells": cells,
        }
        return write_figures(place, FILE, FORMAT, figures)


PlayedPairs = dict[tuple[int, int], tuple[Episode, ...]]  # places of row and column → what they played


def _play_pairs(
    points: Sequence[RunPoint],
    recipes: Mapping[str, Recipe],
    roles: tuple[str, str],
    tasks: Sequence[Task],
    n: int,
    split: str,
    device: str,
    say: Say,
    work: KeptWork,
) -> PlayedPairs:
    """What all pairs of players play; pairs that an earlier try has played are taken from ``work``."""
    seed = next(iter(recipes.values())).seed
    played: PlayedPairs = {}
    for i, row in enumerate(points):
        for j, trainer in enumerate(seat_trainers(row, points, recipes, roles[1], device)):

            def play(trainer: CoTrainer = trainer) -> list[Any]:
                playing_roles = {**trainer.recipe.roles, roles[1]: trainer.recipe.roles[RIVAL]}
                runner = trainer.make_runner(evaluation_seed(seed), roles=playing_roles)
                episodes = runner.collect(
                    trainer.recipe.evaluation.protocol,
                    tasks,
                    step=EVALUATION_STEP,
                    split=f"seats/{split}",
                    group_size=n,
                )
                check_measured(f"problems of {split}", episodes, runner.set_aside)
                check_servers_answer("xplay", trainer.policies, trainer.policies.outside_counts())
                return [episode_to_json(episode) for episode in episodes]

            played[i, j] = tuple(map(episode_from_json, work.part(f"{i} {j}", play)))
        say(f"{row.run} after step {row.step} has met {count_of(len(points), 'player')}")
    return played


def _pair_cells(
    played: PlayedPairs, recipes: Mapping[str, Recipe], roles: tuple[str, str], signal: str
) -> list[dict[str, Any]]:
    """The figures of all pairs."""
    one_prompt = len({recipe.roles[role].prompt for recipe in recipes.values() for role in roles}) == 1
    cells = []
    for i, j in played:
        cell = {"row": i, "column": j, **_cell_figures(played[i, j], roles[0], signal)}
        if one_prompt:
            both = [(played[i, j], roles[0]), (played[j, i], roles[1])]
            cell["either"] = estimate_json(mean_signal(both, signal))
        cells.append(cell)
    return cells


def check_same_games(recipes: Mapping[str, Recipe], seats: tuple[str, str]) -> None:
    """Raise ConfigError where runs that are to meet do not play one game."""
    # Roles that only some of the runs have take no part in the games of all.
    shared_roles = set.intersection(*(set(recipe.roles) for recipe in recipes.values()))
    games = {run: _game_settings(recipe, shared_roles, seats) for run, recipe in recipes.items()}
    first, game = next(iter(games.items()))
    for run, other in games.items():
        for name in {**game, **other}:
            mine, theirs = game.get(name), other.get(name)
            if mine != theirs:
                raise ConfigError(
                    f"xplay: {name} is {_short_repr(theirs)} in {run} and {_short_repr(mine)} in {first}; "
                    f"expected one game",
                    code="E_RUNS_DIFFER",
                )


def _game_settings(recipe: Recipe, roles: Collection[str], seats: tuple[str, str]) -> dict[str, Any]:
    """The settings that must be equal where players meet, by their paths in the recipe: the rules, how roles are asked,
    and who plays the roles of which nobody sits in ``seats``."""
    resolved_recipe = resolved_json(recipe)
    rules = resolved_recipe["evaluation"]
    settings = {"evaluation.protocol": rules["protocol"]}
    settings |= {f"evaluation.options.{name}": value for name, value in rules["options"].items()}
    for role in sorted(roles):
        policy = resolved_recipe["roles"][role].pop("policy")
        settings |= {f"roles.{role}.{name}": value for name, value in resolved_recipe["roles"][role].items()}
        if role not in seats:
            settings |= {
                f"the {name} of role {role!r}": resolved_recipe["policies"][policy].get(name)
                for name in ("model", "lora")
            }
    return settings


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def seat_trainers(
    row: RunPoint, columns: Sequence[RunPoint], recipes: Mapping[str, Recipe], seat: str, device: str
) -> Iterator[CoTrainer]:
    """For each column the policies of the row's run at its step, and as ``rival`` the one that plays ``seat`` in the
    column's run at its step. One trainer serves all columns whose models are alike: only the rival's weights change."""
    trainer = None
    spec = None
    for column in columns:
        recipe = recipes[column.run]
        name = recipe.roles[seat].policy
        if trainer is None or recipe.policies[name] != spec:
            if trainer is not None:
                trainer.close()
            spec = recipe.policies[name]
            trainer = _open_trainer(row, recipes[row.run], spec, seat, device)
            rival = trainer.policies[RIVAL]
            start = rival.state(), rival.tensors()
        checkpoint = _checkpoint_of(column)
        state, tensors = start if checkpoint is None else _as_rival(name, *checkpoint.load())
        rival.load(state, tensors)
        trainer.backend.publish(RIVAL, rival.version)
        yield trainer

    if trainer is not None:
        trainer.close()


def _as_rival(
    name: str, tensors: Mapping[str, Mapping[str, Any]], documents: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """State and tensors of a policy of a checkpoint; an adapter's have the policy's name in theirs."""
    state = documents["state"]["policies"][name]
    own_prefix = f".policy-{name}."
    rival_prefix = f".policy-{RIVAL}."
    moments = [moment.replace(own_prefix, rival_prefix) for moment in state["optimizer"]]
    rival_tensors = {key.replace(own_prefix, rival_prefix): tensor for key, tensor in tensors[name].items()}
    return {**state, "optimizer": moments}, rival_tensors


def _open_trainer(row: RunPoint, recipe: Recipe, rival: Policy, seat: str, device: str) -> CoTrainer:
    """The row's run at its step, with one policy more."""
    both = replace(
        recipe,
        policies={**recipe.policies, RIVAL: rival},
        roles={**recipe.roles, RIVAL: replace(recipe.roles[seat], policy=RIVAL)},
    )
    trainer = CoTrainer(both, backend=LocalBackend(device))
    checkpoint = _checkpoint_of(row)
    if checkpoint is not None:
        tensors, documents = checkpoint.load()
        policies = {**documents["state"]["policies"], RIVAL: trainer.policies[RIVAL].state()}
        trainer.load(
            {**documents["state"], "policies": policies}, {**tensors, RIVAL: trainer.policies[RIVAL].tensors()}
        )
    return trainer


def _checkpoint_of(point: RunPoint) -> manifest.VerifiedCheckpoint | None:
    return None if point.step == 0 else manifest.checkpoint_at(RunDirectory.open(point.run), point.step)


def mean_signal(plays: Sequence[tuple[Sequence[Episode], str]], signal: str) -> Figure | None:
    """The mean of a signal over turns of a role, in several plays of the same problems, with its interval; None where
    nobody has it."""
    counts: dict[int, dict[str, float]] = {}
    all_values: list[float] = []
    for episodes, role in plays:
        for task, traces in traces_by_task(episodes, role).items():
            values = [
                reward.value for t in traces for reward in t.rewards if reward.name == signal and reward.tokens is None
            ]
            row = counts.setdefault(task, {"sum": 0.0, "count": 0.0})
            row["sum"] += sum(values)
            row["count"] += len(values)
            all_values += values

    if not all_values:
        return None
    low = min(0.0, *all_values)
    high = max(1.0, *all_values)
    return make_figure(counts, mean_of_values(low, high), len(all_values))


def _cell_figures(episodes: Sequence[Episode], role: str, signal: str) -> dict[str, Any]:
    verdict_figures: Mapping[str, Any] = measure_verifier("judge")(episodes)
    verifier_figures = {
        name: verdict_figures[f"judge/{name}"].to_json() for name in SHOWN if f"judge/{name}" in verdict_figures
    }
    if verifier_figures and "gap" in verdict_figures:
        verifier_figures["gap"] = verdict_figures["gap"].to_json()
    return {"won": estimate_json(mean_signal([(episodes, role)], signal)), **verifier_figures}


# -- printing

TITLES = {
    "won": "{signal} of the row as {first}",
    "either": "{signal} of the row over both seats",
    "balanced_accuracy": "balanced accuracy of the verifier",
    "mcc": "Matthews correlation of the verifier",
    "gap": "gap: believed minus right",
}


def lines_of(result: dict[str, Any]) -> list[str]:
    """The matrices, the first seat down and the second across."""
    names, legend = point_names(result["players"])
    first, second = result["seats"]
    measured = problems_text(result["problems"], result["asked"])
    explanation = f"{measured}, n = {result['n']}; rows: {first} after a step, columns: {second}"
    titles = {key: title.format(signal=result["signal"], first=first) for key, title in TITLES.items()}

    def cells_of(key: str) -> MatrixCells:
        return {(one["row"], one["column"]): one.get(key) for one in result["cells"]}

    return [*legend, explanation, *matrix_lines(titles, cells_of, names, names, others=f"columns: see {FILE}")]
