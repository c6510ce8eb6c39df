"""SIGKILL at random moments over all shipped recipes: each killed run is resumed until it ends, as if never killed.

    python -m tests.torture.kills --kills 1000 --log runs/torture/kills.jsonl
    python -m tests.torture.kills --kills 210 --asked --log runs/torture/signals.jsonl      SIGTERM: asked to stop
    python -m tests.torture.kills --only ssp ssrl --kills 20 --log runs/torture/some.jsonl      some runs alone

A *chain* is one run and its kills. Half of the kills come after a time drawn from the length of the undisturbed run;
the other half at a file operation drawn from those that it makes, before the operation or in the middle of a write.
Early moments are drawn more often, so that a run is killed several times on its way. Beside them a *sweep* kills one
small run once at every file operation it makes. At the end weights, moments, metrics, rollouts and summary must be
those of the undisturbed run, bit for bit (``digest`` in ``tests/runs/test_run.py``). With ``--asked`` a run is sent
SIGTERM at such a time; it must save and end by itself.

The server imports torch once and forks a child for every attempt; it computes nothing itself, as threads do not survive
a fork. The log has one line a chain: where the script is stopped, the next call goes on behind the last line. What is
drawn follows from the seed; at which line of code a kill by time strikes depends on the machine.

Left out: power loss (``tests/storage/test_power_loss.py``) and graders that are killed (``tests/data/``).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from cotrain.config.recipe import Recipe
from cotrain.config.registry import find_recipe
from cotrain.core.seeding import rng_of
from cotrain.runs import run as loop
from cotrain.storage import file_ops as disk
from cotrain.trainer.failures import Interrupted
from tests.helpers import EASY
from tests.recipes import test_recipes as shipped
from tests.runs.test_run import CASTS, SMALL, digest
from tests.storage.fault_files import FaultyFiles

ROOT = Path(__file__).resolve().parents[2]
SWEPT = "grpo-oracle"  # killed once at every file operation
MOST_KILLS = 8  # of one chain; then it is let go to its end
LONG = 300.0  # seconds after which an attempt counts as hung
IMPORTED = ("transformers.models.llama.modeling_llama", "peft", "safetensors.torch", "sympy", "cotrain.models.adapters")
FEWER = {"gram": {"warmup": 2, "steps": 4, "tasks_per_step": 3}}  # steps than there


def cases() -> dict[str, Callable[[], Recipe]]:
    """Every shipped recipe, some in several forms, with a tiny model and few steps."""
    made: dict[str, Callable[[], Recipe]] = {name: lambda make=make: make(EASY) for name, make in CASTS.items()}
    made |= {name: lambda name=name: _small(name) for name in shipped.CASES if ":" not in name}
    made["demo"] = lambda: _brief(find_recipe("demo")(**SMALL, steps=3, warmup=1))
    return made


def _small(name: str) -> Recipe:
    arguments: dict[str, Any] = {"tasks": EASY, **shipped.SMALL, **shipped.CASES[name], **FEWER.get(name, {})}
    build = find_recipe(name)
    taken = set(build.parameters)
    return _brief(build(**{k: v for k, v in arguments.items() if k in taken} | {"evaluation_tasks": 1}))


def _brief(made: Recipe) -> Recipe:
    return replace(made, evaluation=replace(made.evaluation, group_size=2, greedy=False, splits=()))


class KilledFiles(FaultyFiles):
    """Kills this process by SIGKILL at a file operation."""

    def _fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When an attempt is killed."""

    by: str  # "time", "operation", or "signal": SIGTERM after a time
    at: float  # seconds, or the number of the operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The run of a case in peace."""

    digest: str
    seconds: float
    operations: int


def attempt(recipe: Recipe, folder: Path, kill: Kill | None, told: Path) -> int:
    """Begin or go on with a run in a child; 0: it ended, -9: it was killed, else it failed and ``told`` says why. Of a
    run that is not killed it holds the file operations."""
    child = os.fork()
    if child == 0:
        _child(recipe, folder, kill, told)
    until = time.monotonic() + (kill.at if kill and kill.by != "operation" else LONG)
    pause = 0.001
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() >= until:
            if kill and kill.by == "signal":
                os.kill(child, signal.SIGTERM)
                until, kill = time.monotonic() + LONG, None
                continue
            with suppress(ProcessLookupError):  # it is so young that it has no group yet
                os.killpg(child, signal.SIGKILL)  # with whatever it has started
            os.kill(child, signal.SIGKILL)
            found = os.waitpid(child, 0)
            if kill is None or kill.by != "time":
                told.write_text("it hung")
                return 1
            break
        time.sleep(pause)
        pause = min(pause * 1.5, 0.02)
    return os.waitstatus_to_exitcode(found[1])


