"""The shared protocols by hand: who is paid what, who is reviewed, and what is noted of whom."""

from dataclasses import dataclass
from functools import partial

import pytest

from cotrain.core.types import Grade, Sampling, StepVerdicts, Task
from cotrain.rollout import verifier_roles
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.protocols import examine, plurality_answer, solve
from cotrain.rollout.reviews import review, review_all, solve_then_verify
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.helpers import CharRenderer, Saying
from tests.sentences import refuses

RIGHT = "<step>a</step><step>b</step><answer>1</answer>"
WRONG = "<step>a</step><step>c</step><answer>2</answer>"
UNREADABLE = "no tags at all"
UNGRADED = "<step>a</step><step>b</step><answer>?</answer>"


def sheet(*steps, final):
    return "".join(f"<step>{word}</step>" for word in steps) + f"<final>{final}</final>"


KIND, HARSH = sheet("CORRECT", "CORRECT", final="CORRECT"), sheet("CORRECT", "INCORRECT", final="INCORRECT")


@dataclass(frozen=True)
class Exact:
    """Right is 1, "?" cannot be graded, and step c is wrong."""

    def grade(self, task: Task, text: str) -> Grade:
        if "?" in text:
            return Grade(value=None, reason="no grade")
        return Grade(value="<answer>1</answer>" in text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return StepVerdicts(ok=tuple(s != "c" for s in steps), reasons=tuple("x" if s == "c" else "" for s in steps))


TASK = Task(id="t/0", prompt="P", gold="1", solution=None, difficulty=0, grader=Exact())


def played(protocol, *solutions, judged=(), verifier=None, **options):
    """The traces of one episode, and the engine."""
    engine = Saying(solver=solutions, verifier=judged)
    roles = {
        "solver": Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution),
        "verifier": verifier
        or Role(policy="a", prompt="{problem}|{solution}", sampling=Sampling(max_tokens=99), parse=parse_review),
    }
    [episode] = RolloutRunner(engine, {"a": CharRenderer()}, roles, 0).collect(
        partial(protocol, **options), [TASK], step=0, group_size=1
    )
    assert episode.failure is None, episode.failure
    return episode.traces, engine


def paid(trace, name):
    return [signal.value for signal in trace.rewards if signal.name == name]


def covered(trace, name):
    """The texts that the rewards of this name stand on."""
    return [CharRenderer().decode(trace.token_ids[s.tokens[0] : s.tokens[1]]) for s in trace.rewards if s.name == name]


def test_a_solution_is_paid_for_its_answer_and_knows_its_steps():
    ((right,), _), ((wrong,), _) = played(solve, RIGHT), played(solve, WRONG)
    assert (paid(right, "outcome"), paid(wrong, "outcome")) == ([1.0], [0.0])
    assert right.metadata == {
        "correct": True,
        "gold": "1",
        "step_ok": [True, True],
        "step_reasons": ["", ""],
        "first_wrong": None,
    }
    assert wrong.metadata["step_ok"] == [True, False] and wrong.metadata["first_wrong"] == 1
    assert wrong.findings["answer"] == "2" and [text for *_, text in wrong.findings["steps"]] == ["a", "c"]


def test_the_oracle_pays_a_right_step_one_and_a_wrong_one_minus_one():
    [wrong], _ = played(solve, WRONG, step_rewards="oracle")
    assert paid(wrong, "step") == [1.0, -1.0] and covered(wrong, "step") == ["a</step>", "c</step>"]
    assert paid(played(solve, WRONG)[0][0], "step") == []
    with refuses("E_UNKNOWN_STEP_REWARDS"):
        played(solve, WRONG, step_rewards="oracel")


@pytest.mark.parametrize(("protocol", "payer"), [(solve, "oracle"), (solve_then_verify, "verifier")])
def test_a_solution_that_cannot_be_read_counts_as_one_wrong_step(protocol, payer):
    """Else breaking the format beats many wrong steps, and a generator learns to."""
    [unread], _ = played(protocol, UNREADABLE, step_rewards=payer)
    assert paid(unread, "step") == [-1.0] and covered(unread, "step") == [UNREADABLE]
    assert paid(played(solve, UNREADABLE)[0][0], "step") == [] and paid(unread, "outcome") == [0.0]


