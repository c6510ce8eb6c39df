"""Peak memory of training one policy or two, with weights of their own or as adapters on one base.

    python benchmarks/memory.py --model DIR --roles 1|2 [--lora 16] [--offload] [--bf16] [--device cuda]

Each role answers every prompt and learns from its answers by GRPO, all in one step, as a co-training phase does. What
is reported is the most that the device (on a CPU: the process) has held, at the end of the steps.
"""

from __future__ import annotations

from grpo_step import LR, Imposed, Prompts
from work import Work, answer, now, peak, reward, side, work_of

from cotrain.algorithms.grpo import GRPO
from cotrain.config.edits import with_policies
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import adapter, trainable
from cotrain.config.recipe import Objective, Recipe
from cotrain.config.schedule import constant_schedule
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Sampling, Task
from cotrain.distributed.local import LocalBackend
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Roles
from cotrain.trainer.trainer import CoTrainer

ROLES = ("solver", "verifier")


@gives(OUTCOME)
async def respond_alone(task: Task, roles: Roles) -> None:
    turn = await roles.solver(problem=task.prompt)
    turn.reward(OUTCOME, reward(turn.completion.token_ids))


@gives(OUTCOME)
async def respond_both(task: Task, roles: Roles) -> None:
    await respond_alone(task, roles)
    turn = await roles.verifier(problem=task.prompt)
    turn.reward(OUTCOME, reward(turn.completion.token_ids))


def recipe_of(work: Work, model: str, steps: int, *, roles: int, lora: int, bf16: bool) -> Recipe:
    names = ROLES[:roles]
    protocol = respond_both if roles == 2 else respond_alone
    policy = adapter(model, rank=lora, lr=LR, autocast=bf16) if lora else trainable(model, lr=LR, autocast=bf16)
    return Recipe(
        name="memory",
        tasks=Prompts(work.prompts(work.tasks * steps)),
        steps=steps,
        seed=0,
        tasks_per_step=work.tasks,
        group_size=work.group,
        policies=dict.fromkeys(names, policy),
        roles={
            name: Role(policy=name, prompt="{problem}", sampling=Sampling(max_tokens=work.longest)) for name in names
        },
        objectives={
            name: Objective(policy=name, role=name, algorithm=GRPO(reward_weights={OUTCOME: 1.0})) for name in names
        },
        schedule=constant_schedule(protocol, *names),
        evaluation=Evaluation(protocol=protocol, measures=()),
    )


def main() -> None:
    parser = side(__doc__.splitlines()[0])
    parser.add_argument("--roles", type=int, choices=(1, 2), required=True)
    parser.add_argument("--offload", action="store_true", help="who rests lies in the machine's own memory")
    given = parser.parse_args()
    work, steps = work_of(given), given.warmup + given.steps
    recipe = recipe_of(work, given.model, steps, roles=given.roles, lora=given.lora, bf16=given.bf16)
    if given.offload:
        recipe = with_policies(recipe, recipe.policies, offload=True)
    trainer = CoTrainer(recipe, backend=LocalBackend(given.device), wrap_engine=lambda engine: Imposed(engine, work))
    began = now(given.device)
    for _ in range(steps):
        trainer.step()
    assert all(trainer.policies.update_counts[name] == steps for name in ROLES[: given.roles]), "an update was skipped"
    answer(peak_mib=peak(given.device), seconds=(now(given.device) - began) / steps)


if __name__ == "__main__":
    main()
