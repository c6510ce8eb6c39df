"""Whole runs on the pretended device and across devices, adapters, evaluation, processes, commands: beside the CPU."""

import json
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM, StableLmConfig

from cotrain import api
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.distributed.local import LocalBackend
from cotrain.distributed.multi_process import MultiProcessBackend
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import complete_request
from cotrain.models.load import load_model
from cotrain.recipes.tango import tango
from cotrain.runs import opening
from cotrain.runs import run as loop
from cotrain.trainer.trainer import CoTrainer
from tests.device.beside import DEVICE, KIND, assert_near, rows_on, small
from tests.distributed.processes import Here
from tests.distributed.test_async_steps import rows
from tests.distributed.test_several import briefly
from tests.helpers import EASY, TINY, LeaveAfter, answers, mixed_requests, tiny_model

pytestmark = pytest.mark.whole
NEEDS_RAY = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
BRIEF = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 2, "lr": 1e-3}
LEARNING = {  # what two steps of the methods do not reach, and how many steps do
    "generator_verifier_critic: dpo": 2,
    "rise: ppo": 2,
    "spin": 3,
    "cooper": 3,
    "semi_supervised: none": 4,
    "two_agents_split: shared": 2,
    "at_grpo: dr_mas, shared": 2,
}


def brief(**more):
    return briefly(tango(**{**BRIEF, "steps": 3, "warmup": 0, "ratio": (1, 1), "reviews": 2, **more}))


@pytest.mark.parametrize("case", LEARNING)
def test_what_learns_later_has_the_rows_of_the_cpu(case):
    recipe = small(case)
    assert_near(*(rows_on(device, recipe, LEARNING[case]) for device in (DEVICE, "cpu")))


def test_adapters_on_one_base_have_the_rows_of_the_cpu():
    assert_near(*(rows_on(device, brief(lora=4)) for device in (DEVICE, "cpu")))


def test_moments_rest_beside_the_device_and_change_no_bit():
    """After each update, and after a checkpoint of either was loaded."""
    apart = [f"policies.{name}.offload=true" for name in ("generator", "verifier")]
    recipes = {False: brief(), True: override(brief(), apart)}
    trainers = {moved: CoTrainer(recipe, backend=LocalBackend(DEVICE)) for moved, recipe in recipes.items()}

    def moment_devices(trainer):
        optimizers = [trainer.policies[name].learner._optimizer for name in ("generator", "verifier")]
        states = [state for one in optimizers for part in one.parts for state in part.state.values()]
        return {tensor.device.type for state in states for tensor in state.values()}

    for _ in range(2):
        rows = {moved: trainer.step().row for moved, trainer in trainers.items()}
        assert rows[True] == rows[False]
        assert {moved: moment_devices(t) for moved, t in trainers.items()} == {False: {KIND}, True: {"cpu"}}
    saved = trainers[False].state(), trainers[False].policies.tensors()
    trainers[True].load(*saved)
    assert moment_devices(trainers[True]) == {"cpu"}
    assert trainers[True].step().row == trainers[False].step().row


def test_held_out_figures_are_those_of_the_cpu():
    found = []
    for device in (DEVICE, "cpu"):
        figures, _ = CoTrainer(brief(), backend=LocalBackend(device)).evaluate("test", 3, group_size=2)
        found.append(
            {f"{key}/{end}": getattr(f, end) for key, f in figures.items() for end in ("low", "value", "high")}
        )
    assert_near(*([one] for one in found))


@pytest.mark.parametrize("shapes", [None, False])  # of fixed shape, as on a GPU, and as where a model cannot
@pytest.mark.parametrize("kind", ["qwen3", "stablelm"])  # whose prompts are prefilled side by side, and padded
def test_an_engine_answers_as_the_reference_on_the_cpu(kind, shapes):
    """Greedy, cut, with stop tokens; prompts of many lengths, a few rows at a time."""
    model = tiny_model(kind) if kind == "qwen3" else padded()
    asked = mixed_requests(["a"], 10, seed=1)
    expected = [complete_request(model, one) for one in asked]
    for mine, theirs in zip(
        answers(LocalEngine({"a": model}, device=DEVICE, max_rows=3, static=shapes), asked), expected, strict=True
    ):
        assert mine.token_ids == theirs.token_ids and mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


def padded():
    config = StableLmConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    out = tmp_path_factory.mktemp("usual") / "run"
    api.run(brief(), out, checkpoint_every=1)
    return out


