from collections import Counter
from functools import partial
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotrain.config.schedule import LEADING, Phase, Schedule, alternate, constant_schedule, stream_of
from cotrain.recipes.grpo import grpo
from cotrain.recipes.prime import prime
from cotrain.recipes.ssp import ssp
from cotrain.recipes.stepwiser import stepwiser
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses


async def nothing(task, roles):
    """A protocol in which nobody speaks."""


def tango_like():
    generator = Phase(name="generator", protocol=nothing, objectives=("gen",))
    verifier = Phase(name="verifier", protocol=nothing, objectives=("ver",))
    return alternate(generator, verifier, ratio=(3, 1), warmup={"verifier": 4})


def test_warmup_comes_first_and_then_the_cycle():
    names = [tango_like().phase_at(step).name for step in range(13)]
    assert names == ["verifier"] * 4 + ["generator"] * 3 + ["verifier"] + ["generator"] * 3 + ["verifier"] + [
        "generator"
    ]


def test_a_warmup_may_be_one_step_or_none_and_not_fewer():
    phases = [Phase(name=name, protocol=nothing, objectives=(name,)) for name in "ab"]
    for length in (0, 1):
        made = alternate(*phases, ratio=(1, 1), warmup={"b": length})
        assert [made.phase_at(step).name for step in range(3)] == ["b"] * length + ["a", "b", "a"][: 3 - length]
    with refuses("E_WARMUP_RANGE", names=("'b'", "-1")):
        alternate(*phases, ratio=(1, 1), warmup={"b": -1})
    with refuses("E_WARMUP_RANGE", names=("'b'", "-1")):  # the steps of each phase were once counted otherwise than run
        Schedule(phases=tuple(phases), cycle=("a", "b"), warmup=(("b", -1),))


async def bold(task, roles, *, bonus=0.5):
    """A protocol with an option."""


def test_an_option_of_the_protocol_is_bound_and_not_given_to_single():
    with refuses("E_OPTION_NOT_BOUND", names=("bonus", "bold")):
        constant_schedule(bold, "gen", bonus=1.0)
    with refuses("E_UNKNOWN_ARGUMENT", names=("'bonsu'", "'bonus'")):
        constant_schedule(partial(bold, bonus=0.1), "gen", bonsu=1.0)
    with refuses("E_UNKNOWN_ARGUMENT", names=("'group_sizes'", "'group_size'")):
        constant_schedule(bold, "gen", group_sizes=4)


def test_who_goes_over_to_other_objectives_begins_anew_and_nobody_else():
    """Policy ``a`` is taught, then rewarded; ``b`` is judged alike throughout, in the warm-up and after; ``c`` rests
    between the two; ``d`` keeps one of its objectives."""
    policies = {"sft_a": "a", "rl_a": "a", "b": "b", "sft_c": "c", "rl_c": "c", "d": "d", "more_d": "d"}
    taught = Phase(name="taught", protocol=nothing, objectives=("sft_a", "b", "sft_c", "d"))
    judged = Phase(name="judged", protocol=nothing, objectives=("b", "rl_a"))
    both = Phase(name="both", protocol=nothing, objectives=("rl_c", "b", "d", "more_d"))
    made = alternate(taught, judged, both, ratio=(0, 1, 1), warmup={"taught": 3, "judged": 2})
    found = {step: made.due_for_new_optimizer(step, policies) for step in range(12)}
    assert {step: names for step, names in found.items() if names} == {3: ["a"], 5: ["c"]}
    assert not any(tango_like().due_for_new_optimizer(step, {"gen": "g", "ver": "v"}) for step in range(9))
    assert not any(tango_like().due_for_new_optimizer(step, {"gen": "g", "ver": "g"}) for step in range(9)), (
        "a judge goes on"
    )
    assert not constant_schedule(nothing, "a").due_for_new_optimizer(0, {"a": "a"})


def test_planned_updates_are_those_of_any_of_the_objectives():
    schedule = tango_like()
    assert schedule.planned_batches(["gen"], 13) == 7
    assert schedule.planned_batches(["ver"], 13) == 6
    assert schedule.planned_batches(["gen", "ver"], 13) == 13


def test_objectives_that_learn_in_turn_are_an_update_each_of_their_policy():
    phase = Phase(name="both", protocol=nothing, objectives=("gen", "ver"), in_turn=("ver", "gen"))
    schedule = alternate(phase, ratio=(1,))
    assert [schedule.planned_batches(due, 5) for due in (["gen", "ver"], ["gen"], ["other"])] == [10, 5, 0]
    assert ssp(lr_decay="linear").planned_updates("generator", 5) == 10
    assert prime(update="before").planned_updates("generator", 5) == 5


