"""Imitation against a discriminator: what it is shown, what both sides earn, who learns when."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from math import tanh

import pytest
import torch
from cotrain_zoo.adversarial_imitation import adversarial_imitation
from cotrain_zoo.adversarial_imitation.protocol import imitate, parse_origin
from cotrain_zoo.spiral.source import Games
from hypothesis import given
from hypothesis import strategies as st

from cotrain.core.notes import CORRECT, SCORE
from cotrain.core.types import Completion, ParseFailure
from cotrain.data.files import JsonlTasks
from cotrain.data.preferences import Chats
from cotrain.formats.preferences import Preference
from cotrain.formats.role_replies import write_review
from cotrain.formats.solutions import write_solution
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.pairs import say_reply
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "steps": 4, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 4}
TASK = EASY.get("train", 0)
RIGHT, WRONG = TASK.solution, write_solution(["nothing"], "977")


class Scores:
    """Answers for the scalar discriminator: how long the solution is, in tens of characters."""

    async def sample(self, request):
        score = len(request.fields["solution"]) / 10
        return Completion(token_ids=(0,), logprobs=(0.0,), finish="stop", policy="d", version=0, score=score)

    def advance(self):
        return False

    def publish(self, policy, version): ...

    def counts(self):
        return {}


def played(made, said, task=TASK, **options):
    """(role → traces) of one episode of training in which these functions speak."""
    speak = {"generator": said["solver"], "expert": say_reply, **said}
    engine = spoken(speak, Scores()) if "discriminator" not in said else spoken(speak)
    protocol = partial(made.schedule.phases[0].protocol, **options)
    [episode] = RolloutRunner(engine, dict.fromkeys(made.policies, ByteRenderer()), made.roles, seed=0).collect(
        protocol, [task], step=0, group_size=1
    )
    assert episode.failure is None, episode.failure
    roles = {t.role for t in episode.traces}
    return {role: [t for t in episode.traces if t.role == role] for role in roles}


def signals(trace):
    return {signal.name: signal.value for signal in trace.rewards}


def alternately(*texts):
    """Says one text after the other."""
    said = []

    def speak(fields, rng):
        said.append(None)
        return texts[(len(said) - 1) % len(texts)]

    return speak


# -- gad


@pytest.mark.parametrize("gradable", [True, False])
def test_a_scalar_discriminator_pays_its_score_and_learns_who_is_the_expert(gradable):
    """A right answer that scores low earns less than a wrong one that scores high; truth is a note, where there is
    any."""
    long_and_wrong = write_solution(["nothing at all, said at length"] * 9, "977")
    task = replace(TASK, gradable=gradable)
    traces = played(adversarial_imitation(**SMALL), {"solver": alternately(RIGHT, long_and_wrong)}, task)
    expert, *rated = sorted(traces["discriminator"], key=lambda t: str(t.address))
    assert traces["expert"][0].text == TASK.solution and not traces["expert"][0].rewards
    assert [signals(t) for t in (expert, *rated)] == [{"label": 1.0}, {"label": 0.0}, {"label": 0.0}]
    assert {t.group for t in traces["discriminator"]} == {"0:discriminator"}
    right, wrong = traces["solver"]
    assert signals(right) == {"likeness": len(RIGHT) / 10} and signals(wrong) == {"likeness": len(long_and_wrong) / 10}
    assert [CORRECT.of(t) for t in (right, wrong)] == ([True, False] if gradable else [None, None])
    assert [t.parent for t in rated] == [str(right.address), str(wrong.address)]
    assert SCORE.of(rated[0]) == pytest.approx(0.5 + 0.5 * tanh(len(RIGHT) / 20))


def test_figures_say_how_far_they_are_told_apart():
    made = adversarial_imitation(**SMALL)
    told, *_ = made.evaluation.measures
    roles = dict.fromkeys(made.policies, ByteRenderer())
    for text, value in ((WRONG, 1.0), (RIGHT, 0.5)):
        engine = spoken({"generator": lambda f, rng, text=text: text, "expert": say_reply}, Scores())
        episodes = RolloutRunner(engine, roles, made.roles, seed=0).collect(
            made.evaluation.protocol, [TASK, EASY.get("train", 1)], step=0, group_size=3
        )
        found = told([e for e in episodes if e.task == 0])["discriminator/pair_accuracy"]
        assert (found.value, found.n) == (value, 9)


# -- raro


def critic(name):
    """Names the expert's reply ("expert"), the other one ("other"), or neither."""

    def speak(fields, rng):
        first = "<step>" in fields["first"] and "977" not in fields["first"]
        says = {"expert": "AB"[not first], "other": "AB"[first], "tie": "TIE", "noise": "C"}[name]
        return f"So it is.\n<answer>{says}</answer>"

    return speak


