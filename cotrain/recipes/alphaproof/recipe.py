"""AlphaProof in small: search over steps that a program checks, learning what it finds, and practice on one target.

Hubert et al. 2025 (Nature, s41586-025-09833-y). A policy proposes steps, a program lets the right ones pass, and a
search over them (``recipes/alphaproof/step_search.py``) spends ``budget`` tokens on a problem. The steps of a right
chain are learned by cross-entropy, as in AlphaZero's loop. Nobody but the program says what is right.

``target=N`` is test-time RL: problem N of the split ``target_split`` is the only one that counts.

- The training split has variants of the target: other numbers, and questions from the middle of its chain
  (``recipes/alphaproof/variants.py``). The target is not among them.
- The test split is the target alone, and so the figures at the end are about nothing else.

``checker`` starts a program of the user's that checks the steps of any problems (``grading/step_checker.py``).

Controls:

- ``search=False`` samples whole solutions with the same budget of tokens, and learns those that are right in
  every step.
- ``verdicts="answer"`` searches without a verdict on steps.
- ``practice=False`` spends the tokens of test-time RL on the target itself. Nothing is learned before it is solved, so
  with ``search=False`` that is plain sampling.

Different from AlphaProof:

- The checker knows arithmetic, not Lean: a goal has one next goal, so the search tree has no product nodes.
- There is no value network.
- Chains are learned once and not replayed.
- Variants come from a program, not from a language model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from cotrain import (
    SFT,
    ConfigError,
    Objective,
    Recipe,
    RunConfig,
    Sampling,
    constant_schedule,
    measure_solver,
    recipe,
    solve,
)
from cotrain.core.arguments import Share
from cotrain.core.types import TaskSource
from cotrain.data.word_problems.source import WordProblems, study_problems
from cotrain.recipes.alphaproof.step_search import ON_CHAIN, Verdicts, prove
from cotrain.recipes.alphaproof.variants import Variants
from cotrain.rollout import common_roles


@recipe(without=("group_size", "kl"))
def alphaproof(
    run: RunConfig,
    *,
    budget: int = 800,  # tokens that a search may sample
    width: int = 4,  # next steps that are sampled at once
    search: bool = True,  # search over steps; else sample whole solutions with the same budget
    verdicts: Verdicts = "steps",  # what the program judges while it is searched
    target: int | None = None,  # test-time RL on this problem
    target_split: str = "ood_length",  # split of the target
    practice: bool = True,  # practise on variants of the target; else on the target itself
    beginnings: Share = 0.5,  # share of the variants that ask for the middle of its chain
    checker: str | None = None,  # command of a program that checks steps: "python my_checker.py"
) -> Recipe:
    source = study_problems() if run.tasks is None else run.tasks
    is_words = isinstance(source, WordProblems) and source.modulus is None
    if not is_words and checker is None:
        raise ConfigError(
            f"alphaproof: no program checks the steps of {source.name}; give --checker 'python my_checker.py', or "
            "--tasks words",
            code="E_NO_STEP_CHECKER",
        )
    if target is not None and not is_words:
        raise ConfigError(
            f"alphaproof: {source.name} has no variants of a target; expected --tasks words", code="E_NO_VARIANTS"
        )
    if budget < 1 or width < 1:
        raise ConfigError(
            f"alphaproof: budget is {budget} and width {width}; expected at least 1", code="E_SETTING_RANGE"
        )
    if target is None and not practice:
        raise ConfigError(
            "alphaproof: practice=False is about a target; add target=0", code="E_PRACTICE_WITHOUT_TARGET"
        )
    if target is not None and target < 0:
        raise ConfigError(
            f"alphaproof: target is {target}; expected the place of a problem, counted from 0", code="E_SETTING_RANGE"
        )

    tasks: TaskSource = source
    if target is not None:
        tasks = Variants(
            source_settings=source.describe()["settings"],
            split=target_split,
            index=target,
            practice=practice,
            beginnings=beginnings,
        )
    run = replace(run, tasks=tasks)

    solver = common_roles.solver("generator", run.model)
    if not search:
        max_tokens = solver.sampling.max_tokens  # for a whole solution
    elif common_roles.is_terse(run.model):
        max_tokens = 64  # for one step
    else:
        max_tokens = 256
    # One policy has two roles: it is trained as the prover and evaluated as the solver.
    prover = replace(solver, parse=None, sampling=Sampling(max_tokens=max_tokens))

    protocol = partial(prove, budget=budget, width=width, search=search, verdicts=verdicts)
    if checker is not None:
        from cotrain.grading.step_checker import StepChecker

        protocol = partial(protocol, checker=StepChecker(checker))

    name = "alphaproof"
    if not search:
        name += "-samples"
    if target is not None:
        name += "-target"
    return run.recipe(
        name,
        policies={"generator": run.learner()},
        roles={"solver": solver, "prover": prover},
        objectives={"generator": Objective(policy="generator", role="prover", algorithm=SFT(where=ON_CHAIN))},
        schedule=constant_schedule(protocol, "generator", name="prove", group_size=1),
        evaluate=solve,
        measures=(measure_solver("solver", 8),),
    )
