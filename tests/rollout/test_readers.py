"""Problems that a proposer writes for tasks of one's own: how they are read, worked out by a user's program, kept apart
from held-out ones, and what becomes of a program that fails."""

import json
from dataclasses import asdict
from functools import partial

import pytest

from cotrain import api
from cotrain.config.override import override
from cotrain.core.types import ParseFailure, Sampling
from cotrain.data.sources import task_source
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.mae.evolve import evolve, parse_score
from cotrain.recipes.mae.recipe import mae
from cotrain.recipes.proposer_solver import VARIANTS, proposer_solver
from cotrain.rollout import readers
from cotrain.rollout.common_roles import parse_solution
from cotrain.rollout.proposals import parse_proposal, propose_and_solve
from cotrain.rollout.readers import TextReader
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.stores import TaskPool
from tests.helpers import EASY, TINY, spoken
from tests.sentences import refuses

CHECKS = """import re
import time


def check(problem: str) -> str | None:
    terms = re.search(r"(\\d+) \\+ (\\d+)", problem)
    return str(int(terms[1]) + int(terms[2])) if terms else None


async def later(problem: str) -> str | None:
    return check(problem)


def number(problem):
    return 3


def fails(problem):
    raise KeyError(problem)


def hangs(problem):
    while True:
        pass


async def waits(problem):
    import asyncio

    await asyncio.sleep(600)
"""
SMALL = {"model": TINY, "steps": 2, "tasks_per_step": 3, "group_size": 2, "evaluation_tasks": 1}
BRIEF = ["evaluation.group_size=1", "evaluation.greedy=false", "evaluation.splits=[]"]
READER = {"samples": 3, "target": 0.5, "invalid": -0.5, "reuse": 1.0}


