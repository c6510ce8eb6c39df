"""Functions of the user's own are held against the arguments that they will get before anything is run."""

import pytest

from cotrain.core.arguments import check_called_with
from cotrain.envs.agent.program import find_program
from cotrain.recipes.agent import agent
from cotrain.recipes.grpo import grpo
from cotrain.rollout.readers import reader_of
from cotrain.rollout.token_calls import find_tool
from cotrain.rollout.tools.search import check_search
from tests.helpers import TINY, letter_tasks
from tests.sentences import refuses


def takes_nothing(): ...


async def searches_nothing(): ...


def takes_more(task, answer, correct, key): ...


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        pytest.param(lambda: grpo(model=TINY, reward=takes_more), "task, answer, correct", id="reward"),
        pytest.param(lambda: agent(model=TINY, reward=takes_nothing), "task, answer", id="agent-reward"),
        pytest.param(lambda: find_program(takes_nothing, None), "problem, base_url, api_key", id="agent"),
        pytest.param(lambda: check_search(searches_nothing, "mars"), "query", id="search"),
        pytest.param(lambda: reader_of(letter_tasks(1), takes_nothing, "mae", 0), "problem", id="gate"),
        pytest.param(lambda: find_tool(takes_nothing), "call", id="tool"),
    ],
)
def test_a_function_that_takes_other_arguments_is_refused(build, wanted):
    with refuses("E_FUNCTION_SIGNATURE", names=f"({wanted})"):
        build()


def test_what_fits_or_does_not_say_is_taken():
    check_called_with("reward", lambda *answers: 0.0, "task", "answer", "correct")
    check_called_with("reward", lambda task, answer, correct, scale=1.0: 0.0, "task", "answer", "correct")
    check_called_with("reward", max, "task", "answer", "correct")
    with refuses("E_FUNCTION_SIGNATURE", names=("reward", "takes_nothing", "(task)")):
        check_called_with("reward", takes_nothing, "task")