def _child(recipe: Recipe, folder: Path, kill: Kill | None, told: Path) -> None:
    code = 1
    try:
        os.setsid()
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        layer = KilledFiles("kill", int(kill.at) if kill and kill.by == "operation" else None)
        disk.REAL_FILES.__dict__.update(vars(layer))
        disk.REAL_FILES.__class__ = KilledFiles  # below every writer of the package
        begun = (folder / "recipe.json").exists()
        loop.resume_run(recipe, folder) if begun else loop.start_run(recipe, folder, checkpoint_every=1)
        if kill is None:
            told.write_text(json.dumps({"operations": disk.REAL_FILES.count}))
        code = 0
    except Interrupted as stopped:
        code = -stopped.signal
    except BaseException:  # noqa: BLE001 - told to the parent
        told.write_text(traceback.format_exc())
    finally:
        if code < 0:  # ends as a command does that a signal has ended
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)


def reference(name: str, make: Callable[[], Recipe], place: Path, log: Path) -> Reference:
    """Of the run in peace, which is made once for one state of the source; all workers read it from a file beside the
    log."""
    kept, source = log.with_suffix(".peace.jsonl"), _source()
    for line in lines(kept):
        if (line["case"], line["source"]) == (name, source):
            return Reference(digest=line["digest"], seconds=line["seconds"], operations=line["operations"])
    folder, told = place / "peace", place / "told"
    began = time.monotonic()
    if attempt(make(), folder, None, told) != 0:
        raise SystemExit(f"a run in peace failed:\n{told.read_text()}")
    made = {"seconds": time.monotonic() - began, "digest": digest(folder), **json.loads(told.read_text())}
    shutil.rmtree(folder)
    _write(kept, {"case": name, "source": source, **made})
    return Reference(**made)


