"""How fast the viewer opens a long run, and what watching costs a run.

    python benchmarks/viewer.py make DIR [--steps 10000] [--rollouts 10]   a made-up run of 100,000 rollouts
    python benchmarks/viewer.py open DIR                                   seconds until its first screens can be drawn
    python benchmarks/viewer.py page DIR [--rounds 3]                      the same in a browser, and an empty page
    python benchmarks/viewer.py watched DIR COMMAND …                      a run in DIR by COMMAND, followed by a viewer
    python benchmarks/viewer.py alone DIR COMMAND …                        the same without one

Each prints JSON with seconds by the clock and of the processor. ``open`` is what the server does between the first
request and the answer to the last one that the overview needs: it reads every row of metrics and the list of the
ledger; rollouts are indexed afterwards, in the background, and ``indexed`` tells how long that takes in all.
``page`` drives Chromium as the tests do: seconds from asking for the address until the first curves of the Overview are
drawn, and then, while rows are still read, the longest time between two frames of scrolling through it; ``empty`` is
the time until an empty page is there, and its longest frame. ``watched`` asks as an open page does: for a stamp every
two seconds at most, and for all documents when it changes. Compare by ``benchmarks/harness.py --key train_cpu``, with a
DIR that each command makes anew.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotrain.core.seeding import Address, rng_of
from cotrain.core.types import Episode, Reward, Trace
from cotrain.reports.places import find_places
from cotrain.reports.view_server import HOST, Viewer, listen
from cotrain.storage.ledger import Ledger

SHOWN = ("accuracy", "reward/outcome", "reward/step", "reward/format", "length", "truncated", "parse_failures",
         "balanced_accuracy", "true_positive_rate", "true_negative_rate", "predicted_positive", "base_rate",
         "tokens", "traces")  # fmt: skip
LEARNED = (
    "loss",
    "entropy",
    "kl",
    "grad_norm",
    "lr",
    "clip_fraction",
    "zero_spread_groups",
    "updates",
    "flops/sampling",
    "flops/learning",
)
WAIT, SHARE = 2.0, 0.005  # seconds between looks at least, and of a core at most, as the page does


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "open", "page", "watched", "alone"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rollouts", type=int, default=10, help="of a step")
    parser.add_argument("--rounds", type=int, default=3)
    own = 3 if sys.argv[1:2] in (["watched"], ["alone"]) else len(sys.argv)  # what follows is the command's
    given, command = parser.parse_args(sys.argv[1:own]), sys.argv[own:]
    if given.what == "make":
        print(json.dumps(make(given.directory, given.steps, given.rollouts)))
    elif given.what == "open":
        print(json.dumps(opened(given.directory)))
    elif given.what == "page":
        print(json.dumps(paged(given.directory, given.rounds)))
    else:
        print(json.dumps(trained(given.directory, command, watched=given.what == "watched")))


def make(directory: Path, steps: int, rollouts: int) -> dict[str, Any]:
    directory.mkdir(parents=True)
    (directory / "recipe.json").write_text(json.dumps({"name": "long", "steps": steps, "seed": 0, "settings": {}}))
    with (directory / "metrics.jsonl").open("w") as file:
        for step in range(steps):
            rng = rng_of("long", step)
            row: dict[str, Any] = {
                "step": step,
                "phase": "generator",
                "tokens": 70_000 * (step + 1),
                "gap": rng.random() / 20,
            }
            row |= {f"{role}/{name}": rng.random() for role in ("solver", "verifier") for name in SHOWN}
            row |= {f"{policy}/{name}": rng.random() for policy in ("generator", "verifier") for name in LEARNED}
            file.write(json.dumps(row | {"generator/updates": step + 1, "verifier/updates": step // 3}) + "\n")
    with Ledger(directory / "episodes") as ledger:
        for step in range(steps):
            ledger.append(step, [episode(step, place) for place in range(rollouts)])
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return {"steps": steps, "rollouts": steps * rollouts, "megabytes": round(size / 1e6, 1)}


def episode(step: int, place: int) -> Episode:
    """One solution of about 60 tokens and one review of it."""
    rng = rng_of("long episode", step, place)
    task, member, right = place // 5, place % 5, rng.random() < 0.5
    steps = [f" a{i} = {rng.randint(2, 99)} + {rng.randint(2, 99)} = {rng.randint(2, 99)}" for i in range(3)]
    text = "".join(f"<step>{one}</step>" for one in steps) + f"<answer>{rng.randint(2, 99)}</answer>"
    speaker = Address(step=step, task=task, member=member, role="solver", call=0)
    parsed = {"problem": f"There are {rng.randint(2, 99)} apples and {rng.randint(2, 99)} pears. How many are there?",
              "steps": [[0, 1, one] for one in steps], "answer": str(rng.randint(2, 99))}  # fmt: skip
    truth = {
        "correct": right,
        "step_ok": [True, right, right],
        "step_reasons": ["", "arithmetic", "premise"],
        "gold": "12",
    }
    speech = trace(rng, speaker, text, None, parsed, truth, [Reward(name="outcome", value=float(right))])
    verifier = Address(step=step, task=task, member=member, role="verifier", call=0)
    said = {"steps": [True, rng.random() < 0.7, True], "final": rng.random() < 0.5, "score": rng.random()}
    review = trace(
        rng, verifier, "<step>CORRECT</step>" * 3, str(speaker), said, truth, [Reward(name="agreement", value=1.0)]
    )
    return Episode(step=step, task=task, member=member, task_id=f"words/train/{step}-{task}", traces=(speech, review))


def trace(
    rng: Any, address: Address, text: str, parent: str | None, parsed: Any, truth: Any, paid: Sequence[Reward]
) -> Trace:
    ids = tuple(rng.randint(0, 400) for _ in range(60))
    return Trace(
        address=address, role=address.role, policy=address.role, version=address.step, group=str(address.task),
        prompt_ids=ids,
        token_ids=ids, logprobs=tuple(-rng.random() for _ in ids), text=text, finish="stop", rewards=tuple(paid),
        findings=parsed,
        metadata=truth, parent=parent,
    )  # fmt: skip


def opened(directory: Path) -> dict[str, Any]:
    clock, spent = time.monotonic(), time.process_time()
    with Viewer(find_places(directory), directory) as viewer, listen(viewer, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://{HOST}:{server.server_address[1]}/{viewer.token}/"
        size = sum(len(ask(base + path)) for path in ("", "api/runs", "api/0/stamp", "api/0/overview"))
        overview = {"clock": time.monotonic() - clock, "cpu": time.process_time() - spent}
        print(json.dumps({"overview": overview}), flush=True)  # the rest takes a while
        rows = json.loads(ask(base + "api/0/rows?from=0"))
        listed = {"clock": time.monotonic() - clock, "cpu": time.process_time() - spent, "rollouts": len(rows["rows"])}
        run = viewer.find_run("0")
        while run.rollouts.read_step_count() < rows["steps"]:
            time.sleep(0.2)
        indexed = {
            "clock": time.monotonic() - clock,
            "cpu": time.process_time() - spent,
            "rollouts": run.rollouts.episodes,
        }
        server.shutdown()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"overview": overview, "list": listed, "indexed": indexed}
    return {
        "bytes": size,
        "peak_mib": round(peak),
        **{k: {n: round(v, 2) for n, v in each.items()} for k, each in found.items()},
    }


FRAMES = """new Promise((end) => {
  let longest = 0, last = performance.now(), at = 0;
  const step = (now) => {
    longest = Math.max(longest, now - last); last = now; at += 1;
    scrollTo(0, at * 20);
    at < 120 ? requestAnimationFrame(step) : end(longest);
  };
  requestAnimationFrame(step);
})"""  # 2 s of scrolling at 60 frames a second


def paged(directory: Path, rounds: int) -> dict[str, Any]:
    """Each round with a viewer and a browser of its own, which has drawn an empty page first."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "view"))
    from browser import Browser  # the tests' own, which needs pytest

    found: dict[str, list[float]] = {}

    def note(**values: float) -> None:
        for name, value in values.items():
            found.setdefault(name, []).append(round(value, 2))

    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, Browser(Path(folder)) as browser:
            began = time.monotonic()
            browser.open("data:text/html,<main style='height:5000px'>empty</main>")
            browser.wait("document.querySelector('main')")
            note(empty_clock=time.monotonic() - began)
            note(empty_longest_frame=browser.run(FRAMES) / 1000)
            server = subprocess.Popen(
                [sys.executable, __file__, "serve", str(directory)], stdout=subprocess.PIPE, text=True
            )
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            loaded = processor(server.pid)
            began = time.monotonic()
            browser.open(address)
            browser.wait("document.querySelectorAll('canvas').length > 3", 300)
            note(overview_clock=time.monotonic() - began, overview_server_cpu=processor(server.pid) - loaded)
            note(longest_frame=browser.run(FRAMES) / 1000)
            began = time.monotonic()
            browser.run("location.hash = '#rollouts'")
            browser.wait("document.querySelectorAll('.rows tbody tr').length > 10", 300)
            note(list_clock=time.monotonic() - began)
            server.kill()
            server.wait()
    return found


