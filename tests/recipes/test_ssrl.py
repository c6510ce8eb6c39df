"""SSRL: what a world holds, what is read, paid and left out, and the real engine in the model's place."""

from dataclasses import replace
from functools import partial

import pytest

from cotrain.algorithms.contract import Batch
from cotrain.algorithms.policy_gradient import drop_flat_groups
from cotrain.algorithms.samples import sample_of
from cotrain.core.signals import OUTCOME
from cotrain.core.types import Sampling
from cotrain.data.sources import from_description, task_source
from cotrain.formats.role_replies import searched_solution, without_searches
from cotrain.formats.solutions import write_solution
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.ssrl.recipe import ssrl
from cotrain.recipes.ssrl.self_search import parse_searched, search_both_ways, search_within
from cotrain.recipes.ssrl.world import UNKNOWN, World, world_grader_of
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, letter_tasks, spoken
from tests.sentences import refuses

WORLD = World()
TASK = next(t for i in range(99) if len(world_grader_of(t := WORLD.get("train", i)).problem.facts) == 2)  # one look-up
NOUN = world_grader_of(TASK).problem.facts[0].target
TRUE = f"<search> {NOUN}</search><found> {WORLD.library[NOUN]}</found>"
STEPS = write_solution(world_grader_of(TASK).problem.steps, TASK.gold)
FALSE = TRUE.replace(WORLD.library[NOUN], f"There are 1 {NOUN}.")
SMALL = {"model": TINY, "tasks": WORLD, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2, "lr": 1e-3}


