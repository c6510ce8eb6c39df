"""Held-out problems are played at the roles' own temperature and once more greedily; the figures stand side by side."""

from dataclasses import dataclass, replace

import pytest

from cotrain.config.evaluation import Evaluation, held_out
from cotrain.core.errors import TooLong
from cotrain.core.notes import CORRECT
from cotrain.core.signals import declared_by, gives
from cotrain.core.types import Completion, Grade, Sampling, StepVerdicts, Task
from cotrain.metrics.heldout import measure_solver, measure_verifier
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import parse_review, parse_solution
from cotrain.rollout.reviews import solve_then_verify
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.trainer.evaluation import measure_protocol
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, CharRenderer
from tests.sentences import refuses


@dataclass(frozen=True)
class Exact:
    def grade(self, task: Task, text: str) -> Grade:
        return Grade(value=f"<answer>{task.gold}</answer>" in text)

    def grade_steps(self, task: Task, steps: tuple[str, ...]) -> StepVerdicts | None:
        return None


class Warm:
    """Solves the first of two problems when it is warm and both when it is cold; its verdicts are mistaken when it is
    warm."""

    def advance(self) -> bool:
        return False

    async def sample(self, request):
        cold, text = request.sampling.temperature == 0.0, CharRenderer().decode(request.prompt_ids)
        if request.address.role == "solver":
            said = f"<step>s</step><answer>{1 if (cold and text[0] == '0') or text[0] == '1' else 0}</answer>"
        else:
            right = ">1<" in text
            word = "CORRECT" if right == cold else "INCORRECT"
            said = f"<step>{word}</step><final>{word}</final>"
        ids = (*CharRenderer().encode(said), 0)
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish="stop", policy="a", version=0)


BOTH = measure_solver("solver", 4), measure_verifier("verifier")


def measured(greedy=True, measures=BOTH):
    roles = {
        "solver": Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution),
        "verifier": Role(
            policy="a", prompt="{problem}|{solution}", sampling=Sampling(max_tokens=99), parse=parse_review
        ),
    }
    executor = RolloutRunner(Warm(), {"a": CharRenderer()}, roles, 0)
    tasks = [Task(id=f"t/{p}", prompt=p, gold="1", solution=None, difficulty=0, grader=Exact()) for p in "012"]
    how = Evaluation(protocol=solve_then_verify, measures=measures, greedy=greedy)
    figures, played = measure_protocol(how, executor, tasks, split="test", group_size=4)
    assert len(played) == 12
    return {name: (figure.value, figure.n) for name, figure in figures.items()}


def test_greedy_figures_stand_beside_the_sampled_ones():
    found = measured()
    # warm: problem 1 of three is solved, by all four samples; cold: problems 0 and 1
    assert found["solver/pass@1"] == (1 / 3, 12) and found["solver/greedy"] == (2 / 3, 3)
    assert found["solver/pass@4"] == (1 / 3, 3) and found["solver/majority@4"] == (1 / 3, 3)
    assert found["verifier/balanced_accuracy"] == (0.0, 12) and found["verifier/greedy_balanced_accuracy"] == (1.0, 3)


def test_two_measures_with_one_name_are_refused_where_they_differ():
    def of_few(name):
        return lambda episodes: {name: measure_verifier("verifier", gap=name)(episodes[:4])[name]}

    with refuses("E_MEASURES_ALIKE", names=("'gap'", "measure_judge", "'second'", "'second/gap'")):
        measured(measures=(*BOTH, of_few("gap")))
    found = measured(measures=(*BOTH, of_few("second/gap"), measure_solver("solver", 1)))  # pass@1 twice, and the same
    assert {"gap", "second/gap", "solver/pass@4"} <= set(found)


def test_nothing_else_is_taken_from_the_greedy_play():
    with_greedy, without = measured(), measured(greedy=False)
    assert set(with_greedy) - set(without) <= {
        "solver/greedy", "verifier/greedy_balanced_accuracy", "verifier/greedy_step_balanced_accuracy",
    }  # fmt: skip
    assert {name: with_greedy[name] for name in without} == without


