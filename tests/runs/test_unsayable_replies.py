"""Replies that cannot follow the prompts of a model are refused before a run begins, or set aside."""

import json
import shutil

import pytest

from cotrain.cli.main import main
from tests.helpers import TINY
from tests.sentences import command_refuses

SIZE = ["--steps=2", "--tasks-per-step=2", "--evaluation-tasks=2", "--threads=1", "--device=cpu"]
GOOD, OPEN = "hm\n</think>\n\n{}", "no end of the thought {}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """The tiny model with a template whose prompts open a thought."""
    folder = tmp_path_factory.mktemp("thinker") / "model"
    shutil.copytree(TINY, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text() + "{%- if add_generation_prompt %}{{- '<think>\n' }}{%- endif %}")
    return str(folder)


def pairs(path, bad):
    """Forty preferences, ``bad`` of which have a rejected reply that never closes its thought."""
    rows = [
        {"prompt": f"{n} + 1?", "chosen": GOOD.format(n + 1), "rejected": (OPEN if n < bad else GOOD).format(n)}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"--data={path}"


def chats(path, bad):
    rows = [{"prompt": f"{n} + 1?", "completion": (OPEN if n < bad else GOOD).format(n + 1)} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"--data={path}"


CASES = {"dpo": (["dpo", "--tasks=pairs"], pairs), "spin": (["spin", "--tasks=chats", "--iteration=1"], chats)}


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_before_the_start(name, thinker, tmp_path, capsys):
    words, write = CASES[name]
    data = write(tmp_path / "data.jsonl", 3)
    words = ["run", *words, f"--model={thinker}", data, f"--out={tmp_path / 'run'}", *SIZE]
    command_refuses(words, "E_PREFERENCE_REFUSED: data.jsonl | '</think>' | --lenient", capsys)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.whole
@pytest.mark.parametrize("name", CASES)
def test_it_is_set_aside_and_counted(name, thinker, tmp_path, capsys):
    words, write = CASES[name]
    data, run = write(tmp_path / "data.jsonl", 3), tmp_path / "run"
    command = ["run", *words, f"--model={thinker}", data, f"--out={run}", "--lenient", *SIZE]
    assert main(command) == 0
    aside = [json.loads(line) for line in (run / "quarantine.jsonl").read_text().splitlines()]
    assert len(aside) == 3 and all("never closes that thought" in row["reason"] for row in aside)
    assert "3 of 40 rows cannot be read and are left out" in (run / "run.log").read_text()
    assert main(["resume", str(run), "--steps=3"]) == 0


def test_most_of_a_file_is_not_left_out(thinker, tmp_path, capsys):
    data = pairs(tmp_path / "data.jsonl", 30)
    words = ["run", "dpo", "--tasks=pairs", f"--model={thinker}", data, f"--out={tmp_path / 'run'}", "--lenient", *SIZE]
    command_refuses(words, "E_TOO_MANY_BAD_ROWS: 30 of 40 rows", capsys)
