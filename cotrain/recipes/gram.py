"""GRAM: a generative judge of pairs, taught in two stages, that pays a generator by who wins.

Wang et al. 2025 (arXiv 2506.14175). First, without any label, the judge learns to write two responses to a problem, one after
the other (``unlabelled`` updates). Then it learns to say which of two is better, A or B, with smoothed labels: the right letter
weighs 1 − ``smoothing`` and the other ``smoothing``, which the paper shows to be a regularised ranking loss. Here the better one
of a pair is the one whose answer is right, and the pairs are solutions of the generator, one right and one wrong, in random order.

The generator is paid as in Think-RM's pairwise RLHF (Hong et al. 2025, arXiv 2505.16265): all pairs of its group are judged, in
both orders; the margins 2 P(A) − 1 make a skew-symmetric matrix, whose row sums are the advantages. No score of a single
solution exists. A solution that cannot be read loses to every one that can.

Controls are parameters: ``unlabelled=0`` and ``smoothing=0`` leave out what is GRAM's own; ``judge="frozen"`` pays by the judge as it
comes, in any format of pairs (``form``: "gram", "rmr1", "thinkrm"); ``generator="frozen"`` teaches the judge alone.

Different from the paper: two responses come from one generator and are labelled by the rule, online, instead of a corpus of
preferences; both stages are short. Left out: the judge of more than two, fine-tuning to another task.
"""

from __future__ import annotations

import random
from asyncio import gather
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations, product
from typing import Any, Literal

from cotrain.core.address import rng_of
from cotrain.core.errors import ConfigError
from cotrain.core.notes import CORRECT, FAILURE, FINAL, SCORE
from cotrain.core.signals import Signal, gives
from cotrain.core.types import Task, TaskSource
from cotrain.functional.aggregate import pairwise_advantages, skew_matrix
from cotrain.learn.algorithms import dr_grpo, pull_to
from cotrain.learn.sft import Sft
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.policies import frozen, program, trainable
from cotrain.loop.recipe import Objective, Recipe, recipe
from cotrain.loop.schedule import Phase, alternate
from cotrain.metrics.heldout import solving, verifying
from cotrain.play import parts
from cotrain.play.executor import Roles
from cotrain.play.judges import Comparison, comparer, probabilities, shown
from cotrain.play.protocols import examine
from cotrain.play.role import Role, Turn
from cotrain.tasks.words.source import study_problems
from cotrain.text.preferences import write_gram
from cotrain.text.prompts import PAIR, PAIR_FULL

WEIGHT = Signal("weight", meaning="how much a letter counts as the label of a pair")
PREFERRED = Signal("preferred", meaning="the advantage over the others of the group")


async def graded(task: Task, roles: Roles, samples: int) -> list[Turn]:
    """Solutions whose answers could be graded."""
    drawn = await roles.solver.many(samples, problem=task.prompt)
    return [s for s in drawn if await examine(task, roles, s) is not None]


def side_by_side(roles: Roles, first: Turn, second: Turn) -> dict[str, str]:
    """The fields of a comparison, behind a nonce where the prompt has one."""
    texts = {"first": first.text, "second": second.text}
    return shown(roles.nonce(first), **texts) if "nonce" in roles.judge.fields else texts


async def write_pairs(task: Task, roles: Roles, *, samples: int, pairs: int) -> None:
    """Stage 1: up to ``pairs`` pairs of different solutions, to be learned as texts. Nobody asks which is better."""
    different = {s.text: s for s in await graded(task, roles, samples) if s.parsed.ok}
    for first, second in _some(list(permutations(different.values(), 2)), pairs, "written", task):
        await roles.author(problem=task.prompt, first=first.text, second=second.text)


@gives(WEIGHT.to("teacher"))
async def label_pairs(task: Task, roles: Roles, *, samples: int, pairs: int, smoothing: float) -> None:
    """Stage 2: up to ``pairs`` pairs of a right and a wrong solution in random order, each with its smoothed labels."""
    solutions = [s for s in await graded(task, roles, samples) if s.parsed.ok]
    right = [s for s in solutions if CORRECT.known(s)]
    wrong = [s for s in solutions if not CORRECT.known(s)]
    for better, worse in _some(list(product(right, wrong)), pairs, "labelled", task):
        ahead = bool(rng_of("order", better.id, worse.id).getrandbits(1))
        first, second = (better, worse) if ahead else (worse, better)
        for letter, weight in ((ahead, 1.0 - smoothing), (not ahead, smoothing)):
            if weight:
                said = await roles.teacher(
                    parent=first, problem=task.prompt, better=letter, **side_by_side(roles, first, second)
                )
                said.reward(WEIGHT, weight)


