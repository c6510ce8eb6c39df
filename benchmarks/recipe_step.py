"""One generator step of a shipped recipe, ``grpo`` or ``tango``, as a user runs it: the shipped base, real problems.

    python benchmarks/recipe_step.py --recipe grpo|tango [--tasks 32] [--group 8]

Both recipes have the same problems, group size and KL term; Tango's step also samples one review of each solution. Its
verifier steps are not measured. Answers end by themselves; ``--prompt``, ``--new`` and ``--lengths`` are not used.
"""

from __future__ import annotations

from work import answer, middle, now, side, work_of

from cotrain.distributed.local import LocalBackend
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.trainer.trainer import CoTrainer


def main() -> None:
    parser = side(__doc__.splitlines()[0], model=False)
    parser.add_argument("--recipe", choices=("grpo", "tango"), required=True)
    given = parser.parse_args()
    work, device = work_of(given), given.device
    sizes = {"steps": given.warmup + given.steps, "tasks_per_step": work.tasks, "group_size": work.group}
    recipe = grpo(**sizes) if given.recipe == "grpo" else tango(warmup=0, ratio=(sizes["steps"], 1), **sizes)
    trainer = CoTrainer(recipe, backend=LocalBackend(device))
    measured = []
    for step in range(sizes["steps"]):
        before, began = trainer.tokens, now(device)
        result = trainer.step()
        seconds = now(device) - began
        assert result.row["phase"] == "generator"
        if step >= given.warmup:
            stages = {f"{stage}_seconds": spent for stage, spent in result.seconds.items()}
            measured.append({"seconds": seconds, "sampled_tokens": trainer.tokens - before, **stages})
    answer(**middle(measured))


if __name__ == "__main__":
    main()
