"""A reward that nobody gives, a protocol that asks nobody, a forgotten await, rewards of 1e300, counts of -1 and an
objective that never comes due ended with rc 0 and without a word, since every alarm waited for ten rows."""

import math
from dataclasses import replace

import pytest

from cotrain import api
from cotrain.algorithms.grpo import GRPO as by_grpo
from cotrain.algorithms.policy_gradient import KLPenalty
from cotrain.algorithms.ppo import PPO
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.config.recipe import Objective, check_due
from cotrain.config.registry import find_recipe
from cotrain.config.schedule import constant_schedule
from cotrain.core.signals import FORMAT, OUTCOME, STEP, Signal, gives
from cotrain.metrics.alarms import check_rows
from cotrain.recipes import NAMES as SHIPPED
from cotrain.recipes.cooper import cooper
from cotrain.recipes.grpo import grpo
from cotrain.recipes.prime.implicit_prm import Prime
from cotrain.recipes.prime.recipe import prime
from cotrain.recipes.tango import tango
from cotrain.rollout.protocols import solve
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, Heard, Talks
from tests.sentences import command_refuses, refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 1, "lr": 1e-3}


def played(protocol, steps=3, reward_weights=None):
    """GRPO with another protocol, and other signals to learn from."""
    made = grpo(steps=steps, kl=0.0, **SMALL)
    by = by_grpo(reward_weights=reward_weights or {OUTCOME: 1.0})
    return replace(
        made,
        objectives={"generator": Objective(policy="generator", role="solver", algorithm=by)},
        schedule=constant_schedule(protocol, "generator", name="generator"),
        evaluation=replace(made.evaluation, group_size=1, greedy=False, splits=()),
    )


def rows_of(recipe):
    trainer = CoTrainer(recipe)
    return [trainer.step().row for _ in range(recipe.steps)]


def alarms_of(recipe, **how):
    return {alarm.band: alarm for alarm in check_rows(rows_of(recipe), **how)}


KIND, PROMISED = Signal("kind"), Signal("promised")


@gives(OUTCOME.to("solver"), KIND.to("solver"), STEP.to("solver"), PROMISED.to("solver"))
async def graded(task, roles):
    """Two kinds of reward, of which one is equal for all, and two that are declared and never given."""
    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, float(solution.address.member % 2))
    solution.reward(KIND, 1.0)


@pytest.mark.whole
def test_a_reward_that_is_declared_and_never_given_is_named_within_three_steps():
    alarm = alarms_of(played(graded, reward_weights={PROMISED: 1.0}))["no samples"]
    assert (alarm.step, alarm.value) == (2, 3.0)
    assert "left out: no promised 24" in alarm.line()
    assert "reads the signal 'promised' and no trace has it" in alarm.line()


@pytest.mark.whole
def test_a_short_run_is_told_at_its_end_and_in_its_report(tmp_path, capsys):
    heard = Heard()
    outcome = api.run(played(graded, steps=1, reward_weights={PROMISED: 1.0}), tmp_path / "run", observer=heard)
    assert [line for line in heard.lines if "no samples" in line and "promised" in line]
    assert [alarm["band"] for alarm in outcome.summary["alarms"]] == ["no samples"]
    assert "reads the signal" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.whole
def test_what_never_varies_and_what_nobody_gives_is_named():
    alarms = alarms_of(played(graded, steps=5, reward_weights={OUTCOME: 1.0, KIND: 0.5, STEP: 0.1}))
    assert alarms["no spread"].key == "generator/advantage/kind" and alarms["no spread"].step == 4
    assert alarms["no such signal"].key == "generator/coverage/step" and alarms["no such signal"].step == 2
    assert not alarms_of(played(graded, steps=5))


@gives(OUTCOME.to("solver"))
async def equal(task, roles):
    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, 1.0)


@pytest.mark.whole
def test_equal_rewards_are_named():
    alarms = alarms_of(played(equal))
    assert set(alarms) == {"constant reward"} and alarms["constant reward"].step == 0
    assert "No group has two different rewards" in alarms["constant reward"].advice


def test_answers_that_nobody_can_read_are_named():
    recipe = override(played(solve), ["roles.solver.sampling.max_tokens=1"])
    (alarm,) = alarms_of(recipe).values()  # the cause alone: they are cut off
    assert (alarm.band, alarm.key) == ("mostly cut off", "solver/truncated") and "raise `--max-tokens`" in alarm.advice


@gives(OUTCOME.to("solver"))
async def huge(task, roles):
    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, [1e300, -math.inf, math.nan, 2e6][solution.address.member])


@pytest.mark.whole
def test_rewards_out_of_range_are_failures_with_a_reason():
    (row,) = rows_of(played(huge, steps=1))
    assert row["failures/solver: reward outcome out of range"] == 8 and row["generator/credit/samples"] == 0
    told = alarms_of(played(huge))["no samples"].advice
    assert "was given no trace that had not failed: 'solver: reward outcome out of range'" in told


@gives(OUTCOME.to("solver"))
async def silent(task, roles): ...


@gives(OUTCOME.to("solver"))
async def forgetful(task, roles):
    roles.solver(problem=task.prompt)


