"""SPIRAL: one policy plays both sides of a zero-sum game in text, and learns from who won.

Liu et al. 2025 (arXiv 2506.24119). A move is one turn. All moves of a player get what its side won, minus a baseline of
the role: a running mean of that role's payoffs (decay 0.95), taken before the batch enters it. Without it
(``baseline=False``) the advantage of a seat, such as moving second in Kuhn poker, looks like the merit of whatever was
said in it. The loss is −A log π.

``pool`` > 0 adds games against earlier selves, in both seats, in turn with games against the present one. The games are
``games:kuhn`` (the default), ``games:nim`` and ``games:tictactoe``. How far a player can be beaten is computed exactly
(``methods/spiral/play.py: exploiting``), and each seat plays against a stranger who moves at random.

Different from the authors' code: one update of each batch instead of two epochs of PPO; a forfeit loses the stake and
the other side wins it; a payoff is in chips. Models that do not know the format, all embedded ones, first learn to say
legal moves from a teacher who draws them at random (``warmup``), which makes a player that knows the form and no
strategy.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cotrain import ConfigError, Objective, Phase, Recipe, Settings, Sft
from cotrain import alternate, noting, program, recipe, reinforce, snapshot
from cotrain.learn.policy_gradient import RunningMean
from cotrain.methods.spiral.play import PAYOFF, PERFECT, WON, duel, exploiting, player_role, probe, random_mover
from cotrain.methods.spiral.source import Games


@recipe(steps=400, kl=0.0, lr=2e-3, tasks_per_step=6, group_size=16)
def spiral(
    run: Settings,
    *,
    baseline: bool = True,  # take off a running mean of the role's payoffs
    decay: float = 0.95,  # of that running mean
    pool: int = 0,  # earlier selves that are kept as opponents; 0: only the present one
    pool_every: int = 10,  # updates between two of them
    warmup: int = 200,  # steps in which a teacher's random moves are learned
) -> Recipe:
    source = Games("kuhn") if run.tasks is None else run.tasks
    if not isinstance(source, Games):
        raise ConfigError(
            f"spiral: {source.name} is no game; expected --tasks games:kuhn, games:nim or games:tictactoe"
        )
    if run.model == "embedded" and warmup < 1:
        raise ConfigError(f"spiral: warmup is {warmup}, and the model 'embedded' knows no game; expected at least 1")
    run = replace(run, tasks=source)
    seat, stranger = player_role("player", run.model), player_role("stranger", run.model)
    learn = reinforce(rewards={PAYOFF: 1.0}, baseline=RunningMean(decay) if baseline else None, kl=run.pull())
    objectives = {"player": Objective(policy="player", on="first", also=("second",), by=learn)}
    policies = {"player": run.learner(), "stranger": program(random_mover, tokens_of="player"), **run.start()}
    roles = {"first": seat, "second": seat, "stranger": stranger}
    phases = [Phase(name="player", protocol=duel, objectives=("player",))]
    if pool:
        policies["past"] = snapshot(run.model, of="player", every=pool_every, keep=pool, pick="random")
        roles |= {"past": player_role("past", run.model)}
        for own_role, against in (("first", partial(duel, second="past")), ("second", partial(duel, first="past"))):
            phases.append(Phase(name=f"{own_role}-past", protocol=against, objectives=("player",)))
    ratio = [1] * len(phases)
    if warmup:
        objectives["format"] = Objective(policy="player", on="stranger", by=Sft())
        alone = partial(duel, first="stranger", second="stranger")
        phases.append(Phase(name="format", protocol=alone, objectives=("format",), group_size=4))
        ratio.append(0)
    low, high = -source.game.stake, source.game.stake
    return run.recipe(
        "spiral" if baseline else "spiral-no-baseline",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(*phases, ratio=tuple(ratio), warmup={"format": warmup} if warmup else None),
        evaluate=probe,
        measures=(
            exploiting(source.game),
            *(noting(name, WON, low=low, high=high) for name in ("first", "second")),
            *(noting(name, PERFECT) for name in ("first", "second")),
        ),
    )
