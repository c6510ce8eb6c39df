"""Problems of one equation, out of ASDiv's file or rows."""

import json
import re

import pytest

from benchmarks import short_form
from cotrain.formats.free_verdicts import free_review

XML = """<Machine-Reading-Corpus-File><ProblemSet>
<Problem ID="1"><Body>Ann has 7 apples.</Body><Question>She gets  2. How many?</Question>
<Answer>9 (apples)</Answer><Formula>7+2=9</Formula></Problem>
<Problem ID="2"><Body>Who has more?</Body><Question/><Answer>Ann</Answer><Formula>7 &gt; 2</Formula></Problem>
</ProblemSet></Machine-Reading-Corpus-File>"""


@pytest.mark.parametrize(
    ("formula", "answer", "found"),
    [
        ("47+43=90", "90 (people)", ("47 + 43", "90")),
        ("(5+5)* 3 = 30", "30  (legs)", ("(5 + 5) * 3", "30")),
        ("0.34*2=0.68", "0.68 (dollars)", ("0.34 * 2", "0.68")),
        ("32.5*2=65.0", "65", ("32.5 * 2", "65")),
        ("10/3=3.333", "3.333 (minutes)", None),  # which it is not
        ("20+14-31=3", "February 3rd", None),
        ("20+14=34", "33", None),
        ("3(2+2)=12", "12", None),
        ("2**9=512", "512", None),
        ("1/0=1", "1", None),
        ("47/6=7 r5", "5", None),
        ("4+5=9 apples < 10 apples", "Yes", None),
    ],
)
def test_an_expression_that_comes_to_the_answer(formula, answer, found):
    assert short_form.worked(formula, answer) == found


def test_the_files_are_the_same_each_time(tmp_path, capsys):
    (tmp_path / "ASDiv.xml").write_text(XML)
    assert list(short_form.problems(tmp_path / "ASDiv.xml")) == [
        ("Ann has 7 apples. She gets 2. How many?", "7+2=9", "9 (apples)"),
        ("Who has more?", "7 > 2", "Ann"),
    ]
    rows = [{"question": f"{i} and {i}?", "formula": f"{i}+{i}={2 * i}", "answer": str(2 * i)} for i in range(1000)]
    for name, mine in (("a", rows), ("b", rows[::-1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mine))
        short_form.main([str(tmp_path / f"{name}.jsonl"), "--out", str(tmp_path / name)])
    found = {path.name: path.read_text() for path in (tmp_path / "a").iterdir()}
    assert found == {path.name: path.read_text() for path in (tmp_path / "b").iterdir()}
    lessons, rest = ([json.loads(line) for line in found[f"{name}.jsonl"].splitlines()] for name in ("sft", "rl"))
    assert (len(lessons), len(rest)) == (900, 100) and found["sft.jsonl"].startswith(found["v.jsonl"])
    assert not {row["question"] for row in lessons} & {row["question"] for row in rest}
    assert all(
        row["answer"].endswith(
            f" = {int(row['question'].split()[0]) * 2}. The answer is {int(row['question'].split()[0]) * 2}."
        )
        for row in lessons
    )
    with pytest.raises(SystemExit):
        short_form.main([str(tmp_path / "ASDiv.xml"), "--out", str(tmp_path / "c")])
    assert "1 problems of one equation, expected more than 900" in capsys.readouterr().err


def test_few_labels_and_reviews_that_a_run_can_read(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(short_form, "HELD_OUT", 5)
    rows = [{"question": f"{i} and {i}?", "formula": f"{i}+{i}={2 * i}", "answer": str(2 * i)} for i in range(2, 52)]
    rows += [{"question": f"{i} by {i}?", "formula": f"{i}+{i}={2 * i}", "answer": str(2 * i)} for i in range(3, 31)]
    mawps = [
        {"question": "5  and 5 ?", "answer": "10", "type": "addsub"},  # in ASDiv too
        {"question": "Twice 7 and 0?", "answer": "14 (pies)", "type": "singleop"},
        {"question": "Two steps?", "answer": "14", "type": "multiarith"},
    ]
    for name, mine in (("asdiv", rows), ("mawps", mawps)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mine))
    asked = [str(tmp_path / "asdiv.jsonl"), "--mawps", str(tmp_path / "mawps.jsonl"), "--out", str(tmp_path / "out")]
    short_form.main(asked)
    lessons, reviews, held_out, rest = (
        [json.loads(line) for line in (tmp_path / f"out/{name}.jsonl").read_text().splitlines()]
        for name in ("sft", "reviews", "problems/test", "problems/train")
    )
    assert (len(lessons), len(reviews), len(held_out)) == (64, 256, 5)
    assert {"question": "Twice 7 and 0?", "answer": "14"} in [*held_out, *rest]
    assert not {row["question"] for row in [*lessons, *held_out]} & {row["question"] for row in rest}
    right = 0
    for prompt, review in ((row["messages"][0]["content"], row["messages"][1]["content"]) for row in reviews):
        number = int(re.search(r"Problem: (\d+) (?:and|by)", prompt)[1])
        is_right = f"<answer>{2 * number}</answer>" in prompt
        assert free_review(review, r"Verdict: (\w+)", None).final is is_right
        assert review.startswith(f"{number} + {number} = {2 * number}. ")
        right += is_right
    assert right == 128
    assert short_form.is_small("7 and 5?", "12") and not short_form.is_small("7 and 5?", "120")
    assert not short_form.is_small("7?", "12") and not short_form.is_small("7.5 and 5?", "12")
    (tmp_path / "mawps.jsonl").write_text("[]\n")
    with pytest.raises(SystemExit):
        short_form.main(asked)
    assert "expected rows of question, answer, type" in capsys.readouterr().err
