"""Search over checked steps: which node is next, what passes, what is learned, and practice on one target."""

import asyncio
import json
import math
import random
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cotrain import api
from cotrain.algorithms.contract import Batch
from cotrain.algorithms.samples import sample_of
from cotrain.config.override import override
from cotrain.core.types import Sampling
from cotrain.data.sources import from_description, task_source
from cotrain.data.word_problems.problem import Fact
from cotrain.data.word_problems.reader import problem_signature, read_problem, task_of
from cotrain.data.word_problems.source import WordProblems
from cotrain.grading.step_checker import CheckedSteps, StepChecker
from cotrain.recipes.alphaproof.recipe import alphaproof
from cotrain.recipes.alphaproof.step_search import ChainJudge, ChainNode, StepVerdict, oracle_reason, prove, steps_in
from cotrain.recipes.alphaproof.variants import Variants, draw_variant, facts_needed_by
from cotrain.recipes.magrpo.halves import Halves
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, CharRenderer
from tests.rollout.scripted import Scripted
from tests.sentences import refuses

TEXT = (
    "There are 5 apples. There are 3 eggs. There are 4 more pears than apples. There are 2 times as many nuts as "
    "pears. How many nuts are there?"
)
TARGET = read_problem(TEXT)
TASK = task_of(TARGET, "mine")
A, B = (f"<step>{step}</step>" for step in TARGET.steps)  # 9 pears, 18 nuts
END, FALSE = "<answer>18</answer>", A.replace("=9", "=8")
SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 3, "evaluation_tasks": 2, "lr": 1e-3}
OF = EASY.describe()["settings"]


class Said(Scripted):
    """Says these texts in turn, each up to where it is to stop."""

    def __init__(self, texts):
        super().__init__(lambda prompt, outputs: next(left))
        left, self.asked = iter(texts), []

    async def sample(self, request):
        self.asked.append(request.address)
        return await super().sample(request)


