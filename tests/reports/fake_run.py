"""A made-up run directory with believable curves and episodes, for looking at pages and for tests."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from cotrain.core.seeding import Address, rng_of
from cotrain.core.statistics import Estimate
from cotrain.core.types import Episode, Reward, Trace
from cotrain.storage.ledger import Ledger

NOUNS = ("apples", "pears", "plums", "coins", "shells", "cards")
START = {"pass@1": 0.34, "pass@8": 0.71, "majority@8": 0.43, "step_accuracy": 0.66, "greedy": 0.36}
END = {"pass@1": 0.62, "pass@8": 0.83, "majority@8": 0.68, "step_accuracy": 0.83, "greedy": 0.63}
CHECK_START = {
    "balanced_accuracy": 0.53,
    "true_positive_rate": 0.81,
    "true_negative_rate": 0.25,
    "error_f1": 0.38,
    "step_balanced_accuracy": 0.61,
    "processbench_f1": 0.22,
    "calibration_error": 0.31,
    "base_rate": 0.34,
}
CHECK_END = {
    "balanced_accuracy": 0.74,
    "true_positive_rate": 0.78,
    "true_negative_rate": 0.70,
    "error_f1": 0.66,
    "step_balanced_accuracy": 0.79,
    "processbench_f1": 0.51,
    "calibration_error": 0.12,
    "base_rate": 0.62,
}


def share(successes: int, n: int) -> Estimate:
    """An invented interval of plausible width."""
    p = successes / n
    return Estimate(value=p, low=max(0.0, p - 1 / n**0.5), high=min(1.0, p + 1 / n**0.5), n=n)


def write_fake_run(directory: Path, *, steps: int = 160, summary: bool = True, episodes: int = 24) -> Path:
    """Write a whole run directory; ``episodes`` per recorded step (every fourth step is recorded)."""
    directory.mkdir(parents=True, exist_ok=True)
    write(
        directory / "recipe.json",
        {
            "name": "tango",
            "steps": steps,
            "seed": 7,
            "checkpoint_every": 25,
            "description": "A generator and a step-wise generative verifier, trained in turn.\n\nThe verifier never "
            "sees a step"
            " label: it is paid only when its final verdict agrees with the truth (arXiv 2505.15034).",
            "settings": {
                "tasks_per_step": 16,
                "group_size": 8,
                "schedule": {"cycle": ["generator"] * 3 + ["verifier"]},
            },
        },
    )
    write(
        directory / "provenance.json",
        {"packages": {"torch": "2.13.0"}, "python": "3.11.9", "threads": 2, "device": "cpu"},
    )
    rows: list[dict[str, Any]] = []
    updates = {"generator": 0, "verifier": 0}
    for step in range(steps):
        if step % 20 == 0:
            rows.append(evaluation_row(step - 1, steps))
        rows.append(training_row(step, steps, updates))
    rows.append(evaluation_row(steps - 1, steps))
    with (directory / "metrics.jsonl").open("w") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    if summary:
        write(
            directory / "summary.json",
            {
                "recipe": "tango",
                "seed": 7,
                "steps": steps,
                "tokens": 11_482_113,
                "updates": updates,
                "before": figures(START, CHECK_START),
                "after": figures(END, CHECK_END),
            },
        )
    with Ledger(directory / "episodes") as ledger:
        for step in range(0, steps, 4):
            made = [episode(step, steps, i) for i in range(episodes)]
            worth = {str(e.traces[0].address): {"generator": [[0.7, 1], [-0.4, 1]]} for e in made}
            ledger.append(step, made, worth)
    return directory


def write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


def figures(solver: dict[str, float], verifier: dict[str, float]) -> dict[str, Any]:
    found = {f"solver/{key}": share(round(value * 512), 512).to_json() for key, value in solver.items()}
    found |= {
        f"solver/hard/{key}": share(round(value * 90), 200).to_json()
        for key, value in solver.items()
        if key == "pass@1"
    }
    return found | {f"verifier/{key}": share(round(value * 490), 490).to_json() for key, value in verifier.items()}


def rise(step: int, steps: int, low: float, high: float) -> float:
    return low + (high - low) / (1 + math.exp(-7 * (step / steps - 0.45)))


def training_row(step: int, steps: int, updates: dict[str, int]) -> dict[str, Any]:
    rng = rng_of("fake", step)
    warm = step < 15
    phase = "warmup" if warm else ("verifier" if step % 4 == 3 else "generator")
    trained = "verifier" if warm or phase == "verifier" else "generator"
    updates[trained] += 1

    def noisy(low: float, high: float, spread: float = 0.04) -> float:
        return min(1.0, max(0.0, rise(step, steps, low, high) + rng.gauss(0, spread)))

    accuracy, positive, negative = noisy(0.34, 0.62), noisy(0.82, 0.78), noisy(0.22, 0.7, 0.07)
    said = accuracy * positive + (1 - accuracy) * (1 - negative)
    row = {
        "step": step,
        "phase": phase,
        "seconds": 2.0 + rng.random(),
        "tokens": 70_000 * (step + 1),
        "gap": said - accuracy,
        "solver/reward/outcome": accuracy,
        "solver/reward/step": noisy(0.3, 0.7) * 2 - 1,
        "solver/reward/format": noisy(0.9, 0.99, 0.01),
        "solver/accuracy": accuracy,
        "solver/step_accuracy": noisy(0.66, 0.83),
        "solver/sound_when_correct": noisy(0.8, 0.93),
        "solver/length": 80 + 12 * noisy(0, 1),
        "solver/truncated": 0.01 * rng.random(),
        "solver/parse_failures": 0.08 * (1 - step / steps),
        "solver/parse_failure/no answer": rng.randint(0, 3),
        "solver/tokens": 40_000,
        "solver/traces": 128,
        "verifier/reward/agreement": accuracy * positive + (1 - accuracy) * negative,
        "verifier/reward/class_label": accuracy,
        "verifier/balanced_accuracy": (positive + negative) / 2,
        "verifier/true_positive_rate": positive,
        "verifier/true_negative_rate": negative,
        "verifier/step_balanced_accuracy": noisy(0.61, 0.79),
        "verifier/predicted_positive": said,
        "verifier/base_rate": accuracy,
        "verifier/parse_failures": 0.2 * (1 - 0.2 * step / steps),
        "verifier/length": 96 + 10 * noisy(0, 1),
        "verifier/tokens": 30_000,
        "verifier/truncated": 0.0,
        "verifier/traces": 128,
        f"{trained}/updates": updates[trained],
        f"{trained}/grad_norm": 0.4 + 0.2 * rng.random(),
        f"{trained}/lr": 1e-4,
        f"{trained}/{trained}/loss": rng.gauss(0, 0.02),
        f"{trained}/{trained}/entropy": 0.5 - 0.35 * step / steps,
        f"{trained}/{trained}/kl": 0.3 * step / steps * (0.9 + 0.2 * rng.random()),
        f"{trained}/zero_spread_groups": noisy(0.25, 0.5),
        f"{trained}/dropped/zero_spread": rng.randint(10, 60),
    }
    if step == 40:
        row["failures/grader ran out of time"] = 2
    return row


def evaluation_row(step: int, steps: int) -> dict[str, Any]:
    values = {f"solver/{k}": rise(step, steps, START[k], END[k]) for k in START}
    values |= {f"verifier/{k}": rise(step, steps, CHECK_START[k], CHECK_END[k]) for k in CHECK_START}
    return {"step": step, "kind": "evaluation", "tokens": 1, "updates/generator": 3} | {
        f"eval/{k}": v for k, v in values.items()
    }


def episode(step: int, steps: int, task: int) -> Episode:
    """A word problem with a solution that may go wrong, and a review that may be mistaken or unreadable."""
    rng = rng_of("fake episode", step, task)
    names, first = rng.sample(NOUNS, 4), rng.randint(4, 19)
    problem, texts, truth, derivations, value = f"There are {first} {names[0]}.", [], [], [], first
    wrong = rng.random() > rise(step, steps, 0.34, 0.62)
    slip = rng.randrange(3) if wrong else None
    for i in range(3):
        more = rng.randint(2, 9)
        problem += f" There are {more} more {names[i + 1]} than {names[i]}."
        result = value + more + (1 if i == slip else 0)
        texts.append(f" {names[i + 1]}= {names[i]}+{more}={value}+{more}={result}")
        derivations.append(f" {names[i + 1]}= {names[i]}+{more}={value}+{more}={value + more}|{result}")
        truth.append(i != slip)
        value = result
    problem += f" How many {names[3]} are there?"
    solution = "".join(f"<step>{t}</step>" for t in texts) + f"<answer>{value}</answer>"
    seen = rng.random() < rise(step, steps, 0.3, 0.75)
    verdicts = [ok or not seen for ok in truth]
    if rng.random() < 0.12:
        verdicts[rng.randrange(3)] = False
    final = all(verdicts)
    spans, at = [], 0
    for text in texts:
        at = solution.index(text, at)
        spans.append([at, at + len(text), text])
    speaker = Address(step=step, task=task, member=0, role="solver", call=0)
    solver = trace(
        speaker,
        "solver",
        "generator",
        step,
        solution,
        None,
        {"problem": problem, "steps": spans, "answer": str(value)},
        {
            "correct": not wrong,
            "step_ok": truth,
            "step_reasons": ["" if ok else "arithmetic" for ok in truth],
            "first_wrong": slip,
            "gold": str(value - wrong),
        },
        [("outcome", float(not wrong)), ("format", 1.0), *(("step", 1.0 if v else -1.0) for v in verdicts)],
    )
    word = {True: "CORRECT", False: "INCORRECT"}
    review = (
        "".join(f"<step>{d} {word[v]}</step>" for d, v in zip(derivations, verdicts, strict=True))
        + f"<final>{word[final]}</final>"
    )
    unreadable = rng.random() < 0.08
    verifier = trace(
        Address(step=step, task=task, member=0, role="verifier", call=0),
        "verifier",
        "verifier",
        step // 3,
        review[: len(review) // 2] if unreadable else review,
        str(speaker),
        {"failure": "unclosed step"} if unreadable else {"steps": verdicts, "final": final, "score": 0.9},
        {"correct": not wrong, "step_ok": truth},
        [("agreement", float(not unreadable and final is not wrong)), ("class_label", float(not wrong))],
    )
    return Episode(step=step, task=task, member=0, task_id=f"words/train/{task}", traces=(solver, verifier))


def trace(
    address: Address,
    role: str,
    policy: str,
    version: int,
    text: str,
    parent: str | None,
    parsed: dict[str, Any],
    truth: dict[str, Any],
    rewards: list[tuple[str, float]],
) -> Trace:
    return Trace(
        address=address,
        role=role,
        policy=policy,
        version=version,
        group=f"{address.task}:{role}",
        prompt_ids=(1, 2),
        token_ids=(3, 4),
        logprobs=(-0.5, -0.25),
        entropies=bytes([22, 0]),
        text=text,
        finish="stop",
        rewards=tuple(Reward(name=name, value=value) for name, value in rewards),
        findings=parsed,
        metadata=truth,
        parent=parent,
    )


if __name__ == "__main__":
    import sys

    from cotrain.reports.run_report import write_report

    print(write_report(write_fake_run(Path(sys.argv[1]))))
