"""Only checkpoints were verified. A deleted before.json was measured again with trained weights and called "before";
altered metrics, a ledger of something else, an edited seed and checkpoints of another run were resumed without a
word."""

import json
import shutil

import pytest

from cotrain import api
from cotrain.config.override import override
from cotrain.recipes.grpo import grpo
from cotrain.runs import run as loop
from cotrain.storage import checkpoints
from cotrain.trainer.failures import StoppedBySignal
from tests.helpers import EASY, TINY, StopAfter
from tests.sentences import command_refuses, refuses

pytestmark = pytest.mark.whole

STOPPED, STEPS = 3, 5


def recipe(seed=0):
    small = {"model": TINY, "tasks_per_step": 2, "group_size": 4, "evaluation_tasks": 2, "lr": 1e-2}
    made = grpo(steps=STEPS, seed=seed, tasks=EASY, evaluate_every=2, **small)
    return override(made, ["evaluation.splits=[]", "evaluation.group_size=2", "evaluation.curve_tasks=2"])


def stopped_run(folder, seed=0):
    with pytest.raises(StoppedBySignal):
        api.run(recipe(seed), folder, checkpoint_every=1, observer=StopAfter(STOPPED - 1))
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    return stopped_run(tmp_path_factory.mktemp("stopped") / "run")


@pytest.fixture
def run(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def outcome(folder):
    """What a run claims, and the bytes it rests on."""
    files = ["summary.json", "metrics.jsonl", "before.json", "before_counts.json", "episodes/episodes.jsonl.gz"]
    newest = checkpoints.latest_checkpoint(folder / "checkpoints").path
    return [(folder / name).read_bytes() for name in files] + [f.read_bytes() for f in sorted(newest.iterdir())]


@pytest.fixture(scope="module")
def peace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peace") / "run"
    api.run(recipe(), folder, checkpoint_every=1)
    return outcome(folder)


@pytest.mark.parametrize("lost", [["before.json"], ["before_counts.json"], ["before.json", "before_counts.json"]])
def test_a_lost_start_is_measured_again_with_the_weights_of_the_start(run, lost, peace):
    for name in lost:
        (run / name).unlink()
    api.resume(run)
    assert outcome(run) == peace


def test_what_a_kill_leaves_behind_the_checkpoint_is_written_again(run, peace):
    """Whole rows and torn ones, of steps that are done again."""
    newest = checkpoints.latest_checkpoint(run / "checkpoints").path
    shutil.rmtree(newest)
    with (run / "metrics.jsonl").open("ab") as metrics, (run / "episodes" / "episodes.jsonl.gz").open("ab") as ledger:
        metrics.write(b'{"step": 3, "pha')
        ledger.write(b"\x1f\x8b\x08")
    api.resume(run)
    assert outcome(run) == peace


def test_without_any_checkpoint_it_begins_again(run, peace):
    shutil.rmtree(run / "checkpoints")
    api.resume(run)
    assert outcome(run) == peace


def changed_metrics(run):
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    row = json.loads(lines[1])
    row["solver/accuracy"] = 1.0
    (run / "metrics.jsonl").write_text(lines[0] + json.dumps(row) + "\n" + "".join(lines[2:]))


def shorter_metrics(run):
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))


def changed_ledger(run):
    path = run / "episodes" / "episodes.jsonl.gz"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def lost_ledger(run):
    (run / "episodes" / "episodes.jsonl.gz").unlink()


def other_seed(run):
    saved = json.loads((run / "recipe.json").read_text())
    saved["origin"]["arguments"]["seed"] = saved["settings"]["seed"] = saved["seed"] = 1
    (run / "recipe.json").write_text(json.dumps(saved, indent=2))


def better_start(run):
    before = json.loads((run / "before.json").read_text())
    before["solver/pass@1"]["value"] = 0.0
    (run / "before.json").write_text(json.dumps(before, indent=2))


def other_provenance(run):
    made = json.loads((run / "provenance.json").read_text())
    (run / "provenance.json").write_text(json.dumps({**made, "threads": 64}))


def lost_seal(run):
    (run / "seal.json").unlink()


def a_summary(run):
    (run / "summary.json").write_text('{"steps": 5}')


def other_checkpoints(run):
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(stopped_run(run.parent / "other", seed=1) / "checkpoints", run / "checkpoints")


CHANGES = {
    changed_metrics: "E_CHECKPOINT_OF_OTHER_RUN: metrics.jsonl | step-000003",
    shorter_metrics: "E_CHECKPOINT_OF_OTHER_RUN: metrics.jsonl | step-000003",
    changed_ledger: "E_CHECKPOINT_OF_OTHER_RUN: episodes.jsonl.gz | step-000003",
    lost_ledger: "E_CHECKPOINT_OF_OTHER_RUN: episodes.jsonl.gz | step-000003",
    other_seed: "E_RUN_FILE_CHANGED: recipe.json",
    better_start: "E_RUN_FILE_CHANGED: before.json",
    other_provenance: "E_RUN_FILE_CHANGED: provenance.json",
    lost_seal: "E_MANIFEST_MISSING: seal.json",
    a_summary: "E_FILE_OF_OTHER_RUN: summary.json",
    other_checkpoints: "E_CHECKPOINT_OF_OTHER_RUN: step-000003",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_was_changed_is_refused_by_name(run, change, capsys):
    change(run)
    files = {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != ".lock"}
    for command in (["resume"], ["eval", "--problems", "1"], ["report"]):
        told = command_refuses([command[0], run, *command[1:]], CHANGES[change], capsys)
        assert any(todo in told for todo in ("restore it", "start anew", "put this run's own back"))
    assert files == {file: file.read_bytes() for file in run.rglob("*") if file.is_file() and file.name != ".lock"}


def test_a_finished_run_is_verified_too(run):
    api.resume(run)
    api.report(run)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 9}\n')
    with refuses("E_RUN_FILE_CHANGED", names=("metrics.jsonl", "it has")):
        api.report(run)
    with refuses("E_RUN_FILE_CHANGED", names="metrics.jsonl"):
        loop.resume_run(recipe(), run)
