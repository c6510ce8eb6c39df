"""Mistakes of whoever writes a method ended in a traceback from within the package, or were blamed on something else:
an advantage function that returned None, a phase where a schedule was expected, a measure without an interval, a reward
of several numbers. Each is one line now, which names the part and says what it was to be."""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from cotrain.algorithms.contract import Credit, Loss, Needs
from cotrain.algorithms.grpo import GRPO
from cotrain.algorithms.policy_gradient import PolicyGradient
from cotrain.algorithms.ppo import PPO
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import trainable
from cotrain.config.recipe import Objective, check_problems
from cotrain.config.schedule import Phase, Schedule, alternate, constant_schedule
from cotrain.core.seeding import rng_of
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Grade, Sampling, StepVerdicts, Task, has_split
from cotrain.metrics.alarms import check_rows
from cotrain.metrics.heldout import measure_solver
from cotrain.recipes.grpo import grpo
from cotrain.rollout.protocols import solve
from cotrain.rollout.role import Role
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY
from tests.sentences import refuses

SMALL = {"model": TINY, "tasks": EASY, "tasks_per_step": 2, "group_size": 2, "evaluation_tasks": 1, "kl": 0.0}
WEIGHTS = {OUTCOME: 1.0}


def recipe_with(algorithm=None, *, protocol=solve, **changes):
    made = grpo(steps=1, **SMALL)
    learn = Objective(policy="generator", role="solver", algorithm=algorithm or GRPO(reward_weights=WEIGHTS))
    schedule = constant_schedule(protocol, "generator", name="generator")
    return replace(made, **{"objectives": {"generator": learn}, "schedule": schedule, **changes})


def one_phase(**settings):
    return Phase(**{"name": "solve", "protocol": solve, "objectives": ("generator",), **settings})


def objective(**settings):
    return Objective(**{"policy": "generator", "role": "solver", "algorithm": GRPO(reward_weights=WEIGHTS), **settings})


def role(**settings):
    return Role(**{"policy": "generator", "prompt": "{problem}", "sampling": Sampling(max_tokens=8), **settings})


WHEN_BUILT = {
    "objectives": (lambda: one_phase(objectives="generator"), "E_NAMES_NOT_TUPLE: ('generator',)"),
    "stores": (lambda: one_phase(stores="pool"), "E_NAMES_NOT_TUPLE: ('pool',)"),
    "in-turn": (lambda: one_phase(in_turn="generator"), "E_NAMES_NOT_TUPLE: in_turn"),
    "cycle": (lambda: Schedule(phases=(one_phase(),), cycle="solve"), "E_NAMES_NOT_TUPLE: ('solve',)"),
    "extra-roles": (lambda: objective(extra_roles="refiner"), "E_NAMES_NOT_TUPLE: ('refiner',)"),
    "once": (lambda: gives(OUTCOME.to("solver"), once="solver"), "E_NAMES_NOT_TUPLE: ('solver',)"),
    "policy": (lambda: objective(policy=trainable(TINY)), "E_PART_KIND: Objective: policy"),
    "phase-list": (lambda: alternate([one_phase()], ratio=(1,)), "E_PART_KIND: a phase | a list"),
    "ratio": (lambda: alternate(one_phase(), ratio=1), "E_PART_KIND: ratio"),
    "warmup": (lambda: alternate(one_phase(), ratio=(1,), warmup=2), "E_PART_KIND: warmup"),
    "schedule": (lambda: recipe_with(schedule=one_phase()), "E_PART_KIND: schedule | constant_schedule"),
    "roles": (lambda: recipe_with(roles={"solver": "generator"}), "E_PART_KIND: role 'solver'"),
    "policies": (lambda: recipe_with(policies={"generator": TINY}), "E_PART_KIND: policy 'generator'"),
    "sampling": (lambda: role(sampling=64), "E_PART_KIND: sampling"),
    "parser": (lambda: role(parse=lambda text: None), "E_FUNCTION_SIGNATURE: text, fields"),
    "measures": (lambda: Evaluation(protocol=solve, measures=measure_solver("solver", 2)), "E_MEASURES_NOT_TUPLE"),
    "measure": (lambda: Evaluation(protocol=solve, measures=(0.5,)), "E_MEASURES_NOT_TUPLE: 0.5"),
    "not-called": (lambda: recipe_with(GRPO), "E_NOT_ALGORITHM: function GRPO"),
    "weights": (lambda: GRPO(reward_weights=[OUTCOME]), "E_REWARD_WEIGHTS_NOT_MAPPING"),
    "weight": (lambda: GRPO(reward_weights={OUTCOME: "high"}), "E_REWARD_WEIGHT: high"),
    "kl": (lambda: GRPO(reward_weights=WEIGHTS, kl=0.1), "E_KL_NOT_TERM: 0.1 | run.kl_penalty()"),
    "kl-ppo": (lambda: PPO(reward_weights=WEIGHTS, kl=0.1), "E_KL_NOT_TERM: 0.1"),
    "advantage": (
        lambda: PolicyGradient(reward_weights=WEIGHTS, advantage=lambda values: values),
        "E_FUNCTION_SIGNATURE: values, group_ids",
    ),
    "loss": (
        lambda: PolicyGradient(reward_weights=WEIGHTS, loss=lambda logprobs: logprobs),
        "E_FUNCTION_SIGNATURE: logprobs, batch",
    ),
    "grade": (lambda: Grade(value=0.5), "E_GRADE_VALUE: 0.5"),
    "task": (lambda: task_of(gold=7), "E_TASK_FIELD: gold is 7"),
}


