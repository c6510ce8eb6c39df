"""Run a study: the gate first, then every part, each a comparison; a page with the verdicts and what they rest on.

The results folder belongs to one file: ``study.json`` there holds its hash and what git said when it began. A file that
says something else since is refused, also where arms or seeds were added: who has seen results would choose them. One
that says the same in other words goes on, and the page says so. What was stopped or killed goes on with the same
command; finished runs are not repeated. A gate that does not hold ends the study with its figure, which is a result.

Where time is up, a study ends at the first seeds that are finished in every arm (``finished_only``), and its tables say
how many of how many that are. Which these are is not for whoever has seen results to choose: no seed is passed over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cotrain.analysis.comparison.arms import distinct_arms
from cotrain.analysis.comparison.compare import ComparisonPlan, compare
from cotrain.analysis.comparison.rates import check_figure
from cotrain.analysis.comparison.runs import is_done
from cotrain.analysis.comparison.study_file import Gate, Study, git_status
from cotrain.analysis.comparison.waves import goes_on_to_equal_cost
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.core.input_files import parse_json, read_regular
from cotrain.core.statistics import Estimate, mean_interval
from cotrain.core.verbosity import count_of
from cotrain.reports.compare_overview import alarm_cells
from cotrain.reports.comparison_report import write_study_page
from cotrain.reports.study_words import early_end_lines, study_markdown
from cotrain.runs.figures import end_figure_names
from cotrain.storage.file_ops import replace_file

Say = Callable[[str], None]
WITHOUT_EFFECT = ("checkpoint_every",)  # settings by which no figure changes
MOST_NAMED = 4  # changed settings that a line names


def run_study(study: Study, *, say: Say = print, finished_only: bool = False) -> dict[str, Any]:
    """Run what is not done yet and write ``study.json``, ``report.html`` and ``table.md``. Returns the content of the
    first, with ``lines`` for a terminal. Raises ConfigError for a folder of another study, and for an arm that could
    not run or has no such measure, before anything is run; StoppedBySignal.

    Args:
        finished_only: end each part at the first seeds that are finished in all of its arms, and begin no others. Runs
            of cheaper arms still go on until an equal cost is spent. Raises ConfigError where there is no such seed.
    """
    if finished_only:
        _check_can_end(study)
    recipes = recipes_of_parts(study)
    document = _begin_study(study)
    say(f"study {study.path.name}, sha256 {study.sha256[:12]}: {document['git']['words']}")
    if study.gate is not None:
        if not finished_only:
            document["gate"] = _run_gate(study, study.gate, recipes[study.gate.part], say)
            _write_study(study, document)
        say(document["gate"]["found"])
        if not document["gate"]["holds"]:
            return document | {"lines": [document["gate"]["found"]]}
    for name, plan in study.parts.items():
        seeds = finished_seeds(plan) if finished_only else plan.seeds
        _note_early_end(document, name, seeds, planned=plan.seeds)
        if seeds:
            say(f"part {name}")
            needed_figures = {arm.label: _needed_figures(study, name, arm.label) for arm in plan.arms}
            short_plan = replace(plan, seeds=seeds)
            result = compare(
                short_plan,
                say=say,
                recipes=recipes[name],
                needed_figures=needed_figures,
                planned_seeds=plan.seeds,
            )
            document["parts"][name] = _part_summary(result, short_plan, study)
        else:
            document["parts"].pop(name, None)  # of an earlier end
        _write_study(study, document)
    lines = [line for name, part in document["parts"].items() for line in _part_lines(name, part)]
    return document | {"lines": [*early_end_lines(document), *lines]}


def finished_seeds(plan: ComparisonPlan) -> int:
    """How many of the first seeds are finished in every arm, or were until some of their runs had to go on."""
    count = 0
    for seed in plan.each_seed:
        folders = [plan.out / arm.slug / f"seed-{seed}" for arm in plan.arms]
        if not all(is_done(folder) or goes_on_to_equal_cost(plan, folder) for folder in folders):
            break
        count += 1
    return count


def _check_can_end(study: Study) -> None:
    """Raise ConfigError for a study that has nothing to end with: its gate has not been run, or no seed is finished in
    all arms."""
    saved = _begin_study(study) if (study.out / "study.json").exists() else {}
    gate = saved.get("gate")
    gate_is_known = study.gate is None or (isinstance(gate, Mapping) and "holds" in gate)
    gate_fails = gate_is_known and isinstance(gate, Mapping) and not gate["holds"]
    has_seeds = any(finished_seeds(plan) for plan in study.parts.values())
    if gate_fails or (gate_is_known and has_seeds):
        return
    missing = "no seed is finished in every arm yet" if gate_is_known else "its gate has not been run yet"
    raise ConfigError(
        f"--finished: {missing} in {study.out}; go on with `cotrain study {study.path}`", code="E_STUDY_CANNOT_END"
    )


def _note_early_end(document: dict[str, Any], part: str, seeds: int, *, planned: int) -> None:
    """Keep how many of the planned seeds of a part ran, where it is not all of them."""
    ended_early = document.setdefault("ended_early", {})
    ended_early.pop(part, None)
    if seeds < planned:
        ended_early[part] = {"seeds": seeds, "planned": planned}


def _begin_study(study: Study) -> dict[str, Any]:
    """Return the content of ``study.json``: a new one, or the one of a study that was begun."""
    path = study.out / "study.json"
    if not path.exists():
        entries = [one for one in study.out.iterdir() if not one.name.startswith(".")] if study.out.is_dir() else []
        if entries:
            raise ConfigError(
                f"{study.out} holds something else than this study; change out in {study.path}", code="E_OUT_NOT_STUDY"
            )
        document: dict[str, Any] = {
            "study": study.path.name,
            "sha256": study.sha256,
            "settings": dict(study.settings),
            "changes": [],
            "began": datetime.now(UTC).isoformat(timespec="seconds"),
            "git": git_status(study.path),
            "hypothesis": study.hypothesis,
            "measure": study.measure,
            "gate": None if study.gate is None else {"asked": study.gate.in_words()},
            "parts": {},
        }
        study.out.mkdir(parents=True, exist_ok=True)
        _write_study(study, document)
        return document
    try:
        document = parse_json(read_regular(path))
        changes = document.setdefault("changes", [])  # studies of earlier versions have none
        known_hashes = [document["sha256"], *(change["sha256"] for change in changes)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is damaged ({error}); restore it, or change out in {study.path}", code="E_STUDY_DAMAGED"
        ) from error
    if study.sha256 not in known_hashes:
        changes.append(_admitted_change(study, document))
        _write_study(study, document)
    return document


def _admitted_change(study: Study, document: Mapping[str, Any]) -> dict[str, Any]:
    """How the file of a study that was begun has changed, for ``study.json``. Raises ConfigError where it says
    something else than it did: what was expected, and of what, is not written after a look at results."""
    began: Any = document.get("settings")
    is_known = isinstance(began, dict)  # studies of earlier versions do not hold it
    changed = _changed_settings(began, study.settings) if is_known else []
    has_effect = any(name.rpartition(".")[2] not in WITHOUT_EFFECT for name in changed)
    if has_effect or not is_known:
        raise ConfigError(
            f"{study.path} has changed{_names_text(changed)} since the study in {study.out} began (sha256 "
            f"{document['sha256'][:12]}, now {study.sha256[:12]}); bring the file as it was to go on, or set "
            f'another out in it, such as "{study.out}-2", to make all runs anew',
            code="E_STUDY_CHANGED",
        )
    git = git_status(study.path)
    words = git["words"]
    if git["committed"]:  # those words are of the file with which a study began
        words = f"git says that it was committed like that in {git['commit'][:12]}"
    return {
        "sha256": study.sha256,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "what": ", ".join(changed) if changed else "comments alone",
        "git": words,
    }


def _names_text(changed: Sequence[str]) -> str:
    """`` in seeds, gate.at_least``; "" where it is not known what has changed."""
    if not changed:
        return ""
    more = f" and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
    return f" in {', '.join(changed[:MOST_NAMED])}{more}"


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """The names of settings that are new, gone, or have another value."""
    names = [*now, *(name for name in before if name not in now)]
    return [name for name in names if before.get(name) != now.get(name)]


def _write_study(study: Study, document: Mapping[str, Any]) -> None:
    """study.json last: what it counts on is there."""
    replace_file(study.out / "table.md", study_markdown(document).encode("utf-8"))
    write_study_page(study.out, document)
    replace_file(study.out / "study.json", json.dumps(document, indent=1, ensure_ascii=False).encode())


def recipes_of_parts(study: Study) -> dict[str, dict[str, Recipe]]:
    """The recipe of each arm, by its label, for each part. Raises UserError for an arm that could not run, and for a
    measure of the study or of its gate that an arm cannot have; where that is not known, it shows once two runs are
    done."""
    recipes = {}
    for name, plan in study.parts.items():
        recipes[name] = plan.make_recipes(distinct_arms(plan.arms))
        for label, recipe in recipes[name].items():
            known_figures = end_figure_names(recipe)
            for figure in sorted(_needed_figures(study, name, label)):
                check_figure(f"measure of arm {label!r}", figure, known_figures)
    return recipes


def _needed_figures(study: Study, part: str, label: str) -> set[str]:
    """The figures that the study and its gate read of the runs of an arm."""
    figures = {study.measure}
    gate = study.gate
    if gate is not None and gate.part == part and label in (gate.arm, gate.minus):
        figures.add(gate.measure)
    return figures


def _run_gate(study: Study, gate: Gate, recipes: Mapping[str, Recipe], say: Say) -> dict[str, Any]:
    """Run the arms of the gate, the one that is subtracted first, and read the figure."""
    plan = study.parts[gate.part]
    arms = {arm.label: arm for arm in plan.arms}
    gate_arms = [arms[name] for name in dict.fromkeys([gate.minus or gate.arm, gate.arm])]
    say(f"gate: {gate.in_words()}")
    seeds = gate.seeds or plan.seeds
    result = compare(
        replace(plan, arms=tuple(gate_arms), seeds=seeds),
        say=say,
        recipes={arm.label: recipes[arm.label] for arm in gate_arms},
        needed_figures={arm.label: _needed_figures(study, gate.part, arm.label) for arm in gate_arms},
    )
    estimate = _gate_figure(gate, result, seeds)
    holds = gate.holds(estimate.value)
    spread = f" (95 % interval {estimate.low:.3f} to {estimate.high:.3f})" if math.isfinite(estimate.low) else ""
    verdict = "the gate holds" if holds else "the gate does not hold, so the rest is not run"
    sentence = f"{gate.in_words()}; found {estimate.value:.3f}{spread} over {count_of(seeds, 'seed')}: {verdict}"
    return {"asked": gate.in_words(), "value": estimate.value, "holds": holds, "found": sentence}


def _gate_figure(gate: Gate, result: Mapping[str, Any], seeds: int) -> Estimate:
    """The figure that a gate is about. Differences of two starts, and gains, have no interval. Raises ConfigError where
    it is undefined."""
    rows = {row["recipe"]: row for row in result["table"] if row["at"] == "end" and row["metric"] == gate.measure}
    for arm in filter(None, (gate.minus, gate.arm)):
        if arm not in rows:
            raise _undefined_gate(gate, f"{arm} has no {gate.measure}: {_why_lacking(result, gate.measure, arm)}")
    figure = _figure_of_rows(gate, rows, seeds)
    if math.isnan(figure.value):
        raise _undefined_gate(gate, f"{gate.measure} is undefined there")
    return figure


def _figure_of_rows(gate: Gate, rows: Mapping[str, Mapping[str, Any]], seeds: int) -> Estimate:
    """The same from the rows of the gate's measure, by arm; not a number where it is undefined."""
    row = rows[gate.arm]
    before = Estimate.from_json(row["before"])
    after = Estimate.from_json(row["after"])
    if gate.at == "gain":
        return Estimate(value=after.value - before.value, low=-math.inf, high=math.inf, n=seeds)
    if gate.minus is None:
        return before if gate.at == "start" else after
    if gate.at == "start":
        other = Estimate.from_json(rows[gate.minus]["before"])
        return Estimate(value=before.value - other.value, low=-math.inf, high=math.inf, n=seeds)
    if row["difference"] is None:  # the other arm has the figure at its start alone
        return mean_interval(())
    return Estimate.from_json(row["difference"])


