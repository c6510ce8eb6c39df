"""Policies that other servers run: what is asked, what goes wrong, and runs that are repeated without the server."""

import itertools
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from servers import ROOM, Odd, running, serving_run

from cotrain.config.override import override
from cotrain.config.remote import remote
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Sampling, kind_of_failure
from cotrain.distributed import openai_policy as remote_policy
from cotrain.distributed.local import LocalBackend
from cotrain.metrics.steps import role_metrics
from cotrain.recipes.grpo import grpo
from cotrain.recipes.judged import judged as judged_recipe
from cotrain.recipes.tango import tango
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs import run as loop
from cotrain.runs.run import Interrupted
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, LeaveAfter, letter_tasks, tiny_model
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-3, "tasks": EASY}


@pytest.fixture
def odd():
    server = Odd()
    with running(server.app) as (url, end):
        server.url, server.end = url, end
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(remote_policy, "FIRST_PAUSE", 0.01)


@pytest.fixture
def hurried(monkeypatch):
    """Each look at the clock takes ten seconds: a deadline passes at the third try, and nobody waits for it."""
    looks = itertools.count(1)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 10.0 * next(looks))
    monkeypatch.setattr(remote_policy, "time", clock)


@pytest.fixture(scope="module")
def judge():
    """The address of a served run whose role ``verifier`` judges."""
    torch.set_num_threads(1)
    with serving_run(CoTrainer(tango(steps=1, **SMALL))) as url:
        yield url


@gives(OUTCOME)
async def ask_twice(task, roles):
    first = await roles.far(problem=task.prompt)
    second = await roles.far(problem=task.prompt[:1], parent=first)
    second.reward(OUTCOME, 1.0)


def asked(
    url, model, *, count=2, system=None, protocol=ask_twice, traces=(), max_tokens=7, tell=lambda text: None, **settings
):
    """Episodes with a remote policy alone, and what was counted. ``tell`` hears what is said of the server."""
    backend = LocalBackend()
    settings = {"timeout": 30.0, "deadline": 60.0, **settings}
    backend.open({"far": remote(url, model, **settings)}, seed=0)
    backend.cache_remote_answers(traces)
    backend._handles["far"].tell = tell
    renderer = backend._handles["far"].renderer
    role = Role(policy="far", prompt="Q {problem}", sampling=Sampling(max_tokens=max_tokens), system=system)
    executor = RolloutRunner(backend.engine, {"far": renderer}, {"far": role}, 0)
    episodes = executor.collect(protocol, letter_tasks(count), step=0, group_size=1)
    counts = backend.engine.counts()
    executor.loop.run_to_end(backend.close())
    return episodes, {key.removeprefix("far/remote/"): value for key, value in counts.items()}


@pytest.mark.whole
def test_an_answer_is_a_turn_like_any_other(odd, monkeypatch):
    monkeypatch.setenv("FAR_KEY", "sesame")
    prices = {"input_price": 1e6, "output_price": 2e6}
    episodes, counts = asked(odd.url, "good", system="be brief", key_variable="FAR_KEY", **prices)
    assert [t.text for t in episodes[1].traces] == ["é Q BB", "é Q B"]
    for trace in (t for e in episodes for t in e.traces):
        assert (trace.failure, trace.finish, trace.policy) == (None, "stop", "far")
        assert (
            bytes(trace.prompt_ids).decode().startswith('[{"role": "system", "content": "be brief"}, {"role": "user"')
        )
        assert bytes(trace.token_ids[:-1]).decode() == trace.text
    assert odd.keys == {"Bearer sesame"}
    assert (counts["answers"], counts["failed"], counts["retries"]) == (4, 0, 0)
    assert (counts["prompt_tokens"], counts["completion_tokens"], counts["cost"]) == (40, 20, 80.0)
    cut, _ = asked(odd.url, "long", count=1)
    assert {t.finish for t in cut[0].traces} == {"length"}


