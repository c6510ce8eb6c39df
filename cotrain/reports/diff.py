"""``cotrain diff A B``: two runs side by side, in a terminal of 80 columns.

- settings that differ
- code of the user's that differs, as the runs recorded it (``code.json``): between A and B, between the versions with
  which one run was resumed, and between a run and the disk now. ``cotrain diff A`` shows only the last two.
- figures at the end, with each run's interval over its problems. They do not show how other seeds would differ: whether
  one method is better than another is a question for ``cotrain compare``. A run that has not finished has none.
- what both wrote to one problem
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, FINAL
from cotrain.core.own_code import imported_by, read_code
from cotrain.core.redact import redact_text
from cotrain.core.statistics import Estimate
from cotrain.core.verbosity import escape_terminal
from cotrain.metrics.table import table_rank
from cotrain.reports.follow import read_json_object
from cotrain.reports.guide import parse_estimates
from cotrain.reports.runs import RunView, redact_texts
from cotrain.reports.settings import flatten_settings
from cotrain.storage.schemas import fault_in

CODE = "code.json"  # the user's own code that made a run
WIDTH = 80  # characters of a line
COLUMN_WIDTH = (WIDTH - 3) // 2
NOTHING = "–"
MOST_TEXT = 600  # most characters of a text
MOST_SETTING = 160  # most characters of a setting
LOOKED_AT = 400  # a problem that both runs have is looked for among so many of each
MOST_CODE = 40  # most lines of a file's differences


def compare_runs(one: RunView, other: RunView, rollout: str | None = None) -> dict[str, Any]:
    """Return the content of ``cotrain diff``. Raises ConfigError for a rollout that one of the runs does not have."""
    settings_a = redact_texts(one.recipe.get("settings", {}))
    settings_b = redact_texts(other.recipe.get("settings", {}))
    return {
        "runs": [_run_summary(one), _run_summary(other)],
        "settings": [{"setting": name, "a": a, "b": b} for name, a, b in unequal_settings(settings_a, settings_b)],
        "code": code_differences(one, other),
        "figures": _figure_differences(_final_figures(one), _final_figures(other)),
        "rollout": _rollout_pair(one, other, rollout),
    }


def unequal_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Dotted path and both values of every setting that is not the same; None where there is none."""
    flat_a = flatten_settings(a)
    flat_b = flatten_settings(b)
    for name in dict.fromkeys([*flat_a, *flat_b]):
        if flat_a.get(name) != flat_b.get(name):
            yield name, flat_a.get(name), flat_b.get(name)


# -- code


def code_differences(one: RunView, other: RunView) -> list[dict[str, Any]]:
    """Files of the user's code that differ: ``{"between": …, "file": …, "lines": […]}`` each. The lines are a unified
    diff; [] if the text of a file was too large to be recorded."""
    differences = _differing_files("A and B", _latest_code(one), _latest_code(other))
    views = {"A": one} if one.directory == other.directory else {"A": one, "B": other}
    for letter, run in views.items():
        versions = _code_versions(run)
        for (_, before), (step, after) in pairwise(versions):
            differences += _differing_files(f"{letter} before step {step}, and from then on", before, after)
        if versions:
            recorded = versions[-1][1]
            differences += _differing_files(f"{letter}, and the disk now", recorded, _code_on_disk(recorded))
    return differences


CodeFile = tuple[str, str | None]  # hash, and the text where it was recorded
CodeTexts = dict[str, CodeFile]  # by path


def _run_summary(run: RunView) -> dict[str, Any]:
    return {
        "directory": run.place,
        "name": run.recipe.get("name"),
        "seed": run.recipe.get("seed"),
        "foreign": run.is_foreign,
    }


def _code_versions(run: RunView) -> list[tuple[int, CodeTexts]]:
    """The versions of a run's code: the step from which each holds, and its files."""
    if not (run.directory / CODE).is_file():
        return []
    record, _ = read_json_object(run.directory / CODE)
    if fault_in(CODE, record) is not None:
        return []
    texts = record["texts"]
    versions = []
    for version in record["versions"]:
        files = {path: (sha, texts.get(sha)) for path, sha in version["files"].items()}
        versions.append((version["from_step"], files))
    return versions


