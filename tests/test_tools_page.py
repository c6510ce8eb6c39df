"""``docs/tools.md``: a solver that calls a calculator in the middle of its answer is one trajectory, and learns from
it."""

from __future__ import annotations

import inspect
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain import api
from cotrain.algorithms.contract import Sample, split_context
from cotrain.config.registry import find_recipe
from cotrain.inference.replay import ReplayEngine
from cotrain.learner.batching import collate
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs import run as loop
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, RandomLatency, kill_after_rows
from tests.runs.test_run import digest

PAGE = (Path(__file__).parents[1] / "docs" / "tools.md").read_text(encoding="utf-8")
PROGRAM = "\n\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tools")
    (place / "calculator.py").write_text(PROGRAM.replace('"shipped"', repr(TINY)))
    return place


@pytest.fixture(scope="module")
def recipe(place):
    return find_recipe(f"{place / 'calculator.py'}:with_calculator")(tasks=EASY)


@pytest.fixture(scope="module")
def played(recipe):
    """A trainer before its first step, and the episodes of that step."""
    trainer = CoTrainer(recipe)
    tasks = trainer.draw_tasks(recipe.schedule.phase_at(0), 0)
    return trainer, trainer.runner.collect(recipe.schedule.phase_at(0).protocol, tasks, step=0, group_size=4)


def traces_of(played):
    assert all(e.failure is None for e in played[1])
    return [trace for e in played[1] for trace in e.traces]


@pytest.mark.whole
def test_an_answer_with_several_calls_is_one_trace(played):
    traces, renderer = traces_of(played), played[0].policies.renderers["generator"]
    assert len(traces) == 16
    several = [t for t in traces if len(t.findings.get("calls", ())) > 1]
    assert len(several) > 8 and len({t.metadata["correct"] for t in traces}) == 2
    for trace in several:
        assert trace.prompt_ids == traces[4 * trace.address.task].prompt_ids  # a group's prompt is one
        given = "".join("_" if m else renderer.decode([i]) for i, m in zip(trace.token_ids, trace.mask, strict=True))
        results = re.findall(r"=\d+[*+-]\d+=(\d+)", trace.text)
        assert re.findall(r"\d+", given) == results == [str(max(int(r), 0)) for r in results]
        assert trace.mask[0] and trace.mask[-1] and trace.sampled_count == sum(trace.mask) < len(trace.token_ids)
        assert renderer.decode(trace.token_ids) == trace.text


@pytest.mark.whole
def test_log_probabilities_are_those_of_one_forward_pass_over_the_whole_sequence(played):
    trainer, model = played[0], played[0].policies["generator"].model
    for trace in traces_of(played):
        ids = torch.tensor([trace.prompt_ids + trace.token_ids])
        with torch.no_grad():
            table = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        at = range(len(trace.prompt_ids) - 1, ids.shape[1] - 1)
        whole = [float(table[place, ids[0, place + 1]]) for place in at]
        expected = [p if m else 0.0 for p, m in zip(whole, trace.mask, strict=True)]
        assert trace.logprobs == pytest.approx(expected, abs=1e-4)
        alone, given = split_context(trace)
        [found] = trainer.policies["generator"].logprobs([(alone.prompt_ids, alone.token_ids)], context_tokens=[given])
        sampled = [p for p, m in zip(whole, trace.mask, strict=True) if m]
        assert found.tolist() == pytest.approx(sampled, abs=1e-4)
    assert trainer.engine.counts()["generator/reused_tokens"] > 1000


