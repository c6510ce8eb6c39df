"""How much of its policies a run has changed: by hand, for each kind of policy, and at the end of a run."""

import json
from dataclasses import replace

import pytest
import torch

from cotrain.cli.main import main
from cotrain.config.policies import adapter, critic, frozen, reward_model, trainable
from cotrain.distributed.local import LocalBackend
from cotrain.models.adapters import merge_into_base
from cotrain.models.load import load_model
from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.trainer.sparsity import UnchangedCount, compare_models, compare_pairs, compare_tensors, update_sparsity
from tests.helpers import EASY, TINY
from tests.sentences import command_refuses

SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "lr": 1e-3, "tasks": EASY}


def test_what_bfloat16_cannot_tell_apart_is_unchanged():
    before = torch.tensor([1.0, 1.0, 1.0, 2e-4, 0.0, -3.0])
    after = torch.tensor([1.0, 1.0 + 2**-9, 1.0 + 2**-7, 2e-4 + 5e-6, 9e-6, 3.0])
    # the same; lost in rounding; one step of bfloat16; another number, 5e-6 away; so is this; another sign
    assert compare_tensors(before, after) == UnchangedCount(weights=6, same=2, near=4)
    assert compare_tensors(before.double(), before) == UnchangedCount(weights=6, same=6, near=6)
    with pytest.raises(ValueError, match="one shape"):
        compare_tensors(before, after[:2])


def test_tensors_are_added_up_and_other_names_are_no_comparison():
    one, two = torch.ones(2, 2), torch.zeros(3)
    assert compare_pairs([(one, one), (two, one[0, 0] + two)]) == UnchangedCount(weights=7, same=4, near=4)
    assert compare_models(iter([("a", one)]), {"a": one}) == UnchangedCount(weights=4, same=4, near=4)
    assert (
        compare_models(iter([("a", one)]), {"b": one}) is None
        and compare_models(iter([("a", one)]), {"a": two}) is None
    )


def opened(**policies):
    return LocalBackend().open(policies, seed=3)


KINDS = {
    "whole": trainable(TINY, lr=1e-3),
    "values": critic(TINY),
    "scores": reward_model(TINY),
    "small": adapter(TINY, rank=2, alpha=6),
}


@pytest.mark.whole
def test_nothing_has_changed_at_the_start_whatever_learns():
    handles = opened(still=frozen(TINY), **KINDS)
    found = update_sparsity(handles.values(), seed=3)
    assert set(found) == {f"{n}/update_sparsity{t}" for n in KINDS for t in ("", "_1e-5")}
    assert {figure.value for figure in found.values()} == {1.0}
    size = sum(p.numel() for p in load_model(TINY)[0].parameters())
    assert found["whole/update_sparsity"].n == found["small/update_sparsity"].n == size


def test_what_was_changed_is_counted():
    handles = opened(**{name: KINDS[name] for name in ("whole", "values")})
    for name in handles:
        weight = next(tensor for _, tensor in handles[name].weights() if tensor.ndim == 2)
        weight[0] = 7.0  # one row
        weight[1, 0] += 1e-9  # lost in bfloat16
    found = update_sparsity(handles.values(), seed=3)
    for name in handles:
        row = next(tensor.shape[1] for _, tensor in handles[name].weights() if tensor.ndim == 2)
        figure = found[f"{name}/update_sparsity"]
        assert figure.value == 1.0 - row / figure.n == figure.low == figure.high


@pytest.mark.whole
def test_an_adapter_is_compared_as_the_model_that_it_makes_of_its_base(tmp_path):
    for further in ({}, {"path": tmp_path / "saved"}):  # fresh, and one that was saved
        handles = opened(small=adapter(TINY, rank=2, alpha=6, **{k: str(v) for k, v in further.items()}))
        handle = handles["small"]
        start = dict(merge_into_base(handle.base, "small").named_parameters())
        generator = torch.Generator().manual_seed(1)
        for name, weight in handle.weights():
            if ".lora_B." in name and ".0." in name:
                weight += 0.002 * torch.randn(weight.shape, generator=generator)
        end = dict(merge_into_base(handle.base, "small").named_parameters())
        slow = compare_pairs((start[name], end[name]) for name in start)
        assert 0 < slow.same < slow.weights
        found = update_sparsity(handles.values(), seed=3)
        assert found["small/update_sparsity"].value == slow.same / slow.weights
        assert found["small/update_sparsity_1e-5"].value == slow.near / slow.weights
        handle.base.save("small", tmp_path / "saved")


def test_what_cannot_be_measured_is_said_and_ends_nothing(tmp_path):
    said = []
    handles = opened(whole=KINDS["whole"], values=KINDS["values"])
    handles["whole"].spec = replace(KINDS["whole"], model=str(tmp_path / "gone"))
    handles["values"].sharded = True
    assert update_sparsity(handles.values(), seed=3, say=said.append) == {}
    assert sorted(line.split(": ")[1] for line in said) == [
        "values/update_sparsity is not measured",
        "whole/update_sparsity is not measured",
    ]


@pytest.mark.whole
def test_a_run_ends_with_it_and_begins_without(tmp_path, capsys):
    made = grpo(steps=2, kl=0.0, **SMALL)
    loop.start_run(replace(made, evaluation=replace(made.evaluation, group_size=1, splits=())), tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    shares = [summary["after"][f"generator/update_sparsity{t}"]["value"] for t in ("", "_1e-5")]
    assert 0.0 <= shares[0] <= shares[1] <= 1.0 and "generator/update_sparsity" not in summary["before"]
    assert not any("sparsity" in key for key in summary["change"])
    assert (shares[0] < 1.0) == bool(summary["updates"]["generator"])
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert 0.0 < row["solver/entropy"] < 10.0
    large = ["eval", str(tmp_path / "run"), "--problems", "2", "--samples", "6", "--threads", "1"]
    assert main([*large, "--step", "0"]) == 0 and main([*large, "--json"]) == 0
    ends = [tmp_path / "run" / f"eval-test{step}-6-samples.json" for step in ("-step-0", "")]
    start, end = (json.loads(file.read_text()) for file in ends)
    assert (start["step"], end["step"]) == (0, 2)
    passed = [end["figures"][f"solver/pass@{k}"]["value"] for k in (1, 2, 4, 6)]
    assert passed == sorted(passed) and "solver/pass@6" in capsys.readouterr().out
    command_refuses([*large, "--solver", "verifier"], "E_UNKNOWN_ROLE: 'verifier'", capsys)
