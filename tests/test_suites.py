"""Suites on answers made by hand: the scores are exactly those worked out beside them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from cotrain import api
from cotrain.analysis import benchmarks
from cotrain.analysis.benchmarks import (
    SuiteOptions,
    evaluate_suite,
    evaluate_suites,
    score_lines,
    suite_settings,
    training_questions,
)
from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.core import verbosity
from cotrain.core.types import Sampling
from cotrain.data.columns import SCHEMAS
from cotrain.data.files import JsonlTasks
from cotrain.data.labels import with_labels
from cotrain.data.suite_files import draw_items, load_suite, suite_data
from cotrain.formats.role_prompts import COMPARE
from cotrain.formats.solutions import write_solution
from cotrain.formats.verdicts import Verdict
from cotrain.grading.compare_texts import vote_key
from cotrain.grading.pool import AnswerGrader
from cotrain.metrics.suites import GREEDY_SAMPLE, processbench_scores, solver_scores
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.verifier_roles import parse_gram
from cotrain.runs import opening
from cotrain.storage.file_ops import DiskError
from tests.helpers import EASY, TINY, spoken, with_silent_verifier
from tests.sentences import command_refuses, refuses


def cast(solver, verifier=None, comparer=None):
    """An executor whose roles answer from files: functions of the call's fields."""
    programs = {"solver": lambda fields, rng: solver(fields)}
    sampling = Sampling(max_tokens=9)
    roles = {"solver": Role(policy="solver", prompt="{problem}", sampling=sampling, parse=parse_solution)}
    if verifier is not None:
        programs["verifier"] = lambda fields, rng: verifier(fields)
        roles["verifier"] = Role(policy="verifier", prompt="{solution}", sampling=sampling, parse=parse_review)
    if comparer is not None:
        programs["comparer"] = lambda fields, rng: comparer(fields)
        roles["comparer"] = Role(policy="comparer", prompt=COMPARE, sampling=sampling, parse=parse_gram)
    return RolloutRunner(spoken(programs), dict.fromkeys(programs, ByteRenderer()), roles, 0)


def answers_from(file):
    """A solver that gives the answers of a problem in turn; None is text without an answer."""
    left = {problem: list(answers) for problem, answers in file.items()}

    def say(fields):
        answer = left[fields["problem"]].pop(0)
        return "I give up" if answer is None else write_solution(["because"], answer)

    return say


def verdict(*steps, final=True):
    word = {True: "CORRECT", False: "INCORRECT"}
    return "".join(f"<step>{word[s]}</step>" for s in steps) + f"<final>{word[final]}</final>"


def values(figures):
    return {name: figure.value for name, figure in figures.items()}


def score(executor, name, items, options, tmp_path):
    settings = suite_settings(name, items, executor, options, {})
    rows = evaluate_suite(tmp_path / f"suite-{name}.jsonl", name, items, executor, options, settings)
    return rows, values(
        processbench_scores(rows) if name == "processbench" else solver_scores(rows, options.samples, key=vote_key)
    )


# -- solving

# problem: gold, four samples, greedy answer; "18" and "18.0" are one vote. Numbers only: no grading process is started
SHEET = {
    "P1": ("18", ["18", "17", "18.0", "3"], "18"),  # avg 2/4, majority 18
    "P2": ("5", ["4", "5", "4", None], "4"),  # avg 1/4, majority 4
    "P3": (".5", ["7", "0.5", "8", "9"], "0.50"),  # avg 1/4, four answers once each: the first, 7
    "P4": ("1", ["2", "2", "3", "4"], None),  # never
}
TRUSTED = {"18.0", "5", "0.5"}  # the verifier calls these right, and everything else wrong


@pytest.fixture
def sheet(tmp_path):
    path = tmp_path / "sheet.jsonl"
    path.write_text("".join(json.dumps({"question": q, "answer": gold}) + "\n" for q, (gold, *_) in SHEET.items()))
    return path