def test_the_verifier_is_paid_for_agreeing_with_the_truth():
    (wrong, *sheets), _ = played(solve_then_verify, WRONG, judged=[KIND, HARSH, UNREADABLE], reviews=3)
    assert [paid(t, "agreement") for t in sheets] == [[0.0], [1.0], [0.0]]
    assert [paid(t, "class_label") for t in sheets] == [[0.0]] * 3 and paid(sheets[0], "format") == [1.0]
    assert [t.findings.get("final") for t in sheets] == [True, False, None]
    assert sheets[1].findings["steps"] == [True, False] and sheets[2].findings["failure"]
    assert all(
        t.metadata == {"correct": False, "step_ok": [True, False]} and t.parent == str(wrong.address) for t in sheets
    )


def test_two_readable_reviews_pay_a_step_twice_their_share_minus_one():
    # step a: 2 of 2 say right, so +1; step b: 1 of 2, so 0; the unreadable review says nothing
    (right, *_), _ = played(solve_then_verify, RIGHT, judged=[KIND, HARSH, UNREADABLE], reviews=3)
    assert paid(right, "step") == [1.0, 0.0] and covered(right, "step") == ["a</step>", "b</step>"]
    (right, *_), _ = played(solve_then_verify, RIGHT, judged=[HARSH], reviews=1)
    assert paid(right, "step") == [1.0, -1.0]
    (right, *_), _ = played(solve_then_verify, RIGHT, judged=[HARSH], reviews=1, step_rewards="none")
    assert paid(right, "step") == []


def test_an_unreadable_solution_is_graded_and_not_reviewed():
    traces, engine = played(solve_then_verify, UNREADABLE, judged=[KIND])
    [unread] = traces
    assert [role for role, _ in engine.asked] == ["solver"]
    assert unread.failure is None and paid(unread, "outcome") == [0.0] and unread.findings["failure"] == "no steps"
    assert unread.metadata["correct"] is False


def test_a_readable_solution_that_could_not_be_graded_is_not_reviewed_either():
    traces, engine = played(solve_then_verify, UNGRADED, judged=[KIND])
    [ungraded] = traces
    assert [role for role, _ in engine.asked] == ["solver"]
    assert ungraded.failure == "no grade" and ungraded.rewards == () and ungraded.metadata == {}
    assert ungraded.findings["answer"] == "?"


async def reviewed_alone(task, roles):
    solution = await roles.solver(problem=task.prompt)
    await examine(task, roles, solution)
    (said,) = await review(task, roles, solution)
    assert said.parsed.final is False


def test_one_review_knows_the_truth_of_what_it_is_about():
    (_, said), _ = played(reviewed_alone, WRONG, judged=[HARSH])
    assert said.metadata["correct"] is False and said.findings["final"] is False and said.parent is not None


async def reviewed_with_programs(task, roles):
    solution = await roles.solver(problem=task.prompt)
    await examine(task, roles, solution)
    [(said,)] = await review_all(task, roles, [solution], tool="python")  # one, where nothing is said
    assert said.parsed.final is False


def test_reviews_that_may_run_programs_are_read_also_where_they_run_none():
    said = "".join(f"<analyze>a</analyze><output>\\boxed{{{word}}}</output>" for word in ("Yes", "No"))
    (_, review), _ = played(
        reviewed_with_programs, WRONG, judged=[said], verifier=verifier_roles.genprm("a", "m", runs=True)
    )
    assert review.metadata["correct"] is False and review.findings["final"] is False


def test_plurality_by_hand():
    found = []

    async def protocol(task, roles):
        turns = await roles.solver.many(5, problem=task.prompt)
        found.extend(
            [plurality_answer(turns), plurality_answer(turns[:2]), plurality_answer(turns[4:]), plurality_answer([])]
        )

    played(protocol, WRONG, RIGHT, RIGHT, UNREADABLE, UNREADABLE)
    assert found == ["1", "2", None, None]  # of equals the one that came first; what cannot be read does not vote
