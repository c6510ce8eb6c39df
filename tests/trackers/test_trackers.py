"""Trackers mirror the rows of a run, and none that refuses, raises, hangs or is slow stops or slows it."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest

from cotrain.cli.main import main
from cotrain.trackers.observer import TrackingObserver, numbers_of, rollouts_note, rollouts_of_run
from cotrain.trackers.rollouts import sampled_rollouts
from cotrain.trackers.sinks import SentRows, Sink
from tests.helpers import TINY, Heard
from tests.reports.fake_run import write_fake_run
from tests.sentences import command_refuses

ROWS = [
    {"step": -1, "kind": "evaluation", "eval/a": 0.25},
    *({"step": i, "phase": "p", "x/y": i / 4} for i in range(6)),
]


def mirrored(tmp_path, trackers, rows=ROWS, **options):
    """Hand rows to trackers; what was said, the seconds that the rows took, and those of the end. ``kept``: what is to
    be full before the end."""
    told, kept = Heard(), options.pop("kept", rows)
    options = {"patience": 30.0, "about": {"recipe": "tango", "seed": 0}} | options
    with TrackingObserver(told, tmp_path, trackers, **options) as mirrors:
        begun = time.perf_counter()
        for row in rows:
            mirrors.update(row)
        ran = time.perf_counter() - begun
        while len(kept) < len(rows) and time.perf_counter() - begun < 60:
            time.sleep(0.002)
        begun = time.perf_counter()
    assert told.rows == list(rows)
    return mirrors, told.lines, ran, time.perf_counter() - begun


def keeper(kept, closed=None):
    def open_(about):
        return Sink(
            lambda numbers, step: kept.append((step, numbers)), lambda: None if closed is None else closed.append(about)
        )

    return open_


def test_every_row_gets_there_in_order(tmp_path):
    kept = []
    _, messages, _, _ = mirrored(tmp_path, {"good": keeper(kept)}, patience=30)
    assert kept == [(-1, {"eval/a": 0.25}), *((i, {"x/y": i / 4}) for i in range(6))] and messages == []


def test_only_finite_numbers_are_sent():
    row = {"step": 3, "phase": "x", "a": 1, "b": float("nan"), "c": float("inf"), "d": None, "e": True, "f": 0.5}
    assert numbers_of(row) == {"a": 1.0, "e": 1.0, "f": 0.5}


def test_one_that_cannot_be_opened_costs_one_line(tmp_path):
    def refuses(about):
        raise ConnectionError("no network\nand a long story")

    mirrors, messages, _, _ = mirrored(tmp_path, {"bad": refuses})
    assert mirrors.mirrors[0].dropped_rows == len(ROWS)
    assert "no network" in messages[-1] and f"{len(ROWS)} of {len(ROWS)} rows" in messages[-1]
    assert len(messages) <= 2 and all("\n" not in line for line in messages)


@pytest.mark.parametrize("error", [ValueError("boom"), SystemExit(3), KeyboardInterrupt()])
def test_one_that_raises_loses_its_row_alone(tmp_path, error):
    kept = []

    def write(numbers, step):
        if step == 2:
            raise error
        kept.append(step)

    _, messages, _, _ = mirrored(tmp_path, {"bad": lambda about: Sink(write, lambda: None)}, patience=30)
    assert kept == [-1, 0, 1, 3, 4, 5] and f"1 of {len(ROWS)} rows" in messages[-1]


def test_one_that_raises_at_its_end_is_told(tmp_path):
    def close():
        raise OSError("disk full")

    _, messages, _, _ = mirrored(tmp_path, {"bad": lambda about: Sink(lambda n, s: None, close)}, patience=30)
    assert messages == [
        f"tracker bad: 0 of {len(ROWS)} rows did not get there (could not be closed (OSError: disk full))"
    ]


@pytest.mark.parametrize("place", ["open", "write", "close"])
def test_one_that_hangs_is_left_behind(tmp_path, place):
    forever, kept = threading.Event(), []

    def hang(*_):
        forever.wait()

    def open_(about):
        if place == "open":
            hang()
        return Sink(hang if place == "write" else lambda n, s: None, hang if place == "close" else lambda: None)

    _, messages, ran, ended = mirrored(tmp_path, {"hangs": open_, "good": keeper(kept)}, patience=0.3, kept=kept)
    forever.set()
    assert ran < 2 and ended < 10  # 0.5 ms of work, 0.3 s of patience; the rest is a loaded machine
    assert len(kept) == len(ROWS)  # the other one is not held up
    assert len(messages) == 1 and "hangs" in messages[0] and "left behind" in messages[0]


def test_a_slow_one_fills_its_queue_and_drops_rows(tmp_path):
    kept, go = [], threading.Event()

    def write(numbers, step):
        go.wait()
        kept.append(step)

    rows = [{"step": i, "a": 1.0} for i in range(200)]
    told = Heard()
    with TrackingObserver(
        told, tmp_path, {"slow": lambda about: Sink(write, lambda: None)}, capacity=5, patience=30
    ) as mirrors:
        for row in rows:
            mirrors.update(row)
        warned = list(told.lines)
        go.set()
    assert len(warned) == 1 and "5 rows behind" in warned[0] and "metrics.jsonl has every row" in warned[0]
    assert 5 <= len(kept) <= 6 and mirrors.mirrors[0].dropped_rows == 200 - len(kept)
    assert told.lines[1:] == [f"tracker slow: {200 - len(kept)} of 200 rows did not get there (it is 5 rows behind)"]


def test_a_run_is_told_no_more_than_its_name_and_goes_on_under_its_id(tmp_path):
    seen = []
    for rows in (ROWS[:3], ROWS[3:]):
        mirrored(tmp_path, {"good": keeper([], seen)}, rows, patience=30)
    first, second = seen
    assert first.id == second.id == json.loads((tmp_path / "trackers.json").read_text())["id"]
    assert (first.first, second.first) == (-1, 2) and dict(first.config) == {"recipe": "tango", "seed": 0}
    mirrored(tmp_path / "none", {}, rows=())
    assert not (tmp_path / "none").exists()


def scalars(folder):
    """What TensorBoard shows of a folder: (step, value) by key."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {key: [(e.step, e.value) for e in events.Scalars(key)] for key in events.Tags()["scalars"]}


