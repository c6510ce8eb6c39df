"""Every script of ``benchmarks/`` runs, in a form that takes seconds: what the README, a page or ``RESULTS.md`` names
as a command is never broken by a change elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import TINY

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
WORK = "--tasks 2 --group 2 --prompt 8 --new 4 --steps 1 --warmup 1 --threads 1"
QUICK = {  # words → in the folder of the test; MODEL is a model of random weights, DATA a folder with questions
    "run": "--quick --threads 1",
    "audit_alarm": "--drawn --draws 1",
    "ceilings": "--quick --threads 1",
    "spin_after_sft": f"{TINY} --problems 2",
    "curriculum_ramp": "problems problems.jsonl",
    "habit_rates": f"{TINY} --problems 2 --lengths 2 2 --temperatures 1.0",
    "products": "--rows 8 --seconds 0.01",
    "proposals": "--problems 2 --source 2 2",
    "fuzz": "--texts 200 --files 10",
    "grading": "--answers 60 --rounds 1 --kinds known",
    "grading_study": "--data DATA --pairs 12 --rows 4",
    "programs": "--rounds 1",
    "real_model": "--size tiny --rounds 1 --only float32 --threads 1",
    "memory": f"--model MODEL --roles 2 --lora 4 {WORK}",
    "remote_judge": "--tasks 2 --group 2 --rounds 1 --pause 0.01",
    "decode_parts": "--model MODEL --rows 8 --tokens 4",
    "int8_decode": f"--model {TINY} --rows 8 --tokens 4 --pairs 1 --answers 2",
    "demo_parts": "--steps 4",
    "demo_step": "--steps 4",
    "async_steps": "--quick",
    "two_learners": "--rounds 1",
    "ray_step": "--problems 2 --answers 2 --steps 1",
    "ranks_step": "--problems 2 --steps 1 --worlds 1 2",
    "viewer": "make long --steps 20 --rollouts 2",
    "self_compare": "--out lessons --rounds 4",
    "models": "tiny made",
}
OTHERWISE = {  # script → who runs it, or why nobody can in seconds
    **dict.fromkeys(("decode", "first_token", "grpo_step", "recipe_step", "update"), "a part of run.py --quick"),
    **dict.fromkeys(("base_table", "harness"), "test_benchmarks.py"),
    **dict.fromkeys(
        ("gsm8k_equations", "gsm8k_faults", "gsm8k_lessons", "gsm8k_reviews", "teach_adapter", "verifier_order"),
        "test_gsm8k.py",
    ),
    **dict.fromkeys(("gsm8k_card", "gsm8k_tiny"), "test_gsm8k.py runs their parts; a rehearsal takes minutes"),
    **dict.fromkeys(
        ("batch_figures", "crossed", "reward_order", "what_changed", "wrong_steps"), "test_tables_over_seeds.py"
    ),
    **dict.fromkeys(("blind_spots", "mended_verifier"), "test_missed_errors.py"),
    **dict.fromkeys(("domains", "short_form", "study_curve"), "tests of their names"),
    **dict.fromkeys(("gpu", "gpu_checks"), "test_gpu_script.py runs its parts; --tiny as a whole takes minutes"),
    **dict.fromkeys(("answer_rules", "floors", "hostile_answers", "table", "work"), "imported by the others"),
    "alarm_table": "test_alarm_table.py",
    "agreement": "test_agreement.py; as a whole it needs lm-evaluation-harness",
    "same_prompts": "needs lm-evaluation-harness, which wants another environment",
    "trl_step": "needs TRL, which wants another environment",
    "vllm_decode": "needs vLLM, which wants another environment",
}


def scripts() -> set[str]:
    return {path.stem for path in BENCHMARKS.glob("*.py")}


def test_every_script_is_run_or_it_is_said_why_not() -> None:
    assert QUICK.keys() | OTHERWISE.keys() == scripts() and not QUICK.keys() & OTHERWISE.keys()


SCRIPT_ON_A_PAGE = re.compile(r"(?<!zoo[/.])(?<!tests/)\bbenchmarks[/.](\w+)(?:\.py\b|`| )")


def test_pages_name_scripts_that_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *BENCHMARKS.glob("*.md")]
    named: set[str] = set()
    for page in pages:
        named.update(SCRIPT_ON_A_PAGE.findall(page.read_text(encoding="utf-8")))
    assert len(named) > 15 and named <= scripts()


def test_flags_that_pages_show_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *BENCHMARKS.glob("*.md")]
    shared = (BENCHMARKS / "work.py").read_text(encoding="utf-8")
    checked = 0
    for page in pages:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for name, words in re.findall(r"python benchmarks/(\w+)\.py([^`;&|\n]*)", text):
            source = (BENCHMARKS / f"{name}.py").read_text(encoding="utf-8") + shared
            for flag in re.findall(r"(?<=\s)--[a-z][\w-]*", words.partition("#")[0]):
                assert f'"{flag}"' in source, (page.name, name, flag)
                checked += 1
    assert checked > 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("benchmarks")
    (where / "DATA").mkdir()
    rows = [{"question": f"{n}+1?", "answer": f"One more.\n#### {n + 1}"} for n in range(12)]
    (where / "DATA" / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_script("models", "tiny MODEL", where)
    return where


def run_script(name: str, words: str, where: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *words.split()]
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]


@pytest.mark.whole
@pytest.mark.parametrize("name", QUICK)
def test_a_script_runs(name: str, folder: Path) -> None:
    if name in ("async_steps", "ray_step", "ranks_step") and importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray")
    run_script(name, QUICK[name], folder)
