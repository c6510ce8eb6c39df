"""A chat template that shows today's date gave a run that was resumed on another day other prompts."""

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cotrain.models.load import load_tokenizer
from cotrain.pretraining.corpora import from_items
from cotrain.pretraining.documents import all_documents
from cotrain.pretraining.sft import sft
from cotrain.pretraining.trainer import begin_time
from cotrain.prompts import chat_template
from cotrain.recipes.grpo import grpo
from cotrain.runs import opening
from cotrain.runs import run as loop
from cotrain.runs.run import Interrupted
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY, TINY, CountedEngine

DATED = "{{ '[' ~ strftime_now('%d %b %Y %H:%M') ~ ']' }}"


class NextYear(datetime):
    """The clock of a process that goes on later."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(days=400)


@pytest.fixture
def model(tmp_path):
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(DATED + template)
    return str(folder)


def recipe_of(model):
    return grpo(
        model=model, steps=3, tasks_per_step=1, group_size=2, evaluation_tasks=1, tasks=EASY, kl=0.0, evaluate_every=0
    )


def prompts_of(out, model):
    tokenizer = load_tokenizer(model)
    with Ledger(out / "episodes") as ledger:
        steps = [ledger.read(step) for step in ledger.steps()]
    return [tokenizer.decode(t.prompt_ids) for episodes in steps for e in episodes for t in e.traces]


@pytest.mark.whole
def test_a_run_that_goes_on_another_day_tells_the_day_of_its_beginning(model, tmp_path, monkeypatch):
    out, engines = tmp_path / "run", []

    def wrap(engine):
        engines.append(CountedEngine(engine, stop_at=4))
        return engines[-1]

    with pytest.raises(Interrupted):
        loop.start_run(recipe_of(model), out, checkpoint_every=1, wrap_engine=wrap)
    begun = datetime.fromisoformat(json.loads((out / "provenance.json").read_text())["begun"])
    monkeypatch.setattr(chat_template, "datetime", NextYear)
    loop.resume_run(recipe_of(model), out)
    prompts = prompts_of(out, model)
    assert len(prompts) == 6 and len({prompt.partition("]")[0] for prompt in prompts}) == 1
    assert begun.strftime("[%d %b %Y %H:%M]") in prompts[0]
    renderer = opening.load_trainer(out, recipe=recipe_of(model)).policies["generator"].renderer
    assert renderer.asks_time and renderer._template.now == begun  # also where it is measured later


@pytest.mark.whole
def test_a_training_that_goes_on_another_day_learns_the_same_texts(model, tmp_path, monkeypatch):
    rows = [[{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": f"{n + 1}"}] for n in range(20)]
    sizes = {"tokens": 512, "batch_tokens": 128, "length": 128, "validation": 2}
    corpus, out, tokenizer = from_items("sums", rows), tmp_path / "tuned", load_tokenizer(model)
    assert sft(model, out, conversations=corpus, **sizes).finished
    begun = begin_time(out)
    learned = all_documents(corpus, tokenizer, begun=datetime.fromisoformat(begun))
    monkeypatch.setattr(chat_template, "datetime", NextYear)
    assert all_documents(corpus, tokenizer) != learned
    assert all_documents(corpus, tokenizer, begun=datetime.fromisoformat(begun)) == learned
    assert sft(model, out, conversations=corpus, resume=True, **sizes).finished and begin_time(out) == begun
