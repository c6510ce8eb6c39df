"""GRAM: a generative judge of pairs, taught in two stages, that pays a generator by who wins.

Wang et al. 2025 (arXiv 2506.14175). First, without any label, the judge learns to write two responses to a problem, one
after the other (``unlabelled`` updates). Then it learns to say which of two is better, A or B, with smoothed labels:
the right letter weighs 1 − ``smoothing`` and the other ``smoothing``, which the paper shows to be a regularised ranking
loss. Here the better one of a pair is the one whose answer is right, and the pairs are solutions of the generator, one
right and one wrong, in random order.

The generator is paid as in Think-RM's pairwise RLHF (Hong et al. 2025, arXiv 2505.16265): all pairs of its group are
judged, in both orders; the margins 2 P(A) − 1 make a skew-symmetric matrix, whose row sums are the advantages. No score
of a single solution exists. A solution that cannot be read loses to every one that can.

Controls are parameters: ``unlabelled=0`` and ``smoothing=0`` leave out what is GRAM's own; ``judge="frozen"`` pays by
the judge as it comes, in any format of pairs (``form``; a graded one by how far one is ahead); ``generator="frozen"``
teaches the judge alone.

Different from the paper: two responses come from one generator and are labelled by the rule, online, instead of a
corpus of preferences; both stages are short. Left out: the judge of more than two, fine-tuning to another task.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any, Literal

from cotrain import (
    CORRECT,
    SFT,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Role,
    Roles,
    RunConfig,
    Signal,
    Task,
    Turn,
    alternate,
    frozen,
    gather,
    gives,
    measure_solver,
    program,
    recipe,
    rng_of,
)
from cotrain.algorithms.functional.aggregate import pairwise_advantages, skew_matrix
from cotrain.algorithms.grpo import DrGRPO
from cotrain.core.arguments import Positive
from cotrain.core.types import RolloutFn
from cotrain.formats.preferences import write_gram
from cotrain.metrics.heldout import measure_verifier
from cotrain.rollout import common_roles
from cotrain.rollout.protocols import attempts
from cotrain.rollout.reviews import show_verdict
from cotrain.rollout.tournament import lead_of, side_by_side
from cotrain.rollout.verifier_roles import Comparison, comparer

PAIR = "{problem}\nTwo answers:"
PAIR_FULL = """Write two responses to the problem below that differ from each other: first response A, then response \
B, each under its letter.

