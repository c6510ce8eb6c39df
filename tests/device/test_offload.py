"""``--offload``: who rests is not on the device, and no bit changes."""

import asyncio
import gc

import pytest
import torch
from torch import nn

from cotrain import api
from cotrain.config.override import override
from cotrain.config.policies import Weights
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.runs import run as loop
from cotrain.trainer.trainer import CoTrainer
from tests.device.beside import DEVICE, small
from tests.device.pretended import NAME, Pretended, memory
from tests.device.test_runs import brief
from tests.distributed.processes import Here
from tests.helpers import LeaveAfter, mixed_requests
from tests.runs.test_run import digest

pytestmark = pytest.mark.whole


def resting(recipe):
    names = [name for name, spec in recipe.policies.items() if isinstance(spec, Weights)]
    return override(recipe, [f"policies.{name}.offload=true" for name in names])


def on_device(trainer):
    """Parameters of each policy that are on the device: (policy, parameter) → bytes."""
    models = {handle.name: handle.model for handle in trainer.policies if hasattr(handle, "model")}
    return {
        (policy, name): parameter.nbytes
        for policy, model in models.items()
        for name, parameter in model.named_parameters()
        if parameter.device.type == NAME
    }


def bits_of(trainer):
    found = {f"{policy}/{name}": t for policy, ts in trainer.policies.tensors().items() for name, t in ts.items()}
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in found.items()}


MADE = {
    "tango": lambda: brief(kl=0.1),
    "tango, four rows at a time": lambda: override(
        brief(kl=0.1), [f"policies.{name}.rows=4" for name in ("generator", "verifier")]
    ),
    "tango, adapters": lambda: brief(lora=4, kl=0.1),
    "tango, half precision": lambda: override(
        brief(kl=0.1), [f"policies.{name}.autocast=true" for name in ("generator", "verifier", "reference")]
    ),
    "cooper": lambda: small("cooper"),  # a reward model that is asked
    "rise: ppo": lambda: small("rise: ppo"),  # a critic
    "co_rewarding": lambda: small("co_rewarding"),  # a moving average
    "spin": lambda: small("spin", steps=3),  # a snapshot
}
AT_LANDINGS = ("tango", "tango, adapters", "cooper")  # weights, adapters, a head; the others at night
CASES = [pytest.param(case, marks=[] if case in AT_LANDINGS else pytest.mark.nightly) for case in MADE]


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.nightly), DEVICE])
@pytest.mark.parametrize("case", CASES)
def test_no_bit_changes(case, device):
    trainers = [CoTrainer(recipe, backend=LocalBackend(device)) for recipe in (MADE[case](), resting(MADE[case]()))]
    for _ in range(2):
        plain, moved = (trainer.step().row for trainer in trainers)
        assert moved == plain
    figures = [trainer.evaluate("test", 2, group_size=2)[0] for trainer in trainers]
    assert figures[0] == figures[1]
    assert bits_of(trainers[0]) == bits_of(trainers[1])


@pytest.mark.parametrize("case", CASES)
def test_nobody_is_on_the_device_but_who_computes(case):
    """At every look-up of an embedding, which begins each pass."""
    trainer, seen = CoTrainer(resting(MADE[case]()), backend=LocalBackend(DEVICE)), set()
    models = {id(h.model): h.model for h in trainer.policies if hasattr(h, "model")}
    own = {h.name: id(h.model) for h in trainer.policies if hasattr(h, "model")}

    def look(module, _):
        awake = next(model for model in models.values() if module in model.modules())
        here = {(own[policy], name) for policy, name in on_device(trainer)}
        assert {model for model, _ in here} == {id(awake)}
        adapters = {name.split(".policy-")[1].split(".")[0] for _, name in here if ".policy-" in name}
        assert len(adapters) <= 1
        plain = {name for name, _ in awake.named_parameters() if ".policy-" not in name}
        assert {name for _, name in here if ".policy-" not in name} == plain
        seen.add((id(awake), *adapters))

    for model in models.values():
        body = model if hasattr(model, "get_input_embeddings") else model.body
        body.get_input_embeddings().register_forward_pre_hook(look)
    for _ in range(2):
        trainer.step()
    trainer.evaluate("test", 2, group_size=2)
    assert len(seen) >= 2