ROWS = {  # how a suite's public files hold a question and its answer
    "gsm8k": lambda question, answer: {"question": question, "answer": f"work\n#### {answer}"},
    "svamp": lambda question, answer: {"Body": question[0], "Question": question[1:], "Answer": float(answer)},
    "asdiv": lambda question, answer: {"body": question[0], "question": question[1:], "answer": f"{answer} (apples)"},
    "mawps": lambda question, answer: {"question": question, "result": answer},
    "olympiadbench": lambda question, answer: {"question": question, "final_answer": [answer]},
}
ROWS |= {
    name: lambda question, answer: {"problem": question, "answer": answer}
    for name in ("math500", "aime", "amc", "minerva")
}


@pytest.mark.whole
@pytest.mark.parametrize("name", SCHEMAS)
def test_known_scores_of_a_solver(name, tmp_path):
    row = ROWS.get(name, lambda question, answer: {"question": question, "answer": answer})
    sheet = tmp_path / "sheet.jsonl"
    sheet.write_text("".join(json.dumps(row(q, gold)) + "\n" for q, (gold, *_) in SHEET.items()))
    tasks = load_suite(name, [str(sheet)], AnswerGrader())
    apart = name in ("svamp", "asdiv")  # a body and a question, with a space between
    written = {f"{q[0]} {q[1:]}" if apart else q: [*samples, greedy] for q, (_, samples, greedy) in SHEET.items()}
    solver = answers_from(written)

    def verifier(fields):
        return verdict(True, final=any(f"<answer>{a}</answer>" in fields["solution"] for a in TRUSTED))

    rows, scores = score(cast(solver, verifier), name, tasks, SuiteOptions(samples=4), tmp_path)
    assert scores == {
        "greedy": 2 / 4,
        "avg@4": 4 / 16,
        "pass@4": 3 / 4,
        "maj@4": 1 / 4,
        "best@4": 3 / 4,
        "weighted@4": 3 / 4,  # P3: 0.5 has the only weight; P4: nobody is right
        "answered": 18 / 20,
        "graded": 1.0,
    }
    assert len(rows) == 4 * 5 and [row["sample"] for row in rows[:5]] == [0, 1, 2, 3, GREEDY_SAMPLE]
    assert [row["score"] for row in rows[:5]] == [0.0, 0.0, 1.0, 0.0, None]
    assert rows[8]["answer"] is None and rows[8]["correct"] is False and rows[8]["failure"] == "no steps"
    kept = [json.loads(line) for line in (tmp_path / f"suite-{name}.jsonl").read_text().splitlines()]
    assert kept[0]["settings"]["samples"] == 4 and kept[1:] == rows
    assert values(solver_scores(kept[1:], 4, key=vote_key)) == scores  # the file alone gives them again


def test_a_review_without_a_score_says_one_half(sheet, tmp_path):
    executor = cast(answers_from({problem: ["1"] * 2 for problem in SHEET}), lambda fields: "hm")
    undecided = replace(executor.roles["verifier"], parse=lambda text, fields: Verdict(final=None, score=None))
    executor.roles["verifier"] = undecided
    rows, _ = score(
        executor, "gsm8k", load_suite("gsm8k", [str(sheet)], AnswerGrader()), SuiteOptions(samples=1), tmp_path
    )
    assert [row["score"] for row in rows] == [0.5, None] * 4


def test_without_a_verifier_and_without_samples(sheet, tmp_path):
    tasks = load_suite("gsm8k", [str(sheet)], AnswerGrader())
    solver = answers_from({problem: [greedy] for problem, (*_, greedy) in SHEET.items()})
    _, scores = score(cast(solver), "gsm8k", tasks, SuiteOptions(samples=0), tmp_path)
    assert scores == {"greedy": 2 / 4, "answered": 3 / 4, "graded": 1.0}


