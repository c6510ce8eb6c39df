"""An environment class of OpenEnv in this process: what it is asked, what its agent earns, and what is refused. Against
a fake of ``openenv`` and, where it is installed, against the package."""

import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch

from cotrain.core.notes import CALLS
from cotrain.core.types import Sampling
from cotrain.data.files import split_of
from cotrain.data.sources import from_description, task_source
from cotrain.envs.openenv.tasks import OpenEnvEpisodes
from cotrain.envs.played import SEAT_REWARD
from cotrain.recipes.environment import environment
from cotrain.recipes.grpo import grpo
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.runs.check_models import check_tools
from cotrain.trainer.trainer import CoTrainer
from tests.fakes import on_the_path
from tests.formats.chat_templates import QWEN_2_5, QWEN_2_5_TOOLS, renderer_of
from tests.helpers import TINY
from tests.recipes.test_agent_tools import Replies
from tests.sentences import refuses

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "environment.md"
GUESSING = '''
import random

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    word: str


class Heard(Observation):
    says: str = ""


class Lengths(Environment[Guess, Heard, State]):
    """Twice it asks for words; the longer they are, the better."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    CLOSED = []

    def reset(self, seed=None, episode_id=None, **rest):
        self.told = 0
        return Heard(says="Say something.")

    def step(self, action, timeout_s=None, **rest):
        self.told += 1
        return Heard(says=f"You said {len(action.word)} letters.", done=self.told == 2, reward=len(action.word) / 10)

    def close(self):
        self.CLOSED.append(self.told)

    @property
    def state(self):
        return State(step_count=self.told)


class Unpaid(Lengths):
    def step(self, action, timeout_s=None, **rest):
        return Heard(says="Go on.", done=True)


class OneAtATime(Lengths):
    SUPPORTS_CONCURRENT_SESSIONS = False


class Forgetful(Lengths):
    def reset(self, seed=None, episode_id=None, **rest):
        super().reset()
        return Heard(says=f"Say {random.random()}.")


class Seedless(Lengths):
    def reset(self):
        return Heard(says="Say something.")


class Breaks(Lengths):
    def __init__(self):
        raise OSError("no board")


class Wide(Action):
    word: str = ""
    other: str = ""


class Narrow(Action):
    word: str
    other: int


class TwoTexts(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **rest):
        return Heard(says=f"Say {seed}.", metadata={"hint": "a letter"})

    def step(self, action: Wide, timeout_s=None, **rest):
        return Heard(says=f"{action.word!r} and {action.other!r}", done=True, reward=float(action.other == "yes"))

    @property
    def state(self):
        return State()


class Needs(Lengths):
    def step(self, action: Narrow, timeout_s=None, **rest):
        return Heard(done=True)


class Plain(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True
    reset = Lengths.reset

    def step(self, action, timeout_s=None, **rest):
        return Heard(done=True)

    @property
    def state(self):
        return State()


class Client:
    @classmethod
    def from_docker_image(cls, name): ...
'''
SUMS = '''
import random

from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.env_server.types import Observation, State


class Asked(Observation):
    question: str = ""


class Sums(MCPEnvironment):
    """A sum, with a tool that adds, and one that takes the answer and ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("sums")
        self.answer = None

        @server.tool
        def add(a: int, b: int) -> int:
            "Adds two numbers."
            if a == 13:
                raise ValueError("unlucky")
            return a + b

        @server.tool
        def submit(answer: int) -> str:
            "Takes the answer."
            self.answer = answer
            return "taken"

        self.add_more(server)
        super().__init__(server)

    def add_more(self, server): ...

    def reset(self, seed=None, episode_id=None, **rest):
        chance = random.Random(seed)
        self.a, self.b, self.answer = chance.randrange(1000), chance.randrange(1000), None
        return Asked(question=f"What is {self.a} + {self.b}?")

    async def step_async(self, action, timeout_s=None, **rest):
        observation = await super().step_async(action, timeout_s=timeout_s, **rest)
        if isinstance(action, CallToolAction) and self.answer is not None:
            observation.done = True
            observation.reward = float(self.answer == self.a + self.b)
        return observation

    def _step_impl(self, action, timeout_s=None, **rest):
        return Asked(done=True)

    @property
    def state(self):
        return State()


class Afar(Sums):
    def add_more(self, server):
        other = FastMCP("other")

        @other.tool
        def search(words: str) -> str:
            "Searches."
            return words

        server.mount(other, namespace="web")
'''
SMALL = {"model": TINY, "tasks_per_step": 2, "group_size": 4, "max_tokens": 12, "lr": 1e-3, "evaluation_tasks": 2}


