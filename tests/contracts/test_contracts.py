"""Latency, order, interruption, lost processes, engines, ranks and devices change nothing: proved on the contract
protocols (``protocols.py``), which between them use everything that a protocol can."""

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.runs import run as loop
from cotrain.runs.run import Interrupted
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from cotrain.trainer.trainer import CoTrainer
from tests.contracts.protocols import CONTRACTS
from tests.distributed.processes import Here
from tests.distributed.test_group import Mixed as RanksApart
from tests.helpers import AnyOrder, CountedEngine, RandomLatency, StopAfter

pytestmark = pytest.mark.whole
SPEAKING = [name for name in CONTRACTS if name != "preferences"]


def digest(folder: Path) -> dict[str, str]:
    """Of everything that must not depend on what happened on the way."""
    tensors, documents = checkpoints.latest_checkpoint(folder / "checkpoints").load()
    weights = hashlib.sha256()
    for policy in sorted(tensors):
        for name in sorted(tensors[policy]):
            weights.update(f"{policy}/{name}".encode() + tensors[policy][name].numpy().tobytes())
    with Ledger(folder / "episodes") as ledger:
        episodes = [repr(episode) for step in ledger.steps() for episode in ledger.read(step)]
    return {
        "weights": weights.hexdigest(),
        "state": json.dumps(documents["state"], sort_keys=True),
        "metrics": (folder / "metrics.jsonl").read_text(),
        "episodes": json.dumps(episodes),
        "figures": json.dumps(json.loads((folder / "summary.json").read_text())["after"], sort_keys=True),
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, other):
    """The directory of a contract's run in peace, and how often its engine advanced; made once."""
    known = {}

    def of(name):
        if name not in known:
            engines = []

            def count(engine):
                engines.append(CountedEngine(engine))
                return engines[-1]

            folder = tmp_path_factory.mktemp("undisturbed") / name
            loop.start_run(CONTRACTS[name](other), folder, checkpoint_every=1, wrap_engine=count)
            known[name] = folder, engines[0].count
        return known[name]

    return of


@pytest.mark.parametrize("name", CONTRACTS)
def test_every_policy_learns_from_every_role_that_it_should(name, undisturbed, other):
    """Else the other tests would hold of runs in which nothing happens."""
    recipe, (folder, _) = CONTRACTS[name](other), undisturbed(name)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert not [key for row in rows for key in row if key.startswith("failures/")]
    tensors, documents = checkpoints.latest_checkpoint(folder / "checkpoints").load()
    start = CoTrainer(recipe).policies.tensors()
    for policy in {objective.policy for objective in recipe.objectives.values()}:
        assert documents["state"]["policies"][policy]["updates"] > 0
        moved = [key for key in start[policy] if not torch.equal(start[policy][key], tensors[policy][key])]
        assert len(moved) > 4, policy


def test_the_pool_grows_and_is_drawn_from(undisturbed):
    with Ledger(undisturbed("pool")[0] / "episodes") as ledger:
        traces = [t for step in ledger.steps() for episode in ledger.read(step) for t in episode.traces]
    assert any("minted" in trace.findings for trace in traces)
    assert any("replayed" in trace.findings for trace in traces)


@pytest.mark.parametrize("name", SPEAKING)
def test_what_is_said_does_not_depend_on_who_is_answered_first(name, other, undisturbed):
    with Ledger(undisturbed(name)[0] / "episodes") as ledger:
        expected = {
            str(trace.address): (trace.prompt_ids, trace.token_ids)
            for step in ledger.steps()
            for episode in ledger.read(step)
            for trace in episode.traces
        }
    trainer = CoTrainer(CONTRACTS[name](other), wrap_engine=lambda engine: AnyOrder(engine, 1))
    said = {}
    while not trainer.is_done:
        for episode in trainer.step().episodes:
            said |= {str(trace.address): (trace.prompt_ids, trace.token_ids) for trace in episode.traces}
    assert said == expected


