"""An agent of the user's as the rollout: what it asks over HTTP becomes episodes whose sampled tokens are learned; what
it does wrong is counted."""

import asyncio
import gc
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from cotrain.algorithms.contract import Batch, split_context
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.samples import sample_of
from cotrain.core.user_code import load_file
from cotrain.metrics.alarms import check_rows
from cotrain.metrics.heldout import measure_metadata
from cotrain.metrics.steps import role_metrics
from cotrain.recipes.agent import ROLLOUT_REWARD, ROLLOUT_VALUE, SEQUENCES, agent, make_agent_protocol
from cotrain.trainer.evaluation import failed_shares
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, RandomLatency
from tests.sentences import refuses

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
OWN = '''
import asyncio
import json
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request


GIVEN_UP = threading.Event()


def post(base_url, api_key, timeout=60, **body):
    headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)["choices"][0]


def say(base_url, api_key, model, messages, **more):
    """The conversation with the answer."""
    return [*messages, post(base_url, api_key, model=model, messages=messages, **more)["message"]]


async def solve(problem, base_url, api_key):
    """The planner speaks twice in one conversation, and the coder once, at the same time as the second."""
    ask = [{"role": "system", "content": "Plan."}, {"role": "user", "content": problem}]
    plan = await asyncio.to_thread(say, base_url, api_key, "planner", ask, max_tokens=8)
    ask = [{"role": "user", "content": plan[-1]["content"]}]
    more, code = await asyncio.gather(
        asyncio.to_thread(say, base_url, api_key, "planner", [*plan, {"role": "user", "content": "Go on."}]),
        asyncio.to_thread(say, base_url, api_key, "coder", ask, temperature=0),
    )
    return more[-1]["content"] + code[-1]["content"]


def value(task, answer):
    return {"planner": len(answer) % 7, "coder": answer.count("1") + len(answer) / 100}


def once(problem, base_url, api_key, **more):
    return say(base_url, api_key, "solver", [{"role": "user", "content": problem}], **more)[-1]["content"]


LEFT = [5, 1, 1, 1]  # questions of the next rollouts


def asks(problem, base_url, api_key):
    """One rollout asks five times, each time anew, and the others once."""
    count = LEFT.pop()
    for _ in range(count):
        once(problem, base_url, api_key)
    return str(count)


def mostly_raises(problem, base_url, api_key):
    """Three of four rollouts fail after the model spoke."""
    if asks(problem, base_url, api_key) != "5":
        raise ValueError("mine")
    return "5"


def right(problem, base_url, api_key):
    once(problem, base_url, api_key)
    return json.load(open(os.environ["ANSWERS"]))[problem]


def edits(problem, base_url, api_key):
    """Goes on from its first answer with other words in it."""
    first = say(base_url, api_key, "solver", [{"role": "user", "content": problem}])
    changed = [first[0], {"role": "assistant", "content": "Changed."}, {"role": "user", "content": "And?"}]
    say(base_url, api_key, "solver", [*first, {"role": "user", "content": "And?"}])
    say(base_url, api_key, "solver", changed)


def dawdles(problem, base_url, api_key):
    messages = [{"role": "user", "content": problem}]
    for _ in range(2):
        time.sleep(random.random() * 0.02)
        messages = [*say(base_url, api_key, "solver", messages), {"role": "user", "content": "And?"}]
    return messages[-2]["content"]


def raises(problem, base_url, api_key):
    once(problem, base_url, api_key)
    raise KeyError("mine")


def exits(problem, base_url, api_key):
    once(problem, base_url, api_key)
    sys.exit(3)


RELEASED = threading.Event()


def hangs(problem, base_url, api_key):
    once(problem, base_url, api_key)
    RELEASED.wait(60)


async def waits(problem, base_url, api_key):
    try:  # on a busy machine it may be given up before its request is answered
        await asyncio.to_thread(once, problem, base_url, api_key)
        await asyncio.sleep(600)
    finally:
        open(os.environ["CANCELLED"], "a").write("x")


def silent(problem, base_url, api_key):
    once(problem, base_url, api_key)


def nags(problem, base_url, api_key):
    while True:
        once(problem, base_url, api_key)


def blunders(problem, base_url, api_key):
    once(problem, base_url, api_key)
    once(problem, base_url, api_key, temperature="hot")


def recovers(problem, base_url, api_key):
    """What is refused is no failure where the agent goes on."""
    for more in ({"tools": [{"type": "function"}]}, {"n": 2}, {"max_tokens": 10**9, "stop": 1}):
        try:
            once(problem, base_url, api_key, **more)
        except urllib.error.HTTPError as error:
            assert error.code == 400 and json.load(error)["error"]["param"] in more
    answer = once(problem, base_url, api_key)
    tools = [{"type": "function", "function": {"name": "look", "description": problem * 9_000}}]
    for text, more in ((problem * 500, {}), (problem * 9_000, {}), (problem, {"tools": tools})):
        try:
            once(text, base_url, api_key, **more)
        except urllib.error.HTTPError as error:
            assert error.code == 400 and json.load(error)["error"]["code"] == "context_length_exceeded"
        else:
            raise AssertionError("it was not refused")
    return answer


def impatient(problem, base_url, api_key):
    try:
        once(problem, base_url, api_key, timeout=0.2)
    except TimeoutError:
        assert GIVEN_UP.wait(30), "the engine still works for nobody"
        return once(problem, base_url, api_key)


def stranger(problem, base_url, api_key):
    once(problem, base_url, "another key")


if __name__ == "__main__":
    print(once(sys.stdin.read(), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]))
'''
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 3, "lr": 1e-3, "evaluation_tasks": 2}
LIMITS = {"requests": 3, "seconds": 60.0, "max_tokens": 24, "at_once": 4}


