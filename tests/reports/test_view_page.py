"""The page in a browser: it draws every screen, and nothing that comes from a model, a file or an address becomes
markup."""

from __future__ import annotations

import dataclasses
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from browser import drawn, needs_browser
from fake_run import episode, trace, training_row, write, write_fake_run
from payloads import AUDIT, listening, payloads, poisoned_comparison, poisoned_run, poisoned_sides

from cotrain.core.seeding import Address
from cotrain.core.verbosity import is_hidden
from cotrain.reports.compared_runs import study_document
from cotrain.reports.comparison_report import comparison_documents, write_comparison_page
from cotrain.reports.detail import dump_json
from cotrain.reports.page import ASSETS, MODULES, render_page
from cotrain.reports.places import comparison_at
from cotrain.reports.run_report import report_documents, write_report
from cotrain.reports.runs import RunView
from cotrain.storage.ledger import Ledger


def test_modules_never_make_markup_from_text() -> None:
    for name in MODULES:
        source = (ASSETS / f"{name}.js").read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "dangerouslySetInnerHTML",
            "document.write",
            "eval(",
            "Function(",
        ):
            assert word not in source, (name, word)


@pytest.mark.whole
def test_a_report_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    path = write_report(write_fake_run(tmp_path, steps=60, episodes=12))
    text = path.read_text()
    assert path.stat().st_size < 5_000_000
    assert "default-src 'none'" in text and "connect-src" not in text and "unsafe-inline" not in text
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert write_report(tmp_path).read_text() == text  # the same run, the same page


@pytest.mark.whole
def test_rollouts_behind_alarms_are_inside(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=60, summary=False, episodes=40)
    rows = [training_row(step, 60, {"generator": 0, "verifier": 0}) | {"gap": step / 60} for step in range(60)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inside = {name: json.loads(content) for name, content in report_documents(RunView(directory)).items()}
    examples = [at for alarm in inside["overview"]["alarms"] for at in alarm["examples"]]
    assert examples
    for at in examples:
        assert ":".join(at.split(":")[:3]) in inside["details"]
    assert inside["rows"]["counts"]["all"] == 15 * 40 and len(inside["details"]) == 400


def test_a_flood_stays_under_five_megabytes(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "flood"})
    flood = "\u202e" * 20_000
    with Ledger(tmp_path / "episodes") as ledger:
        for step in range(40):
            made = episode(step, 40, 0)
            ledger.append(step, [dataclasses.replace(made, traces=(dataclasses.replace(made.traces[0], text=flood),))])
    assert 1_000_000 < write_report(tmp_path).stat().st_size < 5_000_000


@pytest.mark.whole
@needs_browser
def test_every_screen_is_drawn(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path / "run", steps=40, episodes=6)
    path = write_report(directory)
    overview = drawn(path, tmp_path / "profile")
    assert (
        'aria-label="alarms"' in overview
        and "<canvas" in overview
        and "What the solver earns, and what is true" in overview
    )
    assert "balanced accuracy" in drawn(path, tmp_path / "profile", address="#verifier")
    listed = drawn(path, tmp_path / "profile", address="#rollouts")
    assert "false positive" in listed and "<th>role</th>" not in listed
    at = next(iter(json.loads(report_documents(RunView(directory))["details"])))
    one = drawn(path, tmp_path / "profile", address=f"#r:{at}")
    assert "The group, by reward" in one and "says " in one and 'class="token"' in one
    asks = Address(step=40, task=0, member=0, role="searcher", call=0)
    search = trace(asks, "searcher", "generator", 40, "<search> pens</search>", None, {"searched": "pens"}, {}, [])
    with Ledger(directory / "episodes") as ledger:
        ledger.append(40, [dataclasses.replace(episode(40, 41, 0), traces=(search,))])
    listed = drawn(write_report(directory), tmp_path / "profile", address="#rollouts")
    assert "<th>role</th>" in listed and "<td>searcher</td>" in listed