@pytest.mark.whole
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("slow", "timeout, saying: nothing came within 0.2 s"),
        ("broken", "status 500, saying: oh"),
        ("malformed", "no JSON"),
        ("empty", "no choices"),
        ("textless", "no text"),
        ("refusing", "refused (status 400), saying: Bad Request"),
    ],
)
def test_what_goes_wrong_is_a_value_with_its_reason(odd, hurried, model, reason):
    episodes, counts = asked(odd.url, model, count=1, timeout=0.2 if model == "slow" else 30.0)
    assert episodes[0].failure is None and len(episodes[0].traces) == 2
    for trace in episodes[0].traces:
        assert (trace.failure, trace.finish, trace.text) == (f"remote: {reason}", "failed", "")
    assert counts["failed"] == counts["answers"] == 2
    assert (odd.asked[model] == 2) == (model == "refusing")  # a refusal is not asked for again


def test_a_server_that_never_answered_ends_the_run_with_one_line(odd, hurried):
    odd.end()
    with refuses("E_REMOTE_NOT_REACHED", names="'far'"):
        asked(odd.url, "good", count=1)


def test_a_server_that_is_gone_is_a_value_too(odd, hurried, monkeypatch):
    monkeypatch.setattr(remote_policy, "FIRST_CONTACT", 1000.0)
    odd.end()
    episodes, _ = asked(odd.url, "good", count=1)
    assert {kind_of_failure(t.failure) for t in episodes[0].traces} == {"remote: no connection"}


def test_an_answer_is_asked_for_again(odd):
    episodes, counts = asked(odd.url, "flaky", count=1)
    assert [t.failure for t in episodes[0].traces] == [None, None] and counts["retries"] == 2


def test_what_a_server_says_is_told_once_without_its_keys(odd, hurried):
    notes = []
    episodes, _ = asked(odd.url, "400", tell=notes.append)
    (note,) = notes
    assert f"policy 'far': {odd.url}: status 400: as 400 says, with [hidden] and <U+001B>[2J; this is not" in note
    assert {t.failure.partition(", ")[0] for e in episodes for t in e.traces} == {"remote: refused (status 400)"}
    assert all("as 400 says" in t.failure for e in episodes for t in e.traces)
    row = role_metrics(episodes, ["far"])
    assert row["failures/far: remote: refused (status 400)"] == 4 and not any("says" in key for key in row)


def test_a_busy_server_is_told_of_before_it_is_asked_again(odd, hurried):
    notes = []
    asked(odd.url, "429", count=1, tell=notes.append)
    (note,) = notes
    assert "status 429: as 429 says" in note and "asking again, for 60 s" in note
    odd.end()
    asked_by = []
    with refuses("E_REMOTE_NOT_REACHED"):
        asked(odd.url, "good", count=1, tell=asked_by.append)
    assert asked_by and "no connection" in asked_by[0] and "asking again, for 30 s" in asked_by[0]


@pytest.mark.parametrize(("model", "finish"), [("thoughtful", "length"), ("calling", "stop")])
def test_an_answer_without_text_is_an_answer(odd, model, finish):
    episodes, counts = asked(odd.url, model, count=1)
    assert {(t.text, t.finish, t.failure) for t in episodes[0].traces} == {("", finish, None)}
    assert odd.asked[model] == 2 and counts["retries"] == counts["failed"] == 0


def test_a_limit_that_does_not_fit_is_lowered(odd):
    notes = []
    episodes, counts = asked(odd.url, "narrow", count=1, max_tokens=300, tell=notes.append)
    assert {t.failure for t in episodes[0].traces} == {None} and counts["lowered"] == 2
    (note,) = notes
    assert "max_tokens 300 (status 400: the prompt has 605 tokens" in note
    assert odd.limits[:4] == [300, 150, 75, 37] and ROOM >= 37
    assert odd.limits[4:] == [37]  # what was refused beside so short a prompt is not tried again
    odd.limits.clear()
    failed, _ = asked(odd.url, "400", count=1, max_tokens=300)
    assert odd.limits == [300, 300] and {t.finish for t in failed[0].traces} == {"failed"}  # it does not speak of room


