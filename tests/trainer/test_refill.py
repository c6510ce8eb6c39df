"""Problems whose answers all earn the same are replaced by others within the step."""

import json
from dataclasses import replace

import pytest

from cotrain import api
from cotrain.config.override import override
from cotrain.core.seeding import Address
from cotrain.core.types import UNLABELLED, Episode, Reward, Trace
from cotrain.recipes.distill import distill
from cotrain.recipes.grpo import grpo
from cotrain.recipes.semi_supervised import semi_supervised
from cotrain.recipes.votes import ttrl
from cotrain.storage.ledger import Ledger
from cotrain.trainer.resample import flat_places, with_replacements
from tests.helpers import EASY, TINY
from tests.sentences import refuses

QUICK = ["evaluation.group_size=1", "evaluation.greedy=false", "evaluation.splits=[]"]
RECIPE = grpo(model=TINY, tasks=EASY, steps=2, tasks_per_step=2, group_size=2, evaluation_tasks=1, kl=0.0)
OBJECTIVE = RECIPE.objectives["generator"]


def episodes_of(*earned: tuple[float, ...], first: int = 0) -> tuple[Episode, ...]:
    """One problem each, with answers that earned this."""
    made = []
    for place, values in enumerate(earned, start=first):
        for member, value in enumerate(values):
            address = Address(step=0, task=place, member=member, role="solver", call=0)
            trace = Trace(
                address=address, role="solver", policy="generator", version=0, group=f"{place}", prompt_ids=(1,),
                token_ids=(2,), logprobs=(-1.0,), text="", finish="stop", rewards=(Reward(name="outcome", value=value),)
            )  # fmt: skip
            made.append(Episode(step=0, task=place, member=member, task_id=f"t{place}", traces=(trace,)))
    return tuple(made)


def test_a_problem_is_flat_when_no_two_of_its_answers_earned_different_rewards():
    assert flat_places(episodes_of((1, 1), (0, 1), (0, 0)), OBJECTIVE) == [0, 2]
    failed = [replace(e, traces=tuple(replace(t, failure="lost") for t in e.traces)) for e in episodes_of((0, 1))]
    assert flat_places(failed, OBJECTIVE) == [0]
    other = [replace(e, traces=tuple(replace(t, role="verifier") for t in e.traces)) for e in episodes_of((0, 1))]
    assert flat_places(other, OBJECTIVE) == [0]


def test_rounds_go_on_until_all_have_spread_or_none_are_left():
    answers = [((0, 0), (1, 1), (0, 1)), ((0, 0), (1, 1)), ((0, 1), (1, 1)), ((0, 1),)]  # each round's
    begun = [EASY.get("train", i) for i in range(3)]
    asked = []

    def play(tasks, first=0):
        asked.append(([task.id for task in tasks], first))
        return episodes_of(*answers[len(asked) - 1], first=first)

    got = with_replacements(replace(RECIPE, refill=5), 3, RECIPE.seed, begun, play)
    assert [(len(ids), first) for ids, first in asked] == [(3, 0), (2, 3), (2, 5), (1, 7)]
    assert len({e.task for e in got}) == 8 and got[:6] == episodes_of(*answers[0])
    drawn = [task for ids, _ in asked[1:] for task in ids]
    assert len(set(drawn)) == 5
    asked.clear()
    with_replacements(replace(RECIPE, refill=1), 3, RECIPE.seed, begun, play)
    assert len(asked) == 2 and asked[1][0] == drawn[:2]
    asked.clear()
    with_replacements(replace(RECIPE, refill=1), 3, 1, begun, play)  # as after going back, with other draws
    assert set(asked[1][0]).isdisjoint(drawn)


def test_a_problem_without_a_label_is_replaced_by_one_without():
    played = []

    def play(tasks, first=0):
        played.append(tasks)
        return episodes_of(*[(0, 0)] * len(tasks), first=first)

    made = semi_supervised(model=TINY, tasks=EASY, rest="vote", labelled="3", refill=2, audits=1)
    tasks = [made.tasks.get(split, i) for split in ("train", UNLABELLED) for i in range(2)]
    with_replacements(made, 0, 0, tasks, play)
    assert [[task.labelled for task in of_round] for of_round in played] == [[True, True, False, False]] * 3
    assert [task.gradable for task in played[1]] == [True, True, False, False]  # no more audits than were asked for
    test_time = ttrl(model=TINY, tasks=EASY, labelled="test:3", refill=1)  # without any problem with a label
    with_replacements(test_time, 0, 0, [test_time.tasks.get(UNLABELLED, i) for i in range(3)], play)
    assert {task.id for task in played[-1]} == {f"words/test/{i}" for i in range(3)}


@pytest.mark.whole
def test_a_run_keeps_its_own_problems_and_counts_the_others(tmp_path):
    problems, counts = {}, {}
    for refill in (0, 2):
        out = tmp_path / str(refill)
        api.run(override(replace(RECIPE, refill=refill), QUICK), out)
        rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        counts[refill] = [row.get("replacements") for row in rows if "kind" not in row]
        with Ledger(out / "episodes") as ledger:
            played = [e for step in ledger.steps() for e in ledger.read(step) if e.member == 0]
        problems[refill] = [(e.step, e.task, e.task_id) for e in played]
    assert counts[0] == [None, None] and any(counts[2])
    assert counts[2] == [sum(s == step and task >= 2 for s, task, _ in problems[2]) for step in (0, 1)]
    assert [one for one in problems[2] if one[1] < 2] == problems[0]
    assert len({name for _, _, name in problems[2]}) == len(problems[2])


def test_it_is_refused_where_no_answers_are_compared():
    with refuses("E_RECIPE_SETTING_RANGE", names=("refill", "-1")):
        grpo(refill=-1)
    with refuses("E_REFILL_WITHOUT_GROUPS"):
        distill(teacher="shipped", refill=1)
