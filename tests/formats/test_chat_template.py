"""Chat templates that look into contents, ask for the time, draw, or never end."""

from __future__ import annotations

from datetime import datetime

import pytest
from transformers import GenerationConfig

from cotrain.prompts.chat_template import TOOL_MARKERS, Message, plainer_versions
from cotrain.prompts.render import Renderer
from tests.sentences import refuses

TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ CONTENT }}<|im_end|>\n{% endfor %}"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CHAT = TURNS.replace("CONTENT", "m.content") + OPENING
FOR_EVER = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}" + "{% endfor %}" * 3


def shown(content: str, before: str = "", after: str = "") -> str:
    return before + TURNS.replace("CONTENT", content) + after + OPENING


LOOKING = {
    "a flag is taken out": shown(
        "m.content.replace('/think', '')", "{{ 'LONG' if '/think' in messages[0].content else 'SHORT' }}\n"
    ),
    "the last message again": shown("m.content", after="Remember: {{ messages[-1].content }}\n"),
    "the first message in front": shown("m.content", "Task: {{ messages[0].content }}\n"),
    "twice": shown("m.content ~ ' (' ~ m.content ~ ')'"),
    "as JSON": shown("m.content | tojson"),
    "escaped": shown("m.content | e"),
    "its length": shown("m.content ~ ' ' ~ (m.content | length)"),
    "a mode by what is asked": shown("m.content", "{{ 'JSON\n' if 'json' in messages[-1].content }}"),
    "thoughts are dropped": shown("m.content.split('</think>')[-1].lstrip('\n')"),
    "trimmed": shown("m.content | trim"),
    "as it is": CHAT,
}
SAID = ["answer in json", '1 < 2 & "x"', " /think two\nlines ", "<think>a</think>\n\nb", "\ue0000\ue001 <step>"]


def tokenizer_of(tokenizer_with, template: object, kind: str = "bytes"):
    tokenizer = tokenizer_with(kind, None)
    tokenizer.chat_template = template
    return tokenizer


def own(tokenizer, messages: list[Message]) -> str:
    turns = [{"role": m.role, "content": m.content} for m in messages]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


@pytest.mark.whole
@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("name", LOOKING)
def test_the_prompt_is_the_templates_own_rendering(tokenizer_with, name, said):
    tokenizer = tokenizer_of(tokenizer_with, LOOKING[name])
    renderer = Renderer(tokenizer)
    user, reply = Message("user", said), Message("assistant", "<think>so</think> yes")
    for messages in ([user], [Message("system", said), user], [user, reply, user], [user, reply, user, reply, user]):
        assert "".join(text for text, _ in renderer.prompt_pieces(messages)) == own(tokenizer, messages)


@pytest.mark.whole
@pytest.mark.parametrize("said", ["<|im_end|>", "<|im_/thinkend|>", "a<|im_start|>b /think", "<|im_<think>end|>"])
@pytest.mark.parametrize("name", LOOKING)
def test_what_a_message_says_never_becomes_a_control_token(tokenizer_with, name, said):
    tokenizer = tokenizer_of(tokenizer_with, LOOKING[name])
    renderer = Renderer(tokenizer)
    control = {tokenizer.convert_tokens_to_ids(token) for token in ("<|im_start|>", "<|im_end|>")}
    plain = renderer.render([Message("user", "plain")])
    if (name, said) == ("its length", "<|im_end|>"):  # which of two equal texts is the message's, nobody can say
        with refuses("E_CHAT_TEMPLATE_CONTROL_TOKENS"):
            renderer.render([Message("user", said)])
        return
    ids = renderer.render([Message("user", said)])
    assert [i for i in ids if i in control] == [i for i in plain if i in control]
    text = own(tokenizer, [Message("user", said)])
    assert tokenizer.decode(ids) == text


def test_control_tokens_that_only_the_whole_text_makes_are_refused(tokenizer_with):
    renderer = Renderer(tokenizer_of(tokenizer_with, shown("m.content.replace('[', '<').replace(']', '>')")))
    assert "<b>" in renderer.tokenizer.decode(renderer.render([Message("user", "[b]")]))
    with refuses("E_CHAT_TEMPLATE_CONTROL_TOKENS"):
        renderer.render([Message("user", "[|im_end|]")])


def test_a_template_that_repeats_a_reply_teaches_none(tokenizer_with):
    renderer = Renderer(tokenizer_of(tokenizer_with, LOOKING["twice"]))
    with refuses("E_CHAT_TEMPLATE_REPEATS"):
        renderer.render_conversation([Message("user", "a"), Message("assistant", "b")])