@gives(OUTCOME.to("solver"), KIND.to("solver"))
async def half_forgetful(task, roles):
    await graded(task, roles)
    roles.solver.many(2, problem=task.prompt)


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    ("protocol", "code"),
    [
        (silent, "E_NO_ROLE_ASKED: 'silent' | 8 episodes"),
        (forgetful, "E_TOO_MANY_FAILURES: 1 call of a role was not awaited"),
        (half_forgetful, "E_TOO_MANY_FAILURES: 2 calls of roles were not awaited"),
    ],
    ids=["silent", "forgetful", "half_forgetful"],
)
def test_a_protocol_that_asks_nobody_is_told_after_the_first_step(protocol, code, tmp_path):
    with refuses(code):
        api.run(played(protocol), tmp_path / "run")


def refuse(change, code):
    with refuses(code):
        change()


@pytest.mark.parametrize("setting", ["group_size=-1", "tasks=0", "tasks=-1"])
def test_counts_below_one_are_refused(setting):
    name, _, value = setting.partition("=")
    refuse(lambda: override(tango(), [f"schedule.phases.0.{setting}"]), f"E_PHASE_SIZE: {name} is {value}")


def test_no_review_at_all_is_refused():
    refuse(lambda: override(tango(), ["schedule.phases.1.options.reviews=-1"]), "E_OPTION_RANGE: reviews | -1")
    refuse(lambda: override(tango(), ["evaluation.options.reviews=0"]), "E_OPTION_RANGE: evaluation | reviews")


def test_a_solver_that_does_not_see_the_problem_is_refused():
    refuse(lambda: override(grpo(), ["roles.solver.prompt=Solve it."]), "E_PROMPT_WITHOUT_PROBLEM: no field")


def test_a_policy_that_is_its_own_reference_is_refused():
    made = grpo(kl=0.0)
    own = Objective(
        policy="generator", role="solver", algorithm=by_grpo(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("generator"))
    )
    refuse(lambda: replace(made, objectives={"generator": own}), "E_REFERENCE_IS_ITSELF: 'generator'")


def test_weights_that_are_all_zero_are_refused():
    refuse(lambda: by_grpo(reward_weights={OUTCOME: 0.0, FORMAT: 0.0}), "E_REWARD_WEIGHTS_ZERO")
    refuse(lambda: PPO(reward_weights={OUTCOME: 0.0}), "E_REWARD_WEIGHTS_ZERO")
    refuse(lambda: Prime(outcome_weight=0.0, process_weight=0.0), "E_WEIGHTS_ALL_ZERO")
    refuse(
        lambda: override(grpo(), ["objectives.generator.algorithm.reward_weights.outcome=0"]),
        "E_REWARD_WEIGHTS_ZERO",
    )


def test_an_objective_that_never_comes_due_is_refused_in_the_words_of_each_command(tmp_path, capsys):
    refuse(lambda: check_due(tango(steps=20)), "E_OBJECTIVE_NEVER_DUE: 'generator' | none of the 20 steps | step 41")
    refuse(lambda: prime(prm="frozen"), "E_PRM_NEVER_TRAINED: never trains the reward model")
    check_due(prime(prm="frozen", warmup=5))
    check_due(cooper())
    code = "E_OBJECTIVE_NEVER_DUE: 'generator' | --steps 41 | --warmup 6"
    command_refuses(["run", "tango", "--steps", "20", "--model", TINY, "--out", tmp_path / "run"], code, capsys)
    assert not (tmp_path / "run").exists()
    command_refuses(
        ["compare", "grpo", "tango", "--batches", "6", "--out", str(tmp_path / "two")],
        "E_OBJECTIVE_NEVER_DUE: 'tango' | --batches 41 | tango:warmup=1",
        capsys,
    )
    check_due(tango(steps=20, warmup=6))
    check_due(tango(steps=6, warmup=1))
    assert main(["run", "tango", "--steps", "20", "--out", "x", "--dry-run"]) == 2


@pytest.mark.whole
@pytest.mark.parametrize("name", SHIPPED)
def test_a_method_as_it_ships_has_steps_enough_for_all_that_learns(name):
    check_due(find_recipe(name)())


@gives(OUTCOME.to("solver"))
async def wordy(task, roles):
    solution = await roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, "right")


@gives(OUTCOME.to("solver"))
async def hasty(task, roles):
    solution = roles.solver(problem=task.prompt)
    solution.reward(OUTCOME, float(len(solution.text)))


@pytest.mark.whole
def test_a_reward_that_is_no_number_ends_the_run_in_one_line():
    with refuses("E_SIGNAL_NOT_NUMBER", names=("'wordy'", "'outcome'", "'solver'", "str")):
        rows_of(played(wordy, steps=1))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_call_that_is_not_awaited_is_named_with_its_line():
    line = hasty.__code__.co_firstlineno + 3
    with refuses("E_TOO_MANY_FAILURES", names=(f"test_runs_that_train_nothing.py, line {line}", "AttributeError")):
        rows_of(played(hasty, steps=1))


def test_problems_without_a_right_answer_are_refused_where_they_would_be_graded():
    with refuses("E_TASK_NOT_GRADABLE"):
        rows_of(replace(played(solve, steps=1), tasks=Talks()))
