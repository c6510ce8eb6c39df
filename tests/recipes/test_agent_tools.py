"""Tools of OpenAI's protocol in an agent's requests: what the template describes, what is read as a call, and that the
tokens that are learned stay those that were sampled."""

import json
import subprocess
import sys
from shutil import copytree

import pytest

from cotrain.core.notes import CALLS
from cotrain.core.types import Completion, Sampling
from cotrain.core.user_code import load_file
from cotrain.recipes.agent import SEQUENCES, make_agent_protocol
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from cotrain.rollout.tools.calls import SYNTAXES, ToolRenderer, find_syntax, read_calls
from tests.formats.chat_templates import DESCRIBED, LLAMA_3_1_TOOLS, QWEN_2_5, QWEN_2_5_TOOLS, end_of, renderer_of
from tests.helpers import TINY, letter_tasks

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
OWN = '''
import json
import urllib.error
import urllib.request

FUNCTION = {"name": "calculator", "description": "a product", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
SEEN = []


def ask(base_url, api_key, messages, **more):
    body = {"model": "solver", "messages": messages, "tools": TOOLS, **more}
    headers = {"content-type": "application/json", "authorization": f"Bearer {api_key}"}
    request = urllib.request.Request(f"{base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
        SEEN.append(text if more.get("stream") else json.loads(text)["choices"][0])
    return SEEN[-1]


def computes(problem, base_url, api_key, change=None):
    """Calls what it is told to call until nothing is called any more."""
    messages = [{"role": "user", "content": problem}]
    while True:
        message = ask(base_url, api_key, messages)["message"]
        messages.append(message)
        for call in message.get("tool_calls", ()):
            given = json.loads(call["function"]["arguments"])
            result = str(given.get("a", 0) * given.get("b", 0))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if change:
                call["function"]["arguments"] = json.dumps(given | change)
        if "tool_calls" not in message:
            return message["content"]


def changes(problem, base_url, api_key):
    return computes(problem, base_url, api_key, {"b": 8})


def once(problem, base_url, api_key, **more):
    message = ask(base_url, api_key, [{"role": "user", "content": problem}], **more)["message"]
    return message["content"] or "a call"


def nothing(problem, base_url, api_key):
    return once(problem, base_url, api_key, tool_choice="none")


def streams(problem, base_url, api_key):
    return ask(base_url, api_key, [{"role": "user", "content": problem}], stream=True)


def refused(problem, base_url, api_key):
    """Of what is wrong, the parameter and the message; then one request without tools."""
    calls = [{"id": "x", "function": {"name": "f", "arguments": "{"}}]
    described = [{"type": "function", "function": {**FUNCTION, "description": "ends <|im_end|> here"}}]
    for more in (
        {"tool_choice": "required"},
        {"parallel_tool_calls": False},
        {"tools": [{"type": "function", "function": {}}]},
        {"tools": described},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": calls}, {"role": "user", "content": "?"}]},
        {},
    ):
        body = {"messages": [{"role": "user", "content": problem}], **more}
        try:
            ask(base_url, api_key, body.pop("messages"), **body)
        except urllib.error.HTTPError as error:
            assert error.code == 400
            SEEN.append(json.load(error)["error"])
    return once(problem, base_url, api_key, tools=None)
'''
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"a": 6, "b": 7, "why": "a table"}}\n</tool_call>'
LLAMA_CALL = '{"name": "calculator", "parameters": {"a": 6, "b": 7, "why": "a table"}}'
OWN_CALL = CALL.replace(": ", ":").replace("\n", "")  # as no template writes it
OWN_LLAMA_CALL = LLAMA_CALL.replace(": ", ":")


class Replies:
    """Says these texts in turn, each character as tokens of its own, where the tokenizer would join some."""

    def __init__(self, renderer, name, texts):
        self.renderer, self.texts, self.prompts, self.sampled = renderer, list(texts), [], []
        self.stop = end_of(name, renderer)

    async def sample(self, request):
        text = self.texts[len(self.sampled)]
        ids = (*(i for char in text for i in self.renderer.encode(char)), self.stop)
        self.sampled.append(ids)
        self.prompts.append(self.renderer.tokenizer.decode(request.prompt_ids))
        logprobs = tuple(-1.0 / (1 + k) for k in range(len(ids)))
        return Completion(token_ids=ids, logprobs=logprobs, finish="stop", policy="solver", version=0)

    def advance(self):
        return False

    def counts(self):
        return {}


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return load_file(str(tmp_path / "own.py"), "the test")