def test_a_tournament_chooses_beside_the_vote_and_the_verifier(sheet, tmp_path):
    """The comparer knows what is right, and the verifier calls everything right: the vote is wrong of P2 and P3."""
    gold = {problem: float(gold) for problem, (gold, *_) in SHEET.items()}

    def compared(fields):
        known = [float(fields[side].split("<answer>")[1].split("<")[0]) == gold[fields["problem"]] for side in PAIR]
        return "A" if known[0] else "B"

    PAIR = ("first", "second")
    file = {problem: [*samples, greedy] for problem, (_, samples, greedy) in SHEET.items()}
    executor = cast(answers_from(file), lambda fields: verdict(True), compared)
    tasks = load_suite("gsm8k", [str(sheet)], AnswerGrader())
    rows, scores = score(executor, "gsm8k", tasks, SuiteOptions(samples=4), tmp_path)
    assert scores["tournament@4"] == scores["pass@4"] == 3 / 4 and scores["best@4"] == 1 / 4 == scores["maj@4"]
    assert scores["avg@4"] == 4 / 16 and scores["greedy"] == 2 / 4 and scores["answered"] == 18 / 20
    assert [row["sample"] for row in rows[:5]] == [0, 1, 2, 3, GREEDY_SAMPLE]
    assert rows[0]["rating"] == max(row["rating"] for row in rows[:4]) and "rating" not in rows[4]
    assert rows[8]["rating"] is None and rows[8]["score"] == 0.0  # it could not be read: nobody compared or judged it
    assert all(len(row["verdicts"]) == (row["answer"] is not None) for row in rows if "rating" in row)
    assert rows[0]["step_verdicts"] == [[True]]


@pytest.mark.parametrize("compares", [False, True], ids=["answers", "tournaments"])
def test_progress_is_told_of_as_many_as_there_are(sheet, tmp_path, monkeypatch, compares):
    monkeypatch.setattr(verbosity, "PACE_SECONDS", 0.0)
    monkeypatch.setattr(verbosity, "MOST_LINES", 1000)
    file = {problem: [*samples, greedy] for problem, (_, samples, greedy) in SHEET.items()}
    executor = cast(answers_from(file), comparer=(lambda fields: "A") if compares else None)
    tasks = load_suite("gsm8k", [str(sheet)], AnswerGrader())
    options = SuiteOptions(samples=4)
    lines: list[str] = []
    evaluate_suite(tmp_path / "suite.jsonl", "gsm8k", tasks, executor, options, {}, lines.append)
    total = 4 * 2 if compares else 4 * 5  # of a problem a tournament and a greedy answer, or five answers
    assert f"{total - 1} of {total} " in lines[-1]


def test_ungraded_answers_count_as_wrong_and_are_shown():
    row = {"id": "a", "sample": 0, "answer": "1", "correct": None, "score": None}
    scores = values(solver_scores([row, row | {"sample": 1, "correct": True}], 2, key=vote_key))
    assert scores == {"avg@2": 0.5, "pass@2": 1.0, "maj@2": 0.0, "answered": 1.0, "graded": 0.5}
    with pytest.raises(ValueError, match="problem a has 1 samples, expected 2"):
        solver_scores([row], 2, key=vote_key)


def test_an_interrupted_suite_goes_on_and_a_finished_one_is_kept(sheet, tmp_path, monkeypatch):
    monkeypatch.setattr("cotrain.analysis.benchmarks.CHUNK", 2)
    tasks = load_suite("gsm8k", [str(sheet)], AnswerGrader())
    file = {problem: [*samples, greedy] for problem, (_, samples, greedy) in SHEET.items()}
    rows, scores = score(cast(answers_from(file)), "gsm8k", tasks, SuiteOptions(samples=4), tmp_path)
    path = tmp_path / "suite-gsm8k.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"\n".join(whole.split(b"\n")[:14]) + b'\n{"torn')  # settings, 2 problems, 3 rows of the third
    with monkeypatch.context() as patch, pytest.raises(OSError, match="disk full"):
        patch.setattr(
            "cotrain.analysis.benchmarks.JsonlWriter.append", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
        )
        score(cast(answers_from(file)), "gsm8k", tasks, SuiteOptions(samples=4), tmp_path)
    assert len(path.read_bytes().splitlines()) == 1 + 2 * 5  # going on loses nothing that was finished
    rest = {problem: file[problem] for problem in ("P3", "P4")}
    assert score(cast(answers_from(rest)), "gsm8k", tasks, SuiteOptions(samples=4), tmp_path) == (rows, scores)
    assert path.read_bytes() == whole
    assert score(cast(answers_from({})), "gsm8k", tasks, SuiteOptions(samples=4), tmp_path) == (rows, scores)
    fewer = {problem: answers[1:] for problem, answers in file.items()}
    again, _ = score(cast(answers_from(fewer)), "gsm8k", tasks, SuiteOptions(samples=3), tmp_path)
    assert len(again) == 4 * 4  # other settings: from the start