@pytest.fixture(scope="module", params=["fake", "real"])
def classes(request, tmp_path_factory):
    """A folder with the files ``cotrain_guessing.py`` and ``cotrain_sums.py``."""
    folder = tmp_path_factory.mktemp("environments")
    packages = ("openenv", "fastmcp")
    with on_the_path(folder, request.param, packages=packages, cotrain_guessing=GUESSING, cotrain_sums=SUMS):
        yield folder


def source_of(folder, name):
    file = "cotrain_sums.py" if name.startswith(("Sums", "Afar")) else "cotrain_guessing.py"
    return task_source(f"openenv:{folder / file}:{name}")


def play(source, texts, template=QWEN_2_5_TOOLS, turns=9):
    """The task, the engine and the only episode, in which the agent says these texts."""
    engine = Replies(renderer_of("qwen-2.5", template), "qwen-2.5", texts)
    role = Role(policy="solver", prompt="{problem}", sampling=Sampling(max_tokens=500))
    runner = RolloutRunner(engine, {"solver": engine.renderer}, {"agent": role}, seed=0)
    protocol = source.make_protocol(("agent",), turns, "seat")
    task = source.get("train", 0)
    (episode,) = runner.collect(protocol, [task], step=0, group_size=1)
    return task, engine, episode


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def earned(episode):
    assert episode.failure is None
    return {reward.value for trace in episode.traces for reward in trace.rewards if reward.name == SEAT_REWARD.name}


def test_an_agent_answers_until_the_environment_is_done(classes):
    task, engine, episode = play(source_of(classes, "Lengths"), ["apple", "<think>\nfruit\n</think>\n\nfig"])
    assert task.prompt == "Say something." and "You said 5 letters." in engine.prompts[1]
    assert earned(episode) == {0.5 + 0.3}, "the sum of both steps, the thought left out"
    assert sys.modules["cotrain_user_cotrain_guessing"].Lengths.CLOSED[-1] == 2, "the instance was closed"


def test_what_an_environment_leaves_unpaid_fails_and_what_the_agent_leaves_earns_nothing(classes):
    _, _, episode = play(source_of(classes, "Unpaid"), ["apple"])
    assert {trace.failure for trace in episode.traces} == {"reward earned out of range"}
    _, _, episode = play(source_of(classes, "Sums"), ["I do not know."])
    assert earned(episode) == {0.0}


def test_tools_are_functions_of_this_process_and_each_call_is_a_step(classes):
    source = source_of(classes, "Sums")
    numbers = [int(word) for word in source.get("train", 0).prompt.strip("What is?").split(" + ")]
    texts = [
        call("add", a=13, b=1) + call("add", a=numbers[0]) + call("nothing"),
        call("add", a=numbers[0], b=numbers[1]),
        call("submit", answer=sum(numbers)),
    ]
    task, engine, episode = play(source, texts)
    assert "Adds two numbers." in engine.prompts[0] and task.prompt in engine.prompts[0]
    for shown in ("(execution error)", "unlucky", "(invalid args)", "(unknown tool)"):
        assert shown in engine.prompts[1], shown
    assert f"<tool_response>\n{sum(numbers)}\n</tool_response>" in engine.prompts[2]
    assert earned(episode) == {1.0}
    assert CALLS.of(episode.traces[-1]) == ["execution error", "invalid args", "unknown tool", "ok", "ok"]
    sampled = [token for ids in engine.sampled for token in ids]
    learned = [i for trace in episode.traces for i, own in zip(trace.token_ids, trace.mask, strict=True) if own]
    assert learned == sampled, "what is learned is what was sampled"


def test_a_model_that_cannot_call_tools_is_refused(classes):
    with refuses("E_MODEL_WITHOUT_TOOLS", names=("add, submit", "chat template")):
        play(source_of(classes, "Sums"), ["none"], template=QWEN_2_5)


