"""Games as a task source: a task is a start position.

There is no right answer, so ``grade`` has no value, and nothing can be held out: all splits have all starts, in one
order. What a player has learned is measured by play and by what a best response wins against it
(``game.exploitability``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.types import NoGrader, Task
from cotrain_zoo.spiral.game import Game, State, check_game
from cotrain_zoo.spiral.kuhn import KUHN
from cotrain_zoo.spiral.nim import NIM
from cotrain_zoo.spiral.tictactoe import TICTACTOE

SPLITS = ("train", "validation", "test")
GameName = Literal["kuhn", "nim", "tictactoe"]
GAMES: Mapping[str, Game] = {game.name: game for game in (KUHN, NIM, TICTACTOE)}
assert set(GAMES) == set(get_args(GameName))


@dataclass(frozen=True, slots=True, kw_only=True)
class GameGrader(NoGrader):
    """Holds a task's game and start; it grades nothing."""

    reason: str = "a game has no answer"
    game: Game
    start: State


class Games:
    """All starts of one of the shipped games, by its name. Raises UnknownName for another name."""

    def __init__(self, game: str = "kuhn") -> None:
        if game not in GAMES:
            raise UnknownName("game", game, GAMES)
        self._take_game(GAMES[game])

    def _take_game(self, game: Game) -> None:
        self.game = game
        self._starts = tuple(game.starts())

    @property
    def name(self) -> str:
        return f"games:{self.game.name}"

    def get(self, split: str, index: int) -> Task:
        """Raises UnknownName for a split, IndexError past the last start."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: there are {len(self._starts)} starts and no start {index}")
        start = self._starts[index]
        grader = GameGrader(game=self.game, start=start)
        return Task(
            id=f"{self.name}/{split}/{index}",
            prompt=start.view,
            gold=None,
            solution=None,
            difficulty=0.0,
            grader=grader,
        )

    def size(self, split: str) -> int:
        if split not in SPLITS:
            raise UnknownName("split of games", split, SPLITS)
        return len(self._starts)

    def describe(self) -> dict[str, Any]:
        return {"kind": "games", "settings": {"game": self.game.name}}


class OwnGame(Games):
    """All starts of a user's own game. Raises ConfigError for one that cannot be played."""

    def __init__(self, game: object) -> None:
        self._take_game(check_game(game))

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes, shown as a run begins, on what is not measured."""
        missing = []
        if not self.game.covered:
            missing.append("exploitability (probed, covered)")
        if not self.game.perfect:
            missing.append("perfect moves (perfect)")
        if not missing:
            return ()
        missing_text = " or ".join(missing)
        return (f"note: {self.game.name} is measured by games against a random player, and not by {missing_text}",)

    def describe(self) -> dict[str, Any]:
        """Tells one game from another. A recipe makes the source again from the file that holds the game, not from
        this."""
        return {"kind": "game", "settings": {"name": self.game.name, "rules": self.game.rules}}


def game_grader_of(task: Task) -> GameGrader:
    """The game and the start of a task. Raises ConfigError for a task that is no game."""
    if not isinstance(task.grader, GameGrader):
        raise ConfigError(
            f"task {task.id} is no game; expected --tasks games:NAME, with {', '.join(GAMES)}", code="E_TASKS_NOT_GAME"
        )
    return task.grader
