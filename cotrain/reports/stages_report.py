"""``report.md`` of a folder of stages: what a tokenizer, pretraining, tuning, evaluations and runs in it came to."""

from __future__ import annotations

from collections.abc import Mapping
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
# Fields of a training's ``result.json``; a file of this name without them is somebody else's.
OF_TRAINING = {"stage", "start", "parameters", "tokens", "seconds", "resumed", "validation", "bits_per_byte"}
MOST_FIGURES = 6  # most figures of a suite
OF_RUNS = ("pass@1", "greedy", "balanced_accuracy")  # in the table; more of a run is below it


def write_stages_page(folder: Path) -> Path | None:
    """Write ``report.md`` and return its path; None where no folder in it holds a stage. A stage is where it was
    finished; a run that goes on is not there yet."""
    if not folder.is_dir() or (folder / "recipe.json").exists():
        return None
    stages = sorted(found for place in sorted(folder.iterdir()) if place.is_dir() for found in _stages_in(place))
    if not stages:
        return None
    parts = [f"# {escape_markdown(folder.name)}"]
    parts += table_section(
        "Stages, in their order",
        (["stage", "from", "parameters", "tokens", "time", "result"], [row for _, row, _ in stages]),
    )
    parts += [text for _, _, more in stages for text in more]
    path = folder / NAME
    replace_file(path, ("\n\n".join(parts) + "\n").encode())
    return path


def _stages_in(place: Path) -> list[tuple[float, list[str], list[str]]]:
    """When each stage of a folder ended, its row, and what is below the table."""
    stages: list[tuple[float, list[str], list[str]]] = []
    if (result := try_read_object(place / RESULT)).keys() >= OF_TRAINING:
        stages.append(
            (_time_of(place / RESULT), _training_row(place.name, result), _sample_section(place.name, result))
        )
    elif (place / "tokenizer.json").is_file() and not (place / "config.json").exists():
        words = len(try_read_object(place / "tokenizer.json").get("model", {}).get("vocab", {}))
        stages.append((_time_of(place / "tokenizer.json"), [place.name, "", "", "", "", f"{words} tokens"], []))
    if (summary := try_read_object(place / "summary.json")).keys() >= {"before", "after"}:
        stages.append(
            (_time_of(place / "summary.json"), _run_row(place.name, summary), _run_section(place.name, summary))
        )
    for file in sorted(place.glob("suite-*.json")):
        if "suite" not in (suite := try_read_object(file)):
            continue
        stages.append((_time_of(file), _suite_row(place.name, suite), []))
    return stages


def _time_of(path: Path) -> float:
    return path.stat().st_mtime


def _training_row(name: str, result: Mapping[str, Any]) -> list[str]:
    figures = [f"{bits:.3f} bits per byte" for bits in result["bits_per_byte"].values()]
    figures += [f"held out {nats:.3f} nats a token" for nats in result["validation"].values()]
    size, tokens = (number_text(result[key], share=False) for key in ("parameters", "tokens"))
    seconds = clock_text(result["seconds"]) + (" since the last resume" if result["resumed"] else "")
    start = "" if result["start"] == "new" else Path(result["start"]).name
    return [f"{name} ({result['stage']})", start, size, tokens, seconds, "; ".join(figures)]


def _sample_section(name: str, result: Mapping[str, Any]) -> list[str]:
    if not result.get("sample"):
        return []
    quoted = "\n".join(f"> {escape_markdown(line, MAX_CHARS)}" for line in str(result["sample"]).splitlines())
    return [f"## A sample of {escape_markdown(name)}", quoted]


def _suite_row(place: str, suite: Mapping[str, Any]) -> list[str]:
    figures = [f"core {suite['core']:.3f}"] if "core" in suite else []
    for key, value in list(suite.get("figures", {}).items())[:MOST_FIGURES]:
        figures.append(f"{key} {_short_text(value)}")
    settings = suite.get("settings", {})
    of = settings.get("model") or settings.get("run") or ""
    return [f"{place} (suite {suite.get('suite')})", Path(of).name, "", "", "", "; ".join(figures)]


def _run_row(name: str, summary: Mapping[str, Any]) -> list[str]:
    figures = [
        f"{key} {_short_text(before)} → {_short_text(after)}"
        for key, before, after in _headlines(summary)
        if key.split("/", 1)[-1] in OF_RUNS
    ]
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
    before, after = summary["before"], summary["after"]
    return [
        (key, before[key], value)
        for key, value in after.items()
        if key in before and is_headline(key.split("/", 1)[-1])
    ]


def _short_text(figure: Figure) -> str:
    value = figure["value"]
    return "undefined" if value is None else f"{value:.3f}"


def _text_with_interval(figure: Figure) -> str:
    bounds = [figure[side] for side in ("low", "high")]
    has_interval = all(bound is not None for bound in bounds)
    return _short_text(figure) + (f" [{bounds[0]:.3f}, {bounds[1]:.3f}]" if has_interval else "")
