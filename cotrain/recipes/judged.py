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
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from cotrain import (
    AGREEMENT,
    CORRECT,
    FORMAT,
    OUTCOME,
    ClassBalance,
    ConfigError,
    Objective,
    Phase,
    Recipe,
    Roles,
    Settings,
    Signal,
    Task,
    alternate,
    frozen,
    gives,
    grpo,
    recipe,
    solve,
    solve_then_verify,
)
from cotrain.core.arguments import Positive, Weight
from cotrain.core.signals import TRUTH
from cotrain.metrics.heldout import measure_solver_and_judge
from cotrain.rollout import common_roles, judges
from cotrain.rollout.reviews import mean_verdict, review, reward_review

BELIEVED = Signal("believed", meaning="share of the readable reviews that call the solution right")
SOLVER = (OUTCOME.to("solver"), FORMAT.to("solver"), BELIEVED.to("solver"))


@gives(*SOLVER, AGREEMENT.to("verifier"), FORMAT.to("verifier"), TRUTH.to("verifier"), once=("solver",))
async def solve_to_be_believed(task: Task, roles: Roles, *, reviews: Positive) -> None:
    """``reviews`` verdicts pay a solution. An unreadable solution is not reviewed and earns 0; one that could not be
    graded, or of which no review can be read, earns nothing and is not learned from."""
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


@recipe
def judged(
    run: Settings,
    *,
    verifier_model: str | None = None,  # begins the verifier; by default the generator's model
    verifier_lr: float = 2e-4,  # learning rate of the verifier
    format_reward: Weight = 0.0,  # weight of a solution that can be read
    verifier_format: float = 0.8,  # weight of a review that can be read
    verifier: Literal["trained", "frozen"] = "trained",  # does it learn beside the generator?
    warmup: int = 20,  # steps in which the verifier alone learns
    ratio: tuple[int, int] | None = None,  # steps of generator and verifier, in turn; by default both learn at each
    reviews: int = 4,  # of a solution
    pay: Literal["verdict", "truth"] = "verdict",  # what a solution earns
    judge: judges.Format = "steps",  # the verifier's format
    balance: bool = True,  # class weights: reviews of the rarer kind of solution count more
) -> Recipe:
    if reviews < 2:
        raise ConfigError(f"judged: reviews is {reviews}; expected at least 2, which are compared with each other")
    critic, learns = verifier_model or run.model, verifier == "trained"
    if ratio and not learns:
        raise ConfigError(f"judged: ratio is {ratio} and verifier=frozen; leave ratio out, or train the verifier")
    readable = {FORMAT: format_reward} if format_reward else {}
    by = grpo(rewards={BELIEVED if pay == "verdict" else OUTCOME: 1.0} | readable, kl=run.pull())
    learn_to_judge = grpo(
        rewards={AGREEMENT: 1.0} | ({FORMAT: verifier_format} if verifier_format else {}),
        merge=True,
        balance=ClassBalance() if balance else None,
    )
    objectives = {"generator": Objective(policy="generator", on="solver", by=by)}
    if learns or warmup:
        objectives["verifier"] = Objective(policy="verifier", on="verifier", by=learn_to_judge)

    def make_phase(name: str, *objectives: str, unlabelled: float = 0.0) -> Phase:
        protocol = partial(solve_to_be_believed, reviews=reviews)
        return Phase(name=name, protocol=protocol, objectives=objectives, unlabelled=unlabelled)

    together = ("generator",) if ratio or not learns else ("generator", "verifier")
    needs_labels = learns or pay == "truth"
    unlabelled = 0.0 if needs_labels else run.unlabelled_share()
    phases = [make_phase("both" if not ratio else "generator", *together, unlabelled=unlabelled)]
    phases += [make_phase("verifier", "verifier")] if warmup or ratio else []
    trained = run.learner(critic, lr=verifier_lr) if "verifier" in objectives else frozen(critic)
    shares = (ratio or (1, 0))[: len(phases)]
    return run.recipe(
        "judged" if learns else "judged-frozen",
        policies={"generator": run.learner(), "verifier": trained, **run.start()},
        roles={
            "solver": common_roles.solver("generator", run.model),
            "verifier": judges.judge("verifier", critic, judge),
        },
        objectives=objectives,
        schedule=alternate(*phases, ratio=shares, warmup={"verifier": warmup} if warmup else {}),
        evaluate=solve_then_verify,
        measures=measure_solver_and_judge("verifier"),
    )
