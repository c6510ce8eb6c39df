"""A proposer writes problems and a solver learns from them: R-Zero and Absolute Zero in one file.

    azr     Zhao et al. 2025, arXiv 2505.03335: one model; the proposer sees a problem of the pool; a program checks
            what it writes and knows the answer; it is paid 1 − p, and 0 where all or no solvers are right; both roles
            in one update, whitened by role (task-relative REINFORCE++)
    rzero   Huang et al. 2025, arXiv 2508.05004: two models, in turn; nothing is shown and nothing is checked; the label
            is the solvers' majority; the proposer is paid min(s, 1 − s) for its share s, minus the share of recent
            problems of the same shape; the solver learns where 0.3 ≤ s ≤ 0.8

p is the share of ``group_size`` solvers that are right. Word problems are read by a program of the package, which is
the gate: it fails closed, and each reason is counted. For any other problems ``gate`` names a program of the user's
(``rollout/readers.py``); rzero needs none. A new problem enters the pool; where a proposal is none, the solvers get one
of the pool again. The program also judges in silence where it is no gate: ``proposer/metadata/valid``, ``label_right``.

Controls: ``proposer="frozen"`` writes as it was taught, "uniform" draws from the generator of problems, with ``fixed``
all of one length; ``gate=False`` pays for whatever is written; ``invalid=-0.1`` is a penalty for what is none (``ssp``
says what it did there). ``shipped-proposer`` was taught to write problems by a program, so nothing is learned from
zero data. Left out: programs as problems and three kinds of them (AZR), BLEU clusters (R-Zero: shapes here).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from cotrain import (
    GRPO,
    OUTCOME,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    RunConfig,
    alternate,
    frozen,
    measure_solver,
    program,
    recipe,
    solve,
)
from cotrain.algorithms.grpo import ReinforcePP
from cotrain.core.arguments import Positive, Share
from cotrain.data.word_problems.source import WordProblems
from cotrain.rollout import common_roles
from cotrain.rollout.proposals import LEARNABLE, Pay, Shown, of_length, propose_and_solve, proposer_role, write_problem
from cotrain.rollout.readers import Check, reader_of
from cotrain.rollout.stores import TaskPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The options in which the two methods differ, as ``propose_and_solve`` takes it."""

    shown: Shown
    labels: Literal["program", "vote"]
    pay: Pay
    gate: bool
    band: tuple[float, float]
    repeats: float


VARIANTS = {
    "azr": Variant(shown="problem", labels="program", pay="learnable", gate=True, band=(0.0, 1.0), repeats=0.0),
    "rzero": Variant(shown="nothing", labels="vote", pay="uncertain", gate=False, band=(0.3, 0.8), repeats=1.0),
}


@recipe(model="shipped-proposer", kl=0.0)
def proposer_solver(
    run: RunConfig,
    *,
    variant: Literal["azr", "rzero"] = "azr",  # which method
    proposer: Literal["trained", "frozen", "uniform"] = "trained",  # "uniform": problems as the source draws them
    proposer_lr: float = 2e-4,  # learning rate of a proposer with weights of its own
    proposals: Positive = 4,  # problems that are compared with each other, in rzero
    pay: Pay | None = None,  # reward for how hard a problem is; by default as the variant has it
    target: Share = 0.5,  # share of right answers that pay="target" wants
    fixed: int | None = None,  # with proposer="uniform": operations of every problem
    gate: bool | str | Check | None = None,  # reward only what a program reads: my_file.py:function of a problem
    band: tuple[float, float] | None = None,  # solvers learn where their share of right answers lies in it
    invalid: float = 0.0,  # reward of a text that is no problem
    reuse: Share = 1.0,  # problems of the pool are used again that at most this share solved
    cap: int = 16384,  # problems that the pool holds
    ratio: tuple[int, int] = (5, 15),  # steps of the proposer and of the solver, in turn, in rzero
) -> Recipe:
    assert not isinstance(gate, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
    source = run.problems
    options = VARIANTS[variant]
    if pay is not None:
        options = replace(options, pay=pay)
    if band:
        options = replace(options, band=band)
    if gate is not None:
        options = replace(options, gate=bool(gate))

    check = None if isinstance(gate, bool) else gate
    reader = reader_of(source, check, "proposer_solver", run.seed)
    if options.gate and not reader.works_out:
        raise ConfigError(
            f"proposer_solver: no program works out problems of {source.name}; give --gate my_file.py:function, "
            "--variant rzero without a gate, or --tasks words",
            code="E_NO_GATE",
        )
    if not options.gate:
        options = replace(options, labels="vote")  # nobody else knows an answer
    if fixed is not None and not isinstance(source, WordProblems):
        raise ConfigError(
            f"proposer_solver: fixed is for --tasks words, not for {source.name}; leave it out",
            code="E_FIXED_NEEDS_WORDS",
        )
    if fixed is not None and (proposer != "uniform" or fixed < 1):
        raise ConfigError(
            f"proposer_solver: fixed is {fixed}; expected at least 1 operation, with proposer=uniform",
            code="E_SETTING_RANGE",
        )

    # Whose weights write problems: a program's, a second model's, or the generator's own.
    trains_proposer = proposer == "trained"
    if proposer == "uniform":
        writer = "author"
    elif proposer == "frozen" or variant == "rzero":
        writer = "proposer"
    else:
        writer = "generator"
    if proposer != "uniform":
        common_roles.check_taught("proposer_solver", run.model)

    policies = {"generator": run.learner(), **run.reference_policies()}
    if writer == "proposer":
        policies["proposer"] = run.learner(lr=proposer_lr) if trains_proposer else frozen(run.model)
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "proposer": proposer_role(writer, run.model, reader),
    }

    algorithm = ReinforcePP if variant == "azr" else GRPO
    learn_to_solve = algorithm(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    if trains_proposer:
        learn_to_propose = algorithm(reward_weights={LEARNABLE: 1.0})
        objectives["proposer"] = Objective(policy=writer, role="proposer", algorithm=learn_to_propose)

    protocol = partial(
        propose_and_solve,
        shown=options.shown,
        labels=options.labels,
        pay=options.pay,
        gate=options.gate,
        band=options.band,
        repeats=options.repeats,
        samples=run.group_size,
        target=target,
        invalid=invalid,
        reuse=reuse,
        reader=reader,
    )

    def make_phase(name: str, *learners: str, group_size: int = 1) -> Phase:
        return Phase(name=name, protocol=protocol, objectives=learners, group_size=group_size, stores=("pool",))

    if variant == "rzero" and trains_proposer:
        proposing = make_phase("propose", "proposer", group_size=proposals)
        solving = make_phase("solve", "generator")
        schedule = alternate(proposing, solving, ratio=ratio)
    else:
        schedule = alternate(make_phase("solve", *objectives), ratio=(1,))

    if writer == "author":
        write = of_length(source, fixed) if isinstance(source, WordProblems) and fixed else write_problem
        policies["author"] = program(write, tokens_of="generator")
    return run.recipe(
        f"proposer_solver-{variant}" if trains_proposer else f"proposer_solver-{variant}-{proposer}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=solve,
        measures=(measure_solver("solver", 8),),
        stores={"pool": TaskPool(cap=cap)},
    )
