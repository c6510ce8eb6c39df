"""Somebody else's environment with a policy for each seat: who is asked what, what is earned, who learns, what is
refused. Against the fake of ``verifiers`` and, where it is installed, against the package."""

import json
import subprocess
import sys

import pytest
import torch

from cotrain.data.sources import from_description, task_source
from cotrain.envs.verifiers.multi_agent import Environments, load_environment
from cotrain.recipes.environment import environment
from cotrain.recipes.grpo import grpo
from cotrain.trainer.trainer import CoTrainer
from tests.fakes import HERE, on_the_path
from tests.helpers import TINY
from tests.sentences import refuses

LONGER = '''
import asyncio

import verifiers.v1 as vf

__all__ = ["Rows", "Longer", "Twice"]


class RowsConfig(vf.TasksetConfig):
    count: int = 40


class Say(vf.Task[vf.TaskData]):
    @vf.reward(weight=0.5)
    async def is_even(self, trace) -> float:
        return float(len(trace.last_reply) % 2 == 0)

    @vf.stop
    async def enough(self, trace) -> bool:
        return len(trace.last_reply) > 1000


class Rows(vf.Taskset[Say, RowsConfig]):
    def load(self):
        for n in range(self.config.count):
            yield Say(vf.TaskData(idx=n, prompt=f"Word {n}?", system_prompt="Speak."), self.config.task)


class LongerConfig(vf.EnvConfig):
    one: vf.AgentConfig = vf.AgentConfig()
    two: vf.AgentConfig = vf.AgentConfig(max_turns=2)
    crowd: vf.AgentConfig = vf.AgentConfig()


class Longer(vf.Env[LongerConfig]):
    """The longer of two wins; one is heard by two, and two may speak twice."""

    async def setup(self, agents):
        agents.crowd.trainable = False

    async def run(self, task, agents):
        one = await agents.one.run(task)
        listens = vf.Task(vf.TaskData(idx=0, prompt=None, system_prompt="Listen."))
        async with agents.two.interaction(listens) as two:
            segments = [await two.turn(f"One said {len(one.last_reply)}."), await two.turn("Again.")]
            segments.append(await two.turn("Once more."))
        assert [segment.terminated for segment in segments] == [False, False, True]
        assert segments[1].last_reply == two.trace.last_reply and two.trace.num_turns == 2
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(agents.crowd.run(task))

    async def finalize(self, task, episode):
        one, two = (next(t for t in episode.traces if t.agent.name == name) for name in ("one", "two"))
        longer = len(one.last_reply) - len(two.last_reply)
        one.record_reward("longer", float((longer > 0) - (longer < 0)))
        two.record_reward("longer", float((longer < 0) - (longer > 0)))
'''
TWICE = """
import verifiers.v1 as vf

__all__ = ["Twice"]


class TwiceConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class Twice(vf.Env[TwiceConfig]):
    async def run(self, task, agents):
        for _ in range(2):
            await agents.agent.run(task)
"""
UNEVEN = """
import verifiers.v1 as vf

__all__ = ["Uneven"]
PLAYED = []


class UnevenConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class Uneven(vf.Env[UnevenConfig]):
    async def run(self, task, agents):
        PLAYED.append(len(PLAYED) % 4)
        for _ in range(5 if PLAYED[-1] == 0 else 1):
            trace = await agents.agent.run(task)
            trace.record_reward("paid", float(PLAYED[-1] == 0))

    async def finalize(self, task, episode):
        pass
"""
ODD = """
import verifiers.v1 as vf

__all__ = ["Odd"]


class OddConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class Odd(vf.Env[OddConfig]):
    async def run(self, task, agents):
        trace = await agents.agent.run(task)
        trace.record_reward("paid", float("nan"))
"""
LONG = """
import verifiers.v1 as vf

__all__ = ["Long"]


class LongConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class Long(vf.Env[LongConfig]):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            segments = [await talk.turn(), await talk.turn("word " * 2000), await talk.turn("And?")]
        assert [segment.terminated for segment in segments] == [False, True, True]
        talk.trace.record_reward("paid", 1.0)
"""
FURTHER = {"cotrain_uneven": UNEVEN, "cotrain_odd": ODD, "cotrain_long": LONG}
SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 3, "max_tokens": 12, "lr": 1e-3, "evaluation_tasks": 2}


@pytest.fixture(scope="module", params=["fake", "real"])
def longer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    with on_the_path(folder, request.param, cotrain_longer=LONGER, cotrain_twice=TWICE, **FURTHER):
        yield task_source("environment:cotrain_longer")