def drawn_from(schedule, step, leading, tasks_of_phase):
    """The stream of a step, and the position of its first task in it."""
    stream = stream_of(schedule.phase_at(step), leading)
    return stream, schedule.position_in_stream(step, leading, tasks_of_phase)


def test_the_steps_of_the_leading_objective_draw_from_one_stream_in_every_recipe():
    schedule = tango_like()
    two_tasks = dict.fromkeys([phase.name for phase in schedule.phases], 2)
    steps = [drawn_from(schedule, step, "gen", two_tasks) for step in (0, 3, 4, 6, 7, 8)]
    assert steps == [("ver", 0), ("ver", 6), (LEADING, 0), (LEADING, 4), ("ver", 8), (LEADING, 6)]
    alone = constant_schedule(nothing, "gen")
    assert [drawn_from(alone, step, "gen", {"train": 2}) for step in (0, 2, 3)] == [steps[2], steps[3], steps[5]]
    both = constant_schedule(nothing, "ver", "gen")
    assert drawn_from(both, 5, "ver", {"train": 2}) == drawn_from(alone, 5, "gen", {"train": 2})


@given(
    ratio=st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any),
    warmup=st.dictionaries(st.sampled_from("abc"), st.integers(0, 5)),
    steps=st.integers(0, 60),
)
def test_steps_are_counted_as_they_would_be_one_by_one(ratio, warmup, steps):
    phases = [
        Phase(name="a", protocol=nothing, objectives=("gen",)),
        Phase(name="b", protocol=nothing, objectives=("ver",)),
        Phase(name="c", protocol=nothing, objectives=("ver", "gen"), in_turn=("gen", "ver")),
    ]
    schedule = alternate(*phases, ratio=tuple(ratio), warmup=warmup)
    played = [schedule.phase_at(step) for step in range(steps)]
    assert list(schedule.steps_by_phase(steps).items()) == list(Counter(phase.name for phase in played).items())

    tasks_of_phase = {"a": 2, "b": 3, "c": 5}
    stream, position = drawn_from(schedule, steps, "gen", tasks_of_phase)
    drawn = [tasks_of_phase[phase.name] for phase in played if stream_of(phase, "gen") == stream]
    assert position == sum(drawn)

    batches_of_phase = {"a": 1, "b": 1, "c": 2}
    planned = sum(batches_of_phase[phase.name] for phase in played)
    assert schedule.planned_batches(["gen", "ver"], steps) == planned


def test_a_late_step_is_placed_without_going_through_those_before_it():
    schedule = tango_like()
    late = 4 + 4 * 10**6
    started = process_time()
    assert drawn_from(schedule, late, "gen", {"generator": 2, "verifier": 2}) == (LEADING, 6 * 10**6)
    assert schedule.planned_batches(["ver"], late) == 4 + 10**6
    assert process_time() - started < 0.1


def test_phases_of_unlike_sizes_draw_each_problem_of_their_stream_once():
    few, many = (Phase(name=name, protocol=nothing, objectives=("gen",)) for name in ("few", "many"))
    schedule = alternate(few, many, ratio=(1, 2))
    tasks_of_phase = {"few": 2, "many": 5}
    positions: list[int] = []
    for step, name in enumerate(["few", "many", "many", "few", "many"]):
        stream, first = drawn_from(schedule, step, "gen", tasks_of_phase)
        assert stream == LEADING
        positions += range(first, first + tasks_of_phase[name])
    assert positions == list(range(2 + 5 + 5 + 2 + 5))


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, 3])
def test_a_judge_and_its_control_are_trained_on_the_problems_of_grpo(seed):
    small = {"tasks": EASY, "model": TINY, "seed": seed, "tasks_per_step": 3}
    drawn = []
    for recipe in (
        grpo(**small),
        stepwiser(**small),
        stepwiser(generator="trained", **small),
        tango(warmup=2, **small),
    ):
        trainer = CoTrainer(recipe)
        steps = [s for s in range(6) if recipe.leading_objective in recipe.schedule.phase_at(s).objectives][:3]
        drawn.append([t.id for s in steps for t in trainer.draw_tasks(recipe.schedule.phase_at(s), s)])
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3] and len(set(drawn[0])) == 9


def test_the_paper_makes_300_generator_and_140_verifier_updates_of_440():
    phases = tango_like().phases
    schedule = alternate(*phases, ratio=(3, 1), warmup={"verifier": 40})
    assert (schedule.planned_batches(["gen"], 440), schedule.planned_batches(["ver"], 440)) == (300, 140)


def test_a_ratio_without_a_number_for_each_phase_is_refused():
    with refuses("E_SCHEDULE_RATIO"):
        alternate(*tango_like().phases, ratio=(3,))
