"""Making runs end at an equal cost: all are run as long as the plan says, then those of cheaper arms go on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from cotrain.analysis.comparison.runs import is_done
from cotrain.core.errors import CotrainError, UserError
from cotrain.core.input_files import parse_json, read_regular
from cotrain.core.verbosity import clock_text, count_of
from cotrain.distributed.device_memory import PARALLEL_RUNS
from cotrain.metrics.steps import budget_share
from cotrain.runs.directory import RunDirectory
from cotrain.runs.figures import costs_of
from cotrain.trainer.failures import StoppedBySignal, stop_on_signal

if TYPE_CHECKING:
    from cotrain.analysis.comparison.plan import ComparisonPlan


class RunKey(NamedTuple):
    """A run of a comparison."""

    label: str  # label of its arm
    seed: int
    rate: float | None = None  # learning rate that it tries; None: the arm's


class DearestArm(NamedTuple):
    label: str  # arm that has spent most
    budget: float  # what it has spent in ``plan.batches``, the mean over its runs


def run_at_equal_cost(
    plan: ComparisonPlan,
    places: Mapping[RunKey, Path],
    command: Callable[[RunKey], list[str]],
    workers: int,
    say: Callable[[str], None],
    check_run: Callable[[RunKey], None],
) -> DearestArm | None:
    """Make the runs of ``places``; ``command`` begins one or goes on with it. ``check_run`` looks at each of them as
    soon as it is done, and raises where the others need not be made. Without a budget, and unless batches or updates
    are equal, runs of cheaper arms go on until they have spent what the dearest arm has; returns that arm, else
    None."""
    run_of_folder = {folder: run for run, folder in places.items()}
    unfinished_jobs = []
    for run, folder in places.items():
        if is_done(folder):
            check_run(run)
        else:
            unfinished_jobs.append((folder, command(run)))
    run_jobs(unfinished_jobs, workers, say, lambda folder: check_run(run_of_folder[folder]))
    if not _ends_in_two_waves(plan):
        return None
    dearest, unfinished = runs_still_short(plan, places)
    if unfinished:
        say(
            f"{dearest.label} has spent most, {dearest.budget:.3g} {plan.equal}; {count_of(len(unfinished), 'run')} of "
            "other arms will go on until as much is spent (--equal batches compares the same number of batches)"
        )
    for place in unfinished:
        RunDirectory.open(places[place]).extend(plan.ends_at(dearest.budget))
    run_jobs([(places[place], command(place)) for place in unfinished], workers, say)
    return dearest


def _ends_in_two_waves(plan: ComparisonPlan) -> bool:
    """Whether what the dearest arm spends is known when its runs are done, and others then go on until as much is
    spent."""
    return plan.equal not in ("batches", "updates") and plan.budget is None


def goes_on_to_equal_cost(plan: ComparisonPlan, folder: Path) -> bool:
    """Whether the run in ``folder`` was finished, and has been given the dearest arm's cost to spend since."""
    if not _ends_in_two_waves(plan) or is_done(folder):
        return False
    recipe = RunDirectory(folder).read("recipe.json")
    return recipe is not None and recipe["settings"].get(plan.equal) is not None


def runs_still_short(plan: ComparisonPlan, places: Mapping[RunKey, Path]) -> tuple[DearestArm, list[RunKey]]:
    """The arm whose runs have spent most in ``plan.batches``, and the runs of other arms that have not spent as
    much."""
    spent: dict[str, list[float]] = {}
    for place, folder in places.items():
        steps = costs_of(folder)
        spent.setdefault(place.label, []).append(steps[min(plan.batches, len(steps) - 1)][plan.equal])
    means = {label: sum(values) / len(values) for label, values in spent.items()}
    most = DearestArm(*max(means.items(), key=lambda pair: pair[1]))
    others = [place for place in places if place.label != most.label]
    return most, [place for place in others if costs_of(places[place])[-1][plan.equal] < most.budget]


# -- Running commands side by side, a fixed number at a time, each on one thread; if one fails, all are stopped.

POLL_SECONDS = 0.2
PROGRESS_SECONDS = 30.0  # between lines that say how far the runs are
Job = tuple[Path, list[str]]  # the run's directory, the command


