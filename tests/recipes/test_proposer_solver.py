"""A proposer and its solvers: what is paid, what enters the pool, and that the gate fails closed."""

from dataclasses import asdict
from functools import partial

import pytest

from cotrain.core.types import Sampling
from cotrain.data.word_problems.reader import problem_signature, read_problem
from cotrain.data.word_problems.source import study_problems
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.proposer_solver import VARIANTS, proposer_solver
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.proposals import propose_and_solve, proposer_pay
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.stores import PoolProblem, TaskPool
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, Talks, spoken
from tests.sentences import refuses

GOOD = "There are 12 apples. There are 4 more pears than apples. How many pears are there?"
OTHER = "There are 5 apples. There are 4 more pears than apples. How many pears are there?"
TASK = study_problems((2, 2)).get("train", 0)
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2}


def held(*texts, solved=0.5):
    items = [
        PoolProblem(
            problem=t,
            answer="9",
            signature=problem_signature(read_problem(t)),
            solved=solved,
            born=0,
            source="0:0:0:proposer:0",
        )
        for t in texts
    ]
    return TaskPool(items=tuple(items))


def played(said, answers, *, pool=None, variant="azr", group_size=1, **changes):
    """One proposal ``said``, and solvers that give these answers in turn: the episode's traces by role."""
    usual = {"samples": len(answers), "target": 0.5, "invalid": 0.0, "reuse": 1.0}
    options = asdict(VARIANTS[variant]) | usual | changes
    left = iter(answers * group_size)
    programs = {
        "p": lambda fields, rng: said,
        "s": lambda fields, rng: f"<step>x</step><answer>{next(left)}</answer>",
    }
    roles = {
        "proposer": Role(policy="p", prompt="{hint} Write:", sampling=Sampling(max_tokens=9)),
        "solver": Role(policy="s", prompt="{problem} Solve:", parse=parse_solution, sampling=Sampling(max_tokens=9)),
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    pool = TaskPool() if pool is None else pool
    episodes = executor.collect(partial(propose_and_solve, pool=pool, **options), [TASK], step=3, group_size=group_size)
    assert all(e.failure is None for e in episodes), episodes
    traces = [t for e in episodes for t in e.traces]
    return [t for t in traces if t.role == "proposer"], [t for t in traces if t.role == "solver"], episodes


def test_a_problem_is_worth_what_its_difficulty_is():
    assert [proposer_pay("hard", p) for p in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert [proposer_pay("learnable", p) for p in (0.0, 0.25, 1.0)] == [0.0, 0.75, 0.0]
    assert [proposer_pay("parabola", p) for p in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.75, 1.0, 0.0]
    assert [proposer_pay("uncertain", p) for p in (0.0, 0.25, 0.75)] == [0.0, 0.25, 0.25]
    assert [proposer_pay("target", p, 0.25) for p in (0.25, 1.0, 0.0)] == [1.0, 0.0, pytest.approx(2 / 3)]


def test_the_proposer_is_paid_by_the_solvers_whole_group():
    [proposal], solvers, episodes = played(GOOD, ["16", "15", "16", "16"])
    assert [s.value for s in proposal.rewards] == [0.25] and proposal.metadata["valid"] is True
    assert [t.rewards[0].value for t in solvers] == [1.0, 0.0, 1.0, 1.0]
    assert {t.group for t in solvers} == {str(proposal.address)}
    pool = TaskPool().with_episodes(episodes, step=3)
    assert [(i.problem, i.answer, i.solved, i.born, i.played) for i in pool.items] == [(GOOD, "16", 0.75, 3, 1)]
    assert pool.items[0].source == str(proposal.address)


def test_the_gate_fails_closed_with_a_reason():
    for said, reason in (("Nonsense.", "not read"), ("", "not read"), (GOOD + " " + GOOD, "no question")):
        [proposal], solvers, episodes = played(said, ["1"] * 4)
        assert proposal.rewards[0].value == 0.0 and proposal.findings["failure"] == reason
        assert not solvers and not TaskPool().with_episodes(episodes, step=0).items
    [proposal], _, _ = played("Nonsense.", ["1"] * 4, invalid=-0.1)
    assert proposal.rewards[0].value == -0.1


@pytest.mark.parametrize("gate", [True, False])
def test_what_runs_are_tested_on_is_not_learned_from(gate):
    held_out = study_problems((2, 2)).get("test", 0)
    [proposal], solvers, episodes = played(held_out.prompt, ["1"] * 4, gate=gate, labels="vote")
    assert proposal.metadata["valid"] is True and proposal.findings["failure"] == "held out"
    assert proposal.rewards[0].value == 0.0 and not solvers and not TaskPool().with_episodes(episodes, step=0).items


def test_a_replay_brings_its_record_up_to_date_and_is_not_added_again():
    pool = held(GOOD, OTHER)
    [proposal], solvers, episodes = played("Nonsense.", ["16", "16", "9", "9"], pool=pool)
    assert len(solvers) == 4 and proposal.rewards[0].value == 0.0  # of a replay the proposer earns nothing
    after = pool.with_episodes(episodes, step=4)
    assert len(after.items) == 2 and sorted(i.played for i in after.items) == [1, 2]
    assert [i.born for i in after.items] == [0, 0]
    again = pool.with_episodes(played(GOOD, ["16"] * 4, pool=pool)[2], step=4)  # the same problem, written anew
    assert again == pool


def test_of_the_pool_only_what_few_solved_is_used_again():
    _, solvers, _ = played("Nonsense.", ["16"] * 2, pool=held(GOOD, solved=0.9), reuse=0.5)
    assert not solvers


def test_the_oldest_problems_leave_a_full_pool():
    pool = (
        TaskPool(cap=1).with_episodes(played(GOOD, ["16"])[2], step=0).with_episodes(played(OTHER, ["16"])[2], step=1)
    )
    assert [item.problem for item in pool.items] == [OTHER]


def test_a_pool_is_restored_from_its_state():
    pool = held(GOOD, OTHER)
    assert TaskPool().restore_state(pool.state()) == pool
    with refuses("E_STATE_MISFIT"):
        TaskPool().restore_state({})


def test_the_majority_labels_and_the_program_only_notes():
    [proposal], solvers, _ = played(GOOD, ["15", "15", "16"], variant="rzero")
    assert [s.value for s in proposal.rewards] == [pytest.approx(1 / 3)]  # min(2/3, 1/3)
    assert [t.rewards[0].value for t in solvers] == [1.0, 1.0, 0.0]
    assert [t.metadata["label_right"] for t in solvers] == [False] * 3 and solvers[2].metadata["correct"] is True
    [proposal], solvers, _ = played("Nonsense.", ["7", "7", "7", "8"], variant="rzero")
    assert proposal.metadata["valid"] is False and proposal.rewards[0].value == 0.25
    assert all("correct" not in t.metadata for t in solvers)
    _, solvers, _ = played(GOOD, ["16"] * 4, variant="rzero")
    assert not any(t.rewards for t in solvers)  # 1 is outside of the band [0.3, 0.8]


def test_what_has_been_written_often_is_worth_less():
    [proposal], _, _ = played(GOOD, ["16", "15"], variant="rzero", pool=held(OTHER))
    assert proposal.rewards[0].value == -0.5  # 1/2 minus all of the recent problems, which have its shape


@pytest.mark.whole
def test_the_pool_of_a_run_grows_and_is_in_its_state():
    made = proposer_solver(steps=3, **SMALL | {"model": "shipped-proposer", "tasks_per_step": 8})
    trainer = CoTrainer(made)
    sizes = [trainer.step().row["pool/size"] for _ in range(2)]
    assert 0.0 < sizes[0] < sizes[1]
    state, tensors = trainer.state(), trainer.policies.tensors()
    other = CoTrainer(made)
    other.load(state, tensors)
    assert other.stores == trainer.stores


def test_no_prompt_of_a_solver_holds_the_answer():
    [proposal], solvers, _ = played(GOOD.replace("12", "31").replace("4 more", "8 more"), ["39"] * 2)  # 31 + 8
    shown = [ByteRenderer().decode(t.prompt_ids) for t in (proposal, *solvers)]
    assert all(" 39" not in text for text in shown) and str(TASK.gold) not in shown[0]


def test_variants_and_controls():
    made = proposer_solver(**SMALL)
    assert set(made.policies) == {"generator"} and [p.name for p in made.schedule.phases] == ["solve"]
    made = proposer_solver(variant="rzero", **SMALL)
    assert [p.name for p in made.schedule.phases] == ["propose", "solve"] and len(made.schedule.cycle) == 20
    made = proposer_solver(proposer="frozen", **SMALL)
    assert made.roles["proposer"].policy == "proposer" and "proposer" not in made.objectives
    made = proposer_solver(proposer="uniform", **SMALL)
    assert made.roles["proposer"].policy == "author" and set(made.objectives) == {"generator"}
    assert proposer_solver(gate=False, **SMALL).schedule.phases[0].options["labels"] == "vote"
    with refuses("E_MODEL_NOT_TAUGHT_FORMAT", names=("proposer_solver", "'shipped'")):
        proposer_solver(model="shipped")
    assert proposer_solver().policies["generator"].model == "shipped-proposer"
    with refuses("E_NO_GATE", names="talks"):
        proposer_solver(tasks=Talks())


@pytest.mark.whole
def test_a_fixed_curriculum_has_problems_of_one_length_and_the_test_keeps_all():
    made = proposer_solver(variant="rzero", gate=True, proposer="uniform", uniform_operations=3, **SMALL)
    played = CoTrainer(made).step().episodes
    proposals = [t for e in played for t in e.traces if t.role == "proposer"]
    assert len(proposals) == 3 and {t.metadata["depth"] for t in proposals} == {3.0}
    texts = {t.text for t in proposals}
    assert len(texts) == 3 and made.tasks is EASY and EASY.operations == (2, 2)
    again = CoTrainer(made).step().episodes
    assert {t.text for e in again for t in e.traces if t.role == "proposer"} == texts, "drawn at the call's address"
    with refuses("E_SETTING_RANGE", names=("uniform_operations is 3", "proposer=uniform")):
        proposer_solver(uniform_operations=3, **SMALL)
    with refuses("E_SETTING_RANGE", names="uniform_operations is 0"):
        proposer_solver(proposer="uniform", uniform_operations=0, **SMALL)
