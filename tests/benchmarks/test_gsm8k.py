"""The scripts of docs/gsm8k.md: equations worked out, reviews written by a program, the order of answers, an adapter
that is taught in two sittings, and parts that travel."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import tarfile
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cotrain import api
from cotrain.analysis.comparison.study_file import read_study
from cotrain.config.override import override
from cotrain.core.types import ParseFailure
from cotrain.formats.free_verdicts import WORDS, free_review
from cotrain.models.load import load_model
from cotrain.pretraining.packing import Document
from cotrain.recipes.grpo import grpo
from cotrain.storage.ledger import Ledger
from tests.helpers import EASY, TINY
from tests.sentences import refuses

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import gsm8k_card
import gsm8k_faults
import gsm8k_lessons
import gsm8k_reviews
import teach_adapter
import verifier_order
from gsm8k_equations import CheckedProblems, calculator, equations_in, read_call, with_calculator

GOLD = "Ann has 4*3 = <<4*3=12>>12 eggs.\nShe sells 12-2 = <<12-2=10>>10.\n#### 10"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("She has 4*3 = 12 left", [True]),
        ("She has 4*3 = 15 left", [False]),
        ("3*4 = 12-2 = 10", [True]),  # nothing is said of 3*4, behind which no number stands
        ("$1,200 x 3 = $3,600", [True]),
        ("12 eggs/day * 3 days = 36 eggs", [True]),
        ("7/3 = 2.33 and 10/4 = 2.4", [True, False]),
        ("50*20% = 10", [True]),
        ("2 x (3+4) = 14", [True]),
        ("half of 20 = 10", []),
        ("5x+7 = 52", []),
        ("M + 4 + 2 = 8", []),
        ("30 dogs * 1/5 = 6 dogs", [True]),
        ("35(2/5) = 14", []),
        ("8/0 = 3", []),
    ],
)
def test_equations_of_a_line(line, found):
    assert [equation.is_right for equation in equations_in(line)] == found


@pytest.mark.parametrize(
    ("said", "expression", "value"),
    [
        ("They cost 3*4 =", "3*4", "12"),
        ("It is 7 eggs + 2 eggs=", "7 + 2", "9"),
        ("First 2+2 = 4.\nThen 10/3 =", "10/3", "3.33"),
        ("So x =", None, None),
        ("The number of apples is 5 =", None, None),
    ],
)
def test_what_the_calculator_is_asked(said, expression, value):
    call = read_call(said, {})
    assert (call and call.said[0]) == expression
    assert expression is None or asyncio.run(calculator(expression)) == value


@pytest.mark.whole
def test_a_solver_with_a_calculator_is_trained(tmp_path):
    """The tiny model writes equations, of which the calculator says the values: they are no tokens of its own."""
    sizes = {"tasks_per_step": 2, "group_size": 2, "lora": 2, "kl": 0.0, "evaluation_tasks": 1}
    recipe = with_calculator(model=TINY, tasks=EASY, steps=1, **sizes)
    api.run(override(recipe, ["evaluation.splits=[]", "evaluation.group_size=1"]), tmp_path / "run")
    traces = [t for e in Ledger(tmp_path / "run" / "episodes").read(0) for t in e.traces]
    computed = [t for t in traces if t.mask is not None and not all(t.mask)]
    assert computed and all("=" in t.text for t in computed)


def rows_file(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_steps_are_labelled_and_the_source_is_made_again(tmp_path):
    rows = [{"question": f"Q{i}?", "answer": f"{i}*2 = {2 * i}\n#### {2 * i}"} for i in range(30)]
    rows_file(tmp_path / "train.jsonl", rows[:25])
    rows_file(tmp_path / "test.jsonl", rows[25:])
    source = CheckedProblems(str(tmp_path))
    task = source.get("test", 0)
    right = task.gold
    verdicts = task.grade_steps(("2*3 = 6", "2*3 = 7", f"#### {right}", "#### 1000"))
    assert verdicts.ok == (True, False, True, False)
    assert verdicts.reasons == ("", "arithmetic", "", "answer")
    assert CheckedProblems(**source.describe()["settings"]).describe() == source.describe()
    source.close()


@pytest.mark.parametrize(
    ("steps", "right", "said"),
    [
        (("4*3 = 12", "12-2 = 10", "#### 10"), True, ["4*3 = 12. Correct", "12-2 = 10. Correct", "10. Correct"]),
        (("4*3 = 14", "14-2 = 12", "#### 12"), False, ["12, not 14. Incorrect", "12. Correct", "12. Incorrect"]),
        (("4+3 = 7", "7-2 = 5", "#### 5"), False, ["be 4*3 = 12. Incorrect", "5. Correct", "5. Incorrect"]),
        (("So it is ten.", "#### 10"), True, ["nothing to compute. Correct", "the answer is 10. Correct"]),
    ],
)
def test_a_review_by_a_program_is_read_as_it_was_meant(steps, right, said):
    text = gsm8k_reviews.review_of(steps, right, GOLD)
    lines = text.splitlines()
    assert [line.endswith(end) for line, end in zip(lines, said, strict=False)] == [True] * len(said)
    review = free_review(text, WORDS, len(steps))
    assert not isinstance(review, ParseFailure) and review.final is right
    assert list(review.steps) == [not line.endswith("Incorrect") for line in lines[:-1]]


def test_a_review_may_solve_the_problem_first():
    text = gsm8k_reviews.review_of(("4+3 = 7", "7-2 = 5", "#### 5"), False, GOLD, solve_first=True)
    own, _, review = text.partition("\n\n")
    assert own == gsm8k_lessons.short_solution(GOLD)
    assert "Step 3: the answer is 5, mine is 10. Incorrect" in review.splitlines()
    assert free_review(text, WORDS, 3).steps == (False, True, False)  # its own solution is no verdict


def test_reviews_are_of_as_many_right_as_wrong_solutions(tmp_path, capsys):
    rows = [
        {"sample": k, "problem": "Q?", "text": f"4*3 = 12\n12-{k} = {12 - k}\n#### {12 - k}", "correct": k == 2}
        for k in (-1, 0, 1, 2)
    ]
    suite = rows_file(tmp_path / "suite.jsonl", rows)
    lessons = gsm8k_reviews.make_lessons({"Q?": GOLD}, [suite], 100)
    finals = [row["messages"][1]["content"].splitlines()[-1] for row in lessons]
    assert sorted(finals) == ["Verdict: correct"] * 2 + ["Verdict: incorrect"] * 2  # the model's, and GSM8K's own
    assert "1 of them the model's; 2 of wrong ones" in capsys.readouterr().out
    with refuses("E_DATA", names=(str(suite), "'Q?'")):
        gsm8k_reviews.make_lessons({}, [suite], 100)
    with refuses("E_DATA", names=("none.jsonl", "suite-gsm8k.jsonl")):
        gsm8k_reviews.make_lessons({}, [tmp_path / "none.jsonl"], 100)


class FirstOf:
    """Draws the first of what it is given, so that a slip can be worked out by hand."""

    def sample(self, places, count):
        return list(places)[:count]

    def choice(self, values):
        return values[-1]


def test_a_slip_is_carried_on_to_the_answer():
    steps, label = gsm8k_faults.solution_with_slip(GOLD, FirstOf())  # 12 + 10 = 22, and 22 - 2 = 20
    assert (steps, label) == (["Ann has 4*3 = 22 eggs.", "She sells 22-2 = 20.", "#### 20"], 0)
    assert gsm8k_faults.solution_with_slip("No equation.\n#### 3", FirstOf()) is None
    assert gsm8k_faults.solution_with_slip("1-3 = <<1-3=-2>>-2\n#### -2", FirstOf()) is None  # not above zero
    right, wrong = gsm8k_faults.labelled_pair({"question": "Q?", "answer": GOLD}, FirstOf())
    assert right["steps"] == ["Ann has 4*3 = 12 eggs.", "She sells 12-2 = 10.", "#### 10"]
    assert [row["label"] for row in (right, wrong)] == [-1, 0]


def test_what_is_not_gsm8k_is_refused(tmp_path, capsys):
    rows_file(tmp_path / "train.jsonl", [{"question": "Q?", "answer": "12"}])
    with pytest.raises(SystemExit):
        gsm8k_lessons.main([str(tmp_path), "--out", str(tmp_path / "out")])
    assert "expected rows of GSM8K" in capsys.readouterr().err
    assert gsm8k_lessons.short_solution("4*300 = <<4*300=1200>>1200\n\n#### 1,200") == "4*300 = 1200\n#### 1200"


def test_the_study_asks_as_the_lessons_do():
    plan = read_study(gsm8k_card.STUDY).parts["all"]
    assert plan.prompt == gsm8k_lessons.ASK
    assert plan.verifier_prompt == gsm8k_reviews.CHECK
    assert {arm.arguments["temperature"] for arm in plan.arms} == {0.7}


def test_order_of_answers_by_hand(tmp_path):
    """Right answers have the shares 1 and ½, wrong ones ½ and 0: of four pairs one is tied, three are in order."""
    made = [(True, [[True, True]]), (True, [[True, False]]), (False, [[True, False]]), (False, [None])]
    rows = [
        {"problem": "a", "sample": k, "answer": str(ok), "correct": ok, "text": "1+1 = 2", "score": 0.5}
        | {"verdicts": [ok], "step_verdicts": steps}
        for k, (ok, steps) in enumerate(made)
    ]
    file = rows_file(tmp_path / "suite.jsonl", [{"settings": {}}, *rows, rows[0] | {"sample": -1}])
    lines = verifier_order.table(*verifier_order.groups_of(file))
    assert lines[2:] == [
        "| steps | 1 | 4 | 0.25 | 1.00 [1.00, 1.00] |",
        "| verdict | 1 | 4 | 0.00 | 1.00 [1.00, 1.00] |",
        "| confidence | 1 | 4 | 1.00 | – |",
        "| equations | 1 | 4 | 1.00 | – |",
        "| vote | 1 | 4 | 1.00 | – |",
        "| greedy | 1 | 4 | 0.00 | 1.00 [1.00, 1.00] |",
    ]
    assert verifier_order.accuracy_lines(*verifier_order.groups_of(file))[:2] == [
        "greedy: 1 of 1 right, 1.000",
        "sampled: 2 of 4 right, 0.500",
    ]
    with refuses("E_DATA", names=("none.jsonl", "--samples")):
        verifier_order.groups_of(rows_file(tmp_path / "none.jsonl", [{"settings": {}}]))


def teaching(out, data, **changed):
    given = {"model": TINY, "data": [data], "out": out, "rank": 2, "lr": 1e-2, "batch": 2, "passes": 1, "length": 64}
    return Namespace(**(given | {"part_tokens": 48, "save_every": 1, "seed": 0, "device": "cpu"} | changed))


@pytest.mark.whole
def test_an_adapter_taught_in_two_sittings_is_the_same(tmp_path, monkeypatch):
    talk = [{"role": "user", "content": "Ann has 3."}, {"role": "assistant", "content": "3+4 = 7"}]
    data = rows_file(tmp_path / "rows.jsonl", [{"messages": [talk[0], {**talk[1], "content": c}]} for c in "abcdef"])
    teach_adapter.teach(teaching(tmp_path / "whole", data))
    learn = teach_adapter.Teacher.learn

    def stop(self, *rest):
        if self.step == 2:
            raise KeyboardInterrupt
        return learn(self, *rest)

    monkeypatch.setattr(teach_adapter.Teacher, "learn", stop)
    with pytest.raises(KeyboardInterrupt):
        teach_adapter.teach(teaching(tmp_path / "cut", data))
    monkeypatch.undo()
    teach_adapter.teach(teaching(tmp_path / "cut", data))
    one, other = (load_model(tmp_path / name)[0].state_dict() for name in ("whole", "cut"))
    assert all(one[name].equal(other[name]) for name in one)
    base = load_model(TINY)[0].state_dict()
    assert any(not one[name].equal(base[name]) for name in base)


def test_parts_of_a_batch_change_nothing_but_memory():
    documents = [Document(ids=tuple(range(1, n)), learn=(False,) + (True,) * (n - 2)) for n in (5, 9, 7, 4)]
    parts = teach_adapter.parts_of(documents, 15)
    assert [[len(d.ids) for d in part] for part in parts] == [[3, 4], [6], [8]]
    model = load_model(TINY)[0]
    together = teach_adapter.summed_loss(model, documents, torch.device("cpu"))
    apart = sum(teach_adapter.summed_loss(model, part, torch.device("cpu")) for part in parts)
    assert apart.item() == pytest.approx(together.item(), rel=1e-5)


def test_parts_that_travel_are_checked_and_missing_ones_named(tmp_path, monkeypatch, capsys):
    whole = tmp_path / "whole.tar"
    whole.write_bytes(bytes(range(256)) * 10)
    assert gsm8k_card.cut_file(whole, tmp_path / "parts", 1000) == ["part-00", "part-01", "part-02"]
    monkeypatch.chdir(tmp_path)
    assert gsm8k_card.main(["take", "parts/part-01"]) == 0
    assert "1 of 3 parts are here; missing: part-00, part-02" in capsys.readouterr().out
    assert gsm8k_card.main(["train", "--out", "out", "--device", "cpu"]) == 2
    assert "part-00, part-02 is missing" in capsys.readouterr().err
    (tmp_path / "parts" / "part-02").write_bytes(b"cut off")
    assert gsm8k_card.main(["take", "parts/part-02"]) == 2
    assert "bring it again" in capsys.readouterr().err


@pytest.mark.whole
def test_what_comes_back_of_a_run_that_was_cut_off(tmp_path):
    """One arm is done, the other has not begun: the page says what there is, and adapters come in bfloat16."""
    run = tmp_path / "runs" / "grpo" / "seed-0"
    sizes = {"tasks_per_step": 1, "group_size": 2, "lora": 2, "kl": 0.0, "evaluation_tasks": 1}
    recipe = grpo(model=TINY, tasks=EASY, steps=2, **sizes)
    api.run(override(recipe, ["evaluation.splits=[]", "evaluation.group_size=1"]), run)
    (run.parent / "seed-0.log").write_text("what it said\n")
    gsm8k_card.bring_back(tmp_path / "runs", tmp_path / "out", 12.0)
    page = (tmp_path / "out" / "page.md").read_text()
    assert "This call took 12 seconds" in page and "| grpo | 2 |" in page and "| tango |" not in page
    assert "## grpo: from its last batch" in page
    with tarfile.open(tmp_path / "out" / "records.tar.gz") as records:
        assert {"grpo/metrics.jsonl", "grpo/summary.json", "grpo/rollouts.jsonl"} <= set(records.getnames())
    whole = b"".join(file.read_bytes() for file in sorted((tmp_path / "out").glob("adapters-*")))
    with tarfile.open(fileobj=io.BytesIO(whole)) as adapters:
        adapters.extractall(tmp_path / "back", filter="data")
    weights = load_file(tmp_path / "back" / "grpo-solver" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