@pytest.mark.parametrize(("name", "pay", "earned"), [("expert", 1.0, 0.0), ("other", 0.0, 1.0), ("tie", 0.3, 0.3)])
def test_a_critic_that_speaks_and_the_generator_are_paid_against_each_other(name, pay, earned):
    made = adversarial_imitation(variant="raro", tie=0.3, **SMALL | {"model": "some/chat-model", "group_size": 6})
    said = {"solver": lambda f, rng: WRONG, "discriminator": critic(name)}
    traces = played(made, said)
    assert len(traces["discriminator"]) == 6 * 4
    assert {signals(t)["told_apart"] for t in traces["discriminator"]} == {pay}
    assert [signals(t) for t in traces["solver"]] == [{"likeness": earned}] * 6
    first = [CORRECT.of(t) for t in traces["discriminator"]]
    assert {True, False} == set(first)  # the expert's reply stands first or second
    assert {t.findings.get("final") for t in traces["discriminator"]} == ({None} if name == "tie" else {True, False})
    both = played(made, said, orders=2, samples=1)["discriminator"]
    assert sorted(CORRECT.of(t) for t in both) == [False] * 4 + [True] * 4


def test_a_critique_that_cannot_be_read_earns_nothing_and_pays_nobody():
    made = adversarial_imitation(variant="raro", **SMALL | {"model": "some/chat-model"})
    traces = played(made, {"solver": lambda f, rng: WRONG, "discriminator": critic("noise")})
    assert {signals(t)["told_apart"] for t in traces["discriminator"]} == {0.0}
    assert [signals(t) for t in traces["solver"]] == [{}, {}]


def test_reviews_of_one_reply_say_whether_it_is_the_experts():
    """Both classes carry a label to be balanced by; a reply without steps is nobody's expert."""

    def review(fields, rng):
        return write_review([""] * int(fields["count"]), [True] * int(fields["count"]), "977" not in fields["solution"])

    made = adversarial_imitation(variant="raro", critiques=3, **SMALL | {"group_size": 3})
    said = {"solver": alternately(WRONG, RIGHT, "no steps"), "discriminator": review}
    traces = played(made, said)
    assert [signals(t) for t in traces["solver"]] == [{"likeness": 0.0}, {"likeness": 1.0}, {"likeness": 0.0}]
    paid = [(signals(t)["class_label"], signals(t)["told_apart"], CORRECT.of(t)) for t in traces["discriminator"]]
    assert sorted(paid) == [(0.0, 0.0, False)] * 3 + [(0.0, 1.0, False)] * 3 + [(1.0, 1.0, True)] * 3


def test_replies_of_an_earlier_generator_are_told_apart_and_earn_nothing():
    made = adversarial_imitation(replay=2, **SMALL)
    traces = played(made, {"solver": lambda f, rng: WRONG, "former": lambda f, rng: RIGHT})
    assert [signals(t) for t in traces["former"]] == [{}, {}]
    assert sorted(signals(t)["label"] for t in traces["discriminator"]) == [0.0] * 4 + [1.0]
    assert made.policies["former"].of == "generator" and "former" not in adversarial_imitation(**SMALL).policies


def test_a_critique_names_one_reply_or_neither():
    for word, margin in (("A", 1), ("B", -1), ("TIE", 0)):
        found = parse_origin(f"Hm, <answer>B</answer>? No.\n<answer> {word} </answer>", {})
        assert isinstance(found, ParseFailure)  # two answers
        found = parse_origin(f"Both add up.\n<answer> {word} </answer>", {})
        assert isinstance(found, Preference) and found.margin == margin and len(found.spans) == abs(margin)
    assert parse_origin("<answer>both</answer>", {}).reason == "bad answer"


@given(st.text(max_size=80))
def test_every_critique_is_read_or_has_a_reason(text):
    found = parse_origin(text, {})
    assert isinstance(found, Preference) or (isinstance(found, ParseFailure) and found.reason)


# -- who learns


def test_the_warm_up_teaches_both_and_then_the_expert_is_no_longer_recited():
    made = adversarial_imitation(warmup=2, **SMALL)
    due = [made.schedule.phase_at(step).objectives for step in range(4)]
    assert due == [("expert", "discriminator")] * 2 + [("generator", "discriminator")] * 2
    frozen = adversarial_imitation(warmup=2, discriminator="frozen", **SMALL)
    assert [frozen.schedule.phase_at(step).objectives for step in (1, 2)] == [
        ("expert", "discriminator"),
        ("generator",),
    ]
    shared = adversarial_imitation(variant="raro", weights="shared", warmup=0, **SMALL)
    assert {o.policy for o in shared.objectives.values()} == {"generator"} and "discriminator" not in shared.policies
    plain = adversarial_imitation(variant="raro", discriminator="frozen", warmup=0, **SMALL)
    assert plain.policies["discriminator"].kind == "frozen" and set(plain.objectives) == {"generator"}