Problem:
{problem}"""

WEIGHT = Signal("weight", meaning="how much a letter counts as the label of a pair")
PREFERRED = Signal("preferred", meaning="the advantage over the others of the group")


async def write_pairs(task: Task, roles: Roles, *, samples: Positive, pairs: Positive) -> None:
    """Stage 1: up to ``pairs`` pairs of different solutions, to be learned as texts. Nobody asks which is better."""
    different = {s.tagged_text: s for s in await attempts(task, roles, samples) if s.parsed.ok}
    for first, second in _sample_pairs(list(permutations(different.values(), 2)), pairs, "written", task):
        await roles.author(problem=task.prompt, first=first.tagged_text, second=second.tagged_text)


@gives(WEIGHT.to("teacher"))
async def label_pairs(task: Task, roles: Roles, *, samples: Positive, pairs: Positive, smoothing: float) -> None:
    """Stage 2: up to ``pairs`` pairs of a right and a wrong solution in random order, each with its smoothed labels."""
    solutions = [s for s in await attempts(task, roles, samples) if s.parsed.ok]
    right = [s for s in solutions if CORRECT.require(s)]
    wrong = [s for s in solutions if not CORRECT.require(s)]
    for better, worse in _sample_pairs(list(product(right, wrong)), pairs, "labelled", task):
        ahead = bool(rng_of("order", better.id, worse.id).getrandbits(1))
        first, second = (better, worse) if ahead else (worse, better)
        for letter, weight in ((ahead, 1.0 - smoothing), (not ahead, smoothing)):
            if weight:
                labelled = await roles.teacher(
                    parent=first, problem=task.prompt, better=letter, **side_by_side(roles, roles.judge, first, second)
                )
                labelled.reward(WEIGHT, weight)


@gives(PREFERRED.to("solver"))
async def compete(task: Task, roles: Roles, *, samples: Positive = 2) -> None:
    """Everyone against everyone, in both orders. The solver's reward ``preferred`` is its advantage (Think-RM); a
    judgement notes as ``correct`` whether the first is the better one, where one of the two is right."""
    solutions = await attempts(task, roles, samples)
    readable = [i for i, s in enumerate(solutions) if s.parsed.ok]
    fights = list(permutations(readable, 2))
    judgements = [
        roles.judge(
            parent=solutions[i], problem=task.prompt, **side_by_side(roles, roles.judge, solutions[i], solutions[j])
        )
        for i, j in fights
    ]
    outcomes = {(i, j): 1.0 for i, j in product(range(len(solutions)), repeat=2) if i in readable and j not in readable}
    for (i, j), turn in zip(fights, await gather(judgements), strict=True):
        truths = [CORRECT.require(solutions[k]) for k in (i, j)]
        if truths[0] != truths[1]:
            turn.add_metadata(CORRECT, truths[0])
        show_verdict(turn)
        if (lead := lead_of(turn)) is not None:
            outcomes[i, j] = lead
    for solution, advantage in zip(solutions, pairwise_advantages(skew_matrix(len(solutions), outcomes)), strict=True):
        solution.reward(PREFERRED, advantage)


def _sample_pairs(pairs: list[tuple[Turn, Turn]], most: int, what: str, task: Task) -> list[tuple[Turn, Turn]]:
    if len(pairs) <= most:
        return pairs
    return rng_of(what, task.id, pairs[0][0].id).sample(pairs, most)


def say_letter(fields: Mapping[str, Any], rng: random.Random) -> str:
    return write_gram(bool(fields["better"]))


def say_both(fields: Mapping[str, Any], rng: random.Random) -> str:
    return f"A:\n{fields['first']}\nB:\n{fields['second']}"


@recipe
def gram(
    run: RunConfig,
    *,
    judge_model: str | None = None,  # begins the judge; by default the generator's model
    pairs: int = 8,  # of a problem, at the most
    judge_lr: float = 5e-4,  # learning rate of the judge
    unlabelled: int = 8,  # steps in which the judge learns to write pairs
    warmup: int = 24,  # steps in which it then learns labels alone
    smoothing: float = 0.1,  # weight of the wrong letter
    judge: Literal["trained", "frozen"] = "trained",  # does it learn?
    generator: Literal["trained", "frozen"] = "trained",  # does it learn?
    form: Comparison = "gram",  # the judge's format
) -> Recipe:
    trains_judge = judge == "trained"
    trains_generator = generator == "trained"
    if not trains_judge and not trains_generator:
        raise ConfigError(
            "gram: judge='frozen' and generator='frozen': nobody learns; train one of them", code="E_NOBODY_LEARNS"
        )
    if trains_judge and form != "gram":
        raise ConfigError(
            f"gram: form={form!r} is longer than a letter to learn; expected 'gram', or judge='frozen'",
            code="E_FORM_NOT_LEARNABLE",
        )
    if run.group_size < 2 or pairs < 1 or not 0.0 <= smoothing < 0.5:
        settings_text = f"group_size {run.group_size}, pairs {pairs}, smoothing {smoothing}"
        raise ConfigError(
            f"gram: {settings_text}; expected at least 2, at least 1, and from 0 to below 0.5", code="E_SETTING_RANGE"
        )
    initial_judge = judge_model or run.model
    judge_role = comparer("judge", initial_judge, form)
    roles = {"solver": common_roles.solver("generator", run.model), "judge": judge_role}
    if trains_generator:
        policies = {"generator": run.learner(), **run.reference_policies()}
    else:
        policies = {"generator": frozen(run.model)}
    policies["judge"] = run.learner(initial_judge, lr=judge_lr) if trains_judge else frozen(initial_judge)

    objectives: dict[str, Objective] = {}
    phases: list[Phase] = []
    ratio: list[int] = []
    samples = run.group_size

    def add_phase(name: str, objective: Objective, protocol: RolloutFn, *, steps: int) -> None:
        """A phase in which this objective alone learns; ``steps`` of each round after the warm-up."""
        objectives[name] = objective
        phases.append(Phase(name=name, protocol=protocol, objectives=(name,), group_size=1))
        ratio.append(steps)

    # The generator learns from what the judge prefers.
    if trains_generator:
        learn_to_solve = DrGRPO(reward_weights={PREFERRED: 1.0}, kl=run.kl_penalty())
        objective = Objective(policy="generator", role="solver", algorithm=learn_to_solve)
        add_phase("generator", objective, partial(compete, samples=samples), steps=1)

    # The judge imitates programs: one says the right letter, another one writes both solutions of a pair.
    if trains_judge:
        label = partial(label_pairs, samples=samples, pairs=pairs, smoothing=smoothing)
        objective = Objective(policy="judge", role="teacher", algorithm=SFT(weight=WEIGHT))
        add_phase("judge", objective, label, steps=1)

        write = partial(write_pairs, samples=samples, pairs=pairs)
        objective = Objective(policy="judge", role="author", algorithm=SFT())
        add_phase("pairs", objective, write, steps=0)  # in the warm-up alone

        pair_prompt = PAIR if common_roles.is_terse(initial_judge) else PAIR_FULL
        policies["teacher"] = program(say_letter, tokens_of="judge")
        policies["author"] = program(say_both, tokens_of="judge")
        roles["teacher"] = replace(judge_role, policy="teacher", parse=None)
        roles["author"] = Role(policy="author", prompt=pair_prompt, sampling=judge_role.sampling)

    return run.recipe(
        "gram" if trains_judge else "gram-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(
            *phases,
            ratio=tuple(ratio),
            warmup={"pairs": unlabelled, "judge": warmup} if trains_judge else None,
        ),
        evaluate=compete,
        measures=(measure_solver("solver", 8), measure_verifier("judge")),
    )