@gives(PREFERRED.to("solver"))
async def compete(task: Task, roles: Roles, *, samples: int = 2) -> None:
    """Everyone against everyone, in both orders. The solver's reward ``preferred`` is its advantage (Think-RM); a judgement
    notes as ``correct`` whether the first is the better one, where one of the two is right."""
    solutions = await graded(task, roles, samples)
    readable = [i for i, s in enumerate(solutions) if s.parsed.ok]
    fights = list(permutations(readable, 2))
    asked = [
        roles.judge(parent=solutions[i], problem=task.prompt, **side_by_side(roles, solutions[i], solutions[j]))
        for i, j in fights
    ]
    outcomes = {(i, j): 1.0 for i, j in product(range(len(solutions)), repeat=2) if i in readable and j not in readable}
    for (i, j), turn in zip(fights, await gather(*asked), strict=True):
        truths = [CORRECT.known(solutions[k]) for k in (i, j)]
        if truths[0] != truths[1]:
            turn.note(CORRECT, truths[0])
        if turn.parsed.ok and turn.parsed.spans:
            ahead = probabilities(turn)[0]
            turn.show(FINAL, bool(turn.parsed.final))
            turn.show(SCORE, ahead)
            outcomes[i, j] = 2.0 * ahead - 1.0
        else:
            turn.show(FAILURE, getattr(turn.parsed, "reason", "no letter"))
    for solution, advantage in zip(solutions, pairwise_advantages(skew_matrix(len(solutions), outcomes)), strict=True):
        solution.reward(PREFERRED, advantage)


def _some(pairs: list[tuple[Turn, Turn]], most: int, what: str, task: Task) -> list[tuple[Turn, Turn]]:
    if len(pairs) <= most:
        return pairs
    return rng_of(what, task.id, pairs[0][0].id).sample(pairs, most)


def say_letter(fields: Mapping[str, Any], rng: random.Random) -> str:
    return write_gram(bool(fields["better"]))


def say_both(fields: Mapping[str, Any], rng: random.Random) -> str:
    return f"A:\n{fields['first']}\nB:\n{fields['second']}"


@recipe
def gram(
    model: str = "embedded",
    judge_model: str | None = None,
    steps: int = 100,
    seed: int = 0,
    tasks: TaskSource | None = None,
    tasks_per_step: int = 16,
    group_size: int = 8,
    pairs: int = 8,
    lr: float = 2e-4,
    judge_lr: float = 5e-4,
    unlabelled: int = 8,
    warmup: int = 24,
    smoothing: float = 0.1,
    kl: float = 0.001,
    judge: Literal["trained", "frozen"] = "trained",
    generator: Literal["trained", "frozen"] = "trained",
    form: Comparison = "gram",
    evaluate_every: int = 0,
    evaluation_tasks: int = 256,
) -> Recipe:
    learns, plays = judge == "trained", generator == "trained"
    if not learns and not plays:
        raise ConfigError("gram: judge='frozen' and generator='frozen': nobody learns; train one of them")
    if learns and form != "gram":
        raise ConfigError(f"gram: form={form!r} is longer than a letter to learn; expected 'gram', or judge='frozen'")
    if group_size < 2 or pairs < 1 or not 0.0 <= smoothing < 0.5:
        found = f"group_size {group_size}, pairs {pairs}, smoothing {smoothing}"
        raise ConfigError(f"gram: {found}; expected at least 2, at least 1, and from 0 to below 0.5")
    reads = judge_model or model
    asked = comparer("judge", reads, form)
    policies = {"judge": trainable(reads, lr=judge_lr) if learns else frozen(reads)}
    roles = {"solver": parts.solver("generator", model), "judge": asked}
    objectives, phases, ratio = {}, [], []
    if plays:
        pay = dr_grpo(rewards={PREFERRED: 1.0}, kl=pull_to("start", kl))
        objectives["generator"] = Objective(policy="generator", on="solver", by=pay)
        how = {"samples": group_size}
        phases.append(Phase(name="generator", protocol=compete, objectives=("generator",), members=1, options=how))
        ratio.append(1)
    if learns:
        objectives["judge"] = Objective(policy="judge", on="teacher", by=Sft(weight=WEIGHT))
        objectives["pairs"] = Objective(policy="judge", on="author", by=Sft())
        policies |= {"teacher": program(say_letter, tokens_of="judge"), "author": program(say_both, tokens_of="judge")}
        both = PAIR if parts.speaks_short(reads) else PAIR_FULL
        roles["teacher"] = replace(asked, policy="teacher", parse=None)
        roles["author"] = Role(policy="author", prompt=both, sampling=asked.sampling)
        drawn = {"samples": group_size, "pairs": pairs}
        soft = drawn | {"smoothing": smoothing}
        phases += [
            Phase(name="judge", protocol=label_pairs, objectives=("judge",), members=1, options=soft),
            Phase(name="pairs", protocol=write_pairs, objectives=("pairs",), members=1, options=drawn),
        ]
        ratio += [1, 0]
    return Recipe(
        name="gram" if learns else "gram-frozen",
        tasks=tasks or study_problems(),
        steps=steps,
        seed=seed,
        tasks_per_step=tasks_per_step,
        group_size=group_size,
        policies={"generator": trainable(model, lr=lr) if plays else frozen(model)}
        | ({"start": frozen(model)} if plays and kl else {})
        | policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(
            *phases, ratio=tuple(ratio), warmup={"pairs": unlabelled, "judge": warmup} if learns else None
        ),
        evaluation=Evaluation(
            protocol=compete,
            measures=(solving("solver", 8), verifying("judge")),
            tasks=evaluation_tasks,
            splits=("ood_length", "ood_template"),
        ),
        evaluate_every=evaluate_every,
    )
