"""What a reader takes from the page is true and said in one way: what came of the run, whose review is shown, steps,
"positive", and claims no wider than their intervals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, needs_browser
from fake_run import episode, write, write_fake_run
from rich.text import Text

from cotrain.cli.why import why
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Trace
from cotrain.reports.compared_runs import folder_row
from cotrain.reports.detail import objectives_in_phase, training_status
from cotrain.reports.places import find_places
from cotrain.reports.run_report import write_report
from cotrain.reports.runs import RunView
from cotrain.reports.top import draw_screen, snapshot
from cotrain.storage.ledger import Ledger

GAP = "\u202f"


def lead_of(directory: Path) -> str:
    run = RunView(directory)
    run.watch_all()
    document = run.overview()
    return " ".join([document["said"], *document["outcome"]]).strip()


def test_the_page_begins_with_what_the_run_was_and_what_held_out_problems_say_of_it(tmp_path: Path) -> None:
    said = lead_of(write_fake_run(tmp_path, steps=40, episodes=1)).replace(GAP, " ")
    assert said.startswith("A generator and a step-wise generative verifier, trained in turn. 40 steps of training ")
    assert "Solver: 34.0 % → 61.9 % of its answers to held-out problems right (+21." in said
    assert "Verifier, in balanced accuracy (chance is 50): 53.1 % → 74.1 % (+" in said
    assert "calls" not in said and "at the end" not in said  # of a gap that held-out problems have no figure of


def test_a_start_is_no_change_and_a_run_of_nothing_has_nothing_to_say(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "same", steps=1, episodes=1)
    summary = json.loads((tmp_path / "same" / "summary.json").read_text())
    write(tmp_path / "same" / "summary.json", summary | {"after": summary["before"]})
    said = lead_of(tmp_path / "same")
    assert "1 step of training" in said and "(no change shown, " in said
    write(tmp_path / "none" / "recipe.json", {"name": "none"}) if (tmp_path / "none").mkdir() is None else None
    assert lead_of(tmp_path / "none") == ""


SCHEDULE = {
    "settings": {
        "schedule": {
            "phases": [
                {"name": "generator", "objectives": ["generator"]},
                {"name": "verifier", "objectives": ["verifier", "nowhere"]},
                {"name": "odd", "objectives": 7},
            ]
        },
        "objectives": {
            "generator": {"policy": "generator", "role": "solver"},
            "verifier": {"policy": "checker", "role": "verifier", "extra_roles": ["critic"]},
        },
    }
}


def test_in_training_is_yes_or_no_with_the_reason() -> None:
    generator, verifier = objectives_in_phase(SCHEDULE, "generator"), objectives_in_phase(SCHEDULE, "verifier")
    worth = {"role": "solver", "advantages": {"generator": [[0.7, 1]]}}
    assert training_status(worth, generator) == "yes"
    assert (
        training_status({**worth, "advantages": {"generator": [[0.0, 4]]}}, generator) == "yes, but its advantage is 0"
    )
    assert training_status({**worth, "failure": "no grade"}, generator) == "no: no grade"
    assert training_status({"role": "solver"}, verifier) == "no: this step trained checker on other turns"
    without = "no: verifier took no advantage from it, as"
    paid = {"role": "critic", "rewards": [["outcome", 1.0, None]]}
    assert training_status(paid, verifier) == f"{without} from a group whose rewards are all equal"
    assert training_status({**paid, "rewards": []}, verifier) == f"{without} it has no reward"
    assert objectives_in_phase(SCHEDULE, "odd") is None and objectives_in_phase({}, "generator") is None
    assert training_status({"role": "solver"}, None) == "no: nothing was learned from it"


def test_a_rollout_knows_the_phase_of_its_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_fake_run(tmp_path, steps=40, episodes=1)  # warm-up, generator … as in SCHEDULE
    recipe = json.loads((tmp_path / "recipe.json").read_text())
    write(tmp_path / "recipe.json", recipe | SCHEDULE)
    found = RunView(tmp_path).rollout(16, 0, 0)  # of a generator's step
    assert found is not None
    assert [trace["learned"] for trace in found["traces"]] == ["yes", "no: this step trained generator on other turns"]
    assert why([str(tmp_path), "16:0:0"]) == 0
    said = capsys.readouterr().out
    assert "rollout 16:0:0, of step 17," in said
    assert "learned from: yes\n" in said and "learned from: no: this step trained generator on other turns\n" in said


def test_no_defect_is_no_line_and_a_policys_figure_is_no_judges(tmp_path: Path) -> None:
    write_fake_run(tmp_path, steps=2, episodes=1)
    summary = json.loads((tmp_path / "summary.json").read_text())
    zero, some = ({"value": value, "low": value, "high": value, "n": 9} for value in (0.0, 0.2))
    for at in ("before", "after"):
        summary[at] |= {"verifier/mcc_undefined": zero, "other/mcc_undefined": some, "verifier/update_sparsity": some}
    write(tmp_path / "summary.json", summary)
    found = {one["key"]: one["spoken"] for one in RunView(tmp_path).overview()["figures"]}
    assert "verifier/mcc_undefined" not in found and "other/mcc_undefined" in found
    assert found["verifier/update_sparsity"] is False and found["verifier/balanced_accuracy"] is True


def test_a_folder_tells_the_interval_of_a_change(tmp_path: Path) -> None:
    write_fake_run(tmp_path / "one", steps=2, episodes=1)
    (place,) = find_places(tmp_path)
    figure = folder_row(place)["figure"]
    change = Estimate.from_json(figure["change"])
    assert figure["key"] == "solver/pass@1" and change.low < figure["change"]["value"] < change.high


def test_a_terminal_counts_the_steps_of_alarms_as_the_run_does(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "cut"})
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "solver/truncated": 0.9, "solver/length": 3}\n')
    shown = snapshot(RunView(tmp_path))
    assert [alarm["step"] for alarm in shown["alarms"]] == [0]  # as it is kept
    told = [str(one) for one in draw_screen(shown).renderables]
    assert any("since step 1:" in line for line in told) and not any("step 0" in line for line in told)


def test_a_terminal_of_80_columns_has_the_whole_advice_of_an_alarm(tmp_path: Path) -> None:
    write(tmp_path / "recipe.json", {"name": "cut", "settings": {"tasks_per_step": 8}})
    rows = [{"step": 0, "solver/truncated": 0.9, "solver/length": 3, "generator/zero_spread_groups": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = snapshot(RunView(tmp_path))
    assert shown["alarms"]
    lines = [str(one) for one in draw_screen(shown, 80).renderables if isinstance(one, Text)]
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(shown["alarms"][-1]["advice"].split()) in " ".join(" ".join(lines).split())


# ---- in a browser


def reviewed(step: int, member: int, right: bool, said: dict[str, list[tuple[bool, float]]]) -> Episode:
    """A solution with reviews of several roles, each (verdict, probability)."""
    whole = episode(step, 40, 3)
    solver, verifier = whole.traces
    at = dataclasses.replace(solver.address, member=member)
    truth = {"correct": right, "step_ok": [True, right, right], "step_reasons": ["", "" if right else "premise", ""]}
    traces: list[Trace] = [dataclasses.replace(solver, address=at, metadata=truth)]
    for role, verdicts in said.items():
        for call, (verdict, score) in enumerate(verdicts):
            place = dataclasses.replace(verifier.address, member=member, role=role, call=call)
            parsed = {"final": verdict, "score": score, "steps": [verdict] * 3}
            traces.append(dataclasses.replace(verifier, address=place, role=role, parent=str(at), findings=parsed))
    return dataclasses.replace(whole, member=member, traces=tuple(traces))


def told_run(directory: Path, fooled: float) -> Path:
    """40 steps of a group of four, two of them right. In a share of the groups a wrong one has the best score, and so
    the choice of the best of n is right with 1/2, 1/2, 0 for n 1, 2, 4; in the others with 1/2, 5/6, 1."""
    write_fake_run(directory, steps=40, episodes=1)
    (directory / "episodes" / "episodes.jsonl.gz").unlink()
    with Ledger(directory / "episodes") as ledger:
        for step in range(40):
            high = step % 10 < 10 * fooled
            score = 0.95 if high else 0.1
            ledger.append(step, [
                reviewed(step, 0, True, {"verifier": [(True, 0.6)], "second": [(True, 0.9)]}),
                reviewed(step, 1, False, {"verifier": [(high, score)], "second": [(False, score)]}),
                reviewed(step, 2, False, {"verifier": [(False, 0.2), (True, 0.3)], "second": [(False, 0.2)] * 2}),
                reviewed(step, 3, True, {"verifier": [(True, 0.5)], "second": [(True, 0.9)]}),
            ])  # fmt: skip
    return write_report(directory)


def text_of(browser: Browser, selector: str) -> Any:
    return browser.wait(f"document.querySelector({json.dumps(selector)})?.innerText")


@pytest.mark.whole
@needs_browser
def test_the_first_screen_tells_the_result_above_the_curves(tmp_path: Path) -> None:
    page = write_report(write_fake_run(tmp_path / "run", steps=60, episodes=2)).as_uri()
    with Browser(tmp_path / "profile", 1280, 800) as browser:
        browser.open(page)
        assert "→" in text_of(browser, "ul.lead")
        top = "document.querySelector({}).getBoundingClientRect().top"
        places = [browser.wait(top.format(json.dumps(one))) for one in ("ul.lead", ".before-after tbody tr", ".chart")]
        assert places == sorted(places) and places[1] < 400
        assert browser.wait(top.format("'.alarm'")) < 400  # beside it
        tops = browser.run(
            "[...document.querySelectorAll('.charts')].map((row) => [...row.querySelectorAll('.uplot')]"
            ".map((one) => Math.round(one.getBoundingClientRect().top))).flat()"
        )
        titles = browser.run("[...document.querySelectorAll('.chart')].map((one) => Math.round(one.offsetTop))")
        assert len(set(tops)) == len(set(titles)) < len(tops)  # plots of a row begin at one height
        text = browser.text()
        assert "steps 10–" in text and "shaded: more" in text
        assert browser.run("document.querySelector('.u-legend .u-series').textContent") == "step60"
        assert browser.errors == []


@pytest.mark.whole
@needs_browser
def test_the_first_page_shows_an_alarm_first_on_a_phone_two_rollouts_and_four_plots(tmp_path: Path) -> None:
    page = write_report(write_fake_run(tmp_path / "run", steps=60, episodes=8)).as_uri()
    with Browser(tmp_path / "profile", 390, 800) as browser:
        browser.open(page)
        browser.wait("document.querySelectorAll('.first-plots canvas').length === 4")
        top = "document.querySelector({}).getBoundingClientRect().top"
        alarm, table = (browser.wait(top.format(json.dumps(one))) for one in (".alarm", ".figures"))
        assert alarm < table
        assert browser.run("document.querySelectorAll('.figures')[0].querySelectorAll('tbody tr').length") <= 4
        assert browser.run("document.querySelector('details.more-plots').open") is False
        browser.click("details.more-plots summary")
        browser.wait("[...document.querySelectorAll('.more-plots canvas')].every((one) => one.clientWidth > 250)")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth") and browser.errors == []


ORANGE = """(() => {
  const chart = [...document.querySelectorAll('.chart')].find((one) => one.ariaLabel.includes('outcome'));
  const canvas = chart.querySelector('canvas'), above = canvas.height * 0.7; // without the schedule
  const dots = canvas.getContext('2d').getImageData(0, 0, canvas.width, above).data;
  let orange = 0;
  for (let at = 0; at < dots.length; at += 4) orange += dots[at] > 170 && dots[at + 2] < 30 && dots[at + 3] > 200;
  return orange;
})()"""


@pytest.mark.whole
@needs_browser
def test_a_line_under_another_is_seen_and_curves_are_means_over_neighbours(tmp_path: Path) -> None:
    page = write_report(write_fake_run(tmp_path / "run", steps=60, episodes=2)).as_uri()
    with Browser(tmp_path / "profile", 1280, 800) as browser:
        browser.open(page)
        browser.wait("document.querySelectorAll('canvas').length > 5")
        assert "means over 7 neighbouring points" in browser.text()
        # outcome and truth have the same values, and the truth is drawn last: orange is seen in its gaps
        seen = browser.run(ORANGE)
        assert seen > 100, seen
        found = browser.run(
            "import('view/charts').then((c) => [c.smoothing(23), c.smoothing(60), c.smoothed([1, null, 3, 5], 3)])"
        )
        assert found == [1, 7, [1, None, 4, 4]]


@pytest.mark.whole
@needs_browser
def test_an_address_opens_the_review_that_it_names_and_buttons_say_whose_they_are(tmp_path: Path) -> None:
    page = told_run(tmp_path / "run", 0.5).as_uri()
    with Browser(tmp_path / "profile") as browser:
        pressed = ".rollout .chips button[aria-pressed=true]"
        for named, shown in (
            ("verifier:1", "verifier 2 ≠ says right"),
            ("verifier:0", "verifier 1 says wrong"),
            ("second:1", "second 2 says wrong"),
            ("", "verifier 2 ≠ says right"),  # nothing named: the one that the truth contradicts
        ):
            browser.open(f"{page}#r:30:3:2{':' * bool(named)}{named}")
            browser.wait(f"document.querySelector('{pressed}')?.innerText === {json.dumps(shown)}")
            opened = browser.run(
                "[...document.querySelectorAll('details.trace[open] > summary > b')].map((b) => b.innerText)"
            )
            assert opened == ["solver", *[named.partition(":")[0]] * bool(named)]
        text = browser.text()
        assert "step 31," in text and "premise: a number is not the value" in text
        assert "in training" in text and "unless" not in text
        rows = browser.run("[...document.querySelectorAll('.rows .at')].map((one) => one.innerText)")
        assert "step 31 30:3:2" in rows
        assert browser.errors == []


@pytest.mark.whole
@needs_browser
def test_positive_means_one_thing_and_a_fall_is_claimed_only_beyond_its_interval(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        page = told_run(tmp_path / "often", 1.0).as_uri()
        browser.open(f"{page}#interaction")
        assert "Past n 1 its choice gets worse" in text_of(browser, "b.poor")
        assert "of the same 40 groups: −" in browser.text()
        browser.open(f"{told_run(tmp_path / 'seldom', 0.3).as_uri()}#interaction")
        browser.wait("document.body.innerText.includes('of the same 40 groups')")
        assert browser.run("document.querySelector('b.poor')") is None and "No fall with n is shown" in browser.text()
        browser.open(f"{page}#verifier")
        browser.wait("document.querySelector('.confusion td.bad')")
        text = browser.text()
        assert "Positive is right: a false positive is wrong and called right" in text
        assert "precision: " not in text and "steps 1 to 40" in text and "1 reviews" not in text
        assert browser.errors == []
