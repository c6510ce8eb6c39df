"""Labels from votes by hand: who is elected, who agrees, and what is noted of both."""

from cotrain.core.signals import gives
from cotrain.core.types import Grade, Sampling, StepVerdicts, Task
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.protocols import attempts
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.votes import VOTE, agrees_with, elected_turn, label_is_right, rarest_turn, reward_vote
from tests.helpers import CharRenderer, Saying


class Gold:
    """Right is 5; "?" cannot be graded; nobody knows the steps."""

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=None, reason="no grade") if "?" in text else Grade(value="<answer>5</answer>" in text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


def voting(*answers, then):
    """Play ``then(turns)`` on attempts that give these answers, None for one that cannot be read; returns its
    traces."""
    said = ["nothing" if a is None else f"<step>s</step><answer>{a}</answer>" for a in answers]

    @gives(VOTE)
    async def protocol(task, roles):
        then(await attempts(task, roles, len(said)))

    solver = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution)
    task = Task(id="t/0", prompt="P", gold="5", solution=None, difficulty=0, grader=Gold())
    executor = RolloutRunner(Saying(solver=said), {"a": CharRenderer()}, {"solver": solver}, 0)
    [episode] = executor.collect(protocol, [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return episode.traces


def outcome(*answers, of):
    found = []
    voting(*answers, then=lambda turns: found.append(of(turns)))
    return found[0]


def test_ungraded_attempts_have_no_vote():
    def count(turns):
        return [turn.parsed.answer if turn.parsed.ok else None for turn in turns]

    assert outcome("4", "?", "?", None, of=count) == ["4", None]
    traces = voting("4", "?", then=lambda turns: None)
    assert [t.failure for t in traces] == [None, "no grade"] and traces[0].findings["problem"] == "P"


def test_the_most_frequent_answer_is_elected_by_its_first_turn():
    def place(turns):
        chosen = elected_turn(turns)
        return None if chosen is None else turns.index(chosen)

    assert outcome("4", "5", "5", of=place) == 1
    assert outcome("4", "5", "4", "5", of=place) == 0  # of equals the one that came first
    assert outcome(None, None, "7", of=place) == 2  # what cannot be read does not vote, however often
    assert outcome(None, None, of=place) is None


def test_the_rarest_rival_is_the_first_of_the_least_frequent_others():
    def place(label):
        def of(turns):
            chosen = rarest_turn(turns, label)
            return None if chosen is None else turns.index(chosen)

        return of

    assert outcome("5", "5", "4", "4", "7", None, of=place("5")) == 4
    assert outcome("5", "8", "4", of=place("5")) == 1  # of equally rare ones the first
    assert outcome("5", "5", None, of=place("5")) is None
    assert outcome("5", "4", "4", of=place("4")) == 0


def test_only_the_same_answer_agrees():
    def said(turns):
        label = elected_turn(turns)
        return [agrees_with(turn, label) for turn in turns], [agrees_with(turn, None) for turn in turns]

    assert outcome("4", "5", "4", None, of=said) == ([True, False, True, False], [False] * 4)
    assert outcome(None, of=said) == ([False], [False])


def test_a_wrong_majority_is_paid_and_the_notes_say_so():
    # 4 wins with 2 of 4 and is wrong: the reward of both 4s and of the 5 is not what the truth would have paid
    traces = voting("4", "4", "5", None, then=lambda turns: reward_vote(turns, elected_turn(turns)))
    assert [[s.value for s in t.rewards] for t in traces] == [[1.0], [1.0], [0.0], [0.0]]
    assert {s.name for t in traces for s in t.rewards} == {"vote"}
    assert [t.metadata["label_right"] for t in traces] == [False] * 4
    assert [t.metadata["reward_right"] for t in traces] == [False, False, False, True]
    assert [t.metadata["correct"] for t in traces] == [False, False, True, False]


def test_a_right_majority_pays_what_the_truth_would():
    traces = voting("5", "4", "5", then=lambda turns: reward_vote(turns, elected_turn(turns)))
    assert [[s.value for s in t.rewards] for t in traces] == [[1.0], [0.0], [1.0]]
    assert all(t.metadata["label_right"] is True and t.metadata["reward_right"] is True for t in traces)


def test_nobody_elected_is_nobody_right():
    assert outcome(None, None, of=lambda turns: label_is_right(elected_turn(turns))) is False
    assert outcome("5", of=lambda turns: label_is_right(turns[0])) is True
    assert outcome("4", of=lambda turns: label_is_right(turns[0])) is False
    traces = voting(None, then=lambda turns: reward_vote(turns, elected_turn(turns)))
    assert traces[0].rewards[0].value == 0.0 and traces[0].metadata["reward_right"] is True