def line_of(text, words):
    return next(number for number, line in enumerate(text.splitlines(), 1) if words in line)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.py"
    path.write_text(OWN)
    return path


@pytest.fixture(scope="module")
def functions(own):
    return load_file(str(own), "the test")


@pytest.fixture(scope="module")
def executor(functions):
    """Of one role, ``solver``."""
    trainer = CoTrainer(agent(**SMALL, agent=functions.once, steps=1))
    yield trainer.runner
    trainer.close()


class Slow:
    """An engine that never answers the first request, and says when that is cancelled."""

    def __init__(self, engine, given_up):
        self._engine, self.first, self._given_up = engine, True, given_up

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        if self.first:
            self.first = False
            try:
                await asyncio.sleep(600)
            finally:
                self._given_up.set()
        return await self._engine.sample(request)


class Recorder:
    """Notes what the engine samples, by the address of the request."""

    def __init__(self, engine):
        self._engine, self.sampled = engine, {}

    def __getattr__(self, name):
        return getattr(self._engine, name)

    async def sample(self, request):
        completion = await self._engine.sample(request)
        self.sampled[str(request.address)] = (request, completion)
        return completion


def play(executor, program, reward=None, tasks=1, group_size=1, **limits):
    protocol = make_agent_protocol(program, reward, ("solver",), **(LIMITS | limits))
    return executor.collect(protocol, [EASY.get("train", k) for k in range(tasks)], step=0, group_size=group_size)


def reasons(episodes):
    return {trace.failure for episode in episodes for trace in episode.traces}


@pytest.mark.whole
def test_the_tokens_that_were_sampled_are_what_each_role_learns(own):
    recorders = []

    def record(engine):
        recorders.append(Recorder(engine))
        return recorders[0]

    given = {"agent": f"{own}:solve", "reward": f"{own}:value", "models": "planner,coder", "max_tokens": 24}
    trainer = CoTrainer(agent(**SMALL, **given, steps=1), wrap_engine=record)
    before = {name: dict(tensors) for name, tensors in trainer.policies.tensors().items()}
    done = trainer.step()
    after, sampled = trainer.policies.tensors(), recorders[0].sampled
    moved = {name for name in before if any(not torch.equal(before[name][k], after[name][k]) for k in before[name])}
    decode = trainer.policies.renderers["planner"].decode
    trainer.close()
    assert len(done.episodes) == 6 and len(sampled) == 18 and moved == {"planner", "coder"}
    for episode in done.episodes:
        assert [trace.role for trace in episode.traces] == ["coder", "planner"] and not episode.failure
        (coder, planner), answer = episode.traces, ""
        assert [len(trace.turns) for trace in (coder, planner)] == [0, 2], "one sequence for two requests"
        for trace in (planner, coder):
            assert trace.policy == trace.role and trace.failure is None and SEQUENCES.require(trace) == 1
            address = str(trace.address)
            names = [address, address + "/1"] if trace.turns else [address]
            parts = [sampled[name] for name in sorted(n for n in sampled if n.startswith(address))]
            assert len(parts) == len(names)
            ranges = [(turn.start, turn.end) for turn in trace.turns] or [(0, len(trace.token_ids))]
            whole = (*trace.prompt_ids, *trace.token_ids)
            for (request, completion), (start, end) in zip(parts, ranges, strict=True):
                assert trace.token_ids[start:end] == completion.token_ids
                assert trace.logprobs[start:end] == completion.logprobs
                assert whole[: len(trace.prompt_ids) + start] == request.prompt_ids
                assert request.sampling.temperature == 1.0, "the run's own, whatever the agent asks for"
            assert trace.role == "coder" or len(parts[0][1].token_ids) <= 8
            answer += decode(parts[-1][1].token_ids)
        values = {trace.role: trace.rewards[0].value for trace in episode.traces}
        assert values == {"planner": len(answer) % 7, "coder": answer.count("1") + len(answer) / 100}


