"""A file is what its given name says, wherever links lead; and directories as the Hub and others lay them out."""

import gzip
import json

import pytest

from cotrain.cli.main import main
from cotrain.core.input_files import absolute_path
from cotrain.core.user_code import function_target, load_file
from cotrain.data.files import JsonlTasks
from cotrain.data.labels import with_labels
from cotrain.data.preferences import Chats, Pairs
from cotrain.data.processbench import read_samples
from cotrain.data.programs import ProgramTasks
from cotrain.data.row_files import split_named_by
from cotrain.data.suite_files import load_suite
from cotrain.grading.pool import AnswerGrader
from tests.sentences import command_refuses, refuses

ROWS = [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(40)]
JUDGED = [{"id": str(n), "problem": "P", "steps": ["a"], "label": -1} for n in range(4)]
CODE = [
    {"text": f"Write add{n}.", "code": f"def add{n}(x): return x + {n}", "test_list": [f"assert add{n}(1) == {n + 1}"]}
    for n in range(30)
]


def encode(rows, ending):
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if ending == ".json":
        return json.dumps(rows).encode()
    if ending == ".csv":
        names = list(rows[0])
        return "\n".join([",".join(names), *(",".join(str(row[name]) for name in names) for row in rows)]).encode()
    return gzip.compress(lines.encode()) if ending.endswith(".gz") else lines.encode()


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        path.write_bytes(encode(rows, "".join(path.suffixes)))
    return path


def linked(folder, name, rows):
    """A file as in a cache of the Hub: a link to one without an ending."""
    blob = folder / "blobs" / "5f2c9a"
    blob.parent.mkdir(exist_ok=True)
    write(folder / name, rows).rename(blob)
    link = folder / "snapshots" / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(blob)
    return link


ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".csv", ".parquet")


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_link_is_read_as_it_is_called(ending, tmp_path, capsys):
    link = linked(tmp_path, f"train{ending}", ROWS)
    source = JsonlTasks(link)
    assert source.size("train") + source.size("validation") + source.size("test") == 40
    assert source.path == str(link)  # and by this name it is read again
    assert JsonlTasks(**source.describe()["settings"]).size("train") == source.size("train")
    assert main(["check", "data", str(link)]) == 0 and "40 rows" in capsys.readouterr().out
    tasks = load_suite("jsonl", [str(link)], AnswerGrader())
    assert len(tasks) == 40


@pytest.mark.parametrize("ending", [".jsonl.gz", ".parquet"])
def test_links_to_programs_reviews_labels_and_pairs_are_read_as_they_are_called(ending, tmp_path):
    folders = [tmp_path / name for name in ("code", "reviews", "labels", "pairs")]
    for folder in folders:
        folder.mkdir()
    programs = ProgramTasks("mbpp", linked(folders[0], f"own{ending}", CODE))
    assert programs.size("train") > 10
    programs.close()
    samples = read_samples([str(linked(folders[1], f"gsm8k{ending}", JUDGED))])
    assert [one.split for one in samples] == ["gsm8k"] * 4
    labels = linked(folders[2], f"solved{ending}", ROWS)
    assert with_labels(JsonlTasks(labels), str(labels), seed=0).size("train") > 10
    pairs = [{"prompt": f"Q{n}", "chosen": "a", "rejected": "b"} for n in range(30)]
    assert Pairs(linked(folders[3], f"pairs{ending}", pairs)).size("train") > 10


def test_python_files_are_named_as_they_were_given(tmp_path):
    blob, link = tmp_path / "blob", tmp_path / "mine.py"
    blob.write_text("def short(task, answer, right):\n    return 1.0\n")
    link.symlink_to(blob)
    assert function_target(load_file(str(link), "reward").short) == f"{link}:short"


def test_a_path_keeps_its_last_name_alone(tmp_path, monkeypatch):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.chdir(tmp_path)
    assert absolute_path("link/inner/a.csv") == tmp_path / "real" / "inner" / "a.csv"
    assert absolute_path("link") == tmp_path / "link"
    assert absolute_path("link/..") == tmp_path and absolute_path(".") == tmp_path
    assert absolute_path("link/inner/..") == tmp_path / "real"


@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".csv", ".json", ".parquet"])
def test_a_directory_of_any_ending_keeps_its_test_split(ending, tmp_path):
    write(tmp_path / f"train{ending}", ROWS[:30])
    write(tmp_path / f"test{ending}", ROWS[30:])
    write(tmp_path / f"dev{ending}", ROWS[20:25])
    source = JsonlTasks(tmp_path)
    assert (source.size("train"), source.size("validation"), source.size("test")) == (25, 5, 10)
    assert len(load_suite("jsonl", [str(tmp_path)], AnswerGrader())) == 10


