"""Replies that are given and learned go on where their prompt ends, as sampled ones do."""

from __future__ import annotations

import pytest
from transformers import GenerationConfig

from cotrain.prompts.chat_template import Message
from cotrain.prompts.render import Renderer
from cotrain.prompts.thoughts import begins_with_thought, empty_thought_at_end, open_thought_of
from tests.formats.chat_templates import QWEN_3, QWEN_3_THINKING, renderer_of
from tests.sentences import refuses

TURN = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}"
PLAIN_OPEN = TURN + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}{%- endif %}"
PLAIN_SWITCH = (
    TURN + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
R1 = (  # drops what stands in front of the end of a thought, and opens one in each prompt
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '[INST]' + m.content }}"
    "{%- else %}{{- '[/INST]' + m.content.split('</think>')[-1] + eos_token }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '[/INST]<think>\n' }}{%- endif %}"
)
GLM = (  # nothing ends a turn but the beginning of the next one
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '[INST]\n' }}"
    "{%- else %}{{- '[/INST]\n' }}{%- endif %}{{- m.content }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '[/INST]\n' }}{%- endif %}"
)
MISTRAL_0_1 = (  # a blank before a reply; a prompt ends in front of it
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}"
    "{%- else %}{{- ' ' + m.content + eos_token }}{%- endif %}{%- endfor %}"
)
CHANNELS = (  # the name of a channel in control tokens between the opening of a turn and the reply
    "{%- for m in messages %}{{- '<|im_start|>' + m.role }}"
    "{%- if m.role == 'assistant' %}{{- '<|start_header_id|>final<|end_header_id|>' }}"
    "{%- else %}{{- '\n' }}{%- endif %}{{- m.content + '<|im_end|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{%- endif %}"
)
THOUGHT = "<think>\nhm\n</think>\n\nyes"


def rendered(template, *said, renderer=None):
    """The text of a row, and what of it is learned. ``said``: user and assistant in turns."""
    renderer = renderer or renderer_of("none", template)
    roles = ("user", "assistant") * len(said)
    messages = [Message(role, text) for role, text in zip(roles, said, strict=False)]
    ids, mask = renderer.render_conversation(messages)
    assert len(ids) == len(mask)
    decode = renderer.tokenizer.decode
    return decode(ids), decode([token for token, learned in zip(ids, mask, strict=True) if learned])


@pytest.mark.parametrize("template", [QWEN_3_THINKING, PLAIN_OPEN], ids=["qwen", "plain"])
@pytest.mark.parametrize(
    "reply", [THOUGHT, "<think>hm\n</think>\n\nyes", "hm\n</think>\n\nyes"], ids=["n", "bare", "in"]
)
def test_a_thought_that_the_prompt_has_opened_is_opened_once(template, reply):
    text, learned = rendered(template, "A", reply)
    assert text.count("<think>") == text.count("</think>") == 1
    assert learned == "hm\n</think>\n\nyes<|im_end|>"
    assert text.endswith("<|im_start|>assistant\n<think>\n" + learned)


def test_a_template_that_drops_thoughts_learns_them_all_the_same():
    text, learned = rendered(R1, "A", THOUGHT)
    assert text == "<s>[INST]A[/INST]<think>\nhm\n</think>\n\nyes</s>" and learned == "hm\n</think>\n\nyes</s>"


def test_a_reply_without_a_thought_closes_it_as_its_template_does():
    assert rendered(QWEN_3_THINKING, "A", "yes")[1] == "\n</think>\n\nyes<|im_end|>"


@pytest.mark.parametrize("template", [R1, PLAIN_OPEN], ids=["r1", "plain"])
@pytest.mark.parametrize("reply", ["yes", "<think>\nhm"])
def test_a_reply_that_leaves_a_thought_open_is_refused(template, reply):
    with refuses("E_THOUGHT_NOT_CLOSED", names="'</think>'"):
        rendered(template, "A", reply)
    renderer = renderer_of("none", template)
    with refuses("E_THOUGHT_NOT_CLOSED"):
        renderer.encode_reply(reply, renderer.render([Message("user", "A")]))


@pytest.mark.parametrize("template", [QWEN_3, PLAIN_SWITCH], ids=["qwen", "plain"])
def test_a_thought_takes_the_place_of_the_empty_one_that_switches_thoughts_off(template):
    text, learned = rendered(template, "A", THOUGHT)
    assert text.count("<think>") == 1 and learned == THOUGHT + "<|im_end|>"
    assert text == "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\n" + learned
    text, learned = rendered(template, "A", "yes")
    assert text.endswith("<think>\n\n</think>\n\nyes<|im_end|>") and learned == "yes<|im_end|>"
    renderer = renderer_of("none", template)
    with refuses("E_THOUGHT_IN_REPLY"):
        renderer.encode_reply(THOUGHT, renderer.render([Message("user", "A")]))


def test_two_turns_without_an_end_of_turn_learn_what_begins_the_next_one():
    renderer = renderer_of("none", GLM)
    next_turn = renderer.tokenizer.convert_tokens_to_ids("[INST]")
    listed = Renderer(renderer.tokenizer, GenerationConfig(eos_token_id=[next_turn]))
    whole = "<s>[INST]\nA[/INST]\nB[INST]\nC[/INST]\nD</s>"
    assert rendered(GLM, "A", "B", "C", "D", renderer=listed) == (whole, "B[INST]D</s>")
    assert rendered(GLM, "A", "B", "C", "D", renderer=renderer) == (whole, "BD</s>")