def test_a_bool_of_numpy_is_a_grade():
    """Such as numpy.isclose returns."""
    assert Grade(value=np.bool_(True)).value is True


def task_of(**fields):
    plain = {"id": "mine/0", "prompt": "2 + 2?", "gold": "4", "solution": None, "difficulty": 0.0, "grader": Says(True)}
    return Task(**{**plain, **fields})


class Says:
    """A grader that returns whatever it was made with, and knows nothing of steps."""

    def __init__(self, said):
        self.said = said

    def grade(self, task, text):
        return self.said


@pytest.mark.parametrize("case", WHEN_BUILT)
def test_a_wrong_part_is_refused_when_it_is_built(case):
    make, expected = WHEN_BUILT[case]
    with refuses(expected):
        make()


class Learn:
    """The smallest algorithm: every sample has the advantage 1."""

    def needs(self):
        return Needs(reward_signals=(OUTCOME,))

    def credit(self, batch, state):
        samples = tuple(replace(sample, advantages=torch.ones(len(sample.token_ids))) for sample in batch.samples)
        return Credit(samples=samples, metrics={}), state

    def loss_of(self, predictions, entropy, batch, totals):
        return Loss(value=-(batch.advantages * predictions * batch.mask).sum() / totals.tokens, sums={})


class WithoutNeeds(Learn):
    def needs(self):
        return None


class WithoutState(Learn):
    def credit(self, batch, state):
        return super().credit(batch, state)[0]


class OfATensor(Learn):
    def loss_of(self, predictions, entropy, batch, totals):
        return -predictions.sum()


class OfEachToken(Learn):
    def loss_of(self, predictions, entropy, batch, totals):
        return Loss(value=-predictions, sums={})


class Detached(Learn):
    def loss_of(self, predictions, entropy, batch, totals):
        return Loss(value=-predictions.detach().sum(), sums={})


def of_rewards(function):
    return PolicyGradient(reward_weights=WEIGHTS, advantage=function, edit_after=())


def of_tokens(function):
    return PolicyGradient(reward_weights=WEIGHTS, loss=function, edit_after=())


RETURNED = {
    "advantage-none": (of_rewards(lambda values, group_ids: None), "E_ADVANTAGE_RETURNED: None | (4,)"),
    "advantage-list": (of_rewards(lambda values, group_ids: values.tolist()), "E_ADVANTAGE_RETURNED: a list"),
    "advantage-short": (of_rewards(lambda values, group_ids: values[:1]), "E_ADVANTAGE_RETURNED: (1,)"),
    "advantage-bool": (of_rewards(lambda values, group_ids: values > 0), "E_ADVANTAGE_RETURNED: bool"),
    "over-batch": (
        PolicyGradient(reward_weights=WEIGHTS, over_batch=lambda tokens: tokens.mean(), edit_after=()),
        "E_ADVANTAGE_RETURNED: tokens",
    ),
    "edit": (
        PolicyGradient(reward_weights=WEIGHTS, edit_after=(lambda samples: samples,)),
        "E_EDIT_RETURNED",
    ),
    "loss-alone": (of_tokens(lambda logprobs, batch: -logprobs), "E_TOKEN_LOSS_RETURNED"),
    "loss-scalar": (of_tokens(lambda logprobs, batch: (-logprobs.sum(), {})), "E_TOKEN_LOSS_RETURNED: shape ()"),
    "loss-metric": (of_tokens(lambda logprobs, batch: (-logprobs, {"mine": 1.0})), "E_TOKEN_LOSS_RETURNED: 'mine'"),
    "credit": (WithoutState(), "E_CREDIT_RETURNED: WithoutState"),
    "loss-tensor": (OfATensor(), "E_LOSS_RETURNED: OfATensor"),
    "loss-tokens": (OfEachToken(), "E_LOSS_RETURNED: OfEachToken"),
    "loss-detached": (Detached(), "E_LOSS_WITHOUT_GRADIENT: Detached"),
}


def test_needs_are_checked_when_the_recipe_is_built():
    with refuses("E_NOT_NEEDS: WithoutNeeds | None"):
        recipe_with(WithoutNeeds())