@pytest.mark.whole
def test_a_scalar_discriminator_learns_to_tell_them_apart():
    """The generator's replies are cut off after a few tokens, so that they are easily told."""
    torch.set_num_threads(1)
    made = adversarial_imitation(warmup=12, discriminator_lr=3e-3, lr=1e-4, **SMALL | {"steps": 12})
    short = replace(made.roles["solver"], sampling=replace(made.roles["solver"].sampling, max_tokens=4))
    trainer = CoTrainer(replace(made, roles={**made.roles, "solver": short}))
    start = trainer.evaluate("test", 4, group_size=2)[0]
    rows = [trainer.step().row for _ in range(12)]
    end = trainer.evaluate("test", 4, group_size=2)[0]
    assert rows[0]["discriminator/pair_accuracy"] == 0.5 and rows[-1]["discriminator/pair_accuracy"] > 0.9
    assert start["discriminator/pair_accuracy"].value == 0.5 < end["discriminator/pair_accuracy"].value
    assert "expert/best@8" not in end


@pytest.mark.whole
def test_conversations_are_imitated_as_they_stand(tmp_path):
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"yes {n}"}]}
        for n in range(40)
    ]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    few = {**SMALL, "tasks": Chats(path), "lr": 1e-3, "warmup": 2, "discriminator_lr": 1e-3, "steps": 2}
    trainer = CoTrainer(adversarial_imitation(**few))
    renderer = trainer.policies.renderers["generator"]
    start, _ = trainer.evaluate("test", 2, group_size=2)
    for row, episodes in ((step.row, step.episodes) for step in (trainer.step(), trainer.step())):
        assert not [key for key in row if key.startswith("failures/")], row
        for episode in episodes:
            [expert] = [t for t in episode.traces if t.role == "expert"]
            written = [t for t in episode.traces if t.role == "solver"]
            assert expert.text == f"yes {expert.findings['problem'].rstrip('?')}" and len(written) == 2
            assert {t.prompt_ids for t in written} == {expert.prompt_ids}
            assert "Solve:" not in renderer.decode(expert.prompt_ids)
    figures, _ = trainer.evaluate("test", 2, group_size=2)
    assert {"generator/surprisal", "discriminator/pair_accuracy"} <= set(figures)
    assert figures["generator/surprisal"].value < start["generator/surprisal"].value
    asked = adversarial_imitation(variant="raro", **few | {"model": "some/chat-model"})
    assert "{first}" in asked.roles["discriminator"].prompt


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"tasks": Games()}, "E_TASKS_WITHOUT_SOLUTIONS"),
        ({"form": "pair"}, "E_FORM_OF_RARO: variant='raro'"),
        ({"weights": "shared"}, "E_FORM_OF_RARO: variant='raro'"),
        (
            {"variant": "raro", "weights": "shared", "discriminator": "frozen"},
            "E_SHARED_WEIGHTS_FROZEN: discriminator='frozen'",
        ),
        ({"discriminator": "frozen", "warmup": 0}, "E_DISCRIMINATOR_NEVER_TRAINED: warmup=0"),
        ({"group_size": 1}, "E_OPTION_RANGE: group_size is 1"),
        ({"variant": "raro", "tie": 1.5}, "E_ARGUMENT_TYPE: tie of adversarial_imitation is 1.5"),
        ({"replay": -1}, "E_ARGUMENT_TYPE: replay of adversarial_imitation is -1"),
        ({"variant": "raro", "critiques": 1}, "E_OPTION_RANGE: critiques is 1"),
    ],
)
def test_what_it_refuses(arguments, code):
    with refuses(code):
        adversarial_imitation(**SMALL | arguments)


def test_a_held_out_problem_without_a_solution_is_refused(tmp_path):
    path = tmp_path / "sums.jsonl"
    rows = [{"question": f"{n} + 1?", "answer": n + 1, "solution": f"{n} + 1 = {n + 1}"} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    held_out = JsonlTasks(path).get("test", 0)
    del rows[int(held_out.gold) - 1]["solution"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with refuses("E_TASKS_WITHOUT_SOLUTIONS", names="1 of the 40 tasks"):
        adversarial_imitation(**SMALL | {"tasks": JsonlTasks(path)})


def test_the_protocol_declares_no_truth_as_pay():
    assert {s.name for s in imitate.gives.signals_for("solver")} == {"likeness"}