@pytest.mark.whole
def test_given_tokens_move_no_weight(played):
    """The gradient of the learner is that of the sampled tokens' log-probabilities, in a forward pass over all
    tokens."""
    trainer, traces = played[0], [t for t in traces_of(played) if t.turns][:5]
    learner, model = trainer.policies["generator"].learner, trainer.policies["generator"].model
    told = [split_context(trace) for trace in traces]
    samples = [
        Sample(
            key=str(t.address),
            prompt_ids=t.prompt_ids,
            token_ids=t.token_ids,
            sampler_logprobs=torch.tensor(t.logprobs),
            advantages=torch.ones(len(t.token_ids)),
            context_tokens=given,
        )
        for t, given in told
    ]
    total = sum(trace.sampled_count for trace in traces)
    rows, batch = collate(samples, shared=learner.scorer.shared)
    assert len(rows.targets) == batch.mask.sum() == total  # nothing is gathered where nothing was sampled
    (-(learner.scorer.predict(rows)[0] * batch.mask).sum() / total).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss = torch.zeros(())
    for trace in traces:
        ids = torch.tensor([trace.prompt_ids + trace.token_ids])
        table = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)[len(trace.prompt_ids) - 1 : -1]
        own = table.gather(1, torch.tensor(trace.token_ids)[:, None])[:, 0]
        loss = loss - own[torch.tensor(trace.mask)].sum() / total
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-6)
    model.zero_grad()


def test_a_recorded_play_is_replayed_turn_by_turn(recipe, played):
    trainer, episodes = played
    again = RolloutRunner(ReplayEngine(traces_of(played)), trainer.policies.renderers, recipe.roles, recipe.seed)
    tasks = trainer.draw_tasks(recipe.schedule.phase_at(0), 0)
    replayed = again.collect(recipe.schedule.phase_at(0).protocol, tasks, step=0, group_size=4)
    assert replayed == tuple(episodes)


@pytest.fixture(scope="module")
def peaceful(recipe, place) -> Path:
    loop.start_run(recipe, place / "peaceful", checkpoint_every=1)
    return place / "peaceful"


@pytest.mark.whole
def test_three_steps_move_the_weights_whatever_the_latency(recipe, place, peaceful):
    trainer = CoTrainer(recipe)
    before = trainer.policies.tensors()["generator"]
    rows = [trainer.step().row for _ in range(3)]
    assert [row["generator/updates"] for row in rows] == [1, 2, 3] and all(row["solver/call/ok"] > 16 for row in rows)
    after = trainer.policies.tensors()["generator"]
    assert sum(not torch.equal(before[name], after[name]) for name in before) > 10
    loop.start_run(recipe, place / "late", checkpoint_every=1, wrap_engine=lambda engine: RandomLatency(engine, 3))
    assert digest(place / "late") == digest(peaceful)


@pytest.mark.whole
def test_killed_and_resumed_it_ends_with_the_same_bits(place, peaceful):
    chance = random.Random(time.time_ns())
    flags = ["--operations", "2", "2", "--set", "tasks.max_value=20", "--checkpoint-every", "1", "--threads", "1"]
    command = [sys.executable, "-m", "cotrain.cli.main", "run", f"{place / 'calculator.py'}:with_calculator", *flags]
    for tried in range(4):  # on a busy machine it may end before it is killed
        out = place / f"killed-{tried}"
        if was_killed := kill_after_rows([*command, "--out", str(out)], out, chance.randint(1, 2)):
            break
    assert was_killed
    api.resume(out)
    assert digest(out) == digest(peaceful)


@pytest.mark.whole
def test_the_protocol_of_the_first_block_runs(place, recipe):
    protocol = inspect.unwrap(find_recipe(f"{place / 'calculator.py'}:with_calculator")).__globals__["sure"]
    trainer = CoTrainer(replace(recipe, group_size=2))
    tasks = trainer.draw_tasks(recipe.schedule.phase_at(0), 0)
    for episode in trainer.runner.collect(protocol, tasks, step=0, group_size=2):
        [trace] = episode.traces
        assert episode.failure is None and len(trace.turns) == 2 and "Are you sure?" in trace.text
        short, outcome = trace.rewards
        assert (short.name, short.tokens) == ("short", (trace.turns[1].start, trace.turns[1].end))
        assert (outcome.name, outcome.tokens) == ("outcome", None)