@pytest.mark.whole
def test_greedy_judges_see_the_start_s_sampled_solutions():
    warm = tango(model=TINY, tasks=EASY, steps=1, verifier="frozen")
    judge = warm.roles["verifier"]
    calm = replace(judge, sampling=replace(judge.sampling, temperature=0.0))
    cold = replace(warm, roles={**warm.roles, "verifier": calm})
    found, _ = CoTrainer(warm).evaluate_on_fixed_solutions("test", 12, greedy=True)
    same, _ = CoTrainer(cold).evaluate_on_fixed_solutions("test", 12, greedy=True)
    for name in ("balanced_accuracy", "step_balanced_accuracy"):
        assert found[f"verifier/greedy_{name}"] == same[f"verifier/{name}"] == same[f"verifier/greedy_{name}"]
    assert not any("greedy" in key for key in CoTrainer(warm).evaluate_on_fixed_solutions("test", 1)[0])


BREAKS = {"all": "012", "one of three": "2"}  # problems


def held_out_that_breaks(which):
    """A protocol that raises on these problems, played on three of them."""

    async def protocol(task, roles):
        (await roles.solver(problem=task.prompt)).add_metadata(CORRECT, True)
        if task.prompt in BREAKS[which]:
            raise KeyError("vote")

    role = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution)
    executor = RolloutRunner(Warm(), {"a": CharRenderer()}, {"solver": role}, 0)
    tasks = [Task(id=f"t/{p}", prompt=p, gold="1", solution=None, difficulty=0, grader=Exact()) for p in "012"]
    how = Evaluation(protocol=protocol, measures=(measure_solver("solver", 4),))
    return executor, lambda: measure_protocol(how, executor, tasks, split="test", group_size=4)[0]


def test_a_held_out_protocol_that_breaks_everywhere_is_refused():
    _, measure = held_out_that_breaks("all")
    code = "E_TOO_MANY_FAILURES: 12 | 12 episodes | test_evaluation.py"
    with refuses(code):
        measure()


def test_held_out_episodes_that_break_are_counted_and_told():
    executor, measure = held_out_that_breaks("one of three")
    assert measure()["broken_off"].value == pytest.approx(1 / 3)
    [(problem, why)] = executor.set_aside.items()
    assert problem == "t/2" and why.startswith("4 of 12 episodes on held-out problems of test broke off: test_eval")


class Narrow(Warm):
    """Holds no greedy answer to problem 2."""

    async def sample(self, request):
        if request.sampling.is_greedy and CharRenderer().decode(request.prompt_ids).startswith("2"):
            raise TooLong("the tool's output exceeds the context")
        return await super().sample(request)


def test_a_problem_that_does_not_fit_greedily_alone_is_told_too():
    async def protocol(task, roles):
        (await roles.solver(problem=task.prompt)).add_metadata(CORRECT, True)

    role = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution)
    executor = RolloutRunner(Narrow(), {"a": CharRenderer()}, {"solver": role}, 0)
    tasks = [Task(id=f"t/{p}", prompt=p, gold="1", solution=None, difficulty=0, grader=Exact()) for p in "012"]
    how = Evaluation(protocol=protocol, measures=(measure_solver("solver", 4),))
    measure_protocol(how, executor, tasks, split="test", group_size=4)
    assert executor.set_aside == {"t/2": "the tool's output exceeds the context"}


@pytest.mark.whole
def test_fixed_solutions_on_which_the_protocol_breaks_are_told_too():
    @gives(*declared_by(solve_then_verify).signals)
    async def protocol(task, roles):
        if task.id == broken.id:
            raise KeyError("vote")
        await solve_then_verify(task, roles)

    made = tango(model=TINY, tasks=EASY, steps=1, verifier="frozen")
    broken = held_out(made.tasks, "test", 3, made.seed)[1]
    made = replace(made, evaluation=replace(made.evaluation, protocol=protocol))
    trainer = CoTrainer(made)
    trainer.evaluate_on_fixed_solutions("test", 3)
    assert "broke off" in trainer.set_aside()[broken.id]
    trainer.close()


def test_a_held_out_protocol_that_asks_nobody_is_refused():
    async def nobody(task, roles):
        pass

    role = Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=99), parse=parse_solution)
    executor = RolloutRunner(Warm(), {"a": CharRenderer()}, {"solver": role}, 0)
    task = Task(id="t/0", prompt="0", gold="1", solution=None, difficulty=0, grader=Exact())
    with refuses("E_NO_ROLE_ASKED", names="'nobody'"):
        measure_protocol(Evaluation(protocol=nobody, measures=()), executor, [task], split="test", group_size=1)
