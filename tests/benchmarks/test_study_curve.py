"""What a study's arms end at, drawn over errors or labels."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import study_curve


def study(path: Path, ends: dict[str, float]) -> Path:
    arms = {
        arm: {
            "before": {"value": 0.25, "low": 0.2, "high": 0.3, "n": 5},
            "after": {"value": end, "low": end - 0.1, "high": end + 0.1, "n": 5},
        }
        for arm, end in ends.items()
    }
    path.write_text(json.dumps({"parts": {"short & long": {"arms": arms}}}))
    return path


def test_a_better_end_is_drawn_higher_and_more_errors_further_right(tmp_path: Path) -> None:
    found = study(tmp_path / "study.json", {"wrong 20": 0.3, "truth": 0.5})
    assert study_curve.main(["errors", str(found), "--out", str(tmp_path / "curve.svg")]) == 0
    picture = ElementTree.parse(tmp_path / "curve.svg").getroot()
    texts = [element.text for element in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"0 %", "20 %", "short & long"} <= set(texts)
    lines = [element.get("d", "") for element in picture.iter("{http://www.w3.org/2000/svg}path")]
    (x0, y0), (x1, y1) = next(
        [tuple(map(float, point.split())) for point in d[1:].split("L")] for d in lines if "L" in d
    )
    assert x0 < x1 and y0 < y1  # pixels count from the top


def test_arms_are_lines_over_the_number_of_labels(tmp_path: Path) -> None:
    near, few = tmp_path / "near.json", study(tmp_path / "few.json", {"none": 0.3, "untaught": 0.4, "learning": 0.6})
    arms = {"none": {"before": {"value": 0.2}, "after": {"value": 0.25, "low": 0.2, "high": 0.3, "n": 5}}}
    near.write_text(json.dumps({"parts": {"32": {"arms": arms}, "1": {"arms": arms}}}))
    alone, verifier = study_curve.curves_by_arm([str(near), f"4={few}"])
    assert (alone.label, list(alone.ends), alone.start) == ("labels alone", [1, 4, 32], 0.25)
    assert verifier.ends[4].value == 0.4 and list(verifier.ends) == [4]
    assert study_curve.main(["labels", str(near), f"4={few}", "--out", str(tmp_path / "curve.svg")]) == 0
    picture = ElementTree.parse(tmp_path / "curve.svg").getroot()
    texts = {e.text: float(e.get("x", 0)) for e in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert texts["4"] - texts["1"] == pytest.approx(2 / 3 * (texts["32"] - texts["4"]), abs=0.2)  # by doublings


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["errors", "nowhere.json"], "expected the study.json"),
        (["errors", "deep.json"], "nested too deeply; expected the study.json"),
        (["errors", "other.json"], "expected the arms 'truth' and 'wrong N'"),
        (["labels", "study.json"], "expected parts that are named after numbers of labels"),
        (["labels", "4=foreign.json"], "none of the arms none, vote"),
        (["errors", "study.json", "--labels", "a", "b"], "--labels: found 2, expected one for each of 1 lines"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: list[str], what: str
) -> None:
    monkeypatch.chdir(tmp_path)
    study(tmp_path / "study.json", {"truth": 0.5})
    study(tmp_path / "other.json", {"truth": 0.5, "frozen": 0.4})
    study(tmp_path / "foreign.json", {"frozen": 0.4})
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(SystemExit) as stopped:
        study_curve.main([*words, "--out", "x.svg"])
    assert stopped.value.code == 2 and what in capsys.readouterr().err and not (tmp_path / "x.svg").exists()
