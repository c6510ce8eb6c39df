"""``report.md`` of a folder of stages: what a tokenizer, pretraining, tuning, evaluations and runs in it came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotrain.core.verbosity import MAX_CHARS, clock_text
from cotrain.metrics.table import is_headline
from cotrain.reports.compare_markdown import escape_markdown, table_section
from cotrain.reports.guide import number_text
from cotrain.storage.file_ops import replace_file
from cotrain.storage.jsonl import try_read_object
from cotrain.storage.schemas import RESULT

Figure = Mapping[str, Any]  # value, low, high and n, as ``Estimate.to_json`` writes them
NAME = "report.md"
# Fields of the ``result.json`` that pretraining and tuning write; a file of this name without them is somebody else's.
TRAINING_FIELDS = {"stage", "start", "parameters", "tokens", "seconds", "resumed", "validation", "bits_per_byte"}
MOST_FIGURES = 6  # most figures of a suite
RUN_FIGURES = ("pass@1", "greedy", "balanced_accuracy")  # figures of a run in the table; others are below the table


def write_stages_page(folder: Path) -> Path | None:
    """Write ``report.md`` and return its path; None if no folder in ``folder`` holds a finished stage."""
    if not folder.is_dir() or (folder / "recipe.json").exists():
        return None
    stages: list[Stage] = []
    for place in sorted(folder.iterdir()):
        if place.is_dir():
            stages += _stages_in(place)
    if not stages:
        return None
    stages.sort(key=lambda stage: (stage.ended, stage.row, stage.below))

    head = ["stage", "from", "parameters", "tokens", "time", "result"]
    parts = [f"# {escape_markdown(folder.name)}"]
    parts += table_section("Stages, in their order", (head, [stage.row for stage in stages]))
    for stage in stages:
        parts += stage.below
    path = folder / NAME
    replace_file(path, ("\n\n".join(parts) + "\n").encode())
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One finished stage."""

    ended: float  # seconds since 1970
    row: list[str]  # cells of the table, as in ``write_stages_page``
    below: list[str]  # paragraphs below the table


def _stages_in(place: Path) -> list[Stage]:
    """The stages that a folder holds."""
    stages: list[Stage] = []

    result = try_read_object(place / RESULT)
    tokenizer = place / "tokenizer.json"
    if result.keys() >= TRAINING_FIELDS:
        row = _training_row(place.name, result)
        stages.append(_stage_of(place / RESULT, row, _sample_section(place.name, result)))
    elif tokenizer.is_file() and not (place / "config.json").exists():
        vocabulary = try_read_object(tokenizer).get("model", {}).get("vocab", {})
        stages.append(_stage_of(tokenizer, [place.name, "", "", "", "", f"{len(vocabulary)} tokens"], []))

    summary = try_read_object(place / "summary.json")
    if summary.keys() >= {"before", "after"}:
        row = _run_row(place.name, summary)
        stages.append(_stage_of(place / "summary.json", row, _run_section(place.name, summary)))

    for file in sorted(place.glob("suite-*.json")):
        suite = try_read_object(file)
        if "suite" in suite:
            stages.append(_stage_of(file, _suite_row(file, suite), []))
    return stages


def _stage_of(file: Path, row: list[str], below: list[str]) -> Stage:
    return Stage(ended=file.stat().st_mtime, row=row, below=below)


def _training_row(name: str, result: Mapping[str, Any]) -> list[str]:
    figures = [f"{bits:.3f} bits per byte" for bits in result["bits_per_byte"].values()]
    figures += [f"held out {nats:.3f} nats a token" for nats in result["validation"].values()]
    size = number_text(result["parameters"], share=False)
    tokens = number_text(result["tokens"], share=False)
    seconds = clock_text(result["seconds"])
    if result["resumed"]:
        seconds += " since the last resume"
    start = "" if result["start"] == "new" else Path(result["start"]).name
    return [f"{name} ({result['stage']})", start, size, tokens, seconds, "; ".join(figures)]


def _sample_section(name: str, result: Mapping[str, Any]) -> list[str]:
    if not result.get("sample"):
        return []
    quoted = "\n".join(f"> {escape_markdown(line, MAX_CHARS)}" for line in str(result["sample"]).splitlines())
    return [f"## A sample of {escape_markdown(name)}", quoted]


def _suite_row(file: Path, suite: Mapping[str, Any]) -> list[str]:
    figures = [f"core {suite['core']:.3f}"] if "core" in suite else []
    for key, value in list(suite.get("figures", {}).items())[:MOST_FIGURES]:
        figures.append(f"{key} {_short_text(value)}")
    settings = suite.get("settings", {})
    measured = settings.get("model") or settings.get("run") or ""
    what = f"suite {suite.get('suite')}"
    _, _, step = file.stem.partition("-step-")  # as ``cotrain eval --step`` names it
    if step:
        what += f", step {step}"
    return [f"{file.parent.name} ({what})", Path(measured).name, "", "", "", "; ".join(figures)]


def _run_row(name: str, summary: Mapping[str, Any]) -> list[str]:
    figures = []
    for key, before, after in _headlines(summary):
        if key.split("/", 1)[-1] in RUN_FIGURES:
            figures.append(f"{key} {_short_text(before)} → {_short_text(after)}")
    tokens = number_text(summary.get("tokens", 0), share=False)
    return [f"{name} ({summary.get('recipe', 'run')})", "", "", tokens, "", "; ".join(figures)]


def _run_section(name: str, summary: Mapping[str, Any]) -> list[str]:
    """Before and after of the figures that stand first, with intervals, and where the report is."""
    rows = [
        [key, _text_with_interval(before), _text_with_interval(after)] for key, before, after in _headlines(summary)
    ]
    title = f"{name}, held out, with intervals over problems; one seed"
    return [*table_section(title, (["figure", "before", "after"], rows)), f"[Report of the run]({name}/report.html)"]


def _headlines(summary: Mapping[str, Any]) -> list[tuple[str, Figure, Figure]]:
    """The figures that stand first, at the start and at the end."""
    before = summary["before"]
    headlines = []
    for key, after in summary["after"].items():
        if key in before and is_headline(key.split("/", 1)[-1]):
            headlines.append((key, before[key], after))
    return headlines


def _short_text(figure: Figure) -> str:
    value = figure["value"]
    return "undefined" if value is None else f"{value:.3f}"


def _text_with_interval(figure: Figure) -> str:
    low = figure["low"]
    high = figure["high"]
    if low is None or high is None:
        return _short_text(figure)
    return f"{_short_text(figure)} [{low:.3f}, {high:.3f}]"