def test_the_grader_grades_the_answer(executor, functions, tmp_path, monkeypatch):
    tasks = [EASY.get("train", k) for k in range(3)]
    answers = [tasks[0].gold, f"So \\boxed{{{tasks[1].gold}}}", "-1"]
    written = {task.prompt: answer for task, answer in zip(tasks, answers, strict=True)}
    (tmp_path / "answers.json").write_text(json.dumps(written))
    monkeypatch.setenv("ANSWERS", str(tmp_path / "answers.json"))
    values = [episode.traces[0].rewards[0].value for episode in play(executor, functions.right, tasks=3)]
    assert values == [1.0, 1.0, 0.0]


def test_a_conversation_that_does_not_extend_is_a_sequence_of_its_own(executor, functions):
    (episode,) = play(executor, functions.edits, reward=lambda task, answer: 2.0)
    first, second = episode.traces
    assert [len(first.turns), len(second.turns)] == [2, 0]
    assert [SEQUENCES.require(trace) for trace in episode.traces] == [2, 2]
    assert [[reward.value for reward in trace.rewards] for trace in episode.traces] == [[2.0], [2.0]]
    assert first.group == second.group and second.prompt_ids != first.prompt_ids


@pytest.mark.whole
def test_what_is_sampled_does_not_depend_on_how_long_an_agent_takes(functions):
    found = []
    for seed in (1, 2):
        made = agent(**SMALL, agent=functions.dawdles, steps=1, max_tokens=24)
        trainer = CoTrainer(made, wrap_engine=lambda engine, s=seed: RandomLatency(engine, s))
        done = trainer.step()
        found.append((done.episodes, done.row))
        trainer.close()
    assert found[0] == found[1] and len(found[0][0]) == 6
    assert {len(trace.turns) for episode in found[0][0] for trace in episode.traces} == {2}


@pytest.mark.parametrize(
    ("name", "reason", "limits"),
    [
        ("raises", f"agent: own.py, line {line_of(OWN, 'raise KeyError')}: KeyError", {}),
        ("exits", f"agent: own.py, line {line_of(OWN, 'sys.exit(3)')}: SystemExit", {}),
        ("silent", "agent: no answer", {}),
        ("nags", "agent: request refused (too_many_requests)", {}),
        ("blunders", "agent: request refused (temperature)", {}),
        ("hangs", "agent: timeout", {"seconds": 0.5}),
        ("waits", "agent: timeout", {"seconds": 0.5}),
    ],
)
def test_what_an_agent_does_wrong_is_a_counted_reason(executor, functions, name, reason, limits, tmp_path, monkeypatch):
    cancelled = tmp_path / "cancelled"
    monkeypatch.setenv("CANCELLED", str(cancelled))
    functions.RELEASED.clear()
    episodes = play(executor, getattr(functions, name), tasks=2, **limits)
    for longer in (5.0, 30.0):  # a busy machine may take that long for the request that comes before
        if "seconds" in limits and any(episode.failure for episode in episodes):
            episodes = play(executor, getattr(functions, name), tasks=2, seconds=longer)
    functions.RELEASED.set()
    assert reasons(episodes) == {reason} and not any(e.failure for e in episodes)
    assert not any(trace.rewards for episode in episodes for trace in episode.traces)
    until = time.monotonic() + 30
    while name == "waits" and (not cancelled.exists() or len(cancelled.read_text()) < 2):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_refused_request_is_an_error_that_the_agent_may_survive(executor, functions):
    episodes = play(executor, functions.recovers, requests=9)
    assert reasons(episodes) == {None}


@pytest.mark.whole
def test_an_answer_that_the_agent_does_not_wait_for_is_not_learned(functions):
    made = agent(**SMALL, agent=functions.impatient, steps=1)
    trainer = CoTrainer(made, wrap_engine=lambda engine: Slow(engine, functions.GIVEN_UP))
    (episode,) = play(trainer.runner, functions.impatient)
    trainer.close()
    (trace,) = episode.traces
    assert not trace.turns and trace.failure is None and SEQUENCES.require(trace) == 1


