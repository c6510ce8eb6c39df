"""Tic-tac-toe: three in a row on a board of nine. With perfect play it is a draw.

Cells are a1 … c3, columns by letter and rows by number. Games start on the empty board and after every first move. Its
positions are too many to be asked for one by one, so it is not ``covered`` and nothing is said of exploitability.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotrain_zoo.spiral.game import Game, State

CELLS = tuple(f"{column}{row}" for row in "123" for column in "abc")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@dataclass(frozen=True, slots=True)
class TicTacToe:
    """A board, row by row; X moves first, and player 0 is X where the board was empty at the start."""

    board: str = "." * 9
    first: int = 0  # player who is X

    @property
    def mark(self) -> str:
        return "X" if self.board.count("X") == self.board.count("O") else "O"

    @property
    def winner(self) -> str | None:
        for cells in LINES:
            marks = "".join(self.board[cell] for cell in cells)
            if marks in ("XXX", "OOO"):
                return marks[0]
        return None

    @property
    def mover(self) -> int | None:
        if not self.moves:
            return None
        return self.first if self.mark == "X" else 1 - self.first

    @property
    def moves(self) -> tuple[str, ...]:
        if self.winner:
            return ()
        return tuple(cell for cell, mark in zip(CELLS, self.board, strict=True) if mark == ".")

    @property
    def payoff(self) -> float:
        if self.winner is None:
            return 0.0
        return 1.0 if (self.winner == "X") == (self.first == 0) else -1.0

    @property
    def view(self) -> str:
        rows = " / ".join(" ".join(self.board[i : i + 3]) for i in (0, 3, 6))
        return f"Board {rows}. You are {self.mark}."

    def after_move(self, move: str) -> TicTacToe:
        place = CELLS.index(move)
        return TicTacToe(self.board[:place] + self.mark + self.board[place + 1 :], self.first)


def start_states() -> tuple[State, ...]:
    """The empty board, and the nine on which player 0 answers a first move."""
    return (TicTacToe(), *(TicTacToe(first=1).after_move(cell) for cell in CELLS))


TICTACTOE = Game(
    name="tictactoe",
    rules=(
        "Tic-tac-toe. Two players, X and O, fill the cells of a board in turn; X begins. Cells have a column, a to c, "
        "and a row, 1 to 3, and rows are shown from 1 to 3. Three of one's own marks in a row, a column or a diagonal "
        "win."
    ),
    stake=1.0,
    starts=start_states,
    probed=lambda start: (start,),
    perfect=True,
)