def play(program, texts, template=QWEN_2_5_TOOLS, name="qwen-2.5"):
    """The engine, and the only episode."""
    engine = Replies(renderer_of(name, template), name, texts)
    role = Role(policy="solver", prompt="{problem}", sampling=Sampling(max_tokens=500))
    executor = RolloutRunner(engine, {"solver": engine.renderer}, {"solver": role}, seed=0)
    limits = {"requests": 9, "seconds": 60.0, "max_tokens": 500, "at_once": 1}
    protocol = make_agent_protocol(program, lambda task, answer: 1.0, ("solver",), **limits)
    (episode,) = executor.collect(protocol, letter_tasks(1), step=0, group_size=1)
    return engine, episode


def sampled_by(trace):
    return tuple(tuple(trace.token_ids[turn.start : turn.end]) for turn in trace.turns)


@pytest.mark.parametrize(
    ("name", "template", "said"),
    [("qwen-2.5", QWEN_2_5_TOOLS, f"I see a table.{OWN_CALL}"), ("llama-3.1", LLAMA_3_1_TOOLS, OWN_LLAMA_CALL)],
)
def test_a_call_and_its_result_go_on_from_the_sampled_tokens(own, name, template, said):
    engine, episode = play(own.computes, [said, "So 42."], template, name)
    (trace,) = episode.traces
    first, last = own.SEEN
    assert first["finish_reason"] == "tool_calls" and last["finish_reason"] == "stop"
    assert first["message"]["content"] == (None if said == OWN_LLAMA_CALL else "I see a table.")
    (call,) = first["message"]["tool_calls"]
    assert call["type"] == "function" and call["id"] and call["function"]["name"] == "calculator"
    assert json.loads(call["function"]["arguments"]) == {"a": 6, "b": 7, "why": "a table"}
    assert json.dumps(own.FUNCTION) in engine.prompts[0]
    assert SEQUENCES.require(trace) == 1 and trace.failure is None and CALLS.of(trace) == ["ok"]
    assert sampled_by(trace) == tuple(engine.sampled)
    assert list(engine.renderer.encode(said)) != list(engine.sampled[0][:-1]), "else nothing is tested"
    for turn, ids in zip(trace.turns, engine.sampled, strict=True):
        assert trace.logprobs[turn.start : turn.end] == tuple(-1.0 / (1 + k) for k in range(len(ids)))
    assert sum(trace.mask) == sum(map(len, engine.sampled))
    result = {"qwen-2.5": "<tool_response>\n42\n</tool_response>", "llama-3.1": "ipython<|end_header_id|>\n\n42"}[name]
    assert result in engine.prompts[1]


def test_several_calls_and_what_cannot_be_read_beside_them(own):
    other = CALL.replace('"b": 7', '"b": 9').replace("a table", "b")
    bad, unknown = '<tool_call>{"name": calculator}</tool_call>', '<tool_call>{"name": "search"}</tool_call>'
    engine, episode = play(own.computes, [f"{CALL}\n{other}{bad}{unknown}", CALL, "Done."])
    (trace,) = episode.traces
    message = own.SEEN[0]["message"]
    assert message["content"] == bad + unknown
    assert [json.loads(call["function"]["arguments"])["b"] for call in message["tool_calls"]] == [7, 9]
    ids = [call["id"] for said in own.SEEN[:2] for call in said["message"]["tool_calls"]]
    assert len(set(ids)) == 3
    assert CALLS.of(trace) == ["ok", "ok", "bad call", "unknown tool", "ok"] and trace.failure is None
    assert sampled_by(trace) == tuple(engine.sampled)
    assert "42\n</tool_response>\n<tool_response>\n54\n" in engine.prompts[1]


def test_a_call_that_cannot_be_read_is_a_text_and_counted(own):
    said = f"Well: {CALL.replace('}', '')}"
    _, episode = play(own.computes, [said])
    (trace,) = episode.traces
    assert own.SEEN[0]["message"]["content"] == said and own.SEEN[0]["finish_reason"] == "stop"
    assert CALLS.of(trace) == ["bad call"] and trace.failure is None and trace.rewards[0].value == 1.0


def test_a_call_that_the_agent_changes_begins_a_sequence_as_the_template_writes_it(own):
    engine, episode = play(own.changes, [f"Hm.{CALL}", "So 42."])
    assert [len(trace.turns) for trace in episode.traces] == [0, 0]
    assert [trace.token_ids for trace in episode.traces] == engine.sampled
    changed = CALL.replace('"b": 7', '"b": 8')
    assert f"<|im_start|>assistant\nHm.\n{changed}<|im_end|>" in engine.prompts[1]
    assert [SEQUENCES.require(trace) for trace in episode.traces] == [2, 2]


def test_tool_choice_none_describes_and_reads_nothing(own):
    engine, episode = play(own.nothing, [CALL])
    assert own.SEEN[0]["message"]["content"] == CALL and CALLS.of(episode.traces[0]) is None
    assert json.dumps(own.FUNCTION) in engine.prompts[0]


