"""The page in a browser: it draws every screen, and nothing that comes from a model, a file or an address becomes markup."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_run import episode, training_row, write, write_fake_run

from cotrain.core.types import Episode, Reward, Trace
from cotrain.disk.ledger import Ledger
from cotrain.report.escape import hidden
from cotrain.view.page import ASSETS, MODULES, page
from cotrain.view.report import documents, write_report
from cotrain.view.runs import Run

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
ACTS = (
    "<script>{x}</script>", "<img src=x onerror={x}>", "<svg onload={x}>", "<svg><script>{x}</script></svg>", "<body onload={x}>",
    "<iframe srcdoc='<script>parent.{x}</script>'>", "<a href='javascript:{x}'>x</a>", "<input autofocus onfocus={x}>",
    "<details open ontoggle={x}>", "<video><source onerror={x}></video>", "<math><mi xlink:href='javascript:{x}'>", "<object data={u}>",
    "<link rel=stylesheet href={u}>", "<img src={u}>", "<meta http-equiv=refresh content='0;url={u}'>", "<base href={u}>",
    "<style>@import '{u}';</style>", "<form action={u}><button autofocus>", "<div style='background:url({u})'>",
    "<script src={u}></script>",
    "<script type=importmap>{{}}</script>",
    "<template><script>{x}</script></template>",
    "<noscript><p title='</noscript><img src=x onerror={x}>'>",
    "${{{x}}} {{{{{x}}}}} #r:0:0:0", "\x1b]52;c;aGk=\x07\x1b[2J\u202etxet\u2066\ud800\u200b",
)  # fmt: skip
BREAKS = (
    "",
    '">',
    "'>",
    "</script>",
    "</style>",
    "-->",
    "]]>",
    "</title>",
    "</textarea>",
    "<!--",
    "\\u003c/script>",
    "`'\"/>&lt;",
)
SEEN = "Z9Z"  # in every payload

AUDIT = """
const tags = new Set(("A ARTICLE B BR BUTTON CANVAS CODE DD DETAILS DIV DL DT FIGCAPTION FIGURE H1 H2 " +
  "H3 HEADER I INPUT KBD LABEL LI MAIN NAV OL OPTION P PRE SECTION SELECT SMALL SPAN SUMMARY TABLE TBODY TD TH THEAD TR UL").split(" "));
const names = new Set(("class style href title type value placeholder open aria-label aria-pressed " +
  "aria-current role scope width height disabled selected").split(" "));
const found = { bad: [], seen: 0, screens: 0, hidden: 0 };
const rest = () => new Promise((done) => setTimeout(done, 30));
function audit(where) {
  found.screens += 1;
  for (const element of document.querySelectorAll("#page *")) {
    if (!tags.has(element.tagName)) found.bad.push(`${where}: <${element.tagName}>`);
    for (const { name, value } of element.attributes) {
      if (!names.has(name)) found.bad.push(`${where}: ${element.tagName} ${name}`);
      if (name === "href" && !value.startsWith("#")) found.bad.push(`${where}: href ${value}`);
      if (/[\\u0000-\\u0008\\u202e\\u2066\\u200b]/.test(value)) found.bad.push(`${where}: ${name} hides a character`);
      if (name === "style" && /url|expression/i.test(value)) found.bad.push(`${where}: style ${value}`);
    }
  }
  const text = document.getElementById("page").textContent;
  const seen = text.split("Z9Z").length - 1;
  found.seen += seen;
  if (where.startsWith("r:") && where in shown && seen < 10) found.bad.push(`${where}: not drawn`);
  if (text.includes("could not be drawn")) found.bad.push(`${where}: broken`);
  found.hidden += /[\\u0000-\\u0008\\u000b-\\u001f\\u202e\\u2066\\u200b\\ud800-\\udbff](?![\\udc00-\\udfff])/.test(text) ? 1 : 0;
}
const details = JSON.parse(document.querySelector("script[data-name=details]").textContent);
const shown = Object.fromEntries(Object.keys(details).map((key) => [`r:${key}`, true]));
await rest(); await rest(); await rest();
const odd = ["r:<img src=x>", "%E0%A4%A"];
for (const at of ["overview", "verifier", "rollouts", "made", ...Object.keys(details).map((key) => `r:${key}`), ...odd]) {
  location.hash = `#${at}`;
  await rest(); await rest();
  for (const one of document.querySelectorAll("details")) one.open = true;
  audit(at);
}
found.pwned = globalThis.pwned ?? 0;
const told = document.createElement("pre");
told.id = "audit";
told.textContent = JSON.stringify(found);
document.body.append(told);
"""


def payloads(beacon: str) -> list[str]:
    made = [f"{start}{SEEN}{act.format(x='window.pwned=1', u=beacon)}" for start in BREAKS for act in ACTS]
    assert len(made) == 300
    return made


@pytest.fixture
def beacon() -> Iterator[tuple[str, list[str]]]:
    """An address, and what was asked of it."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/b", asked
        server.shutdown()


def poisoned(value: Any, text: str) -> Any:
    """Every string and key of a JSON value with the text behind it."""
    if isinstance(value, dict):
        return {**value, **{f"{key}{text}": poisoned(entry, text) for key, entry in value.items()}, text: text}
    if isinstance(value, list | tuple):
        return [poisoned(entry, text) for entry in value]
    return f"{value}{text}" if isinstance(value, str) else value


