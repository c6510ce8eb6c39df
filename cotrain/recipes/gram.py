"""GRAM: a generative judge of pairs, taught in two stages, that pays a generator by who wins.

Wang et al. 2025 (arXiv 2506.14175). The judge learns by cross-entropy, in two stages. In the first ``unlabelled`` steps
it learns, without any label, to write two responses to a problem, one after the other. Then it learns to say which of
two is better, A or B: the right letter has the weight 1 − ``smoothing`` and the other one ``smoothing``, which the
paper shows to be a regularised ranking loss. Pairs are a right and a wrong solution of the generator, in random order.

The generator learns as in Think-RM's pairwise RLHF (Hong et al. 2025, arXiv 2505.16265). All pairs of its group are
judged, in both orders; the margins 2 P(A) − 1 make a skew-symmetric matrix, whose row sums are the advantages. A single
solution has no score. One that cannot be read loses to every one that can.

Controls are parameters:

- ``unlabelled=0``, ``smoothing=0``: without what is GRAM's own.
- ``judge="frozen"``: the judge is never trained, and may have any format of pairs (``form``). Where that has
  grades, the margin is the grade.
- ``generator="frozen"``: only the judge is trained.

What differs from the paper: pairs come from one generator and are labelled by the rule, online; theirs are a corpus of
preferences. Both stages are short. Left out: the judge of more than two, and fine-tuning to another task.
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
from cotrain.rollout.tournament import margin_of_first, side_by_side
from cotrain.rollout.verifier_roles import Comparison, comparer

PAIR = "{problem}\nTwo answers:"
PAIR_FULL = """Write two responses to the problem below that differ from each other: first response A, then response \
B, each under its letter.

Problem:
{problem}"""

WEIGHT = Signal("weight", meaning="how much a letter counts as the label of a pair")
PREFERRED = Signal("preferred", meaning="the advantage over the others of the group")


async def write_pairs(task: Task, roles: Roles, *, samples: Positive, pairs: Positive) -> None:
    """Stage 1: the role ``author`` says up to ``pairs`` pairs of different solutions, which the judge learns to write.
    Nobody asks which is better."""
    solutions = await attempts(task, roles, samples)
    different = {solution.tagged_text: solution for solution in solutions if solution.parsed.ok}
    ordered_pairs = list(permutations(different.values(), 2))
    for solution_a, solution_b in _sample_pairs(ordered_pairs, pairs, "written", task):
        await roles.author(problem=task.prompt, first=solution_a.tagged_text, second=solution_b.tagged_text)


@gives(WEIGHT.to("teacher"))
async def label_pairs(task: Task, roles: Roles, *, samples: Positive, pairs: Positive, smoothing: float) -> None:
    """Stage 2: for up to ``pairs`` pairs of a right and a wrong solution, in random order, the role ``teacher`` says
    both letters, which the judge learns with their weights."""
    solutions = [solution for solution in await attempts(task, roles, samples) if solution.parsed.ok]
    right = [solution for solution in solutions if CORRECT.require(solution)]
    wrong = [solution for solution in solutions if not CORRECT.require(solution)]
    for better, worse in _sample_pairs(list(product(right, wrong)), pairs, "labelled", task):
        is_better_first = bool(rng_of("order", better.id, worse.id).getrandbits(1))
        solution_a, solution_b = worse, better
        if is_better_first:
            solution_a, solution_b = better, worse
        fields = side_by_side(roles, roles.judge, solution_a, solution_b)
        smoothed_labels = ((is_better_first, 1.0 - smoothing), (not is_better_first, smoothing))
        for says_first, weight in smoothed_labels:
            if weight:
                label = await roles.teacher(parent=solution_a, problem=task.prompt, better=says_first, **fields)
                label.reward(WEIGHT, weight)


@gives(PREFERRED.to("solver"))
async def compete(task: Task, roles: Roles, *, samples: Positive = 2) -> None:
    """All pairs of ``samples`` solutions are judged, in both orders. The reward ``preferred`` of a solution is its
    advantage (Think-RM). Where one of a pair is right, the judgement has the truth as metadata."""
    solutions = await attempts(task, roles, samples)
    readable = [i for i, solution in enumerate(solutions) if solution.parsed.ok]
    unreadable = [i for i, solution in enumerate(solutions) if not solution.parsed.ok]

    ordered_pairs = list(permutations(readable, 2))
    calls = []
    for i, j in ordered_pairs:
        fields = side_by_side(roles, roles.judge, solutions[i], solutions[j])
        calls.append(roles.judge(parent=solutions[i], problem=task.prompt, **fields))
    judgements = await gather(calls)

    margins = dict.fromkeys(product(readable, unreadable), 1.0)  # (i, j) → how far i is ahead of j, in [−1, 1]
    for (i, j), judgement in zip(ordered_pairs, judgements, strict=True):
        first_is_right = CORRECT.require(solutions[i])
        second_is_right = CORRECT.require(solutions[j])
        if first_is_right != second_is_right:
            judgement.add_metadata(CORRECT, first_is_right)
        show_verdict(judgement)
        margin = margin_of_first(judgement)
        if margin is not None:
            margins[i, j] = margin

    advantages = pairwise_advantages(skew_matrix(len(solutions), margins))
    for solution, advantage in zip(solutions, advantages, strict=True):
        solution.reward(PREFERRED, advantage)


def _sample_pairs(pairs: list[tuple[Turn, Turn]], max_pairs: int, purpose: str, task: Task) -> list[tuple[Turn, Turn]]:
    """At most ``max_pairs`` of these pairs, drawn by the ``purpose`` and the address of the first solution."""
    if len(pairs) <= max_pairs:
        return pairs
    first_solution, _ = pairs[0]
    return rng_of(purpose, task.id, first_solution.id).sample(pairs, max_pairs)


def say_letter(fields: Mapping[str, Any], rng: random.Random) -> str:
    """The policy of the role ``teacher``: A where the first of a pair is called better, else B."""
    return write_gram(bool(fields["better"]))


def say_both(fields: Mapping[str, Any], rng: random.Random) -> str:
    """The policy of the role ``author``: both solutions of a pair."""
    return f"A:\n{fields['first']}\nB:\n{fields['second']}"


@recipe
def gram(
    run: RunConfig,
    *,
    judge_model: str | None = None,  # initial weights of the judge; by default the generator's model
    pairs: int = 8,  # pairs of a problem that the judge learns from, at most
    judge_lr: float = 5e-4,  # learning rate of the judge
    unlabelled: int = 8,  # first steps, in which only the judge is trained, to write pairs
    warmup: int = 24,  # steps after these, in which only the judge is trained, on labels
    smoothing: float = 0.1,  # weight of the wrong letter
    judge: Literal["trained", "frozen"] = "trained",  # frozen: the judge is never trained
    generator: Literal["trained", "frozen"] = "trained",  # frozen: the generator is never trained
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
