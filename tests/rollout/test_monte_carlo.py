"""Monte-Carlo step labels: the rules by hand, and the continuations against an engine that says what it is told."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from cotrain.core.types import Completion, Grade, Sampling, StepVerdicts, Task
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.monte_carlo import (
    apply_rule,
    balanced_places,
    completer_role,
    label_steps,
    majority_contradicts,
    share_equal,
    step_values,
)
from cotrain.rollout.protocols import examine
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import CharRenderer
from tests.sentences import refuses


def test_absolute_labels_ask_whether_anything_ended_right():
    assert apply_rule("absolute", [0.5, 0.5, 0.25, 0.0, 0.125]) == [True, True, False, True]
    assert apply_rule("absolute", [0.0, 0.125]) == [True]


def test_ratio_labels_ask_for_progress_and_end_at_the_first_zero():
    # 0.5/0.5 = 1, 0.25/0.5 = 0.5, 0 is 0, and 1/0 would be progress but comes after it
    assert apply_rule("ratio", [0.5, 0.5, 0.25, 0.0, 1.0]) == [True, False, False, False]
    # 1.25, 0.8 (4 of 8 after 5 of 8 is just enough), 2; a drop does not end it
    assert apply_rule("ratio", [0.5, 0.625, 0.5, 1.0]) == [True, True, True]
    assert apply_rule("ratio", [1.0, 0.5, 0.5]) == [False, True]
    assert apply_rule("ratio", [1.0, 0.5], gamma=0.5) == [True]
    assert apply_rule("ratio", [0.0, 0.5]) is None


def test_relative_labels_weigh_the_value_against_the_change_under_best_of_four():
    # B(1) = 1, B(1/4) = 1 − (3/4)^4 = 0.68359375: 0.25 − 0.8 · 0.31640625 = −0.003125, but 0.25 − 0.4 · 0.31640625 =
    # 0.1234375
    assert apply_rule("relative", [1.0, 0.25]) == [False]
    assert apply_rule("relative", [1.0, 0.25], alpha=0.4) == [True]
    # best of one is the value itself: 0.25 − 0.8 · 0.75 < 0, 0.25 − 0.8 · 0.25 > 0
    assert apply_rule("relative", [1.0, 0.25], best_of=1) == [False]
    assert apply_rule("relative", [0.5, 0.25], best_of=1) == [True]
    # no change keeps a positive value; from 0 to 0 is 0 and not above it; from 0 up is progress
    assert apply_rule("relative", [0.5, 0.5, 0.0, 0.0, 0.125]) == [True, False, False, True]


def test_an_unknown_rule_is_named():
    with refuses("E_UNKNOWN_MONTE_CARLO_LABEL"):
        apply_rule("ratios", [1.0, 1.0])


def test_share_equal_counts_the_drawn_places():
    said, labels = (True, True, False, True), [True, False, False, False]
    assert share_equal(said, labels) == 0.5
    assert share_equal(said, labels, [0, 2]) == 1.0
    assert share_equal(said, labels, [1, 2]) == 0.5


def test_a_majority_against_any_label_contradicts():
    labels = [True, False]
    assert not majority_contradicts([(True, False), (True, True), (True, False)], labels)
    assert majority_contradicts([(True, False), (True, True), (True, True)], labels)
    assert not majority_contradicts([(True, False), (True, True)], labels)  # a tie
    assert not majority_contradicts([], labels)


def test_balancing_draws_from_the_larger_class():
    labels = [True, False, True, True, False, True]
    kept = balanced_places(labels, Random(0))
    assert kept == sorted(kept) and {1, 4} <= set(kept) and len(kept) == 4
    assert len({tuple(balanced_places(labels, Random(seed))) for seed in range(20)}) > 1
    assert balanced_places([True, True], Random(0)) == [] == balanced_places([], Random(0))


# -- continuations


@dataclass(frozen=True)
class Exact:
    oracle: bool = True

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=text.endswith("<answer>1</answer>"))

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return StepVerdicts(ok=tuple(s != "c" for s in steps), reasons=("",) * len(steps)) if self.oracle else None


class Scripted:
    """Two solutions with one first step; continuations end right every other time, but never after step c."""

    def __init__(self) -> None:
        self.begins: list[str] = []

    async def sample(self, request):
        call, text = request.address.call, CharRenderer().decode(request.prompt_ids)
        if request.address.role == "solver":
            said = ("<step>a</step><step>b</step><answer>1</answer>", "<step>a</step><step>c</step><answer>2</answer>")[
                call
            ]
        else:
            self.begins.append(text.removeprefix("P="))
            said = f"<answer>{1 if call % 2 == 0 and 'c' not in text else 2}</answer>"
        ids = (*CharRenderer().encode(said), 0)
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish="stop", policy="a", version=0)

    def advance(self) -> bool:
        return False


def played(protocol, oracle=True):
    task = Task(id="t/0", prompt="P", gold="1", solution=None, difficulty=0, grader=Exact(oracle))
    solver = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution)
    roles, engine = {"solver": solver, "completer": completer_role(solver)}, Scripted()
    (episode,) = RolloutRunner(engine, {"a": CharRenderer()}, roles, 0).collect(protocol, [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return episode.traces, engine


def test_each_beginning_is_continued_once_and_nothing_can_learn_from_it():
    values = {}

    async def protocol(task, roles):
        solutions = await roles.solver.many(2, problem=task.prompt)
        found = await step_values(task, roles, solutions, rollouts=4)
        values.update({i: found[s.id] for i, s in enumerate(solutions)})

    traces, engine = played(protocol)
    assert values == {0: [0.5, 0.5, 0.5], 1: [0.5, 0.5, 0.0]}
    assert engine.begins == [
        begin
        for begin in ("", "<step>a</step>", "<step>a</step><step>b</step>", "<step>a</step><step>c</step>")
        for _ in "1234"
    ]
    continued = [t for t in traces if t.role == "completer"]
    assert not any(t.rewards for t in continued)
    assert len({t.group for t in continued}) == 4
    assert [t.metadata["correct"] for t in continued] == [True, False] * 6 + [False] * 4


@pytest.mark.parametrize("kind", ["absolute", "relative", "ratio", "oracle"])
def test_labels_end_with_the_grade_and_are_compared_with_the_oracle(kind):
    labels = []

    async def protocol(task, roles):
        solutions = await roles.solver.many(2, problem=task.prompt)
        for solution in solutions:
            await examine(task, roles, solution)
        found = await label_steps(task, roles, solutions, labels_by=kind, rollouts=2)
        labels.extend(found[s.id] for s in solutions)

    traces, engine = played(protocol)
    assert labels == [[True, True, True], [True, False, False]]
    assert len(engine.begins) == (0 if kind == "oracle" else 8)
    for trace, positive in zip((t for t in traces if t.role == "solver"), (1.0, 0.5), strict=True):
        assert (trace.metadata["label_right"], trace.metadata["first_wrong_right"]) == (1.0, True)
        assert (trace.metadata["labelled"], trace.metadata["label_positive"]) == (True, positive)


def test_the_oracle_must_exist():
    async def protocol(task, roles):
        solution = await roles.solver(problem=task.prompt)
        await examine(task, roles, solution)
        await label_steps(task, roles, [solution], labels_by="oracle", rollouts=2)

    with refuses("E_STEPS_UNKNOWN"):
        played(protocol, oracle=False)