def poisoned_trace(trace: Trace, text: str, parent: str | None) -> Trace:
    parsed = dict(trace.parsed) | {text: text, "failure": text}
    if trace.parent is None:
        parsed |= {"problem": text, "answer": text, "steps": [[0, 1, text], [1, 2, f"{text} "]], "calls": [text]}
    truth = dict(trace.truth) | {text: text, "step_reasons": [text, text], "gold": text}
    return dataclasses.replace(
        trace, policy=text, group=text, text=text, finish=text, failure=text, parsed=parsed, truth=truth, parent=parent,
        signals=(*trace.signals, Reward(name=text, value=1.0), Reward(name="step", value=0.5, tokens=(0, 1))),
    )  # fmt: skip


def poisoned_episode(step: int, task: int, text: str) -> Episode:
    made = episode(step, 12, task)
    solver, verifier = made.traces
    speech = dataclasses.replace(
        poisoned_trace(solver, text, None), address=dataclasses.replace(solver.address, role=text[:60]), role=text
    )
    return dataclasses.replace(
        made, task_id=text, failure=text, traces=(speech, poisoned_trace(verifier, text, str(speech.address)))
    )


def poisoned_run(directory: Path, texts: list[str]) -> Path:
    write_fake_run(directory, steps=12, episodes=1)
    whole = "".join(texts)
    for name in ("recipe.json", "provenance.json"):
        write(
            directory / name,
            poisoned(json.loads((directory / name).read_text()), whole) | {"name": whole, "description": whole},
        )
    summary = json.loads((directory / "summary.json").read_text())
    for side in ("before", "after"):
        summary[side] |= {f"{text}/pass@1": {"value": 0.5, "low": 0.4, "high": 0.6, "n": 5} for text in texts}
    write(directory / "summary.json", summary)
    updates = {"generator": 0, "verifier": 0}
    rows = []
    for step in range(12):
        row = training_row(step, 12, updates) | {"phase": whole}
        for text in texts:
            row |= {f"{text}/length": 5.0, f"solver/reward/{text}": 0.5, f"{text}/updates": step}
        rows.append(json.dumps(row))
    (directory / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    (directory / "episodes" / "episodes.jsonl.gz").unlink()
    with Ledger(directory / "episodes") as ledger:
        for step in range(12):
            some = texts[25 * step : 25 * step + 25]
            ledger.append(step, [poisoned_episode(step, i, text) for i, text in enumerate(some)])
    return directory


def drawn(path: Path, profile: Path, budget: int = 8000, address: str = "") -> str:
    """The page's elements after its modules have run."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1200,900",
        f"--virtual-time-budget={budget}", "--dump-dom", f"{path.as_uri()}{address}",
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, timeout=300, check=True).stdout.decode(
        "utf-8", errors="replace"
    )


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


def test_a_report_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    path = write_report(write_fake_run(tmp_path, steps=60, episodes=12))
    text = path.read_text()
    assert path.stat().st_size < 5_000_000
    assert "default-src 'none'" in text and "connect-src" not in text and "unsafe-inline" not in text
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", text)
    assert write_report(tmp_path).read_text() == text  # the same run, the same page


def test_rollouts_behind_alarms_are_inside(tmp_path: Path) -> None:
    directory = write_fake_run(tmp_path, steps=60, summary=False, episodes=40)
    rows = [training_row(step, 60, {"generator": 0, "verifier": 0}) | {"gap": step / 60} for step in range(60)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    inside = {name: json.loads(content) for name, content in documents(Run(directory)).items()}
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
    assert "false positive" in drawn(path, tmp_path / "profile", address="#rollouts")
    at = next(iter(json.loads(documents(Run(directory))["details"])))
    one = drawn(path, tmp_path / "profile", address=f"#r:{at}")
    assert "The group, by reward" in one and "says " in one and 'class="token"' in one


@needs_browser
def test_nothing_that_comes_from_outside_can_act(tmp_path: Path, beacon: tuple[str, list[str]]) -> None:
    address, asked = beacon
    run = Run(poisoned_run(tmp_path / "run", payloads(address)))
    content = page("payloads", "test", documents(run))
    path = tmp_path / "page.html"
    path.write_bytes(
        content.replace(b"</body>", f'<script type="module" nonce="test">{AUDIT}</script></body>'.encode())
    )
    text = drawn(path, tmp_path / "profile", budget=60_000)
    told = re.search(r'<pre id="audit">(.*?)</pre>', text, re.DOTALL)
    assert told, text[-2000:]
    found = json.loads(html.unescape(told[1]))
    assert found["bad"] == [] and found["pwned"] == 0 and found["hidden"] == 0
    assert found["screens"] == 306 and found["seen"] > 300 * 40
    assert asked == []


def test_no_character_of_the_file_is_hidden(tmp_path: Path) -> None:
    directory = poisoned_run(tmp_path / "run", payloads("http://127.0.0.1:9/b"))
    text = write_report(directory).read_text()
    body = text[text.index("<body>") : text.index("<script nonce=")]
    assert not any(hidden(char) for char in body if char != "\n")
    assert body.count("<script") == 4 and body.count("</script>") == 4