def played(*said, protocol=search_within, names=("solver",), task=TASK, **options):
    """The traces of an episode in which a policy says these texts in turn."""
    left = iter(said)
    roles = {
        name: Role(policy="p", prompt="{problem}>", sampling=Sampling(max_tokens=400), parse=parse_searched)
        for name in names
    }
    executor = RolloutRunner(spoken({"p": lambda fields, rng: next(left)}), {"p": ByteRenderer()}, roles, 0)
    [episode] = executor.collect(partial(protocol, **options), [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return episode.traces


def rewards(trace):
    return {s.name: s.value for s in trace.rewards if s.name != "own_result"}


def left_out(trace):
    return [ByteRenderer().decode(trace.token_ids[slice(*s.tokens)]) for s in trace.rewards if s.name == "own_result"]


@pytest.mark.whole
def test_a_world_never_changes_and_its_questions_do_not_tell_it():
    assert WORLD.library == World().library != World(seed=1).library and len(WORLD.library) == 12
    seen = {split: {WORLD.get(split, i).prompt for i in range(200)} for split in ("train", "test")}
    assert seen["train"].isdisjoint(seen["test"])
    for i in range(50):
        task = WORLD.get("test", i)
        assert WORLD.get("test", i) == task and not any(fact in task.prompt for fact in WORLD.library.values())
        assert task.grade(task.solution).value is True
        assert all(world_grader_of(task).grade_steps(task, world_grader_of(task).problem.steps).ok)
    assert (
        world_grader_of(TASK).look_up(f" {NOUN} ") == WORLD.library[NOUN]
        and world_grader_of(TASK).look_up("cars") == UNKNOWN
    )


def test_a_world_is_a_task_source():
    source = task_source("world")
    assert from_description(World(nouns=5, derived=1, seed=3).describe()) == World(nouns=5, derived=1, seed=3)
    assert source.get("validation", 3).id == "world/validation/3"
    with refuses("E_SETTING_RANGE"):
        World(nouns=1)
    with refuses("E_TASKS_UNSUITED"):
        world_grader_of(letter_tasks(1)[0])


def test_searches_stand_in_a_solution_and_its_places_stay():
    text = TRUE + STEPS
    read = searched_solution(text)
    assert read.answer == TASK.gold and read.format_score == 1.0
    assert all(text[s.start : s.end] == s.text for s in read.steps)
    assert without_searches(text).lstrip() == STEPS and len(without_searches(text)) == len(text)
    assert searched_solution("<search> x" + STEPS).reason == "unclosed search"
    assert searched_solution(f"<search> x</search><found> y<step>{STEPS}").reason == "unclosed found"
    assert searched_solution(TRUE).reason == "no steps"


def test_what_it_wrote_as_information_is_marked_with_its_markers():
    [trace] = played(TRUE + STEPS)
    assert rewards(trace) == {"outcome": 1.0, "format": 1.0}
    assert left_out(trace) == [f"<found> {WORLD.library[NOUN]}</found>"]
    assert trace.metadata["supported"] == trace.metadata["gathered"] == 1.0
    [trace] = played(FALSE + STEPS)  # right by memory, whatever it told itself
    assert rewards(trace) == {"outcome": 1.0, "format": 1.0} and trace.metadata["supported"] == 0.0


@pytest.mark.parametrize(
    "said, form",
    [
        (STEPS, 0.0),  # no search
        (TRUE.partition("<found>")[0] + STEPS, 0.0),  # a search that nobody answers
        (TRUE + "<found> x</found>" + STEPS, 0.0),
        (TRUE + TRUE, 0.0),  # no answer
        (TRUE + TRUE + STEPS, 1.0),
    ],
)
def test_format_wants_searches_with_their_information(said, form):
    [trace] = played(said)
    assert rewards(trace)["format"] == form


def test_the_real_engine_answers_and_what_it_says_is_no_sample():
    search = TRUE.partition("<found>")[0]
    [trace] = played(search, STEPS, searches="real")
    assert trace.text == TRUE + STEPS and rewards(trace) == {"outcome": 1.0, "format": 1.0}
    given = ByteRenderer().decode([t for t, mine in zip(trace.token_ids, trace.mask, strict=True) if not mine])
    assert given == f"<found> {WORLD.library[NOUN]}</found>" and left_out(trace) == []
    assert trace.findings["calls"] == ["ok"]
    [trace] = played(search, search, STEPS, searches="real", turns=1)
    assert trace.text.count("<found>") == 1  # the second search is read past


def test_it_is_measured_as_its_own_engine_and_with_the_real_one():
    search = TRUE.partition("<found>")[0]
    wrong = STEPS.replace(f"<answer>{TASK.gold}</answer>", "<answer>1</answer>")
    traces = played(FALSE + wrong, search, STEPS, protocol=search_both_ways, names=("solver", "grounded"))
    found = {trace.role: trace.metadata["correct"] for trace in traces}
    assert found == {"solver": False, "grounded": True} and not any(t.rewards for t in traces)


def learned(made, *texts):
    """The texts that a recipe's objective learns from these answers, and what is only context of the first."""
    traces = [played(text)[0] for text in texts]
    found = made.objectives["generator"].algorithm.credit(Batch(samples=tuple(map(sample_of, traces))), {})[0].samples
    decode = ByteRenderer().decode
    return [decode(sample.token_ids) for sample in found], [decode(ids) for _, ids in found[0].context_tokens]


def test_what_it_told_itself_is_not_learned():
    texts = TRUE + STEPS, FALSE + STEPS.replace(f"<answer>{TASK.gold}", "<answer>1")
    kept, context = learned(ssrl(**SMALL), *texts)
    assert kept == [text.replace(information(text), "") for text in texts]
    assert context == [information(texts[0])]
    assert learned(ssrl(mask=False, **SMALL), *texts) == (list(texts), [])


def information(text):
    return text[text.index("<found>") : text.index("</found>") + len("</found>")]


@pytest.mark.whole
def test_a_run_learns_by_reward_from_its_first_step():
    trainer = CoTrainer(ssrl(steps=2, **SMALL | {"model": "shipped-games"}))
    row = trainer.step().row
    assert row["generator/updates"] == 1 and row["solver/reward/format"] > 0.5 and row["solver/reward/outcome"] > 0.0


def test_controls_and_refusals():
    assert ssrl(mask=False, **SMALL).objectives["generator"].algorithm.edit_after == (drop_flat_groups,)
    assert ssrl(searches="real", **SMALL).schedule.phases[0].options["searches"] == "real"
    assert list(ssrl(format_reward=0.0, **SMALL).objectives["generator"].algorithm.reward_weights) == [OUTCOME]
    with refuses("E_NO_SEARCH", names="words"):
        ssrl(**{**SMALL, "tasks": EASY}, searches="real")
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("ssrl", "'shipped-roles'", "expected 'shipped-games'")):
        ssrl(model="shipped-roles")
    with refuses("E_MODEL_KNOWS_OTHER_TASKS"):
        ssrl(tasks=World(seed=2))
    with refuses("E_SETTING_RANGE"):
        ssrl(turns=0)
    assert replace(WORLD, seed=2).library != WORLD.library
