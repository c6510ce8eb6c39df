"""SPIN: worked solutions are preferred to what the model itself wrote one iteration ago.

Chen et al. 2024 (arXiv 2401.01335). The generator is trained. A pair is the worked solution of a problem, which is
preferred, and a solution that the opponent samples: the generator as it was when the iteration began, which lasts for
``iteration`` updates. The loss is −log σ(β m), where m is the margin of DPO with the opponent as reference
(``algorithms/dpo.py``); β is one of ``betas`` for each iteration, theirs are 0.1, 0.1, 0.1 and 5. From the second
iteration on, every other step has pairs whose rival is sampled by the opponent of the iteration before; the reference
is still the present opponent, as in the authors' code.

In conversations (``--tasks chats``) the last reply takes the place of the solution, and opponents reply to what comes
before it. Nobody grades replies, so the evaluation is the surprisal of held-out ones, in nats a token.

The fixed point is the distribution of the worked solutions, so SPIN cannot get better than these. The control
``control="sft"`` learns the same solutions in as many steps by cross-entropy: compare the gain with this one's.

What differs from the authors' code:

- Pairs are sampled as they are needed, and each problem is met once; theirs are sampled once, for 6 epochs.
- AdamW has one learning rate; theirs is RMSProp with a rate that decays, and is lower after two iterations.
- The optimiser goes on from iteration to iteration; theirs is a new one in each (``reset="optimiser"``).
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
    constant_schedule,
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
    """The role ``teacher`` says the worked solution, and the role ``rival``, if there is one, writes another. The two
    are one group, in which the worked solution is the chosen reply."""
    if isinstance(task, ChatTask):
        return await against_the_reply(task, roles, rival=rival)
    solution = roles.teacher.format_solution(task.solution or "")
    group = roles.teacher.whole_group
    chosen_reply = await roles.teacher(problem=task.prompt, solution=solution, group=group)
    chosen_reply.reward(CHOSEN, 1.0)
    if rival is None:
        return
    rival_reply = await getattr(roles, rival)(problem=task.prompt, group=group)
    await examine(task, roles, rival_reply)
    if not rival_reply.failed:
        rival_reply.reward(CHOSEN, 0.0)


async def against_the_reply(task: ChatTask, roles: Roles, *, rival: str | None) -> None:
    """``against_the_solution`` where the task is a conversation, whose messages are the prompt."""
    group = roles.teacher.whole_group
    chosen_reply = await reply_to(task, roles.teacher, task.solution, group=group)
    rival_reply = None
    if rival is not None:
        rival_reply = await reply_to(task, getattr(roles, rival), task.solution, group=group)

    chosen_reply.add_finding(PROBLEM, task.prompt)
    chosen_reply.reward(CHOSEN, 1.0)
    if rival_reply is not None:
        rival_reply.add_finding(PROBLEM, task.prompt)
        rival_reply.reward(CHOSEN, 0.0)
    chosen_reply.add_metadata(CORRECT, True)


def say_solution(fields: Mapping[str, Any], rng: Random) -> str:
    """The policy of the role ``teacher``: it says the worked solution."""
    return str(fields["solution"])


@recipe(without=("kl", "group_size"))
def spin(
    run: RunConfig,
    *,
    iteration: int = 25,  # updates against one opponent
    betas: tuple[float, ...] = (0.1, 0.1, 0.1, 5.0),  # β of each iteration; the last one stays
    loss: PairLoss = "sigmoid",  # loss of a pair
    mixed: bool = True,  # every other step has rivals of the iteration before
    sft: float = 0.0,  # share of the solutions' cross-entropy in the loss
    control: Literal["none", "sft"] = "none",  # "sft": cross-entropy of the solutions alone
    reset: Reset = "nothing",  # reset when an iteration begins: the "optimiser", as the authors do, or "weights"
) -> Recipe:
    has_chats = check_demonstrations("spin", run.problems)
    if iteration < 1:
        raise ConfigError(f"spin: iteration is {iteration}, expected at least 1 update", code="E_SETTING_RANGE")

    def make_speaker(policy: str) -> Role:
        if has_chats:
            return Role(policy=policy, prompt=SOLVE_BARE, sampling=Sampling(max_tokens=MOST))
        return common_roles.solver(policy, run.model)

    def make_phase(rival: str) -> Phase:
        protocol = partial(against_the_solution, rival=rival)
        return Phase(name=rival, protocol=protocol, objectives=("generator",), group_size=1)

    policies = {
        "generator": run.learner(iteration=iteration, reset=reset),
        "teacher": program(say_solution, tokens_of="generator"),
    }
    roles = {}
    if not has_chats:
        roles["solver"] = make_speaker("generator")
    roles["teacher"] = make_speaker("teacher")

    if control == "sft":
        objectives = {"generator": Objective(policy="generator", role="teacher", algorithm=SFT())}
        protocol = partial(against_the_solution, rival=None)
        schedule = constant_schedule(protocol, "generator", name="sft", group_size=1)
    else:
        # A rival is a policy, and a role of the same name that it plays.
        rivals = {"opponent": snapshot(run.model, of="generator", every=iteration)}
        if mixed:
            rivals["former"] = snapshot(run.model, of="generator", every=iteration, keep=2, pick="oldest")
        policies |= rivals
        roles |= {name: make_speaker(name) for name in rivals}
        prefer = Preference(policy="generator", reference="opponent", loss=loss, betas=betas, every=iteration, sft=sft)
        objectives = {
            "generator": Objective(policy="generator", role="teacher", extra_roles=tuple(rivals), algorithm=prefer)
        }
        phases = [make_phase(name) for name in rivals]
        schedule = alternate(*phases, ratio=(1,) * len(rivals), warmup={"opponent": iteration})

    spin_recipe = run.recipe(
        "spin" if control == "none" else "spin-sft",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=partial(against_the_solution, rival=None) if has_chats else solve,
        measures=() if has_chats else (measure_solver("solver", 8),),
        implicit_rewards=(ImplicitReward(policy="generator", role="teacher", replies=True),) if has_chats else (),
    )
    if has_chats:  # replies are given and not sampled, so one look at each is all there is to measure
        spin_recipe = replace(spin_recipe, evaluation=replace(spin_recipe.evaluation, greedy=False, group_size=1))
    return spin_recipe
