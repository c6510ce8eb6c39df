"""The report of a run: one HTML file that needs nothing else, opens on a phone, and lets nothing in or out.

Everything is inside: the style, the charts as SVG, and one small script that the content security policy admits by its
hash. No other script, no request to anywhere, no markup from models or files. A run that was stopped early, or is
still going, gets the report that its files allow.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path

from cotrain.core.errors import RunDirectoryError
from cotrain.core.redact import redacted
from cotrain.disk.files import replace_file
from cotrain.report import curves, episodes, headline, schedule
from cotrain.report.escape import attribute, page
from cotrain.report.guide import number
from cotrain.report.read import Run, read_run
from cotrain.report.style import CSS, SCRIPT

MOST_BYTES = 5_000_000


def write_report(run_dir: Path) -> Path:
    """Write ``run_dir/report.html`` and return its path. Raises RunDirectoryError when there is no such directory,
    DiskError when it cannot be written."""
    if not run_dir.is_dir():
        raise RunDirectoryError(f"no run directory at {run_dir}; give the directory that 'cotrain run' printed")
    run = read_run(run_dir)
    cards = episodes.CARDS
    content = report_page(run, cards).encode("utf-8", errors="backslashreplace")
    while len(content) > MOST_BYTES and cards:
        cards //= 2
        content = report_page(run, cards).encode("utf-8", errors="backslashreplace")
    path = run_dir / "report.html"
    replace_file(path, content)
    return path


def report_page(run: Run, cards: int = episodes.CARDS) -> str:
    """The whole page."""
    meetings = episodes.sample(run, cards)
    stage = schedule.stage_of(run, episodes.who_plays(meetings))
    sections = [
        schedule.section(stage),
        curves.roles(stage),
        curves.health(stage),
        curves.losses(stage),
        episodes.section(meetings),
        _setting(run),
    ]
    name = _text(run, "name") or run.directory.name
    return document(f"cotrain report: {name}", _head(run, name) + "".join(sections))


def document(title: str, body: str) -> str:
    """A page around ready HTML: policy, style, script. ``title`` is escaped here, ``body`` must be already."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy = f"{allowed}; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{attribute(title)}</title><style>{CSS}</style></head>"
        f'<body><main>{body}</main><div id="tip" hidden></div><script>{SCRIPT}</script></body></html>\n'
    )


def _head(run: Run, name: str) -> str:
    facts = [
        _fact("seed", run.summary.get("seed", _setting_value(run, "seed"))),
        _fact("steps", _steps(run)),
        _fact("tokens sampled", run.summary.get("tokens")),
    ]
    paragraphs = [" ".join(p.split()) for p in _text(run, "description").replace("``", "").split("\n\n") if p.strip()]
    about = "".join(f'<p class="about">{page(p, 1200)}</p>' for p in paragraphs[:1])
    if paragraphs[1:]:
        rest = "".join(f'<p class="about">{page(p, 1200)}</p>' for p in paragraphs[1:9])
        about += f"<details><summary>more about this recipe</summary>{rest}</details>"
    notes = "".join(f"<p>{page(note)}.</p>" for note in run.notes)
    return (
        f'<p class="kicker">{" · ".join(["cotrain run", *(f for f in facts if f)])}</p><h1>{page(name, 120)}</h1>'
        + about
        + f'<div class="say">{headline.sentences(run)}</div>'
        + (f'<div class="notes">{notes}</div>' if notes else "")
        + headline.table(run)
    )


def _fact(label: str, value: object) -> str:
    if value is None:
        return ""
    shown = (
        number(value, share=False)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else page(value, 80)
    )
    return f"{page(label)} {shown}"


def _steps(run: Run) -> object:
    done = len(run.training)
    planned = run.recipe.get("steps")
    if isinstance(planned, int) and done and done < planned:
        return f"{done} of {planned}"
    return run.summary.get("steps", done or None)


def _setting_value(run: Run, key: str) -> object:
    settings = run.recipe.get("settings")
    return run.recipe.get(key, settings.get(key) if isinstance(settings, dict) else None)


def _text(run: Run, key: str) -> str:
    value = run.recipe.get(key)
    return value if isinstance(value, str) else ""


def _setting(run: Run) -> str:
    """How it was made: the recipe's settings and the provenance, folded."""
    recipe = {k: v for k, v in run.recipe.items() if k not in ("description", "settings")}
    settings = run.recipe.get("settings")
    if isinstance(settings, dict):
        recipe |= settings
    parts = [("Settings", recipe), ("Provenance", dict(run.provenance))]
    inside = "".join(
        f"<h3>{title}</h3>{headline.pairs([(k, _plain(v)) for k, v in values.items()])}"
        for title, values in parts
        if values
    )
    if not inside:
        return ""
    return f'<section id="setting"><details><summary><h2>How it was made</h2></summary>{inside}</details></section>'


def _plain(value: object) -> str:
    """As text that may be shown to others: settings name files and models by their paths."""
    return redacted(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
