"""A proposer writes problems and a solver learns from them: Absolute Zero and R-Zero in one file.

Both sample ``group_size`` solutions of each proposed problem; p is the share that is right by the label.

    variant             | azr                                 | rzero
    paper               | Zhao et al. 2025, arXiv 2505.03335  | Huang et al. 2025, arXiv 2508.05004
    models              | one                                 | two, trained in turn
    the prompt shows    | a problem of the pool               | nothing
    label               | the answer that a program works out | the majority of the solvers' answers
    proposer's reward   | 1 − p, but 0 where p is 0 or 1      | min(p, 1 − p) − repetition
    solver learns where | any p                               | 0.3 ≤ p ≤ 0.8
    advantages          | whitened by role (REINFORCE++)      | normalised in groups (GRPO)

Repetition is the share of recent problems of the pool that have the same shape.

The gate is a program that solves a proposal: the package's own for word problems, a user's for any others
(``gate``, ``rollout/readers.py``). A proposal that it cannot solve earns the proposer ``invalid``, its reason is
counted, and the solvers get a problem of the pool in its place. ``rzero`` has no gate. There the program, if any, only
measures: ``proposer/metadata/valid`` and ``solver/metadata/label_right``. An accepted proposal enters
the pool.

Controls:

- ``proposer="frozen"``: the proposer keeps the weights that it begins with.
- ``proposer="uniform"``: problems are drawn from the task source. ``uniform_operations=5`` draws those of 5 operations.
- ``gate=False``: no program refuses a proposal; the label is the majority.
- ``invalid=-0.1``: a proposal that is no problem is penalised (``ssp`` says what came of it there).

``shipped-proposer`` was pretrained to write problems of the source's kind, so this does not show learning from zero
data. Left out: programs as problems and three kinds of them (AZR), BLEU clusters (R-Zero: shapes of problems here).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
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
    constant_schedule,
    frozen,
    program,
    recipe,
    solve,
)
from cotrain.algorithms.grpo import ReinforcePP
from cotrain.core.arguments import Positive, Share
from cotrain.data.word_problems.source import WordProblems
from cotrain.rollout import common_roles
from cotrain.rollout.proposals import (
    LEARNABLE,
    Example,
    Pay,
    of_length,
    propose_and_solve,
    proposer_role,
    write_problem,
)
from cotrain.rollout.readers import Check, reader_of
from cotrain.rollout.stores import TaskPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What the two methods do differently. The fields are keyword arguments of ``propose_and_solve``."""

    example: Example  # what the proposer's prompt shows of the pool
    labels: Literal["program", "vote"]  # what says which answers are right
    pay: Pay  # the proposer's reward, as a function of the success rate
    gate: bool  # whether a proposal that the program cannot solve is refused
    band: tuple[float, float]  # lowest and highest success rate at which solvers are rewarded
    repeats: float  # weight of the penalty for problems of a shape that the pool has


VARIANTS = {
    "azr": Variant(example="problem", labels="program", pay="learnable", gate=True, band=(0.0, 1.0), repeats=0.0),
    "rzero": Variant(example="nothing", labels="vote", pay="uncertain", gate=False, band=(0.3, 0.8), repeats=1.0),
}