def test_event_files_read_back_as_the_rows_also_after_a_resume(tmp_path):
    pytest.importorskip("tensorboard")
    for rows in (ROWS, ROWS[4:]):  # interrupted after step 5, with a checkpoint of step 2
        assert mirrored(tmp_path, ["tensorboard"], rows, patience=300)[1] == []
    assert scalars(tmp_path / "tensorboard") == {"eval/a": [(-1, 0.25)], "x/y": [(i, i / 4) for i in range(6)]}


AGAIN = [{"step": i, "phase": "p", "x/y": 10.0 + i} for i in range(3, 8)]  # steps done again, with other values
REPLACED = [*((i, i / 4) for i in range(3)), *((i, 10.0 + i) for i in range(3, 8))]


@pytest.mark.parametrize("parts", [[[*ROWS], AGAIN], [[*ROWS, *AGAIN]]])
def test_event_files_have_the_last_value_of_a_step_that_is_done_again(tmp_path, parts):
    """In another command, after a resume; and in one, which went back to a checkpoint."""
    pytest.importorskip("tensorboard")
    for rows in parts:
        assert mirrored(tmp_path, ["tensorboard"], rows, patience=300)[1] == []
    assert scalars(tmp_path / "tensorboard")["x/y"] == REPLACED


def test_an_evaluation_behind_a_step_replaces_nothing_of_it(tmp_path):
    """A run was killed between a step and the evaluation behind it."""
    pytest.importorskip("tensorboard")
    evaluation = {"step": 5, "kind": "evaluation", "eval/a": 0.5}
    for rows in (ROWS, [evaluation]):
        assert mirrored(tmp_path, ["tensorboard"], rows, patience=300)[1] == []
    found = scalars(tmp_path / "tensorboard")
    assert found["x/y"][-1] == (5, 1.25) and found["eval/a"] == [(-1, 0.25), (5, 0.5)]


@pytest.mark.whole
def test_trackio_has_the_last_value_of_a_step_that_is_done_again(tmp_path, monkeypatch):
    pytest.importorskip("trackio")
    code = (
        "import sys; sys.path[:0] = ['.', 'tests/reports']\n"
        "from tests.trackers.test_trackers import AGAIN, ROWS, mirrored\nfrom pathlib import Path\n"
        "out = Path(sys.argv[1])\n"
        "for rows in ((ROWS, AGAIN) if out.name == 'parts' else ([*ROWS, *AGAIN],)):\n"
        "    assert mirrored(out, ['trackio'], rows, patience=300)[1] == []\n"
    )
    for name in ("parts", "one"):
        (tmp_path / name).mkdir()
        environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "store"), "HOME": str(tmp_path)}
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True, env=environment, timeout=300)
        identity = json.loads((tmp_path / name / "trackers.json").read_text())["id"]
        with closing(sqlite3.connect(next((tmp_path / "store").glob("*.db")))) as database:
            query = "select step, metrics from metrics where run_name = ? and step >= 0 order by step"
            found = [(step, json.loads(kept)["x/y"]) for step, kept in database.execute(query, (f"tango-{identity}",))]
        assert found == REPLACED


