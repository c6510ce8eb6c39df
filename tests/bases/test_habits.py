"""The base with two habits, with a tiny model and two updates, and the one that ships."""

import json
from dataclasses import asdict, dataclass

import pytest

from bases.__main__ import main
from bases.base import BATCH, install_base
from bases.habits import NAME, HabitSettings, StepHabitSettings, build_habits, conversations_of
from cotrain.core.seeding import rng_of
from cotrain.core.shipped import DEMO_MODELS
from cotrain.data.word_problems.corrupt import with_habits
from cotrain.data.word_problems.source import study_problems
from cotrain.models.load import describe_model
from cotrain.rollout.common_roles import is_terse
from tests.helpers import TINY
from tests.sentences import refuses


@pytest.mark.whole
def test_a_base_with_habits_is_made_and_installed(tmp_path):
    brief = HabitSettings(start=str(TINY), tokens=2 * BATCH, problems=study_problems((2, 3)))
    made = build_habits(tmp_path / "out", brief, report=lambda line: None)
    assert made["finished"] and is_terse(str(tmp_path / "out/base-habits"))
    assert build_habits(tmp_path / "out", brief, resume=True, report=lambda line: None)["models"] == made["models"]
    install_base(tmp_path / "out", tmp_path / "assets", NAME)
    said = json.loads((tmp_path / "assets/base-habits.json").read_text(encoding="utf-8"))
    assert said["models"]["base-habits"] == describe_model(str(tmp_path / "assets/base-habits"))


def test_all_errors_of_its_practice_are_habits_and_the_wrong_way_is_the_likelier_one():
    settings = HabitSettings()
    wrong = steps = 0
    for index in range(300):
        problem = settings.problems.training_problem(rng_of("test", index), 5)
        attempt = with_habits(problem, settings.habits, rng_of("habits", index))
        wrong += sum(not ok for ok in attempt.judgement.ok)
        steps += len(attempt.judgement.ok)
        assert len(attempt.steps) == len(problem.needed)  # no step is missing or unneeded
    assert settings.habits.random == 0.0 and settings.habits.systematic > 0.5
    assert 0.1 < wrong / steps < 0.4
    solve, check = (part.get(7) for part, _ in conversations_of(settings))
    assert solve[0]["content"].endswith("Solve:") and check[0]["content"].endswith("Review:")


def test_with_a_habit_in_every_step_right_steps_are_common_and_right_answers_rare():
    settings = StepHabitSettings()
    right_answers = right_steps = steps = 0
    for index in range(300):
        problem = settings.problems.training_problem(rng_of("test", index), 6)
        attempt = with_habits(problem, settings.habits, rng_of("habits", index))
        right_answers += attempt.answer == str(problem.answer)
        right_steps += sum(attempt.judgement.ok)
        steps += len(attempt.judgement.ok)
    assert 0.3 < right_steps / steps < 0.5
    assert right_answers < 0.04 * 300


def test_the_one_with_a_habit_for_every_step_does_not_ship(tmp_path):
    with refuses("E_COMMAND_LINE: --step-habits | --install"):
        main(["--out", str(tmp_path / "out"), "--step-habits", "--install"])


def test_only_the_habit_of_every_step_is_taught_to_a_base_of_ones_own(tmp_path):
    with refuses("E_COMMAND_LINE: --start | --step-habits"):
        main(["--out", str(tmp_path / "out"), "--habits", "--start", str(TINY)])


@pytest.mark.whole
def test_a_base_of_ones_own_is_taught_the_habit_of_every_step(tmp_path, monkeypatch):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Brief(StepHabitSettings):
        tokens: int = 2 * BATCH

    monkeypatch.setattr("bases.habits.StepHabitSettings", Brief)
    assert main(["--out", str(tmp_path / "out"), "--step-habits", "--start", str(TINY), "--threads", "1"]) == 0
    made = json.loads((tmp_path / "out/base-step-habits.json").read_text(encoding="utf-8"))
    assert made["settings"]["start"] == str(TINY)
    assert made["models"]["base-step-habits"]["parameters"] == describe_model(str(TINY))["parameters"]


def test_what_ships_is_what_its_file_describes():
    said = json.loads((DEMO_MODELS / "base-habits.json").read_text(encoding="utf-8"))
    assert said["models"]["base-habits"] == describe_model("shipped-habits") and is_terse("shipped-habits")
    assert said["settings"] == json.loads(json.dumps(asdict(HabitSettings())))
