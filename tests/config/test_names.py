"""Roles and policies have one name in every command, the one that pages, tables and the server print."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cotrain.cli.main import main
from cotrain.config.names import policy_named, role_named
from cotrain.recipes.tango import tango
from cotrain.reports.why import explain_rollout
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

NAMES = ("solver", "generator", "policy/generator", "reference", "policy/reference")


@pytest.mark.whole
def test_why_knows_names_and_loads_no_model_library():
    code = "import sys, cotrain.reports.why; assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_a_name_is_a_role_or_a_policy_or_an_objective():
    recipe = tango(model=TINY)
    assert [policy_named(recipe, name) for name in NAMES] == ["generator"] * 3 + ["reference"] * 2
    assert [role_named(recipe, name) for name in NAMES[:3]] == ["solver"] * 3
    assert role_named(recipe, "policy/verifier") == "verifier"
    objectives = {"answers": recipe.objectives["generator"]}
    renamed = SimpleNamespace(roles=recipe.roles, policies=recipe.policies, objectives=objectives)
    assert policy_named(renamed, "answers") == "generator" and role_named(renamed, "answers") == "solver"
    for wrong, code in (
        ("policy/solver", "E_NO_SUCH_ROLE_OR_POLICY"),
        ("genrator", "E_NO_SUCH_ROLE_OR_POLICY: 'generator'"),
    ):
        with refuses(code):
            policy_named(recipe, wrong)
    with refuses("E_POLICY_UNSUITED"):
        role_named(recipe, "policy/reference")


def test_of_several_roles_the_one_that_fits_is_meant():
    recipe = tango(model=TINY)
    roles = {name: replace(role, policy="generator") for name, role in recipe.roles.items()}
    both = SimpleNamespace(roles=roles, policies=recipe.policies, objectives={})
    with refuses("E_POLICY_UNSUITED"):
        role_named(both, "generator")
    assert role_named(both, "generator", fits=lambda role: "solution" in role.prompt) == "verifier"


@pytest.mark.whole
def test_every_command_takes_the_same_names(tmp_path, monkeypatch, capsys):
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(TINY, "model")
    words = ["--steps=2", "--warmup=0", "--ratio", "1", "1", "--tasks-per-step=2", "--group-size=2", "--threads=1"]
    words += ["--evaluation-tasks=2", "--reviews=1", "--operations", "2", "2", "--set=evaluation.splits=[]"]
    words += ["--set=evaluation.group_size=1", "--model=./model"]
    assert main(["run", "tango", "--out=run", *words]) == 0, capsys.readouterr()
    for name in NAMES:
        out = name.replace("/", "-")
        assert main(["export", "run", "--role", name, "--out", out]) == 0, capsys.readouterr()
    weights = {name: Path(name.replace("/", "-"), "model.safetensors").read_bytes() for name in NAMES}
    assert weights["generator"] == weights["policy/generator"] == weights["solver"] != weights["policy/reference"]
    Path("gsm8k.jsonl").write_text(json.dumps({"question": "What is 2 + 3?", "answer": "#### 5"}) + "\n")
    suite = ["eval", "run", "--suite=gsm8k", "--data=gsm8k.jsonl", "--samples=0", "--max-tokens=8"]
    assert main([*suite, "--solver=policy/generator", "--verifier=policy/verifier"]) == 0, capsys.readouterr()
    code = "E_NO_SUCH_ROLE_OR_POLICY: --solver | 'policy/nobody'"
    command_refuses([*suite, "--solver=policy/nobody"], code, capsys)
    assert main(["xplay", "run", "--problems=1", "--samples=1", "--role=policy/verifier"]) == 0, capsys.readouterr()
    assert json.loads(Path("run/xplay.json").read_text())["role"] == "verifier"
    command_refuses(["attack", "run", "--role=policy/generator"], "E_ROLE_WITHOUT_VERDICT: 'solver' | --role", capsys)
    assert main(["why", "run", "0:0:0:generator"]) == 0
    told = capsys.readouterr().out
    assert "solver (generator" in told and "(verifier, version" not in told


def test_a_rollout_is_told_by_policy_and_call():
    trace = {"role": "solver", "policy": "generator", "address": "0:0:0:solver:0", "parent": None, "version": 0}
    trace |= {"rewards": [], "weights": {}, "turns": [], "token_count": 0, "finish": "stop", "failure": None}
    trace |= {"text": "", "findings": None, "metadata": None, "learned": "yes"}
    judge = trace | {"role": "verifier", "policy": "verifier", "address": "0:0:0:verifier:1"}
    found = {"step": 0, "task": 0, "member": 0, "task_id": "", "failure": None, "problem": ""}
    found["traces"] = [trace, judge]
    for only, count in (("", 2), ("verifier:1", 1), ("policy/generator", 1), ("generator:0", 1)):
        assert len([line for line in explain_rollout(found, only) if "version" in line]) == count, only
