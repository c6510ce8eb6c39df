"""What a base writes when it is asked for a problem: a table of ``docs/bases.md``.

    python benchmarks/proposals.py [MODEL …] [--problems 512] [--source 2 6]

Half of the proposals are asked for beside another problem, half without one. Each text is read by the program that is
the gate of ``proposer_solver``. Then the model solves each of its own problems eight times.
"""

from __future__ import annotations

import argparse
from collections import Counter

from cotrain import Sampling, frozen
from cotrain.core.notes import CORRECT
from cotrain.core.types import ParseFailure, Task
from cotrain.data.word_problems.reader import problem_signature, read_problem, task_of
from cotrain.data.word_problems.source import study_problems
from cotrain.distributed.local import LocalBackend
from cotrain.rollout.common_roles import solver
from cotrain.rollout.proposals import PROPOSE
from cotrain.rollout.protocols import examine
from cotrain.rollout.readers import is_held_out
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Roles, RolloutRunner
from cotrain.trainer.policy_store import PolicyStore

SAMPLES = 8


async def propose(task: Task, roles: Roles) -> None:
    """One problem, and the model's solutions of it where it is one."""
    hint = task.prompt if int(task.id.rpartition("/")[2]) % 2 else ""
    text = (await roles.proposer(hint=hint)).text.strip()
    problem = read_problem(text)
    if not isinstance(problem, ParseFailure):
        own = task_of(problem, f"{task.id}/proposed")
        for turn in await roles.solver.many(SAMPLES, problem=text):
            await examine(own, roles, turn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="*", default=["shipped-proposer"])
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--source", type=int, nargs=2, default=(2, 6), help="steps of the problems that are shown")
    given = parser.parse_args()
    print(f"{given.problems} proposals, {SAMPLES} solutions of each problem\n")
    for model in given.model:
        backend = LocalBackend("cpu")
        store = PolicyStore(backend.open({"model": frozen(model)}, seed=0))
        roles = {
            "proposer": Role(policy="model", prompt=PROPOSE, sampling=Sampling(max_tokens=192)),
            "solver": solver("model", model),
        }
        runner = RolloutRunner(backend.engine, store.renderers, roles, 0)
        source = study_problems(tuple(given.source))
        tasks = [source.get("train", index) for index in range(given.problems)]
        reasons: Counter[str] = Counter()
        depths: dict[int, list[float]] = {}
        names, held_out = set(), 0
        for episode in runner.collect(propose, tasks, step=-1, group_size=1):
            text = next(t for t in episode.traces if t.role == "proposer").text.strip()
            problem = read_problem(text)
            if isinstance(problem, ParseFailure):
                reasons[problem.reason] += 1
                continue
            names.add(problem_signature(problem))
            held_out += is_held_out(text)
            right = [bool(CORRECT.of(t)) for t in episode.traces if t.role == "solver"]
            depths.setdefault(len(problem.needed), []).append(sum(right) / max(1, len(right)))
        valid = sum(map(len, depths.values()))
        print(
            f"{model}: {valid} problems, {len(names)} of them different, {held_out} held out; none: {dict(reasons)}\n"
        )
        print("| steps | problems | solved | solved by some and not all |\n|---|---|---|---|")
        for depth, shares in sorted(depths.items()):
            mixed = sum(0.0 < share < 1.0 for share in shares) / len(shares)
            print(f"| {depth} | {len(shares)} | {sum(shares) / len(shares):.2f} | {mixed:.2f} |", flush=True)


if __name__ == "__main__":
    main()