def _undefined_gate(gate: Gate, why: str) -> ConfigError:
    return ConfigError(
        f"gate: {gate.in_words()}: {why}; so nobody can say whether it holds. Ask for another figure, in a study with "
        "another out",
        code="E_GATE_UNDEFINED",
    )


def _part_summary(result: Mapping[str, Any], plan: ComparisonPlan, study: Study) -> dict[str, Any]:
    """The summary of one part on the study's page."""
    rows = {row["recipe"]: row for row in result["table"] if row["at"] == "end" and row["metric"] == study.measure}
    arms = {}
    for arm in plan.arms:
        arms[arm.label] = rows.get(arm.label) or _row_without_figure(result, study.measure, arm.label)
    costs: dict[str, dict[str, float]] = {}
    for label, runs in result["recipes"].items():
        spent = [run["spent"] for run in runs["seeds"]]
        costs[label] = {}
        for axis in spent[0]:
            costs[label][axis] = _mean([amounts[axis] for amounts in spent])
    rates = {label: arm_rates["chosen"] for label, arm_rates in (result["rates"] or {"arms": {}})["arms"].items()}
    page = str((plan.out / "report.html").relative_to(study.out))
    _, fired = alarm_cells(result)
    return {"page": page, "seeds": plan.seeds, "arms": arms, "costs": costs, "rates": rates, "alarms": fired}