@pytest.mark.parametrize("parts", [[[*ROWS], AGAIN], [[*ROWS, *AGAIN]]])
def test_what_keeps_what_it_was_sent_first_is_not_sent_it_again_and_that_is_told(tmp_path, parts):
    kept, said = [], []

    def open_(about):
        sent = SentRows(tmp_path / "sent.json")
        return Sink(lambda numbers, step: kept.append((step, numbers.get("x/y"))), lambda: None, keeps_first=sent)

    for rows in parts:
        said += mirrored(tmp_path, {"first": open_}, rows)[1]
    assert kept == [(-1, None), *((i, i / 4) for i in range(6)), (6, 16.0), (7, 17.0)]
    assert said == [
        "tracker first: step 4 was sent before, and what was sent first is kept there; it and all up to step 6 are "
        "left out"
    ]


def test_what_was_sent_last_is_whole_at_any_moment(tmp_path):
    """It was rewritten in place: a crash in between lost it, and a resumed run sent all rows again."""
    path = tmp_path / "sent.json"
    sent = SentRows(path)
    sent.note((4, False))
    with path.open() as before:
        sent.note((5, True))
        assert json.loads(before.read()) == {"step": 4, "evaluated": False}  # another file took its place
    assert SentRows(path).last == (5, True)


def wandb_records(content, kind):
    """LevelDB's log: checksum, length, kind; all in the first block of 32 KiB."""
    at = 7
    while at + 7 <= len(content):
        size = int.from_bytes(content[at + 4 : at + 6], "little")
        record = kind()
        record.ParseFromString(content[at + 7 : at + 7 + size])
        at += 7 + size
        yield record