def audited(inside: dict[str, bytes], place: Path) -> dict[str, Any]:
    """What a page with this inside is made of, on every screen."""
    content = render_page("payloads", "test", inside)
    path = place / "page.html"
    path.write_bytes(
        content.replace(b"</body>", f'<script type="module" nonce="test">{AUDIT}</script></body>'.encode())
    )
    text = drawn(path, place / "profile", budget=90_000)
    told = re.search(r'<pre id="audit">(.*?)</pre>', text, re.DOTALL)
    assert told, text[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(told[1]))
    assert found["bad"] == [] and found["pwned"] == 0 and found["hidden"] == 0
    return found


@pytest.mark.whole
@needs_browser
def test_nothing_that_comes_from_outside_can_act(tmp_path: Path) -> None:
    with listening() as (address, asked):
        found = audited(report_documents(RunView(poisoned_run(tmp_path / "run", payloads(address)))), tmp_path)
        assert found["screens"] == 309 and found["seen"] > 300 * 40
        assert asked == []


@pytest.mark.whole
@needs_browser
def test_nothing_in_a_comparison_or_study_can_act(tmp_path: Path) -> None:
    with listening() as (address, asked):
        texts = payloads(address)
        place = comparison_at(poisoned_comparison(tmp_path / "compare", texts), "".join(texts))
        assert place is not None and len(place.arms) == 3
        inside = comparison_documents(place)
        together = json.loads(inside["together"])
        run = RunView(poisoned_run(tmp_path / "run", texts))
        sides, details = poisoned_sides(run, [arm["label"] for arm in together["arms"]], texts)
        together["arms"][0]["runs"] = [{"seed": 0, "number": None, "steps": 3, "planned": texts[0], "ended": False}]
        found = audited(
            {"together": dump_json(together), "sides": dump_json(sides), "details": dump_json(details)}, tmp_path
        )
        assert found["screens"] == 306 and found["seen"] > 300 * 20
        study = dict.fromkeys(("measure", "study", "hypothesis", "sha256", "began"), "".join(texts)) | {
            "git": {"committed": False, "words": texts[0]}, "gate": {"asked": texts[1]}, "parts": {},
        }  # fmt: skip
        found = audited({"together": dump_json(study_document(study, dict.fromkeys(texts[:20], together)))}, tmp_path)
        assert found["seen"] > 300 and asked == []


@pytest.mark.whole
@needs_browser
def test_every_screen_of_a_comparison_is_drawn(tmp_path: Path) -> None:
    path = write_comparison_page(poisoned_comparison(tmp_path / "compare", [f"m{at}" for at in range(300)]))
    assert path.stat().st_size < 5_000_000
    result = drawn(path, tmp_path / "profile")
    assert "Figures at the end of each run" in result and "the others are compared with it" in result
    curves = drawn(path, tmp_path / "profile", address="#curves")
    assert curves.count("<canvas") > 3 and "in points, minus" in curves
    assert "Chromium" not in result and "No run has begun" in drawn(path, tmp_path / "profile", address="#sides")


@pytest.mark.whole
def test_no_character_of_the_file_is_hidden(tmp_path: Path) -> None:
    directory = poisoned_run(tmp_path / "run", payloads("http://127.0.0.1:9/b"))
    text = write_report(directory).read_text()
    body = text[text.index("<body>") : text.index("<script nonce=")]
    assert not any(is_hidden(char) for char in body if char != "\n")
    assert body.count("<script") == 4 and body.count("</script>") == 4


def test_a_word_that_is_wider_than_the_page_is_broken() -> None:
    """Such as a setting's name of three thousand letters, which made a page of 46,000 pixels."""
    rules = re.findall(r"^body \{([^}]*)\}", (ASSETS / "page.css").read_text(), re.MULTILINE)
    assert any("overflow-wrap: break-word" in rule for rule in rules)