def solo_steps(trainer, steps=1):
    done = [trainer.step() for _ in range(steps)]
    trainer.close()
    return done


def by_role(episode):
    found = {}
    for trace in episode.traces:
        found.setdefault(trace.role, []).append(trace)
    return found


def test_each_seat_is_a_policy_that_learns_from_what_the_environment_gives(longer):
    made = environment(**SMALL, tasks=longer, steps=1)
    assert {name: policy.kind for name, policy in made.policies.items()} == {
        "one": "trainable",
        "two": "trainable",
        "others": "frozen",
    }
    trainer = CoTrainer(made)
    before = {name: dict(tensors) for name, tensors in trainer.policies.tensors().items()}
    done = trainer.step()
    after = trainer.policies.tensors()
    moved = {name for name in before if any(not torch.equal(before[name][k], after[name][k]) for k in before[name])}
    trainer.close()
    assert len(done.episodes) == 6 and not any(episode.failure for episode in done.episodes)
    for episode in done.episodes:
        heard = by_role(episode)
        (one,), (two,) = heard["one"], heard["two"]
        assert len(heard["crowd"]) == 2 and len(two.turns) == 2
        first, second = (sum(signal.value for signal in trace.rewards) for trace in (one, two))
        assert first + second in (0.0, 0.5), "zero-sum, and half a point for an even length"
    assert done.row["one/metadata/earnings"] == pytest.approx(done.row["one/reward/earned"])
    assert moved == {name for name in ("one", "two") if not done.row[f"{name}/skipped"]} and moved


def test_one_policy_may_play_all_seats_and_one_seat_may_learn_alone(longer):
    shared = environment(**SMALL, tasks=longer, shared=True)
    assert {role.policy for role in shared.roles.values()} == {"generator", "others"}
    (objective,) = shared.objectives.values()
    assert objective.roles == ("one", "two")
    alone = environment(**SMALL, tasks=longer, learns="two")
    assert [role.policy for role in alone.roles.values()] == ["others", "two", "others"]


def test_who_is_compared_with_whom(longer):
    for compare in ("seat", "prompt"):
        (done,) = solo_steps(CoTrainer(environment(**SMALL, tasks=longer, compare=compare, steps=1)))
        groups = {}
        for trace in (trace for episode in done.episodes for trace in episode.traces):
            groups.setdefault((trace.role, trace.address.task), set()).add((trace.group, trace.prompt_ids))
        for (role, _), found in groups.items():
            prompts = {prompt for _, prompt in found}
            assert len({group for group, _ in found}) == (1 if compare == "seat" or role != "two" else len(prompts))


def test_an_environment_goes_with_another_taskset(longer):
    source = task_source("environment:cotrain_twice+cotrain_longer")
    assert source.size("train") > 20 > source.size("test") > 0
    made = environment(**SMALL, tasks=source, steps=1)
    (done,) = solo_steps(CoTrainer(made))
    for episode in done.episodes:
        assert len(episode.traces) == 2 and {trace.role for trace in episode.traces} == {"agent"}
        (earned,) = {reward.value for trace in episode.traces for reward in trace.rewards}
        assert earned in (0.0, 0.25, 0.5) and len({trace.trajectory_id for trace in episode.traces}) == 1
    apart = environment(**SMALL, tasks=source, steps=1, compare="prompt")
    (done,) = solo_steps(CoTrainer(apart))
    for episode in done.episodes:
        assert {s.value for t in episode.traces for s in t.rewards} <= {0.0, 0.5}
        assert len({trace.trajectory_id for trace in episode.traces}) == 2
    again = from_description(json.loads(json.dumps(source.describe())))
    assert again.get("test", 0).id == source.get("test", 0).id
    with refuses("E_DATA_CHANGED"):
        Environments("cotrain_longer", digest="0")


def test_an_episode_counts_once_however_many_conversations_a_seat_has(longer):
    """One of four episodes is paid for each of its five conversations; the even lengths pay half a point beside."""
    source = task_source("environment:cotrain_uneven+cotrain_longer")
    (done,) = solo_steps(CoTrainer(environment(**SMALL | {"group_size": 4}, tasks=source, steps=1)))
    earned = {}
    for episode in done.episodes:
        (value,) = {reward.value for trace in episode.traces for reward in trace.rewards}
        earned.setdefault(episode.task, []).append(value)
    assert sorted({len(episode.traces) for episode in done.episodes}) == [1, 5]
    values = [value for one in earned.values() for value in one]
    for key in ("agent/metadata/earnings", "agent/reward/earned", "agent/credit/reward/earned"):
        assert done.row[key] == pytest.approx(sum(values) / len(values)), key


