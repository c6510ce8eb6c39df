"""SIGKILL of the processes of a run: its engine, its learners or ranks, and the command itself.

    python -m tests.torture.processes --points 10 --log runs/torture/processes.jsonl     at chosen questions, by Ray
    python -m tests.torture.processes --kills 200 --log runs/torture/at_random.jsonl     at random moments

A point is a question that the run asks the process: of all that an undisturbed run asks, so many are taken at equal
distances, the first among them. Each has a run of its own, in which the process is killed while it answers that
question. At the end weights, optimiser state, metrics, rollouts and the figures per problem must be those of the local
run, bit for bit (``digest`` in ``tests/distributed/test_several.py``).

With ``--kills`` runs of ``CASES`` are made one after the other. After times drawn from the length of the undisturbed
run one of their processes, drawn too, is killed, whatever it does; a command that was killed is resumed. Each run must
end as the undisturbed one of its case. Processes are begun by a server that has torch loaded (``Apart`` in
``tests/distributed/processes.py``), as Ray would take most of the time to import it; all else is a run's own. *Back* is
the time from a kill to the end of the next step, or of the run.

The log has one line a run. With ``--kills`` a script that was stopped goes on behind the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from cotrain.core.errors import ProcessLost
from cotrain.core.seeding import rng_of
from cotrain.distributed.contract import Backend
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.runs import run as loop
from cotrain.trainer.failures import Diverged
from tests.distributed.processes import Apart
from tests.distributed.test_group import recipe as in_parts
from tests.distributed.test_on_ray import Killing
from tests.distributed.test_several import RECIPES, digest

CASES = (  # recipe, ranks, lag
    ("adapters", 1, 0),
    ("EMA teacher", 1, 0),
    ("adapters", 1, 1),
    ("EMA teacher", 1, 1),
    ("adapters", 2, 0),
    ("EMA teacher", 2, 1),
)
AT_ONCE = 5  # kills of one run; then it is let go to its end
VICTIMS = ("engine", "learners", "command")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="adapters", help="see tests/distributed/test_several.py")
    parser.add_argument("--points", type=int, default=10, help="of each process (default: 10)")
    parser.add_argument("--kills", type=int, help="so many at random moments, instead")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn (default: 0)")
    parser.add_argument("--log", type=Path, help="gets a line a run")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    if given.kills is not None:
        return at_random(given.kills, given.seed, given.log or Path("runs/torture/at_random.jsonl"))
    ray = Killing("", ())
    ray.start()
    failed = 0
    try:
        wanted, _ = made(given.recipe, None)
        for what in (ENGINE, LEARNERS):
            calm = Killing(what, ())
            found, usual = made(given.recipe, MultiProcessBackend(calm))
            assert found == wanted, "an undisturbed run by Ray is another one"
            for n in range(given.points):
                point = 1 + n * calm.asked // given.points
                killing = Killing(what, (point,))
                found, seconds = made(given.recipe, MultiProcessBackend(killing))
                same = found == wanted and killing.killed == 1
                failed += not same
                row = {"recipe": given.recipe, "lost": what, "question": point, "of": calm.asked, "same": same,
                       "seconds": round(seconds, 2), "undisturbed_seconds": round(usual, 2)}  # fmt: skip
                print(json.dumps(row), flush=True)
                if given.log is not None:
                    given.log.parent.mkdir(parents=True, exist_ok=True)
                    with given.log.open("a") as log:
                        log.write(json.dumps(row) + "\n")
    finally:
        ray.stop()
    print(f"{2 * given.points} kills, {failed} runs that ended as another run")
    return 1 if failed else 0


def made(recipe: str, backend: Backend | None) -> tuple[dict[str, str], float]:
    """The digest of a run, and its seconds."""
    with tempfile.TemporaryDirectory() as directory:
        begun = time.perf_counter()
        loop.start_run(RECIPES[recipe](), Path(directory) / "run", checkpoint_every=1, backend=backend)
        return digest(Path(directory) / "run"), time.perf_counter() - begun


# -- at random moments


def at_random(kills: int, seed: int, log: Path) -> int:
    """Runs until so many kills have been made, those of ``log`` counted."""
    get_context("forkserver").set_forkserver_preload(["tests.distributed.preloaded"])
    forkserver.ensure_running()
    log.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    calm = {tuple(row["case"]): row for row in rows if "digest" in row}
    made = [row for row in rows if "same" in row]
    while sum(len(row["kills"]) for row in made) < kills:
        case = CASES[len(made) % len(CASES)]
        if case not in calm:
            found = run_of(case, [], random.Random(0))
            row = calm[case] = {"case": case, "digest": found["digest"], "seconds": round(found["seconds"], 2)}
        else:
            draws = rng_of("kills", seed, len(made))
            span = calm[case]["seconds"]
            found = run_of(case, [draws.uniform(0.0, 0.5 * span) for _ in range(AT_ONCE)], draws)
            row = {"case": case, "kills": found["kills"], "seconds": round(found["seconds"], 2)}
            row |= {"same": found["digest"] == calm[case]["digest"], "said": found["said"]}
            made.append(row)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps({name: value for name, value in row.items() if name != "digest"}), flush=True)
    for who in VICTIMS:
        back = [kill["back"] for row in made for kill in row["kills"] if kill["victim"] == who]
        print(f"{who}: {len(back)} kills, back after {statistics.median(back or [0.0]):.1f} s (median)")
    failed = sum(not row["same"] for row in made)
    count = Counter(kill["victim"] for row in made for kill in row["kills"]).total()
    print(f"{count} kills in {len(made)} runs, {failed} runs that ended as another run")
    return 1 if failed else 0


def run_of(case: tuple[str, int, int], delays: list[float], draws: random.Random) -> dict[str, Any]:
    """A run of a case that loses a process after each of these seconds, from its beginning to its end."""
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    begun, plan, said = time.monotonic(), [(delay, draws.choice(VICTIMS), draws.random()) for delay in delays], ""
    events = folder / "events.jsonl"
    for _ in range(2 * AT_ONCE + 2):
        done = events_of(events, "kill")
        child = os.fork()
        if child == 0:
            attempt(case, folder, plan[len(done) :])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            break
        if code != -signal.SIGKILL and code != 3:
            said = (folder / "error.txt").read_text() if (folder / "error.txt").exists() else f"exit code {code}"
            break
    ended, steps = time.monotonic(), [event["at"] for event in events_of(events, "step")]
    kills = [
        {
            "victim": kill["victim"],
            "back": round(min((at for at in steps if at > kill["at"]), default=ended) - kill["at"], 2),
        }
        for kill in events_of(events, "kill")
    ]
    found = {} if said else digest(folder / "run")
    shutil.rmtree(folder)
    return {"digest": found, "seconds": ended - begun, "kills": kills, "said": said}


def events_of(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def attempt(case: tuple[str, int, int], folder: Path, plan: Sequence[tuple[float, str, float]]) -> None:
    """The command, in a process of its own: begins the run or goes on with it. Exit code 3: it lost processes three
    times in one step, or as it began, and ended with the reason."""
    name, world, lag = case
    os.setsid()
    forkserver._forkserver.ensure_running = lambda: None  # the parent's serves
    code, launcher = 1, Apart()
    try:
        sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
        watch = Watch(folder / "events.jsonl", launcher)
        threading.Thread(target=watch.kill, args=(plan,), daemon=True).start()
        backend, out = MultiProcessBackend(launcher, world=world), folder / "run"
        if (out / "recipe.json").exists():
            loop.resume_run(in_parts(name), out, backend=backend, observer=watch)
        else:
            loop.start_run(in_parts(name), out, checkpoint_every=1, backend=backend, observer=watch, async_steps=lag)
        code = 0
    except (Diverged, ProcessLost):
        code = 3
    except BaseException:  # noqa: BLE001  told to the parent
        (folder / "error.txt").write_text(traceback.format_exc())
    finally:
        launcher.stop()
        os._exit(code)


class Watch:
    """Observes a run, and kills its processes."""

    def __init__(self, events: Path, launcher: Apart) -> None:
        self._file, self._launcher, self._writing = events.open("a"), launcher, threading.Lock()

    def message(self, text: str) -> None: ...

    def update(self, row: Any) -> None:
        self._tell({"kind": "step", "step": row["step"]})

    def kill(self, plan: Sequence[tuple[float, str, float]]) -> None:
        """After each delay, in turn: who, and which of them as a share."""
        for delay, victim, share in plan:
            time.sleep(delay)
            if victim == "command":
                self._tell({"kind": "kill", "victim": victim})
                os.kill(os.getpid(), signal.SIGKILL)
            while not (alive := self._alive(victim)):
                time.sleep(0.05)
            self._tell({"kind": "kill", "victim": victim})
            alive[int(share * len(alive))].kill()

    def _alive(self, victim: str) -> list[Any]:
        words = ENGINE if victim == "engine" else LEARNERS
        return [p.process for p in list(self._launcher.processes) if p.what.startswith(words) and p.process.is_alive()]

    def _tell(self, event: dict[str, Any]) -> None:
        with self._writing:
            self._file.write(json.dumps(event | {"at": time.monotonic()}) + "\n")
            self._file.flush()


if __name__ == "__main__":
    sys.exit(main())