@pytest.mark.parametrize("case", RETURNED)
def test_what_parts_of_an_algorithm_return_is_checked(case):
    algorithm, expected = RETURNED[case]
    with refuses(expected):
        CoTrainer(recipe_with(algorithm)).step()


def test_an_algorithm_of_three_methods_learns():
    row = CoTrainer(recipe_with(Learn())).step().row
    assert row["generator/updates"] == 1 and row["generator/grad_norm"] > 0


def rewarding(value):
    @gives(OUTCOME.to("solver"))
    async def odd(task, roles):
        turn = await roles.solver(problem=task.prompt)
        turn.reward(OUTCOME, value)

    return odd


def of_a_turn(act):
    @gives(OUTCOME.to("solver"))
    async def odd(task, roles):
        turn = await roles.solver(problem=task.prompt)
        act(turn)

    return odd


@pytest.mark.parametrize(
    "value", [torch.ones(2), torch.ones(2).numpy(), torch.ones(0)], ids=["tensor", "array", "none"]
)
def test_a_reward_of_several_numbers_is_none(value):
    with refuses("E_SIGNAL_NOT_NUMBER", names=("of shape", str(tuple(value.shape)))):
        CoTrainer(recipe_with(protocol=rewarding(value))).step()


def test_the_text_of_a_turn_cannot_be_changed():
    def tidy(turn):
        turn.text = turn.text.strip()

    with refuses("E_TOO_MANY_FAILURES", names="'text'"):
        CoTrainer(recipe_with(protocol=of_a_turn(tidy))).step()


def test_a_protocol_that_is_no_async_function():
    @gives(OUTCOME.to("solver"))
    def forgot_async(task, roles):
        return None

    with refuses("E_PROTOCOL_NOT_ASYNC: async def forgot_async"):
        CoTrainer(recipe_with(protocol=forgot_async)).step()


def test_a_parser_that_returns_nothing():
    made = recipe_with()
    wrong = replace(made.roles["solver"], parse=lambda text, fields: None)
    with refuses("E_PARSED_NONE: ParseFailure"):
        CoTrainer(replace(made, roles={"solver": wrong})).step()


def test_a_measure_that_returns_a_bare_number():
    made = recipe_with()

    def mine(episodes):
        return {"solver/mine": 0.5}

    evaluation = replace(made.evaluation, measures=(mine,))
    with refuses("E_MEASURE_RETURNED: mine | 'solver/mine' as 0.5"):
        CoTrainer(replace(made, evaluation=evaluation)).evaluate("test", 1)


@pytest.mark.parametrize("said", [True, None, 1.0], ids=["true", "none", "number"])
def test_a_grader_that_returns_no_grade(said):
    with refuses("E_GRADER_RETURNED", names=("Says", repr(said))):
        task_of(grader=Says(said)).grade("4")


def test_a_grader_that_is_async_under_the_wrong_name():
    class Waits:
        async def grade(self, task, text):
            return Grade(value=True)

    with refuses("E_GRADER_RETURNED: Waits | agrade"):
        task_of(grader=Waits()).grade("4")


def test_verdicts_on_steps_have_one_for_each():
    class Short(Says):
        def grade_steps(self, task, steps):
            return StepVerdicts(ok=(True,), reasons=("",))

    with refuses("E_GRADER_RETURNED: 1 verdicts on 2 steps"):
        task_of(grader=Short(True)).grade_steps(("a", "b"))


def test_a_grader_may_know_nothing_of_steps():
    assert task_of(grader=Says(Grade(value=True))).grade_steps(("a", "b")) is None


class Source:
    """Endless sums; what is wrong with it is set from outside."""

    name = "sums"

    def get(self, split, index):
        return task_of(id=f"sums/{split}/{index}", prompt=f"{index} + 1?", gold=str(index + 1))

    def size(self, split):
        return None

    def describe(self):
        return {"kind": "sums", "settings": {}}


class Drawn(Source):
    def get(self, split, index):
        return task_of(prompt=f"{random.random()} + 1?")


class OfDicts(Source):
    def get(self, split, index):
        return {"prompt": "2 + 2?"}


class TwoSplits(Source):
    def size(self, split):
        return {"train": None, "test": None}[split]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Drawn(), "E_SOURCE_NOT_REPEATABLE: rng_of('sums'"),
        (OfDicts(), "E_SOURCE_NOT_TASK: a dict"),
        (TwoSplits(), "E_SOURCE_SPLIT: size('validation')"),
    ],
    ids=["drawn", "dicts", "splits"],
)
def test_a_source_is_looked_at_before_the_run(source, expected):
    made = recipe_with(tasks=source, evaluate_every=1)
    with refuses(expected):
        check_problems(made)