def test_an_agent_that_asks_nothing_breaks_off_its_episode(executor, functions):
    (stranger,), (idle,) = play(executor, functions.stranger), play(executor, lambda *given: "12")
    assert "own.py, line" in stranger.failure and "HTTPError" in stranger.failure
    assert "agent: no request" in idle.failure and not idle.traces


def test_a_rollout_counts_once_however_many_conversations_it_has(executor, functions):
    functions.LEFT[:] = [5, 1, 1, 1]
    episodes = play(executor, functions.asks, lambda task, answer: float(answer == "5"), group_size=4, requests=9)
    assert sorted(len(episode.traces) for episode in episodes) == [1, 1, 1, 5]
    row = role_metrics(episodes, ["solver"])
    assert row["solver/metadata/rollout_reward"] == row["solver/reward/rollout_reward"] == 0.25
    assert row["solver/metadata/sequences"] == 2.0
    assert measure_metadata("solver", ROLLOUT_VALUE)(episodes)["solver/metadata/rollout_reward"].value == 0.25
    samples = tuple(sample_of(split_context(trace)[0]) for episode in episodes for trace in episode.traces)
    credit, _ = GRPO(reward_weights={ROLLOUT_REWARD: 1.0}).credit(Batch(samples=samples), {})
    assert credit.metrics["reward/rollout_reward"] == 0.25
    paid = {sample.key: float(sample.advantages[0]) for sample in credit.samples}
    values = {str(t.address): t.rewards[0].value for episode in episodes for t in episode.traces}
    for key, advantage in paid.items():
        assert advantage == pytest.approx(1.5 if values[key] else -0.5, abs=1e-4)


def test_rollouts_that_fail_after_the_model_spoke_earn_nothing_and_are_told(executor, functions):
    functions.LEFT[:] = [5, 1, 1, 1]
    episodes = play(executor, functions.mostly_raises, lambda task, answer: 1.0, group_size=4, requests=9)
    assert not any(episode.failure for episode in episodes)
    figures = measure_metadata("solver", ROLLOUT_VALUE)(episodes) | failed_shares(episodes)
    assert {name: figure.value for name, figure in figures.items()} == {
        "solver/metadata/rollout_reward": 0.25,
        "solver/failed": 0.75,
    }
    row = {"step": 0, **role_metrics(episodes, ["solver"])}
    assert row["solver/failed"] == 0.75 and "solver/ungraded" not in row
    assert "failed rollouts" in [alarm.band for alarm in check_rows([row])]


class NoText:
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize("value", [1e308, math.inf, math.nan, 10**400, {"solver": math.nan}])
def test_a_reward_that_is_not_usable_is_a_counted_failure(executor, functions, value):
    episodes = play(executor, functions.once, lambda task, answer: value)
    assert reasons(episodes) == {"reward: expected finite numbers within ±1e+06"}
    assert not any(episode.failure for episode in episodes)


def test_what_a_reward_and_an_answer_raise_is_counted_whatever_it_is(executor, functions):
    def leaves(task, answer):
        raise SystemExit(3)

    for reward in (leaves, lambda task, answer: {NoText(): NoText()}):
        episodes = play(executor, functions.once, reward)
        assert not any(episode.failure for episode in episodes)
        assert all(reason.startswith("reward: ") for reason in reasons(episodes))
    for program in (lambda *given: functions.once(*given) and NoText(),):
        (episode,) = play(executor, program)
        (trace,) = episode.traces
        assert episode.failure is None and trace.failure.endswith("SystemExit")


def test_rewards_that_cannot_be_read_are_counted(executor, functions):
    def fails(task, answer):
        raise ValueError("no verdict")

    line = line_of(Path(__file__).read_text(), 'raise ValueError("no verdict")')
    assert reasons(play(executor, functions.once, fails)) == {f"reward: test_agent.py, line {line}: ValueError"}
    for value in ("much", None, {"planner": 1.0}, {"solver": "1"}):
        assert reasons(play(executor, functions.once, lambda task, answer, value=value: value)) == {
            "reward: expected a number, or a number for each role"
        }


def test_a_role_that_the_reward_leaves_out_has_earned_nothing(executor, functions):
    (episode,) = play(executor, functions.once, lambda task, answer: {})
    (trace,) = episode.traces
    assert trace.failure == "reward: no number for this role" and ROLLOUT_VALUE.of(trace) == 0.0


