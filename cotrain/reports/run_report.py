"""``report.html``: the page with a run's data inside, for who has the file and nothing else.

Rollouts are a sample below ``MOST_BYTES``: those behind alarms with their groups first, then every kind of meeting
between roles in turn, spread over the run. The draw is addressed and the nonce a hash of what is inside, so that a run
has one report. Of a very long run not all steps are read; the page says how many.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotrain.core.errors import CotrainError, RunDirectoryError
from cotrain.core.seeding import rng_of
from cotrain.reports.detail import dump_json
from cotrain.reports.page import write_page
from cotrain.reports.rollouts import FIELDS, LEFT_OUT, REVIEW_UNREAD, TOOL_FAILED, TRUNCATED, UNREAD, UNSOUND
from cotrain.reports.runs import RunView

MOST_BYTES = 4_000_000  # most bytes of the rollouts
MOST_EPISODES = 20_000  # read
MOST_ROLLOUTS = 400
TRACES_WITH_TOKENS = 2  # traces of a rollout whose tokens are shown: the answer and its first review
RUN_PARTS = 3  # parts of the run, from which each kind is drawn in turn
Group = tuple[int, int, int]  # step, task, member

_COLUMN = {name: place for place, name in enumerate(FIELDS)}
KINDS = {  # name → is a row of this kind
    "fp": lambda r: r[_COLUMN["said"]] == 1 and r[_COLUMN["right"]] == 0,
    "fn": lambda r: r[_COLUMN["said"]] == 0 and r[_COLUMN["right"]] == 1,
    "split": lambda r: r[_COLUMN["readable"]] > 0 and r[_COLUMN["said"]] is None,
    "unsound": lambda r: bool(r[_COLUMN["flags"]] & UNSOUND),
    "unread": lambda r: bool(r[_COLUMN["flags"]] & (UNREAD | REVIEW_UNREAD)),
    "truncated": lambda r: bool(r[_COLUMN["flags"]] & TRUNCATED),
    "tool": lambda r: bool(r[_COLUMN["flags"]] & TOOL_FAILED),
    "left": lambda r: bool(r[_COLUMN["flags"]] & LEFT_OUT),
    "tn": lambda r: r[_COLUMN["said"]] == 0 and r[_COLUMN["right"]] == 0,
    "tp": lambda r: r[_COLUMN["said"]] == 1 and r[_COLUMN["right"]] == 1,
    "all": lambda r: True,
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
    examples = [address for alarm in overview["alarms"] for address in alarm["examples"]]
    wanted = [tuple(map(int, at.split(":")[:3])) for at in examples]
    _read_rollouts(run, {at[0] for at in wanted})
    overview["showcase"] = run.showcase(overview["figures"])
    if overview["showcase"]:
        shown_first = (overview["showcase"]["wrong"], overview["showcase"]["right"])
        examples = [*shown_first, *examples]
        wanted = [tuple(map(int, at.split(":")[:3])) for at in examples]
    table = run.rollouts.rows_page(0, len(run.rollouts.rows))
    details: dict[str, Any] = {}
    groups: set[tuple[int, int]] = set()
    size = 0
    for step, task, member in _rollouts_in_order(table["rows"], [(s, t, m) for s, t, m in wanted]):
        at = f"{step}:{task}:{member}"
        rollout = None if at in details else run.rollout(step, task, member, tokens=TRACES_WITH_TOKENS)
        if rollout is not None:
            size += len(dump_json(rollout))
            if size > MOST_BYTES:
                break
            details[at] = rollout
            groups.add((step, task))
        if len(details) >= MOST_ROLLOUTS:
            break

    counts = {name: sum(map(test, table["rows"])) for name, test in KINDS.items()}
    return {
        "overview": dump_json(overview),
        "verifier": dump_json(run.verifier_document()),
        "rows": dump_json(_rows_of_groups(table, groups) | {"counts": counts}),
        "details": dump_json(details),
    }


def _read_rollouts(run: RunView, steps: set[int]) -> None:
    """Read the rollouts of these steps, and of as many others as may be read, spread over the run."""
    members = {member.step: member for member in run.rollouts.members()}
    episodes = sum(member.episodes for member in members.values())
    every = max(1, -(-episodes // MOST_EPISODES))
    run.rollouts.load_steps([*sorted(set(list(members)[::every]) | (steps & set(members)))])


def _rollouts_in_order(rows: list[list[Any]], examples: list[Group]) -> Iterator[Group]:
    """Rollouts as they are worth showing: examples, their groups, then one of each kind and part of the run in turn."""
    yield from examples
    example_groups = {(step, task) for step, task, _ in examples}
    yield from ((r[0], r[1], r[2]) for r in rows if (r[0], r[1]) in example_groups)
    last = 1 + max((row[0] for row in rows), default=0)
    pools: list[list[Group]] = []
    for name, test in KINDS.items():
        for part in range(RUN_PARTS):
            pool = sorted({(r[0], r[1], r[2]) for r in rows if RUN_PARTS * r[0] // last == part and test(r)})
            rng_of("report", name, part).shuffle(pool)
            pools.append(pool)

    while any(pools):
        for pool in pools:
            if pool:
                yield pool.pop()


def _rows_of_groups(table: dict[str, Any], groups: set[tuple[int, int]]) -> dict[str, Any]:
    """The rows of these groups, with the problems that they name."""
    problem_at = _COLUMN["problem"]
    problems: list[str] = []
    rows: list[list[Any]] = []
    for row in table["rows"]:
        if (row[0], row[1]) in groups:
            rows.append([*row[:problem_at], len(problems), *row[problem_at + 1 :]])
            problems.append(table["problems"][row[problem_at]])
    return table | {"rows": rows, "problems": problems, "all": len(rows)}
