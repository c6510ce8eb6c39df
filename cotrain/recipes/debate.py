"""Debate: two debaters defend a right and a wrong solution, and a judge who can check one step says who wins.

After Irving et al. 2018 (arXiv 1805.00899), with the sampling and the rewards of "Debate Training Reduces Reward
Hacking in RLAIF" (Kenton et al. 2026). A frozen author writes ``drafts`` solutions of a problem; where one is right and
one is wrong, the sides are drawn. Each debater sees both and points at the step of the other's solution that it says is
wrong, in one turn of few tokens. Rewards are constant-sum: r for one, 1 − r for the other.

    judge="budget"   looks at one of the two steps, each as likely: if it is wrong its accuser wins, else the accused
    judge="frozen"   a model reads solutions and accusations and votes ``votes`` times; r is its share

Prefix, then diverge: solutions and the speech of one debater are the prefix; the other one, drawn by a coin, speaks
``group_size`` times, and these speeches are compared with each other. Both debaters are one policy. Control:
``consultancy=True`` has one debater, on a side that is drawn, and a judge who hears it alone. ``judged`` is the share
of verdicts for the right solution.

Different from the papers: claims are steps and not words, so nobody can win by talking; one turn each. A model that
does not know the format learns it from a program that points anywhere (``warmup``). Left out: SFT and DPO+ on
transcripts, cross-play.
"""

from __future__ import annotations

from typing import Any, Literal

from cotrain import ConfigError, Objective, Phase, Recipe, Role, Sampling, Settings, Sft
from cotrain import alternate, dr_grpo, frozen, noting, common_roles, program, recipe, solving
from cotrain.play.debates import HIT, JUDGED_RIGHT, SIDES, WON, accuse_anything, argue, parse_accusation
from cotrain.play.judges import comparer
from cotrain.text.prompts import ACCUSE, ACCUSE_FULL


@recipe(kl=0.0, evaluation_tasks=64)
def debate(
    run: Settings,
    *,
    judge: Literal["budget", "frozen"] = "budget",  # checks one step, or reads and votes
    votes: int = 8,  # of a model that judges
    consultancy: bool = False,  # one debater alone
    drafts: int = 4,  # solutions of a problem that a pair is taken from
    warmup: int = 40,  # steps in which the format of an accusation is learned
) -> Recipe:
    if drafts < 2 or votes < 1:
        raise ConfigError(f"debate: drafts is {drafts} and votes {votes}, expected at least 2 and at least 1")
    if warmup < 1 and run.model in common_roles.EMBEDDED:
        raise ConfigError(f"debate: warmup is {warmup}, and {run.model!r} cannot accuse a step; expected at least 1")
    short = common_roles.speaks_short(run.model)
    speaks = Role(
        policy="debater",
        prompt=ACCUSE if short else ACCUSE_FULL,
        parse=parse_accusation,
        sampling=Sampling(max_tokens=8 if short else 256),
    )
    policies = {"debater": run.learner(), "author": frozen(run.model), **run.start()}
    roles = {"solver": common_roles.solver("author", run.model), **dict.fromkeys(SIDES, speaks)}
    learn = dr_grpo(rewards={WON: 1.0}, kl=run.pull())
    objectives = {"debater": Objective(policy="debater", on="alice", also=("bob",), by=learn)}
    how: dict[str, Any] = {"drafts": drafts, "consultancy": consultancy, "jury": votes if judge == "frozen" else 0}
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
        roles["judge"] = comparer("judge", run.model)
    options = how | {"samples": run.group_size}
    phases = [Phase(name="debate", protocol=argue, objectives=("debater",), group_size=1, options=options)]
    if warmup:
        policies["teacher"] = program(accuse_anything, tokens_of="debater")
        roles["teacher"] = Role(
            policy="teacher", prompt=speaks.prompt, parse=parse_accusation, sampling=speaks.sampling
        )
        objectives["format"] = Objective(policy="debater", on="teacher", by=Sft())
        first = {"drafts": drafts, "rehearsed": True}
        phases.append(Phase(name="format", protocol=argue, objectives=("format",), group_size=1, options=first))
    return run.recipe(
        "debate-consultancy" if consultancy else "debate",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(*phases, ratio=(1, 0) if warmup else (1,), warmup={"format": warmup} if warmup else None),
        evaluate=argue,
        options=how,
        measures=(solving("solver", 8), *(noting(side, note) for side in SIDES for note in (JUDGED_RIGHT, HIT))),
    )