def _latest_code(run: RunView) -> CodeTexts:
    versions = _code_versions(run)
    return versions[-1][1] if versions else {}


def _code_on_disk(recorded: CodeTexts) -> CodeTexts:
    """The same files as they are now, and what they import now; those that are gone are left out."""
    files = [read_code(Path(path)) for path in recorded]
    existing = [file for file in files if file is not None]
    imported = imported_by(file.path for file in existing).values()
    return {str(file.path): (file.sha256, redact_text(file.text)) for file in (*imported, *existing)}


def _differing_files(between: str, a: CodeTexts, b: CodeTexts) -> list[dict[str, Any]]:
    """Files of one path, or of one name in another folder, that do not hold the same; and those that one lacks."""
    differences = []
    for path_a, path_b in _paired_by_path(a, b):
        file_a = a.get(path_a)
        file_b = b.get(path_b)
        if _hash_of(file_a) == _hash_of(file_b):
            continue
        differences.append({"between": between, "file": path_a, "lines": _unified_diff(file_a, file_b)})
    return differences


def _hash_of(file: CodeFile | None) -> str | None:
    return None if file is None else file[0]


def _paired_by_path(a: CodeTexts, b: CodeTexts) -> list[tuple[str, str]]:
    """The file of ``b`` that each file of ``a`` is compared with: that of its path, else one of its name. A file that
    only one of them has is paired with its own path."""
    only_in_b = {Path(path).name: path for path in b if path not in a}
    pairs = []
    for path in a:
        partner = path
        if path not in b:
            partner = only_in_b.pop(Path(path).name, path)
        pairs.append((path, partner))
    paired = {partner for _, partner in pairs}
    pairs += [(path, path) for path in b if path not in paired]
    return pairs


def _unified_diff(a: CodeFile | None, b: CodeFile | None) -> list[str]:
    text_a = "" if a is None else a[1]
    text_b = "" if b is None else b[1]
    if text_a is None or text_b is None:  # the file was too large to be kept
        return []
    lines = unified_diff(text_a.splitlines(), text_b.splitlines(), lineterm="", n=1)
    return list(lines)[2:]  # without the two lines with file names


def _code_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = ["", "code that differs"]
    for row in rows:
        lines += ["", f"{row['between']}:", *_whole_name(row["file"])]
        lines += [f"  {escape_terminal(line, WIDTH)}" for line in row["lines"][:MOST_CODE]]
        if len(row["lines"]) > MOST_CODE:
            lines.append(f"  … and {len(row['lines']) - MOST_CODE} more lines; see --json")
    return lines


# -- figures


def _final_figures(run: RunView) -> dict[str, Estimate]:
    """The figures at the end; {} of a run that has not finished."""
    path = run.directory / "summary.json"
    if not path.is_file():
        return {}
    summary, _ = read_json_object(path)
    return parse_estimates(summary.get("after"))


