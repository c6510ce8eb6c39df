"""A base on tasks in the layouts of CORE: which answer it finds likeliest, by its own log-probabilities."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cotrain.cli.main import main
from cotrain.models.load import save_model
from cotrain.pretraining import core_tasks
from cotrain.pretraining.core_tasks import continuation_losses, measure_core, read_items, what_scores_depend_on
from cotrain.storage.kept_work import kept_work
from tests.sentences import command_refuses, refuses


class Alphabet:
    """A tokenizer with a token for each of the letters a to d, and one that begins a text."""

    bos_token_id = 4

    def __call__(self, text, **how):
        return {"input_ids": ["abcd".index(letter) for letter in text]}


class Successor(nn.Module):
    """Says that a letter is followed by the next one with odds of e² to 1 against each other token."""

    config = SimpleNamespace(max_position_embeddings=6)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids, use_cache):
        return SimpleNamespace(logits=2 * nn.functional.one_hot((input_ids + 1) % 5, 5).float())


LIKELY, UNLIKELY = (math.log(math.e**2 + 4) - x for x in (2, 0))


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_losses_are_those_of_the_continuation_alone_whatever_stands_beside_it():
    losses, exact = continuation_losses(Successor(), Alphabet(), [("ab", "cd"), ("aa", "bb"), ("ad", "a")])
    assert losses == pytest.approx([LIKELY, (LIKELY + UNLIKELY) / 2, UNLIKELY])
    assert exact == [True, False, False]
    with refuses("E_PROMPT_TOO_LONG", names=("row 3", "7 tokens", "holds 6")):
        continuation_losses(Successor(), Alphabet(), [("abcd", "ab")], "row 3")


def test_a_token_across_the_border_belongs_to_the_continuation():
    class Pairs(Alphabet):
        def __call__(self, text, **how):
            return {"input_ids": [ord(c) % 4 for c in (text.replace("bc", "Z"))]}

    calls = []
    network = Successor()
    inner = network.forward
    network.forward = lambda input_ids, use_cache: calls.append(input_ids) or inner(input_ids, use_cache)
    losses, _ = continuation_losses(network, Pairs(), [("ab", "c")])
    assert calls[0].shape == (1, 3) and len(losses) == 1  # the beginning, "a", and one token that is "bc"


def test_each_layout_is_scored_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(core_tasks, "load_model", lambda model: (Successor(), Alphabet()))
    tight = {"delimiter": ""}
    choices = [{"query": "a", "choices": ["b", "c"], "gold": gold, **tight} for gold in (0, 0, 1)]
    contexts = [{"context_options": ["d", "b"], "continuation": "c", "gold": 1, **tight}]
    said = [{"context": "a", "continuation": "bc", **tight}, {"context": "a", "continuation": "bd", **tight}]
    files = [
        written(tmp_path / f"{n}.jsonl", rows) for n, rows in (("one", choices), ("two", contexts), ("three", said))
    ]
    found = measure_core("any", files)
    values = {name: figure["value"] for name, figure in found["figures"].items()}
    assert values == {
        **{"one/accuracy": pytest.approx(2 / 3), "one/centred": pytest.approx(1 / 3)},
        **{"two/accuracy": 1.0, "two/centred": 1.0, "three/accuracy": 0.5, "three/centred": 0.5},
    }
    assert found["core"] == pytest.approx((1 / 3 + 1 + 0.5) / 3)
    assert measure_core("any", files[:1], problems=2)["figures"]["one/accuracy"]["n"] == 2


def test_scores_go_on_where_they_stopped(tmp_path, monkeypatch):
    """Of a suite that takes hours nothing was left when it was killed."""
    monkeypatch.setattr(core_tasks, "load_model", lambda model: (Successor(), Alphabet()))
    monkeypatch.setattr(core_tasks, "ROWS_KEPT", 2)
    rows = [{"context": "ab", "continuation": tail, "delimiter": ""} for tail in ("c", "d", "c", "a", "c")]
    file = written(tmp_path / "one.jsonl", rows)
    whole = measure_core("any", [file])
    scored = []
    score = core_tasks._score_item

    def score_or_stop(network, tokenizer, item, examples, where):
        if len(scored) == 3:
            scored.append("stopped")
            raise KeyboardInterrupt
        scored.append(where)
        return score(network, tokenizer, item, examples, where)

    monkeypatch.setattr(core_tasks, "_score_item", score_or_stop)
    depends_on = what_scores_depend_on("any", [file], None, 0)
    with pytest.raises(KeyboardInterrupt), kept_work(tmp_path / "core.json", depends_on, print) as work:
        measure_core("any", [file], work=work)
    with kept_work(tmp_path / "core.json", depends_on, print) as work:
        assert measure_core("any", [file], work=work) == whole
    assert [int(where.split()[-1]) for where in scored if where != "stopped"] == [1, 2, 3, 3, 4, 5]


def test_examples_are_other_rows_of_the_file_with_their_right_answers(tmp_path, monkeypatch):
    seen = []

    def record(network, tokenizer, pairs, where):
        seen.append(pairs)
        return [0.0, 1.0], [True, True]

    monkeypatch.setattr(core_tasks, "load_model", lambda model: (Successor(), Alphabet()))
    monkeypatch.setattr(core_tasks, "continuation_losses", record)
    rows = [{"query": f"{letter}?", "choices": ["yes", "no"], "gold": gold} for letter, gold in (("a", 0), ("b", 1))]
    file = written(tmp_path / "asked.jsonl", rows)
    assert measure_core("any", [file], shots=1)["figures"]["asked/accuracy"]["value"] == 0.5
    assert seen == [
        [("b? no\n\na?", " yes"), ("b? no\n\na?", " no")],
        [("a? yes\n\nb?", " yes"), ("a? yes\n\nb?", " no")],
    ]
    with refuses("E_TOO_FEW_ROWS_FOR_SHOTS", names=("'asked'", "2 rows", "--shots 2")):
        measure_core("any", [file], shots=2)


@pytest.mark.parametrize(
    "row, code",
    [
        ({"question": "a"}, "E_CORE_COLUMNS: row 1 | question"),
        ({"query": "a", "choices": ["b", "c"], "gold": 2}, "E_GOLD_PLACE"),
        ({"query": "a", "choices": ["b", "c"]}, "E_GOLD_PLACE: None"),
        ({"query": "a", "choices": ["b", " "], "gold": 0}, "E_FIELD_BLANK: choices"),
        ({"context": "a", "continuation": 3}, "E_FIELD_BLANK: continuation"),
    ],
)
def test_a_row_of_another_layout_is_refused_in_one_line(tmp_path, row, code):
    with refuses(code):
        read_items(written(tmp_path / "rows.jsonl", [row]))


def test_the_command_writes_what_it_prints_and_refuses_what_is_not_of_it(model, tokenizer, tmp_path, capsys):
    save_model(model, tokenizer, tmp_path / "base", None)
    file = written(tmp_path / "cde.jsonl", [{"query": "ab", "choices": ["7", "+"], "gold": 0}] * 3)
    words = ["eval", str(tmp_path / "base"), "--suite", "core", "--threads", "1"]
    assert main([*words, "--data", file, "--out", str(tmp_path / "out"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "out" / "suite-core.json").read_text())
    assert printed["figures"]["cde/accuracy"]["n"] == 3
    command_refuses(words, "E_COMMAND_LINE: --suite core | --data FILE", capsys)
    malformed = tmp_path / "malformed.jsonl"
    malformed.write_text((tmp_path / "cde.jsonl").read_text() + "nonsense\n")
    more = ["--data", str(malformed), "--out", str(tmp_path / "lenient"), "--json"]
    command_refuses([*words, *more], "E_ROW_NOT_JSON: malformed.jsonl, row 4", capsys)
    assert main([*words, *more, "--lenient"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["settings"]["set_aside"] == 1 and "1 of 4" in err
    assert "row 4" in (tmp_path / "lenient" / "quarantine.jsonl").read_text()
    command_refuses(
        [*words[:3], "core,gsm8k", "--data", file], "E_COMMAND_LINE: --suite core | the other suites", capsys
    )
    command_refuses([*words, "--data", file, "--samples", "4"], "E_COMMAND_LINE: --samples | --suite core", capsys)
    command_refuses(
        ["eval", str(tmp_path / "base"), "--suite", "jsonl", "--data", file, "--shots", "1"],
        "E_COMMAND_LINE: --shots | --suite core",
        capsys,
    )
