"""A reader at the page: a run that goes on, its false positives one after the other, an address that is sent, a
comparison."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, needs_browser
from fake_run import evaluation_row, training_row, write_fake_run

from cotrain.reports.places import find_places
from cotrain.reports.view_server import HOST, Viewer, listen

POINTS = "document.querySelector('header.top').textContent"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A run of 20 steps that has not ended."""
    return write_fake_run(tmp_path / "run", steps=20, summary=False, episodes=8)


@pytest.fixture
def address(place: Path) -> Iterator[str]:
    with Viewer(find_places(place), place) as viewer, listen(viewer, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield f"http://{HOST}:{server.server_address[1]}/{viewer.token}/"
        server.shutdown()
        thread.join()


DRAWN = "location.hash.startsWith('#r:' + document.querySelector('.rollout h2').textContent.split(' ').at(-1))"


@pytest.mark.whole
@needs_browser
def test_a_reader_follows_a_run_and_steps_through_its_false_positives(
    place: Path, address: str, tmp_path: Path
) -> None:
    with Browser(tmp_path / "profile") as browser:
        browser.open(address)
        browser.wait(f"{POINTS}.includes('20 of 20 steps') && {POINTS}.includes('measuring the end')")
        browser.wait("document.querySelectorAll('canvas').length > 5")
        with (place / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(training_row(20, 30, {"generator": 15, "verifier": 9})) + "\n")
            file.write(json.dumps(evaluation_row(20, 30)) + "\n")
        browser.wait(f"{POINTS}.includes('21 of 20 steps')")  # a point has come

        browser.click("nav a", "Verifier")
        browser.wait("document.querySelector('.confusion a[href^=\"#rollouts:fooled\"]')")
        browser.click(".confusion a[href^='#rollouts:fooled']")
        browser.wait("document.querySelector('button.kind.fooled[aria-pressed=true]')")
        kinds = browser.run("[...document.querySelectorAll('.rows span.kind')].map((one) => one.textContent)")
        assert len(kinds) > 2 and set(kinds) == {"false positive"}

        browser.click(".rows .at a")
        seen = []
        for _ in range(3):
            browser.wait(DRAWN)
            browser.wait("document.querySelector('.rollout .verdict.off')")  # a verdict that the truth contradicts
            seen.append(browser.run("location.hash"))
            browser.key("n")
            browser.wait(f"location.hash !== {json.dumps(seen[-1])}")
        assert len(set(seen)) == 3
        browser.wait(DRAWN)
        browser.key("p")
        browser.wait(f"location.hash === {json.dumps(seen[-1])}")
        browser.wait(DRAWN)  # one that comes later would forget what was clicked
        browser.click(".rollout .chips button", "advantage")
        shades = (
            "[...document.querySelectorAll('.rollout .tokens .token')].slice(0, 2).map((one) => one.style.background)"
        )
        browser.wait(f"({shades})[0].includes('--a') && ({shades})[1].includes('--b')")  # worth more, worth less
        browser.click(".rollout .chips button", "entropy")
        browser.wait(f"({shades})[0].includes('--b') && !({shades})[1]")  # one nat, none
        told = browser.run("document.querySelector('.rollout .tokens .token').title")
        assert "token 3" in told and "entropy 1 nats" in told
        title = browser.wait("document.querySelector('.rollout h2')?.textContent")
        browser.reload()
        browser.wait(
            f"document.querySelector('.rollout h2')?.textContent === {json.dumps(title)}"
        )  # the address is enough
        assert browser.errors == []


@pytest.mark.whole
@needs_browser
def test_nothing_is_wider_than_a_phone(address: str, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile", 390, 844) as browser:
        browser.size(390, 844, dark=True)
        for screen in ("overview", "verifier", "interaction", "rollouts", "r:16:1:0", "made"):
            browser.open(f"{address}#{screen}")
            browser.wait("document.querySelector('main')?.textContent.length > 200 && !document.querySelector('.wait')")
            assert browser.run("document.documentElement.scrollWidth") <= 390, screen
        assert browser.errors == []


@pytest.mark.whole
@needs_browser
def test_seeds_of_one_recipe_are_bands_over_any_cost(tmp_path: Path) -> None:
    for seed in range(3):
        run = write_fake_run(tmp_path / "runs" / f"seed{seed}", steps=12, episodes=2)
        recipe = json.loads((run / "recipe.json").read_text()) | {"seed": seed}
        (run / "recipe.json").write_text(json.dumps(recipe))
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        for row in rows:
            if "kind" not in row:
                row |= {"generator/flops/sampling": 1e9, "generator/flops/learning": 3e9}
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    root = tmp_path / "runs"
    with Viewer(find_places(root), root) as viewer, listen(viewer, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        with Browser(tmp_path / "profile") as browser:
            browser.open(f"http://{HOST}:{server.server_address[1]}/{viewer.token}/")
            browser.click(".folder a", "tango, 3 seeds")
            browser.wait("document.querySelectorAll('canvas').length > 2")
            axes = browser.run("[...document.querySelectorAll('.bar select option')].map((one) => one.textContent)")
            assert axes == ["batches", "tokens", "FLOPs", "updates of verifier"]  # twelve steps of warm-up
            browser.click("nav a", "Side by side")
            browser.click("a", "open it in its run")
            browser.wait("document.querySelector('.rollout h2')")
            assert browser.errors == []
        server.shutdown()
        thread.join()


@pytest.mark.whole
@needs_browser
def test_a_folder_is_read_on_a_phone(tmp_path: Path) -> None:
    for name in ("first", "a-rather-long-name/of-a-run-within-another-folder"):
        write_fake_run(tmp_path / "runs" / name, steps=4, episodes=1)
    root = tmp_path / "runs"
    with Viewer(find_places(root), root) as viewer, listen(viewer, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        with Browser(tmp_path / "profile", 390, 844) as browser:
            browser.open(f"http://{HOST}:{server.server_address[1]}/{viewer.token}/")
            browser.wait("document.querySelectorAll('.folder a').length > 1")
            assert browser.run("document.documentElement.scrollWidth") <= 390
            heights = browser.run("[...document.querySelectorAll('.folder tbody tr')].map((one) => one.offsetHeight)")
            assert max(heights) < 150, heights  # not one letter a line
            assert browser.errors == []
        server.shutdown()
        thread.join()