def test_no_more_requests_are_under_way_than_allowed():
    server = Odd(pause=0.02, until=lambda: server.most >= 3)
    with running(server.app) as (url, _):
        asked(url, "good", count=12, concurrency=3)
    assert server.most == 3


def test_connections_outlive_a_play(odd):
    """The event loop is the executor's, not the play's."""
    backend = LocalBackend()
    (far,) = backend.open({"far": remote(odd.url, "good", concurrency=1)}, seed=0).values()
    role = Role(policy="far", prompt="Q {problem}", sampling=Sampling(max_tokens=7))
    executor = RolloutRunner(backend.engine, {"far": far.renderer}, {"far": role}, 0)
    played = [executor.collect(ask_twice, letter_tasks(2), step=step, group_size=1) for step in range(3)]
    assert all(t.failure is None for episodes in played for e in episodes for t in e.traces)
    assert executor.greedy_copy().collect(ask_twice, letter_tasks(1), step=3, group_size=1)[0].failure is None
    assert odd.asked["good"] == 14 and len(odd.lines) == 1
    executor.loop.run_to_end(backend.close())


def test_what_no_repetition_mends_ends_the_play(odd, monkeypatch):
    with refuses("E_REMOTE_REFUSES", names=("status 401: Unauthorized", "--set", "policies.far.key_variable")):
        asked(odd.url, "locked")
    assert odd.asked["locked"] <= 2
    with refuses("E_REMOTE_REFUSES", names="status 404"):
        asked(odd.url.replace("/v1", "/v7"), "good")
    monkeypatch.delenv("FAR_KEY", raising=False)
    with refuses("E_API_KEY_MISSING", names=("'far'", "'FAR_KEY'")):
        asked(odd.url, "good", key_variable="FAR_KEY")

    async def begins(task, roles):
        chat = roles.far.begin(problem="x")
        chat.assistant("So")
        await chat.say()

    with refuses("E_REMOTE_CANNOT_CONTINUE"):
        asked(odd.url, "good", protocol=begins)


def test_a_remembered_answer_is_not_asked_for_again(odd, hurried):
    first, _ = asked(odd.url, "good")
    failed, _ = asked(odd.url, "empty", count=1)
    before = odd.asked.total()
    again, counts = asked(odd.url, "good", traces=[t for e in first for t in e.traces])
    assert again == first and odd.asked.total() == before and (counts["remembered"], counts["answers"]) == (4, 0)
    assert asked(odd.url, "empty", count=1, traces=[t for e in failed for t in e.traces])[0] == failed
    with refuses("E_REPLAY_PROMPT", names="0:0:0:far:0"):
        asked(odd.url, "good", system="other", traces=[t for e in first for t in e.traces])


def test_the_engine_goes_on_while_a_server_is_waited_for():
    """The server answers when three turns have ended beside it: an engine that rested would have ended two, begun
    before, and the server gives up waiting."""
    from cotrain.inference.local import LocalEngine
    from tests.helpers import CharRenderer

    async def both(task, roles):
        if task.id.endswith("/0"):
            await roles.far(problem="x")
            answered.append(len(finished))
        while not answered:
            await roles.near(problem=task.prompt)
            finished.append(task.id)

    finished, answered = [], []
    server = Odd(until=lambda: len(finished) > 2)
    with running(server.app) as (url, _):
        backend = LocalBackend(engine=lambda handles, device: LocalEngine({"near": tiny_model()}))
        backend.open({"far": remote(url, "good")}, seed=0)
        renderers = {"far": backend._handles["far"].renderer, "near": CharRenderer()}
        sampling = Sampling(max_tokens=4)
        roles = {name: Role(policy=name, prompt="{problem}", sampling=sampling) for name in renderers}
        executor = RolloutRunner(backend.engine, renderers, roles, 0)
        executor.collect(both, letter_tasks(3), step=0, group_size=1)
        executor.loop.run_to_end(backend.close())
    assert answered[0] > 2


