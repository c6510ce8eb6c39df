"""Contract protocols: small methods that between them use everything a protocol can.

What is proved on these holds for every method, because latency, resuming, engines, processes and devices are properties
of the runner, of addresses, stores and saved state, and not of a method. A recipe need not prove them again.

Rewards are computed from the texts themselves (``score_of``), so the answers of a tiny model differ and every policy
learns at every step.

| recipe        | what it uses                                                                                    |
|---------------|-------------------------------------------------------------------------------------------------|
| groups        | a group of answers, KL to a frozen reference, two updates a batch, refill, grades from outside   |
| reviews       | two policies of unlike tokenizers, a warm-up and a ratio, groups by name, parents, span rewards  |
| conversations | several turns, a tool, stop strings, forks, words put into the mouth, rewards across turns       |
| pool          | a proposer, a store that grows, draws by address, a program that speaks                          |
| followers     | a moving average as reference, an earlier self that speaks, two objectives of one policy         |
| values        | PPO: a critic that learns without speaking, before the generator does (``in_turn``)              |
| adapters      | two adapters on one base that learn from the same episodes, and a protocol that waits            |
| preferences   | written pairs: no model speaks                                                                  |
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from cotrain.algorithms.grpo import GRPO, RLOO, Reinforce
from cotrain.algorithms.policy_gradient import KLPenalty
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import adapter, critic, ema, frozen, program, snapshot, trainable
from cotrain.config.recipe import Objective, Recipe
from cotrain.config.schedule import Phase, Schedule, alternate, constant_schedule
from cotrain.core.notes import CORRECT
from cotrain.core.seeding import rng_of
from cotrain.core.signals import OUTCOME, Signal, gives
from cotrain.core.types import Sampling, Span, Task
from cotrain.metrics.heldout import measure_metadata
from cotrain.recipes.preferences import dpo
from cotrain.rollout.event_loop import gather
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import Roles
from cotrain.rollout.stores import MINTED, REPLAYED, TaskPool
from tests.helpers import EASY, TINY

STYLE = Signal("style")
PART = Signal("part", per="span")
SOLVER = "solver"


def score_of(text: str) -> float:
    """A number in [0, 1) that two different texts hardly share."""
    return zlib.crc32(text.encode()) % 1000 / 1000


def note_score(turn: Turn) -> None:
    """What the evaluation of every contract measures."""
    turn.add_metadata(CORRECT, score_of(turn.text) > 0.5)


def role(policy: str, prompt: str, tokens: int = 12) -> Role:
    return Role(policy=policy, prompt=prompt, sampling=Sampling(max_tokens=tokens))


def small_recipe(name: str, protocol: Callable[..., Any], **parts: Any) -> Recipe:
    """A recipe at its smallest."""
    evaluation = Evaluation(
        protocol=protocol,
        measures=(measure_metadata(SOLVER, CORRECT),),
        tasks=1,
        curve_tasks=1,
        group_size=2,
        greedy=False,
    )
    usual = {"tasks": EASY, "steps": 4, "seed": 3, "tasks_per_step": 2, "group_size": 3, "evaluation": evaluation}
    return Recipe(name=name, **{**usual, **parts})


# -- groups


@gives(OUTCOME.to(SOLVER), STYLE.to(SOLVER))
async def answer_alone(task: Task, roles: Roles) -> None:
    """Two signals for one answer; a grade from outside, which the engine waits for."""
    answer = await roles.solver(problem=task.prompt)
    grade = await roles.grade(task, answer.text)
    answer.reward(OUTCOME, float(grade.value or 0) + score_of(answer.text))
    answer.reward(STYLE, -float(answer.tokens))
    note_score(answer)


def groups(other: str) -> Recipe:
    learner = GRPO(reward_weights={OUTCOME: 1.0, STYLE: 0.1}, kl=KLPenalty("reference", 0.01))
    return small_recipe(
        "groups",
        answer_alone,
        policies={"generator": trainable(TINY, lr=1e-3, updates_per_batch=2), "reference": frozen(TINY)},
        roles={SOLVER: role("generator", "{problem}")},
        objectives={"generator": Objective(policy="generator", role=SOLVER, algorithm=learner)},
        schedule=constant_schedule(answer_alone, "generator"),
        refill=1,
    )


# -- reviews


@gives(OUTCOME.to(SOLVER), PART.to(SOLVER), STYLE.to("verifier"))
async def answer_and_review(task: Task, roles: Roles) -> None:
    """The verifier's answers to one solution are a group of their own, and pay a part of the solution."""
    answer = await roles.solver(problem=task.prompt)
    reviews = await roles.verifier.many(3, group=answer.id, parent=answer, problem=task.prompt, solution=answer.text)
    for review in reviews:
        review.reward(STYLE, score_of(review.text))
    answer.reward(OUTCOME, score_of(answer.text))
    if answer.text:
        half = answer.text[: (len(answer.text) + 1) // 2]
        paid = sum(score_of(review.text) for review in reviews) / len(reviews)
        answer.reward(PART, paid, span=Span(start=0, end=len(half), text=half))
    note_score(answer)


def reviews(other: str) -> Recipe:
    generator = Objective(policy="generator", role=SOLVER, algorithm=GRPO(reward_weights={OUTCOME: 1.0, PART: 0.5}))
    verifier = Objective(policy="verifier", role="verifier", algorithm=RLOO(reward_weights={STYLE: 1.0}))
    solving = Phase(name="generator", protocol=answer_and_review, objectives=("generator",))
    judging = Phase(name="verifier", protocol=answer_and_review, objectives=("verifier",), group_size=1)
    return small_recipe(
        "reviews",
        answer_and_review,
        policies={"generator": trainable(TINY, lr=1e-3), "verifier": trainable(other, lr=1e-3)},
        roles={
            SOLVER: role("generator", "{problem}"),
            "verifier": role("verifier", "{problem} Is this right? {solution}"),
        },
        objectives={"generator": generator, "verifier": verifier},
        schedule=alternate(solving, judging, ratio=(2, 1), warmup={"verifier": 1}),
    )


# -- conversations


@gives(OUTCOME.to(SOLVER), STYLE.to(SOLVER), PART.to(SOLVER))
async def converse(task: Task, roles: Roles) -> None:
    """A turn, a tool, a turn that was begun for it, and two forks of it that are compared."""
    chat = roles.solver.begin(problem=task.prompt, group=roles.solver.whole_group)
    first = await chat.say(stop=(" a",), max_tokens=8)
    first.reward(STYLE, score_of(first.text))
    chat.tool(f"{len(first.text)}")
    chat.assistant("So")
    await chat.say(max_tokens=5)
    said = chat.response_text
    if said:
        chat.reward(PART, score_of(said), span=Span(start=0, end=len(said), text=said))
    chat.user("Once more.")
    ends = await chat.many(2, max_tokens=6)
    for end in ends:
        end.reward(OUTCOME, score_of(end.text))
    chat.reward(OUTCOME, sum(score_of(end.text) for end in ends) / 2)
    note_score(first)


def conversations(other: str) -> Recipe:
    learner = GRPO(reward_weights={OUTCOME: 1.0, STYLE: 0.3, PART: 0.3})
    return small_recipe(
        "conversations",
        converse,
        policies={"generator": trainable(other, lr=1e-3)},
        roles={SOLVER: role("generator", "{problem}")},
        objectives={"generator": Objective(policy="generator", role=SOLVER, algorithm=learner)},
        schedule=constant_schedule(converse, "generator"),
    )


# -- pool


def speak_a_hint(fields: Any, rng: Random) -> str:
    return f"try {rng.randrange(100)}"


@gives(OUTCOME.to("proposer"), STYLE.to(SOLVER))
async def propose_and_answer(task: Task, roles: Roles, *, pool: TaskPool) -> None:
    """A new problem enters the pool, and an old one that is drawn from it is brought up to date."""
    proposal = await roles.proposer(problem=task.prompt)
    hint = await roles.hints(problem=proposal.text)
    answers = await roles.solver.many(2, group=proposal.id, parent=proposal, problem=f"{proposal.text} {hint.text}")
    for answer in answers:
        answer.reward(STYLE, score_of(answer.text))
        note_score(answer)
    mean = sum(score_of(answer.text) for answer in answers) / len(answers)
    proposal.reward(OUTCOME, 1.0 - mean)
    proposal.add_finding(MINTED, (proposal.text, hint.text, proposal.text, mean))

    old = pool.draw_problem(rng_of("draw", proposal.id))
    if old is None:
        return
    again = await roles.solver(group=f"{proposal.id}/old", problem=old.problem)
    again.reward(STYLE, score_of(again.text))
    again.add_finding(REPLAYED, (old.signature, score_of(again.text)))
    note_score(again)


def pool(other: str) -> Recipe:
    return small_recipe(
        "pool",
        answer_alone,
        policies={
            "proposer": trainable(TINY, lr=1e-3),
            "solver": trainable(TINY, lr=1e-3),
            "hints": program(speak_a_hint),
        },
        roles={
            "proposer": role("proposer", "Another problem like {problem}"),
            SOLVER: role("solver", "{problem}"),
            "hints": role("hints", "{problem}"),
        },
        objectives={
            "proposer": Objective(
                policy="proposer", role="proposer", algorithm=Reinforce(reward_weights={OUTCOME: 1.0})
            ),
            "solver": Objective(policy="solver", role=SOLVER, algorithm=GRPO(reward_weights={STYLE: 1.0})),
        },
        schedule=constant_schedule(propose_and_answer, "proposer", "solver", stores=("pool",)),
        stores={"pool": TaskPool(cap=5)},
    )


# -- followers


@gives(OUTCOME.to(SOLVER), OUTCOME.to("critic"))
async def compare_with_former_self(task: Task, roles: Roles) -> None:
    """The solver's answer is judged by its own weights and by earlier ones."""
    answer = await roles.solver(problem=task.prompt)
    now, before = await gather(
        [
            roles.critic(group=answer.id, problem=task.prompt, solution=answer.text),
            roles.former(group=answer.id, problem=task.prompt, solution=answer.text),
        ]
    )
    answer.reward(OUTCOME, score_of(answer.text) + score_of(before.text))
    now.reward(OUTCOME, score_of(now.text))
    note_score(answer)


def followers(other: str) -> Recipe:
    judging = "{problem} What is wrong with {solution}"
    return small_recipe(
        "followers",
        compare_with_former_self,
        policies={
            "generator": trainable(TINY, lr=1e-3),
            "average": ema(TINY, of="generator", rate=0.3),
            "former": snapshot(TINY, of="generator", every=2, keep=2, pick="oldest"),
        },
        roles={
            SOLVER: role("generator", "{problem}"),
            "critic": role("generator", judging),
            "former": role("former", judging),
        },
        objectives={
            "solving": Objective(
                policy="generator",
                role=SOLVER,
                algorithm=GRPO(reward_weights={OUTCOME: 1.0}, kl=KLPenalty("average", 0.1)),
            ),
            "judging": Objective(
                policy="generator", role="critic", algorithm=Reinforce(reward_weights={OUTCOME: 1.0}), weight=0.5
            ),
        },
        schedule=constant_schedule(compare_with_former_self, "solving", "judging"),
    )


# -- values


@gives(OUTCOME.to(SOLVER))
async def answer_for_a_critic(task: Task, roles: Roles) -> None:
    answer = await roles.solver(problem=task.prompt)
    answer.reward(OUTCOME, score_of(answer.text))
    note_score(answer)


def values(other: str) -> Recipe:
    paid = {OUTCOME: 1.0}
    phase = Phase(
        name="generator",
        protocol=answer_for_a_critic,
        objectives=("generator", "values"),
        in_turn=("values", "generator"),
    )
    return small_recipe(
        "values",
        answer_for_a_critic,
        policies={"generator": trainable(TINY, lr=1e-3), "values": critic(TINY, lr=1e-3)},
        roles={SOLVER: role("generator", "{problem}")},
        objectives={
            "generator": Objective(
                policy="generator", role=SOLVER, algorithm=PPO(reward_weights=paid, values="values")
            ),
            "values": Objective(
                policy="values", role=SOLVER, algorithm=ValueRegression(reward_weights=paid, values="values")
            ),
        },
        schedule=Schedule(phases=(phase,), cycle=(phase.name,)),
    )


# -- adapters


@gives(OUTCOME.to(SOLVER), OUTCOME.to("critic"))
async def speak_by_turns(task: Task, roles: Roles) -> None:
    """Two adapters answer each other; the protocol waits in between, for a time that differs."""
    answer = await roles.solver(problem=task.prompt)
    async with roles.busy():
        await asyncio.sleep(0.002 * score_of(answer.text))
    critique = await roles.critic(group=answer.id, problem=task.prompt, solution=answer.text)
    second = await roles.solver(group=critique.id, problem=f"{task.prompt} {critique.text} {roles.nonce(answer)}")
    answer.reward(OUTCOME, score_of(answer.text))
    second.reward(OUTCOME, score_of(second.text))
    critique.reward(OUTCOME, score_of(second.text) - score_of(answer.text))
    note_score(second)


def adapters(other: str) -> Recipe:
    return small_recipe(
        "adapters",
        speak_by_turns,
        policies={"generator": adapter(TINY, rank=4, lr=1e-2), "critic": adapter(TINY, rank=4, lr=1e-2)},
        roles={
            SOLVER: role("generator", "{problem}"),
            "critic": role("critic", "{problem} What is wrong with {solution}"),
        },
        objectives={
            "generator": Objective(policy="generator", role=SOLVER, algorithm=Reinforce(reward_weights={OUTCOME: 1.0})),
            "critic": Objective(policy="critic", role="critic", algorithm=Reinforce(reward_weights={OUTCOME: 1.0})),
        },
        schedule=constant_schedule(speak_by_turns, "generator", "critic"),
    )


# -- preferences


def preferences(other: str) -> Recipe:
    return dpo(model=TINY, tasks=EASY, steps=4, tasks_per_step=2, evaluation_tasks=1, lr=1e-3)


CONTRACTS: dict[str, Callable[[str], Recipe]] = {
    make.__name__: make for make in (groups, reviews, conversations, pool, followers, values, adapters, preferences)
}
