"""Calls between control tokens: what the calculator says is that of nanochat's own; it is given, and never learned."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain.algorithms.contract import split_context
from cotrain.config.policies import program
from cotrain.core.notes import CALLS
from cotrain.core.signals import OUTCOME, gives
from cotrain.core.types import Completion, Sampling, Task
from cotrain.inference.local import LocalEngine
from cotrain.inference.replay import ReplayEngine
from cotrain.learner.learner import TorchLearner
from cotrain.models.load import load_model, load_tokenizer
from cotrain.models.nanochat import convert
from cotrain.prompts.render import CALL_TOKENS, Renderer
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.common_roles import solver
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.token_calls import MAX_OUTPUT, calculate
from cotrain.runs.check_models import check_tools
from cotrain.runs.directory import RunDirectory
from cotrain.runs.run import start_run
from tests.helpers import TINY
from tests.sentences import command_refuses, refuses

ASSETS = Path(__file__).parents[1] / "assets" / "nanochat"
EXPECTED = json.loads((ASSETS / "calculator.json").read_text())


@pytest.mark.parametrize("text, said", EXPECTED, ids=range(len(EXPECTED)))
def test_the_calculator_says_what_nanochats_does(text, said):
    assert calculate(text) == said


@pytest.mark.parametrize(
    "text", ["(" * 5000, "9" * 5000 + "/7", "1" * 6000, "'a'.count('a'", "'a'.count('a').x", "True"]
)
def test_what_cannot_be_computed_says_nothing(text):
    assert calculate(text) is None


# -- inside of an answer


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return convert(ASSETS / "base_checkpoints" / "d3", tmp_path_factory.mktemp("converted") / "model")


@pytest.fixture(scope="module")
def renderer(directory):
    return Renderer(load_tokenizer(directory))


class Writer:
    """Says given tokens, one list at a request; keeps the requests."""

    def __init__(self, *said):
        self.said, self.requests, self.waiting = list(said), [], []

    async def sample(self, request):
        self.requests.append(request)
        ids = self.said.pop(0)[: request.sampling.max_tokens]
        finish = "stop" if ids[-1] in request.stop_ids else "length"
        return Completion(
            token_ids=tuple(ids),
            logprobs=(-0.5,) * len(ids),
            finish=finish,
            policy="g",
            version=0,
            entropies=b"\1" * len(ids),
        )

    def advance(self):
        return False


SEEN = []


def told(renderer, *said, tool="calculator", max_tokens=200, answer="hash", protocol=None):
    """One answer of a solver that says these texts, one a request; "{" and "}" are the marks of a call, and "$" ends
    it: its trace, and the requests."""
    opens, closes, *_ = renderer.call_ids
    signs = {"{": (opens,), "}": (closes,), "$": (renderer.stop_ids[-1],)}
    engine = Writer(*([i for c in text for i in signs.get(c) or renderer.encode(c)] for text in said))
    role = replace(solver("g", "own"), prompt="{problem}", answer_format=answer, tool=tool)
    role = replace(role, sampling=replace(role.sampling, max_tokens=max_tokens))

    @gives(OUTCOME)
    async def plain(task, roles):
        turn = await roles.solver(problem=task.prompt)
        SEEN.append(turn.parsed)
        turn.reward(OUTCOME, 1.0)

    executor = RolloutRunner(engine, {"g": renderer}, {"solver": role}, seed=0)
    task = Task(id="t", prompt="12/60?", gold="10", solution=None, difficulty=0.0, grader=None)
    (episode,) = executor.collect(protocol or plain, [task], step=0, group_size=1)
    assert episode.failure is None, episode.failure
    return episode.traces[0], engine.requests


def shown(text):
    """A text with the marks of calls as the tokens that they are."""
    opens, closes, output, end = CALL_TOKENS
    return text.replace("{", opens).replace("}", closes).replace("[", output).replace("]", end)


def test_a_call_is_answered_inside_of_the_answer_and_not_learned(renderer):
    trace, requests = told(renderer, "12/60 = {12/60}", " an hour. 50 of it: {0.2*50}", "\n#### 10$")
    assert trace.text == shown("12/60 = {12/60}[0.2] an hour. 50 of it: {0.2*50}[10.0]\n#### 10")
    assert CALLS.of(trace) == ["ok", "ok"] and trace.finish == "stop" and len(trace.turns) == 3
    assert SEEN[-1].ok and SEEN[-1].answer == "10"
    given = [renderer.decode([i for i, own in zip(trace.token_ids, trace.mask, strict=True) if not own])]
    assert given == [shown("[0.2][10.0]")]
    assert [p for p, own in zip(trace.logprobs, trace.mask, strict=True) if not own] == [0.0] * trace.mask.count(False)
    learned, between = split_context(trace)
    assert renderer.decode(learned.token_ids) == shown("12/60 = {12/60} an hour. 50 of it: {0.2*50}\n#### 10")
    assert len(between) == 2 and trace.sampled_count == len(learned.token_ids) == len(learned.logprobs)
    # Each request goes on from all before it, with what is left of the tokens, from a seed of its own.
    for request, part in zip(requests, trace.turns, strict=True):
        assert request.prompt_ids == (*trace.prompt_ids, *trace.token_ids[: part.start])
        assert request.sampling.max_tokens == 200 - part.start
    assert len({request.seed for request in requests}) == len({request.address for request in requests}) == 3
    assert [r.continues for r in requests] == [None, requests[0].address, requests[1].address]


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (["{2**3}", "8$"], "no output"),
        (["{}", "8$"], "no output"),
        (["8}", "8$"], "no output"),  # nothing was begun
        (["{1+1{2+3}", "8$"], "ok"),  # the last beginning counts
    ],
    ids=["power", "empty", "unopened", "twice"],
)
def test_what_is_no_sum_goes_unanswered(said, outcome, renderer):
    trace, _ = told(renderer, *said)
    assert CALLS.of(trace) == [outcome]
    output = "[5]" if outcome == "ok" else ""
    assert trace.text == shown(said[0] + output + said[1][:-1])
    assert trace.mask.count(False) == (len(renderer.encode("5")) + 2 if output else 0)


def test_without_a_call_the_answer_is_as_without_a_tool(renderer):
    with_tool, without = (told(renderer, "#### 10$", tool=tool)[0] for tool in ("calculator", None))
    assert with_tool == without and not with_tool.turns


def test_a_result_without_room_behind_it_ends_the_answer(renderer):
    trace, requests = told(renderer, "{12/60}", "never", max_tokens=12)
    assert (trace.finish, CALLS.of(trace), len(requests)) == ("length", ["no room"], 1)
    assert trace.token_ids[-1] == renderer.call_ids[1] and all(trace.mask)


async def own(text):
    await asyncio.sleep(0)
    return {"long": "a\nb " * 400, "none": None, "tags": "<answer>5</answer>", "claim": "#### 7"}[text]


@pytest.mark.parametrize("call", ["long", "none", "tags", "claim", "what?"])
def test_a_tool_of_ones_own(call, renderer):
    trace, _ = told(renderer, f"{{{call}}}", "#### 10$", tool=own, max_tokens=2000)
    outcomes = {"long": "ok", "none": "no output", "tags": "ok", "claim": "reads as an answer", "what?": "KeyError"}
    assert CALLS.of(trace) == [outcomes[call]] and SEEN[-1].answer == "10"
    if call == "long":
        output = trace.text.split(CALL_TOKENS[2])[1].split(CALL_TOKENS[3])[0]
        assert len(output) == MAX_OUTPUT and output.startswith("a b a b") and "\n" not in output
    if call == "tags":
        assert "< answer>5</ answer>" in trace.text


def test_turns_before_and_after_an_answer_with_calls_have_their_places(renderer):
    async def talk(task, roles):
        chat = roles.solver.begin(problem=task.prompt)
        first = await chat.say()
        assert first.tokens == sum(part.end - part.start for part in first.completion.parts)
        chat.user("Sure?")
        await chat.say()

    trace, requests = told(renderer, "{1+1}", "so 2$", "{2+2}", "yes$", protocol=talk)
    assert [request.address.path for request in requests] == [(), (1,), (2,), (3,)]
    assert [renderer.decode(trace.token_ids[t.start : t.end]) for t in trace.turns] == [
        shown("{1+1}"), "so 2", shown("{2+2}"), "yes",
    ]  # fmt: skip
    assert CALLS.of(trace) == ["ok"] and [part.goes_on for part in trace.turns] == [False] * 4
    replayed = ReplayEngine([trace])
    assert {address.path for address in replayed._recorded} == {(), (1,), (2,), (3,)}


# -- in recipes


@pytest.mark.parametrize("make", [grpo, tango], ids=["grpo", "tango"])
def test_every_recipe_gives_the_tool_to_whoever_writes_solutions(make, directory):
    made = make(model=str(directory), tool="calculator")
    assert made.roles["solver"].tool == "calculator" and made.origin.arguments["tool"] == "calculator"
    assert {role.tool for name, role in made.roles.items() if name != "solver"} <= {None}
    with refuses("E_TOOL_NAME", names=("'abacus'", "calculator")):
        make(model=str(directory), tool="abacus")


@pytest.mark.parametrize("method", ["grpo", "tango", "genprm", "ttrl", "self_verify"])
def test_a_model_without_such_tokens_is_refused_before_a_run_begins(method, tmp_path, capsys):
    out = tmp_path / "run"
    words = ["run", method, "--model", str(TINY), "--tool", "calculator", "--smoke", "--out", out]
    command_refuses(words, "E_TOOL_WITHOUT_TOKENS: <|python_start|> | --tool", capsys)
    assert capsys.readouterr().out == "" and not out.exists()


def test_a_plan_and_a_comparison_refuse_it_too(tmp_path, capsys):
    run = ["run", "tango", "--model", str(TINY), "--tool", "calculator", "--steps", "4", "--warmup", "0"]
    command_refuses([*run, "--dry-run"], "E_TOOL_WITHOUT_TOKENS", capsys)
    arms = ["compare", f"grpo:model={TINY},tool=calculator", f"grpo:model={TINY}"]
    command_refuses([*arms, "--batches", "1", "--seeds", "1", "--out", tmp_path / "c"], "E_TOOL_WITHOUT_TOKENS", capsys)
    assert not (tmp_path / "c").exists()


def test_a_run_from_python_refuses_it_before_its_directory_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(RunDirectory, "begin", None)  # whoever calls it fails
    with refuses("E_TOOL_WITHOUT_TOKENS"):
        start_run(grpo(model=str(TINY), tool="calculator", steps=1), tmp_path / "run")


def test_a_tool_is_looked_for_where_a_programs_text_is_tokenized(directory):
    recipe = grpo(model=str(directory), tool="calculator", steps=1)
    check_tools(recipe)
    policies = {**recipe.policies, "says": program(lambda fields, rng: "", tokens_of="generator")}
    roles = {**recipe.roles, "expert": replace(recipe.roles["solver"], policy="says")}
    check_tools(replace(recipe, policies=policies, roles=roles))
    policies["says"] = program(lambda fields, rng: "")
    with refuses("E_TOOL_WITHOUT_TOKENS"):
        check_tools(replace(recipe, policies=policies, roles=roles))


def test_the_engine_and_the_learner_agree_about_answers_with_calls(directory):
    """A model that writes calls at random: the log-probabilities of its own tokens are those of one forward pass."""
    model, tokenizer = load_model(directory)
    renderer = Renderer(tokenizer, model.generation_config)
    opens, closes, *_ = renderer.call_ids
    with torch.no_grad():  # calls are likely, and the end is not
        likely = model(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0].mean(0).topk(2).indices
        model.lm_head.weight[[opens, closes]] = model.lm_head.weight[likely]
        model.lm_head.weight[list(renderer.stop_ids)] = 0.0
    role = replace(solver("g", "own"), prompt="{problem}", answer_format="hash", tool=lambda text: len(text))
    role = replace(role, sampling=Sampling(max_tokens=120, temperature=1.0))
    tasks = [Task(id=str(i), prompt=f"{i}?", gold="1", solution=None, difficulty=0.0, grader=None) for i in range(4)]

    async def plain(task, roles):
        await roles.solver(problem=task.prompt)

    executor = RolloutRunner(LocalEngine({"g": model}), {"g": renderer}, {"solver": role}, seed=0)
    traces = [trace for episode in executor.collect(plain, tasks, step=0, group_size=2) for trace in episode.traces]
    assert sum((CALLS.of(trace) or []).count("ok") for trace in traces) > 3
    learner = TorchLearner(model, lr=1e-3)
    for trace in traces:
        ids = torch.tensor([[*trace.prompt_ids, *trace.token_ids]])
        with torch.no_grad():
            table = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)[len(trace.prompt_ids) - 1 : -1]
        plainly = table.gather(-1, torch.tensor(trace.token_ids)[:, None])[:, 0]
        mask = torch.tensor(trace.mask)
        torch.testing.assert_close(torch.tensor(trace.logprobs)[mask], plainly[mask], rtol=1e-4, atol=1e-4)
        learned, given = split_context(trace)
        (scored,) = learner.logprobs([(learned.prompt_ids, learned.token_ids)], context_tokens=[given])
        torch.testing.assert_close(scored, plainly[mask], rtol=1e-4, atol=1e-4)
