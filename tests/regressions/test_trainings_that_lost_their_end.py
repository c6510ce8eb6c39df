"""A closed terminal ended `cotrain pretrain`, `sft` and `teach` without a checkpoint, up to 500 steps after the last
one, and so did a full disk and an error in the data. One that was killed when its model was written counted as finished
and never said what it came to, nor how its roles are asked."""

from __future__ import annotations

import errno
import json
import os
import signal
from dataclasses import replace

import pytest
import torch

from cotrain.cli.stages import report_outcome
from cotrain.core.errors import DataError
from cotrain.core.seeding import rng_of
from cotrain.models.from_scratch import new_model, small_config
from cotrain.pretraining import trainer
from cotrain.pretraining.corpora import procedural_corpus
from cotrain.pretraining.documents import document_reader
from cotrain.pretraining.pretrain import pretrain
from cotrain.pretraining.sft import sft
from cotrain.pretraining.tokenizer import train_tokenizer
from cotrain.pretraining.trainer import TrainingPlan, train
from cotrain.runs import out_of_room
from cotrain.storage import checkpoints
from cotrain.storage.file_ops import Files
from tests.helpers import TINY

PLAN = TrainingPlan(steps=6, rows=2, length=40, lr=1e-2, autocast=False, log_every=1, save_every=100)
WORDS = ("ab", "cde", "7", "+", "fg hi", "12")


def sentence(index):
    rng = rng_of("sentence", index)
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 30)))


def conversation(index):
    return [{"role": "user", "content": sentence(2 * index)}, {"role": "assistant", "content": sentence(index)}]


SENTENCES = procedural_corpus("sentences", sentence)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([sentence(i) for i in range(50)], vocab_size=285)


@pytest.fixture
def read(tokenizer):
    return document_reader(SENTENCES, tokenizer)


@pytest.fixture
def config(tokenizer):
    return small_config(len(tokenizer), depth=1, width=16, heads=2, kv_heads=1, feed_forward=24)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def newest_step(folder):
    return checkpoints.latest_checkpoint(folder / "checkpoints").step


def stop_after(step, number):
    def report(row):
        if row["step"] == step:
            os.kill(os.getpid(), number)

    return report


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["int", "term", "hup"]
)
def test_each_signal_saves_the_last_step_and_has_its_exit_code(number, code, config, read, tmp_path, capsys):
    whole, broken = new_model(config, 0), new_model(config, 0)
    train(whole, read, tmp_path / "whole", PLAN, pad_id=0)
    outcome = train(broken, read, tmp_path / "broken", PLAN, pad_id=0, report=stop_after(3, number))
    assert (outcome.finished, outcome.step, newest_step(tmp_path / "broken")) == (False, 3, 3)
    assert report_outcome(outcome, str(tmp_path / "broken")) == code

    resumed = new_model(config, 0)
    train(resumed, read, tmp_path / "broken", PLAN, pad_id=0, resume=True)
    assert torch.equal(weights(resumed), weights(whole))


def test_an_error_leaves_the_last_finished_step(config, read, tmp_path):
    def breaks_later(start, count):
        if start >= 10:
            raise DataError("row 10 is gone")
        return read(start, count)

    with pytest.raises(DataError):
        train(new_model(config, 0), breaks_later, tmp_path, PLAN, pad_id=0)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert 0 < newest_step(tmp_path) == rows[-1]["step"]


def test_a_full_disk_is_waited_for(config, read, tmp_path, monkeypatch):
    monkeypatch.setattr(out_of_room, "PAUSE_S", 0.0)
    plan = replace(PLAN, save_every=2)
    whole, paused = new_model(config, 0), new_model(config, 0)
    train(whole, read, tmp_path / "whole", plan, pad_id=0)
    told: list[str] = []
    write = Files.write

    def refuse_until_told(self, file, block):
        is_checkpoint = "step-" in str(file.name) or "checkpoints" in str(file.name)
        if is_checkpoint and not told:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, file, block)

    monkeypatch.setattr(Files, "write", refuse_until_told)
    outcome = train(paused, read, tmp_path / "paused", plan, pad_id=0, say=told.append)
    assert outcome.finished and torch.equal(weights(paused), weights(whole))
    assert told[0].startswith("paused:") and told[1].startswith("there is room again")


def test_slow_steps_are_saved_by_the_clock(config, read, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SECONDS_UNSAVED", 0.0)
    saved: list[int] = []

    def look(row):
        newest = checkpoints.latest_checkpoint(tmp_path / "checkpoints")
        saved.append(0 if newest is None else newest.step)

    train(new_model(config, 0), read, tmp_path, PLAN, pad_id=0, report=look)
    assert saved == [0, 1, 2, 3, 4, 5]


def test_other_threads_are_said(config, read, tmp_path):
    told: list[str] = []
    train(new_model(config, 0), read, tmp_path, PLAN, pad_id=0, report=stop_after(2, signal.SIGTERM))
    settings = json.loads((tmp_path / "training.json").read_text())
    (tmp_path / "training.json").write_text(json.dumps({**settings, "threads": 7}))
    train(new_model(config, 0), read, tmp_path, PLAN, pad_id=0, resume=True, say=told.append)
    assert told[0].startswith("note: this training was begun with 7 threads and goes on with")


def result_of(folder):
    result = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in result.items() if key not in ("seconds", "resumed")}


def test_what_was_killed_while_it_wrote_its_model_writes_all_of_it_when_resumed(tmp_path):
    taught = {"role": "solver", "answer": "boxed", "steps_as": None, "prompt": "{problem}"}

    def train_to(folder, resume=False, write_more=None):
        return sft(
            TINY,
            folder,
            conversations=procedural_corpus("conversations", conversation),
            tokens=1024,
            batch_tokens=512,
            length=128,
            validation=2,
            taught=taught,
            resume=resume,
            write_more=write_more,
            plan={"log_every": 1},
        )

    def is_killed():
        (tmp_path / "broken" / "result.json").unlink()
        (tmp_path / "broken" / "cotrain.json").unlink()
        raise SystemExit

    first = train_to(tmp_path / "whole")
    with pytest.raises(SystemExit):
        train_to(tmp_path / "broken", write_more=is_killed)
    again = train_to(tmp_path / "broken", resume=True)
    assert not again.was_finished and (again.loss, again.validation) == (first.loss, first.validation)
    assert result_of(tmp_path / "broken") == result_of(tmp_path / "whole")
    marks = [json.loads((tmp_path / name / "cotrain.json").read_text()) for name in ("whole", "broken")]
    assert marks[0] == marks[1] and "solver" in marks[0]["roles"]
    assert train_to(tmp_path / "broken", resume=True).was_finished


def test_a_pretraining_too(tokenizer, tmp_path):
    def train_to(folder, resume=False, write_more=None):
        return pretrain(
            folder,
            corpus=SENTENCES,
            tokens=512,
            tokenizer=tokenizer,
            batch_tokens=256,
            length=64,
            validation=2,
            resume=resume,
            write_more=write_more,
        )

    def is_killed():
        (tmp_path / "broken" / "result.json").unlink()
        raise SystemExit

    train_to(tmp_path / "whole")
    with pytest.raises(SystemExit):
        train_to(tmp_path / "broken", write_more=is_killed)
    train_to(tmp_path / "broken", resume=True)
    assert result_of(tmp_path / "broken") == result_of(tmp_path / "whole")