def run_jobs(
    jobs: Sequence[Job],
    workers: int,
    say: Callable[[str], None],
    check_done: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Run commands, ``workers`` at a time. What each says goes to ``RUN.log`` next to its directory. ``check_done`` is
    called with the directory of each run that is done.

    Raises UserError for a command that fails, StoppedBySignal, and what ``check_done`` raises; then every run has been
    stopped."""
    waiting = list(jobs)
    began = time.monotonic()
    last_told = began
    first_shares = {folder: share_done(folder) for folder, _ in jobs}  # above 0 for runs that go on
    last_shares = list(first_shares.values())
    last_change = began  # when it was seen that steps had been done
    running: dict[subprocess.Popen[bytes], tuple[Path, BinaryIO]] = {}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", PARALLEL_RUNS: str(min(workers, len(jobs)))}

    def report_job(folder: Path, what: str) -> None:
        say(f"[{time.monotonic() - began:6.0f} s] {folder.parent.name} {folder.name} {what}")

    with stop_on_signal() as stop_signal, _stop_runs_at_exit(running):
        while waiting or running:
            if stop_signal():
                say("stopped; nothing is lost. Go on with the same command")
                raise StoppedBySignal(stop_signal())
            while waiting and len(running) < workers:
                folder, command = waiting.pop(0)
                folder.parent.mkdir(parents=True, exist_ok=True)
                output: BinaryIO = (folder.parent / f"{folder.name}.log").open("ab")
                process = _begin_run(command, output, environment)
                running[process] = (folder, output)
                report_job(folder, "goes on" if command[3] == "resume" else "begins")

            time.sleep(POLL_SECONDS)
            if time.monotonic() - last_told > PROGRESS_SECONDS:
                last_told = time.monotonic()
                shares = [share_done(folder) for folder, _ in jobs]
                if shares != last_shares:
                    last_shares = shares
                    last_change = last_told
                first = list(first_shares.values())
                say(progress_line(shares, first, last_told - began, idle=last_told - last_change))

            for process in [p for p in running if p.poll() is not None]:
                folder, log = running.pop(process)
                log.close()
                if process.returncode != 0:
                    tail = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                    how = f"ended with code {process.returncode}"
                    if process.returncode == -signal.SIGKILL:
                        how = "was killed, as runs are when memory runs out (--workers 1 leaves each more of it)"
                    raise UserError(
                        f"compare: {folder} {how}: {' '.join(tail)}; see {log.name}", code="E_RUN_OF_COMPARISON_FAILED"
                    )
                report_job(folder, f"is done, {len(waiting) + len(running)} to go{alarms_suffix(folder)}")
                check_done(folder)


def progress_line(done: Sequence[float], at_first: Sequence[float], seconds: float, *, idle: float = 0.0) -> str:
    """One line of how far all runs are, from the share of each that is done, now and when they were begun ``seconds``
    ago. ``idle``: seconds in which no step was done, which say nothing of the others: the time that is left does not
    grow by them."""
    finished = sum(one >= 1.0 for one in done)
    share = sum(done) / len(done)
    progress = sum(done) - sum(at_first)
    line = f"[{seconds:6.0f} s] {finished} of {len(done)} runs are done, {share:.0%} of all steps"
    if progress <= 0.0:
        return line
    left = (seconds - idle) / progress * (len(done) - sum(done)) - idle
    return f"{line}, {clock_text(left)} left" if left > 0.0 else f"{line}, the last one {clock_text(idle)} ago"


def share_done(folder: Path) -> float:
    """How much of a run is done, by what ends it; 0 where it has not begun."""
    try:
        if (folder / "summary.json").exists():
            return 1.0
        written = parse_json(read_regular(folder / "recipe.json"))
        return min(0.99, budget_share(written.get("settings", {}) | {"steps": written["steps"]}, costs_of(folder)[-1]))
    except (OSError, ValueError, KeyError, TypeError, CotrainError):
        return 0.0


def alarms_suffix(folder: Path) -> str:
    """The alarms of a run that is done, each once, as the end of a line; nothing where none fired."""
    try:
        fired = parse_json(read_regular(folder / "summary.json"))["alarms"]
        bands = dict.fromkeys(alarm["band"] for alarm in fired)
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"; alarms: {', '.join(bands)}" if bands else ""


TERMINAL_STOPS = (signal.SIGTTIN, signal.SIGTTOU)  # stop a process that talks to the terminal from the background


def _begin_run(command: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the process of a run in a process group of its own: of a Ctrl-C in the terminal it hears from us, once, and
    has time to save where it is.

    The group is in our session. Linux shares a processor among sessions before it looks at their processes
    (``sched_autogroup_enabled``), so that with sessions of their own a hundred runs would weigh as much as a hundred
    users, and nobody could lower them as one. A group that is not in the foreground would be stopped where it reads
    the terminal; in a run such a read fails instead.
    """
    own_mask = signal.pthread_sigmask(signal.SIG_BLOCK, TERMINAL_STOPS)  # which a new process inherits
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, process_group=0
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, own_mask)


@contextmanager
def _stop_runs_at_exit(running: Mapping[subprocess.Popen[bytes], tuple[Path, BinaryIO]]) -> Iterator[None]:
    """Whatever happens inside, no run goes on alone afterwards."""
    try:
        yield
    finally:
        for process, (_, opened) in running.items():
            process.terminate()
            opened.close()
        for process in running:
            process.wait()
