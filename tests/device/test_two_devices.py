"""Policies of one run on two devices: the CPU, and one that is pretended."""

import json
import threading

import pytest
import torch

from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.distributed.local import LocalBackend
from cotrain.recipes.tango import tango
from cotrain.recipes.votes import co_rewarding
from cotrain.trainer.trainer import CoTrainer
from tests.device.beside import DEVICE, KIND, assert_near
from tests.helpers import EASY, TINY
from tests.sentences import refuses

pytestmark = pytest.mark.whole
BRIEF = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 2, "lr": 1e-3}


class InTurn(LocalBackend):
    """Nothing is played beside an update."""

    def held_while_learning(self, touched, changed):
        return None


def tango_on(device, **more):
    recipe = tango(**{**BRIEF, "warmup": 1, "ratio": (1, 1), "reviews": 2, "steps": 4, **more})
    return recipe if device is None else override(recipe, [f"policies.verifier.device={json.dumps(device)}"])


def steps_of(recipe, backend):
    trainer = CoTrainer(recipe, backend=backend)
    results = [trainer.step() for _ in range(recipe.steps)]
    places = {
        handle.name: next(handle.model.parameters()).device.type for handle in trainer.policies if handle.spec.head
    }
    weights = {name: {k: t.clone() for k, t in group.items()} for name, group in trainer.policies.tensors().items()}
    trainer.close()
    return [(result.row, result.episodes) for result in results], weights, places


def assert_equal_weights(mine, theirs):
    for policy, group in theirs.items():
        for name, tensor in group.items():
            assert torch.equal(mine[policy][name], tensor), f"{policy}: {name}"


@pytest.mark.parametrize("how", ["in turn", "at once"])
def test_two_devices_compute_what_one_does(how):
    """Up to rounding, as a GPU's kernels are others; the same bits on either are below."""
    more = {"simultaneous": True} if how == "at once" else {}
    one, _, _ = steps_of(tango_on(None, **more), LocalBackend("cpu"))
    two, _, places = steps_of(tango_on(DEVICE, **more), LocalBackend("cpu"))
    assert places["generator"] == "cpu" and places["verifier"] == KIND
    assert_near([row for row, _ in two], [row for row, _ in one])


class OneLane(InTurn):
    """Nor is an update made beside another."""

    def lane_of(self, policy):
        return "here"


@pytest.mark.parametrize("how", ["in turn", "at once"])
def test_what_is_done_beside_each_other_has_the_bits_of_one_after_the_other(how):
    more = {"simultaneous": True} if how == "at once" else {}
    early, weights, _ = steps_of(tango_on(DEVICE, **more), LocalBackend("cpu"))
    late, other_weights, _ = steps_of(tango_on(DEVICE, **more), OneLane("cpu"))
    assert early == late
    assert_equal_weights(other_weights, weights)


def test_one_device_samples_while_the_other_learns():
    recipe = tango_on(DEVICE, warmup=2, steps=2)
    sampling, learning = threading.Event(), threading.Event()
    trainer = CoTrainer(recipe, backend=LocalBackend("cpu"))
    engine = trainer.engine.engine
    step_of = engine._schedulers["generator"].step

    def step_watched(entering):
        if learning.is_set():
            sampling.set()
        return step_of(entering)

    engine._schedulers["generator"].step = step_watched
    learner = trainer.policies["verifier"].learner
    update = learner.update

    def update_watched(terms):
        learning.set()
        assert sampling.wait(60.0), "nothing was sampled beside the update"
        return update(terms)

    learner.update = update_watched
    trainer.step()
    trainer.close()
    assert sampling.is_set()


def test_a_slow_teacher_on_another_device_follows():
    recipe = co_rewarding(variant="II", rate=0.3, steps=2, **{**BRIEF, "tasks_per_step": 3, "group_size": 4})
    teacher = next(name for name, spec in recipe.policies.items() if spec.source_policy)
    recipe = override(recipe, [f"policies.{teacher}.device={json.dumps(DEVICE)}"])
    _, weights, places = steps_of(recipe, LocalBackend("cpu"))
    assert places[teacher] == KIND
    plain = steps_of(override(recipe, [f"policies.{teacher}.device=null"]), LocalBackend("cpu"))[1]
    for name, tensor in plain[teacher].items():
        assert torch.allclose(weights[teacher][name], tensor, atol=1e-5), name


def test_adapters_share_a_base_on_each_device():
    recipe = tango_on(DEVICE, lora=4)
    trainer = CoTrainer(recipe, backend=LocalBackend("cpu"))
    models = {name: trainer.policies[name].model for name in ("generator", "verifier")}
    assert models["generator"] is not models["verifier"]
    trainer.step()
    trainer.close()


def test_a_device_that_is_not_there_is_named_with_its_policy():
    recipe = override(tango(**BRIEF), ['policies.verifier.device="cuda:7"'])
    with refuses("E_NO_GPU", names="policies.verifier.device 'cuda:7'"):
        CoTrainer(recipe, backend=LocalBackend("cpu"))
    recipe = override(tango(**BRIEF), ['policies.verifier.device="gpu"'])
    with refuses("E_DEVICE_NAME", names="policies.verifier.device 'gpu'"):
        CoTrainer(recipe, backend=LocalBackend("cpu"))


def test_the_command_takes_it_and_goes_on(tmp_path, capsys):
    out = str(tmp_path / "run")
    words = ["run", "tango", "--smoke", "--model", TINY, "--operations", "2", "2", "--device", "cpu", "--threads", "1"]
    assert main([*words, "--set", f"policies.verifier.device={json.dumps(DEVICE)}", "--out", out]) == 0
    assert main(["resume", out, "--steps", "4", "--device", "cpu", "--threads", "1"]) == 0
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["settings"]["policies"]["verifier"]["device"]
