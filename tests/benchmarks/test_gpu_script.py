"""``benchmarks/gpu.py`` where there is no GPU: its checks at tiny sizes, and its page. The whole of it is run by hand:
``python benchmarks/gpu.py --quick --device cpu``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import gpu
from gpu_checks import against_the_reference, layouts
from models import GPU_SIZES, qwen

from cotrain.models.from_scratch import new_model


@pytest.fixture(scope="module")
def model():
    return new_model(qwen(GPU_SIZES["wide"]), seed=0)


@pytest.mark.whole
def test_the_checks_pass_and_leave_the_weights_alone(model):
    before = {name: p.clone() for name, p in model.named_parameters()}
    work = gpu.QUICK.check
    lines = [*against_the_reference(model, work, "cpu"), *layouts(model, work, gpu.QUICK.micro)]
    assert [line.verdict for line in lines] == ["ok"] * 4 + [""] + ["ok"] * 2
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_section_that_fails_is_a_row_and_the_rest_goes_on(model, tmp_path, monkeypatch):
    def memory(bench, lora):
        if not lora:
            raise RuntimeError("a command ended with 1:\nCUDA | out of memory\n")

    bench = gpu.Bench(plan=gpu.QUICK, device="cpu", directory=tmp_path)
    monkeypatch.setattr(gpu, "process_age", lambda: 0.0)  # tests may have run for longer than the script is given
    monkeypatch.setattr(gpu, "new_model", lambda config, seed: model)
    for name in ("against_the_reference", "layouts", "as_on_the_cpu", "twice", "kill_and_resume"):
        monkeypatch.setattr(gpu, name, lambda *_: [])
    for name in ("decoding", "updating", "grpo", "tango"):
        monkeypatch.setattr(gpu.Bench, name, lambda *_: None)
    monkeypatch.setattr(gpu.Bench, "memory", memory)
    assert gpu.run(bench) is False
    page = gpu.markdown(bench)
    assert "| peak memory | RuntimeError | CUDA / out of memory | FAILED |" in page and page.count("FAILED") == 1
    assert "| memory | " in page and "Tiny sizes" in page


def test_floors_in_half_precision_by_hand(tmp_path):
    bench = gpu.Bench(plan=gpu.QUICK, device="cpu", directory=tmp_path)
    bench.rates = gpu.Ceilings(flops=1e30, bandwidth={1: 1000.0})
    cost, seconds = bench.floor("decode", gpu.QUICK.decode[0])
    shape, work = GPU_SIZES["wide"], gpu.QUICK.decode[0]
    pairs = sum(work.prompt + t for t in range(1, work.new)) * work.rows  # what each fed token looks at
    kept = 2 * shape.depth * 16 * pairs  # two key heads of width 8
    assert cost.traffic == 2 * ((work.new - 1) * shape.parameters + kept)
    assert seconds == pytest.approx(cost.traffic / 1000.0)


def test_without_a_gpu_it_says_how_to_try_it(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "--tiny --device cpu" in capsys.readouterr().err