def test_a_snapshot_of_the_hub_is_a_data_set(tmp_path):
    write(tmp_path / "data" / "train-00000-of-00002.parquet", ROWS[:20])
    write(tmp_path / "data" / "train-00001-of-00002.parquet", ROWS[20:30])
    write(tmp_path / "data" / "test-00000-of-00001-0123456789abcdef.parquet", ROWS[30:])
    (tmp_path / "README.md").write_text("# A data set")
    (tmp_path / "dataset_infos.json").write_text("{}")
    source = JsonlTasks(tmp_path)
    assert source.size("train") + source.size("validation") == 30 and source.size("test") == 10
    assert len(load_suite("jsonl", [str(tmp_path)], AnswerGrader())) == 10
    (tmp_path / "data" / "train-00001-of-00002.parquet").unlink()
    with refuses("E_SPLIT_FILES_MISSING", names="2 files"):
        JsonlTasks(tmp_path)
    only = tmp_path / "only"
    write(only / "data" / "train-00000-of-00001.parquet", ROWS)
    assert JsonlTasks(only).size("train") > 20  # cut as a file is


def test_a_snapshot_of_several_configurations_says_which_there_are(tmp_path):
    write(tmp_path / "main" / "train-00000-of-00001.parquet", ROWS)
    with refuses("E_SPLITS_MISSING"):
        JsonlTasks(tmp_path)


def test_preferences_of_a_snapshot_are_its_own_part(tmp_path):
    for name in ("train_prefs", "test_prefs", "train_sft"):
        pairs = [{"prompt": f"{name} {n}", "chosen": "a", "rejected": "b"} for n in range(30)]
        write(tmp_path / "data" / f"{name}-00000-of-00001.parquet", pairs)
    source = Pairs(tmp_path)
    assert source.size("test") == 30 and source.get("train", 0).prompt.startswith("train_prefs")


def test_a_split_in_two_files_and_a_column_twice_are_refused(tmp_path):
    write(tmp_path / "train.jsonl", ROWS)
    write(tmp_path / "train.jsonl.gz", ROWS)
    write(tmp_path / "test.jsonl", ROWS)
    with refuses("E_SPLIT_TWICE", names=("train", "train.jsonl", "train.jsonl.gz")):
        JsonlTasks(tmp_path)
    arrow = pytest.importorskip("pyarrow")
    columns = [arrow.array(["Q"]), arrow.array(["1"]), arrow.array(["2"])]
    table = arrow.Table.from_arrays(columns, names=["question", "answer", "answer"])
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "twice.parquet")
    with refuses("E_TWO_COLUMNS_ALIKE", names="'answer'"):
        JsonlTasks(tmp_path / "twice.parquet")


def test_parts_by_name(tmp_path):
    split_by_name = {
        "train.jsonl": "train",
        "test-00000-of-00003.parquet": "test",
        "val.csv.gz": "validation",
        "a.b.csv": "a.b",
    }
    for name, split in split_by_name.items():
        assert split_named_by(tmp_path / name) == split


def test_files_of_no_split_and_rows_of_two_splits_are_told(tmp_path):
    write(tmp_path / "train.jsonl", ROWS[:30])
    write(tmp_path / "test.jsonl", ROWS[25:])
    write(tmp_path / "train_more.jsonl", ROWS)
    notes = JsonlTasks(tmp_path).notes
    assert [note.partition(f"note: {tmp_path}: ")[2] for note in notes] == [
        "left out, as they ask a question of another split: 5 of 45 rows",
        "files not read: train_more.jsonl",
    ]
    for name in ("train", "test", "train_more"):
        write(
            tmp_path / "chats" / f"{name}.jsonl",
            [{"prompt": f"{name} {n}", "completion": "yes"} for n in range(20)],
        )
    assert any("files not read: train_more.jsonl" in note for note in Chats(tmp_path / "chats").notes)


def test_further_splits_and_configurations_of_a_snapshot_are_told(tmp_path):
    places = ["train-00000-of-00001", "test-00000-of-00001", "extra-00000-of-00002", "extra-00001-of-00002"]
    for place in places:
        write(tmp_path / "data" / f"{place}.jsonl", [{"question": f"{place} {n}", "answer": n} for n in range(30)])
    write(tmp_path / "socratic" / "train.jsonl", ROWS)
    said = f"note: {tmp_path}: files not read: extra (2 files), socratic/ (1 file)"
    assert said in JsonlTasks(tmp_path).notes


def test_own_code_in_splits_is_measured_on_its_test_split_and_what_is_left_out_is_told(tmp_path):
    write(tmp_path / "train.jsonl", CODE[:25])
    write(tmp_path / "test.jsonl", CODE[20:])
    write(tmp_path / "more.jsonl", CODE[:3])
    source = ProgramTasks("mbpp", tmp_path)
    assert source.size("test") == 10 and source.left_out == 8
    assert any(
        "left out, as they ask a held-out question or lie in no split: 8 of 38 rows" in note for note in source.notes
    )
    source.close()
    tasks = load_suite("mbpp", [str(tmp_path)], None)
    assert len(tasks) == 10
    tasks[0].grader.close()


def test_own_code_of_a_held_out_file_is_not_cut_anew(tmp_path):
    write(tmp_path / "train.jsonl", CODE[:20])
    write(tmp_path / "validation.jsonl", CODE[20:])
    with refuses("E_SPLITS_MISSING", names="train, validation"):
        ProgramTasks("mbpp", tmp_path)


def test_a_directory_is_checked_file_by_file(tmp_path, capsys):
    write(tmp_path / "data" / "train-00000-of-00001.jsonl", ROWS)
    command_refuses(["check", "data", str(tmp_path)], "E_DATA_IS_DIRECTORY: data/train-00000-of-00001.jsonl", capsys)