@pytest.mark.parametrize("compares", [False, True], ids=["answers", "tournaments"])
def test_a_suite_that_was_stopped_within_a_chunk_keeps_its_episodes(sheet, tmp_path, monkeypatch, compares):
    """Of 16 problems, which are no whole chunk, all samples and reviews were made anew. What is drawn here depends on
    the seeds, so the same rows say that these are the same, whatever was kept."""
    monkeypatch.setattr(benchmarks, "ANSWERS_ON_CPU", 24)  # of 4 samples with 2 reviews each: 2 problems at a time
    asked = []
    stop_at = None

    def draw(choices, role):
        def speak(fields, rng):
            if len(asked) == stop_at:
                raise KeyboardInterrupt
            asked.append(role)
            return rng.choice(choices)

        return speak

    solving = draw([write_solution(["because"], answer) for answer in ("18", "5", "0.5")], "solver")
    judging = draw([verdict(True), verdict(False, final=False)], "verifier")
    executor = cast(None, judging, (lambda fields: "A") if compares else None)
    executor.engine = spoken(
        {"solver": solving, "verifier": judging} | ({"comparer": draw(["A", "B"], "comparer")} if compares else {})
    )
    tasks = load_suite("gsm8k", [str(sheet)], AnswerGrader())
    options = SuiteOptions(samples=4, reviews=2)
    lines = []

    def evaluate(folder):
        settings = suite_settings("gsm8k", tasks, executor, options, {})
        return evaluate_suite(folder / "suite.jsonl", "gsm8k", tasks, executor, options, settings, lines.append)

    rows = evaluate(tmp_path / "whole")
    in_one_go = len(asked)
    assert in_one_go >= 4 * (4 * 3 + 1) and not lines
    asked.clear()
    stop_at = in_one_go - 3  # among the greedy answers
    with pytest.raises(KeyboardInterrupt):
        evaluate(tmp_path / "broken")
    stop_at = None
    n_before = len(asked)
    assert evaluate(tmp_path / "broken") == rows
    assert len(asked) - n_before == 4 and "earlier try" in lines[0]  # the greedy answers alone
    whole, broken = (tmp_path / folder / "suite.jsonl" for folder in ("whole", "broken"))
    assert whole.read_bytes() == broken.read_bytes()
    assert [path.name for path in broken.parent.iterdir()] == ["suite.jsonl"]


def test_a_verifier_that_was_stopped_within_a_chunk_goes_on(given, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmarks, "ANSWERS_ON_CPU", 4)
    samples = load_suite("processbench", [str(given)], AnswerGrader())
    replies = [reply for *_, reply in GIVEN]
    said = iter([*replies[:5], KeyboardInterrupt, *replies[4:]])  # the fifth was not kept, and is asked again

    def speak(fields):
        reply = next(said)
        if reply is KeyboardInterrupt:
            raise KeyboardInterrupt
        return reply

    executor = cast(None, speak)
    with pytest.raises(KeyboardInterrupt):
        score(executor, "processbench", samples, SuiteOptions(), tmp_path)
    rows, scores = score(executor, "processbench", samples, SuiteOptions(), tmp_path)
    assert [row["prediction"] for row in rows] == [1, 0, -1, None, -1, 1, 1, -1, -1, None]
    assert scores["parsed"] == 8 / 10 and next(said, None) is None


