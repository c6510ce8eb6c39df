"""``spiral``, and what a file with a game of your own imports: ``Game`` and ``State``."""

from cotrain.methods.spiral.game import Game as Game
from cotrain.methods.spiral.game import State as State
from cotrain.methods.spiral.recipe import spiral as spiral
