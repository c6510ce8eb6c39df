"""Rollouts of other trainers: what is read from which column, what is refused, and what is left out and said."""

import json
from collections import Counter
from pathlib import Path

import pytest

from cotrain.core.errors import DataError
from cotrain.formats.answers import answer_in
from cotrain.runs.foreign_files import read_foreign_run, truth_of
from tests.sentences import refuses

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "foreign"


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rollouts(tmp_path, rows, **options):
    return read_foreign_run([write_rows(tmp_path / "rows.jsonl", rows)], **options)


# -- files of the trainers themselves


def test_trl():
    pytest.importorskip("pyarrow")
    run = read_foreign_run([ASSETS / "trl"])
    assert run.kind == "TRL's completions"
    assert run.columns.judge == "judge" and run.columns.response == "completion"
    assert run.right_at == 1.0
    assert run.unread == {"advantage": 64}
    assert "left out 2 steps that repeat" in run.notes[0]  # TRL logs a batch in each step that learns from it
    assert run.steps == (1, 3)
    assert len(run.rollouts) == 32
    first = run.rollouts[0]
    assert first.prompt.endswith("Solve:") and first.response.startswith("<step>")
    assert all(count == 4 for count in Counter((r.step, r.task) for r in run.rollouts).values())


def test_trl_as_json_lines(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = parquet.read_table(ASSETS / "trl" / "completions_00001.parquet").to_pylist()
    run = rollouts(tmp_path, rows)
    whole = read_foreign_run([ASSETS / "trl" / "completions_00001.parquet"])
    assert [(r.address, r.response, r.verdict) for r in run.rollouts] == [
        (r.address, r.response, r.verdict) for r in whole.rollouts
    ]


def test_verifiers():
    run = read_foreign_run([ASSETS / "verifiers"])
    assert run.kind == "verifiers' results"
    assert run.steps == (0, 1)
    assert [r.address for r in run.rollouts] == [f"{s}:{t}:{m}" for s in (0, 1) for t in (0, 1) for m in (0, 1)]
    first = run.rollouts[0]
    assert (first.prompt, first.response, first.gold) == ("What is 2 + 3?", "So it is \\boxed{5}.", "5")
    assert [r.verdict for r in run.rollouts] == [True, False, True, False, True, True, True, True]
    assert run.columns.others == ("style",)


def test_verifiers_of_rows(tmp_path):
    said = [{"role": "user", "content": "hm"}, {"role": "assistant", "content": "4"}]
    row = {"example_id": 3, "prompt": [{"role": "user", "content": "2+2?"}], "completion": said, "answer": "4"}
    run = rollouts(tmp_path, [row | {"reward": 1.0, "task": "sums", "generation_ms": 3.5, "format_reward": 0.5}])
    assert run.rollouts[0].response == "4"  # what the assistant said
    assert run.columns.judge == "reward" and run.columns.others == ("format_reward",)
    assert set(run.unread) == {"task", "generation_ms"}


def test_verl(tmp_path):
    asked = {"input": "user\n1+1?\nassistant\n", "gts": "2"}
    for step in (2, 10):
        right = asked | {"output": "2", "score": 1.0, "step": step, "acc": True}
        wrong = asked | {"output": "3", "score": 0.0, "step": step, "acc": False}
        write_rows(tmp_path / f"{step}.jsonl", [right, wrong])
    run = read_foreign_run([tmp_path])
    assert run.kind == "veRL's rollouts"
    assert run.steps == (2,)  # the second step holds the very same rollouts
    assert run.columns.gold == "gts" and run.columns.others == ("acc",)
    assert [r.scores["acc"] for r in run.rollouts] == [1.0, 0.0]


def test_files_without_a_step_have_it_in_their_names(tmp_path):
    for step in (9, 10):
        write_rows(tmp_path / f"part_{step}.jsonl", [{"prompt": "q", "response": str(step), "reward": 1}])
    assert [r.response for r in read_foreign_run([tmp_path]).rollouts] == ["9", "10"]


@pytest.mark.parametrize(
    "row, kind",
    [
        ({"rollout_id": 3, "prompt": "q", "response": "r", "label": "4", "reward": 1.0}, "samples of slime or miles"),
        ({"input": "q", "output": "r", "reward": 0.5}, "OpenRLHF's samples"),
        ({"question": "q", "generation": "r", "verdict": "CORRECT"}, "rows of columns"),
    ],
    ids=["miles", "openrlhf", "other"],
)
def test_samples(row, kind, tmp_path):
    run = rollouts(tmp_path, [row])
    assert (run.kind, run.rollouts[0].prompt, run.rollouts[0].response) == (kind, "q", "r")
    assert run.rollouts[0].step == row.get("rollout_id", 0)


def test_a_table_of_wandb(tmp_path):
    table = {"columns": ["global_step", "text", "reward"], "data": [[1, "one", 0.0], [2, "two", 1.0]]}
    file = tmp_path / "samples.table.json"
    file.write_text(json.dumps(table), encoding="utf-8")
    run = read_foreign_run([file])
    assert run.kind == "OpenRLHF's samples"
    assert [(r.step, r.response, r.verdict) for r in run.rollouts] == [(1, "one", False), (2, "two", True)]


def test_csv_with_named_columns(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("q,said,liked,ok,epoch_no\na,b,0.9,yes,1\na,c,0.2,no,1\n", encoding="utf-8")
    named = {"response": "said", "prompt": "q", "judge": "liked", "truth": "ok", "step": "epoch_no"}
    run = read_foreign_run([file], named=named)
    assert [(r.step, r.verdict, r.truth) for r in run.rollouts] == [(1, True, True), (1, False, False)]


# -- verdicts


@pytest.mark.parametrize(
    "scores, right_at, verdicts",
    [
        ([0, 1], None, [False, True]),
        ([-1.0, 1.0], None, [False, True]),
        ([0.1, 0.5, 0.9], None, [False, True, True]),
        ([-0.5, 0.1, 0.9], None, [False, True, True]),
        ([1, 4, 9], 4.0, [False, True, True]),
        ([0, 0], None, [False, False]),
        ([1, 1], None, [True, True]),
        ([1, None], None, [True, None]),
        ([1.0, float("nan")], None, [True, None]),
        (["yes", "no"], None, [True, False]),
    ],
    ids=["two", "signs", "shares", "signed", "given", "never", "always", "none", "nan", "words"],
)
def test_from_which_score_on_a_judge_accepts(scores, right_at, verdicts, tmp_path):
    rows = [{"prompt": "q", "response": f"r{i}", "reward": score} for i, score in enumerate(scores)]
    assert [r.verdict for r in rollouts(tmp_path, rows, right_at=right_at).rollouts] == verdicts


def test_scores_of_any_size_need_a_threshold(tmp_path):
    rows = [{"prompt": "q", "response": f"r{i}", "reward": score} for i, score in enumerate((-3.0, 2.0, 7.0))]
    with refuses("E_JUDGE_THRESHOLD", names=("3 different", "-3", "--right-at 2")):
        rollouts(tmp_path, rows)


# -- what is wrong with a file


@pytest.mark.parametrize(
    "content, code",
    [
        ('{"prompt": "q"}\n', "E_RESPONSE_COLUMN: prompt | --response-column"),
        ('{"prompt": "q", "response": "r", "step": -1}\n', "E_STEP_NOT_NUMBER: 'step' | -1"),
        ('{"prompt": "q", "response": "r", "step": 1.5}\n', "E_STEP_NOT_NUMBER: 'step' | 1.5"),
        ('{"prompt": "q"\n{"prompt": "q", "response": "r"}\n', "E_ROWS_BROKEN: row 1"),
        ('[1]\n{"prompt": "q"}\n', "E_ROWS_BROKEN: row 1 | list"),
        ("", "E_DATA_EMPTY: rows.jsonl"),
        ('{"response": "r", "truth": "perhaps"}\n', "E_TRUTH_COLUMN: 'truth'"),
    ],
    ids=["no-response", "negative", "part", "broken", "list", "empty", "truth"],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(content, code, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(content, encoding="utf-8")
    with refuses(code) as caught:
        read_foreign_run([file])
    assert "\n" not in str(caught.value)


def test_a_column_that_is_not_there_names_the_nearest(tmp_path):
    with refuses("E_NO_SUCH_COLUMN", names=("--judge", "'rewrad'", "'reward'")):
        rollouts(tmp_path, [{"response": "r", "reward": 1}], named={"judge": "rewrad"})


def test_a_pickle_is_not_read(tmp_path):
    (tmp_path / "data_0.pt").write_bytes(b"x")
    with refuses("E_PICKLE"):
        read_foreign_run([tmp_path / "data_0.pt"])


def test_a_folder_without_rollouts(tmp_path):
    with refuses("E_NO_ROLLOUT_FILE"):
        read_foreign_run([tmp_path])


def test_a_last_line_that_is_half_written_is_left_out_and_said(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"response": "r", "reward": 1}\n{"respon', encoding="utf-8")
    run = read_foreign_run([file])
    assert len(run.rollouts) == 1 and "last line of rows.jsonl" in run.notes[0]


def test_a_run_of_our_own_is_no_file_of_others(tmp_path):
    (tmp_path / "recipe.json").write_text("{}", encoding="utf-8")
    (tmp_path / "metrics.jsonl").write_text("{}\n", encoding="utf-8")
    with refuses("E_RUN_OF_COTRAIN"):
        read_foreign_run([tmp_path])


def test_a_reward_that_said_nothing_is_no_judge(tmp_path):
    rows = [
        {"prompt": "q", "completion": f"r{i}", "silent": float("nan"), "judge": i, "advantage": 0.0} for i in (0, 1)
    ]
    run = rollouts(tmp_path, rows)
    assert run.columns.judge == "judge" and run.columns.others == ()


def test_rows_without_a_response_are_counted(tmp_path):
    run = rollouts(tmp_path, [{"response": "r", "reward": 1}, {"response": None, "reward": 1}])
    assert run.notes == ("left out 1 of 2 rows, which have no 'response'",)


def test_words_of_truth():
    assert [truth_of(word) for word in ("True", "WRONG", 1, 0.0, "?", None, -1)] == [
        *(True, False, True, False, None, None, False)
    ]


def test_where_an_answer_is_found():
    assert answer_in("<answer>3</answer>") == "3"
    assert answer_in("So the answer is 4.") == "4"
    assert answer_in("it is 5") is None
    assert answer_in("it is 5", "last-number") == "5"


def test_an_output_folder_of_trl_has_other_files_too(tmp_path):
    (tmp_path / "completions").mkdir()
    for name in ("config.json", "problems.jsonl"):
        (tmp_path / name).write_text("{}\n", encoding="utf-8")
    write_rows(tmp_path / "completions" / "completions_00003.jsonl", [{"prompt": "q", "completion": "r", "judge": 1}])
    assert [r.step for r in read_foreign_run([tmp_path, tmp_path]).rollouts] == [3]


def test_rewards_in_an_object_are_columns(tmp_path):
    run = rollouts(
        tmp_path, [{"prompt": "q", "response": "r", "reward": {"score": 1.0, "format": 0.5}, "meta": {"a": "b"}}]
    )
    assert run.columns.judge == "reward.score" and run.columns.others == ("reward.format",)
    assert run.unread == {"meta": 1}


def test_an_empty_answer_of_csv_is_an_answer(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text("prompt,response,reward\nq,,1\nq,r,0\n", encoding="utf-8")
    assert [(r.response, r.verdict) for r in read_foreign_run([file]).rollouts] == [("", True), ("r", False)]


@pytest.mark.parametrize(
    "odd",
    [
        {"score": 10**400},
        {"gts": float("inf")},
        {"gts": [float("nan")]},
        {"truth": 10**400, "gts": None},
        {"response": "\ud800 half"},
        {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "see"}]}]},
        {"response": []},
        {"response": 7},
    ],
    ids=["huge", "inf", "nan", "truth", "half", "parts", "list", "number"],
)
def test_odd_cells_are_read_or_refused_in_one_line(odd, tmp_path):
    row = {"prompt": "q", "response": "r", "gts": "2", "score": 1.0} | odd
    try:
        run = rollouts(tmp_path, [row, row | {"response": "s"}])
    except DataError as error:
        assert "\n" not in str(error)
        return
    for one in run.rollouts:
        f"{one.prompt} {one.response} {one.gold}".encode()
