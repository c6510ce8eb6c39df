"""SIGKILL of the engine's and of the learners' process of a run by Ray, at points over the whole run.

    python -m tests.torture.processes --points 10 --log runs/torture/processes.jsonl

A point is a question that the run asks the process: of all that an undisturbed run asks, so many are taken at equal
distances, the first among them. Each has a run of its own, in which the process is killed while it answers that
question. At the end weights, optimiser state, metrics, rollouts and the figures per problem must be those of the local
run, bit for bit (``digest`` in ``tests/backend/test_several.py``). The log has one line a run.

The last line counts the kills and the runs that ended as another run.

Left out: several losses in one run (``tests/backend/``), and the death of the command (``tests/torture/kills.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from cotrain.backend.contract import Backend
from cotrain.backend.several import ENGINE, LEARNERS, Several
from cotrain.loop import run as loop
from tests.backend.test_on_ray import Killing
from tests.backend.test_several import RECIPES, digest


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", choices=RECIPES, default="adapters", help="see tests/backend/test_several.py")
    parser.add_argument("--points", type=int, default=10, help="of each process (default: 10)")
    parser.add_argument("--log", type=Path, help="gets a line a run")
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    ray = Killing("", ())
    ray.start()
    failed = 0
    try:
        wanted, _ = made(given.recipe, None)
        for what in (ENGINE, LEARNERS):
            calm = Killing(what, ())
            found, usual = made(given.recipe, Several(calm))
            assert found == wanted, "an undisturbed run by Ray is another one"
            for n in range(given.points):
                point = 1 + n * calm.asked // given.points
                killing = Killing(what, (point,))
                found, seconds = made(given.recipe, Several(killing))
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
        loop.start(RECIPES[recipe](), Path(directory) / "run", checkpoint_every=1, backend=backend)
        return digest(Path(directory) / "run"), time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