def test_a_blank_in_front_of_a_reply_is_learned_with_it():
    assert rendered(MISTRAL_0_1, "A", "B", "C", "D") == (
        "<s>[INST] A [/INST] B</s>[INST] C [/INST] D</s>",
        " B</s> D</s>",
    )


def test_control_tokens_in_front_of_a_reply_are_the_templates_and_none_of_the_replys():
    renderer = renderer_of("none", CHANNELS)
    start = renderer.tokenizer.convert_tokens_to_ids("<|start_header_id|>")
    ids, mask = renderer.render_conversation([Message("user", "A"), Message("assistant", "B<|start_header_id|>")])
    assert ids.count(start) == 1 and mask[ids.index(start)]
    assert rendered(CHANNELS, "A", "B")[1] == "<|start_header_id|>final<|end_header_id|>B<|im_end|>"


@pytest.mark.parametrize(
    ("template", "reply"),
    [
        (QWEN_3_THINKING, THOUGHT),
        (QWEN_3_THINKING, "yes"),
        (QWEN_3, "yes"),
        (MISTRAL_0_1, "B"),
        (GLM, "B"),
        (R1, THOUGHT),
    ],
    ids=["thought", "closed", "off", "blank", "endless", "dropped"],
)
def test_what_a_program_says_is_what_a_row_would_teach(template, reply):
    renderer = renderer_of("none", template)
    asked = [Message("user", "A")]
    prompt = renderer.render(asked)
    row, _ = renderer.render_conversation([*asked, Message("assistant", reply)])
    assert (*prompt, *renderer.encode_reply(reply, prompt)) == row


def test_a_reply_ends_as_the_template_ends_it_and_not_as_any_text():
    renderer = renderer_of("qwen-2.5")
    end, other = (renderer.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "</s>"))
    assert renderer.stop_ids == tuple(sorted((end, other))) and other < end
    assert renderer.encode_reply("B", renderer.render([Message("user", "A")]))[-1] == end


@pytest.mark.parametrize(("opens", "closes"), [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_tags_of_thoughts(opens, closes):
    thought = open_thought_of(f"Q\n{opens}\n ")
    assert thought is not None and (thought.opens, thought.blank, thought.closes) == (opens, "\n ", closes)
    assert open_thought_of(f"{opens} x") is None and open_thought_of(f"{opens}{closes}") is None
    assert empty_thought_at_end(f"Q{opens}\n\n{closes}\n\n") == f"{opens}\n\n{closes}\n\n"
    assert empty_thought_at_end(f"Q{opens}x{closes}") == ""
    assert empty_thought_at_end(f"{opens}x{closes}Q{closes}\n") == f"{closes}\n"
    assert begins_with_thought(f"\n{opens}x") and not begins_with_thought(f"x{opens}")


DEEPSEEK_3_1 = (  # thoughts are switched off by the end of one alone
    "{{- bos_token }}{%- for m in messages %}{%- if m.role == 'user' %}{{- '[INST]' + m.content }}"
    "{%- else %}{{- '[/INST]</think>' + m.content.split('</think>')[-1] + eos_token }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '[/INST]</think>' }}{%- endif %}"
)
OTHER_TAGS = TURN + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n◁think▷' }}{%- endif %}"


def test_a_thought_takes_the_place_of_the_end_of_one_alone():
    assert rendered(DEEPSEEK_3_1, "A", "yes") == ("<s>[INST]A[/INST]</think>yes</s>", "yes</s>")
    assert rendered(DEEPSEEK_3_1, "A", THOUGHT) == (f"<s>[INST]A[/INST]{THOUGHT}</s>", f"{THOUGHT}</s>")


@pytest.mark.parametrize("template", [QWEN_3, PLAIN_SWITCH, DEEPSEEK_3_1], ids=["qwen", "plain", "end-alone"])
@pytest.mark.parametrize(
    ("reply", "names"),
    [("<think>\nhm", "never closes it"), ("hm\n</think>\n\nyes", "that it has not opened")],
    ids=["endless", "closed-twice"],
)
def test_a_broken_thought_behind_a_prompt_without_one_is_refused(template, reply, names):
    renderer = renderer_of("none", template)
    with refuses("E_THOUGHT_IN_REPLY", names=names):
        rendered(template, "A", reply)
    with refuses("E_THOUGHT_IN_REPLY", names=names):
        renderer.encode_reply(reply, renderer.render([Message("user", "A")]))


@pytest.mark.parametrize("reply", ["<think>\n<think>\nhm\n</think>yes", "So <think>hm</think> yes"], ids=["at", "late"])
def test_a_thought_that_is_opened_again_inside_of_the_prompts_is_refused(reply):
    with refuses("E_THOUGHT_TWICE"):
        rendered(PLAIN_OPEN, "A", reply)


def test_a_thought_in_other_tags_is_opened_once():
    assert rendered(OTHER_TAGS, "A", "◁think▷hm◁/think▷yes")[1] == "hm◁/think▷yes<|im_end|>"
    with refuses("E_THOUGHT_NOT_CLOSED"):
        rendered(OTHER_TAGS, "A", "yes")


def test_a_thought_that_ends_with_a_control_token_is_refused():
    template = TURN + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n[THINK]' }}{%- endif %}"
    reply = "[THINK]hm[/THINK]yes"
    assert rendered(template, "A", reply)[1] == "hm[/THINK]yes<|im_end|>"
    renderer = renderer_of("none", template, ["[THINK]", "[/THINK]"])
    with refuses("E_THOUGHT_TOKEN"):
        rendered(template, "A", reply, renderer=renderer)