def test_a_source_that_raises_keyerror_has_no_further_splits():
    """It ended a run after all of its training, when further splits were measured."""
    assert not has_split(TwoSplits(), "ood_length")


class Remembers(Learn):
    """It keeps a count on itself, where no checkpoint finds it."""

    def __init__(self):
        self.batches = 0

    def credit(self, batch, state):
        self.batches += 1
        return super().credit(batch, state)


def test_an_algorithm_that_remembers_on_its_own_fields():
    with refuses("E_ALGORITHM_CHANGED_ITSELF: self.batches"):
        CoTrainer(recipe_with(Remembers())).step()


class Copies(Learn):
    """It keeps a number of its state on itself as well, for ``loss_of``."""

    def __init__(self):
        self.batches = 0.5

    def credit(self, batch, state):
        self.batches = state.get("batches", 0.5)
        credit, _ = super().credit(batch, state)
        return credit, {"batches": self.batches + 1.0}


def test_a_number_that_the_state_holds_may_be_on_a_field_too():
    trainer = CoTrainer(recipe_with(Copies()))
    trainer.step()
    trainer.step()


class Forgets(Learn):
    """Its samples keep the advantages with which they come: zeros."""

    def credit(self, batch, state):
        return Credit(samples=batch.samples, metrics={}), state


def test_a_loss_that_moves_nothing_is_told():
    """Advantages that were never set made updates of zero, which were counted as updates."""
    row = CoTrainer(recipe_with(Forgets())).step().row
    assert row["generator/updates"] == 1
    (alarm,) = check_rows([row], finished=True)
    assert alarm.band == "no gradient" and "'generator'" in alarm.advice


@dataclass(frozen=True)
class Counter:
    """A store that counts episodes. ``fault``: what is wrong with it."""

    n: int = 0
    fault: str = ""

    def with_episodes(self, episodes, step):
        if self.fault == "returns nothing":
            return None
        if self.fault == "in place":
            object.__setattr__(self, "n", self.n + len(episodes))
            return self
        return replace(self, n=self.n + len(episodes))

    def metrics(self):
        return [self.n] if self.fault == "metrics" else {"n": float(self.n)}

    def state(self):
        return {} if self.fault == "state" else {"n": self.n}

    def restore_state(self, state):
        return replace(self, n=state.get("n", 0))


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("returns nothing", "E_STORE_RETURNED"),
        ("in place", "E_STORE_CHANGED_IN_PLACE"),
        ("metrics", "E_STORE_METRICS"),
        ("state", "E_STORE_STATE_INCOMPLETE"),
    ],
    ids=["none", "in-place", "metrics", "state"],
)
def test_a_store_that_would_lose_something(fault, code):
    trainer = CoTrainer(recipe_with(stores={"seen": Counter(fault=fault)}))
    with refuses(code, names=("'seen'", "Counter")):
        trainer.step()
        trainer.state()


def test_a_store_of_ones_own_is_restored():
    recipe = recipe_with(stores={"seen": Counter()})
    trainer = CoTrainer(recipe)
    trainer.step()
    assert trainer.state()["stores"] == {"seen": {"n": 4}}


class LastStep(Counter):
    """A store with a metric of the last step alone, which it need not keep."""

    def metrics(self):
        return {"n": float(self.n), "added": float(self.n > 0)}


def test_a_metric_of_the_last_step_need_not_be_in_the_state():
    trainer = CoTrainer(recipe_with(stores={"seen": LastStep()}))
    trainer.step()
    trainer.step()
    assert trainer.state()["stores"] == {"seen": {"n": 8}}


def test_a_store_without_its_methods_is_refused_when_the_recipe_is_built():
    class Half:
        def with_episodes(self, episodes, step):
            return self

    with refuses("E_STORE_KIND: metrics and state and restore_state"):
        recipe_with(stores={"seen": Half()})


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_a_protocol_that_draws_from_a_shared_generator_is_told(draw, capsys, monkeypatch):
    """Its rewards were others in every run of the same command, without a word."""
    monkeypatch.setattr("cotrain.rollout.runner._NOTED", [])

    @gives(OUTCOME.to("solver"))
    async def drawn(task, roles):
        turn = await roles.solver(problem=task.prompt)
        turn.reward(OUTCOME, float(draw()))

    trainer = CoTrainer(recipe_with(protocol=drawn))
    trainer.step()
    trainer.step()
    assert capsys.readouterr().err.count("rng_of('any name', turn.id)") == 1


def test_a_protocol_that_draws_by_address_is_not_told(capsys):
    @gives(OUTCOME.to("solver"))
    async def addressed(task, roles):
        turn = await roles.solver(problem=task.prompt)
        turn.reward(OUTCOME, rng_of("mine", turn.id).random())

    CoTrainer(recipe_with(protocol=addressed)).step()
    assert "generator" not in capsys.readouterr().err