def _figure_differences(a: Mapping[str, Estimate], b: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """Every final figure of either, headlines first. ``apart``: the intervals do not touch."""
    rows = []
    for key in sorted({*a, *b}, key=lambda key: (table_rank(key), key)):
        estimate_a = a.get(key)
        estimate_b = b.get(key)
        apart = False
        if estimate_a is not None and estimate_b is not None:
            apart = estimate_a.low > estimate_b.high or estimate_b.low > estimate_a.high
        rows.append(
            {
                "figure": key,
                "a": estimate_a.to_json() if estimate_a else None,
                "b": estimate_b.to_json() if estimate_b else None,
                "apart": apart,
            }
        )
    return rows


def _rollout_pair(one: RunView, other: RunView, address: str | None) -> dict[str, Any] | None:
    """What both wrote at one address; by default what both wrote last to one problem."""
    if address is None:
        return _last_at_one_place(one, other) or _last_of_one_problem(one, other)
    coordinates = _parse_address(address)
    rollouts = {run.directory: run.rollout(*coordinates) for run in (one, other)}
    for directory, rollout in rollouts.items():
        if rollout is None:
            raise ConfigError(
                f"cotrain diff: {directory} has no rollout {escape_terminal(address, 60)}; `cotrain view` lists them",
                code="E_NO_SUCH_ROLLOUT",
            )
    return _side_by_side(rollouts[one.directory] or {}, rollouts[other.directory] or {})


def _last_at_one_place(one: RunView, other: RunView) -> dict[str, Any] | None:
    """The first rollouts of the last step whose first problem is the same in both runs. Runs of one seed have such
    steps."""
    for step in sorted(_recorded_steps(one) & _recorded_steps(other), reverse=True):
        a = one.rollout(step, 0, 0, tokens=0)
        b = other.rollout(step, 0, 0, tokens=0)
        if a is not None and b is not None and a["problem"] and a["problem"] == b["problem"]:
            return _side_by_side(a, b)
    return None


def _last_of_one_problem(one: RunView, other: RunView) -> dict[str, Any] | None:
    """The last rollouts of a problem that both runs have, among the last ``LOOKED_AT`` problems of each."""
    by_problem: dict[str, Mapping[str, Any]] = {}
    for rollout in _last_rollouts(other):
        by_problem.setdefault(rollout["problem"], rollout)
    for rollout in _last_rollouts(one):
        if rollout["problem"] in by_problem:
            return _side_by_side(rollout, by_problem[rollout["problem"]])
    return None


def _last_rollouts(run: RunView) -> list[dict[str, Any]]:
    """A rollout of each problem that the last steps sampled, the latest first."""
    rollouts: list[dict[str, Any]] = []
    for step in sorted(_recorded_steps(run), reverse=True):
        for task in run.rollouts.tasks_of(step):
            if len(rollouts) == LOOKED_AT:
                return rollouts
            rollout = run.rollout(step, task, 0, tokens=0)
            if rollout is not None and rollout["problem"]:
                rollouts.append(rollout)
    return rollouts


def _recorded_steps(run: RunView) -> set[int]:
    return {member.step for member in run.rollouts.members()}


def _parse_address(address: str) -> tuple[int, int, int]:
    parts = address.removeprefix("#r:").split(":")
    if len(parts) < 3 or not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts[:3]):
        raise ConfigError(
            f"cotrain diff: {escape_terminal(address, 80)} is no rollout; expected STEP:TASK:MEMBER, as 12:3:0",
            code="E_ROLLOUT_ADDRESS",
        )
    step, task, member = map(int, parts[:3])
    return step, task, member


def _side_by_side(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "step": a["step"],
        "task": a["task"],
        "member": a["member"],
        "address": [_address_text(a), _address_text(b)],
        "problem": [a["problem"], b["problem"]],
        "a": [_turn_summary(trace) for trace in a["traces"]],
        "b": [_turn_summary(trace) for trace in b["traces"]],
    }


def _address_text(rollout: Mapping[str, Any]) -> str:
    return f"{rollout['step']}:{rollout['task']}:{rollout['member']}"


def _turn_summary(trace: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "role": trace["role"],
        "text": trace["text"],
        "rewards": {name: value for name, value, span in trace["rewards"] if span is None},
        "right": trace["metadata"].get(CORRECT.name),
        "said": trace["findings"].get(FINAL.name),
    }


# -- printing


def lines_of(comparison: Mapping[str, Any]) -> list[str]:
    """The text, at most 80 columns, without a control character."""
    lines = []
    for letter, run in zip("AB", comparison["runs"], strict=True):
        lines += _whole_name(f"{letter}: {run['directory']}")
    lines += ["", "settings that differ"]
    for row in comparison["settings"]:
        lines += [
            *_whole_name(row["setting"]),
            *_in_two_columns(_setting_text(row["a"]), _setting_text(row["b"])),
        ]

    if not comparison["settings"]:
        lines.append("none")
    lines += _code_lines(comparison["code"])
    lines += ["", "measured at the end, with 95 % intervals over each run's problems"]
    for row in comparison["figures"]:
        lines += _figure_lines(row)
    if comparison["figures"]:
        lines += ["*: the intervals do not touch; another seed may differ by more than they say"]
    elif any(run["foreign"] for run in comparison["runs"]):
        lines += ["nothing: rollouts of another trainer have no held-out figures"]
    else:
        lines += ["nothing: neither run is finished"]
    return [line[:WIDTH].rstrip() for line in [*lines, "", *_rollout_lines(comparison["rollout"])]]


