"""The report of a run: what it says, that it survives torn and missing files, and that nothing in it can act."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fake_run import episode, write, write_fake_run

from cotrain.core.address import Address
from cotrain.core.errors import RunDirectoryError
from cotrain.core.types import Episode, Reward, Trace
from cotrain.disk.ledger import Ledger
from cotrain.report import episodes as cards
from cotrain.report.compare_page import compare_page
from cotrain.report.escape import hidden
from cotrain.report.html import MOST_BYTES, write_report
from cotrain.report.read import Row, read_run
from cotrain.report.schedule import trained_ranges
from cotrain.report.style import SCRIPT

PAYLOADS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg/onload=alert(1)>", "</style><script>x()</script>",
    "</title><script>x()</script>", "--><iframe src=//evil.example>", "<a href=javascript:alert(1)>x</a>", "&lt;script&gt;",
    "]]><script>1</script>", "<link rel=stylesheet href=//evil.example>", "<meta http-equiv=refresh content=0>", "\x00<b>",
    "\u202e\u2066txet\u2069", "\x1b]52;c;aGk=\x07", "\x1b[2J", "\u200b\u200d\ufeff", "<base href=//evil.example>", "\ud800",
    "<form action=//evil.example>", '" style="background:url(//evil.example)', "` onmouseover=alert(1) `", "{{7*7}}${7*7}",
    "<math><mtext></table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror=alert(1)&gt;'>",
)  # fmt: skip
POISON = "".join(PAYLOADS)
TAGS = """html head meta title style body main p div h1 h2 h3 b small strong em i span section figure figcaption svg path rect
    table thead tbody tr th td details summary article header footer ol li pre button dl dt dd script"""
ATTRIBUTES = """lang charset http-equiv content name id class hidden style role scope colspan type title x y d width height
    viewbox preserveaspectratio aria-label aria-hidden aria-pressed data-label data-filter data-value data-when data-kind"""


class Inspector(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, content: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += content
        elif self._inside != "style":
            self.text.append(content)

    def handle_comment(self, content: str) -> None:
        raise AssertionError(f"a comment in the page: {content[:60]!r}")


def inspect(text: str) -> Inspector:
    """Assert that a page can do nothing but what we wrote, and return its elements."""
    page = Inspector(text)
    assert page.scripts == [SCRIPT]
    assert not any(hidden(c) for c in text if c not in "\n\t")
    metas = [attrs for tag, attrs in page.elements if tag == "meta"]
    policy = next(attrs["content"] for attrs in metas if attrs.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert policy is not None and policy.startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-"
    )
    assert digest in policy and len([a for a in metas if "http-equiv" in a]) == 1
    for tag, attrs in page.elements:
        assert tag in TAGS.split(), tag
        for name, value in attrs.items():
            assert name in ATTRIBUTES.split(), (tag, name)
            if name == "style":
                assert re.fullmatch(r"(top|left):-?[\d.]+%", value or ""), value
            elif name == "class":
                assert re.fullmatch(r"[a-z0-9 -]+", value or ""), value
    assert "url(" not in text.split("</style>")[0].split("<style>")[1] and "@import" not in text.split("</style>")[0]
    return page


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = write_fake_run(tmp_path_factory.mktemp("run"), steps=48, episodes=12)
    return directory, write_report(directory).read_text()


def test_the_page_says_what_happened(finished: tuple[Path, str]) -> None:
    page = inspect(finished[1])
    words = re.sub("[ \n]+", " ", "".join(page.text))
    assert "The solver answers 61.9\u202f% of the problems right (pass@1); before training it was 34.0" in words
    assert "That is a gain of 27.9 points" in words and "A coin would have 50" in words
    assert "≈ no change shown" in words  # right solutions accepted: 81.0 before, 78.0 after
    assert "Trained: generator at 24 of 48 steps, verifier at 24 of 48 steps." in words
    assert "What the solver earns, and what is true" in words and "chance" in words
    assert "■ look here" in words and "● fine" in words
    assert len(finished[1].encode()) < 1_000_000


def test_a_change_that_the_run_paired_is_what_is_shown(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=24, episodes=1)
    summary = json.loads((directory / "summary.json").read_text())
    gain = {"value": -0.03125, "low": -0.05, "high": -0.0125, "n": 490}  # apart, it is not shown: see above
    write(directory / "summary.json", summary | {"change": {"verifier/true_positive_rate": gain}})
    words = re.sub("[ \n]+", " ", "".join(inspect(write_report(directory).read_text()).text))
    assert "▼ −3.1 points −5.0 to −1.2 points" in words and "≈ no change shown" not in words


def test_the_same_run_gives_the_same_page(finished: tuple[Path, str]) -> None:
    assert write_report(finished[0]).read_text() == finished[1]


def test_cards_cover_the_run_and_every_kind(finished: tuple[Path, str]) -> None:
    drawn = cards.sample(read_run(finished[0]))
    assert len(drawn) == cards.CARDS
    assert {m.when for m in drawn} == set(cards.WHEN)
    assert {"fooled", "alarm", "caught", "agreed"} <= {m.kind for m in drawn}
    assert [m.step for m in drawn] == sorted(m.step for m in drawn)
    assert len({str(m.speech.address) for m in drawn}) == len(drawn)
    assert finished[1].count("<article") == cards.CARDS


def meeting(said: bool, correct: bool, verdicts: list[bool]) -> cards.Meeting:
    at = Address(step=3, task=0, member=0, role="solver", call=0)
    common = {"group": "g", "prompt_ids": (1,), "token_ids": (2,), "logprobs": (-1.0,), "finish": "stop"}
    speech = Trace(
        address=at, role="solver", policy="generator", version=2, text="t", signals=(Reward(name="outcome", value=0.0),),
        parsed={"problem": "P?", "steps": [[0, 1, "one"], [1, 2, "two"]], "answer": "5"},
        truth={"correct": correct, "step_ok": [True, correct], "step_reasons": ["", "" if correct else "arithmetic"],
               "first_wrong": None if correct else 1, "gold": "4"}, **common,
    )  # fmt: skip
    review = Trace(
        address=dataclasses.replace(at, role="verifier"), role="verifier", policy="checker", version=9, text="r",
        signals=(), parsed={"steps": verdicts, "final": said}, parent=str(at), **common,
    )  # fmt: skip
    kind = cards._kind(speech, (review,))
    return cards.Meeting(step=3, when="early", kind=kind, speech=speech, reviews=(review,))


def test_a_card_shows_truth_verdict_and_first_error() -> None:
    fooled = meeting(said=True, correct=False, verdicts=[True, True])
    assert fooled.kind == "fooled"
    html = cards.card(fooled)
    steps = html.split("<li")[1:]
    assert 'class="step ok"' in steps[0] and "says right" in steps[0] and "≠" not in steps[0] and "▲" not in steps[0]
    assert (
        'class="step bad"' in steps[1] and "≠ says right" in steps[1] and "▲" in steps[1] and "arithmetic" in steps[1]
    )
    assert "answer <b>5</b>" in html and "gold answer <b>4</b>" in html
    assert "generator v2" in html and "checker v9" in html and "outcome 0" in html
    assert meeting(said=False, correct=True, verdicts=[True, False]).kind == "alarm"
    assert meeting(said=False, correct=False, verdicts=[True, False]).kind == "caught"
    assert meeting(said=True, correct=True, verdicts=[True, True]).kind == "agreed"


def with_rows(directory: Path, **series: list[float]) -> Path:
    """The run again, with these metrics (``__`` for a slash) in its training rows."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        if "kind" not in row:
            row |= {key.replace("__", "/"): values[row["step"]] for key, values in series.items()}
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return directory


