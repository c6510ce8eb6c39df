"""One run as the documents that a page asks for: overview, verifier, rollouts, one rollout."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, RunDirectoryError
from cotrain.core.redact import redacted
from cotrain.core.statistics import Estimate, difference
from cotrain.disk.ledger import ODD
from cotrain.metrics.alarms import BANDS, watched, with_examples
from cotrain.metrics.table import is_headline, limits_of, rank
from cotrain.pages import guide
from cotrain.pages.curves import Curves, described
from cotrain.pages.detail import detail, due_in, models_of, weights_of
from cotrain.pages.follow import object_of
from cotrain.pages.places import RECIPE, STOPPED
from cotrain.pages.read import estimates, in_order
from cotrain.pages.rollouts import Json, Rollouts

MOST_ALARMS = 40
LATELY = 10  # points that "at the end" is the mean of
TRIED = ("attack", "xplay", "reviewed")  # NAME.json, written by other commands


class Run:
    """A run directory, read as far as it goes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.recipe, self._recipe_note = object_of(directory / RECIPE)
        self.models, self.weights = models_of(self.recipe), weights_of(self.recipe)
        self.curves = Curves(directory)
        self.rollouts = Rollouts(directory, self.weights)
        self._lock = threading.Lock()
        self.stopped = ""  # why nothing more of it is read in the background
        self._examples: dict[tuple[str, str, int], list[str]] = {}

    def watch_all(self) -> None:
        """Read all rows and look for alarms in them."""
        with self._lock:
            self.curves.read()
            self.curves.watch(len(self.curves.rows))

    def stamp(self) -> list[int]:
        """Changes when there is something new to draw."""
        with self._lock:
            self.curves.read()
        ended = (self.directory / "summary.json").is_file()
        rollouts, watched = self.rollouts, self.curves.unwatched == 0
        return [
            len(self.curves.rows),
            len(self.curves.held_out),
            len(rollouts.rows),
            rollouts.generation,
            rollouts.episodes + rollouts.odd,
            int(watched),
            int(ended),
            sum(_changed(self.directory / f"{name}.json") for name in TRIED),
            _changed(self.directory / STOPPED),
        ]

    def watch(self, rows: int = 200) -> bool:
        """Look for alarms in some more rows; False when all have been looked at."""
        with self._lock:
            return self.curves.watch(rows)

    def overview(self) -> dict[str, Any]:
        """All but rollouts."""
        with self._lock:
            self.curves.read()
            return self._overview()

    def _overview(self) -> dict[str, Any]:
        provenance, _ = object_of(self.directory / "provenance.json")
        ended = (self.directory / "summary.json").is_file()
        summary, torn = object_of(self.directory / "summary.json") if ended else ({}, "")
        before, _ = object_of(self.directory / "before.json")
        stopped, _ = object_of(self.directory / STOPPED)
        notes = [note for note in (self._recipe_note, torn) if note]
        if stopped and not ended:
            said = str(stopped.get("error"))
            notes.insert(
                0, said if said.startswith("stopped") else f"stopped after step {stopped.get('steps')}: {said}"
            )
        if self.curves.damaged:
            lines = "1 line" if self.curves.damaged == 1 else f"{self.curves.damaged} lines"
            notes.append(f"metrics.jsonl: left out {lines} that cannot be read")
        if odd := self.rollouts.odd:
            notes.append(f"ledger: left out {'1 episode' if odd == 1 else f'{odd} episodes'} of another shape")
        if self.stopped:
            notes.append(f"reading this run stopped: {self.stopped}")
        columns, evaluations = self.curves.columns(), self.curves.evaluations()
        roles = in_order({name.split("/")[0] for name in self.curves.names if name.endswith("/length")})
        values = {**columns["series"], **evaluations["series"]}
        bands = watched(self.curves.last.keys()) if self.curves.last else []
        measured = figures(estimates(summary.get("before", before)), summary, roles)
        return {
            "said": describe_run(self.recipe, columns, measured, describe_pay(columns["series"], roles, self.weights)),
            "run": {
                "name": str(self.recipe.get("name") or self.directory.name),
                "directory": self.directory.name,
                "description": str(self.recipe.get("description") or ""),
                "seed": self.recipe.get("seed"),
                "planned": self.recipe.get("steps"),
                "ended": bool(summary),
                "stopped": bool(stopped) and not ended,
                "settings": shown(self.recipe.get("settings", {})),
                "arguments": shown((self.recipe.get("origin") or {}).get("arguments", {})),
                "provenance": shown(provenance),
            },
            "notes": notes,
            "roles": roles,
            "alarms": self._alarms(),
            "unwatched": self.curves.unwatched,
            "bands": {"all": len(BANDS), "watched": [band.name for band in bands]},
            "training": columns,
            "evaluations": evaluations,
            "processes": self.curves.processes.rows(),
            "metrics": described(list(values), roles, values),
            "figures": measured,
        }

    def _alarms(self) -> list[dict[str, Any]]:
        found = []
        for alarm in self.curves.alarms[:MOST_ALARMS]:
            key = (alarm.band, alarm.key, alarm.step)
            if key not in self._examples:
                shown = with_examples(alarm, self.rollouts.ledger.read)
                self._examples[key] = list(shown.examples)
            found.append({**alarm.json(), "examples": self._examples[key]})
        return found

    def judged(self) -> dict[str, Any]:
        """What is counted of rollouts, and what `cotrain attack` and `cotrain xplay` found, where they were run."""
        tried = {name: shown(object_of(self.directory / f"{name}.json")[0]) or None for name in TRIED}
        return {**self.rollouts.judged(), **tried}

    def rollout(self, step: int, task: int, member: int, *, tokens: int = 64) -> dict[str, Any] | None:
        """One rollout; None where there is none."""
        found = self.rollouts.find(step, task, member)
        if found is None:
            return None
        with self._lock:
            self.curves.read()
            due = due_in(self.recipe, self.curves.phase_at(step))
        try:
            return detail(found, self.models, self.weights, due, tokens=tokens)
        except (ValueError, *ODD):  # of what is read for this one rollout alone
            return None