@recipe(model="shipped-proposer", kl=0.0)
def proposer_solver(
    run: RunConfig,  # the settings that all recipes share; the line above has other defaults for two of them
    *,
    variant: Literal["azr", "rzero"] = "azr",  # variant of the method
    proposer: Literal["trained", "frozen", "uniform"] = "trained",  # "uniform": problems as the source draws them
    proposer_lr: float = 2e-4,  # learning rate of a proposer with weights of its own
    proposer_group_size: Positive = 4,  # proposals that are compared with each other, in rzero
    pay: Pay | None = None,  # reward for how hard a problem is; by default as the variant has it
    target_rate: Share = 0.5,  # success rate of the solvers that pay="target" wants
    uniform_operations: int | None = None,  # with proposer="uniform": operations of every problem
    gate: bool | str | Check | None = None,  # refuse what a program cannot solve: my_file.py:function of a problem
    solver_band: tuple[float, float] | None = None,  # solvers learn from problems whose success rate lies in this range
    invalid: float = 0.0,  # reward of the proposer for a text that is no problem
    reuse: Share = 1.0,  # problems of the pool are used again if their success rate was at most this share
    cap: int = 16384,  # problems that the pool holds
    ratio: tuple[int, int] = (5, 15),  # steps of the proposer and of the solver, in turn, in rzero
) -> Recipe:
    assert not isinstance(gate, str)  # ``@recipe`` has loaded FILE.py:FUNCTION
    source = run.problems
    options = VARIANTS[variant]
    if pay is not None:
        options = replace(options, pay=pay)
    if solver_band:
        options = replace(options, band=solver_band)
    if gate is not None:
        options = replace(options, gate=bool(gate))

    user_program = None if isinstance(gate, bool) else gate
    program_reader = reader_of(source, user_program, "proposer_solver", run.seed)
    if options.gate and not program_reader.works_out:
        raise ConfigError(
            f"proposer_solver: no program works out problems of {source.name}; give --gate my_file.py:function, "
            "--variant rzero without a gate, or --tasks words",
            code="E_NO_GATE",
        )
    if not options.gate:
        options = replace(options, labels="vote")  # a proposal that the program cannot solve has no other label
    if uniform_operations is not None and not isinstance(source, WordProblems):
        raise ConfigError(
            f"proposer_solver: uniform_operations is for --tasks words, not for {source.name}; leave it out",
            code="E_FIXED_NEEDS_WORDS",
        )
    if uniform_operations is not None and (proposer != "uniform" or uniform_operations < 1):
        raise ConfigError(
            f"proposer_solver: uniform_operations is {uniform_operations}; expected at least 1 operation, with "
            "proposer=uniform",
            code="E_SETTING_RANGE",
        )

    policies = {"generator": run.learner(), **run.reference_policies()}
    trains_proposer = proposer == "trained"
    if proposer == "uniform":
        proposer_policy = "author"
        if isinstance(source, WordProblems) and uniform_operations is not None:
            policies["author"] = program(of_length(source, uniform_operations), tokens_of="generator")
        else:
            policies["author"] = program(write_problem, tokens_of="generator")
    else:
        common_roles.check_taught("proposer_solver", run.model)  # refuses shipped models that write no problems
        shares_weights = variant == "azr" and trains_proposer
        proposer_policy = "generator" if shares_weights else "proposer"
        if not shares_weights:
            policies["proposer"] = run.learner(lr=proposer_lr) if trains_proposer else frozen(run.model)

    roles = {
        "solver": common_roles.solver("generator", run.model),
        "proposer": proposer_role(proposer_policy, run.model, program_reader),
    }

    algorithm = ReinforcePP if variant == "azr" else GRPO
    learn_to_solve = algorithm(reward_weights={OUTCOME: 1.0}, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}
    if trains_proposer:
        learn_to_propose = algorithm(reward_weights={LEARNABLE: 1.0})
        objectives["proposer"] = Objective(policy=proposer_policy, role="proposer", algorithm=learn_to_propose)

    protocol = partial(
        propose_and_solve,
        **asdict(options),
        samples=run.group_size,
        target=target_rate,
        invalid=invalid,
        reuse=reuse,
        reader=program_reader,
    )
    if variant == "rzero" and trains_proposer:
        # An episode has one proposal; its group is the episodes of one task.
        proposing = Phase(
            name="propose",
            protocol=protocol,
            objectives=("proposer",),
            group_size=proposer_group_size,
            stores=("pool",),
        )
        # An episode has ``run.group_size`` solutions, which are a group already.
        solving = Phase(name="solve", protocol=protocol, objectives=("generator",), group_size=1, stores=("pool",))
        schedule = alternate(proposing, solving, ratio=ratio)
    else:
        schedule = constant_schedule(protocol, *objectives, name="solve", group_size=1, stores=("pool",))

    name = f"proposer_solver-{variant}"
    if not trains_proposer:
        name += f"-{proposer}"
    return run.recipe(
        name,
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=solve,
        stores={"pool": TaskPool(cap=cap)},
    )
