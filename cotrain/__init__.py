"""cotrain: train several language models together with reinforcement learning.

    import cotrain
    from cotrain.recipes.tango import tango

    cotrain.run(tango(steps=160), out="runs/mine")

What a method is written with most is imported from here: ``from cotrain import Role, Signal, grpo``. Everything else is
imported from its folder, and recipes from ``cotrain.recipes``: ``grpo`` here is the algorithm, and
``cotrain.recipes.grpo`` the recipe. Importing this package is cheap: a name is imported from its module when it is
first asked for. ``__init__.pyi`` is the list of names.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