def with_judge(recipe, url, model="policy/verifier", **settings):
    made = replace(recipe, policies={**recipe.policies, "verifier": remote(url, model, **settings)})
    return override(made, ["evaluation.splits=[]", "evaluation.group_size=1"])


def judged(url, **settings):
    made = tango(steps=2, verifier="frozen", **SMALL)
    brief = replace(made.evaluation, group_size=1, greedy=False, frozen_roles={}, splits=())  # no test looks at its
    # figures
    return with_judge(replace(made, evaluation=brief), url, **settings)


def weights(trainer):
    return {(p, n): t for p, found in trainer.policies.tensors().items() for n, t in found.items()}


@pytest.mark.whole
@pytest.mark.parametrize("tokenizer", [None, TINY])
def test_a_run_with_a_remote_judge_is_repeated_without_its_server(judge, tokenizer):
    recipe = judged(judge, tokenizer=tokenizer)
    first = CoTrainer(recipe)
    results = [first.step() for _ in range(2)]
    reviews = [t for r in results for e in r.episodes for t in e.traces if t.role == "verifier"]
    assert reviews and {t.failure for t in reviews} == {None} and any(t.findings.get("steps") for t in reviews)
    assert results[0].row["verifier/remote/answers"] == 4 and results[0].row["verifier/remote/completion_tokens"] > 4
    assert results[0].row["tokens"] == results[0].row["solver/tokens"]
    if tokenizer is not None:  # the very tokens that the server drew, with its own log-probabilities
        assert all(
            t.token_ids[-1] in first.policies["verifier"].renderer.stop_ids for t in reviews if t.finish == "stop"
        )
        assert all(-50 < p <= 0 for t in reviews for p in t.logprobs) and any(
            p < 0 for t in reviews for p in t.logprobs
        )
    again = CoTrainer(judged("http://127.0.0.1:1/v1", tokenizer=tokenizer))
    again.backend.cache_remote_answers(t for r in results for e in r.episodes for t in e.traces)
    repeated = [again.step() for _ in range(2)]
    assert [r.episodes for r in repeated] == [r.episodes for r in results]
    mine, theirs = weights(first), weights(again)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    for trainer in (first, again):
        trainer.close()


@pytest.mark.whole
def test_a_run_that_is_gone_on_with_asks_nothing_twice(judge, tmp_path):
    """Interrupted after step 1 was played and before it was saved: resuming takes the ledger's answers."""
    recipe = judged(judge)
    plain = loop.start_run(recipe, tmp_path / "plain").directory
    cut = tmp_path / "cut"
    with pytest.raises((KeyboardInterrupt, Interrupted)):
        loop.start_run(recipe, cut, observer=LeaveAfter(1))  # as a second signal: nothing is saved
    with Ledger(cut / "episodes") as ledger:
        assert ledger.steps() == (0,)
        played = ledger.read(0)
    assert checkpoints.latest_checkpoint(cut / "checkpoints") is None
    loop.resume_run(recipe, cut)
    with Ledger(cut / "episodes") as ledger, Ledger(plain / "episodes") as other:
        assert ledger.read(0) == played
        assert ledger.steps() == other.steps() == (0, 1)
    rows = (cut / "metrics.jsonl").read_text().splitlines()
    assert '"verifier/remote/remembered": 4.0' in rows[0] and '"verifier/remote/answers": 0.0' in rows[0]


@pytest.mark.whole
def test_a_run_does_not_go_on_without_its_judge(odd):
    trainer = CoTrainer(judged(odd.url, model="broken", timeout=30.0, deadline=0.1))
    with refuses("E_SERVER_SILENT", names=("4 of 4", "'verifier'", odd.url, "status 500: oh")):
        trainer.step()
    assert trainer.finished_steps == 0
    trainer.close()


