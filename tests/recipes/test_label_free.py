"""Votes, labels, vetoes and who is paid by whom: every reward by hand, on solutions and reviews that are dictated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest
import torch

from cotrain.config.policies import frozen
from cotrain.core.types import Completion, Grade, Sampling, Task
from cotrain.data.word_problems.source import WordProblems
from cotrain.recipes.judged import judged, solve_to_be_believed
from cotrain.recipes.votes import co_rewarding, exchange_votes, learn_from_teacher, ttrl, vote
from cotrain.rollout import verifier_roles
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.votes import elected_turn, rarest_turn
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, CharRenderer
from tests.sentences import refuses


class Exact:
    def grade(self, task, text):
        return Grade(value=text.endswith(f"<answer>{task.gold}</answer>"))

    def grade_steps(self, task, steps):
        return None


@dataclass
class Dictated:
    """Says to the n-th call of each role what stands there."""

    said: dict[str, list[str]]

    async def sample(self, request):
        text = self.said[request.address.role][request.address.call]
        ids = (*CharRenderer().encode(text), 0)
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish="stop", policy="a", version=0)

    def advance(self):
        return False


def solved(*answers):
    """Solutions of two steps; "" for one that cannot be read."""
    return [f"<step>a</step><step>b</step><answer>{a}</answer>" if a else "what?" for a in answers]


RIGHT = "<step>CORRECT</step><step>CORRECT</step><final>CORRECT</final>"
WRONG = "<step>CORRECT</step><step>INCORRECT</step><final>INCORRECT</final>"
SOLVER = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=999), parse=parse_solution)
ROLES = {
    "solver": SOLVER,
    "rephrased": SOLVER,
    "teacher": SOLVER,
    "verifier": replace(SOLVER, prompt="{solution}?", parse=parse_review),
}


SCORED = replace(SOLVER, prompt="{solution}?", parse=verifier_roles.scoring_verifier("a", "m").parse)


def play(protocol, gold, *, said, roles=None, **options):
    """The traces by role, in order of their calls; without a ``gold`` answer nobody knows the truth."""
    task = Task(id="t/0", prompt="P", gold=gold, solution=None, difficulty=0, grader=Exact(), paraphrases=("Q",))
    task = replace(task, gradable=gold is not None)
    executor = RolloutRunner(Dictated(said), {"a": CharRenderer()}, ROLES | (roles or {}), 0)
    (episode,) = executor.collect(partial(protocol, **options), [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return {role: [t for t in episode.traces if t.role == role] for role in ROLES | (roles or {})}


def paid(traces, name):
    return [next((s.value for s in t.rewards if s.name == name), None) for t in traces]


def noted(traces, name):
    return [t.metadata.get(name) for t in traces]


def asked(trace):
    return CharRenderer().decode(trace.prompt_ids)


def turns(*answers):
    found = []

    async def protocol(task, roles):
        found.extend(await roles.solver.many(len(answers), problem="P"))

    play(protocol, "0", said={"solver": solved(*answers)})
    return found


def test_the_first_of_the_most_and_of_the_least_frequent_answers():
    spoken = turns("", "5", "7", "4", "7", "5", "3")
    assert elected_turn(spoken) is spoken[1]  # 5 and 7 have two votes each, and 5 came first
    assert rarest_turn(spoken, "5") is spoken[3]  # 4 and 3 have one each
    assert elected_turn(turns("", "")) is None and elected_turn([]) is None
    assert rarest_turn(turns("5", "", "5"), "5") is None


def test_ttrl_pays_the_majority_and_trains_on_the_first_of_the_voters():
    said = {"solver": solved("5", "7", "", "7", "5", "7")}
    solver = play(vote, "5", said=said, votes=6, trained=4)["solver"]
    assert paid(solver, "vote") == [0.0, 1.0, 0.0, 1.0, None, None]
    assert noted(solver, "label_right") == [False] * 6
    assert noted(solver, "reward_right") == [
        False,
        False,
        True,
        False,
        None,
        None,
    ]  # what cannot be read is wrong to both
    assert {t.group for t in solver} == {"0:solver"}
    solver = play(vote, "5", said=said, votes=6, trained=4, labels="truth")["solver"]
    assert paid(solver, "outcome") == [1.0, 0.0, 0.0, 0.0, None, None]
    assert paid(solver, "vote") == [None] * 6 and noted(solver, "label_right") == [False] * 6
    solver = play(vote, "7", said=said, votes=6, trained=6)["solver"]
    assert noted(solver, "label_right") == noted(solver, "reward_right") == [True] * 6
    solver = play(vote, "5", said={"solver": solved("", "")}, votes=2, trained=2)["solver"]
    assert paid(solver, "vote") == [0.0, 0.0] and noted(solver, "reward_right") == [True, True]


def test_votes_pay_the_same_where_nobody_knows_the_truth():
    said = {role: solved("5", "7", "", "7") for role in ("solver", "rephrased", "teacher")}
    for protocol, options in (
        (vote, {"votes": 4, "trained": 4}),
        (exchange_votes, {"samples": 4}),
        (learn_from_teacher, {"samples": 4, "rephrase": False}),
    ):
        known, unknown = (play(protocol, gold, said=said, **options) for gold in ("7", None))
        assert paid(unknown["solver"], "vote") == paid(known["solver"], "vote") == [0.0, 1.0, 0.0, 1.0]
        assert all(known["solver"][0].metadata) and not any(t.metadata for of_role in unknown.values() for t in of_role)
        assert not any(t.failure for t in unknown["solver"])


def test_either_view_is_paid_by_the_vote_of_the_other():
    said = {"solver": solved("5", "5", "7"), "rephrased": solved("7", "5", "7")}
    traces = play(exchange_votes, "7", said=said, samples=3)
    assert paid(traces["solver"], "vote") == [0.0, 0.0, 1.0]  # 7 is the vote of the paraphrase
    assert paid(traces["rephrased"], "vote") == [0.0, 1.0, 0.0]
    assert (
        noted(traces["solver"], "label_right") == [True] * 3
        and noted(traces["rephrased"], "label_right") == [False] * 3
    )
    assert {asked(t) for t in traces["solver"]} == {"P="} and {asked(t) for t in traces["rephrased"]} == {"Q="}
    assert {t.group for t in traces["rephrased"]} == {"0:rephrased"}
    assert {t.findings["problem"] for t in traces["rephrased"]} == {"Q"}


@pytest.mark.parametrize(("rephrase", "problem"), [(False, "P="), (True, "Q=")])
def test_the_teacher_votes_and_is_not_paid(rephrase, problem):
    said = {"solver": solved("5", "5", "7"), "teacher": solved("7", "", "7")}
    traces = play(learn_from_teacher, "5", said=said, samples=3, rephrase=rephrase)
    assert paid(traces["solver"], "vote") == [0.0, 0.0, 1.0]
    assert noted(traces["solver"], "reward_right") == [False] * 3
    assert {asked(t) for t in traces["teacher"]} == {problem} and {asked(t) for t in traces["solver"]} == {"P="}
    assert not any(t.rewards for t in traces["teacher"])
    alone = play(vote, "5", said=said, votes=3, trained=3)["solver"]
    assert paid(alone, "vote") == [1.0, 1.0, 0.0] and noted(alone, "label_right") == [True] * 3


@pytest.mark.parametrize(
    ("build", "arguments", "code"),
    [
        (ttrl, {"votes": 4}, "E_VOTES_BELOW_GROUP"),
        (ttrl, {"labels": "votes"}, "E_UNKNOWN_CHOICE: 'vote'"),
        (co_rewarding, {"variant": "IV"}, "E_UNKNOWN_CHOICE: co_rewarding"),
        (co_rewarding, {"teacher": "emma"}, "E_UNKNOWN_CHOICE: 'ema'"),
        (co_rewarding, {"variant": "I", "teacher": "ema"}, "E_VARIANT_TEACHER: 'ema'"),
        (co_rewarding, {"variant": "III", "teacher": "none"}, "E_VARIANT_TEACHER: III | 'none'"),
        (co_rewarding, {"variant": "I", "tasks": WordProblems(families=("plain",))}, "E_TASK_WITHOUT_PARAPHRASE"),
        (co_rewarding, {"rate": 2.0}, "E_EMA_RATE"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(build, arguments, code):
    with refuses(code) as error:
        build(**arguments)
    assert "\n" not in str(error.value)


def test_who_labels_and_who_is_pulled_where():
    taught_by = co_rewarding().policies
    assert (taught_by["teacher"].rate, taught_by["teacher"].rate_end) == (0.01, 1e-5)
    assert co_rewarding().objectives["generator"].algorithm.kl.to == "teacher"
    assert co_rewarding(teacher="frozen").policies["teacher"] == frozen("shipped")
    assert set(co_rewarding(teacher="none").policies) == {"generator", "reference"}
    first = co_rewarding(variant="I")
    assert set(first.objectives) == {"generator", "rephrased"} and "teacher" not in first.policies
    assert first.objectives["rephrased"].algorithm.kl.to == "reference"
    assert co_rewarding(variant="III").schedule.phases[0].options["rephrase"]
    assert not co_rewarding(tasks=WordProblems(families=("plain",))).schedule.phases[0].options["rephrase"]


async def _unparaphrased(task, roles):
    await exchange_votes(replace(task, paraphrases=()), roles, samples=1)


def test_a_task_without_paraphrase_ends_the_play():
    with refuses("E_TASK_WITHOUT_PARAPHRASE", names="t/0"):
        play(_unparaphrased, "5", said={})


def test_no_reward_depends_on_the_truth():
    said = {"solver": solved("5", "5", "7"), "rephrased": solved("7", "5", "7"), "teacher": solved("7", "", "7")}

    def rewards(gold):
        played = [
            play(vote, gold, said=said, votes=3, trained=2),
            play(exchange_votes, gold, said=said, samples=3),
            play(learn_from_teacher, gold, said=said, samples=3, rephrase=True),
        ]
        return [[t.rewards for traces in by_role.values() for t in traces] for by_role in played]

    assert rewards("5") == rewards("7") == rewards("0")


def test_a_solution_earns_the_share_of_readable_reviews_that_call_it_right():
    said = {"solver": solved("5"), "verifier": [RIGHT, WRONG, "what?", RIGHT]}
    found = play(solve_to_be_believed, "7", said=said, reviews=4)
    assert paid(found["solver"], "believed") == [2 / 3]  # believed, and wrong
    assert paid(found["solver"], "outcome") == [0.0]
    assert paid(found["verifier"], "agreement") == [0.0, 1.0, 0.0, 0.0]


def test_a_judge_who_calls_a_solution_half_right_pays_half():
    """The scores of DeepSeekMath-V2 are 0, 0.5 and 1."""
    said = {"solver": solved("5"), "verifier": [f"So so. <score>{score}</score>" for score in ("0.5", "1", "0.5", "?")]}
    found = play(solve_to_be_believed, "5", said=said, roles={"verifier": SCORED}, reviews=4)
    assert paid(found["solver"], "believed") == [2 / 3]
    assert paid(found["verifier"], "agreement") == [0.0, 1.0, 0.0, 0.0]


JUDGES = {"auditor": ROLES["verifier"]}


def test_an_audit_reads_what_is_paid_and_pays_nothing():
    said = {"solver": solved("7"), "verifier": [RIGHT, WRONG, "?"], "auditor": [WRONG]}
    found = play(solve_to_be_believed, "7", said=said, roles=JUDGES, reviews=3, audit_share=1.0)
    assert paid(found["solver"], "believed") == [0.5]
    [verdict] = found["auditor"]
    assert verdict.findings["final"] is False and verdict.findings["payer_said"] == 0.5  # two are readable, one says
    # right
    assert verdict.rewards == () and verdict.parent == str(found["solver"][0].address)


def test_what_earns_nothing_is_not_audited():
    unread = {"solver": solved(""), "verifier": [], "auditor": []}
    silent = {"solver": solved("7"), "verifier": ["?", "?"], "auditor": []}
    for said in (unread, silent):
        found = play(solve_to_be_believed, "7", said=said, roles=JUDGES, reviews=2, audit_share=1.0)
        assert not found["auditor"]


def test_an_audit_is_played_where_the_generator_learns():
    made = judged(audit="reference", warmup=1)
    shares = [made.schedule.phase_at(step).options.get("audit_share") for step in range(3)]
    assert shares == [None, 0.25, 0.25]
    assert made.policies["auditor"].kind == "frozen"
    assert made.policies["auditor"].model == made.policies["verifier"].model
    assert judged(audit="shipped-checker").policies["auditor"].model == "shipped-checker"
    assert "auditor" not in judged().roles


def test_an_audit_that_can_see_nothing_is_refused():
    with refuses("E_AUDITOR_IS_JUDGE"):
        judged(audit="reference", verifier="frozen", warmup=0)
    with refuses("E_SETTING_RANGE"):
        judged(audit="reference", audit_share=0.0)


@pytest.mark.whole
def test_a_run_with_an_audit_learns_the_same_bits():
    small = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 4, "warmup": 1, "lr": 1e-3}
    plain, audited = (CoTrainer(judged(steps=3, **small, **more)) for more in ({}, {"audit": "reference"}))
    for _ in range(3):
        row, audited_row = plain.step().row, audited.step().row
        assert audited_row.pop("tokens") >= row.pop("tokens")  # those of the audit count
        unchanged = {key: value for key, value in audited_row.items() if not key.startswith("auditor/")}
        assert unchanged == row  # the gap too, which is that of the judge that pays
    assert audited_row["auditor/audit/answers"] >= 1
    after, audited_after = plain.policies.tensors(), audited.policies.tensors()
    for name in ("generator", "verifier"):
        assert all(torch.equal(tensor, audited_after[name][key]) for key, tensor in after[name].items())


def test_what_no_review_can_be_read_of_earns_nothing_and_what_cannot_be_read_earns_0():
    found = play(solve_to_be_believed, "7", said={"solver": solved("7"), "verifier": ["?", "?"]}, reviews=2)
    assert paid(found["solver"], "believed") == [None]
    found = play(solve_to_be_believed, "7", said={"solver": solved(""), "verifier": []}, reviews=2)
    assert paid(found["solver"], "believed") == [0.0] and not found["verifier"]


def test_a_frozen_judge_learns_in_its_warmup_alone():
    assert judged(verifier="frozen", warmup=0).policies["verifier"].kind == "frozen"
    made = judged(verifier="frozen", warmup=3)
    assert [made.schedule.phase_at(step).objectives for step in range(5)] == [("verifier",)] * 3 + [("generator",)] * 2
    made = judged(warmup=1, pay="truth")
    assert made.schedule.phase_at(1).objectives == ("generator", "verifier")
    with refuses("E_SETTING_RANGE"):
        judged(reviews=1)


def test_judge_and_judged_learn_in_turn_where_a_ratio_says_so():
    made = judged(ratio=(2, 1), warmup=1)
    learning = [made.schedule.phase_at(step).objectives for step in range(7)]
    assert learning == [("verifier",)] + 2 * [("generator",), ("generator",), ("verifier",)]
    with refuses("E_RATIO_WITHOUT_LEARNER"):
        judged(ratio=(1, 1), verifier="frozen")