def changed_code_lines(run: RunView, code: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text of ``cotrain diff A``: how the code of one run differs from what is on the disk now."""
    code_lines = _code_lines(code) or ["", "the code that made it is as it was, or all of it is cotrain's"]
    return [line[:WIDTH].rstrip() for line in [*_whole_name(f"A: {run.place}"), *code_lines]]


NAME = 30  # characters of a figure's name that stand in the line of its values


def _figure_lines(row: Mapping[str, Any]) -> list[str]:
    """A figure in one line, or in two where its name is long."""
    name = escape_terminal(row["figure"])
    mark = " *" if row["apart"] else ""
    values = f"{_estimate_text(row['a']):>24s}{_estimate_text(row['b']):>24s}{mark}"
    if len(name) < NAME:
        return [f"{name:{NAME}s}{values}"]
    return [*_whole_name(name), f"{'':{NAME}s}{values}"]


def _whole_name(name: str) -> list[str]:
    """A name, whole, in as many lines as it takes."""
    return textwrap.wrap(escape_terminal(name), WIDTH, break_on_hyphens=False)


def _rollout_lines(rollout: Mapping[str, Any] | None) -> list[str]:
    if rollout is None:
        return ["no rollout that both runs have of one problem"]
    address_a, address_b = rollout["address"]
    lines = [f"rollout {address_a}" if address_a == address_b else f"rollouts {address_a} of A and {address_b} of B"]
    same = rollout["problem"][0] == rollout["problem"][1]
    problems = rollout["problem"][:1] if same else rollout["problem"]
    for problem in problems:
        lines += textwrap.wrap(escape_terminal(problem or NOTHING, MOST_TEXT), WIDTH)
    for a, b in zip_longest(rollout["a"], rollout["b"]):
        lines += ["", *_in_two_columns(_turn_head(a), _turn_head(b)), *_in_two_columns(_turn_text(a), _turn_text(b))]
    return lines


def _turn_head(turn: Mapping[str, Any] | None) -> str:
    if turn is None:
        return NOTHING
    truth = {True: ", right", False: ", wrong"}.get(turn["right"], "")
    verdict = {True: ", says CORRECT", False: ", says INCORRECT"}.get(turn["said"], "")
    rewards = "".join(f", {escape_terminal(name)} {value:g}" for name, value in turn["rewards"].items())
    return f"[{escape_terminal(turn['role'])}{verdict or truth}{rewards}]"


def _turn_text(turn: Mapping[str, Any] | None) -> str:
    return "" if turn is None else escape_terminal(turn["text"], MOST_TEXT)


def _in_two_columns(a: str, b: str) -> list[str]:
    """Two texts side by side."""
    left, right = (textwrap.wrap(text, COLUMN_WIDTH, break_on_hyphens=False) for text in (a, b))
    return [f"{x:{COLUMN_WIDTH}s} │ {y}" for x, y in zip_longest(left, right, fillvalue="")]


def _setting_text(value: Any) -> str:
    return NOTHING if value is None else escape_terminal(json.dumps(value, ensure_ascii=False), MOST_SETTING)


def _estimate_text(saved: Mapping[str, Any] | None) -> str:
    if saved is None:
        return NOTHING
    if saved["low"] is None or saved["high"] is None or not math.isfinite(saved["value"] or 0.0):
        return NOTHING if saved["value"] is None else f"{saved['value']:.3f}"
    return f"{saved['value']:.3f} [{saved['low']:.3f}, {saved['high']:.3f}]"
