"""Debate: two sides, one policy, and a judge who can check one step, or who reads and votes; rewards are constant-sum.

Two games after Irving et al. 2018 (arXiv 1805.00899):

    game="sides"   of a right and a wrong solution of a frozen author each debater defends one, by a draw, and points at
                   the step of the other's that it says is wrong (Arnesen et al. 2024, arXiv 2409.16636)
    game="solve"   alice writes the solution, bob points at a step of it, and the judge believes it or not (Kenton et
                   al. 2026, "Debate Training Reduces Reward Hacking in RLAIF")

    judge="budget"   checks one step: one of the two that are accused, each as likely, or the one that bob names
    judge="frozen"   a model reads and votes ``votes`` times; r is its share

Prefix, then diverge: one ply is drawn; all before it is said once, and there ``group_size`` speeches are compared with
each other. A speech is paid r or 1 − r, less a soft penalty for words beyond the limit; −1 if it cannot be read.
``by="dpo"`` is DPO+ on such branches in place of RL, after the same SFT on a program's speeches (``warmup``).

Controls: ``consultancy`` has one debater on a drawn side; ``rlaif`` has no opponent: the same judge, who then checks a
drawn step, pays the solver alone. ``judged`` is the share of verdicts for the right solution; ``judge/mcc`` says how
true verdicts are. ``cotrain xplay --seats`` lets debaters of other steps and seeds meet.

``speech="review"``: bob reviews each step as a verifier does, and accuses the first that it calls wrong; the embedded
models know how, and need no warm-up.

Different from the papers: a claim is the number of a step, with an argument that only a judge who reads hears; the
transcripts of the SFT are a program's that points anywhere. Left out: a judge who is trained.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from cotrain import ConfigError, Objective, Phase, Policy, Recipe, Role, Sampling, Settings, Sft
from cotrain import alternate, dr_grpo, frozen, judges, noting, common_roles, program, recipe, snapshot
from cotrain import solving, verifying
from cotrain.learn.preference import Preference
from cotrain.config.schedule import Protocol
from cotrain.methods.debate.contests import check_step, contest, rehearse_contest
from cotrain.methods.debate.debates import HIT, JUDGED_RIGHT, PAID, SIDES, accuse_anything, argue, parse_accusation
from cotrain.methods.debate.debates import parse_review_as_accusation
from cotrain.methods.debate.prompts import (
    ACCUSE,
    ACCUSE_FULL,
    ACCUSE_ON,
    ACCUSE_ON_FULL,
    CHECK_STEP,
    CRITICISE,
    CRITICISE_FULL,
)

LIMITS = 4, 100  # words of a speech: of models that name a step and no more, and of others
MOST = 64, 256  # tokens of a speech without a limit


@recipe(kl=0.0, evaluation_tasks=64)
def debate(
    run: Settings,
    *,
    game: Literal["sides", "solve"] = "sides",  # over two solutions, or over the solver's own
    judge: Literal["budget", "frozen"] = "budget",  # checks one step, or reads and votes
    votes: int = 8,  # of a model that judges
    consultancy: bool = False,  # one debater alone, on a drawn side
    rlaif: bool = False,  # nobody speaks against the solver
    speech: Literal["step", "review"] = "step",  # bob names a step, or reviews all and names the first that is wrong
    by: Literal["rl", "dpo"] = "rl",  # what learns from the branches
    turns: int = 1,  # of both sides at once
    leaves: int = 1,  # continuations of a speech that is not the last, whose outcomes are averaged
    words: int | None = None,  # limit of a speech, 0 for none (default: 100; 4 for the embedded models; of reviews 0)
    over: float = 1.0,  # what a speech pays that is twice as long
    unread: float = -1.0,  # what is paid for one that cannot be read
    drafts: int = 4,  # solutions of a problem that a pair is taken from
    warmup: int | None = None,  # steps in which the format of an accusation is learned (default: 40; of reviews 0)
    iteration: int = 20,  # updates of DPO+ with one reference
    beta: float = 0.5,  # β of DPO+
    gamma: float = 0.0,  # γ of its soft labels; 0: the paper's, 7, and 10 for a consultancy
    sft: float = 0.005,  # share of the better speech's cross-entropy in its loss
) -> Recipe:
    short = common_roles.speaks_short(run.model)
    reviews = speech == "review"
    limit = (0 if reviews else LIMITS[not short]) if words is None else words
    lessons = (0 if reviews else 40) if warmup is None else warmup
    if drafts < 2 or min(votes, turns, leaves, iteration) < 1 or min(limit, over) < 0:
        raise ConfigError(
            f"debate: drafts is {drafts}, votes {votes}, turns {turns}, leaves {leaves}, iteration {iteration}, words "
            f"{limit} and over {over}; expected at least 2, 1, 1, 1, 1, 0 and 0"
        )
    if reviews and (game != "solve" or rlaif or consultancy or lessons):
        raise ConfigError(
            "debate: speech=review has a critic of the solver's own solution, who knows the format; give --game solve, "
            "and leave out rlaif, consultancy and warmup"
        )
    if lessons < 1 and not reviews and not rlaif and run.model in common_roles.EMBEDDED:
        raise ConfigError(f"debate: warmup is {lessons}, and {run.model!r} cannot accuse a step; expected at least 1")
    if rlaif and (game != "solve" or consultancy):
        raise ConfigError("debate: rlaif pays the solver alone; give --game solve with it, and leave out consultancy")
    if game == "solve" and (turns, leaves) != (1, 1):
        raise ConfigError(
            f"debate: turns is {turns} and leaves {leaves}; with --game solve bob speaks once, leave both"
        )
    if by == "dpo" and run.kl:
        raise ConfigError(f"debate: kl is {run.kl}, and DPO+ is held by its own reference; leave kl at 0, or by at rl")
    if by == "dpo" and run.group_size < 2:
        raise ConfigError(f"debate: by=dpo compares speeches, and group_size is {run.group_size}; expected at least 2")

    def speaker_role(policy: str, short_prompt: str, prompt: str) -> Role:
        most = Sampling(max_tokens=4 * limit or MOST[not short])
        return Role(policy=policy, prompt=short_prompt if short else prompt, parse=parse_accusation, sampling=most)

    def make_objective(on: str, *also: str) -> Objective:
        if by == "dpo":
            soft = gamma or (10.0 if consultancy else 7.0)
            play_options = Preference(
                policy="debater", reference="before", better=PAID, betas=(beta,), soft=soft, sft=sft
            )
            return Objective(policy="debater", on=on, also=also, by=play_options)
        return Objective(policy="debater", on=on, also=also, by=dr_grpo(rewards={PAID: 1.0}, kl=run.pull()))

    policies: dict[str, Policy] = {"debater": run.learner(), **(run.start() if by == "rl" else {})}
    if by == "dpo":
        policies["before"] = snapshot(run.model, of="debater", every=iteration, first=lessons)
    first: dict[str, Any]
    protocol: Protocol
    rehearsal: Protocol
    how: dict[str, Any] = {"jury": votes if judge == "frozen" else 0}
    rules: dict[str, Any] = {"words": limit, "over": over, "unread": unread}
    if judge == "frozen":
        policies["judge"] = frozen(run.model)
    if game == "sides":
        speaks = speaker_role("debater", *((ACCUSE, ACCUSE_FULL) if turns == 1 else (ACCUSE_ON, ACCUSE_ON_FULL)))
        policies["author"] = frozen(run.model)
        roles = {"solver": common_roles.solver("author", run.model), **dict.fromkeys(SIDES, speaks)}
        objectives = {"debater": make_objective("alice", "bob")}
        how |= {"drafts": drafts, "consultancy": consultancy, "turns": turns}
        options, protocol = rules | how | {"samples": run.group_size, "leaves": leaves}, argue
        first, rehearsal = {"drafts": drafts, "turns": turns, "words": limit, "rehearsed": True}, argue
        measures = tuple(noting(side, note) for side in SIDES for note in (JUDGED_RIGHT, HIT))
        if judge == "frozen":
            roles["judge"] = judges.comparer("judge", run.model)
            measures += (verifying("judge"),)
    else:
        speaks = speaker_role("debater", CRITICISE, CRITICISE_FULL)
        if reviews:
            speaks = replace(common_roles.verifier("debater", run.model), parse=parse_review_as_accusation)
        roles = {"solver": common_roles.solver("debater", run.model), "bob": speaks}
        if judge == "frozen":
            roles["judge"] = judges.judge("judge", run.model, "steps" if short else "genrm")
        else:
            policies["judge"] = program(check_step, tokens_of="debater")
            roles["judge"] = judges.checker_role("judge", CHECK_STEP)
        critic = "none" if rlaif else "consultant" if consultancy else "opponent"
        objectives = {"debater": make_objective("solver", *(() if rlaif else ("bob",)))}
        how |= {"critic": critic}
        options, protocol = rules | how | {"samples": run.group_size}, contest
        first, rehearsal = {"critic": critic, "words": limit, "samples": 2}, rehearse_contest
        measures = (verifying("judge"), noting("bob", HIT))
    phases = [Phase(name="debate", protocol=protocol, objectives=tuple(objectives), group_size=1, options=options)]
    if lessons:
        policies["teacher"] = program(accuse_anything, tokens_of="debater")
        roles["teacher"] = speaker_role("teacher", speaks.prompt, speaks.prompt)
        if game == "solve":  # so that the solver forgets less
            policies["start"] = frozen(run.model)
            roles["before"] = common_roles.solver("start", run.model)
        objectives["format"] = Objective(policy="debater", on="teacher", also=("before",) * (game == "solve"), by=Sft())
        phases.append(Phase(name="format", protocol=rehearsal, objectives=("format",), group_size=1, options=first))
    kind = "-consultancy" if consultancy else "-rlaif" if rlaif else ""
    return run.recipe(
        f"debate{'-solve' if game == 'solve' else ''}{kind}{'-dpo' if by == 'dpo' else ''}",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(*phases, ratio=(1, 0) if lessons else (1,), warmup={"format": lessons} if lessons else None),
        evaluate=protocol,
        options=rules | how,
        measures=(solving("solver", 8), *measures),
    )