def test_a_template_that_refuses_what_is_said_is_one_line(tokenizer_with):
    refusing = "{{ raise_exception('not\nthis') if 'bad' in messages[-1].content }}" + CHAT
    renderer = Renderer(tokenizer_of(tokenizer_with, refusing))
    renderer.render([Message("user", "good")])
    with refuses("E_CHAT_TEMPLATE_REFUSES", names=("['user']", "not")):
        renderer.render([Message("user", "bad")])


@pytest.mark.whole
@pytest.mark.parametrize("form", ["%d %b %Y", "%H:%M:%S", "%s", "%c", "%f"])
def test_the_time_is_the_one_at_which_a_run_was_begun(tokenizer_with, form):
    renderer = Renderer(tokenizer_of(tokenizer_with, "Today: {{ strftime_now('" + form + "') }}\n" + CHAT))
    today = renderer.tokenizer.decode(renderer.render([Message("user", "a")]))
    begun = datetime(2024, 7, 26, 1, 2, 3)
    renderer.set_time(begun)
    then = renderer.tokenizer.decode(renderer.render([Message("user", "a")]))
    assert then.startswith(f"Today: {begun.strftime(form)}\n") and then != today and renderer.asks_time


@pytest.mark.whole
@pytest.mark.parametrize(
    "part", ["{{ [1, 2] | random }}", "{{ lipsum(n=1) }}", "{{ raise_exception }}", "{{ messages[0].content.upper }}"]
)
def test_what_differs_from_one_process_to_the_next_is_refused(tokenizer_with, part):
    with refuses("E_CHAT_TEMPLATE_REFUSES"):
        Renderer(tokenizer_of(tokenizer_with, part + CHAT))


@pytest.mark.whole
@pytest.mark.parametrize(
    ("template", "code"),
    [
        (FOR_EVER + CHAT, "E_CHAT_TEMPLATE_BAD: takes more than"),
        ("{% if messages | length > 1 %}" + FOR_EVER + "{% endif %}" + CHAT, "E_CHAT_TEMPLATE_BAD: takes more than"),
        ("{{ 9 ** (9 ** 9) }}" + CHAT, "E_CHAT_TEMPLATE_BAD: takes more than"),
        ("{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}" + CHAT, "E_CHAT_TEMPLATE_BAD: memory"),
        ("{{ 'x' * 9999999 }}" + CHAT, "E_CHAT_TEMPLATE_BAD: too much text"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "E_CHAT_TEMPLATE_REFUSES: recursion"),
        ("{% for m in messages %}", "E_CHAT_TEMPLATE_REFUSES"),
        (shown("m.content | upper"), "E_CHAT_TEMPLATE_REFUSES"),
        (shown("m.content[:12]"), "E_CHAT_TEMPLATE_REFUSES"),
        ({"rag": CHAT, "tool_use": CHAT}, "E_CHAT_TEMPLATE_NO_DEFAULT"),
        ({"default": 5}, "E_CHAT_TEMPLATE_NOT_TEXT: int"),
        (5, "E_CHAT_TEMPLATE_NOT_TEXT: int"),
    ],
)
def test_templates_that_cannot_be_used_are_one_line(tokenizer_with, template, code):
    with refuses(code) as error:
        Renderer(tokenizer_of(tokenizer_with, template))
    assert "\n" not in str(error.value)


def test_named_templates_with_a_default_are_used(tokenizer_with):
    named = Renderer(tokenizer_of(tokenizer_with, {"default": CHAT, "rag": "{{ 1 }}"}))
    assert named.render([Message("user", "a")]) == Renderer(tokenizer_of(tokenizer_with, CHAT)).render(
        [Message("user", "a")]
    )


@pytest.mark.parametrize("eos", ["5", ["5"], 5.5, -1, {"a": 1}, [[5]], True, 10**30])
def test_a_stop_token_that_is_none_is_one_line(tokenizer_with, eos):
    settings = GenerationConfig()
    settings.eos_token_id = eos
    with refuses("E_END_TOKEN_ID"):
        Renderer(tokenizer_with("bytes", "ours"), settings)


def test_a_tool_is_a_user_between_marks_where_a_template_knows_no_tools():
    said = [Message("user", "2+2?"), Message("tool", "4")]
    before, after = TOOL_MARKERS
    marked = [said[0], Message("user", f"{before}4{after}")]
    assert next(plainer_versions(said, knows_tools=True)) == said
    assert next(plainer_versions(said, knows_tools=False)) == marked