def _changed(path: Path) -> int:
    """When a file was written; 0 where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def figures(before: dict[str, Estimate], summary: Json, roles: Sequence[str]) -> list[dict[str, Any]]:
    """Held-out figures before and after training, in the order of the table, headlines first."""
    after, paired = estimates(summary.get("after")), estimates(summary.get("change"))
    found = []
    for key in {**before, **after}:
        name = guide.take_apart(key, roles)
        both = [e[key].value for e in (before, after) if key in e]
        if name.metric.endswith("_undefined") and not any(both):
            continue  # nothing is undefined
        low, high = limits_of(name.metric)
        change = paired.get(key)
        if change is None and key in before and key in after:
            change = difference(after[key], before[key]).within(low - high, high - low)
        found.append({
            "key": key,
            "headline": is_headline(name.metric) and not name.split,
            "before": before[key].json() if key in before else None,
            "after": after[key].json() if key in after else None,
            "change": change.json() if change else None,
            **described([key], roles, {key: both})[key],
        })  # fmt: skip
    order = in_order(str(entry["who"]) for entry in found)
    found.sort(key=lambda e: (order.index(e["who"]), not e["headline"], e["split"], rank(e["name"])))
    return found


def describe_run(recipe: Json, columns: Json, measured: Sequence[Mapping[str, Any]], paid: str) -> str:
    """What a run was and what came of it: its recipe's first sentence; who was trained, start → end with the interval
    of the change, and what was paid beside what is true."""
    about = " ".join(str(recipe.get("description") or "").partition("\n\n")[0].replace("``", "").split())
    first = about.partition(". ")[0].rstrip(".:")
    trained = " and ".join(policy for policy, values in columns["trained"].items() if any(values))
    steps = f"{columns['rows']} step{'' if columns['rows'] == 1 else 's'}"
    begun = f"{steps} of training {trained}" if trained else steps if columns["rows"] else ""
    changes = "; ".join(describe_changes(measured))
    rest = "; ".join(part for part in (changes and f"on held-out problems {changes}", paid) if part)
    return " ".join(f"{part}." for part in (first, ": ".join(filter(None, (begun, rest)))) if part)


def describe_changes(measured: Sequence[Mapping[str, Any]]) -> list[str]:
    """Start → end on held-out problems of each role's first headline, with the interval of the change."""
    found: dict[str, str] = {}
    for one in measured:
        whole = one["headline"] and one["before"] and one["after"] and one["change"]
        if whole and one["who"] and one["who"] not in found:
            share, change = one["share"], Estimate.of_json(one["change"])
            start, end = (guide.number(Estimate.of_json(one[at]).value, share=share) for at in ("before", "after"))
            size = "no change shown" if change.includes(0.0) else f"{guide.points(change.value, share=share)} points"
            size = size if share else size.removesuffix(" points")
            bounds = guide.between(change, share=share).removesuffix(" points")
            found[one["who"]] = f"{one['who']} {one['label']} {start} → {end} ({size}, 95\u202f%: {bounds})"
    return list(found.values())


def describe_pay(
    series: Mapping[str, Sequence[float | None]], roles: Sequence[str], weights: Mapping[str, Mapping[str, float]]
) -> str:
    """What is paid beside what is true, over the last points: what judges call right; without a judge the reward that
    weighs most. "" where neither is known."""
    judges, paid = [], []
    for role in roles:
        words = f"the {role} calls {{}} of solutions right, {{}} are"
        judges.append((f"{role}/predicted_positive", f"{role}/base_rate", words))
        mine = {name: weight for name, weight in weights.get(role, {}).items() if name != "format"}
        if mine:
            most = max(mine, key=lambda name: mine[name])
            words = f"the {role}'s {most} reward is {{}}, {{}} of its answers are right"
            paid.append((f"{role}/reward/{most}", f"{role}/accuracy", words))
    for some in (judges, paid):
        said = []
        for given, true, words in some:
            both = zip(series.get(given, ()), series.get(true, ()), strict=False)
            pairs = [(a, b) for a, b in both if a is not None and b is not None][-LATELY:]
            if pairs:
                means = [sum(column) / len(pairs) for column in zip(*pairs, strict=True)]
                said.append(words.format(*(guide.number(mean, share=0.0 <= mean <= 1.0) for mean in means)))
        if said:
            return f"at the end {', '.join(said)}"
    return ""


def opened(directory: Path) -> Run:
    """Raises RunDirectoryError for what is no run directory, or cannot be read."""
    if not (directory / RECIPE).is_file():
        raise RunDirectoryError(f"{directory} is not a run directory (no {RECIPE} in it)")
    try:
        return Run(directory)
    except CotrainError as error:
        raise RunDirectoryError(str(error)) from error


def shown(value: Any) -> Any:
    """As others may see it: every text without paths of the home directory and without keys."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: shown(inside) for key, inside in value.items()}
    return [shown(inside) for inside in value] if isinstance(value, list) else value