@pytest.mark.whole
def test_a_command_is_an_agent_and_ends_with_all_it_started(executor, own, tmp_path):
    (done,) = play(executor, [sys.executable, str(own)])
    assert reasons([done]) == {None} and len(done.traces) == 1
    (failed,) = play(executor, ["sh", "-c", "exit 3"])
    assert "agent: exit code 3" in failed.failure
    pids = tmp_path / "pids"
    script = f"setsid sleep 600 & echo $! $$ > {pids}; sleep 600"
    for seconds in (0.5, 5.0, 30.0):  # a busy machine may take that long to start it
        if not pids.exists() or len(pids.read_text().split()) < 2:
            (slow,) = play(executor, ["sh", "-c", script], seconds=seconds)
    assert "agent: timeout" in slow.failure
    for pid in pids.read_text().split():
        assert not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text()


def test_what_cannot_be_run_is_refused_when_the_recipe_is_built(functions):
    made = agent(**SMALL, agent=functions.once, models="one, two,three", learns="one,three", shared=True)
    assert [role.policy for role in made.roles.values()] == ["generator", "others", "generator"]
    assert made.objectives["generator"].roles == ("one", "three")
    for given, code in (
        ({}, "E_AGENT_NOT_NAMED"),
        ({"agent": functions.once, "command": "true"}, "E_AGENT_NOT_NAMED"),
        ({"agent": functions.value}, "E_FUNCTION_SIGNATURE: value"),
        ({"command": "no-such-program"}, "E_NO_SUCH_PROGRAM: agent | 'no-such-program'"),
        ({"agent": functions.once, "seconds": 0.0}, "E_SETTING_RANGE"),
        ({"agent": functions.once, "models": "a,a"}, "E_AGENT_MODELS"),
        ({"agent": functions.once, "models": "a,others"}, "E_AGENT_MODELS"),
    ):
        with refuses(code):
            agent(**SMALL, **given)
    with refuses("E_UNKNOWN_MODEL"):
        agent(**SMALL, agent=functions.once, learns="solve")


@pytest.mark.whole
def test_the_openai_client_asks_and_streams(executor):
    openai = pytest.importorskip("openai")

    async def talk(problem, base_url, api_key):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
        assert [model.id async for model in client.models.list()] == ["solver"]
        messages = [{"role": "user", "content": problem}]
        asked = {"model": "solver", "messages": messages, "stream": True, "stream_options": {"include_usage": True}}
        pieces = [piece async for piece in await client.chat.completions.create(**asked, max_tokens=4)]
        assert pieces[-1].usage.completion_tokens == 4 and pieces[-2].choices[0].finish_reason == "length"
        said = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And?"}]
        whole = await client.chat.completions.create(model="solver", messages=messages, stop=["</step>"])
        assert "</step>" not in whole.choices[0].message.content
        return whole.choices[0].message.content

    (episode,) = play(executor, talk)
    assert episode.failure is None and [len(trace.turns) for trace in episode.traces] == [2]


@pytest.mark.whole
def test_clients_that_an_agent_leaves_open_are_no_errors_of_others(executor, capfd, caplog):
    """The agent of the page printed tracebacks, "Event loop is closed", from other rollouts and from the run."""
    openai = pytest.importorskip("openai")

    async def ask_and_leave(problem, base_url, api_key):
        client = openai.AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0)
        said = await client.chat.completions.create(
            model="solver", messages=[{"role": "user", "content": problem}], max_tokens=4
        )
        return said.choices[0].message.content

    async def collect_garbage(problem, base_url, api_key):
        answer = await ask_and_leave(problem, base_url, api_key)
        gc.collect()  # those of the first rollouts
        await asyncio.sleep(0.05)
        gc.collect()  # the tasks that failed to close them
        return answer

    play(executor, ask_and_leave, group_size=3)
    play(executor, collect_garbage)
    assert "Event loop is closed" not in capfd.readouterr().err + caplog.text


@pytest.mark.whole
def test_a_run_by_the_command_is_stopped_and_resumed(own, tmp_path):
    """The same as one that was not."""
    flags = ["--model", TINY, "--tasks-per-step=2", "--group-size=3", "--evaluation-tasks=1", "--max-tokens=6"]

    def call(*words):
        done = subprocess.run([sys.executable, "-m", "cotrain.cli.main", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run = ["run", "agent", "--agent", f"{own}:once", *flags]
    call(*run, "--steps", "2", "--out", str(tmp_path / "whole"))
    call(*run, "--steps", "1", "--out", str(tmp_path / "parts"))
    call("resume", str(tmp_path / "parts"), "--steps", "2")
    rows = [
        [line for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines() if '"kind"' not in line]
        for name in ("whole", "parts")
    ]
    assert len(rows[0]) == 2 and rows[0] == rows[1]
