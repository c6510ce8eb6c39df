"""One run as JSON documents for a page: overview, verifier, rollouts, one rollout."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, RunDirectoryError
from cotrain.core.redact import redact_text
from cotrain.core.statistics import Estimate, independent_difference
from cotrain.core.verbosity import count_of, first_sentence
from cotrain.metrics.alarms import BANDS, applicable_bands, with_examples
from cotrain.metrics.starved import ENOUGH_PROBLEMS
from cotrain.metrics.table import is_headline, limits_of, table_rank
from cotrain.reports import guide, headline
from cotrain.reports.curves import Curves, describe_metrics
from cotrain.reports.detail import models_of, objectives_in_phase, reward_weights, rollout_detail
from cotrain.reports.follow import RECIPE, STOPPED, read_json_object
from cotrain.reports.guide import display_order, parse_estimates
from cotrain.reports.rollouts import Json, Rollouts
from cotrain.reports.showcase import choose_showcase
from cotrain.runs.foreign_run import FOREIGN
from cotrain.storage.ledger import WRONG_SHAPE_ERRORS
from cotrain.storage.schemas import check_path

MOST_ALARMS = 40
OTHER_RESULTS = ("attack", "xplay", "reviewed")  # NAME.json, written by other commands


def _tasks_per_step(recipe: Mapping[str, Any]) -> int:
    """The number of problems in a step, from ``recipe.json``; if it is unknown, as many as alarms need."""
    settings = recipe.get("settings")
    tasks = settings.get("tasks_per_step") if isinstance(settings, Mapping) else None
    return tasks if isinstance(tasks, int) else ENOUGH_PROBLEMS


class RunView:
    """A run directory, which may still be written: each method first reads what is new."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read_recipe()
        self.curves = Curves(directory, problems=_tasks_per_step(self.recipe))
        self.rollouts = Rollouts(directory, self.weights)
        self._lock = threading.Lock()
        self.stopped = ""  # error that ended the reading in the background, which ``Viewer`` does; "" for none
        self._examples: dict[tuple[str, str, int], list[str]] = {}  # (alarm, metric, step) → addresses of rollouts

    def _read_recipe(self) -> None:
        self._recipe_written = _modified_time(self.directory / RECIPE)
        self.recipe, self._recipe_note = read_json_object(self.directory / RECIPE)
        self.is_foreign = FOREIGN in self.recipe  # another trainer's rollouts: no tokens, no learning
        self.models = models_of(self.recipe)
        self.weights = reward_weights(self.recipe)

    def _read_new(self) -> None:
        """Read new rows of metrics. The recipe is read again if it has changed: a resumed run may have more steps, and
        another run may have been begun in this directory."""
        recipe_written = _modified_time(self.directory / RECIPE)
        is_missing = recipe_written == 0  # for a moment, while it is replaced
        if recipe_written != self._recipe_written and not is_missing:
            self._read_recipe()
            self.rollouts.weigh_by(self.weights)
        self.curves.read_new()

    def watch_all(self) -> None:
        """Read all rows and look for alarms in them."""
        with self._lock:
            self._read_new()
            self.curves.watch_rows(len(self.curves.rows))

    def read_new(self) -> None:
        """Read what is new, without rollouts."""
        with self._lock:
            self._read_new()

    def stamp(self) -> dict[str, int]:
        """Numbers of which one changes when there is something new to draw."""
        self.read_new()
        return {
            "steps": len(self.curves.rows),
            "evaluations": len(self.curves.held_out),
            "rows": len(self.rollouts.rows),
            "generation": self.rollouts.generation,
            "episodes": self.rollouts.episodes + self.rollouts.odd,
            "watched": int(self.curves.unwatched_count == 0),
            "ended": int((self.directory / "summary.json").is_file()),
            "others": sum(_modified_time(self.directory / f"{name}.json") for name in OTHER_RESULTS),
            "stopped": _modified_time(self.directory / STOPPED),
            "recipe": self._recipe_written,
        }

    def watch_rows(self, rows: int = 200) -> bool:
        """Look for alarms in some more rows; False when all have been looked at."""
        with self._lock:
            return self.curves.watch_rows(rows)

    def overview(self) -> dict[str, Any]:
        """The document of a run's first page, without rollouts."""
        with self._lock:
            self._read_new()
            return self._build_overview()

    def _build_overview(self) -> dict[str, Any]:
        provenance, _ = read_json_object(self.directory / "provenance.json")
        ended = (self.directory / "summary.json").is_file()
        summary: dict[str, Any] = {}
        summary_note = ""
        if ended:
            summary, summary_note = read_json_object(self.directory / "summary.json")
        before, _ = read_json_object(self.directory / "before.json")
        stopped, _ = read_json_object(self.directory / STOPPED)
        notes = [note for note in (self._recipe_note, summary_note) if note]
        if stopped and not ended:
            stop_reason = str(stopped.get("error"))
            if not stop_reason.startswith("stopped"):
                stop_reason = f"stopped after step {stopped.get('steps')}: {stop_reason}"
            notes.insert(0, stop_reason)
        if self.curves.damaged_lines:
            lines = count_of(self.curves.damaged_lines, "line")
            notes.append(f"metrics.jsonl: left out {lines} that cannot be read")
        if self.rollouts.odd:
            notes.append(f"ledger: left out {count_of(self.rollouts.odd, 'episode')} of another shape")
        if self.stopped:
            notes.append(f"reading this run stopped: {self.stopped}")
        columns = self.curves.chart_columns()
        evaluations = self.curves.evaluation_columns()
        roles = display_order({name.split("/")[0] for name in self.curves.names if name.endswith("/length")})
        values = {**columns["series"], **evaluations["series"]}
        bands = applicable_bands(self.curves.last.keys()) if self.curves.last else []
        measured = figure_rows(parse_estimates(summary.get("before", before)), summary, roles)
        return {
            "said": describe_run(self.recipe, columns),
            "outcome": headline.outcome_sentences(measured),
            "showcase": self.showcase(measured),
            "run": {
                "name": str(self.recipe.get("name") or self.directory.name),
                "directory": self.directory.name,
                "description": str(self.recipe.get("description") or ""),
                "seed": self.recipe.get("seed"),
                "planned": self.recipe.get("steps"),
                "ended": bool(summary),
                "stopped": bool(stopped) and not ended,
                "measuring": self._what_is_measured(is_over=ended or bool(stopped)),
                "settings": redact_texts(self.recipe.get("settings", {})),
                "arguments": redact_texts((self.recipe.get("origin") or {}).get("arguments", {})),
                "provenance": redact_texts(provenance),
            },
            "notes": notes,
            "roles": roles,
            "alarms": self._alarm_rows(),
            "unwatched": self.curves.unwatched_count,
            "bands": {"all": len(BANDS), "watched": [band.name for band in bands]},
            "training": columns,
            "evaluations": evaluations,
            "processes": self.curves.processes.mean_rows(),
            "metrics": describe_metrics(list(values), roles, values),
            "figures": measured,
        }

    def showcase(self, figures: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Two rollouts for the first page, among those that have been read: a wrong answer next to a right one."""
        return choose_showcase(self.rollouts.rows, fooled=headline.is_fooled(figures))

    def _what_is_measured(self, *, is_over: bool) -> str:
        """Which evaluation an unfinished run is busy with: "start", "end", or "" while it trains."""
        if is_over or self.is_foreign or not self.recipe:
            return ""
        finished_steps = len(self.curves.rows)
        if finished_steps == 0 and not (self.directory / "before.json").is_file():
            return "start"
        planned = self.recipe.get("steps")
        return "end" if isinstance(planned, int) and finished_steps >= planned else ""

    def _alarm_rows(self) -> list[dict[str, Any]]:
        rows = []
        for alarm in self.curves.alarms[:MOST_ALARMS]:
            key = (alarm.band, alarm.key, alarm.step)
            if key not in self._examples:
                example_alarm = with_examples(alarm, self.rollouts.ledger.read)
                self._examples[key] = list(example_alarm.examples)
            rows.append({**alarm.to_json(), "examples": self._examples[key]})
        return rows

    def verifier_document(self) -> dict[str, Any]:
        """Return the counts of rollouts, and the results of `cotrain attack` and `cotrain xplay` where they were
        run."""
        other_results = {}
        for name in OTHER_RESULTS:
            result, _ = read_json_object(self.directory / f"{name}.json")
            other_results[name] = redact_texts(result) or None
        return {**self.rollouts.verdict_counts(), **other_results}

    def rollout(self, step: int, task: int, member: int, *, tokens: int = 64) -> dict[str, Any] | None:
        """One rollout; None where there is none."""
        episode = self.rollouts.find_episode(step, task, member)
        if episode is None:
            return None
        with self._lock:
            self.curves.read_new()
            objectives = objectives_in_phase(self.recipe, self.curves.phase_at(step))
        try:
            if self.is_foreign:
                return foreign_rollout(rollout_detail(episode, self.models, self.weights, objectives, tokens=0))
            return rollout_detail(episode, self.models, self.weights, objectives, tokens=tokens)
        except (ValueError, *WRONG_SHAPE_ERRORS):  # a field that only this page reads has another shape
            return None

    @property
    def place(self) -> str:
        """Where the run is: its directory, or the first file of another trainer's rollouts."""
        files = self.recipe[FOREIGN].get("files") if self.is_foreign else None
        return redact_text(str(files[0])) if files else str(self.directory)


def foreign_rollout(rollout: dict[str, Any]) -> dict[str, Any]:
    """A rollout of another trainer. Its lengths are in words, and whether it was learned from is unknown."""
    for trace in rollout["traces"]:
        trace["learned"] = "another program trained on it, or not: its file does not say"
    return rollout | {"unit": "word"}


def _modified_time(path: Path) -> int:
    """When a file was written; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def figure_rows(before: dict[str, Estimate], summary: Json, roles: Sequence[str]) -> list[dict[str, Any]]:
    """Held-out figures before and after training, in the order of the table, headlines first."""
    after = parse_estimates(summary.get("after"))
    paired = parse_estimates(summary.get("change"))  # differences, paired by problem
    rows = []
    for key in {**before, **after}:
        name = guide.parse_metric_name(key, roles)
        values = [figures[key].value for figures in (before, after) if key in figures]
        if name.metric.endswith("_undefined") and not any(values):
            continue  # it counts undefined cases, and there were none
        low, high = limits_of(name.metric)
        change = paired.get(key)
        if change is None and key in before and key in after:
            change = independent_difference(after[key], before[key]).clip_to(low - high, high - low)
        rows.append({
            "key": key,
            "headline": is_headline(name.metric) and not name.split,
            "before": before[key].to_json() if key in before else None,
            "after": after[key].to_json() if key in after else None,
            "change": change.to_json() if change else None,
            **describe_metrics([key], roles, {key: values})[key],
        })  # fmt: skip

    order = display_order(str(row["who"]) for row in rows)
    rows.sort(key=lambda row: (order.index(row["who"]), not row["headline"], row["split"], table_rank(row["name"])))
    return _with_reading_aids(rows)


def _with_reading_aids(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each figure with "lead" (its place among the first ones, or None), "direction" and "better" (which way is
    better), and "worse_because"."""
    leads = headline.lead_keys(rows)
    with_signs = []
    for row in rows:
        with_direction = {**row, "direction": headline.direction_words(row)}
        with_signs.append({**with_direction, "better": headline.better_sign(with_direction)})

    with_aids = []
    for row in with_signs:
        lead = leads.index(row["key"]) if row["key"] in leads else None
        with_aids.append({**row, "lead": lead, "worse_because": headline.explain_worse(row, with_signs)})
    return with_aids


def describe_run(recipe: Json, columns: Json) -> str:
    """A run in two sentences: the first sentence of the recipe's description, and who was trained for how long."""
    about = first_sentence(str(recipe.get("description") or "").replace("``", ""))
    sentences = [about.rstrip(".:")]

    trained = " and ".join(policy for policy, values in columns["trained"].items() if any(values))
    steps = f"{columns['rows']} step{'' if columns['rows'] == 1 else 's'}"
    if trained:
        sentences.append(f"{steps} of training {trained}")
    elif columns["rows"]:
        sentences.append(steps)
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def open_run(directory: Path) -> RunView:
    """Raises RunDirectoryError for what is no run directory, or cannot be read."""
    check_path(directory)
    try:
        return RunView(directory)
    except CotrainError as error:
        raise RunDirectoryError(str(error), code=error.code) from error


def redact_texts(value: Any) -> Any:
    """A JSON value for others to see: its texts without API keys and without paths of the home directory."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {key: redact_texts(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [redact_texts(inner) for inner in value]
    return value
