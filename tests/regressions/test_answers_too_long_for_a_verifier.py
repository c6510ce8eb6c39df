"""A verifier of a shorter context than its generator's answers took exactly the long answers out of training: 11 of 48,
all of them graded. Where most were too long, the run ended, and ended again at each resume."""

import json

import pytest

from cotrain.config.override import override
from cotrain.core.types import TOO_LONG
from cotrain.models.load import load_model, save_model
from cotrain.recipes.tango import tango
from cotrain.runs.fitting import crowded_notes
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY

SMALL = {"tasks": EASY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2, "steps": 2, "seed": 3}


def short_verifier(folder, context):
    model, tokenizer = load_model(TINY)
    save_model(model, tokenizer, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": context}))
    return str(folder)


def trainer_of(folder, context):
    made = tango(model=TINY, verifier_model=short_verifier(folder, context), simultaneous=True, warmup=0, **SMALL)
    return CoTrainer(override(made, ["roles.verifier.sampling.max_tokens=60"]))


def reviews_of(done):
    return [trace for episode in done.episodes for trace in episode.traces if trace.role == "verifier"]


@pytest.mark.whole
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_an_answer_that_is_too_long_for_the_verifier_is_learned_from(tmp_path, share):
    """``share``: of the reviews that are made at a context that holds them all, in order of the length of their
    prompts: those of this place and before still fit."""
    trainer = trainer_of(tmp_path / "long", 1024)
    prompts = sorted(len(trace.prompt_ids) for trace in reviews_of(trainer.step()))
    trainer.close()
    assert len(prompts) > 4 and prompts[0] < prompts[-1]
    context = 60 + prompts[round((1.0 - share) * len(prompts))] - 1
    trainer = trainer_of(tmp_path / "short", context)
    (line,) = crowded_notes(trainer)
    assert line.startswith("note: role 'verifier' may not be able to read all that it is shown: ")
    assert f"exceed its context of {context}; what does not fit is left out, and counted as verifier/failed" in line
    assert "--set roles.solver.sampling.max_tokens=N" in line
    done = trainer.step()
    trainer.close()
    assert not any(episode.failure for episode in done.episodes)
    solutions = [trace for episode in done.episodes for trace in episode.traces if trace.role == "solver"]
    assert not any(trace.failure for trace in solutions)
    assert all(any(reward.name == "outcome" for reward in trace.rewards) for trace in solutions)
    failed = [trace for trace in reviews_of(done) if trace.failure == TOO_LONG]
    assert len(failed) >= round(share * len(prompts)) > 0
    assert done.row["verifier/failed"] == len(failed) / len(reviews_of(done))


@pytest.mark.whole
def test_nothing_is_said_where_all_fits(tmp_path):
    trainer = trainer_of(tmp_path / "long", 1024)
    assert list(crowded_notes(trainer)) == []
    trainer.close()