def processor(pid: int) -> float:
    """Seconds of the processor that a process has taken so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(directory: Path) -> None:
    """The viewer alone; its first line is its address."""
    with Viewer(find_places(directory), directory) as viewer, listen(viewer, 0) as server:
        print(f"http://{HOST}:{server.server_address[1]}/{viewer.token}/", flush=True)
        server.serve_forever()


def ask(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return bytes(answer.read())


def trained(directory: Path, command: Sequence[str], *, watched: bool) -> dict[str, Any]:
    """``train_cpu``: processor seconds of the training process; ``view_cpu``: of the viewer."""
    shutil.rmtree(directory, ignore_errors=True)
    began = time.monotonic()
    training = subprocess.Popen([*command, "--out", str(directory)], stdout=subprocess.DEVNULL)
    viewer = None
    if watched:
        viewer = subprocess.Popen([sys.executable, __file__, "follow", str(directory)])
    _, status, used = os.wait4(training.pid, 0)
    seconds = time.monotonic() - began
    found = {"seconds": round(seconds, 2), "train_cpu": round(used.ru_utime + used.ru_stime, 2), "status": status}
    if viewer is not None:
        viewer.terminate()
        _, _, own = os.wait4(viewer.pid, 0)
        found["view_cpu"] = round(own.ru_utime + own.ru_stime, 2)
    return found


def follow(directory: Path) -> None:
    """The viewer with one open page, until it is ended."""
    while not (directory / "metrics.jsonl").is_file():
        time.sleep(0.5)
    with Viewer(find_places(directory), directory) as viewer, listen(viewer, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base, last, known = f"http://{HOST}:{server.server_address[1]}/{viewer.token}/api/0/", b"", 0
        while True:
            stamp, spent = timed(base + "stamp")
            if stamp != last:
                last = stamp
                spent += timed(base + "overview")[1]
                rows, more = timed(f"{base}rows?from={known}")
                known += len(json.loads(rows)["rows"])
                spent += more + timed(base + "verifier")[1]
            time.sleep(max(WAIT, min(60.0, spent / SHARE)))


def timed(address: str) -> tuple[bytes, float]:
    """An answer, and the processor seconds that it took the server."""
    with urllib.request.urlopen(address, timeout=60) as answer:
        told = answer.headers["Server-Timing"].partition("dur=")[2]
        return bytes(answer.read()), float(told) / 1000


if __name__ == "__main__":
    if sys.argv[1:2] in (["follow"], ["serve"]):
        (follow if sys.argv[1] == "follow" else serve)(Path(sys.argv[2]))
    else:
        main()