@pytest.fixture(scope="module")
def checks(tmp_path_factory):
    path = tmp_path_factory.mktemp("user") / "mine.py"
    path.write_text(CHECKS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    path = tmp_path_factory.mktemp("user") / "sums.jsonl"
    rows = [{"question": f"What is {n} + {n % 7}?", "answer": str(n + n % 7)} for n in range(60)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    source = task_source("jsonl", str(path))
    yield source
    source.close()


def check_of(checks, name, sums):
    return proposer_solver(gate=f"{checks}:{name}", tasks=sums, **SMALL).schedule.phases[0].options["reader"]


def played(said, answers, reader, variant="azr", pool=None, **changes):
    """One proposal, and solvers that give these answers in turn: the proposer's trace, the solvers', the pool after."""
    left = iter(answers)
    programs = {"p": lambda fields, rng: said, "s": lambda fields, rng: f"<step>x</step><answer>{next(left)}</answer>"}
    one = Sampling(max_tokens=9)
    roles = {
        "proposer": Role(policy="p", prompt="{hint} Write:", parse=parse_proposal, sampling=one),
        "solver": Role(policy="s", prompt="{problem} Solve:", parse=parse_solution, sampling=one),
    }
    executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
    options = asdict(VARIANTS[variant]) | READER | {"reader": reader, "pool": pool or TaskPool()} | changes
    task = reader.source.get("train", 0)
    [episode] = executor.collect(partial(propose_and_solve, **options), [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    [proposal] = [t for t in episode.traces if t.role == "proposer"]
    solvers = [t for t in episode.traces if t.role == "solver"]
    return proposal, solvers, options["pool"].with_episodes([episode], step=0)


def test_a_proposal_is_what_stands_in_the_last_tags_or_all_where_there_are_none():
    for text, problem in (
        ("What is 1?", "What is 1?"),
        ("Sure: <problem> a </problem> or <problem>What is 2?</problem> Good luck.", "What is 2?"),
        ("<think><problem>no</problem></think>\n<problem>yes</problem>", "yes"),
    ):
        assert parse_proposal(text, {}).text == problem
    for text, reason in (
        ("", "no problem"),
        ("<problem>never closed", "no problem"),
        ("never opened</problem>", "no problem"),
        ("<problem> </problem>", "no problem"),
        ("<think>on and on", "unclosed think"),
    ):
        assert parse_proposal(text, {}) == ParseFailure(reason=reason)


@pytest.mark.parametrize("name", ["check", "later"])
def test_a_users_program_works_problems_out_and_the_sources_grader_compares(name, checks, sums):
    reader = check_of(checks, name, sums)
    proposal, solvers, pool = played("<problem>Find 90 + 10.</problem>", ["100", "1e2", "7"], reader)
    assert [t.rewards[0].value for t in solvers] == [1.0, 1.0, 0.0]  # 1e2 is 100
    assert proposal.rewards[0].value == pytest.approx(1 / 3) and proposal.metadata["valid"] is True
    assert [(i.problem, i.answer, i.signature) for i in pool.items] == [("Find 90 + 10.", "100", "find 90 + 10.")]
    shown = ByteRenderer().decode(proposal.prompt_ids)
    assert shown == f"{sums.get('train', 0).prompt} Write:"  # an empty pool: the task's own problem
    proposal, solvers, again = played("Nothing to add.", ["100", "100", "7"], reader, pool=pool)
    assert proposal.findings["failure"] == "no problem" and proposal.rewards[0].value == -0.5
    assert [t.rewards[0].value for t in solvers] == [1.0, 1.0, 0.0]  # of the pool's problem, by its answer
    assert again.items[0].played == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("number", "gate: no text"),
        ("fails", "gate: KeyError"),
        ("hangs", "gate: timeout"),
        ("waits", "gate: timeout"),
    ],
)
def test_a_program_that_fails_pays_nobody_and_is_counted(name, reason, checks, sums, monkeypatch):
    if reason == "gate: timeout":
        monkeypatch.setattr(readers, "LIMIT_S", 0.1)
    proposal, solvers, pool = played("What is 90 + 10?", ["100"] * 3, check_of(checks, name, sums))
    assert (proposal.failure, proposal.findings["failure"]) == (reason, reason)
    assert not proposal.rewards and not proposal.metadata and not solvers and not pool.items


@pytest.mark.parametrize(("variant", "name"), [("azr", "check"), ("rzero", None)])
def test_a_held_out_problem_in_other_letters_is_not_learned_from(variant, name, checks, sums):
    reader = check_of(checks, name, sums) if name else TextReader(source=sums)
    for split in ("validation", "test"):
        said = f"  {sums.get(split, 0).prompt.upper()} ".replace(" IS", "\nis")
        proposal, solvers, pool = played(said, ["1"] * 3, reader, variant)
        assert proposal.findings["failure"] == "held out" and proposal.rewards[0].value == -0.5
        assert not solvers and not pool.items


def test_without_a_program_the_vote_is_the_label_and_nothing_is_noted_of_the_truth(sums):
    reader = TextReader(source=sums)
    proposal, solvers, pool = played("What is 90 + 10?", ["100", "100", "7"], reader, "rzero")
    assert [t.rewards[0].value for t in solvers] == [1.0, 1.0, 0.0]
    assert proposal.rewards[0].value == pytest.approx(1 / 3) and proposal.metadata == {"solved": pytest.approx(2 / 3)}
    assert not any(t.metadata for t in solvers) and pool.items[0].answer == ""
    proposal, _, _ = played("What is  80 + 20?", ["100", "100", "7"], reader, "rzero", pool=pool)
    assert proposal.rewards[0].value == pytest.approx(1 / 3 - 1)  # the same again, with other numbers


def test_mae_is_silent_about_what_nobody_knows(sums, checks):
    programs = {
        "p": lambda fields, rng: "<problem>Find 90 + 10.</problem>",
        "s": lambda fields, rng: "<step>x</step><answer>100</answer>",
        "q": lambda fields, rng: "<score>10</score>",
    }
    asked = {"proposer": ("p", "{hint}", parse_proposal), "rater": ("q", "{problem}", parse_score)}
    asked |= dict.fromkeys(("solver", "trial"), ("s", "{problem}", parse_solution))
    asked |= {"judge": ("q", "{problem}{solution}", parse_score)}
    roles = {
        name: Role(policy=policy, prompt=prompt, parse=parse, sampling=Sampling(max_tokens=9))
        for name, (policy, prompt, parse) in asked.items()
    }
    for reader, knows in ((TextReader(source=sums), False), (check_of(checks, "check", sums), True)):
        executor = RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)
        play = partial(evolve, pool=TaskPool(), samples=2, reader=reader)
        [episode] = executor.collect(play, [sums.get("train", 0)], step=0, group_size=1)
        truths = {trace.role: trace.metadata for trace in episode.traces}
        assert ("valid" in truths["proposer"]) == ("correct" in truths["trial"]) == ("correct" in truths["judge"])
        assert ("valid" in truths["proposer"]) is knows and truths["proposer"]["quality"] == 1.0


def test_what_is_missing_or_wrong_is_said_in_one_line(sums, checks, capsys):
    for settings, code in (
        ({}, "E_NO_GATE: jsonl"),
        ({"gate": True, "variant": "rzero"}, "E_NO_GATE"),
        ({"gate": f"{checks}:chek"}, "E_NO_SUCH_FUNCTION: 'check'"),
        ({"gate": lambda problem: "1"}, "E_GATE_PLACE"),
        ({"gate": f"{checks}:check", "tasks": EASY}, "E_GATE_NOT_NEEDED"),
        ({"gate": False, "proposer": "uniform", "uniform_operations": 2}, "E_FIXED_NEEDS_WORDS"),
    ):
        with refuses(code):
            proposer_solver(**{"tasks": sums, **SMALL, **settings})
    for settings in ({"judge": "oracle"}, {"truth": 0.5}):
        with refuses("E_NO_GATE"):
            mae(tasks=sums, **SMALL, **settings)
    capsys.readouterr()
    mae(tasks=sums, **SMALL)
    assert capsys.readouterr().err.count("is not measured") == 1


@pytest.mark.whole
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("proposer_solver", {"gate": "check"}),
        ("proposer_solver", {"gate": "later", "proposer": "uniform"}),
        ("proposer_solver", {"variant": "rzero", "ratio": (1, 1), "proposer_group_size": 2}),
        ("mae", {}),
        ("mae", {"gate": "check"}),
    ],
)
def test_a_run_takes_tasks_of_ones_own(method, settings, sums, checks, tmp_path):
    if "gate" in settings:
        settings = settings | {"gate": f"{checks}:{settings['gate']}"}
    make = {"proposer_solver": proposer_solver, "mae": mae}[method]
    api.run(override(make(tasks=sums, **SMALL, **settings), BRIEF), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 2 and not any(key.startswith("failures/") for row in rows for key in row)
    knows = any("proposer/metadata/valid" in row for row in rows)
    assert knows == ("gate" in settings)