def proved(*said, budget=10_000, width=2, task=TASK, **options):
    """The traces of a search in which a policy says these texts in turn, in that order."""
    role, engine = Role(policy="p", prompt="{problem}>", sampling=Sampling(max_tokens=200)), Said(said)
    executor = RolloutRunner(engine, {"p": CharRenderer()}, {"prover": role}, 0)
    [episode] = executor.collect(partial(prove, budget=budget, width=width, **options), [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return sorted(episode.traces, key=lambda trace: engine.asked.index(trace.address))


def chain(traces):
    return [t.text for t in traces if t.rewards[0].value == 1.0]


def passed(traces):
    return [t.metadata.get("step_passed") for t in traces]


def test_right_steps_are_gone_on_from_and_the_chain_is_learned():
    traces = proved(FALSE, A, B, B, END, END)
    assert passed(traces) == [False, True, True, True, True, None]  # the last one came after the end
    assert chain(traces) == [A, B, END] and traces[0].metadata["proved"] is True
    assert traces[0].metadata["spent"] == pytest.approx(sum(len(t.token_ids) for t in traces) / 10_000)
    prompts = [CharRenderer().decode(t.prompt_ids).partition(">")[2] for t in traces]
    assert prompts == ["", "", A, A, A + B, A + B]  # each step is learned given all before it


def test_a_node_that_leads_nowhere_is_tried_again_after_the_others():
    """Promises: the root −1 after the first try, A log 0.9, after its own −1.1: back to the root, which comes to −2."""
    traces = proved(A, FALSE, FALSE, FALSE, A, FALSE, B, B, END, END)
    prompts = [CharRenderer().decode(t.prompt_ids).partition(">")[2] for t in traces[::2]]
    assert prompts == ["", A, "", A, A + B]  # at the root it led where A is: no second node
    assert chain(traces) == [A, B, END]


def test_the_priority_of_a_chain_is_its_mean_less_its_expansions():
    def said(*logprobs):
        return SimpleNamespace(completion=SimpleNamespace(logprobs=logprobs))

    assert (
        ChainNode(None, turns=(said(-1.0, -3.0), said(-5.0)), expansions=1).priority == -4.0
        and ChainNode(None).priority == 0.0
    )


def test_the_budget_ends_it_and_nothing_is_learned():
    traces = proved(*[FALSE] * 8, budget=3 * len(FALSE))
    assert len(traces) == 4 and chain(traces) == []  # two expansions of two
    assert traces[0].metadata["proved"] is False and traces[0].metadata["spent"] > 1.0
    by = alphaproof(**SMALL).objectives["generator"].algorithm
    found, _ = by.credit(Batch(samples=tuple(map(sample_of, traces))), {})
    assert found.samples == () and found.dropped == {"on_chain too low": 4}


def test_what_the_program_does_not_let_pass():
    a, b = TARGET.steps
    assert oracle_reason(TASK, (a, b)) is None and oracle_reason(TASK, (a, a)) == "repeated"
    assert oracle_reason(TASK, (b,)) == "premise"

    def verdict(verdicts, steps, count):
        return asyncio.run(ChainJudge(TASK, None, verdicts, None).check_step(steps, count))

    assert verdict("steps", (b,), 1) == StepVerdict(reason="premise")
    assert verdict("steps", (), 1) == verdict("answer", (a,), 2) == StepVerdict(reason="no step")
    assert verdict("answer", (b,), 1).passes and not verdict("answer", (b,), 1).is_proof
    assert steps_in(A + B) == (a, b) and steps_in("so " + A) == steps_in(A + "<step>") == ()


def test_a_chain_without_verdicts_is_judged_at_its_end_with_all_its_steps():
    wrong_end = FALSE, FALSE, B, B, END, END
    traces = proved(*wrong_end, budget=sum(map(len, wrong_end)), verdicts="answer")
    assert passed(traces)[:4] == [True, True, True, True] and chain(traces) == []  # 18 is right, the way is not
    assert passed(traces)[4:] == [False, False]
    with refuses("E_UNKNOWN_CHOICE"):
        alphaproof(verdicts="all", **SMALL)


def test_whole_solutions_are_the_control():
    traces = proved(A + B + "<answer>9</answer>", FALSE + B + END, A + B + END, "", search=False)
    assert chain(traces) == [A + B + END] and passed(traces) == [False, False, True, None]


@pytest.mark.whole
def test_a_run_learns_and_search_is_not_among_what_is_measured():
    trainer = CoTrainer(alphaproof(steps=2, budget=400, **SMALL))
    rows = [trainer.step().row for _ in range(2)]
    assert rows[-1]["generator/updates"] >= 1 and 0.0 < rows[0]["prover/metadata/proved"] <= 1.0
    figures, _ = trainer.evaluate("test", 2, group_size=2)
    assert "solver/pass@1" in figures and not [key for key in figures if key.startswith("prover/")]


def test_variants_are_never_the_target():
    source = Variants(source_settings=OF, split="test", index=3)
    asked = [source.get("train", i) for i in range(100)]
    problems = [task.grader.problem for task in asked]
    assert asked[7] == source.get("train", 7) and source.get("test", 0).prompt == source.target.text
    assert problem_signature(source.target) not in {problem_signature(problem) for problem in problems}
    assert {problem.question for problem in problems} == set(source.target.needed)
    assert all(1 <= value <= EASY.max_value for problem in problems for value in problem.values.values())
    assert source.size("test") == 1 and source.size("train") is None
    with pytest.raises(IndexError, match=r"is not in 0\.\.0"):
        source.get("test", 1)
    again = from_description(source.describe())
    assert again == source and again.get("train", 7) == asked[7]
    alone = Variants(source_settings=OF, split="test", index=3, practice=False)
    assert {alone.get("train", i).prompt for i in range(9)} == {source.target.text}
    with refuses("E_SETTING_RANGE"):
        Variants(source_settings=WordProblems(modulus=7).describe()["settings"], split="test", index=0)


def test_a_beginning_has_the_facts_it_needs_and_all_of_it_has_all():
    rng = random.Random(0)
    short, whole = (draw_variant(TARGET, rng, beginning=b, max_value=99) for b in (True, False))
    assert short.question == "pears" and [fact.target for fact in short.facts] == ["apples", "pears"]
    assert whole.question == "nuts" and [fact.target for fact in whole.facts] == ["apples", "eggs", "pears", "nuts"]
    both = (Fact(target="a", kind="given", right=3), Fact(target="b", kind="sum", left="a", right="a"))
    assert [fact.target for fact in facts_needed_by(both, "a")] == ["a"]


@pytest.mark.whole
def test_one_target_is_all_that_is_measured_and_never_practised():
    made = alphaproof(target=3, target_split="test", **SMALL)
    assert made.name == "alphaproof-target" and made.tasks.get("test", 0).prompt == EASY.get("test", 3).prompt
    trainer = CoTrainer(replace(made, steps=1))
    trainer.step()
    figures, episodes = trainer.evaluate("test", 2, group_size=4)
    assert len(episodes) == 4 and math.isfinite(figures["solver/pass@1"].value)
    assert (
        alphaproof(target=3, practice=False, **SMALL).tasks.get("train", 5).prompt == EASY.get("ood_length", 3).prompt
    )


def test_what_it_refuses():
    with refuses("E_NO_STEP_CHECKER", names="halves"):
        alphaproof(**{**SMALL, "tasks": Halves()})
    with refuses("E_PRACTICE_WITHOUT_TARGET"):
        alphaproof(practice=False, **SMALL)
    with refuses("E_SETTING_RANGE"):
        alphaproof(budget=0, **SMALL)
    with refuses("E_SETTING_RANGE", names="-1"):
        alphaproof(target=-1, **SMALL)


WORDS = """import json, sys
from cotrain.core.types import ParseFailure
from cotrain.data.word_problems.oracle import grade_steps, parse_integer
from cotrain.data.word_problems.reader import read_problem
for line in sys.stdin:
    asked = json.loads(line)
    problem, steps = read_problem(asked["problem"]), tuple(asked["steps"])
    if isinstance(problem, ParseFailure):
        print(json.dumps({"id": asked["id"], "ok": [False] * len(steps)}), flush=True)
        continue
    judged = grade_steps(problem, steps)
    right = asked["answer"] is not None and parse_integer(asked["answer"]) == problem.answer
    said = {"ok": judged.ok, "reasons": judged.reasons, "done": right and all(judged.ok)}
    print(json.dumps({"id": asked["id"], **said}), flush=True)
"""


@pytest.fixture
def words_checker(tmp_path):
    (tmp_path / "words.py").write_text(WORDS, encoding="utf-8")
    checker = StepChecker(f"{sys.executable} {tmp_path / 'words.py'}")
    yield checker
    checker.close()


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ([A, FALSE, FALSE, B, A, A, B, "no step</step>", "<answer>9</answer>", END], {}),
        ([A + B + "<answer>9</answer>", FALSE + B + END, A + A + END, "", A + B + END, ""], {"search": False}),
        ([A, A, B, B, "<answer>9</answer>", END], {"verdicts": "answer"}),
    ],
)
def test_a_checker_that_is_a_process_gives_the_verdicts_of_the_one_that_is_built_in(said, options, words_checker):
    plain, checked = proved(*said, **options), proved(*said, checker=words_checker, **options)
    assert [(t.text, t.metadata, t.findings, t.rewards) for t in checked] == [
        (t.text, t.metadata, t.findings, t.rewards) for t in plain
    ]
    assert chain(plain)