def test_alarms_stand_in_the_health_section(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=40, episodes=6)
    falling, rising_ = [0.6 - i / 100 for i in range(40)], [0.3 + i / 100 for i in range(40)]
    role = "<img src=x onerror=alert(1)>"
    with_rows(directory, solver__accuracy=falling, solver__reward__outcome=rising_, **{f"{role}/truncated": [0.5] * 40})
    page = inspect(write_report(directory).read_text())
    words = re.sub("[ \n]+", " ", "".join(page.text))
    section = words[words.index("Healthalarm") : words.index("The shaded band")]
    assert "■ alarm reward hacking solver/reward/outcome" in section and "accuracy -0.11 since its best" in section
    assert f"■ alarm cut off {role}/truncated9 to 390.50 healthy: at most 0.2" in section
    assert "rollouts 20:0:0:solver:0, 20:4:0:solver:0, 16:0:0:solver:0" in section  # the ledger has every fourth step
    assert "the 14 bands that are watched" in section and "· no data" in section and "● kept" in section


def test_without_an_alarm_the_page_says_so(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=8, episodes=1)
    words = "".join(inspect(write_report(directory).read_text()).text)
    assert "● no alarm Every health band was kept." in words and "■ alarm" not in words


def test_a_judge_is_drawn_on_what_never_changes(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=24, episodes=1)
    assert "keep what it knew" not in write_report(directory).read_text()
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for row in lines:
        if "kind" in row:
            row |= {"eval/verifier/fixed/true_positive_rate": 0.7, "eval/verifier/fixed/balanced_accuracy": 0.6}
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    page = inspect(write_report(directory).read_text())
    words = "".join(page.text)
    assert "Does the verifier keep what it knew?" in words and "right solutions accepted, of the start" in words
    assert "The verifier/fixed" not in words