def test_a_reward_that_is_no_usable_number_is_counted(longer):
    source = task_source("environment:cotrain_odd+cotrain_longer")
    (done,) = solo_steps(CoTrainer(environment(**SMALL, tasks=source, steps=1)))
    assert not any(episode.failure for episode in done.episodes)
    assert done.row["agent/failed"] == 1.0 and done.row["agent/metadata/earnings"] == 0.0
    assert done.row["failures/agent: reward earned out of range"] == 6


def test_a_conversation_that_outgrows_the_context_is_over(longer):
    source = task_source("environment:cotrain_long+cotrain_longer")
    (done,) = solo_steps(CoTrainer(environment(**SMALL, tasks=source, steps=1)))
    assert {episode.failure for episode in done.episodes} == {None}, done.row
    assert all(trace.rewards and not trace.turns for episode in done.episodes for trace in episode.traces)


def test_few_tasks_are_in_every_split(longer):
    few = Environments("cotrain_longer", {"taskset": {"count": 3}})
    assert [few.size(split) for split in ("train", "validation", "test")] == [3, 3, 3]
    assert few.notes == ["environment:cotrain_longer has 3 tasks, so that none is held out"]


def test_what_cannot_be_played_is_refused_in_one_line(longer, monkeypatch):
    with refuses("E_ENVIRONMENT_NOT_NAMED"):
        environment(**SMALL)
    with refuses("E_UNKNOWN_SEAT", names="cotrain_longer"):
        environment(**SMALL, tasks=longer, learns="thre")
    with refuses("E_ENVIRONMENT_NOT_LOADED", names=("'cotrain_nothing'", "ModuleNotFoundError")):
        task_source("environment:cotrain_nothing")
    task = sys.modules["cotrain_longer"].Say
    for name, value, reason in (
        ("NEEDS_CONTAINER", True, "needs a container"),
        ("toolsets", classmethod(lambda cls, config: ["a tool"]), "has tools"),
        ("plugged_judges", lambda self: ["a judge"], "is graded by judge models"),
        ("setup", lambda self, trace, runtime: None, "sets up a runtime"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(task, name, value)
            with refuses("E_SEAT_NOT_TEXT", names=("'one'", reason)):
                solo_steps(CoTrainer(environment(**SMALL, tasks=longer, steps=1)))


def test_recipes_that_ask_whether_an_answer_is_right_are_refused(longer):
    settings = {name: value for name, value in SMALL.items() if name != "max_tokens"}
    with refuses("E_TASK_NOT_GRADABLE", names="`environment`"):
        solo_steps(CoTrainer(grpo(**settings, tasks=longer, steps=1)))


def test_what_the_environment_raises_breaks_off_its_episode(longer, monkeypatch):
    fails = iter([True])

    async def finalize(self, task, episode):
        if next(fails, False):
            raise ValueError("no verdict")

    monkeypatch.setattr(sys.modules["cotrain_longer"].Longer, "finalize", finalize)
    (done,) = solo_steps(CoTrainer(environment(**SMALL, tasks=longer, steps=1)))
    failures = [episode.failure for episode in done.episodes if episode.failure]
    assert len(failures) == 1 and "ValueError: no verdict" in failures[0]


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    for module in ("verifiers", "verifiers.v1", "verifiers.v1.utils"):
        monkeypatch.setitem(sys.modules, module, None)
    with refuses("E_VERIFIERS_NOT_INSTALLED", names=".[verifiers]"):
        load_environment("longer", {}, 1)


@pytest.mark.whole
def test_a_run_by_the_command_is_stopped_and_resumed(tmp_path):
    """The same as one that was not."""
    (tmp_path / "cotrain_longer.py").write_text(LONGER)
    environ = {"PYTHONPATH": f"{tmp_path}:{HERE}", "PATH": "", "OMP_NUM_THREADS": "1"}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]

    def call(*words):
        command = [sys.executable, "-m", "cotrain.cli.main", *words]
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    run = ["run", "environment", "--tasks", "environment:cotrain_longer", *flags]
    call(*run, "--steps", "3", "--out", str(tmp_path / "whole"))
    call(*run, "--steps", "2", "--out", str(tmp_path / "parts"))
    call("resume", str(tmp_path / "parts"), "--steps", "3")
    rows = [
        [line for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines() if '"kind"' not in line]
        for name in ("whole", "parts")
    ]
    assert len(rows[0]) == 3 and rows[0] == rows[1]
