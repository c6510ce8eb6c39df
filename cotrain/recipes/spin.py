"""SPIN: worked solutions are preferred to what the model itself wrote one iteration ago.

Chen et al. 2024 (arXiv 2401.01335). A pair is the reference solution of a problem and a solution that an opponent
samples; the loss is −log σ(β m), with the opponent at the start of the iteration as reference
(``algorithms/dpo.py``). An iteration is ``iteration`` updates. From the second one on every other step has pairs of
the iteration before: rivals are sampled by the former opponent, and their log-probabilities are still taken under the
present one, as in the authors' code. β is ``betas``, one for each iteration; theirs are 0.1, 0.1, 0.1 and 5.

Of conversations (``--tasks chats``) the last reply stands for the solution, and opponents reply to what is said before
it; nobody grades these, so what is measured is the surprisal of held-out replies, nats a token.

The fixed point is the distribution of the worked solutions, so SPIN cannot be better than these. ``control="sft"``
learns the same solutions in as many steps by cross-entropy, and is what the gain must be held against.

Different from the authors' code: pairs are sampled as they are needed and not once for 6 epochs; a problem is met once;
AdamW at one rate, where theirs is RMSProp that decays and falls after two iterations, with a new optimiser in each
(``reset="optimiser"``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from random import Random
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
    Sampling,
    Task,
    alternate,
    examine,
    gives,
    measure_solver,
    program,
    recipe,
    snapshot,
    solve,
)
from cotrain.algorithms.dpo import CHOSEN, PairLoss, Preference
from cotrain.config.evaluation import ImplicitReward
from cotrain.config.run_config import Reset
from cotrain.core.notes import PROBLEM
from cotrain.data.preferences import ChatTask
from cotrain.formats.role_prompts import SOLVE_BARE
from cotrain.rollout import common_roles
from cotrain.rollout.pairs import check_demonstrations, reply_to

MOST = 256  # tokens of an opponent's reply, as the authors'


@gives(CHOSEN)
async def against_the_solution(task: Task, roles: Roles, *, rival: str | None) -> None:
    """The worked solution, and what the role ``rival`` writes in its place."""
    if isinstance(task, ChatTask):
        return await against_the_reply(task, roles, rival=rival)
    solution = roles.teacher.format_solution(task.solution or "")
    pair = roles.teacher.whole_group
    gold = await roles.teacher(problem=task.prompt, solution=solution, group=pair)
    gold.reward(CHOSEN, 1.0)
    if rival is not None:
        written = await getattr(roles, rival)(problem=task.prompt, group=pair)
        await examine(task, roles, written)
        if not written.failed:
            written.reward(CHOSEN, 0.0)


async def against_the_reply(task: ChatTask, roles: Roles, *, rival: str | None) -> None:
    """The same where the task is a conversation, which is sent as it stands."""
    speakers = [roles.teacher, *([getattr(roles, rival)] if rival else [])]
    pair = roles.teacher.whole_group
    turns = [await reply_to(task, speaker, task.solution, group=pair) for speaker in speakers]
    for turn, value in zip(turns, (1.0, 0.0), strict=False):
        turn.add_finding(PROBLEM, task.prompt)
        turn.reward(CHOSEN, value)
    turns[0].add_metadata(CORRECT, True)


def say_solution(fields: Mapping[str, Any], rng: Random) -> str:
    return str(fields["solution"])


@recipe(without=("kl", "group_size"))
def spin(
    run: RunConfig,
    *,
    iteration: int = 25,  # updates against one opponent
    betas: tuple[float, ...] = (0.1, 0.1, 0.1, 5.0),  # β of each iteration; the last one stays
    loss: PairLoss = "sigmoid",  # of a pair
    mixed: bool = True,  # also pairs of the iteration before
    sft: float = 0.0,  # share of the solutions' cross-entropy in the loss
    control: Literal["none", "sft"] = "none",  # "sft": cross-entropy of the solutions alone
    reset: Reset = "nothing",  # what each iteration begins anew: the "optimiser", as the authors do, or "weights"
) -> Recipe:
    chats = check_demonstrations("spin", run.problems)

    def speaker(policy: str) -> Role:
        if chats:
            return Role(policy=policy, prompt=SOLVE_BARE, sampling=Sampling(max_tokens=MOST))
        return common_roles.solver(policy, run.model)

    if iteration < 1:
        raise ConfigError(f"spin: iteration is {iteration}, expected at least 1 update", code="E_SETTING_RANGE")
    tells = program(say_solution, tokens_of="generator")
    policies = {"generator": run.learner(iteration=iteration, reset=reset), "teacher": tells}
    roles = {} if chats else {"solver": speaker("generator")}
    roles["teacher"] = speaker("teacher")

    def make_phase(name: str, rival: str | None) -> Phase:
        play = partial(against_the_solution, rival=rival)
        return Phase(name=name, protocol=play, objectives=("generator",), group_size=1)

    if control == "sft":
        objectives = {"generator": Objective(policy="generator", role="teacher", algorithm=SFT())}
        schedule = alternate(make_phase("sft", None), ratio=(1,))
    else:
        by = Preference(policy="generator", reference="opponent", loss=loss, betas=betas, every=iteration, sft=sft)
        rivals = {"opponent": snapshot(run.model, of="generator", every=iteration)}
        if mixed:
            rivals["former"] = snapshot(run.model, of="generator", every=iteration, keep=2, pick="oldest")
        objectives = {
            "generator": Objective(policy="generator", role="teacher", extra_roles=tuple(rivals), algorithm=by)
        }
        policies |= rivals
        roles |= {name: speaker(name) for name in rivals}
        phases = [make_phase(name, name) for name in rivals]
        schedule = alternate(*phases, ratio=(1,) * len(rivals), warmup={"opponent": iteration})
    made = run.recipe(
        "spin" if control == "none" else "spin-sft",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(against_the_solution, rival=None) if chats else solve,
        measures=() if chats else (measure_solver("solver", 8),),
        implicit_rewards=(ImplicitReward(policy="generator", role="teacher", replies=True),) if chats else (),
    )
    if chats:  # measured in one play: nothing is drawn
        made = replace(made, evaluation=replace(made.evaluation, greedy=False, group_size=1))
    return made
