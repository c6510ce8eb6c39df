"""Replicas of an engine: who answers what, what all of them are told, and runs that lose one.

A log-probability depends in its last digits on the rows that share its batch, so two replicas do not give the bits of
one. They give those of one process whose two engines share the learners' models and are dealt the same requests.
"""

import asyncio
import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

from cotrain.config.policies import adapter, frozen, reward_model, trainable
from cotrain.core.seeding import Address
from cotrain.distributed.engine_host import EngineHost
from cotrain.distributed.local import LocalBackend, make_local_engine
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.distributed.placement import VllmPlacement, one_local_engine, with_replicas
from cotrain.distributed.remote_engines import replica_of
from cotrain.rollout.event_loop import EngineEventLoop, gather
from cotrain.runs import run as loop
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from tests.distributed.processes import Apart, Here
from tests.distributed.test_several import RECIPES, digest
from tests.helpers import TINY, request
from tests.sentences import refuses

ONE, TWO = (f"{ENGINE} (replica {number} of 2)" for number in (1, 2))


def address(**place):
    return Address(**{"step": 0, "task": 0, "member": 0, "role": "solver", "call": 0, **place})


def test_an_episode_stays_with_one_replica_and_all_have_as_many():
    shares = Counter(replica_of(address(task=t, member=m), 4) for t in range(6) for m in range(8))
    assert shares == dict.fromkeys(range(4), 12)
    one = replica_of(address(task=3, member=2), 4)
    assert all(
        replica_of(address(task=3, member=2, role=r, call=c, path=(c,)), 4) == one for r in "ab" for c in range(9)
    )
    assert replica_of(address(task=3, member=2), 1) == 0


def test_each_engine_has_its_replicas():
    policies = {
        "generator": trainable(TINY),
        "verifier": adapter(TINY),
        "reference": frozen(TINY),
        "scorer": reward_model(TINY),
    }
    settled = {name: spec.with_device_defaults(autocast=False) for name, spec in policies.items()}
    single = VllmPlacement()(settled, 0, "cuda", 1)
    doubled = with_replicas(VllmPlacement(), 2)(settled, 0, "cuda", 1)
    assert [place.policies for place in single] == [("generator",), ("verifier", "reference"), ("scorer",)]
    assert [p.policies for p in doubled] == [p.policies for p in single for _ in range(2)]
    assert len({p.what for p in doubled}) == 6 and doubled[0].settings == doubled[1].settings == single[0].settings
    assert doubled[3].what == "the engine's process of verifier and reference (replica 2 of 2)"
    assert [p.what for p in with_replicas(one_local_engine, 2)(settled, 0, "cpu", 1)] == [ONE, TWO]
    assert [p.what for p in with_replicas(one_local_engine, 1)(settled, 0, "cpu", 1)] == [ENGINE]


class Deaf(EngineHost):
    """It says that it has new weights, and keeps the old ones."""

    def load_weights(self, policy, weights): ...


def asked_first(policies, seed, device, threads):
    """One local engine, which the self-test of publishing asks."""
    return one_local_engine(policies, seed, device, threads, tested=True)


def last_is_deaf(policies, seed, device, threads):
    *places, last = with_replicas(asked_first, 2)(policies, seed, device, threads)
    return [*places, replace(last, host=Deaf)]


def opened(backend):
    torch.set_num_threads(1)
    backend.open({"generator": trainable(TINY)}, seed=0)
    return backend


@pytest.mark.whole
def test_all_replicas_are_told_of_new_weights_and_limits_and_counted():
    launcher = Here()
    backend = opened(MultiProcessBackend(launcher, placing=asked_first, replicas=2))
    assert len(backend.arrivals) == 1 and backend.arrivals[0].after < 1e-4
    assert launcher.asked[ONE, "publish"] == launcher.asked[TWO, "publish"] == 3  # at first, shaken, put back
    before = backend.engine.counts()["generator/requests"]
    asked = [request(policy="generator", task=task) for task in range(5)]
    loop = EngineEventLoop()
    loop.run_to_end(gather([backend.engine.sample(one) for one in asked]), backend.engine.advance)
    loop.close()
    assert backend.engine.counts()["generator/requests"] == before + 5
    told = [backend._engine.engines_of("generator")[i].counts()["generator/requests"] for i in (0, 1)]
    assert told[0] - told[1] == 1  # 3 of 5 to the first
    backend.engine.set_limits({"generator": 2})
    assert launcher.asked[ONE, "set_limits"] == launcher.asked[TWO, "set_limits"] == 1
    assert backend.describe()["replicas"] == 2
    asyncio.run(backend.close())


@pytest.mark.whole
def test_a_replica_that_does_not_take_weights_is_refused():
    with refuses("E_WEIGHTS_NOT_SYNCED", names="policy 'generator'"):
        opened(MultiProcessBackend(Here(), placing=last_is_deaf))