@pytest.mark.whole
def test_wandb_offline_holds_rows_and_nothing_of_the_machine(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("CANARY", "canary-of-the-environment")
    monkeypatch.setattr("sys.argv", ["/home/alice/canary-program.py", "--token", "canary-token"])
    assert mirrored(tmp_path, ["wandb"], patience=300)[1] == []
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert json.loads((tmp_path / "wandb" / "sent.json").read_text()) == {"step": 5, "evaluated": False}
    content = b""
    for _ in range(200):  # wandb's own process writes it, and may be behind
        content, found, ended = file.read_bytes(), [], False
        for record in wandb_records(content, wandb_internal_pb2.Record):
            ended = ended or record.HasField("exit")
            if record.HasField("history"):
                items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                assert items["_step"] == items["step"] + 1  # by which parts of a resumed run are put together
                found.append({k: v for k, v in items.items() if not k.startswith("_")})
        if ended:
            break
        time.sleep(0.1)
    assert found == [{**numbers_of(row), "step": row["step"]} for row in ROWS]
    assert not [word for word in ("canary", str(tmp_path)) if word.encode() in content]


@pytest.mark.whole
def test_a_run_with_a_tracker_that_fails_is_the_same_run(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tensorboard")

    def broken(about):
        raise RuntimeError("no server")

    monkeypatch.setattr("cotrain.trackers.observer.TRACKERS", {"tensorboard": broken})
    sizes = "--steps 1 --tasks-per-step 1 --group-size 2 --evaluation-tasks 1"
    words = ["run", "grpo", "--model", TINY, *sizes.split()]
    for setting in ("evaluation.splits=[]", "evaluation.group_size=1", "roles.solver.sampling.max_tokens=8"):
        words += ["--set", setting]
    assert main([*words, "--out", str(tmp_path / "a"), "--tracker", "tensorboard", "--threads", "1"]) == 0
    said = capsys.readouterr().out.replace("\n", " ")
    assert "tracker tensorboard: could not be opened" in said
    assert said.index(f"watch it in a browser: cotrain view {tmp_path / 'a'}") < said.index("step 1")
    monkeypatch.undo()
    assert main([*words, "--out", str(tmp_path / "b"), "--tracker", "tensorboard", "--threads", "1"]) == 0
    rows = (tmp_path / "b" / "metrics.jsonl").read_text()
    assert (tmp_path / "a" / "metrics.jsonl").read_text() == rows
    shown = scalars(tmp_path / "b" / "tensorboard")
    for row in map(json.loads, rows.splitlines()):
        for key, value in numbers_of(row).items():
            assert dict(shown[key])[row["step"]] == pytest.approx(value, rel=1e-6)


def rollout_keeper(kept):
    return lambda about: Sink(
        lambda numbers, step: None,
        lambda: None,
        write_rollouts=lambda rollouts, step: kept.append((step, rollouts)),
    )


def test_a_few_rollouts_are_sent_a_wrong_one_beside_a_right_one(tmp_path):
    run = write_fake_run(tmp_path / "run", steps=24, episodes=12)
    kept, none = [], []
    rows = [{"step": -1, "kind": "evaluation", "eval/a": 0.5}, *({"step": step, "x": 1.0} for step in range(24))]
    mirrored(run, {"good": rollout_keeper(kept)}, rows, rollouts=2)
    mirrored(run, {"good": rollout_keeper(none)}, rows)
    assert [step for step, _ in kept] == [0, 20] and none == []  # step 10 is not in this ledger
    for step, rollouts in kept:
        assert [rollout.right for rollout in rollouts] == [False, True]
        for rollout in rollouts:
            assert rollout.address.startswith(f"{step}:") and rollout.problem
            assert rollout.turns[0].role == "solver" and rollout.turns[0].text
            assert "verifier says" in rollout.verdicts and "solver: " in rollout.rewards
            shown = rollout.markdown()
            assert f"in truth {rollout.truth}" in shown and f"    {rollout.turns[0].text.splitlines()[0]}" in shown
    assert json.loads((run / "trackers.json").read_text())["rollouts"] == 0
    assert rollouts_of_run(run) == 0


def test_a_tracker_that_refuses_rollouts_keeps_its_rows(tmp_path):
    run = write_fake_run(tmp_path / "run", steps=4, episodes=4)

    def refuses(rollouts, step):
        raise ValueError("no texts here")

    kept = []
    sink = Sink(lambda numbers, step: kept.append(step), lambda: None, write_rollouts=refuses)
    _, messages, _, _ = mirrored(run, {"odd": lambda about: sink}, rollouts=2)
    assert kept == [-1, *range(6)]
    assert "no texts here" in messages[-1] and "0 of 7 rows" in messages[-1]


def test_a_damaged_ledger_sends_no_rollouts(tmp_path):
    run = write_fake_run(tmp_path / "run", steps=4, episodes=4)
    for file in (run / "episodes").iterdir():
        file.write_bytes(b"not a ledger")
    assert sampled_rollouts(run, 0, 2) == [] and sampled_rollouts(tmp_path, 0, 2) == []


def test_what_is_sent_is_said_before_and_can_be_refused():
    assert rollouts_note(["wandb"], 0) == rollouts_note([], 2) == []
    (line,) = rollouts_note(["wandb", "trackio"], 2)
    assert line.startswith("note: wandb and trackio will be sent 2 rollouts of every 10th step")
    assert "--tracker-rollouts 0" in line


@pytest.mark.whole
def test_rollouts_are_text_in_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = write_fake_run(tmp_path / "run", steps=24, episodes=12)
    mirrored(run, ["tensorboard"], rollouts=2, patience=120)
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    tags = events.Tags()["tensors"]
    assert {"rollouts/1/text_summary", "rollouts/2/text_summary"} <= set(tags)
    (first,) = events.Tensors("rollouts/1/text_summary")
    assert first.step == 0 and b"in truth wrong" in first.tensor_proto.string_val[0]


@pytest.mark.whole
def test_rollouts_are_traces_in_trackio_and_replaced_with_their_step(tmp_path):
    pytest.importorskip("trackio")
    write_fake_run(tmp_path / "run", steps=24, episodes=12)
    code = (
        "import sys; sys.path[:0] = ['.', 'tests/reports']\n"
        "from tests.trackers.test_trackers import mirrored\nfrom pathlib import Path\n"
        "rows = [{'step': step, 'x/y': 1.0} for step in range(3)]\n"
        "for _ in range(2):\n"
        "    assert mirrored(Path(sys.argv[1]), ['trackio'], rows, rollouts=2, patience=300)[1] == []\n"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path / "store"), "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True, env=environment, timeout=300)
    with closing(sqlite3.connect(next((tmp_path / "store").glob("*.db")))) as database:
        traces = database.execute("select step, key, messages, metadata from traces order by key").fetchall()
    assert [(step, key) for step, key, _, _ in traces] == [(0, "rollouts/1"), (0, "rollouts/2")]
    messages, metadata = json.loads(traces[0][2]), json.loads(traces[0][3])
    assert messages[0]["role"] == "user" and messages[1]["content"].startswith("solver: ")
    assert metadata["truth"] == "wrong" and "verifier says" in metadata["verdicts"]


def test_bad_names_are_one_line(tmp_path, capsys, monkeypatch):
    command_refuses(
        ["run", "grpo", "--out", str(tmp_path / "x"), "--tracker", "wandbb"],
        "E_UNKNOWN_TRACKER: 'wandbb' | 'wandb'",
        capsys,
    )
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["run", "grpo", "--out", tmp_path / "x", "--tracker", "trackio"]
    command_refuses(words, "E_TRACKER_NOT_INSTALLED: .[trackio]", capsys)
    assert not (tmp_path / "x").exists()
