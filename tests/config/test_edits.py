"""Typed changes of a recipe: the same as what people type, checked, and remembered for a run that goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotrain.config.edits import overrides_since, policy_overrides, with_policies, with_roles, with_sampling
from cotrain.config.override import override
from cotrain.recipes.tango import tango
from cotrain.runs.directory import resolved_json
from tests.helpers import EASY, TINY
from tests.sentences import refuses

POLICIES = ("generator", "verifier")


@pytest.fixture
def recipe():
    return tango(model=TINY, tasks=EASY, steps=1)


EDITS = {
    "rows": lambda recipe: with_policies(recipe, POLICIES, rows=8),
    "two": lambda recipe: with_policies(recipe, POLICIES, offload=True, gradient_checkpointing=True),
    "packing": lambda recipe: with_policies(recipe, POLICIES[:1], pack_weights=False),
    "prompt": lambda recipe: with_roles(recipe, ["solver"], prompt='Say "{problem}"\n=', answer_format="boxed"),
    "sampling": lambda recipe: with_sampling(recipe, ["solver", "verifier"], max_tokens=7, temperature=0.5),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_change_is_what_its_text_says_and_is_remembered(recipe, name):
    changed = EDITS[name](recipe)
    texts = overrides_since(recipe, changed)
    typed_by_hand = override(recipe, texts)
    assert texts
    assert resolved_json(typed_by_hand) == resolved_json(changed) != resolved_json(recipe)
    assert typed_by_hand.origin == changed.origin


def test_the_text_of_a_change_by_hand(recipe):
    changed = with_policies(recipe, POLICIES, offload=True)
    assert overrides_since(recipe, changed) == ["policies.generator.offload=true", "policies.verifier.offload=true"]
    assert policy_overrides(POLICIES, offload=True) == overrides_since(recipe, changed)
    assert overrides_since(recipe, with_sampling(changed, ["solver"], max_tokens=7))[-1] == (
        "roles.solver.sampling.max_tokens=7"
    )


def test_others_stay_and_keep_their_places(recipe):
    changed = with_policies(recipe, ["verifier"], rows=8)
    assert list(changed.policies) == list(recipe.policies)
    assert changed.policies["generator"] is recipe.policies["generator"]
    assert changed.policies["verifier"].rows == 8


def test_a_change_is_checked_like_any_recipe(recipe):
    with refuses("E_POLICY_SETTING_RANGE", names="rows is 0"):
        with_policies(recipe, ["generator"], rows=0)
    with refuses("E_ROLE_SETTING_UNSUITED", names=("'verifier'", "'boxed'")):
        with_roles(recipe, ["verifier"], answer_format="boxed")


def test_a_bare_recipe_has_nothing_to_remember_it_in(recipe):
    bare = replace(recipe, origin=None)
    changed = with_policies(bare, ["generator"], rows=8)
    assert changed.policies["generator"].rows == 8 and changed.origin is None
    assert overrides_since(bare, changed) == []
