"""Settings without effect were taken in silence: a learning rate never reached its value, a phase was never played,
step rewards had a weight and nobody gave them. The run says so, and goes on: it may be lengthened."""

import time
from dataclasses import replace

import pytest

from cotrain.analysis.comparison.arms import make_arm, recipe_of_arm
from cotrain.analysis.comparison.compare import ComparisonPlan, decay_notes, length_notes
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.policies import snapshot
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.runs import run as loop
from cotrain.runs.changes import lengthen_run
from cotrain.runs.fitting import idle_setting_notes
from tests.helpers import EASY, TINY
from tests.runs.test_best import Heard

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1}


def one_note(recipe, **more):
    (note,) = idle_setting_notes(recipe, **more)
    return note


def test_a_warm_up_that_the_run_does_not_reach_the_end_of_is_said():
    note = one_note(grpo(steps=20, lr_warmup=50, **SMALL))
    assert "policies.generator.lr_warmup is 50" in note and "20 updates" in note and "40% of its value" in note
    assert idle_setting_notes(grpo(steps=50, lr_warmup=50, **SMALL)) == []
    assert idle_setting_notes(grpo(steps=20, lr_warmup=50, updates_per_batch=3, **SMALL)) == []
    assert idle_setting_notes(grpo(steps=2, **SMALL)) == []  # a trial, with the warm-up that every run has


def test_a_share_that_is_left_to_step_rewards_which_nobody_gives_is_said():
    judged_by_nobody = {"steps": 8, "warmup": 1, "alpha": 0.25, "steps_judged_by": "none", **SMALL}
    note = one_note(tango(**judged_by_nobody))
    assert "generator gets no step rewards" in note and "0.25 at the start" in note and "--advantage-mix add" in note
    assert idle_setting_notes(tango(**judged_by_nobody, advantage_mix="add")) == []
    assert idle_setting_notes(tango(**{**judged_by_nobody, "steps_judged_by": "oracle"})) == []
    assert idle_setting_notes(grpo(steps=50, steps_judged_by="oracle", lr_warmup=50, **SMALL)) == []


def test_the_warm_up_is_that_of_the_updates_of_each_policy():
    """Forty steps of tango are thirty updates of the generator and ten of its verifier."""
    recipe = tango(steps=40, warmup=0, ratio=(3, 1), lr_warmup=20, **SMALL)
    assert "policies.verifier.lr_warmup is 20, and verifier gets 10 updates" in one_note(recipe)


def test_a_warm_up_begins_again_with_each_iteration():
    recipe = override(grpo(steps=100, lr_warmup=20, **SMALL), ["policies.generator.reset_every=10"])
    assert "10 updates in an iteration" in one_note(recipe)


def test_other_settings_that_take_no_effect_before_the_end_are_said():
    recipe = grpo(steps=20, **SMALL)
    assert "evaluate_every is 30" in one_note(replace(recipe, evaluate_every=30))
    assert "evaluate_every is 8" in one_note(replace(recipe, evaluate_every=8, updates=4))
    assert "keep_every is 50" in one_note(recipe, keep_every=50)
    assert "reset_every is 30" in one_note(override(recipe, ["policies.generator.reset_every=30"]))
    past = snapshot(TINY, of="generator", every=30)
    assert "policies.reference.every is 30" in one_note(
        replace(recipe, policies={**recipe.policies, "reference": past})
    )
    falling = grpo(steps=20, lr_decay="linear", **SMALL)
    assert "learning rate is 0 from there on" in one_note(replace(falling, horizon=10))
    assert idle_setting_notes(replace(falling, horizon=30)) == idle_setting_notes(replace(recipe, horizon=10)) == []


def test_a_snapshot_that_is_taken_once_is_no_first_one():
    """Constitutional's ``before`` is taken where its second stage begins, and never again: a note said that it was
    never taken."""

    def notes_of(past):
        recipe = grpo(steps=100, **SMALL)
        return idle_setting_notes(replace(recipe, policies={**recipe.policies, "reference": past}))

    assert notes_of(snapshot(TINY, of="generator", every=60, first=60)) == []
    assert notes_of(snapshot(TINY, of="generator", every=60)) == []
    (note,) = notes_of(snapshot(TINY, of="generator", every=10, first=100))
    assert "policies.reference.first is 100, and generator gets 100 updates" in note


def test_a_phase_whose_turn_comes_after_the_last_step_is_said():
    recipe = tango(steps=4, warmup=0, ratio=(1, 1), **SMALL)
    generator, verifier = recipe.schedule.phases
    late = replace(generator, name="late")
    cycle = ("generator", "verifier", "generator", "verifier", "late")
    recipe = replace(recipe, schedule=replace(recipe.schedule, phases=(generator, verifier, late), cycle=cycle))
    assert "phase 'late' begins with step 5" in one_note(recipe)
    assert idle_setting_notes(replace(recipe, steps=5)) == []


def test_a_schedule_of_any_length_is_looked_through_at_once():
    """Its steps were counted one by one: twenty seconds before a run of five steps began."""
    recipe = tango(steps=5, warmup=0, ratio=(1, 1), **SMALL)
    warmup = (("verifier", 0), ("generator", 10**8))
    recipe = replace(recipe, schedule=replace(recipe.schedule, warmup=warmup))
    began = time.monotonic()
    assert [note for note in idle_setting_notes(recipe) if f"phase 'verifier' begins with step {10**8 + 2}," in note]
    assert time.monotonic() - began < 5


def test_a_run_says_it_and_may_be_lengthened(tmp_path):
    heard = Heard()
    recipe = override(grpo(steps=1, lr_warmup=9, **SMALL), ["evaluation.splits=[]", "evaluation.greedy=false"])
    loop.start_run(recipe, tmp_path / "run", observer=heard)
    assert [line for line in heard.lines if "lr_warmup is 9" in line] and "lr_warmup is 9" in (
        tmp_path / "run" / "run.log"
    ).read_text()
    lengthen_run(tmp_path / "run", 3)


def test_a_dry_run_says_it(capsys):
    words = ["run", "grpo", "--model", TINY, "--steps", "20", "--lr-warmup", "50", "--out", "unused", "--dry-run"]
    assert main(words) == 0
    assert "lr_warmup is 50" in " ".join(capsys.readouterr().out.replace("#", "").split())


@pytest.mark.parametrize(("equal", "count"), [("batches", 0), ("flops", 1), ("updates", 0)])
def test_a_comparison_says_where_rates_are_zero_before_its_runs_end(equal, count, tmp_path):
    arms = (make_arm("falls", "grpo", {"model": TINY, "lr_decay": "linear"}), make_arm("x", "grpo", {"model": TINY}))
    plan = ComparisonPlan(arms=arms, seeds=1, out=tmp_path, batches=4, equal=equal)
    recipes = {arm.label: recipe_of_arm(arm, {}, plan.run_overrides) for arm in arms}
    notes = decay_notes(plan, recipes)
    assert len(notes) == count and all("arm 'falls'" in note for note in notes)


def test_a_comparison_says_once_what_several_arms_are_too_short_for():
    """A comparison of many arms said the same line once for each."""
    short = grpo(steps=3, **SMALL)
    arms = {"one": replace(short, evaluate_every=10), "two": replace(short, evaluate_every=10), "three": short}
    (note,) = length_notes(arms)
    assert note.startswith("note: evaluate_every is 10") and note.endswith("(arms 'one', 'two')")