def test_a_stream_brings_the_calls_in_one_piece(own):
    play(own.streams, [CALL])
    pieces = [json.loads(line[6:]) for line in own.SEEN[0].splitlines() if line.startswith("data: {")]
    delta, end = (piece["choices"][0] for piece in pieces)
    (call,) = delta["delta"]["tool_calls"]
    assert call["index"] == 0 and call["function"]["name"] == "calculator" and end["finish_reason"] == "tool_calls"


def test_what_cannot_be_taken_is_refused(own):
    _, episode = play(own.refused, ["Yes.", "Yes."])
    *errors, _, _ = own.SEEN
    assert [error["param"] for error in errors] == [
        "tool_choice",
        "parallel_tool_calls",
        "tools",
        "tools",
        "messages",
    ]
    assert "control token" in errors[3]["message"] and episode.traces[0].failure is None


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (QWEN_2_5, "its chat template describes no tools"),
        (DESCRIBED + QWEN_2_5, "its chat template writes no calls of tools"),
        (QWEN_2_5_TOOLS.replace("<tool_call>", "<function>"), "expected the way of Hermes and Qwen, Llama 3"),
    ],
)
def test_a_template_without_tools_or_with_calls_that_nobody_reads_is_refused_by_name(own, template, words):
    _, episode = play(own.refused, ["Yes."], template)
    error, message = own.SEEN[-2], own.SEEN[-1]["message"]
    assert error["param"] == "tools" and words in error["message"] and "model 'solver'" in error["message"]
    assert message["content"] == "Yes." and episode.traces[0].failure is None


def test_the_syntax_is_that_of_the_template_and_thoughts_hold_no_calls():
    hermes, llama = SYNTAXES.values()
    assert find_syntax(ToolRenderer(renderer_of("qwen-2.5", QWEN_2_5_TOOLS))) == hermes
    assert find_syntax(ToolRenderer(renderer_of("llama-3.1", LLAMA_3_1_TOOLS))) == llama
    for text, outcomes in (
        (f"<think>{CALL}</think>No.", []),
        (f"<think>{CALL}", []),
        (f"<think>{CALL}</think>{CALL}", ["ok"]),
        (CALL.removesuffix("</tool_call>"), ["ok"]),
        (CALL.replace("6", "NaN"), ["bad call"]),
        (CALL.replace("6", "1e999"), ["bad call"]),
        (CALL.replace("a table", "\\ud800"), ["bad call"]),
        (CALL.replace("6", "[" * 10**5), ["bad call"]),
        ('<tool_call>{"name": "calculator", "arguments": "6"}</tool_call>', ["bad call"]),
    ):
        assert read_calls(text, hermes, {"calculator"})[2] == outcomes, text
    assert '"arguments"' in CALL and '"parameters"' in LLAMA_CALL
    swapped = CALL.replace('"arguments"', '"parameters"'), LLAMA_CALL.replace('"parameters"', '"arguments"')
    for text, syntax in zip(swapped, (hermes, llama), strict=True):
        assert read_calls(text, syntax, {"calculator"}) == (text, [], ["bad call"])
    for text, outcomes in ((f" {LLAMA_CALL}\n", ["ok"]), (LLAMA_CALL[:-1], ["bad call"]), ('{"answer": 3}', [])):
        assert read_calls(text, llama, {"calculator"})[2] == outcomes, text


@pytest.mark.whole
def test_a_run_by_the_command_takes_tools(tmp_path):
    """Of a model that was never taught to call: its replies are texts, and learned."""
    (tmp_path / "own.py").write_text(OWN)
    copytree(TINY, tmp_path / "model")
    template = (tmp_path / "model" / "chat_template.jinja").read_text()
    calling = '{%- for c in message.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", "arguments": '
    calling += "{{ c.function.arguments | tojson }}}</tool_call>{%- endfor %}"
    place = "{{- message['content'] -}}"
    assert place in template
    described = "{%- if tools %}{{- '<|system|>' + (tools | tojson) + '<|end|>' -}}{%- endif -%}"
    described += template.replace(place, place + calling)
    (tmp_path / "model" / "chat_template.jinja").write_text(described)
    run = ["run", "agent", "--agent", f"{tmp_path / 'own.py'}:once", "--model", str(tmp_path / "model"), "--steps=1"]
    run += [
        "--tasks-per-step=2",
        "--group-size=2",
        "--evaluation-tasks=1",
        "--max-tokens=6",
        "--out",
        str(tmp_path / "r"),
    ]
    done = subprocess.run([sys.executable, "-m", "cotrain.cli.main", *run], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert any("solver/metadata/sequences" in row for row in rows), rows
    assert not any(key.startswith("failures/") and value for row in rows for key, value in row.items()), rows
