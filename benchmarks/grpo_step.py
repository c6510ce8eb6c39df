"""One GRPO step of cotrain: ``CoTrainer.step`` as a run makes it, on the benchmark's work; and each of its parts.

    python benchmarks/grpo_step.py --model DIR [--lengths drawn] [--steps 3] [--packed]

``cotrain run`` chooses by a short probe whether to lay weights out for decoding; here ``--packed`` does.

Without KL, as the other side. A row's length is imposed by lowering the limit of its request. The step's seconds are of
the whole of ``step``: drawing, rollouts, credit, update, metrics. Parts:

    prefill   the engine alone, every answer one token long, on the same prompts
    decode    the engine's seconds in a step, less prefill
    scoring   log-probabilities of the step's answers, without gradient (a reference pass; not part of this step)
    update    the learner's part of the step
    between   the step less the engine's seconds and the update: coroutines, rendering, decoding, reward, credit, rows
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from work import Work, answer, middle, now, peak, reward, side, word, work_of

from cotrain.algorithms.grpo import GRPO
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import adapter, trainable
from cotrain.config.recipe import Objective, Recipe
from cotrain.config.schedule import constant_schedule
from cotrain.core.seeding import Address
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Completion, Episode, Grade, Sampling, StepVerdicts, Task
from cotrain.distributed.local import LocalBackend
from cotrain.inference.contract import Engine, Request
from cotrain.rollout.event_loop import EngineEventLoop, gather
from cotrain.rollout.role import Role
from cotrain.rollout.runner import Roles
from cotrain.trainer.trainer import CoTrainer

POLICY = "generator"
LR = 1e-4


@dataclass(frozen=True, slots=True)
class Prompts:
    """The benchmark's prompts as a task source, and their judge, which nobody asks."""

    prompts: list[tuple[int, ...]]
    name: str = "random"

    def get(self, split: str, index: int) -> Task:
        text = " ".join(map(word, self.prompts[index]))
        return Task(id=f"random/{split}/{index}", prompt=text, gold=None, solution=None, difficulty=0.0, grader=self)

    def size(self, split: str) -> int:
        return len(self.prompts)

    def describe(self) -> dict[str, Any]:
        return {"kind": self.name, "settings": {}}

    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=None, reason="ungraded")

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


@gives(OUTCOME)
async def respond(task: Task, roles: Roles) -> None:
    turn = await roles.solver(problem=task.prompt)
    turn.reward(OUTCOME, reward(turn.completion.token_ids))


class Imposed:
    """An engine that lowers every request's limit to the length that the work imposes."""

    def __init__(self, engine: Engine, work: Work) -> None:
        self.engine, self.work = engine, work
        self.advance, self.publish, self.counts = engine.advance, engine.publish, engine.counts

    async def sample(self, request: Request) -> Completion:
        at = request.address
        length = self.work.answers(at.step)[at.task * self.work.group + at.member]
        return await self.engine.sample(replace(request, sampling=Sampling(max_tokens=length)))


def recipe_of(work: Work, model: str, steps: int, bf16: bool = False, lora: int = 0, pack: bool = False) -> Recipe:
    if lora:
        policy = adapter(model, rank=lora, alpha=2 * lora, lr=LR, autocast=bf16, pack_weights=pack)
    else:
        policy = trainable(model, lr=LR, autocast=bf16, pack_weights=pack)
    return Recipe(
        name="benchmark",
        tasks=Prompts(work.prompts(work.tasks * steps)),
        steps=steps,
        seed=0,
        tasks_per_step=work.tasks,
        group_size=work.group,
        policies={POLICY: policy},
        roles={"solver": Role(policy=POLICY, prompt="{problem}", sampling=Sampling(max_tokens=work.longest))},
        objectives={POLICY: Objective(policy=POLICY, role="solver", algorithm=GRPO(reward_weights={OUTCOME: 1.0}))},
        schedule=constant_schedule(respond, POLICY),
        evaluation=Evaluation(protocol=respond, measures=()),
    )


def prefill(trainer: CoTrainer, episodes: tuple[Episode, ...]) -> float:
    """The engine's seconds for one token after each of the episodes' prompts."""
    before = trainer.engine.counts()[f"{POLICY}/seconds"]
    requests = [
        Request(
            policy=POLICY,
            prompt_ids=episode.traces[0].prompt_ids,
            sampling=Sampling(max_tokens=1),
            stop_ids=(),
            seed=0,
            address=Address(step=0, task=episode.task, member=episode.member, role="solver", call=0),
        )
        for episode in episodes
    ]
    EngineEventLoop().run_to_end(gather(trainer.engine.sample(request) for request in requests), trainer.engine.advance)
    return trainer.engine.counts()[f"{POLICY}/seconds"] - before


def main() -> None:
    parser = side(__doc__.splitlines()[0])
    parser.add_argument("--packed", action="store_true", help="decode with weights laid out for it")
    given = parser.parse_args()
    work, device = work_of(given), given.device
    trainer = CoTrainer(
        recipe_of(work, given.model, given.warmup + given.steps, given.bf16, given.lora, given.packed),
        backend=LocalBackend(device),
        wrap_engine=lambda engine: Imposed(engine, work),
    )
    at_start, measured, sampled_all, learned_all = peak(device), [], 0, 0
    for step in range(given.warmup + given.steps):
        before, began = trainer.engine.counts(), now(device)
        result = trainer.step()
        ended, after = now(device), trainer.engine.counts()
        engine = after[f"{POLICY}/seconds"] - before[f"{POLICY}/seconds"]
        sampled = sum(len(trace.token_ids) for episode in result.episodes for trace in episode.traces)
        assert sampled == sum(work.answers(step)), "lengths were not as imposed"
        sampled_all += sampled
        learned_all += int(result.row[f"{POLICY}/learned_tokens"])
        if step >= given.warmup:
            update = result.seconds["update"]
            measured.append(
                {
                    "seconds": ended - began,
                    "generate_seconds": result.seconds["rollout"],
                    "engine_seconds": engine,
                    "update_seconds": update,
                    "between_seconds": ended - began - engine - update,
                }
            )
    step_peak = peak(device)
    pairs = [(trace.prompt_ids, trace.token_ids) for episode in result.episodes for trace in episode.traces]
    scoring, filling = [], []
    for _ in range(given.steps):
        filling.append({"prefill_seconds": prefill(trainer, result.episodes)})
        began = now(device)
        trainer.policies[POLICY].logprobs(pairs)
        scoring.append({"scoring_seconds": now(device) - began})
    figures = middle(measured) | middle(filling) | middle(scoring)
    figures["decode_seconds"] = figures["engine_seconds"] - figures["prefill_seconds"]
    answer(
        **figures,
        sampled_tokens=sampled_all,
        learned_tokens=learned_all,
        optimizer_steps=trainer.policies.update_counts[POLICY],
        parameters=sum(tensor.numel() for _, tensor in trainer.policies[POLICY].weights()),
        growth_mib=step_peak - at_start,
        step_peak_mib=step_peak,
    )


if __name__ == "__main__":
    main()