@pytest.mark.parametrize("first, then", [("cpu", DEVICE), (DEVICE, "cpu")])
def test_a_run_goes_on_on_the_other_device(first, then, usual, tmp_path):
    """From its checkpoint; weights, moments and what the run remembers come along."""
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        api.run(brief(), out, checkpoint_every=1, device=first, observer=LeaveAfter(2, KeyboardInterrupt()))
    api.resume(out, device=then, recipe=brief())
    assert_near(rows(out), rows(usual))
    assert all(t.device.type == "cpu" for t in opening.load_trainer(out).policies.tensors()["generator"].values())


@NEEDS_RAY
def test_engine_and_learners_apart_have_the_rows_of_one_process_on_the_cpu(usual, tmp_path):
    """All that passes between them is pickled, and read where another device may be."""
    loop.start_run(brief(), tmp_path / "apart", checkpoint_every=1, backend=MultiProcessBackend(Here(), DEVICE))
    assert_near(rows(tmp_path / "apart"), rows(usual))


@NEEDS_RAY
def test_a_play_beside_the_update_has_the_rows_of_the_cpu(tmp_path):
    """``--async-steps 1``: two threads at the device, the weights of the engine apart."""
    loop.start_run(
        brief(), tmp_path / "apart", checkpoint_every=1, backend=MultiProcessBackend(Here(), DEVICE), async_steps=1
    )
    loop.start_run(brief(), tmp_path / "cpu", checkpoint_every=1, async_steps=1)
    assert_near(rows(tmp_path / "apart"), rows(tmp_path / "cpu"))


def figures(path):
    found = json.loads(path.read_text())["figures"]
    return [{f"{key}/value": figure["value"] for key, figure in found.items()}]


def test_figures_suites_and_weights_of_a_run_by_command(usual, tmp_path, monkeypatch):
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"{i} + {i} = ?", "answer": str(2 * i)}) + "\n" for i in range(4)))
    for device in (DEVICE, "cpu"):
        assert main(["eval", str(usual), "--split", "test", "--problems", "2", "--device", device]) == 0
        (usual / "eval-test.json").rename(tmp_path / f"{device}-test.json")
        suite = ["eval", str(usual), "--suite", "jsonl", "--data", f"jsonl={data}", "--samples", "2"]
        assert main([*suite, "--device", device, "--out", str(tmp_path / device)]) == 0
    for name in ("{}-test.json", "{}/suite-jsonl.json"):
        assert_near(*(figures(tmp_path / name.format(device)) for device in (DEVICE, "cpu")))


def test_a_run_of_the_device_is_exported(tmp_path):
    api.run(brief(steps=2), tmp_path / "run", device=DEVICE)
    assert main(["export", str(tmp_path / "run"), "--role", "solver", "--out", str(tmp_path / "model")]) == 0
    exported, _ = load_model(tmp_path / "model")
    learned = opening.load_trainer(tmp_path / "run").policies["generator"].model
    assert all(torch.equal(a, b.cpu()) for a, b in zip(exported.parameters(), learned.parameters(), strict=True))


def test_stages_by_command(tmp_path):
    """A base from nothing and its tuning: the weights of the CPU, up to rounding."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"question": f"{i} + 1?", "answer": f"So #### {i + 1}"}) + "\n" for i in range(40))
    )
    size = ["--tokens=4096", "--batch-tokens=512", "--length=128"]
    models = []
    for device in (DEVICE, "cpu"):
        base, tuned = tmp_path / f"base-{device}", tmp_path / f"tuned-{device}"
        assert main(["pretrain", f"--out={base}", "--depth=1", *size, f"--device={device}"]) == 0
        assert (
            main(
                [
                    "teach",
                    "solver",
                    f"--model={TINY}",
                    f"--out={tuned}",
                    f"--data={rows}",
                    *size,
                    f"--device={device}",
                ]
            )
            == 0
        )
        models.append([p for path in (base, tuned) for p in load_model(path)[0].parameters()])
    for a, b in zip(*models, strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4)


def test_what_is_served_is_what_the_cpu_says():
    pytest.importorskip("uvicorn")
    from starlette.testclient import TestClient

    from cotrain.serving.app import make_application
    from cotrain.serving.models import ServedRun

    task, found = EASY.get("validation", 3), []
    asked = {"model": "solver", "messages": [{"role": "user", "content": task.prompt}], "seed": 5, "logprobs": True}
    for device in (DEVICE, "cpu"):
        served = ServedRun(CoTrainer(brief(), backend=LocalBackend(device)))
        with TestClient(make_application(served), base_url="http://127.0.0.1:8000") as client:
            answer = client.post("/v1/chat/completions", json=asked)
        served.engine.close()
        assert answer.status_code == 200, answer.text
        (choice,) = answer.json()["choices"]
        found.append([{t["token"] + str(i): t["logprob"] for i, t in enumerate(choice["logprobs"]["content"])}])
    assert_near(*found)