# -- ProcessBench

GIVEN = [  # split, steps, label, what the verifier says of them
    ("gsm8k", 3, 1, verdict(True, False, True, final=False)),  # found
    ("gsm8k", 3, 1, verdict(False, False, True, final=False)),  # too early
    ("gsm8k", 2, 0, verdict(True, True)),  # missed
    ("gsm8k", 2, 0, "well …"),  # no judgement
    ("gsm8k", 2, -1, verdict(True, True)),  # right
    ("gsm8k", 2, -1, verdict(True, False, final=True)),  # blamed
    ("math", 2, 1, verdict(True, False, final=False)),
    ("math", 1, -1, verdict(True)),
    ("math", 1, -1, verdict(True, final=False)),  # a wrong final verdict blames no step
    ("math", 1, -1, verdict(True, True)),  # a verdict too many is no review
]


@pytest.fixture
def given(tmp_path):
    folder = tmp_path / "processbench"
    folder.mkdir()
    for split in ("gsm8k", "math"):
        rows = [
            {"id": f"{split}-{i}", "problem": f"P{i}", "steps": ["s"] * k, "label": label, "final_answer_correct": True}
            for i, (name, k, label, _) in enumerate(GIVEN)
            if name == split
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_known_scores_of_a_verifier(given, tmp_path):
    samples = load_suite("processbench", [str(given)], AnswerGrader())
    said = iter([reply for *_, reply in GIVEN])
    rows, scores = score(cast(None, lambda fields: next(said)), "processbench", samples, SuiteOptions(), tmp_path)
    gsm8k, math = 2 * (1 / 4) * (1 / 2) / (1 / 4 + 1 / 2), 2 * 1 * (2 / 3) / (1 + 2 / 3)
    assert scores == pytest.approx(
        {
            "gsm8k/error_accuracy": 1 / 4,
            "gsm8k/correct_accuracy": 1 / 2,
            "gsm8k/f1": gsm8k,  # 1/3
            "math/error_accuracy": 1.0,
            "math/correct_accuracy": 2 / 3,
            "math/f1": math,  # 0.8
            "average/f1": (gsm8k + math) / 2,
            "parsed": 8 / 10,
        },
        abs=1e-15,
    )
    assert [row["prediction"] for row in rows] == [1, 0, -1, None, -1, 1, 1, -1, -1, None]
    assert rows[3]["failure"] == "no final verdict" and rows[9]["failure"] == "step count"
    counts = {name: figure.n for name, figure in processbench_scores(rows).items()}
    wrong, right = {"gsm8k": 4, "math": 1}, {"gsm8k": 2, "math": 3}
    for name in wrong:  # how many solutions a figure is about
        assert counts[f"{name}/error_accuracy"] == wrong[name] and counts[f"{name}/correct_accuracy"] == right[name]
        assert counts[f"{name}/f1"] == wrong[name] + right[name]
    assert counts["average/f1"] == counts["parsed"] == 10


def test_several_reviews_vote(given, tmp_path):
    samples = load_suite("processbench", [str(given / "math.jsonl")], AnswerGrader())[:1]
    said = iter([verdict(False, True), verdict(True, False), "…", verdict(True, False), verdict(True, True)])
    rows, scores = score(cast(None, lambda f: next(said)), "processbench", samples, SuiteOptions(reviews=5), tmp_path)
    assert rows[0]["prediction"] == 1 and scores == {"math/error_accuracy": 1.0, "parsed": 1.0}


# -- data and the command


@pytest.mark.parametrize("suite", ["processbench", "gsm8k"])
def test_a_suite_whose_verifier_is_gone_is_not_scored(given, tmp_path, monkeypatch, suite):
    """What it never said was scored as verdicts that nobody can read."""
    easy = [EASY.get("test", index) for index in range(3)]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({"question": task.prompt, "answer": task.gold}) + "\n" for task in easy))
    silent = with_silent_verifier("shipped")
    monkeypatch.setattr(opening, "recipe_of", lambda directory, judging: silent)
    data = [f"processbench={given}" if suite == "processbench" else f"gsm8k={questions}"]
    with refuses("E_SERVER_SILENT", names=(f"suite '{suite}'", "'judge'")):
        evaluate_suites("shipped", [suite], data, options=SuiteOptions(samples=2), out=tmp_path / "out")
    [rows] = (tmp_path / "out").glob("suite-*")
    assert len(rows.read_text().splitlines()) == 1  # the settings


