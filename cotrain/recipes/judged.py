"""A generator that is paid by its verifier alone: by verdicts on whole solutions, never by the graded answer.

A solution earns the share of its reviews that call it right. A trained verifier learns beside the generator from the
same reviews: 1 for a verdict that is the truth, 0.8 for the format. So nothing but the verifier stands between the
generator and what it can get away with. For frozen reward models Gao et al. (arXiv 2210.10760) measured how pay and
truth part; here the judge may learn on.

A frozen verifier needs no labels: with ``labelled`` it pays for answers to the problems that have none, and those that
have one teach it in its ``warmup``, if it has any, and measure the run.

Controls: ``verifier="frozen"`` does not train the verifier after its ``warmup`` (both arms begin the generator's
training with the same judge), ``pay="truth"`` pays the graded answer with the same reviews played (the ceiling),
``ratio`` trains the two in turn, each from episodes of its own.

``audit`` adds a judge that never pays, in place of the truth where there is none: a frozen copy of the verifier's start
("reference") or another model reads a part of the solutions, and an alarm compares its verdicts with those that pay (a
hidden audit, arXiv 2609.01345). The generator cannot learn to fool it, for nothing that it says reaches a reward.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    GRPO,
    OUTCOME,
    ClassBalance,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Roles,
    RunConfig,
    Signal,
    Task,
    alternate,
    frozen,
    gives,
    recipe,
    solve,
    solve_then_verify,
)
from cotrain.core.arguments import Positive, Share, Weight
from cotrain.core.signals import CLASS_LABEL
from cotrain.metrics.heldout import measure_solver_and_verifier
from cotrain.rollout import common_roles, judges
from cotrain.rollout.reviews import hidden_audit, mean_verdict, review, reward_review

BELIEVED = Signal("believed", meaning="share of the readable reviews that call the solution right")
SOLVER = (OUTCOME.to("solver"), FORMAT.to("solver"), BELIEVED.to("solver"))


@gives(*SOLVER, AGREEMENT.to("verifier"), FORMAT.to("verifier"), CLASS_LABEL.to("verifier"), once=("solver",))
async def solve_to_be_believed(task: Task, roles: Roles, *, reviews: Positive, audit_share: Share = 0.0) -> None:
    """``reviews`` verdicts pay a solution. An unreadable solution is not reviewed and earns 0; one that could not be
    graded, or of which no review can be read, earns nothing and is not learned from. ``audit_share``: the share of the
    paid solutions that the role ``auditor`` reads too, for no pay."""
    solution = await solve(task, roles)
    if solution.failed:
        return
    if not solution.parsed.ok:
        solution.reward(BELIEVED, 0.0)
        return
    review_turns = await review(task, roles, solution, n=reviews)
    for turn in review_turns if task.labelled else ():
        reward_review(turn, CORRECT.require(solution))
    share = mean_verdict(review_turns)
    if share is not None:
        solution.reward(BELIEVED, share)
        if audit_share:
            await hidden_audit(task, roles, solution, payer_said=share, share=audit_share)


@recipe
def judged(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    verifier_format: float = 0.8,  # weight of the reward for a readable review
    verifier: Literal["trained", "frozen"] = "trained",  # does it learn beside the generator?
    warmup: int = 20,  # first steps, in which only the verifier is trained
    ratio: tuple[int, int] | None = None,  # steps of generator and verifier, in turn; by default both learn at each
    reviews: int = 4,  # of a solution
    pay: Literal["verdict", "truth"] = "verdict",  # what a solution earns
    judge: judges.Format = "steps",  # format of the verifier's reviews
    balance: bool = True,  # class weights: reviews of the rarer kind of solution count more
    audit: str | None = None,  # a judge that never pays: a model, or "reference" for the verifier's start
    audit_share: Share = 0.25,  # share of the solutions that it reads
) -> Recipe:
    if reviews < 2:
        raise ConfigError(
            f"judged: reviews is {reviews}; expected at least 2, which are compared with each other",
            code="E_SETTING_RANGE",
        )
    critic, learns = verifier_model or run.model, verifier == "trained"
    if ratio and not learns:
        raise ConfigError(
            f"judged: ratio is {ratio} and verifier=frozen; leave ratio out, or train the verifier",
            code="E_RATIO_WITHOUT_LEARNER",
        )
    auditor = critic if audit == "reference" else audit
    check_audit(auditor, audit_share, payer=critic, payer_learns=learns or warmup > 0)
    readable = {FORMAT: format_reward} if format_reward else {}
    by = GRPO(reward_weights={BELIEVED if pay == "verdict" else OUTCOME: 1.0} | readable, kl=run.kl_penalty())
    learn_to_judge = GRPO(
        reward_weights={AGREEMENT: 1.0} | ({FORMAT: verifier_format} if verifier_format else {}),
        sum_rewards_first=True,
        balance=ClassBalance() if balance else None,
    )
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=by)}
    if learns or warmup:
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    def make_phase(name: str, *objectives: str, unlabelled: float = 0.0) -> Phase:
        # A judge that learns alone changes its mind about the same answers: what it then says is no sign of anything.
        is_audited = auditor is not None and "generator" in objectives
        protocol = partial(solve_to_be_believed, reviews=reviews)
        if is_audited:
            protocol = partial(protocol, audit_share=audit_share)
        return Phase(name=name, protocol=protocol, objectives=objectives, unlabelled=unlabelled)

    together = ("generator",) if ratio or not learns else ("generator", "verifier")
    needs_labels = learns or pay == "truth"
    unlabelled = 0.0 if needs_labels else run.unlabelled_share()
    phases = [make_phase("both" if not ratio else "generator", *together, unlabelled=unlabelled)]
    phases += [make_phase("verifier", "verifier")] if warmup or ratio else []
    trained = run.learner(critic, lr=verifier_lr) if "verifier" in objectives else frozen(critic)
    shares = (ratio or (1, 0))[: len(phases)]
    policies = {"generator": run.learner(), "verifier": trained, **run.reference_policies()}
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "verifier": judges.judge_role("verifier", critic, judge),
    }
    if auditor is not None:
        policies["auditor"] = frozen(auditor)
        roles["auditor"] = judges.judge_role("auditor", auditor, judge)
    return run.recipe(
        "judged" if learns else "judged-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=alternate(*phases, ratio=shares, warmup={"verifier": warmup} if warmup else {}),
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
    )


def check_audit(auditor: str | None, share: float, *, payer: str, payer_learns: bool) -> None:
    """Raise ConfigError for an audit that could never say anything else than the judge that pays, or nothing at all."""
    if auditor is None:
        return
    if auditor == payer and not payer_learns:
        raise ConfigError(
            f"judged: audit is {auditor!r}, which is the judge that pays and never learns here, so that both are "
            "fooled by the same answers; name another model, or train the verifier",
            code="E_AUDITOR_IS_JUDGE",
        )
    if share == 0:
        raise ConfigError(
            "judged: audit_share is 0, so that nothing is audited; raise it, or leave audit out", code="E_SETTING_RANGE"
        )
