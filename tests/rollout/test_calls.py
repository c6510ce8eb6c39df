"""Any tool in any form: what is called, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotrain.algorithms.samples import token_limit
from cotrain.core.notes import ANSWER, FAILURE
from cotrain.core.types import Completion, ParseFailure, Sampling
from cotrain.rollout.event_loop import engine_paused
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.tools import calls
from cotrain.rollout.tools.calls import CALLS, HERMES, ToolError, use_tools
from cotrain.storage.episode_json import trace_from_json, trace_to_json
from tests.formats.chat_templates import end_of, renderer_of
from tests.helpers import CharRenderer, letter_tasks
from tests.rollout.scripted import Scripted


async def calculator(expression):
    left, sign, right = expression.split()
    if sign == "?":
        raise ToolError("bad sign", "so far")
    async with engine_paused():
        return {"*": int(left) * int(right), "+": int(left) + int(right)}[sign]


async def leaving(said):
    raise SystemExit(3)


class NoText:
    def __str__(self):
        raise SystemExit(3)


async def textless(said):
    return NoText()


async def shouting(text):
    return text.upper() * 300


def called(said, tools, *, form=CALLS, **options):
    """One answer of a solver that says these parts, one a turn: its trace, and its prompts behind the first."""
    parts, prompts = iter(said), []

    class Said(Scripted):
        async def sample(self, request):
            prompts.append(CharRenderer().decode(request.prompt_ids))
            self.say = lambda prompt, outputs: next(parts)
            return await super().sample(replace(request, policy="v"))

    async def protocol(task, roles):
        chat = roles.solver.begin(problem="p")
        turn = await use_tools(chat, tools, form=form, nonce="12345678", **options)
        turn.add_finding(ANSWER, chat.response_text)
        if isinstance(turn.parsed, ParseFailure):
            turn.add_finding(FAILURE, turn.parsed.reason)

    roles = {"solver": Role(policy="s", prompt="{problem}=", sampling=Sampling(max_tokens=200))}
    [episode] = RolloutRunner(Said(None), {"s": CharRenderer()}, roles, seed=0).collect(
        protocol, letter_tasks(1), step=0, group_size=1
    )
    assert episode.failure is None, episode.failure
    return episode.traces[0], [prompt[len(prompts[0]) :] for prompt in prompts[1:]]


def shown(output):
    return f"\n<result id=12345678>\n{output}\n</result id=12345678>\n"


def test_a_calculator_is_called_several_times_in_one_answer():
    said = ["It is <call>6 * 7</call> and more", " and <call>42 + 1</call>", " so 43."]
    trace, prompts = called(said, {"calculator": calculator})
    whole = f"It is <call>6 * 7</call>{shown(42)} and <call>42 + 1</call>{shown(43)}"
    assert prompts[-1] == whole and trace.text == whole + " so 43."
    assert trace.findings["calls"] == ["ok", "ok"]
    assert trace.findings["answer"] == "It is <call>6 * 7</call> and <call>42 + 1</call> so 43."
    assert [turn.end - turn.start for turn in trace.turns] == [24, 24, 8]  # the last one with its stop token


@pytest.mark.parametrize(
    ("said", "outcome", "output"),
    [
        ("<call>calculator 6 * 7</call>", "ok", "42"),
        ("<call>calculator 6 ? 7</call>", "bad sign", "so far\n(bad sign)"),
        ("<call>calculator 6 times 7</call>", "KeyError", "(KeyError)"),
        ("<call>calculator</call>", "ValueError", "(ValueError)"),
        ("<call>leaving a</call>", "SystemExit", "(SystemExit)"),
        ("<call>textless a</call>", "SystemExit", "(SystemExit)"),
        ("<call>oracle 6 * 7</call>", "unknown tool", "(unknown tool)"),
        ("<call>shouting a</call>", "ok", "A" * 300),
        ("<call>shouting <answer></call>", "ok", ("<ANSWER>" * 63)[:500] + "\n(cut)"),
    ],
)
def test_what_becomes_of_a_call_is_a_value(said, outcome, output):
    tools = {"calculator": calculator, "shouting": shouting, "leaving": leaving, "textless": textless}
    trace, prompts = called([said, "done"], tools)
    assert trace.findings["calls"] == [outcome] and prompts == [said + shown(output)]


def test_calls_as_json_are_answered_by_a_tool_message():
    asked = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "6 * 7"}}\n</tool_call>'
    trace, prompts = called([asked + " imagined", "So 42."], {"calculator": calculator}, form=HERMES)
    assert prompts == [asked + "<result id=12345678>\n42\n</result id=12345678>"] and trace.findings["calls"] == ["ok"]
    for bad in ("{", "[]", '{"name": "calculator", "arguments": 3}', '{"arguments": {}}', "[" * 70):
        trace, prompts = called([f"<tool_call>{bad}</tool_call>", "."], {"calculator": calculator}, form=HERMES)
        assert trace.findings["calls"] == ["bad call"] and "(bad call)" in prompts[0], bad
    term = '{"expression": "6 * 7"}'
    for bad in (
        f'"parameters": {term}',
        f'"args": {term}',
        f'"arguments": {term}, "more": 1',
        f'"arguments": {term}, "arguments": {{}}',
        '"arguments": [["x", 1]]',
        '"arguments": null',
        '"expression": "6 * 7"',
    ):
        said = f'<tool_call>{{"name": "calculator", {bad}}}</tool_call>'
        trace, _ = called([said, "."], {"calculator": calculator}, form=HERMES)
        assert trace.findings["calls"] == ["bad call"], bad
    wrong = '<tool_call>{"name": "calculator", "arguments": {"x": 1}}</tool_call>'
    assert called([wrong, "."], {"calculator": calculator}, form=HERMES)[0].findings["calls"] == ["TypeError"]


def test_tokens_of_an_answer_with_tool_messages_are_those_of_one_answer():
    """Its messages end at each call, and the next turn has what the one before left; a new question has all again."""
    renderer = renderer_of("qwen-2.5")
    texts = ['<tool_call>{"name": "calculator", "arguments": {"expression": "6 * 7"}}</tool_call>', "So 42."] * 2

    class Qwen(Scripted):
        async def sample(self, request):
            text = texts.pop(0)
            ids = (*renderer.encode(text), *(() if "call" in text else (end_of("qwen-2.5", renderer),)))
            return Completion(token_ids=ids, logprobs=(-0.1,) * len(ids), finish="stop", policy="s", version=0)

    async def protocol(task, roles):
        chat = roles.solver.begin(problem="p")
        await use_tools(chat, {"calculator": calculator}, form=HERMES)
        chat.user("And again?")
        await use_tools(chat, {"calculator": calculator}, form=HERMES)

    roles = {"solver": Role(policy="s", prompt="{problem}", sampling=Sampling(max_tokens=200))}
    play = RolloutRunner(Qwen(None), {"s": renderer}, roles, seed=0).collect
    (trace,) = play(protocol, letter_tasks(1), step=0, group_size=1)[0].traces
    assert [turn.goes_on for turn in trace.turns] == [False, True, False, True]
    assert token_limit(trace, 200, renderer.stop_ids) == 400
    assert token_limit(trace_from_json(trace_to_json(trace)), 200, renderer.stop_ids) == 400


def test_a_closing_tag_alone_calls_nothing():
    said = ["<call>1 + 1</call>", "2</call>", "3"]
    trace, prompts = called(said, {"calculator": calculator})
    assert trace.findings["calls"] == ["ok"] and len(prompts) == 2 and prompts[1] == prompts[0] + "2</call>"


def test_an_answer_has_the_roles_tokens_all_in_all():
    trace, _ = called(["<call>1 + 1</call>"] * 99, {"calculator": calculator}, most=99)
    assert trace.sampled_count == 200 and len(trace.turns) == 12  # 11 calls of 18 tokens, and 2 left
    assert calls.MAX_OUTPUT == 500