def test_which_data_belongs_to_which_suite(tmp_path):
    for name in ("gsm8k", "math500"):
        (tmp_path / name).mkdir()
    (tmp_path / "svamp.jsonl").touch()
    one = str(tmp_path / "svamp.jsonl")
    assert suite_data(["gsm8k", "math500"], [str(tmp_path)]) == {
        name: [str(tmp_path / name)] for name in ("gsm8k", "math500")
    }
    assert suite_data(["svamp", "aime"], [str(tmp_path), f"aime={one}", "aime=b"]) == {
        "svamp": [one],
        "aime": [one, "b"],
    }
    assert suite_data(["aime"], [one, "b"]) == {"aime": [one, "b"]}
    assert suite_data(["gsm8k", "processbench"], []) == {
        "gsm8k": ["openai/gsm8k:main"],
        "processbench": ["Qwen/ProcessBench"],
    }
    for suites, data, code in (
        (["gsm8"], [], "E_UNKNOWN_SUITE: 'gsm8k'"),
        (["croe"], [], "E_UNKNOWN_SUITE: 'core'"),
        (["gsm8k", "aime"], [one], "E_SUITE_DATA_AMBIGUOUS: gsm8k, aime"),
        (["gsm8k"], [f"aime={one}"], "E_UNKNOWN_SUITE"),
        (["gsm8k", "aime"], [f"aime={one}"], "E_SUITE_WITHOUT_DATA: 'gsm8k'"),
        (["jsonl"], [], "E_SUITE_WITHOUT_DATA"),
    ):
        with refuses(code):
            suite_data(suites, data)


def test_roles_that_cannot_be_scored(given):
    samples = load_suite("processbench", [str(given)], AnswerGrader())
    with refuses("E_UNKNOWN_ROLE"):
        suite_settings("processbench", samples, cast(None), SuiteOptions(), {})
    silent = cast(None, lambda f: "")
    silent.roles["verifier"] = Role(policy="verifier", prompt="{solution}", sampling=Sampling(max_tokens=9))
    with refuses("E_ROLE_WITHOUT_PARSER"):
        suite_settings("processbench", samples, silent, SuiteOptions(), {})
    with refuses("E_SUITE_RANGE", names="reviews 0"):
        SuiteOptions(reviews=0)