def test_a_server_that_refuses_ends_the_measurement_of_the_start(odd, tmp_path):
    recipe = judged(odd.url, model="400")
    measured = replace(recipe, evaluation=replace(recipe.evaluation, tasks=1))
    said, out = [], tmp_path / "run"
    watch = SimpleNamespace(message=said.append, update=lambda row: None)
    with refuses("E_SERVER_SILENT", names=("1 requests", "'verifier'", "status 400")):
        loop.start_run(measured, out, observer=watch)
    assert any("as 400 says" in line for line in said)
    assert "as 400 says" in (out / "run.log").read_text()
    stopped = json.loads((out / "stopped.json").read_text())
    assert "as 400 says" in stopped["error"] and stopped["code"] == "E_SERVER_SILENT"
    with refuses("E_SERVER_SILENT", names="as 400 says"):
        loop.resume_run(measured, out)
    with refuses("E_SERVER_SILENT", names="as 400 says"):
        loop.start_run(measured, out)  # what is left is not in the way of the next try


def test_what_cannot_be_asked_of_a_remote_policy_is_refused():
    with refuses("E_POLICY_NOT_TRAINABLE", names=("'verifier'", "'remote'")):
        with_judge(tango(steps=1, **SMALL), "http://127.0.0.1:1/v1")
    made = grpo(steps=1, **SMALL)
    with refuses("E_POLICY_WITHOUT_PROBABILITIES", names=("'reference'", "'remote'")):
        replace(made, policies={**made.policies, "reference": remote("http://127.0.0.1:1/v1", "m")})
    for wrong, code in (
        ({"url": "localhost:8000"}, "E_REMOTE_URL"),
        ({"url": "http://me:secret@here/v1"}, "E_REMOTE_URL_SECRET: key_variable"),
        ({"concurrency": 0}, "E_REMOTE_LIMITS"),
        ({"deadline": 0.0}, "E_REMOTE_LIMITS"),
        ({"input_price": -1.0}, "E_REMOTE_PRICES"),
    ):
        with refuses(code):
            remote(**{"url": "http://here/v1", "model": "m", **wrong})
    changed = override(judged("http://here/v1"), ["policies.verifier.concurrency=4"])
    assert changed.policies["verifier"].concurrency == 4
    with refuses("E_NO_SUCH_FIELD", names="'lr'"):
        override(changed, ["policies.verifier.lr=1"])


BRIEF = ("evaluation.splits=[]", "evaluation.group_size=1", "evaluation.greedy=false")


@pytest.mark.whole
def test_a_frozen_judge_may_be_named_by_its_address(judge, tmp_path):
    recipe = judged_recipe(
        verifier="frozen", warmup=0, reviews=2, steps=1, verifier_model=f"{judge}#policy/verifier", **SMALL
    )
    assert recipe.policies["verifier"] == remote(judge, "policy/verifier")
    short = judged_recipe(verifier="frozen", warmup=0, **SMALL).roles["verifier"]  # its server reads few tokens
    recipe = replace(recipe, roles={**recipe.roles, "verifier": short})
    loop.start_run(override(recipe, BRIEF), tmp_path / "run")
    with Ledger(tmp_path / "run" / "episodes") as ledger:
        reviews = [t for e in ledger.read(0) for t in e.traces if t.role == "verifier"]
    assert reviews and {t.policy for t in reviews} == {"verifier"}


@pytest.mark.whole
def test_a_model_of_a_server_is_named_and_not_trained(judge):
    with refuses("E_REMOTE_MODEL_UNNAMED", names="#judge"):
        judged_recipe(verifier="frozen", warmup=0, verifier_model=judge, **SMALL)
    with refuses("E_REMOTE_POLICY_TRAINED", names="'trainable'"):
        judged_recipe(verifier_model=f"{judge}#policy/verifier", **SMALL)
