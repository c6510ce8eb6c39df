"""What tokens were worth stands in the ledger, and a page finds it at their places."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import pytest
import torch

from cotrain.algorithms.policy_gradient import z_score
from cotrain.algorithms.samples import sample_of, token_advantages
from cotrain.core.seeding import Address
from cotrain.core.types import Trace
from cotrain.recipes.grpo import grpo
from cotrain.reports.detail import _align_advantages
from cotrain.reports.runs import open_run
from cotrain.runs import run as loop
from cotrain.storage.episode_json import trace_from_json
from cotrain.storage.ledger import NAME, Ledger


def trace(call: int, tokens: int) -> Trace:
    return Trace(
        address=Address(step=0, task=0, member=0, role="solver", call=call), role="solver", policy="generator",
        version=0, group="g", prompt_ids=(1,), token_ids=(2,) * tokens, logprobs=(0.0,) * tokens, text="",
        finish="stop", failure=None, findings={}, metadata={}, parent=None, rewards=(),
    )  # fmt: skip


def test_advantages_are_told_as_runs_and_once_for_repeated_samples():
    first = sample_of(trace(0, 5))
    given = torch.tensor([0.5, 0.5, -1.23456, -1.23456, -1.23456])
    worth = token_advantages({"generator": [first, sample_of(trace(1, 2))]})
    assert worth == {"0:0:0:solver:0": {"generator": [[0.0, 5]]}, "0:0:0:solver:1": {"generator": [[0.0, 2]]}}
    worth = token_advantages({"generator": [replace(first, advantages=given), first], "critic": [first]})
    assert worth["0:0:0:solver:0"] == {"generator": [[0.5, 2], [-1.235, 3]], "critic": [[0.0, 5]]}


@pytest.mark.whole
def test_a_run_keeps_them_beside_its_rollouts_and_they_are_those_of_the_groups(tmp_path):
    made = grpo(model="shipped", steps=1, tasks_per_step=4, group_size=4, evaluation_tasks=1, kl=0.0)
    loop.start_run(made, tmp_path / "run")
    with gzip.open(tmp_path / "run/episodes" / NAME, "rt") as stream:
        traces = [one for line in stream for one in json.loads(line)["traces"]]
    groups: dict[str, list] = {}
    for one in traces:
        groups.setdefault(one["group"], []).append(one)
    spread = 0
    for mine in groups.values():
        paid = torch.tensor([next(v for n, v, _ in one["rewards"] if n == "outcome") for one in mine])
        if len(set(paid.tolist())) == 1:
            assert all(run[0] == 0 for one in mine for run in one.get("advantages", {}).get("generator", []))
            continue
        spread += 1
        wanted = z_score(paid.double(), torch.zeros(len(mine), dtype=torch.long))
        for one, value in zip(mine, wanted.tolist(), strict=True):
            assert one["advantages"]["generator"] == [[pytest.approx(value, rel=1e-3), len(one["token_ids"])]]
    assert spread  # some group has right and wrong answers
    held = Ledger(tmp_path / "run/episodes").read(0)
    assert [t.address for e in held for t in e.traces] == [trace_from_json(one).address for one in traces]
    shown = open_run(tmp_path / "run").rollout(0, 0, 0)
    (solver,) = shown["traces"]
    assert len(solver["advantages"].get("generator", solver["tokens"])) == len(solver["tokens"])


def test_given_tokens_have_no_advantage():
    turns = [[0, 2, "stop"], [3, 4, "stop"]]
    found = _align_advantages({"token_ids": [1] * 5, "turns": turns}, [[0.5, 2], [-1.0, 1]])
    assert found == [0.5, 0.5, None, -1.0, None]
