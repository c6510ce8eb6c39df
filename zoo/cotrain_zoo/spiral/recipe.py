"""SPIRAL: one policy plays both sides of a zero-sum game in text, and learns from who won.

Liu et al. 2025 (arXiv 2506.24119). A move is one turn. The advantage A of each move is what its side won, minus a
baseline of the role: a running mean of that role's payoffs (decay 0.95) before this game. The loss is −A log π.

The games are ``games:kuhn`` (the default), ``games:nim`` and ``games:tictactoe``, or a ``game`` of your own
(``zoo/cotrain_zoo/spiral/game.py: Game``), whose rules every model is told. In the evaluation, how far a player can be
beaten is computed exactly where the game is small enough (``measure_exploitability`` in ``spiral/play.py``), and each
seat plays against a stranger who moves at random.

Controls are parameters:

- ``baseline=False``: without the baseline, the advantage of a seat, such as moving second in Kuhn poker, is credited to
  whatever was said in it.
- ``pool``: also games against earlier selves, in both seats, in turn with games against the present one.

What differs from the authors' code: one update of each batch, theirs two epochs of PPO; a forfeit loses the stake and
the other side wins it; a payoff is in chips. The default model ``shipped-games`` was taught legal moves that were drawn
at random, so it knows the form and no strategy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cotrain import (
    ConfigError,
    Objective,
    Phase,
    Recipe,
    RunConfig,
    TaskSource,
    alternate,
    program,
    recipe,
    snapshot,
)
from cotrain.algorithms.grpo import Reinforce
from cotrain.algorithms.running_mean import RunningMean
from cotrain.core.arguments import Positive
from cotrain.metrics.heldout import measure_metadata
from cotrain.rollout import common_roles
from cotrain_zoo.spiral.game import Game
from cotrain_zoo.spiral.play import (
    PAYOFF,
    PERFECT,
    SEATS,
    WON,
    duel,
    measure_exploitability,
    player_role,
    probe,
    random_mover,
)
from cotrain_zoo.spiral.source import Games, OwnGame


@recipe(model="shipped-games", steps=200, kl=0.0, lr=2e-3, tasks_per_step=6, group_size=16)
def spiral(
    run: RunConfig,
    *,
    baseline: bool = True,  # subtract a running mean of the role's payoffs
    decay: float = 0.95,  # decay of that running mean
    pool: int = 0,  # earlier selves that are kept as opponents; 0: only the present one
    pool_every: Positive = 10,  # updates after which the present self is kept
    game: str | Game | None = None,  # a game of your own in the place of --tasks: my_file.py:GAME
) -> Recipe:
    is_own_game = game is not None
    if is_own_game and run.tasks is not None:
        raise ConfigError(
            f"spiral: game and tasks {run.tasks.name} are both to be played; leave out one", code="E_GAME_AND_TASKS"
        )
    source: TaskSource
    if is_own_game:
        source = OwnGame(game)
    elif run.tasks is None:
        source = Games("kuhn")
    else:
        source = run.tasks
    if not isinstance(source, Games):
        raise ConfigError(
            f"spiral: {source.name} is no game; expected --tasks games:kuhn, games:nim or games:tictactoe, or --game "
            "my_file.py:GAME",
            code="E_TASKS_NOT_GAME",
        )
    if not is_own_game:
        common_roles.check_taught("spiral", run.model)
    run = replace(run, tasks=source)

    learn = Reinforce(
        reward_weights={PAYOFF: 1.0}, baseline=RunningMean(decay) if baseline else None, kl=run.kl_penalty()
    )
    policies = {
        "player": run.learner(),
        "stranger": program(random_mover, tokens_of="player"),
        **run.reference_policies(),
    }
    seat = player_role("player", run.model, own=is_own_game)
    roles = {
        "first": seat,
        "second": seat,
        "stranger": player_role("stranger", run.model, own=is_own_game),
    }
    phases = [Phase(name="player", protocol=duel, objectives=("player",))]
    if pool:
        policies["past"] = snapshot(run.model, of="player", every=pool_every, keep=pool, pick="random")
        roles["past"] = player_role("past", run.model, own=is_own_game)
        phases.append(Phase(name="first-past", protocol=partial(duel, second="past"), objectives=("player",)))
        phases.append(Phase(name="second-past", protocol=partial(duel, first="past"), objectives=("player",)))

    stake = source.game.stake
    measures = [measure_exploitability(source.game)]
    for seat_name in SEATS:
        measures.append(measure_metadata(seat_name, WON, low=-stake, high=stake))
    for seat_name in SEATS:
        measures.append(measure_metadata(seat_name, PERFECT))

    return run.recipe(
        "spiral" if baseline else "spiral-no-baseline",
        policies=policies,
        roles=roles,
        objectives={"player": Objective(policy="player", role="first", extra_roles=("second",), algorithm=learn)},
        schedule=alternate(*phases, ratio=(1,) * len(phases)),
        evaluate=probe,
        measures=tuple(measures),
    )
