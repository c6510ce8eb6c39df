"""Three hundred texts that would like to be more than text, in every field of a run and of a comparison."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fake_run import episode, training_row, write, write_fake_run

from cotrain.core.types import Episode, Reward, Trace
from cotrain.storage.ledger import Ledger

ACTS = (
    "<script>{x}</script>", "<img src=x onerror={x}>", "<svg onload={x}>", "<svg><script>{x}</script></svg>",
    "<body onload={x}>",
    "<iframe srcdoc='<script>parent.{x}</script>'>", "<a href='javascript:{x}'>x</a>", "<input autofocus onfocus={x}>",
    "<details open ontoggle={x}>", "<video><source onerror={x}></video>",
    "<math><mi xlink:href='javascript:{x}'>", "<object data={u}>",
    "<link rel=stylesheet href={u}>",
    "<img src={u}>", "<meta http-equiv=refresh content='0;url={u}'>", "<base href={u}>",
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
  "H3 HEADER I INPUT KBD LABEL LI MAIN NAV OL OPTION P PRE SECTION SELECT SMALL SPAN SUMMARY " +
  "TABLE TBODY TD TH THEAD TR UL").split(" "));
const names = new Set(("class style href title type value placeholder open aria-label aria-pressed " +
  "aria-current role scope width height disabled selected colspan").split(" "));
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
  const unseen = /[\\u0000-\\u0008\\u000b-\\u001f\\u202e\\u2066\\u200b\\ud800-\\udbff](?![\\udc00-\\udfff])/;
  found.hidden += unseen.test(text) ? 1 : 0;
}
const kept = (name) => JSON.parse(document.querySelector(`script[data-name=${name}]`)?.textContent ?? "{}");
const run = document.querySelector("script[data-name=overview]") !== null;
const rollouts = run ? Object.keys(kept("details")).map((key) => `r:${key}`) : [];
const shown = Object.fromEntries(rollouts.map((key) => [key, true]));
const first = ["overview", "verifier", "interaction", "rollouts", "rollouts:all;error=0;steps=0-9", "made"];
const screens = run ? [...first, ...rollouts]
  : ["result", "curves", "settings", ...(kept("sides").problems ?? []).map((one, at) => `sides:${at}`),
     ...(kept("together").parts ?? []).map((one) => `study:${one.name}`)];
await rest(); await rest(); await rest();
for (const at of [...screens, "r:<img src=x>", "%E0%A4%A", "open:0:<b>"]) {
  location.hash = `#${at}`;
  await rest(); await rest();
  for (const one of document.querySelectorAll("details")) one.open = true;
  for (const one of document.querySelectorAll("p > button")) one.click();
  await rest();
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


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
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
    parsed = dict(trace.findings) | {text: text, "failure": text}
    if trace.parent is None:
        parsed |= {"problem": text, "answer": text, "steps": [[0, 1, text], [1, 2, f"{text} "]], "calls": [text]}
    truth = dict(trace.metadata) | {text: text, "step_reasons": [text, text], "gold": text}
    return dataclasses.replace(
        trace, policy=text, group=text, text=text, finish=text, failure=text, findings=parsed,
        metadata=truth, parent=parent,
        rewards=(*trace.rewards, Reward(name=text, value=1.0), Reward(name="step", value=0.5, tokens=(0, 1))),
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
    write(directory / "attack.json", poisoned_attack(texts))
    places = [{"run": whole, "seed": 0, "step": step} for step in (0, 5)]
    cells = [
        {"generator": g, "verifier": v, "balanced_accuracy": {"value": 0.5, "low": 0.4, "high": whole, "n": whole}}
        for g in (0, 1)
        for v in (0, 1)
    ]
    write(
        directory / "xplay.json",
        {"split": whole, "generators": places, "verifiers": places, "cells": cells, "problems": whole},
    )
    write(
        directory / "reviewed.json",
        {
            "role": whole,
            "generators": [{**p, "n": whole} for p in places],
            "verifiers": [{"model": whole}, *places[1:]],
            "cells": cells,
            "pairs": [{"generator": 0, "verifier": v, "reference": r, "n": whole} for v, r in ((1, 0), (0, None))],
        },
    )
    (directory / "episodes" / "episodes.jsonl.gz").unlink()
    with Ledger(directory / "episodes") as ledger:
        for step in range(12):
            some = texts[25 * step : 25 * step + 25]
            ledger.append(step, [poisoned_episode(step, i, text) for i, text in enumerate(some)])
    return directory


def poisoned_attack(texts: list[str]) -> dict[str, Any]:
    """As ``cotrain attack`` writes it, every text a payload, and some numbers too."""
    whole, rate = "".join(texts), {"value": 0.5, "low": 0.4, "high": 0.6, "n": 9}
    families = [
        {
            "family": text, "meaning": text, "counts": text, "strings": text, "asked": 9, "refused": text,
            "unread": text,
            "false_positive_rate": rate, "change": {**rate, "low": text},
            "examples": [dict.fromkeys(("string", "task", "problem", "solution", "shown", "review"), text)],
        }
        for text in texts[:60]
    ]  # fmt: skip
    named = dict.fromkeys(("run", "role", "policy", "model", "split", "cotrain"), whole)
    return named | {"step": whole, "families": families, "total": {"false_positive_rate": rate}, "ordinary": {}}


def poisoned_comparison(directory: Path, texts: list[str]) -> Path:
    """A finished comparison of three arms, on figures and with settings that are named by payloads."""
    arms = ["".join(texts[at : at + 2]) for at in range(0, 300, 100)]

    def run(seed: int) -> dict[str, Any]:
        named = {f"{text}/pass@1": 0.3 for text in texts[::20]} | {
            "solver/pass@1": 0.4,
            "verifier/balanced_accuracy": 0.5,
        }
        curve = [
            {
                "spent": {"batches": x, "tokens": 9 * x},
                "figures": {name: v + x / 100 + seed / 50 for name, v in named.items()},
            }
            for x in (0, 5, 10)
        ]
        return {"seed": seed, "curve": curve, "before": named, "after": {name: v + 0.1 for name, v in named.items()}}

    settings = {"learning_rate": {texts[7]: 1e-4, "b": 2e-4}, "lr_warmup": {"a": 5}, "temperature": {texts[8]: 1.0},
                "problems": texts[9], "group_size": texts[10], "test_problems": texts[11],
                "evaluation_group_size": 4}  # fmt: skip
    recipes = {arm: {"settings": settings, "seeds": [run(seed) for seed in range(3)]} for arm in arms}
    directory.mkdir()
    write(directory / "compare.json", {"recipes": recipes, "equal": "batches", "batches": texts[12], "settings": texts})
    return directory


def poisoned_sides(run: Any, arms: list[str], texts: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """One problem a payload, with a rollout of a poisoned run in each arm."""
    problems, details = [], {}
    for at, text in enumerate(texts):
        step, task = divmod(at, 25)
        found = {"step": step, "task": task, "members": [[0, 1, 0]], "run": None}
        problems.append({"problem": text, "apart": 1.0, "arms": dict.fromkeys(arms[:2], found)})
        for arm in (0, 1):
            details[f"{arm}|{step}:{task}:0"] = run.rollout(step, task, 0, tokens=0)
    return {"seed": 0, "reading": 0, "all": len(problems), "problems": problems}, details