def test_such_a_model_is_refused_before_the_run_begins(classes):
    recipe = environment(**SMALL, tasks=source_of(classes, "Sums"), steps=1)
    with refuses("E_MODEL_WITHOUT_TOOLS", names="add, submit"):
        check_tools(recipe)
    check_tools(environment(**SMALL, tasks=source_of(classes, "Lengths"), steps=1))  # it has no tools


def test_splits_share_no_prompt_and_a_source_is_made_again(classes, monkeypatch):
    source = source_of(classes, "Sums")
    for split in ("train", "validation", "test"):
        assert {split_of(source.get(split, i).prompt) for i in range(3)} == {split}
    monkeypatch.chdir(classes)
    near = task_source("openenv:cotrain_sums.py:Sums")
    again = from_description(json.loads(json.dumps(near.describe())))
    assert again.get("test", 1) == source.get("test", 1) and again.describe() == source.describe()
    assert not source.notes
    (note,) = source_of(classes, "Lengths").notes
    assert "1 prompt" in note and "seeds alone" in note


def test_fields_are_named_where_there_are_several(classes):
    with refuses("E_ENVIRONMENT_FIELD", names=("?action=FIELD", "'word', 'other'")):
        source_of(classes, "TwoTexts")
    source = source_of(classes, "TwoTexts?action=other&prompt=says")
    _, _, episode = play(source, ["yes"])
    assert earned(episode) == {1.0}


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        pytest.param("OneAtATime", "E_ENVIRONMENT_NOT_CONCURRENT", "SUPPORTS_CONCURRENT_SESSIONS", id="one"),
        pytest.param("Forgetful", "E_SOURCE_NOT_REPEATABLE", "seed 0", id="forgetful"),
        pytest.param("Seedless", "E_ENVIRONMENT_WITHOUT_SEED", "seed=None", id="seedless"),
        pytest.param("Breaks", "E_ENVIRONMENT_NOT_LOADED", "no board", id="breaks"),
        pytest.param("Needs", "E_ENVIRONMENT_ACTION", ("'other'", "'word'"), id="two-fields"),
        pytest.param("Plain", "E_ENVIRONMENT_ACTION", "action: MyAction", id="unknown-action"),
        pytest.param("Client", "E_NOT_OPENENV_CLASS", "is a client", id="client"),
        pytest.param("Guess", "E_NOT_OPENENV_CLASS", "no environment of OpenEnv", id="no-environment"),
        pytest.param("Missing", "E_NO_SUCH_CLASS", "'Missing'", id="missing"),
        pytest.param("Lengths?answer=x", "E_ENVIRONMENT_ADDRESS", "'answer=x'", id="address"),
        pytest.param("Afar", "E_ENVIRONMENT_TOOLS_ELSEWHERE", "'web_search'", id="tools-elsewhere"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(classes, name, code, words):
    with refuses(code, names=words):
        source_of(classes, name)


def test_it_is_trained_on(classes):
    recipe = environment(**SMALL, tasks=source_of(classes, "Lengths"), steps=1)
    trainer = CoTrainer(recipe)
    before = {name: tensor.clone() for name, tensor in trainer.policies.tensors()["agent"].items()}
    done = trainer.step()
    after = trainer.policies.tensors()["agent"]
    trainer.close()
    assert len(done.episodes) == 8 and not any(episode.failure for episode in done.episodes)
    assert done.row["agent/reward/earned"] > 0.0
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_recipes_that_ask_whether_an_answer_is_right_are_refused(classes):
    settings = {name: value for name, value in SMALL.items() if name != "max_tokens"}
    trainer = CoTrainer(grpo(**settings, tasks=source_of(classes, "Lengths"), steps=1))
    with refuses("E_TASK_NOT_GRADABLE", names="`environment`"):
        trainer.step()
    trainer.close()


def test_the_size_is_a_number_of_tasks(classes):
    with refuses("E_TASKS_SIZE"):
        OpenEnvEpisodes(f"{classes / 'cotrain_sums.py'}:Sums", size=0)


def test_the_environment_of_the_page_is_played(classes):
    (program,) = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (classes / "guess.py").write_text(program)
    source = task_source(f"openenv:{classes / 'guess.py'}:Guessing")
    task, engine, episode = play(source, ["1", "2", "3", "4"])
    number = random.Random(task.grader.seed).randrange(1, 9)
    assert len(engine.sampled) == min(number, 4)
    assert earned(episode) == {float(number <= 4)}
