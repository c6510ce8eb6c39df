"""Judges of pairs: what they are shown in both orders, what a judgement earns, how votes are counted, who learns."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch

from cotrain.core.notes import CORRECT, FAILURE, FINAL, SCORE
from cotrain.data.files import JsonlTasks
from cotrain.data.preferences import Pairs
from cotrain.formats.nonce import break_verdict_tags
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.pair_judge.judging import measure_judged_pairs
from cotrain.recipes.pair_judge.recipe import LR_OF_NO_CHANGE, ROLE_MAKERS, pair_judge
from cotrain.rollout.pairs import TOO_LONG, replies_of, say_reply
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses
from tests.verdict_writers import write_genrm, write_grm, write_rmr1, write_thinkrm

SMALL = {"model": TINY, "tasks": EASY, "steps": 2, "tasks_per_step": 4, "group_size": 4, "evaluation_tasks": 4}
TASKS = [EASY.get("test", i) for i in range(6)]


def judged(say, *, tasks=TASKS, members=1, train=False, renderer=None, **options):
    """(made recipe, episodes, their judgements by role) of a judge that is this function of its fields."""
    made = pair_judge(**SMALL | options)
    renderer = renderer or ByteRenderer()
    renderers = {"judge": renderer, "says": renderer}
    engine = spoken({"judge": lambda fields, rng: say(fields), "says": say_reply})
    protocol = made.schedule.phases[0].protocol if train else made.evaluation.protocol
    played = RolloutRunner(engine, renderers, made.roles, seed=0).collect(protocol, tasks, step=0, group_size=members)
    assert not [e.failure for e in played if e.failure]
    return made, played, [[t for t in e.traces if t.role == "judge"] for e in played]


def figures(made, episodes):
    return {name: one.value for measure in made.evaluation.measures for name, one in measure(episodes).items()}


def signals(trace):
    return {signal.name: signal.value for signal in trace.rewards}


def holds_wanted(text):
    """Does it show the wanted reply of a task?"""
    return any(break_verdict_tags(replies_of(task)[0]) in text for task in TASKS)


WRITERS = {  # form → what a judge writes to whom the first is better, or the one reply right
    "gram": lambda first: "A" if first else "B",
    "rmr1": lambda first: write_rmr1("accuracy", "so", first),
    "thinkrm": lambda first: write_thinkrm("hm", 1 if first else -1),
    "graded": lambda first: write_thinkrm("hm", 2 if first else -2, graded=True),
    "grm": lambda first: write_grm([("right", 100)], "so", (9, 3) if first else (3, 9)),
    "yesno": lambda right: write_genrm("", right),
    "genrm": lambda right: write_genrm("so", right),
}


@pytest.mark.whole
@pytest.mark.parametrize("form", WRITERS)
def test_every_format_is_asked_read_and_paid(form):
    """On a model that is asked in words; both orders of a pair, or both replies."""

    def say(fields):
        shown = fields.get("solution") or fields.get("first") or fields["responses"].partition("<response 2")[0]
        return WRITERS[form](holds_wanted(shown))

    made, played, judgements = judged(say, model="unknown/chat-model", form=form)
    assert set(WRITERS) | {"steps"} == set(ROLE_MAKERS)
    for one in judgements:
        assert [t.metadata["correct"] for t in one] == [FINAL.of(t) for t in one] == [True, False]
        assert [signals(t) for t in one] == [{"right": 1.0, "verdict": 1.0}] * 2
    found = figures(made, played)
    assert found["judge/pair_accuracy"] == found["judge/balanced_accuracy"] == found["judge/parsed"] == 1.0
    assert found.get("judge/swap_agreement") == (None if form in ("yesno", "genrm") else 1.0)


def test_a_judge_of_positions_is_right_half_of_the_time_and_never_agrees_with_itself():
    made, played, judgements = judged(lambda fields: "A", form="gram")
    for one in judgements:
        parents = {str(t.address): t for e in played for t in e.traces if t.role == "reply"}
        assert [CORRECT.of(parents[t.parent]) for t in one] == [True, False]  # whose reply stands first
        assert [signals(t)["verdict"] for t in one] == [1.0, -1.0]
    found = figures(made, played)
    assert found["judge/pair_accuracy"] == 0.5 and found["judge/swap_agreement"] == 0.0
    assert (found["judge/true_positive_rate"], found["judge/true_negative_rate"]) == (1.0, 0.0)


def test_what_cannot_be_read_is_counted_by_its_reason_and_earns_as_little_as_a_mistake():
    made, played, judgements = judged(lambda fields: "perhaps", form="gram")
    for trace in (t for one in judgements for t in one):
        assert FAILURE.of(trace) == "bad label" and signals(trace) == {"right": 0.0, "verdict": -1.0}
    found = figures(made, played)
    assert found["judge/pair_accuracy"] == found["judge/parsed"] == 0.0 and "judge/swap_agreement" not in found


def test_a_graded_judgement_may_earn_how_far_it_puts_the_wanted_reply_ahead():
    """Two of three levels for the first: (0.5 + 2/6) · 2 − 1 = 2/3 in one order, −2/3 in the other."""
    always = write_thinkrm("hm", 2, graded=True)
    _, _, judgements = judged(lambda fields: always, model="m/chat", form="graded", pay="score", train=True)
    for one in judgements:
        paid = Counter(round(signals(t)["verdict"], 6) for t in one)
        assert paid == {0.666667: 4, -0.666667: 4}
    _, _, judgements = judged(lambda fields: "?", model="m/chat", form="graded", pay="score", train=True)
    assert {signals(t)["verdict"] for one in judgements for t in one} == {-1.0}


def test_one_order_of_each_pair_is_drawn_in_training_alone():
    _, _, judgements = judged(lambda fields: "A", form="gram", orders="random", train=True)
    firsts = [{t.metadata["correct"] for t in one} for one in judgements]
    assert all(len(one) == 1 for one in firsts) and {True, False} == set().union(*firsts)
    assert all(len(one) == 4 for one in judgements)
    _, _, judgements = judged(lambda fields: "A", form="gram", orders="random")
    assert all({t.metadata["correct"] for t in one} == {True, False} for one in judgements)


def test_votes_and_the_meta_judge_by_hand():
    """Three votes an order. Wanted first: 0.9, 0.4, 0.4 for it; wanted second: 0.2, 0.2, 0.8 for the other.

    Verdicts: 1/3 > 1/3 is a tie, half. Scores: 1.7/3 = 0.567 > 0.4. The meta judge trusts the second and the third of
    each order: 0.4 > 0.5 does not hold.
    """
    votes = iter([0.9, 0.4, 0.4, 0.2, 0.2, 0.8])
    _, [episode], [one] = judged(lambda fields: "A", tasks=TASKS[:1], form="gram", train=True, group_size=3)
    scored = [replace(t, findings={**t.findings, "score": next(votes)}) for t in one]
    trusted = [-1.0, 2.0, 1.0] * 2
    meta = [
        replace(t, role="meta", parent=str(t.address), findings={"score": trust})
        for t, trust in zip(scored, trusted, strict=True)
    ]
    episode = replace(episode, traces=(*scored, *meta))

    def accuracy(combine, keep):
        return measure_judged_pairs(combine=combine, keep=keep, compares=True)([episode])["judge/pair_accuracy"].value

    assert (accuracy("majority", 0), accuracy("mean", 0), accuracy("mean", 2)) == (0.5, 1.0, 0.0)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_pairs_of_a_file_that_are_too_long_or_have_no_steps_are_left_out_and_counted(tmp_path):
    rows = [{"prompt": f"{n}?", "chosen": "yes" * n, "rejected": "no"} for n in range(1, 31)]
    source = Pairs(write(tmp_path / "a.jsonl", rows))
    tasks = [source.get("train", i) for i in range(20)]
    long = {t.prompt for t in tasks if len(t.solution) > 45}
    _, played, judgements = judged(lambda f: "A", form="gram", tasks=tasks, max_tokens=45, train=True, steps=1)
    failed = [{t.failure for t in e.traces} for e in played]
    assert {tasks[e.task].prompt for e, why in zip(played, failed, strict=True) if why == {TOO_LONG}} >= long > set()
    assert all(bool(one) == (why == {None}) for one, why in zip(judgements, failed, strict=True))
    _, played, _ = judged(lambda f: "A", form="steps", tasks=tasks[:3])
    assert {t.failure for e in played for t in e.traces} == {"a reply without steps"}


@pytest.mark.whole
def test_a_real_model_learns_by_every_control():
    for options, learned in (
        ({}, {"judge"}),
        ({"learn": "sft"}, {"judge"}),
        ({"learn": "none"}, set()),
        ({"form": "scalar"}, {"judge"}),
        ({"keep": 1, "solutions": 0.5, "kl": 0.01}, {"judge", "meta"}),
    ):
        trainer = CoTrainer(pair_judge(**SMALL | {"lr": 1e-3, "votes": 2} | options))
        start = {p: {n: w.clone() for n, w in t.items()} for p, t in trainer.policies.tensors().items()}
        done = trainer.step()
        assert not [key for key in done.row if key.startswith("failures/")]
        now = trainer.policies.tensors()
        moved = {p for p in now if any(not torch.equal(w, now[p][n]) for n, w in start[p].items())}
        assert moved == learned, options
        if options.get("learn") == "sft":
            right = sum(signals(t)["right"] for e in done.episodes for t in e.traces if t.role == "judge")
            assert 0 < right == done.row["judge/traces"] - done.row["judge/dropped/right too low"] < 32
        if options.get("solutions"):
            assert done.row["solutions/credit/traces"] == 8.0
            assert done.row["meta/traces"] == done.row["judge/traces"] * (1 - done.row["judge/parse_failures"])
        found, _ = trainer.evaluate("test", 4)
        assert 0.0 <= found["judge/pair_accuracy"].value <= 1.0
        assert ("judge/greedy_pair_accuracy" in found) == (options.get("form") != "scalar")


def test_a_scalar_judge_begins_with_every_pair_even():
    trainer = CoTrainer(pair_judge(**SMALL, form="scalar"))
    found, episodes = trainer.evaluate("test", 4)
    assert found["judge/pair_accuracy"].value == 0.5
    assert {SCORE.of(t) for e in episodes for t in e.traces if t.role == "judge"} == {0.5}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"form": "rmr1", "model": "shipped"}, "E_JUDGE_NEEDS_CHAT_MODEL"),
        ({"keep": 9}, "E_SETTING_RANGE"),
        ({"solutions": -1.0}, "E_ARGUMENT_TYPE: solutions of pair_judge | -1.0"),
        ({"votes": 0}, "E_OPTION_RANGE: votes"),
        ({"learn": "sft", "kl": 0.1}, "E_LEARN_WITHOUT_KL"),
        ({"learn": "none", "solutions": 1.0}, "E_SOLUTIONS_WITHOUT_LEARNER"),
        ({"form": "scalar", "keep": 2}, "E_SCALAR_JUDGE_SETTINGS"),
    ],
)
def test_what_it_refuses(arguments, code):
    with refuses(code):
        pair_judge(**SMALL | arguments)


def test_tasks_without_preferences_are_refused(tmp_path):
    rows = [{"question": f"{n}+1?", "answer": str(n + 1)} for n in range(30)]
    with refuses("E_TASKS_NOT_PREFERENCES", names="pair_judge"):
        pair_judge(tasks=JsonlTasks(write(tmp_path / "q.jsonl", rows)))


def test_a_judge_that_stays_has_no_rate_to_speak_of():
    assert pair_judge(**SMALL, learn="none").policies["judge"].lr == LR_OF_NO_CHANGE