class Fixed:
    """A checker that says this of every chain."""

    def __init__(self, said):
        self.said = said

    async def check(self, problem, steps, answer):
        return self.said


def test_a_chain_that_is_done_needs_no_answer_and_a_checker_that_fails_is_counted():
    done = CheckedSteps(ok=(True,), reasons=("",), done=True)
    traces = proved(A, FALSE, checker=Fixed(done))
    assert chain(traces) == [A] and passed(traces) == [True, None]
    traces = proved(*[A] * 4, budget=3 * len(A), checker=Fixed("checker: died"))
    assert chain(traces) == [] and passed(traces) == [None] * 4
    assert {t.findings["failure"] for t in traces} == {"checker: died"}


@pytest.mark.whole
def test_a_run_takes_any_problems_with_a_checker_and_leaves_no_process(tmp_path):
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(60)]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (tmp_path / "check.py").write_text(
        "import json, os, sys\n"
        f"print(os.getpid(), file=open({str(tmp_path / 'pid')!r}, 'w'), flush=True)\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked['id'] % 5 == 4:\n        os._exit(1)\n"
        "    print(json.dumps({'id': asked['id'], 'ok': [True] * len(asked['steps'])}), flush=True)\n",
        encoding="utf-8",
    )
    tasks, settings = task_source("jsonl", str(tmp_path / "mine.jsonl")), {**SMALL, "evaluation_tasks": 1}
    made = alphaproof(
        **{**settings, "tasks": tasks}, steps=2, budget=200, checker=f"{sys.executable} {tmp_path / 'check.py'}"
    )
    api.run(override(made, ["evaluation.group_size=1", "evaluation.greedy=false"]), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 2 and any("prover/parse_failure/checker: died" in row for row in rows)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
    with refuses("E_NO_VARIANTS", names=("jsonl", "--tasks words")):
        alphaproof(**{**settings, "tasks": tasks}, checker="true", target=0)
    with refuses("E_NO_STEP_CHECKER", names=("jsonl", "--checker 'python my_checker.py'")):
        alphaproof(**{**settings, "tasks": tasks})


@pytest.mark.skipif(shutil.which("lean") is None, reason="lean is not installed")
def test_lean_speaks_the_protocol(tmp_path):
    page = (Path(__file__).parents[2] / "docs/methods/alphaproof.md").read_text(encoding="utf-8")
    (tmp_path / "lean.py").write_text(page.partition("```py\n")[2].partition("```")[0], encoding="utf-8")
    checker, theorem = StepChecker(f"{sys.executable} {tmp_path / 'lean.py'}"), "theorem t (p : Prop) : p → p := by"
    found = [asyncio.run(checker.check(theorem, steps, None)) for steps in (("intro h",), ("intro h", "exact h"))]
    wrong = asyncio.run(checker.check(theorem, ("exact nothing",), None))
    checker.close()
    assert [one.done for one in found] == [False, True] and found[0].ok == (True,) and wrong.ok == (False,)