@pytest.mark.parametrize("name", SPEAKING)
def test_a_run_that_was_delayed_and_interrupted_ends_with_the_same_bits(name, other, undisturbed, tmp_path):
    """Delayed at random, stopped in the middle of its last steps, and delayed otherwise when it goes on."""
    folder, advances = undisturbed(name)
    stop_at = 3 * advances // 4

    def delay_and_stop(engine):
        return CountedEngine(RandomLatency(engine, 7), stop_at)

    with pytest.raises(Interrupted):
        loop.start_run(CONTRACTS[name](other), tmp_path / "run", checkpoint_every=1, wrap_engine=delay_and_stop)
    assert checkpoints.latest_checkpoint(tmp_path / "run/checkpoints").step > 0
    loop.resume_run(CONTRACTS[name](other), tmp_path / "run", wrap_engine=lambda engine: RandomLatency(engine, 8))
    assert digest(tmp_path / "run") == digest(folder)


def test_a_run_in_which_no_model_speaks_stops_and_resumes_too(other, undisturbed, tmp_path):
    with pytest.raises(Interrupted):
        loop.start_run(
            CONTRACTS["preferences"](other), tmp_path / "run", checkpoint_every=1, observer=StopAfter(step=1)
        )
    assert checkpoints.latest_checkpoint(tmp_path / "run/checkpoints").step == 2
    loop.resume_run(CONTRACTS["preferences"](other), tmp_path / "run")
    assert digest(tmp_path / "run") == digest(undisturbed("preferences")[0])


@pytest.mark.parametrize("name", CONTRACTS)
def test_engine_and_learners_in_processes_of_their_own_give_the_same_bits(name, other, undisturbed, tmp_path):
    """Also where the learners are lost in the second step, with all that they had learned since the checkpoint."""
    launcher = Here([(LEARNERS, "update", random.Random(name).randint(2, 4)), (ENGINE, "advance", 9)])
    loop.start_run(CONTRACTS[name](other), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher))
    assert digest(tmp_path / "run") == digest(undisturbed(name)[0])


@pytest.mark.parametrize("name", ["groups", "reviews", "conversations"])  # those whose losses have a ratio
def test_sampling_ahead_of_learning_gives_the_same_bits_apart_and_in_turn(name, other, tmp_path):
    """With a step of asynchrony the run is another one than without, and the same one wherever it is computed."""
    apart, in_turn = tmp_path / "apart", tmp_path / "in turn"
    loop.start_run(
        CONTRACTS[name](other), apart, checkpoint_every=1, backend=MultiProcessBackend(Here()), async_steps=1
    )
    loop.start_run(CONTRACTS[name](other), in_turn, checkpoint_every=1, async_steps=1)
    assert digest(apart) == digest(in_turn)


@pytest.mark.parametrize("name", CONTRACTS)
def test_two_ranks_compute_the_weights_of_one_process(name, other, undisturbed, tmp_path):
    """The first step draws the same samples, so its weights are those of one process, up to the order of sums."""

    def weights_after_a_step(folder, **where):
        steps = 2 if name == "reviews" else 1  # there a warm-up comes first
        recipe = replace(CONTRACTS[name](other), steps=steps)
        loop.start_run(recipe, folder, checkpoint_every=1, **where)
        return checkpoints.latest_checkpoint(folder / "checkpoints").load()[0]

    launcher = RanksApart()
    try:
        shared = weights_after_a_step(tmp_path / "ranks", backend=MultiProcessBackend(launcher, world=2))
    finally:
        launcher.stop()
    alone = weights_after_a_step(tmp_path / "alone")
    for policy, tensors in alone.items():
        for key, tensor in tensors.items():
            torch.testing.assert_close(shared[policy][key], tensor, rtol=1e-3, atol=1e-5, msg=f"{policy} {key}")
