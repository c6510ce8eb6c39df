"""``report.html``: the page with a run's data inside, for who has the file and nothing else.

The page has a sample of the rollouts, of at most ``MOST_BYTES``. First come examples of alarms and their groups; then
rollouts of each of ``KINDS`` in turn, spread over the run. The draw has a fixed seed and the nonce is a hash of the
data, so that a run always has the same report. Of a very long run not all steps are read; the page says how many.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, RunDirectoryError
from cotrain.core.seeding import rng_of
from cotrain.reports.detail import dump_json
from cotrain.reports.page import write_page
from cotrain.reports.rollouts import FIELDS, LEFT_OUT, REVIEW_UNREAD, TOOL_FAILED, TRUNCATED, UNREAD, UNSOUND
from cotrain.reports.runs import RunView

MOST_BYTES = 4_000_000  # most bytes of the rollouts
MOST_EPISODES = 20_000  # most episodes that are read to draw from
MOST_ROLLOUTS = 400
TRACES_WITH_TOKENS = 2  # the first traces of a rollout, whose tokens are in the page: the answer and its first review
RUN_PARTS = 3  # the run is cut into so many parts; each kind is drawn from each of them
Rollout = tuple[int, int, int]  # step, task, member

Row = Sequence[Any]  # a row of ``Rollouts.rows``, in the order of ``FIELDS``
RowTest = Callable[[Row], bool]
_COLUMN = {name: place for place, name in enumerate(FIELDS)}


def _verdict_on(*, right: bool, called_right: bool) -> RowTest:
    """A test for rows of a right (or wrong) answer that its judges called right (or wrong)."""

    def has_verdict(row: Row) -> bool:
        return row[_COLUMN["said"]] == int(called_right) and row[_COLUMN["right"]] == int(right)

    return has_verdict


def _judges_disagree(row: Row) -> bool:
    return row[_COLUMN["readable"]] > 0 and row[_COLUMN["said"]] is None


def _has_flag(flag: int) -> RowTest:
    """A test for rows that have one of the bits of ``flag``."""
    return lambda row: bool(row[_COLUMN["flags"]] & flag)


KINDS: dict[str, RowTest] = {  # name → is a row of this kind
    "fp": _verdict_on(right=False, called_right=True),
    "fn": _verdict_on(right=True, called_right=False),
    "split": _judges_disagree,
    "unsound": _has_flag(UNSOUND),
    "unread": _has_flag(UNREAD | REVIEW_UNREAD),
    "truncated": _has_flag(TRUNCATED),
    "tool": _has_flag(TOOL_FAILED),
    "left": _has_flag(LEFT_OUT),
    "tn": _verdict_on(right=False, called_right=False),
    "tp": _verdict_on(right=True, called_right=True),
    "all": lambda row: True,
}


def write_report(directory: Path) -> Path:
    """Write ``report.html`` into a run directory and return its path. Raises RunDirectoryError when there is no such
    directory, DiskError when it cannot be written."""
    if not directory.is_dir():
        raise RunDirectoryError(
            f"no run directory at {directory}; give the directory that 'cotrain run' printed", code="E_NO_RUN_DIRECTORY"
        )
    try:
        run = RunView(directory)
        documents_by_name = report_documents(run)
    except CotrainError as error:
        raise RunDirectoryError(f"{directory}: {error}", code=error.code) from error
    name = str(run.recipe.get("name") or directory.name)
    return write_page(directory / "report.html", f"cotrain report: {name}", documents_by_name)


def report_documents(run: RunView) -> dict[str, bytes]:
    """name → JSON of everything that the page asks for."""
    run.watch_all()
    overview = run.overview()
    examples = []
    for alarm in overview["alarms"]:
        examples += [_parse_address(address) for address in alarm["examples"]]
    _read_rollouts(run, {step for step, _, _ in examples})

    showcase = run.showcase(overview["figures"])
    overview["showcase"] = showcase
    if showcase:
        examples = [_parse_address(showcase["wrong"]), _parse_address(showcase["right"]), *examples]
    table = run.rollouts.rows_page(0, len(run.rollouts.rows))
    details = _sampled_rollouts(run, _rollouts_in_order(table["rows"], examples))
    groups = {(rollout["step"], rollout["task"]) for rollout in details.values()}
    counts = {name: sum(map(test, table["rows"])) for name, test in KINDS.items()}
    return {
        "overview": dump_json(overview),
        "verifier": dump_json(run.verifier_document()),
        "rows": dump_json(_rows_of_groups(table, groups) | {"counts": counts}),
        "details": dump_json(details),
    }


def _parse_address(address: str) -> Rollout:
    step, task, member = map(int, address.split(":")[:3])
    return step, task, member


def _sampled_rollouts(run: RunView, rollouts: Iterator[Rollout]) -> dict[str, Any]:
    """Address → rollout, of as many as may be in the page."""
    details: dict[str, Any] = {}
    size = 0
    for step, task, member in rollouts:
        address = f"{step}:{task}:{member}"
        if address in details:
            continue
        rollout = run.rollout(step, task, member, tokens=TRACES_WITH_TOKENS)
        if rollout is None:
            continue
        size += len(dump_json(rollout))
        if size > MOST_BYTES:
            break
        details[address] = rollout
        if len(details) == MOST_ROLLOUTS:
            break
    return details


def _read_rollouts(run: RunView, steps: set[int]) -> None:
    """Read the rollouts of these steps, and of as many others as may be read, spread over the run."""
    episodes_of_step = {member.step: member.episodes for member in run.rollouts.members()}
    n_episodes = sum(episodes_of_step.values())
    every = max(1, math.ceil(n_episodes / MOST_EPISODES))
    every_nth_step = set(list(episodes_of_step)[::every])
    recorded = steps & episodes_of_step.keys()
    run.rollouts.load_steps(sorted(every_nth_step | recorded))


def _rollouts_in_order(rows: list[list[Any]], examples: list[Rollout]) -> Iterator[Rollout]:
    """Rollouts as they are worth showing: examples, their groups, then one of each kind and part of the run in turn."""
    yield from examples
    example_groups = {(step, task) for step, task, _ in examples}
    for step, task, member, *_ in rows:
        if (step, task) in example_groups:
            yield step, task, member

    n_steps = 1 + max((step for step, *_ in rows), default=0)
    pools: list[list[Rollout]] = []
    for name, is_of_kind in KINDS.items():
        for part in range(RUN_PARTS):
            rows_of_part = [row for row in rows if RUN_PARTS * row[0] // n_steps == part and is_of_kind(row)]
            pool = sorted({(step, task, member) for step, task, member, *_ in rows_of_part})
            rng_of("report", name, part).shuffle(pool)
            pools.append(pool)

    while any(pools):
        for pool in pools:
            if pool:
                yield pool.pop()


def _rows_of_groups(table: dict[str, Any], groups: set[tuple[int, int]]) -> dict[str, Any]:
    """The rows of these groups, with the texts of their problems alone. A row names its problem by index."""
    problem_at = _COLUMN["problem"]
    problems: list[str] = []
    rows: list[list[Any]] = []
    for row in table["rows"]:
        if (row[0], row[1]) in groups:
            rows.append([*row[:problem_at], len(problems), *row[problem_at + 1 :]])
            problems.append(table["problems"][row[problem_at]])
    return table | {"rows": rows, "problems": problems, "all": len(rows)}