def test_schedule_follows_update_counts_and_falls_back_to_losses() -> None:
    def row(step: int, **values: float) -> Row:
        return Row(step=step, phase="", evaluation=False, values={k.replace("__", "/"): v for k, v in values.items()})

    counted = [row(0, a__updates=1), row(1, a__updates=1, a__grad_norm=0.0), row(2, a__updates=2), row(3, b__loss=0.1)]
    assert trained_ranges(counted) == {"a": [(0.0, 1.0), (2.0, 3.0)], "b": [(3.0, 4.0)]}


@pytest.mark.parametrize("missing", ["recipe.json", "provenance.json", "summary.json", "metrics.jsonl", "episodes"])
def test_any_part_may_be_missing(tmp_path: Path, missing: str) -> None:
    directory = write_fake_run(tmp_path, steps=8, episodes=4)
    (directory / missing).rename(tmp_path / "elsewhere")
    text = write_report(directory).read_text()
    inspect(text)
    assert (f"{missing} is missing" in text) is missing.endswith(("json", "jsonl"))


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=30, summary=False, episodes=2)
    write(directory / "before.json", {"solver/pass@1": {"value": 0.25, "low": 0.2, "high": 0.3, "n": 64}})
    with (directory / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 99, "solver/accur')
    text = write_report(directory).read_text()
    inspect(text)
    assert "The run has no final evaluation" in text and "30 step(s) are recorded" in text
    assert "25.0\u202f%" in text and "1 line(s) of metrics.jsonl could not be read" in text


def test_an_empty_directory_and_no_directory(tmp_path: Path) -> None:
    assert "Nothing was recorded yet" in write_report(tmp_path).read_text()
    with pytest.raises(RunDirectoryError, match="no run directory"):
        write_report(tmp_path / "nothing")


def test_garbage_in_every_file(tmp_path: Path) -> None:
    lines = ["[]", "nonsense", '{"step": NaN}', '{"step": 1, "a/b": NaN, "a/length": "x", "a/kl": 1e999, "a/tokens": true}',
             '{"step": 2, "phase": 7, "a/length": 5, "eval/x": 1}', "[" * 100_000, '{"step": ' + "9" * 5000 + "}"]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    write(tmp_path / "summary.json", {"before": [1], "after": {"a": None, "b": "x", "c/d": {"value": 3}, "e": {}}})
    (tmp_path / "recipe.json").write_bytes(b"\xff\xfe{")
    write(tmp_path / "provenance.json", [1, 2])
    (tmp_path / "episodes").mkdir()
    (tmp_path / "episodes" / "episodes.jsonl.gz").write_bytes(b"not a ledger at all, only some bytes" * 9)
    inspect(write_report(tmp_path).read_text())


def poisoned(value: Any) -> Any:
    """The same JSON with the poison at the end of every string, and as one more key of every object."""
    if isinstance(value, str):
        return value + POISON
    if isinstance(value, list):
        return [poisoned(v) for v in value]
    if isinstance(value, dict):
        return {k: poisoned(v) for k, v in value.items()} | {POISON: POISON}
    return value


def poisoned_trace(trace: Trace, parent: str | None) -> Trace:
    return dataclasses.replace(
        trace, role=trace.role + POISON, policy=POISON, group=POISON, text=POISON, finish=POISON, failure=POISON,
        signals=tuple(Reward(name=s.name + POISON, value=s.value) for s in trace.signals), parent=parent,
        parsed=poisoned(dict(trace.parsed)), truth=poisoned(dict(trace.truth)),
    )  # fmt: skip


def poisoned_episode(original: Episode) -> Episode:
    solver, verifier = original.traces
    at = dataclasses.replace(solver.address, role=f"solver{POISON}")
    return dataclasses.replace(
        original, task_id=POISON, failure=POISON,
        traces=(dataclasses.replace(poisoned_trace(solver, None), address=at), poisoned_trace(verifier, str(at))),
    )  # fmt: skip


def test_nothing_that_comes_from_outside_can_act(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=24, episodes=1)
    for name in ("recipe.json", "provenance.json"):
        write(directory / name, poisoned(json.loads((directory / name).read_text())))
    summary = json.loads((directory / "summary.json").read_text())
    for side in ("before", "after"):
        summary[side] |= {f"{key}{POISON}": value for key, value in summary[side].items()}
        summary[side] |= {f"{POISON}/{POISON}/pass@1": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 5}, POISON: 0.5}
    write(directory / "summary.json", summary | {"seed": POISON, "tokens": POISON})
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    endings = ("accuracy", "balanced_accuracy", "length", "reward/outcome", "kl", "updates", "parse_failure/x", "loss")
    for row in rows:
        row |= {f"{POISON}/{e}": 0.5 for e in endings} | {f"failures/{POISON}": 1, f"solver/reward/{POISON}": 0.5}
        row["phase"] = f"{row.get('phase')}{POISON}"
    (directory / "metrics.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (directory / "episodes" / "episodes.jsonl.gz").unlink()
    with Ledger(directory / "episodes") as ledger:
        for step in range(12):
            ledger.append(step, [poisoned_episode(episode(step, 12, i)) for i in range(4)])
    page = inspect(write_report(directory).read_text())
    words = "".join(page.text)
    assert words.count("<script>alert(1)</script>") > 100 and "U+202E" in words and "U+001B" in words


def test_a_comparison_is_as_safe() -> None:
    curve = [{"spent": {"batches": x, POISON: 1}, "figures": {POISON: 0.1, "solver/pass@1": 0.2}} for x in (0, 5)]
    run = {"seed": POISON, "curve": curve, "flops": {POISON: 3}, "problems": {POISON: {POISON: 0.5}},
           "before": {POISON: 0.1}, "after": {POISON: 0.5, f"{POISON}/{POISON}/x": {"value": 0.5}}}  # fmt: skip
    page = inspect(compare_page({"recipes": {POISON: {"seeds": [run]}, f"b{POISON}": {"seeds": [run]}}}))
    assert "".join(page.text).count("<script>alert(1)</script>") > 5
    for odd in ({}, {"recipes": None}, {"recipes": {"a": 3}}, {"recipes": {"a": {"seeds": [None, {"curve": [[1]]}]}}}):
        inspect(compare_page(odd))


def test_a_flood_stays_under_five_megabytes(tmp_path: Path) -> None:
    flood = "\u202e" * 5_000  # written out in full, these twelve solutions would be 40 MB of HTML
    parsed = {"problem": flood, "steps": [[0, 1, flood]] * 20, "answer": flood}
    with Ledger(tmp_path / "episodes") as ledger:
        for step in range(3):
            played = [episode(step, 3, i) for i in range(4)]
            speeches = [dataclasses.replace(e.traces[0], text=flood, parsed=parsed) for e in played]
            ledger.append(
                step, [dataclasses.replace(e, traces=(s, e.traces[1])) for e, s in zip(played, speeches, strict=True)]
            )
    path = write_report(tmp_path)
    assert 100_000 < path.stat().st_size < MOST_BYTES
    assert path.read_text().count("<article") == 12
