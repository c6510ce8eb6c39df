"""``spiral``, and what a file with a game of your own imports: ``Game`` and ``State``."""

from cotrain_zoo.spiral.game import Game as Game
from cotrain_zoo.spiral.game import State as State
from cotrain_zoo.spiral.recipe import spiral as spiral