def _source() -> str:
    found = hashlib.sha256()
    for file in sorted((ROOT / "cotrain").rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def chain(name: str, make: Callable[[], Recipe], kills: Iterator[Kill], expected: Reference, place: Path) -> dict:
    """One run, killed until ``kills`` or its steps come to an end; what is logged of it."""
    folder, told = place / "run", place / "told"
    shutil.rmtree(folder, ignore_errors=True)
    struck: list[list[Any]] = []
    began = time.monotonic()
    found = {"chain": name, "same": False, "kills": struck, "error": None}
    for kill in (*kills, None):
        code = attempt(make(), folder, kill, told)
        if kill and code == -(signal.SIGTERM if kill.by == "signal" else signal.SIGKILL):
            struck.append([kill.by, round(kill.at, 3), _reached(folder)])
        elif code == 0:
            found["same"] = digest(folder) == expected.digest
            break
        else:
            found["error"] = told.read_text().strip()[-2000:] if told.exists() else f"exit code {code}"
            break
    if found["same"]:
        shutil.rmtree(folder)
    else:
        shutil.move(folder, place.parent / f"kept-{name.replace(':', '-')}-{os.getpid()}-{int(time.time())}")
    return found | {"seconds": round(time.monotonic() - began, 2)}


def _reached(folder: Path) -> str:
    """How far it had come when it was killed: nothing, begun, measured, or rows of metrics; and whether it was
    saving."""
    metrics = folder / "metrics.jsonl"
    saving = any((folder / "checkpoints").glob(".*")) if (folder / "checkpoints").exists() else False
    if metrics.exists():
        stage = f"{len(metrics.read_bytes().splitlines())} rows"
    elif (folder / "before.json").exists():
        stage = "measured"
    else:
        stage = "begun" if (folder / "recipe.json").exists() else "nothing"
    return stage + (", saving" if saving else "")


def drawn(seed: int, number: int, expected: Reference, *, asked: bool) -> Iterator[Kill]:
    """The kills of a random chain."""
    for turn in range(MOST_KILLS):
        chance = rng_of("kill", seed, number, turn)
        if asked:
            yield Kill(by="signal", at=0.1 + chance.random() * expected.seconds)  # not before Python could hear it
        elif chance.random() < 0.5:
            yield Kill(by="time", at=chance.random() ** 2 * expected.seconds)
        else:
            yield Kill(by="operation", at=int(chance.random() ** 2 * expected.operations))


def work(part: int, parts: int, aim: int, seed: int, log: Path, *, asked: bool, only: Sequence[str] = ()) -> None:
    """Every ``parts``-th chain, until the log holds ``aim`` kills. ``only``: of these runs; without the swept one there
    is no sweep."""
    made, known = cases(), dict[str, Reference]()
    names = list(only) or [SWEPT, *(n for n in made if n != SWEPT)]
    with tempfile.TemporaryDirectory(prefix="torture-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as place:
        done, number = {line["chain"] for line in lines(log)}, -1

        def expected(name: str) -> Reference:
            if name not in known:
                known[name] = reference(name, made[name], Path(place), log)
            return known[name]

        operations = expected(SWEPT).operations if SWEPT in names else 0
        while count(log) < aim:
            number += 1
            if number % parts != part:
                continue
            name = names[number // parts % len(names)]
            if (called := f"random:{name}:{number}") not in done:
                kills = drawn(seed, number, expected(name), asked=asked)
                _write(log, chain(called, made[name], kills, expected(name), Path(place)))
            if not asked and number < operations and (called := f"sweep:{SWEPT}:{number}") not in done:
                kills = iter([Kill(by="operation", at=number)])
                _write(log, chain(called, made[SWEPT], kills, expected(SWEPT), Path(place)))


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def count(log: Path) -> int:
    return sum(len(line["kills"]) for line in lines(log))


def _write(log: Path, line: dict[str, Any]) -> None:
    with log.open("ab") as file:  # one write: two workers do not mix
        os.write(file.fileno(), json.dumps(line).encode() + b"\n")


def told(log: Path) -> tuple[str, bool]:
    """The table of a log, and whether every run ended the same."""
    chains, kills, same, stages = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    wrong = []
    for line in lines(log):
        name = line["chain"].split(":")[1]
        chains[name] += 1
        kills[name] += len(line["kills"])
        same[name] += line["same"]
        stages.update(f"by {by}" for by, _, _ in line["kills"])
        stages.update("while saving" for *_, stage in line["kills"] if stage.endswith("saving"))
        if not line["same"]:
            wrong.append(f"{line['chain']}: {line['error'] or 'another digest'}")
    rows = [f"| {n} | {chains[n]} | {kills[n]} | {same[n]} |" for n in sorted(chains)]
    whole = f"| all | {chains.total()} | {kills.total()} | {same.total()} |"
    rest = ", ".join(f"{name}: {n}" for name, n in sorted(stages.items()))
    table = ["| run | runs | kills and resumptions | ended the same |", "|---|---|---|---|", *rows, whole, rest, *wrong]
    return "\n".join(table), not wrong


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--asked", action="store_true", help="SIGTERM instead of SIGKILL")
    parser.add_argument("--only", nargs="+", default=[], metavar="RUN", help="these runs (default: all)")
    parser.add_argument("--log", type=Path, default=ROOT / "runs" / "torture" / "kills.jsonl")
    given = parser.parse_args(argv)
    if unknown := sorted(set(given.only) - set(cases())):
        parser.error(f"there is no run {unknown[0]!r}; there are {', '.join(sorted(cases()))}")
    given.log.parent.mkdir(parents=True, exist_ok=True)
    for name in IMPORTED:  # what every run imports, once
        importlib.import_module(name)
    workers = []
    for part in range(given.workers):
        if (worker := os.fork()) == 0:
            code = 1
            try:
                work(part, given.workers, given.kills, given.seed, given.log, asked=given.asked, only=given.only)
                code = 0
            except BaseException:  # noqa: BLE001 - the worker ends
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(worker)
    codes = [os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers]
    table, good = told(given.log)
    print(table)
    return 0 if good and not any(codes) else 1


if __name__ == "__main__":
    raise SystemExit(main())
