"""The walk that docs/viewer.md promises: three rollouts that fool the verifier, click by click."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

import pytest
from browser import Browser, needs_browser
from fake_run import write_fake_run

from cotrain.reports.places import find_places
from cotrain.reports.view_server import HOST, Viewer, listen

PAGE = Path(__file__).resolve().parents[2] / "docs" / "viewer.md"


@pytest.mark.whole
@needs_browser
def test_three_rollouts_that_fool_the_verifier_within_a_minute(tmp_path: Path) -> None:
    walk = re.search(r"## Three rollouts that fool the verifier\n(.+?)\n## ", PAGE.read_text(), re.DOTALL)
    assert walk and len(re.findall(r"^\d\. ", walk[1], re.MULTILINE)) == 5
    place = write_fake_run(tmp_path / "run", steps=20, episodes=8)
    with Viewer(find_places(place), place) as viewer, listen(viewer, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        with Browser(tmp_path / "profile") as browser:
            began, acts = time.monotonic(), 1  # the address
            browser.open(f"http://{HOST}:{server.server_address[1]}/{viewer.token}/")  # 1
            browser.click("nav a", "Verifier")  # 2
            browser.wait("document.querySelector('.confusion td.bad small').textContent.includes('false negatives')")
            wrong = "document.querySelectorAll('.confusion')[0].querySelectorAll('td.bad')[1]"
            browser.wait(f"{wrong}.textContent.includes('false positives')")
            browser.run(f"{wrong}.querySelector('a').click()")
            browser.wait("document.querySelector('button.kind.fooled[aria-pressed=true]')")  # 3
            choose = "const s = document.querySelector('.bar select'); s.value = 'believed';"
            browser.run(f"{{ {choose} s.dispatchEvent(new Event('change', {{bubbles: true}})); }}")
            browser.wait("document.querySelector('.bar select').selectedOptions[0].textContent === 'most believed'")
            browser.wait("document.querySelector('.rows tbody td:nth-child(5)').textContent === '1 of 1'")
            browser.click(".rows .at a")  # 4
            acts += 4  # Verifier, the number, the order, the first rollout
            seen = []
            for _ in range(3):
                browser.wait("document.querySelector('.rollout .verdict.off')?.textContent.startsWith('≠ says right')")
                browser.wait("document.querySelector('.rollout .first')?.textContent.startsWith('▲')")
                seen.append(str(browser.run("location.hash")))
                if len(seen) < 3:
                    browser.key("n")  # 5
                    acts += 1
                    browser.wait(f"!location.hash.startsWith({seen[-1]!r})")
                    browser.wait(
                        "location.hash.startsWith('#r:' + document.querySelector('.rollout h2').textContent"
                        ".split(' ').at(-1))"
                    )
            seconds = time.monotonic() - began
            assert len(set(seen)) == 3 and acts == 7 and browser.errors == []
            print(f"{acts} acts, {seconds:.1f} s")
        server.shutdown()
        thread.join()
