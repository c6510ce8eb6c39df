"""The families' own chat templates, as TRL ships them (Apache-2.0; ``trl/chat_templates``): what they write is what the
reduced ones of ``chat_templates.py`` write, and what the renderer assumes of templates holds for them.

They are read where they are installed, and none is copied: COTRAIN_TEMPLATES names the folder, by default the one of
TRL in this environment. Without either these tests are skipped. The tokenizer is by bytes: the families' own
vocabularies are not to be had without their weights.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
from jinja2 import TemplateError

from cotrain.prompts.chat_template import Message
from cotrain.prompts.decoding import sampled_after
from tests.formats.chat_templates import renderer_of
from tests.formats.test_sequence import HOSTILE, texts


def folder_of_templates():
    if named := os.environ.get("COTRAIN_TEMPLATES"):
        return Path(named)
    trl = importlib.util.find_spec("trl")
    return None if trl is None or trl.origin is None else Path(trl.origin).parent / "chat_templates"


FOLDER = folder_of_templates()
pytestmark = pytest.mark.skipif(FOLDER is None or not FOLDER.is_dir(), reason="needs the templates that TRL ships")
REDUCED = {"qwen-2.5": "qwen2_5", "qwen-3": "qwen3", "gemma": "gemma", "llama-3": "llama3"}
QWEN = ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8")
GEMMA = ("gemma", "gemma3", "gemma4", "gemma4_v5")
OTHERS = ("llama3", "llama3_1", "llama3_2", "phi3", "deepseek_r1_distill", "lfm2", "cohere2")
REAL = (*QWEN, *GEMMA, *OTHERS)
MARKS = re.compile(r"<\|[a-zA-Z_]+\|>|<\|[a-zA-Z_]+>|<[a-zA-Z_]+\|>|<(?:start|end)_of_turn>|<｜[^｜<>]+｜>")
THOUGHT = "<think>\nfour\n</think>\n\n"


def user(text):
    return Message("user", text)


def said(text):
    return Message("assistant", text)


CHATS = {
    "one question": [user("2+2?")],
    "with a system message": [Message("system", "Be brief."), user("2+2?")],
    "white space": [Message("system", "Be brief."), user(" 2+2?\n")],
    "two questions": [Message("system", "Be brief."), user("2+2?"), said("4"), user("Sure?")],
    "a thought": [Message("system", "Be brief."), user("2+2?"), said(f"{THOUGHT}4"), user("Sure?")],
    "three questions": [user("a"), said("b"), user("c"), said("d"), user("e")],
    "a tool": [Message("system", "Be brief."), user("2+2?"), said("call"), Message("tool", "4")],
}


def source(name):
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def real(name, like="qwen-3"):
    template = source(name)
    return renderer_of(like, template, sorted(set(MARKS.findall(template))))


@pytest.fixture(scope="module", params=REAL)
def renderer(request):
    if not (FOLDER / f"{request.param}.jinja").is_file():
        pytest.skip(f"this TRL has no {request.param}.jinja")
    return real(request.param)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("reduced", REDUCED)
def test_the_reduced_templates_write_what_the_real_ones_write(reduced, chat):
    messages = CHATS[chat]
    if reduced == "qwen-2.5" and messages[0].role != "system":
        messages = [Message("system", "Be brief."), *messages]  # its default names the model
    own, other = renderer_of(reduced), real(REDUCED[reduced], reduced)
    assert texts(own, own.render(messages)) == texts(other, other.render(messages))


def options(renderer):
    return {"enable_thinking": False} if "enable_thinking" in renderer.tokenizer.chat_template else {}


@pytest.mark.parametrize("chat", ["one question", "white space", "two questions", "three questions"])
def test_prompts_are_the_tokenizers_own(renderer, chat):
    tokenizer = renderer.tokenizer
    turns = [{"role": m.role, "content": m.content} for m in CHATS[chat]]
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options(renderer))
    except TemplateError as error:  # Gemma has no system message: the renderer puts it into the user's
        assert "ystem role" in str(error)
        return
    assert texts(renderer, renderer.render(CHATS[chat])) == text
    if len(turns) < 3:
        assert list(renderer.render(CHATS[chat])) == tokenizer(text, add_special_tokens=False).input_ids


def test_thinking_is_switched_off_where_a_template_has_the_switch(renderer):
    template = renderer.tokenizer.chat_template
    prompt = texts(renderer, renderer.render([user("2+2?")]))
    if "enable_thinking" in template and "<think>" in template:
        assert prompt.endswith("<think>\n\n</think>\n\n")
    elif prompt.endswith("<think>\n"):
        assert "enable_thinking" not in template  # it always thinks: its text begins inside of a thought


def test_what_ends_a_turn_stops_a_reply(renderer):
    tokenizer = renderer.tokenizer
    chat = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "XYZ"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, **options(renderer))
    after = tokenizer(text.rpartition("XYZ")[2], add_special_tokens=False).input_ids
    assert after and after[0] in renderer.stop_ids


def test_contents_cannot_imitate_control_tokens(renderer):
    marks = "".join(MARKS.findall(renderer.tokenizer.chat_template)) + HOSTILE
    special = set(renderer.tokenizer.all_special_ids) | set(renderer.stop_ids)
    plain, hostile = ([i for i in renderer.render([user(text)]) if i in special] for text in ("x", f"x{marks}y"))
    assert plain == hostile


def test_a_second_turn_extends_the_first_or_says_that_it_cannot(renderer):
    """Tokens of the first turn are never changed: where the template rewrites them (thoughts that go), a new sequence
    begins."""
    asked = [user("2+2?")]
    pieces = renderer.prompt_pieces(asked)
    prompt = renderer.encode_pieces(pieces)
    reply = (*renderer.encode("4"), renderer._closing[-1])
    sequence = sampled_after(pieces, prompt, reply, renderer)
    after = renderer.prompt_pieces([*asked, said("4"), user("Sure?")])
    new = sequence.new_ids(after, renderer)
    whole = "".join(text for text, _ in after)
    if new is None:
        assert not whole.startswith(texts(renderer, prompt))
    else:
        assert texts(renderer, (*prompt, *reply, *new)) == whole