def _row_without_figure(result: Mapping[str, Any], measure: str, arm: str) -> dict[str, Any]:
    """The row of an arm none of whose runs has the study's figure, though a run of another arm does: a result, too."""
    nothing = mean_interval(()).to_json()
    return {
        "at": "end",
        "metric": measure,
        "recipe": arm,
        "reference": None,
        "before": nothing,
        "after": nothing,
        "difference": None,
        "seen": None,
        "words": f"no figure: {_why_lacking(result, measure, arm)}",
    }


def _why_lacking(result: Mapping[str, Any], measure: str, arm: str) -> str:
    lacking = [row for row in result["lacking"] if row["recipe"] == arm and measure in row["metrics"]]
    return "; ".join(row["why"] for row in lacking)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _part_lines(name: str, part: Mapping[str, Any]) -> list[str]:
    """For a terminal: of each arm its figure, and what fired in half of its runs or more."""
    lines = [name]
    for arm, row in part["arms"].items():
        after = Estimate.from_json(row["after"])
        figure = "–" if math.isnan(after.value) else f"{after.value:.3f}"
        lines.append(f"  {arm:24s} {figure}  {row['words']}".rstrip())
    fired: dict[str, dict[str, None]] = {}
    for arm, band, _, runs, _ in part["alarms"]:
        count, of_all = map(int, runs.split(" of "))
        if 2 * count >= of_all:
            fired.setdefault(arm, {})[band] = None
    return lines + [f"  alarms in most runs of {arm}: {', '.join(bands)}" for arm, bands in fired.items()]


def run_count_lines(study: Study) -> list[str]:
    """How many runs it takes, one line a part."""
    lines = []
    for name, plan in study.parts.items():
        grid = len(plan.rates) * plan.rate_seeds * len(plan.arms)
        choose = f", and {grid} to choose learning rates" if grid else ""
        lines.append(
            f"{name}: {len(plan.arms)} arm{'s' * (len(plan.arms) > 1)} × {count_of(plan.seeds, 'seed')} = "
            f"{count_of(len(plan.arms) * plan.seeds, 'run')}{choose}, in {plan.out}"
        )
    return lines if study.gate is None else [f"gate: {study.gate.in_words()}", *lines]
