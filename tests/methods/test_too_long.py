"""A prompt that does not fit its model's context since it shows what others said: that turn is missing, in every
recipe, and what others said and earned stays."""

from zlib import crc32

import pytest

from cotrain.core.errors import TooLong
from cotrain.core.types import TOO_LONG
from cotrain.methods import NAMES as SHIPPED
from cotrain.train.trainer import CoTrainer
from tests.methods.test_digests import OTHERS
from tests.methods.test_recipes import SMALL, built

STEPS = 2


class Narrow:
    """An engine that has no room for a third of the first requests that come when something was said in their
    episode."""

    def __init__(self, engine, narrow):
        self._engine, self._narrow, self._answered, self.refused = engine, narrow, set(), 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        at = request.address
        episode = (at.step, at.task, at.member)
        unlucky = not at.path and crc32(str(at).encode()) % 3 == 0
        if unlucky and episode in self._answered and request.policy in self._narrow:
            self.refused += 1
            raise TooLong(f"request {at}: no room")
        completion = await self._engine.sample(request)
        self._answered.add(episode)
        return completion


def recipe_of(name):
    if name not in OTHERS:
        return built(name)
    from cotrain.config.registry import find_recipe
    from tests.helpers import EASY

    given = {"tasks": EASY, **SMALL, **OTHERS[name]}
    if name == "demo":
        del given["tasks"]
    return find_recipe(name)(**given)


@pytest.mark.whole
@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_too_long_fails_alone(name):
    engines, recipe = [], recipe_of(name)
    models = {policy for policy, spec in recipe.policies.items() if spec.head}  # a program has no context

    def narrow(engine):
        engines.append(Narrow(engine, models))
        return engines[-1]

    trainer = CoTrainer(recipe, wrap=narrow)
    refused = 0
    for _ in range(STEPS):
        done = trainer.step()
        assert {episode.failure for episode in done.episodes} <= {None}, done.row
        refused += sum(trace.failure == TOO_LONG for episode in done.episodes for trace in episode.traces)
    trainer.close()
    asked_in_vain = sum(engine.refused for engine in engines)
    assert refused >= asked_in_vain if name == "spiral" else refused == asked_in_vain  # a game without a move is none


class Shallow:
    """An engine that has no room for what goes on from an answer."""

    def __init__(self, engine):
        self._engine, self.refused = engine, 0

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        if request.continues is not None:
            self.refused += 1
            raise TooLong(f"request {request.address}: no room")
        return await self._engine.sample(request)


@pytest.mark.whole
def test_a_chain_that_outgrows_the_context_is_a_dead_end():
    engines = []

    def shallow(engine):
        engines.append(Shallow(engine))
        return engines[-1]

    trainer = CoTrainer(recipe_of("alphaproof"), wrap=shallow)
    done = trainer.step()
    trainer.close()
    assert not any(episode.failure for episode in done.episodes)
    assert sum(engine.refused for engine in engines) > 0
