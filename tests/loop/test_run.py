"""Whole runs of the shipped recipes with the embedded model: interrupted, killed and delayed runs end the same."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain import api
from cotrain.core.errors import RunDirectoryError
from cotrain.disk import transaction
from cotrain.disk.ledger import Ledger
from cotrain.learn.ppo import Ppo, ValueRegression
from cotrain.loop import run as loop
from cotrain.loop.policies import critic, trainable
from cotrain.loop.recipe import Objective
from cotrain.loop.run import Interrupted
from cotrain.loop.schedule import single
from cotrain.loop.trainer import CoTrainer, permuted
from cotrain.play.protocols import solve
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.tasks.words.source import word_problems
from tests.helpers import RandomLatency

SMALL = {"tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 1, "lr": 1e-3}


def ppo(tasks):
    """A generator and a critic that learns without speaking, from the same episodes."""
    made = grpo(steps=2, tasks=tasks, kl=0.0, **SMALL)
    outcome = {"outcome": 1.0}
    return replace(
        made,
        policies={"generator": trainable("embedded", lr=1e-3), "critic": critic("embedded", lr=1e-3)},
        objectives={
            "generator": Objective(policy="generator", on="solver", by=Ppo(mix=outcome, values="critic")),
            "critic": Objective(policy="critic", on="solver", by=ValueRegression(mix=outcome, values="critic")),
        },
        schedule=single(solve, "generator", "critic"),
    )


CASTS = {
    "ppo": ppo,
    "grpo": lambda tasks: grpo(steps=3, tasks=tasks, **SMALL),
    "grpo-oracle": lambda tasks: grpo(steps=3, tasks=tasks, steps_judged_by="oracle", **SMALL),
    "tango": lambda tasks: tango(steps=4, warmup=1, ratio=(2, 1), reviews=3, tasks=tasks, **SMALL),
    "tango-frozen": lambda tasks: tango(steps=2, verifier="frozen", tasks=tasks, **SMALL),
    "tango-simultaneous": lambda tasks: tango(steps=2, simultaneous=True, reviews=8, tasks=tasks, **SMALL),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    torch.set_num_threads(1)


def easy():
    return word_problems(operations=(2, 2), distractors=(0, 0))


def digest(folder: Path) -> str:
    """Over everything that must not depend on interruptions: weights, state, metrics, ledger."""
    found = hashlib.sha256()
    newest = transaction.latest(folder / "checkpoints").path
    files = [
        *sorted(newest.iterdir()),
        folder / "metrics.jsonl",
        *sorted((folder / "episodes").iterdir()),
        folder / "summary.json",
    ]
    for file in files:
        found.update(file.name.encode())
        found.update(file.read_bytes())
    return found.hexdigest()


class Counted:
    """An engine that counts its advances, and stops the run at one of them."""

    def __init__(self, engine, stop_at=None):
        self.engine, self.count, self.stop_at = engine, 0, stop_at
        self.sample, self.publish, self.counts = engine.sample, engine.publish, engine.counts

    def advance(self):
        self.count += 1
        if self.count == self.stop_at:
            raise Interrupted(signal.SIGINT)
        return self.engine.advance()


@pytest.mark.parametrize("name", CASTS)
def test_every_cast_resumes_bit_for_bit_and_ignores_latency(name, tmp_path):
    whole, broken, slow = tmp_path / "whole", tmp_path / "broken", tmp_path / "slow"
    engines = []

    def counted(engine, stop_at=None):
        engines.append(Counted(engine, stop_at))
        return engines[-1]

    loop.start(CASTS[name](easy()), whole, checkpoint_every=1, wrap=counted)
    assert any(e.traces for e in Ledger(whole / "episodes").read(0))

    middle = engines[0].count // 2
    with pytest.raises(Interrupted):
        loop.start(CASTS[name](easy()), broken, checkpoint_every=1, wrap=lambda engine: counted(engine, middle))
    loop.resume(CASTS[name](easy()), broken)
    assert digest(broken) == digest(whole)

    loop.start(CASTS[name](easy()), slow, checkpoint_every=1, wrap=lambda engine: RandomLatency(engine, 7))
    assert digest(slow) == digest(whole)


def test_the_weights_really_move(tmp_path):
    recipe = CASTS["tango"](easy())
    loop.start(recipe, tmp_path / "run")
    tensors, documents = transaction.latest(tmp_path / "run" / "checkpoints").load()
    start = CoTrainer(recipe).cast.tensors()
    assert set(tensors) == {"generator", "verifier"}
    for policy in tensors:
        assert documents["state"]["cast"]["updates"][policy] > 0
        moved = [
            n for n in start[policy] if n.startswith("model.") and not torch.equal(start[policy][n], tensors[policy][n])
        ]
        assert len(moved) > 10, policy


COMMAND = [
    sys.executable, "-m", "cotrain.cli", "run", "tango", "--steps", "5", "--set", "evaluation.members=2", "--set", "evaluation.splits=[]",
    "--warmup", "1", "--ratio", "1", "1", "--reviews", "3",
    "--tasks-per-step", "3", "--group-size", "3", "--evaluation-tasks", "1", "--evaluate-every", "3", "--operations", "2", "2",
    "--checkpoint-every", "1", "--threads", "1", "--out",
]  # fmt: skip


def test_killed_at_random_points_a_run_ends_as_if_never_killed(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([*COMMAND, str(whole)], check=True, capture_output=True)
    command, chance = [*COMMAND, str(killed)], random.Random(time.time_ns())
    for rows in (1, 4):  # of the metrics, before the kill
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and _lines(killed / "metrics.jsonl") < rows:
            time.sleep(0.002)
        time.sleep(chance.random() * 0.1)
        assert process.poll() is None, "it ended before it was killed"
        process.send_signal(signal.SIGKILL)
        process.wait()
        command = [sys.executable, "-m", "cotrain.cli", "resume", str(killed)]
    subprocess.run(command, check=True, capture_output=True)
    assert digest(killed) == digest(whole)


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_signal_saves_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    process = subprocess.Popen([*COMMAND, str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (out / "before.json").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 143, text
    assert f"cotrain resume {out}" in text
    assert (out / "report.html").exists()
    assert "Traceback" not in text


def test_a_directory_in_use_is_refused(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.txt").write_text("do not lose me")
    with pytest.raises(RunDirectoryError, match="not empty"):
        loop.start(CASTS["grpo"](easy()), out)
    assert (out / "thesis.txt").read_text() == "do not lose me"
    (out / "recipe.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match="cotrain resume"):
        loop.start(CASTS["grpo"](easy()), out)
    with pytest.raises(RunDirectoryError, match="no such directory"):
        api.rebuild(tmp_path / "nowhere")


def test_a_permutation_visits_every_place_once():
    for size in (1, 2, 7, 64, 1000):
        assert sorted(permuted(i, size, 5) for i in range(size)) == list(range(size))
    assert [permuted(i, 50, 1) for i in range(50)] != [permuted(i, 50, 2) for i in range(50)]


def test_the_environment_is_not_written_into_a_run(tmp_path, monkeypatch):
    monkeypatch.setitem(os.environ, "HF_TOKEN", "canary-7f3a")
    loop.start(CASTS["grpo"](easy()), tmp_path / "run")
    written = b"".join(f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file())
    assert b"canary-7f3a" not in written
