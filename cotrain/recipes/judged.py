"""A generator that is paid by its verifier alone: by verdicts on whole solutions, never by the graded answer.

A solution earns the share of its reviews that call it right. A trained verifier learns beside the generator from the
same reviews: 1 for a verdict that is the truth, 0.8 for the format. So nothing but the verifier stands between the
generator and what it can get away with. For frozen reward models Gao et al. (arXiv 2210.10760) measured how pay and
truth part; here the judge may learn on.

A frozen verifier needs no labels: with ``labelled`` it pays for answers to the problems that have none, and those that
have one teach it in its ``warmup``, if it has any, and measure the run.

Controls are parameters:

- ``verifier="frozen"``: the verifier is not trained after its ``warmup``. Both arms begin the generator's training with
  the same judge.
- ``pay="truth"``: the graded answer pays, with the same reviews sampled (ceiling).
- ``ratio``: the two are trained in turn, each from episodes of its own.
- ``audit``: a second judge that never pays (a hidden audit, arXiv 2609.01345), in place of the truth where there is
  none. It is a frozen copy of the verifier's start ("reference") or another model, and reads a part of the solutions;
  an alarm compares its verdicts with those that pay. The generator cannot learn to fool it, for nothing that it says
  reaches a reward.
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
from cotrain.rollout import common_roles, verifier_roles
from cotrain.rollout.reviews import hidden_audit, mean_verdict, review, reward_review

BELIEVED = Signal("believed", meaning="share of the readable reviews that call the solution right")
SOLVER = (OUTCOME.to("solver"), FORMAT.to("solver"), BELIEVED.to("solver"))


@gives(*SOLVER, AGREEMENT.to("verifier"), FORMAT.to("verifier"), CLASS_LABEL.to("verifier"), once=("solver",))
async def solve_to_be_believed(task: Task, roles: Roles, *, reviews: Positive, audit_share: Share = 0.0) -> None:
    """The verdicts of ``reviews`` reviews pay a solution.

    An unreadable solution is not reviewed and earns 0. One that could not be graded, or of which no review can be read,
    earns nothing and is not learned from. ``audit_share``: the share of the paid solutions that the role ``auditor``
    reads too, for no pay.
    """
    solution = await solve(task, roles)
    if solution.failed:
        return
    if not solution.parsed.ok:
        solution.reward(BELIEVED, 0.0)
        return

    review_turns = await review(task, roles, solution, n=reviews)
    if task.labelled:
        is_right = CORRECT.require(solution)
        for turn in review_turns:
            reward_review(turn, is_right)

    share_believed = mean_verdict(review_turns)
    if share_believed is None:
        return
    solution.reward(BELIEVED, share_believed)
    if audit_share:
        await hidden_audit(task, roles, solution, payer_said=share_believed, share=audit_share)


@recipe
def judged(
    run: RunConfig,
    *,
    verifier_model: str | None = None,  # initial weights of the verifier; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    format_reward: Weight = 0.0,  # weight of the reward for a readable solution
    verifier_format: float = 0.8,  # weight of the reward for a readable review
    verifier: Literal["trained", "frozen"] = "trained",  # frozen: it is not trained after its warm-up
    warmup: int = 20,  # first steps, in which only the verifier is trained
    ratio: tuple[int, int] | None = None,  # steps of generator and verifier, in turn; by default both learn at each
    reviews: int = 4,  # reviews of a solution
    pay: Literal["verdict", "truth"] = "verdict",  # what a solution earns
    review_format: verifier_roles.ReviewFormat = "steps",  # format of the verifier's reviews
    balance: bool = True,  # class weights: reviews of the rarer kind of solution count more
    audit: str | None = None,  # a judge that never pays: a model, or "reference" for the verifier's start
    audit_share: Share = 0.25,  # share of the solutions that the audit reads
) -> Recipe:
    if reviews < 2:
        raise ConfigError(
            f"judged: reviews is {reviews}; expected at least 2, which are compared with each other",
            code="E_SETTING_RANGE",
        )

    initial_verifier = verifier_model or run.model
    learns_beside = verifier == "trained"
    is_ever_trained = learns_beside or warmup > 0
    if ratio and not learns_beside:
        raise ConfigError(
            f"judged: ratio is {ratio} and verifier=frozen; leave ratio out, or train the verifier",
            code="E_RATIO_WITHOUT_LEARNER",
        )
    auditor = initial_verifier if audit == "reference" else audit
    check_audit(auditor, audit_share, payer=initial_verifier, payer_learns=is_ever_trained)

    # The generator learns from verdicts, or from the truth.
    payment = BELIEVED if pay == "verdict" else OUTCOME
    generator_rewards = {payment: 1.0}
    if format_reward:
        generator_rewards[FORMAT] = format_reward
    learn_to_solve = GRPO(reward_weights=generator_rewards, kl=run.kl_penalty())
    objectives = {"generator": Objective(policy="generator", role="solver", algorithm=learn_to_solve)}

    # The verifier learns from labels: its rewards are added up before the reviews of one solution are compared.
    if is_ever_trained:
        verifier_rewards = {AGREEMENT: 1.0}
        if verifier_format:
            verifier_rewards[FORMAT] = verifier_format
        learn_to_judge = GRPO(
            reward_weights=verifier_rewards,
            sum_rewards_first=True,
            balance=ClassBalance() if balance else None,
        )
        objectives["verifier"] = Objective(policy="verifier", role="verifier", algorithm=learn_to_judge)

    policies = {"generator": run.learner()}
    if is_ever_trained:
        policies["verifier"] = run.learner(initial_verifier, lr=verifier_lr)
    else:
        policies["verifier"] = frozen(initial_verifier)
    policies |= run.reference_policies()
    roles = {
        "solver": common_roles.solver("generator", run.model),
        "verifier": verifier_roles.verifier_role("verifier", initial_verifier, review_format),
    }
    if auditor is not None:
        policies["auditor"] = frozen(auditor)
        roles["auditor"] = verifier_roles.verifier_role("auditor", auditor, review_format)

    # The phase in which the generator learns, with the verifier beside it or without.
    protocol = partial(solve_to_be_believed, reviews=reviews)
    audited_protocol = protocol
    if auditor is not None:
        audited_protocol = partial(protocol, audit_share=audit_share)
    needs_labels = learns_beside or pay == "truth"
    generator_phase = Phase(
        name="generator" if ratio else "both",
        protocol=audited_protocol,
        objectives=("generator", "verifier") if learns_beside and not ratio else ("generator",),
        unlabelled=0.0 if needs_labels else run.unlabelled_share(),
    )

    # The phase in which the verifier learns alone, with no audit: a judge that learns alone changes its mind about the
    # same answers, so that what it says then is no sign of anything.
    verifier_phase = Phase(name="verifier", protocol=protocol, objectives=("verifier",))

    if warmup or ratio:
        schedule = alternate(
            generator_phase,
            verifier_phase,
            ratio=ratio or (1, 0),
            warmup={"verifier": warmup} if warmup else {},
        )
    else:
        schedule = alternate(generator_phase, ratio=(1,))

    return run.recipe(
        "judged" if learns_beside else "judged-frozen",
        policies=policies,
        roles=roles,
        objectives=objectives,
        schedule=schedule,
        evaluate=solve_then_verify,
        measures=measure_solver_and_verifier("verifier"),
    )


def check_audit(auditor: str | None, share: float, *, payer: str, payer_learns: bool) -> None:
    """Raise ConfigError for an audit that could only repeat the judge that pays, and for one that reads nothing."""
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
