"""The rewards of stepwiser and genprm by hand, and what they refuse."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from cotrain.core.types import Completion, Sampling
from cotrain.inference.replay import ReplayEngine
from cotrain.recipes.genprm import genprm
from cotrain.recipes.stepwiser import stepwiser
from cotrain.rollout.common_roles import verifier
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 4, "steps": 1}


def signals(trace):
    return {signal.name: signal.value for signal in trace.rewards}


@pytest.mark.whole
def test_stepwiser_pays_for_as_many_right_as_wrong_steps():
    judged = 0
    for episode in CoTrainer(stepwiser(**SMALL, labels="oracle")).step().episodes:
        solutions = {str(t.address): t for t in episode.traces if t.role == "solver"}
        reviews = [t for t in episode.traces if t.role == "verifier"]
        counted = []
        for name, solution in solutions.items():
            mine = [t for t in reviews if t.parent == name]
            if not mine:
                continue
            labels, drawn = solution.findings["labels"], mine[0].findings["counted"]
            assert labels == [*solution.metadata["step_ok"], solution.metadata["correct"]]
            counted += [labels[k] for k in drawn]
            for review in mine:
                said = (*review.findings["steps"], review.findings["final"]) if "final" in review.findings else ()
                share = sum(said[k] == labels[k] for k in drawn) / len(drawn) if said else 0.0
                assert signals(review) == {"match": pytest.approx(share)}
        assert 2 * sum(counted) == len(counted)
        judged += bool(counted)
        assert bool(counted) <= (len({t.metadata["correct"] for t in solutions.values()}) == 2)
    assert judged


@pytest.mark.whole
def test_stepwiser_without_labels_pays_for_the_verdict_on_the_answer_alone():
    episodes = CoTrainer(stepwiser(**SMALL, labels="answer")).step().episodes
    traces = {str(t.address): t for episode in episodes for t in episode.traces}
    reviews = [t for t in traces.values() if t.role == "verifier" and "final" in t.findings]
    assert reviews and not any(t.role == "completer" for t in traces.values())
    for review in reviews:
        correct = traces[review.parent].metadata["correct"]
        assert signals(review) == {"match": float(review.findings["final"] == correct)}


@pytest.mark.whole
def test_genprm_keeps_only_agreeing_reviews_that_pass_the_filter():
    count, trainer = 0, CoTrainer(genprm(**SMALL, rollouts=3, reviews=3))
    for episode in [e for _ in range(3) for e in trainer.step().episodes]:
        solutions = {str(t.address): t for t in episode.traces if t.role == "solver"}
        judged = [t for t in solutions.values() if "labelled" in t.metadata]
        assert sum(t.metadata["correct"] for t in judged) * 2 == len(judged)
        for review in (t for t in episode.traces if t.role == "verifier"):
            parent = solutions[review.parent]
            whole = (*review.findings.get("steps", ()), review.findings.get("final")) == tuple(
                parent.findings["labels"]
            )
            assert signals(review)["kept"] == float(whole and parent.metadata["consensus"])
            count += 1
    assert count


@pytest.mark.parametrize(
    ("build", "arguments", "code"),
    [
        (stepwiser, {"labels": "Abs-Q"}, "E_UNKNOWN_CHOICE: absolute"),
        (stepwiser, {"generator": "thawed"}, "E_UNKNOWN_CHOICE: frozen"),
        (genprm, {"labels": "hard"}, "E_UNKNOWN_CHOICE: ratio"),
    ],
)
def test_names_are_checked(build, arguments, code):
    with refuses(code):
        build(**arguments)


@pytest.mark.parametrize(
    ("build", "arguments"),
    [
        (stepwiser, {"reviews": 1}),
        (stepwiser, {"rollouts": 0}),
        (genprm, {"group_size": 1}),
    ],
)
def test_sizes_are_checked(build, arguments):
    with refuses("E_OPTION_RANGE", names=f"{next(iter(arguments))} is"):
        build(**arguments)


def test_programs_are_run_for_chat_models_alone():
    for model, form in (("shipped", "steps"), ("shipped", "genprm"), (TINY, "genprm"), ("some/chat-model", "steps")):
        with refuses("E_TOOL_WITHOUT_CHAT_MODEL", names="'python'"):
            genprm(model=model, review_format=form, tool="python")
    with refuses("E_JUDGE_NEEDS_CHAT_MODEL"):
        genprm(review_format="genprm")
    made = {
        tool: genprm(verifier_model="some/chat-model", review_format="genprm", tool=tool) for tool in ("none", "python")
    }
    for tool, recipe in made.items():
        [phase] = recipe.schedule.phases
        assert phase.options["tool"] == recipe.evaluation.options["tool"] == tool
        assert ("it is run as soon as" in recipe.roles["verifier"].prompt) == (tool == "python")
    assert "{count}" in made["python"].roles["verifier"].prompt
    assert genprm().roles["verifier"] == verifier("verifier", "shipped")


class Dictated:
    """The engine of a run, but for the verifier: it writes a program, then that every step is right."""

    def __init__(self, engine, renderer):
        self.engine, self.renderer = engine, renderer
        self.advance, self.publish, self.counts = engine.advance, engine.publish, engine.counts

    async def sample(self, request):
        if request.policy != "verifier":
            return await self.engine.sample(request)
        prompt = self.renderer.decode(request.prompt_ids)
        count = int(prompt.rpartition("COUNT")[2].partition("!")[0])
        right = r"<output>\boxed{Yes}</output>"
        ids = self.renderer.encode("<analyze>a</analyze><verify>print(2 * 3)</verify>")
        if "\n6\n</ran id=" in prompt:
            said = right + f"<analyze>b</analyze>{right}" * (count - 1)
            ids = (*self.renderer.encode(said), self.renderer.stop_ids[0])
        return Completion(token_ids=ids, logprobs=(-0.1,) * len(ids), finish="stop", policy="verifier", version=0)


@pytest.mark.whole
def test_a_run_learns_what_a_verifier_wrote_around_its_programs(tmp_path):
    chat = shutil.copytree(TINY, tmp_path / "chat", ignore=shutil.ignore_patterns("cotrain.json"))
    options = {"labels": "oracle", "balance": False, "consensus": False, "reviews": 2}
    made = genprm(**SMALL, **options, verifier_model=str(chat), review_format="genprm", tool="python")
    short = replace(
        made.roles["verifier"], prompt="{problem}{solution}{nonce}COUNT{count}!", sampling=Sampling(max_tokens=256)
    )
    trainer = CoTrainer(replace(made, roles={**made.roles, "verifier": short}))
    renderer = trainer.runner.renderers["verifier"]
    trainer.runner.engine = Dictated(trainer.runner.engine, renderer)
    outcome = trainer.step()
    reviews = [t for e in outcome.episodes for t in e.traces if t.role == "verifier"]
    assert len(reviews) == outcome.row["verifier/call/ok"] > 0
    for review in reviews:
        first, last = (review.token_ids[turn.start : turn.end] for turn in review.turns)
        assert renderer.decode(first) == "<analyze>a</analyze><verify>print(2 * 3)</verify>"
        assert renderer.decode(last).startswith("<output>") and "final" in review.findings
        assert review.text.count("print(2 * 3)") == review.text.count("\n6\n") == 1
    kept = [t for t in reviews if signals(t)["kept"] == 1.0]
    assert outcome.row["verifier/updates"] == 1 and 0 < len(kept) < len(reviews)
    assert outcome.row["verifier/verifier/tokens"] == sum(t.sampled_count for t in kept)
    traces = [t for e in outcome.episodes for t in e.traces]
    engine = ReplayEngine(traces)
    again = RolloutRunner(engine, trainer.runner.renderers, trainer.recipe.roles, trainer.runner.seed)
    [phase] = made.schedule.phases
    tasks = [EASY.get(*e.task_id.split("/")[1:2], int(e.task_id.rpartition("/")[2])) for e in outcome.episodes]
    assert again.collect(phase.protocol, tasks, step=outcome.episodes[0].step, group_size=1) == outcome.episodes


def test_a_frozen_generator_has_no_pull():
    with refuses("E_KL_WITHOUT_LEARNER", names="0.2"):
        stepwiser(kl=0.2)
    assert stepwiser(kl=0.2, generator="trained").objectives["generator"].algorithm.kl.weight == 0.2
    assert "reference" not in stepwiser().policies and stepwiser(kl=0.0)