def models_of(trainer):
    return list({id(h.model): h.model for h in trainer.policies if hasattr(h, "model")}.values())


def copies_of(trainer):
    """How many models have copies of their linear layers in half precision on the device."""
    layers = [[m.weight.shape for m in model.modules() if isinstance(m, nn.Linear)] for model in models_of(trainer)]
    gc.collect()
    held = [t for t in gc.get_objects() if type(t) is Pretended and t.dtype == torch.bfloat16]
    return sum(t.shape in layers[0] for t in held) / min(map(len, layers))


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("half", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_bytes_of_a_step(lora, half):
    """Three models of one size, or adapters beside a critic: at rest one of them is left, and the most of a step is
    less by what the others take."""
    rest, most = {}, {}
    for moved in (False, True):
        recipe = brief(lora=lora, kl=0.1) if not lora else small("rise: ppo", lora=lora)
        names = [name for name, spec in recipe.policies.items() if isinstance(spec, Weights)]
        recipe = override(recipe, [f"policies.{name}.autocast={str(half).lower()}" for name in names])
        gc.collect()
        before = memory.now
        trainer = CoTrainer(resting(recipe) if moved else recipe, backend=LocalBackend(DEVICE))
        trainer.step()
        memory.reset_peak()
        trainer.step()
        rest[moved], most[moved] = memory.now - before, memory.peak - before
        sizes = sorted(sum(p.nbytes for p in model.parameters()) for model in models_of(trainer))
        assert not moved or copies_of(trainer) <= 1
        del trainer
    others = sum(sizes[:-1])
    assert rest[True] <= rest[False] - others and most[True] <= most[False] - others


@pytest.mark.parametrize("case", ["tango", "tango, adapters", "co_rewarding", "spin"])
def test_a_checkpoint_takes_no_memory_of_the_device(case):
    """But that of one tensor: copies of weights, moments and pools are the CPU's."""
    trainer = CoTrainer(MADE[case](), backend=LocalBackend(DEVICE))
    for _ in range(2):
        trainer.step()
    gc.collect()
    memory.reset_peak()
    before, largest = memory.now, max(p.nbytes for model in models_of(trainer) for p in model.parameters())
    trainer.state()
    parts = trainer.policies.checkpoint_parts()
    assert parts and memory.peak <= before + largest
    assert {tensor.device.type for group in parts.values() for tensor in group.values()} == {"cpu"}


def test_rows_of_two_policies_that_are_served_side_by_side():
    """One step of each in turn, as a server has it: weights change places while rows run."""
    found = []
    for recipe in (brief(kl=0.1), brief(kl=0.1, offload=True)):
        trainer = CoTrainer(recipe, backend=LocalBackend(DEVICE))
        asked = mixed_requests(["generator", "verifier"], 6, seed=2)

        async def play(engine=trainer.engine, asked=asked):
            tasks = [asyncio.ensure_future(engine.sample(one)) for one in asked]
            await asyncio.sleep(0)
            while engine.step():
                await asyncio.sleep(0)
            return [await task for task in tasks]

        found.append(asyncio.run(play()))
    assert found[0] == found[1]


def test_a_run_its_checkpoints_and_its_resumption(tmp_path):
    for name, recipe in (("plain", brief(kl=0.1)), ("moved", brief(kl=0.1, offload=True))):
        api.run(recipe, tmp_path / name, checkpoint_every=1, device=DEVICE)
    recipe = brief(kl=0.1, offload=True)
    with pytest.raises(KeyboardInterrupt):
        api.run(
            recipe, tmp_path / "cut", checkpoint_every=1, device=DEVICE, observer=LeaveAfter(2, KeyboardInterrupt())
        )
    api.resume(tmp_path / "cut", device=DEVICE, recipe=recipe)
    assert digest(tmp_path / "moved") == digest(tmp_path / "cut")
    apart = MultiProcessBackend(Here(), DEVICE)
    loop.start_run(brief(kl=0.1, offload=True), tmp_path / "apart", checkpoint_every=1, backend=apart)
    for file in ("metrics.jsonl", "summary.json"):
        assert len({(tmp_path / name / file).read_bytes() for name in ("plain", "moved", "apart")}) == 1, file
