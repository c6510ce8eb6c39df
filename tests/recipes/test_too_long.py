"""A prompt that does not fit its model's context since it shows what others said: that turn is missing, in every
recipe, and what others said and earned stays."""

from zlib import crc32

import pytest

from cotrain.core.errors import TooLong
from cotrain.core.types import TOO_LONG
from cotrain.prompts.templates import fields_of
from cotrain.recipes import NAMES as SHIPPED
from cotrain.trainer.trainer import CoTrainer
from tests.recipes.test_digests import OTHERS
from tests.recipes.test_recipes import SMALL, built

STEPS = 2


class Narrow:
    """An engine that has no room for a third of the first requests that come when something was said in their
    episode."""

    def __init__(self, engine, narrow, roles):
        self._engine, self._narrow, self._roles, self._problems = engine, narrow, roles, {}
        self._answered, self.refused = set(), set()

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        at = request.address
        episode = (at.step, at.task, at.member)
        problem = self._problems.setdefault(episode, request.fields.get("problem"))
        alone = fields_of(self._roles[at.role].prompt) == {"problem"} and request.fields["problem"] == problem
        unlucky = not alone and not at.path and crc32(str(at).encode()) % 3 == 0
        if unlucky and episode in self._answered and request.policy in self._narrow:
            self.refused.add(str(at))
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
    check_too_long(recipe_of(name))


def check_too_long(recipe, *, alone: bool = True) -> None:
    """``alone``: nothing else fails with a turn that is missing."""
    engines = []
    models = {policy for policy, spec in recipe.policies.items() if spec.head}  # a program has no context

    def narrow(engine):
        engines.append(Narrow(engine, models, recipe.roles))
        return engines[-1]

    trainer = CoTrainer(recipe, wrap_engine=narrow)
    episodes = [episode for _ in range(STEPS) for episode in trainer.step().episodes]
    trainer.close()
    assert {episode.failure for episode in episodes} == {None}
    refused = set().union(*(engine.refused for engine in engines))
    for episode in episodes:
        failed = {str(trace.address) for trace in episode.traces if trace.failure == TOO_LONG}
        own = {at for at in refused if at.startswith(f"{episode.step}:{episode.task}:{episode.member}:")}
        assert own <= failed
        assert failed <= own or not alone


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

    trainer = CoTrainer(recipe_of("alphaproof"), wrap_engine=shallow)
    done = trainer.step()
    trainer.close()
    assert not any(episode.failure for episode in done.episodes)
    assert sum(engine.refused for engine in engines) > 0