@pytest.mark.whole
def test_the_command_scores_a_run(given, sheet, tmp_path, capsys):
    run = tmp_path / "run"
    small = {
        "model": TINY,
        "tasks_per_step": 2,
        "group_size": 2,
        "reviews": 2,
        "kl": 0.0,
        "evaluation_tasks": 1,
        "seed": 3,
    }
    recipe = tango(steps=2, warmup=0, ratio=(1, 1), tasks=EASY, **small)
    api.run(override(recipe, ["evaluation.splits=[]", "evaluation.group_size=1"]), run)
    long = tmp_path / "long.jsonl"
    first = EASY.get("test", 0)
    rows = [{"question": first.prompt, "answer": first.gold}, {"question": "word " * 900, "answer": "1"}]
    long.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["eval", str(run), "--suite", "processbench,gsm8k", "--samples", "2"]
    words += ["--data", f"processbench={given}", f"gsm8k={long}", "--problems", "4"]
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    judged, solved = json.loads(capsys.readouterr().out)
    assert {"gsm8k/f1", "average/f1", "parsed"} <= set(judged["figures"])
    assert {"greedy", "avg@2", "pass@2", "maj@2", "best@2", "weighted@2"} <= set(solved["figures"])
    assert judged["settings"]["problems"] == 8  # four of each split
    assert solved["settings"]["roles"]["verifier"]["model"] == TINY and solved["settings"]["problems"] == 2
    kept = [json.loads(line) for line in (run / "suite-gsm8k.jsonl").read_text().splitlines()]
    assert [row["failure"] for row in kept[-3:]] == ["prompt too long"] * 3
    out = "\n".join(score_lines(solved))
    assert "gsm8k: 2 problems, 2 samples, 1 reviews, after step 2" in out and "temperature 1.0, top_p 1.0" in out
    assert json.loads((run / "suite-gsm8k.json").read_text()) == solved
    moved = run.rename(tmp_path / "moved")  # what is finished was made anew there
    assert main(["eval", str(moved), *words[2:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [judged, solved] and not (moved / "earlier").exists()
    moved.rename(run)
    assert main([*words[:2], "--suite", "gsm8k", "--data", str(long), "--samples", "0", "--step", "0", "--json"]) == 0
    (at_start,) = json.loads(capsys.readouterr().out)
    assert at_start["settings"]["step"] == 0
    assert json.loads((run / "suite-gsm8k-step-0.json").read_text()) == at_start
    assert json.loads((run / "suite-gsm8k.json").read_text()) == solved
    command_refuses([*words[:2], "--data", str(long)], "E_COMMAND_LINE: --data | --suite", capsys)


def test_rows_of_a_model_are_not_those_of_one_that_took_its_place(sheet, tmp_path):
    """The key had the path of the model alone: one that was taught on in place was given the old one's figures."""
    model, place = tmp_path / "model", tmp_path / "scores"
    shutil.copytree(TINY, model)
    lines = []

    def evaluate():
        options = SuiteOptions(samples=1, max_tokens=4)
        return evaluate_suites(model, ["gsm8k"], [str(sheet)], options=options, out=place, say=lines.append)[0]

    first = evaluate()
    rows = (place / "suite-gsm8k.jsonl").read_bytes()
    for file in model.iterdir():
        os.utime(file, (1, 1))  # files that were copied are still the same
    assert evaluate() == first and not (place / "earlier").exists()

    weights = load_file(model / "model.safetensors")
    save_file({name: -tensor for name, tensor in weights.items()}, model / "model.safetensors", {"format": "pt"})
    second = evaluate()
    assert first["settings"] | {"weights": second["settings"]["weights"]} == second["settings"] != first["settings"]
    assert "other settings (weights)" in "".join(lines)
    assert next((place / "earlier").glob("*.jsonl")).read_bytes() == rows != (place / "suite-gsm8k.jsonl").read_bytes()


@pytest.mark.whole
def test_rows_of_a_run_are_not_those_of_one_that_took_its_place(sheet, tmp_path):
    run, place = tmp_path / "run", tmp_path / "scores"
    scores = []
    for rate in (1e-3, 1e-2):
        recipe = grpo(model=TINY, tasks=EASY, steps=1, tasks_per_step=2, group_size=2, kl=0.0, lr=rate)
        api.run(override(recipe, ["evaluation.splits=[]", "evaluation.tasks=1"]), run)
        options = SuiteOptions(samples=1, max_tokens=4)
        for _ in range(2):
            scores += evaluate_suites(run, ["gsm8k"], [str(sheet)], options=options, out=place)
        run.rename(tmp_path / f"run {rate:g}")
    first, first_again, second, second_again = (score["settings"] for score in scores)
    assert first == first_again and second == second_again
    assert first | {"checkpoint": second["checkpoint"]} == second != first


def test_graders_are_closed_where_the_suites_end_with_an_error(sheet, tmp_path, monkeypatch):
    graders = []

    class RecordedGrader(AnswerGrader):
        def __init__(self):
            super().__init__()
            graders.append(self)

    monkeypatch.setattr(benchmarks, "AnswerGrader", RecordedGrader)
    no_folder = tmp_path / "taken"
    no_folder.write_text("")
    with pytest.raises(DiskError):
        evaluate_suites("shipped-roles", ["gsm8k"], [str(sheet)], out=no_folder)
    (grader,) = graders
    task = load_suite("gsm8k", [str(sheet)], grader)[0]
    with pytest.raises(RuntimeError, match="closed"):
        grader.grade(replace(task, gold=r"\sqrt{2}"), "<answer>x + 1</answer>")  # which needs a process


def test_problems_that_a_run_was_trained_on_are_counted_and_told(tmp_path):
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
    file = tmp_path / "sums.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.closing(JsonlTasks(file)) as source:
        questions = training_questions(source)
        assert len(questions) == 32 and training_questions(with_labels(source, "16", seed=0)) == questions
    assert training_questions(EASY) == set()
    settings = {"problems": 40, "step": 2, "data": ["sums.jsonl"], "roles": {}}
    told = score_lines({"suite": "jsonl", "settings": settings, "figures": {}, "trained_on": 32})
    assert "  note: 32 of 40 problems are training problems of this run" in told


def test_a_draw_of_a_suite_does_not_follow_the_order_of_its_file(tmp_path):
    rows = [{"question": f"{kind} {i}?", "answer": str(i)} for kind in "ab" for i in range(20)]
    (tmp_path / "sorted.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "turned.jsonl").write_text("\n".join(map(json.dumps, rows[::-1])))
    draws = []
    for name in ("sorted", "turned"):
        with contextlib.closing(AnswerGrader()) as judge:
            draws.append(
                {t.prompt for t in draw_items(load_suite("jsonl", [str(tmp_path / f"{name}.jsonl")], judge), 8)}
            )
    assert draws[0] == draws[1] and len(draws[0]) == 8
    assert {prompt[0] for prompt in draws[0]} == {"a", "b"}


@pytest.mark.whole
def test_a_model_is_scored_as_a_run_is(sheet, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "null.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n{"question": "?", "answer": null}\n')
    words = ["eval", TINY, "--suite", "jsonl", "--data", "null.jsonl", "--samples", "1", "--max-tokens", "40"]
    command_refuses(words, "E_FIELD_NOT_TEXT: null.jsonl, row 2 | 'answer'", capsys)
    assert main([*words, "--lenient", "--answer-format", "last-number"]) == 0
    out = capsys.readouterr().out
    assert "1 problems" in out and "at most 40 tokens" in out and "greedy" in out
    assert "verifier" not in out
    (result,) = tmp_path.glob("evals/*/suite-jsonl.json")
    assert json.loads(result.read_text())["settings"]["roles"]["solver"]["answer"] == "last-number"
    judging = [
        "--lenient",
        "--answer-format",
        "last-number",
        "--verdict",
        "words",
        "--temperature",
        "0.5",
        "--out",
        "judged",
    ]
    assert main([*words, *judging]) == 0
    assert "verifier: generator" in capsys.readouterr().out
    judged = json.loads((tmp_path / "judged" / "suite-jsonl.json").read_text())
    assert {role["temperature"] for role in judged["settings"]["roles"].values()} == {0.5}
    assert {"best@1", "weighted@1"} <= set(judged["figures"])
    command_refuses([*words, "--lenient", "--temperature", "-1"], "E_COMMAND_LINE: --temperature | '-1'", capsys)
    command_refuses(["eval", TINY], "E_COMMAND_LINE: --suite gsm8k", capsys)
    assert main(["chat", TINY, "--once", EASY.get("validation", 0).prompt]) == 0
    assert "answer: " in capsys.readouterr().out
    assert main(["export", TINY, "--role", "solver", "--out", "copy"]) == 0 and (tmp_path / "copy/config.json").exists()