class Dealing:
    """Two local engines over the same models, in this process. Implements ``Engine``."""

    def __init__(self, handles, device):
        self.engines = [make_local_engine(handles, device) for _ in range(2)]

    async def sample(self, request):
        return await self.engines[replica_of(request.address, 2)].sample(request)

    def advance(self):
        answered = [engine.advance() for engine in self.engines]
        return any(answered)

    def publish(self, policy, version):
        for engine in self.engines:
            engine.publish(policy, version)

    def counts(self):
        one, two = (engine.counts() for engine in self.engines)
        return {key: one[key] + two[key] for key in one}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A recipe's run in one process, with two engines that share requests: its directory."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp("local") / "run"
            loop.start_run(RECIPES[name](), known[name], checkpoint_every=1, backend=LocalBackend(engine=Dealing))
        return known[name]

    return of


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_a_run_with_replicas_is_that_of_one_process_which_deals_alike(name, undisturbed, tmp_path):
    """Also where engines are lost: as they begin, play and take weights."""
    losses = [(ONE, "counts", 1), (TWO, "advance", 2), (ONE, "advance", 12), (ONE, "publish", 2)]
    launcher, out = Here(losses), tmp_path / "run"
    loop.start_run(RECIPES[name](), out, checkpoint_every=1, backend=MultiProcessBackend(launcher, replicas=2))
    assert launcher.lost == len(losses)
    assert min(launcher.asked[what, "advance"] for what in (ONE, TWO)) > 9
    assert digest(out) == digest(undisturbed(name))
    made = json.loads((out / "provenance.json").read_text())
    assert made["backend"] == {"kind": "here", "engine": "local", "device": "cpu", "replicas": 2}
    rows = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        seconds = sum(row[stage] for stage in ("rollout", "annotate", "credit", "reference", "update"))
        for process in ("learners", "engine 1 of 2", "engine 2 of 2"):
            assert "generator" in row[f"process/{process}/policies"].split()
            assert 0.0 <= row[f"process/{process}/asleep_seconds"] < seconds
            told = row[f"process/{process}/published_bytes"] > 0, row[f"process/{process}/publish_seconds"] > 0.0
            assert told[0] == told[1]
        assert row["process/engine 1 of 2/tokens_per_second"] > 0.0
    assert any(row["process/engine 2 of 2/published_bytes"] > 0 for row in rows)


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_a_killed_replica_changes_nothing(name, undisturbed, tmp_path):
    """In processes of their own. The others go on."""
    launcher, out = Apart([(TWO, "advance", 5)]), tmp_path / "run"
    loop.start_run(RECIPES[name](), out, checkpoint_every=1, backend=MultiProcessBackend(launcher, replicas=2))
    assert (launcher.killed, launcher.begun) == (1, 4)  # learners, two replicas, and one in place of one
    assert digest(out) == digest(undisturbed(name))


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_one_engine_and_two_replicas_say_the_same(name, undisturbed, tmp_path):
    """But for rounding, which learning adds up."""
    out = tmp_path / "run"
    loop.start_run(RECIPES[name](), out, checkpoint_every=1)
    said, known = traces(out), traces(undisturbed(name))
    assert [(t.address, t.token_ids) for t in said] == [(t.address, t.token_ids) for t in known]
    pairs = [
        pair for one, two in zip(said, known, strict=True) for pair in zip(one.logprobs, two.logprobs, strict=True)
    ]
    assert max(abs(one - two) for one, two in pairs) < 1e-4
    (mine, _), (theirs, _) = (checkpoints.latest_checkpoint(o / "checkpoints").load() for o in (out, undisturbed(name)))
    for policy in mine:
        for tensor, weight in mine[policy].items():
            if weight.is_floating_point():
                most = max(float(weight.abs().max()), 1e-30)
                assert float((weight - theirs[policy][tensor]).abs().max()) < 2e-3 * most, (policy, tensor)


def traces(directory):
    with Ledger(directory / "episodes") as ledger:
        return [trace for step in ledger.steps() for episode in ledger.read(step) for trace in episode.traces]


@pytest.mark.whole
def test_a_replica_that_is_lost_three_times_in_one_play_ends_the_run_with_the_reason(tmp_path):

    launcher = Here((TWO, "advance", n) for n in range(4, 30))
    with refuses("E_DIVERGED", names=("replica 2 of 2", "advance", "3 times in one batch")):
        loop.start_run(
            RECIPES["adapters"](),
            tmp_path / "run",
            checkpoint_every=1,
            backend=MultiProcessBackend(launcher, replicas=2),
        )
    assert launcher.begun == {LEARNERS: 1, ONE: 1, TWO: 3}
