"""Two agents and one reward: who hears what, what every answer is paid, and what is measured of a team."""

from functools import partial

import pytest

from cotrain.core.errors import ConfigError
from cotrain.core.types import Sampling
from cotrain.learn.contract import Batch
from cotrain.learn.samples import sample_of
from cotrain.methods.magrpo.halves import Halves, halves_grader_of
from cotrain.methods.magrpo.recipe import magrpo
from cotrain.methods.magrpo.teams import AGENTS, cooperate, parse_sum, together_and_apart
from cotrain.rollout.executor import Executor
from cotrain.rollout.role import Role
from cotrain.tasks.sources import from_description, task_source
from cotrain.text.plain import ByteRenderer
from tests.helpers import EASY, TINY, letter_tasks, spoken

SOURCE = Halves(count=2, largest=9)
TASK = SOURCE.get("train", 0)


def numbers(text):
    return [int(part) for part in text.split(", ")]


def honest(fields, rng):
    return str(sum(numbers(fields["seen"])))


def adding(fields, rng):
    heard = 0 if fields["heard"] == "nothing" else int(fields["heard"])
    return f"<answer>{sum(numbers(fields['seen'])) + heard}</answer>"


def played(protocol=cooperate, says=None, **options):
    """The traces of one episode by role; ``says``: programs for some of the roles in the place of honest ones."""
    names = [p + a + b for p in ("", "silent_", "swapped_") for a in AGENTS for b in ("", "_answer")]
    programs = {n: adding if n.endswith("_answer") else honest for n in names} | (says or {})
    prompts = {n: "{seen} {said} {heard}" if n.endswith("_answer") else "{seen}" for n in names}
    parses = {n: parse_sum if n.endswith("_answer") else None for n in names}
    roles = {n: Role(policy=n, prompt=prompts[n], parse=parses[n], sampling=Sampling(max_tokens=9)) for n in names}
    executor = Executor(spoken(programs), dict.fromkeys(names, ByteRenderer()), roles, 0)
    [episode] = executor.play(partial(protocol, **options), [TASK], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return {n: [t for t in episode.traces if t.role == n] for n in names}


def joint(traces):
    return [t.signals[0].value for t in traces]


def test_honest_agents_are_both_right_and_everybody_is_paid():
    found = played(samples=2)
    assert joint(found["alice_answer"]) == joint(found["bob_answer"]) == [1.0] * 4  # two nodes of two
    assert joint(found["alice"]) == joint(found["bob"]) == [0.9, 0.9]
    assert all(t.truth["both"] for t in found["alice_answer"]) and found["alice"][0].truth["tells"] is True
    groups = {t.group for t in found["alice_answer"]}
    assert len(groups) == 2 and groups.isdisjoint(t.group for t in found["bob_answer"])


def test_crossed_actions_make_every_combination_a_node():
    found = played(samples=2, pairing="crossed")
    assert len(found["alice_answer"]) == 4 * 2  # of each of K² nodes, K answers
    assert joint(found["alice_answer"]) == [2.0] * 8  # each is in K joint actions
    assert joint(found["alice"]) == [2 * 0.9] * 2


def test_one_agents_fault_is_both_agents_loss():
    found = played(samples=2, says={"bob": lambda fields, rng: "0"})  # what Alice hears is wrong, so only Bob is right
    assert joint(found["alice_answer"]) == joint(found["bob_answer"]) == [0.5] * 4
    assert joint(found["alice"]) == joint(found["bob"]) == [pytest.approx(0.45)] * 2
    assert not any(t.truth["both"] for t in found["alice_answer"])


def test_each_agent_sees_its_half_and_hears_the_other():
    found = played()
    seen = halves_grader_of(TASK).seen
    shown = {name: ByteRenderer().decode(traces[0].prompt_ids) for name, traces in found.items() if traces}
    assert shown["alice"] == ", ".join(map(str, seen[0])) and shown["bob"] == ", ".join(map(str, seen[1]))
    assert shown["alice_answer"].split() == [*shown["alice"].split(), str(sum(seen[0])), str(sum(seen[1]))]
    assert str(halves_grader_of(TASK).total) not in shown["bob_answer"].split()
    mute = played(silent=True)
    assert joint(mute["alice_answer"]) == [0.0]
    both = played(silent=True, sees="all")
    assert joint(both["alice_answer"]) == joint(both["bob_answer"]) == [1.0]


def test_the_threshold_does_not_end_the_game_unless_it_is_set():
    assert played()["alice_answer"]
    ended = played(threshold=-0.2)  # the authors' default, where no reward is negative
    assert not ended["alice_answer"] and joint(ended["alice"]) == [0.0]


def test_a_team_is_measured_with_and_without_messages_and_swapped():
    found = played(together_and_apart, says={"swapped_alice_answer": lambda fields, rng: "<answer>0</answer>"})
    assert [found[f"{p}alice_answer"][0].truth["correct"] for p in ("", "silent_", "swapped_")] == [True, False, False]
    assert not any(t.signals for traces in found.values() for t in traces)
    made = magrpo(model=TINY)
    assert made.roles["swapped_alice"].policy == "bob" and made.roles["swapped_bob_answer"].policy == "alice"


def test_an_advantage_is_a_return_minus_the_mean_of_its_node():
    left = iter([True, False] * 9)
    says = {"bob_answer": lambda fields, rng: adding(fields, rng) if next(left) else "<answer>0</answer>"}
    found = played(samples=2, says=says)
    learn = magrpo(model=TINY).objectives["bob"].by
    samples = tuple(sample_of(t) for t in (*found["bob"], *found["bob_answer"]))
    credit, _ = learn.credit(Batch(samples=samples), {})
    assert [float(s.advantages[0]) for s in credit.samples] == [0.25, -0.25] * 2  # 1 and 1/2; both messages led to 3/4


def test_halves_are_a_task_source():
    source = task_source("halves")
    assert source.describe() == from_description(source.describe()).describe() and source.guessing_accuracy == 0.25
    assert SOURCE.guessing_accuracy == pytest.approx(9 / 81)
    task = source.get("train", 3)
    assert task.grade(f"<answer>{task.answer}</answer>").value is True
    assert task.grade("<answer>many</answer>").value is False and task.grade("7").reason == "no answer"
    seen = {split: {SOURCE.get(split, i).prompt for i in range(200)} for split in ("train", "test")}
    assert seen["train"].isdisjoint(seen["test"])
    with pytest.raises(ConfigError, match="largest 2"):
        Halves(largest=2)


def test_what_it_refuses():
    with pytest.raises(ConfigError, match="words is not seen by halves"):
        magrpo(tasks=EASY)
    with pytest.raises(ConfigError, match="magrpo: the model 'embedded' was not taught"):
        magrpo(model="embedded")
    with pytest.raises(ConfigError, match="gamma is 2"):
        magrpo(gamma=2.0)
    with pytest.raises(ConfigError, match="not seen by halves"):
        halves_grader_of(letter_tasks(1)[0])
