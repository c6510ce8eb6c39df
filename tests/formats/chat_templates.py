"""Chat templates that write what those of well-known models write, reduced to messages of text; one tokenizer for
all."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cotrain.prompts.render import Renderer

QWEN_2_5 = (  # a system message of its own; neighbouring tool messages share one turn of the user
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are kind.<|im_end|>\n' }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}"
    "{%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}"
    "{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
QWEN_3 = (  # thoughts stand in the answers since the user last spoke, and nowhere else
    "{%- set last = namespace(user=0) %}"
    "{%- for m in messages %}{%- if m.role == 'user' %}{%- set last.user = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' %}{%- set thought = '' %}{%- set said = m.content %}"
    "{%- if '</think>' in said %}{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{%- set said = said.split('</think>')[-1].lstrip('\n') %}{%- endif %}{{- '<|im_start|>assistant\n' }}"
    "{%- if loop.index0 > last.user and (loop.last or thought) %}"
    "{{- '<think>\n' + thought + '\n</think>\n\n' }}{%- endif %}"
    "{{- said + '<|im_end|>\n' }}{%- elif m.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
QWEN_3_THINKING = (
    QWEN_3[: QWEN_3.index("{%- if enable_thinking")] + "{{- '<think>\n' }}{%- endif %}"
)  # it always thinks
LLAMA_3 = (  # trims
    "{{- bos_token }}{%- for m in messages %}{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"
    "{{- m.content | trim + '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
LLAMA_3_1 = LLAMA_3.replace(  # a tool speaks as ipython
    "'<|start_header_id|>' + m.role", "'<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role)"
)
GEMMA = (  # no system, strictly in turns, trims
    "{{- bos_token }}{%- if messages[0].role == 'system' %}{{- raise_exception('no system role') }}{%- endif %}"
    "{%- for m in messages %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- endif %}"
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim }}"
    "{{- '<end_of_turn>\n' }}{%- endfor %}{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"
)
MISTRAL = (  # the system message stands before the last message of the user; a tool message needs an id
    "{{- bos_token }}{%- set system = '' %}{%- if messages[0].role == 'system' %}"
    "{%- set system = messages[0].content + '\n\n' %}{%- set messages = messages[1:] %}{%- endif %}"
    "{%- for m in messages %}{%- if m.role == 'tool' %}{%- if m.tool_call_id is undefined %}"
    "{{- raise_exception('a tool message needs the id of its call') }}{%- endif %}"
    "{{- '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}{%- elif (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- elif m.role == 'user' %}"
    "{{- '[INST]' + (system if loop.last else '') + m.content + '[/INST]' }}"
    "{%- else %}{{- m.content + eos_token }}{%- endif %}{%- endfor %}"
)
SMOLLM_2 = (  # whatever the role; made without tools in mind
    "{% for m in messages %}"
    "{% if loop.first and m.role != 'system' %}<|im_start|>system\nBe helpful.<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DESCRIBED = (  # in front of the conversation: the functions that may be called
    "{%- if tools %}{{- '<|im_start|>system\nTools:' }}{%- for t in tools %}{{- '\n' + (t | tojson) }}{%- endfor %}"
    "{{- '<|im_end|>\n' }}{%- endif %}"
)
QWEN_2_5_TOOLS = DESCRIBED + QWEN_2_5.replace(  # as it is with tools: calls in tags, a line each
    "{%- else %}{{- '<|im_start|>' + m.role",
    "{%- elif m.tool_calls %}{{- '<|im_start|>assistant' }}{%- if m.content %}{{- '\n' + m.content }}{%- endif %}"
    '{%- for c in m.tool_calls %}{{- \'\n<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{- c.function.arguments | tojson }}{{- '}\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role",
)
LLAMA_3_1_TOOLS = DESCRIBED + LLAMA_3_1.replace(  # one call, and nothing beside it
    "{{- m.content | trim + '<|eot_id|>' }}",
    "{%- if m.tool_calls %}{%- if m.tool_calls | length > 1 %}{{- raise_exception('one call at a time') }}{%- endif %}"
    '{{- \'{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{- (m.tool_calls[0].function.arguments | tojson) + '}<|eot_id|>' }}"
    "{%- else %}{{- m.content | trim + '<|eot_id|>' }}{%- endif %}",
)
TEMPLATES = {
    "qwen-2.5": QWEN_2_5,
    "qwen-3": QWEN_3,
    "qwen-3-thinking": QWEN_3_THINKING,
    "llama-3": LLAMA_3,
    "llama-3.1": LLAMA_3_1,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "smollm-2": SMOLLM_2,
    "none": None,
}
CONTROL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CONTROL += ["<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
ENDS = {"llama-3": "<|eot_id|>", "llama-3.1": "<|eot_id|>", "gemma": "<end_of_turn>", "mistral": "</s>", "none": "</s>"}


def renderer_of(name: str, template: str | None = None, control: Sequence[str] = ()) -> Renderer:
    """By bytes, with the control tokens of all of them. ``template``: another one in its place; ``control``: further
    control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {char: i for i, char in enumerate(alphabet)} | {"ab": 256, "Ġa": 257}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "b"), ("Ġ", "a")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in [*CONTROL, *control]])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATES[name] if template is None else template
    return Renderer(tokenizer)


def end_of(name: str, renderer: Renderer) -> int:
    """The token that ends a turn of the assistant."""
    token = renderer.tokenizer.convert_tokens_to_ids(ENDS.get(name, "<|im_end|>"))
    assert token in renderer.stop_ids
    return token
