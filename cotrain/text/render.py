"""Messages → token ids, and sampled ids → text with a character offset for every token.

What a message says is untrusted: a solution may contain ``<|im_end|>``, and a verifier must then read these ten
characters, not the end of a turn. So the chat template is rendered with placeholders where the contents go, and only
its own text may become control tokens; contents are encoded with control tokens switched off. Added tokens that
control nothing (``<step>``) stay single tokens.

::

    template     <|im_start|>user\\n ⟨content 0⟩ <|im_end|>\\n<|im_start|>assistant\\n | ⟨reply⟩ | <|im_end|> …
    encoded      ───────────────── one stretch ────────────────────────────────── | alone |

Harmless contents are encoded in one stretch with the template around them, which gives the same ids as the
tokenizer's own ``apply_chat_template``. Replies are encoded alone, because a sampled reply begins on a token boundary.

Some templates look into contents: those of models that think drop the thoughts of earlier turns. What such a template
makes of a conversation is taken from its own rendering of it, with the control tokens in contents hidden from it.

Left out: descriptions of tools, images, and templates that mark turns with ordinary text (``[INST]`` of Llama 2): such
marks cannot be told from contents that imitate them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

from cotrain.core.errors import ConfigError, ModelError
from cotrain.text.messages import Message, attempts

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedTokenizerBase

_MARK = ("\ue000", "\ue001")  # around the number of a hidden control token
_PAD = "\t"  # set around a placeholder to see whether the template trims contents
_BROKEN = "\ufffd"  # what decoders write for bytes that are not (yet) UTF-8
_WINDOW = 64  # tokens that ``offsets`` decodes again and again while a text stays broken


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """Where the template puts the content of a message."""

    message: int  # index of the message
    reply: bool  # an assistant's content
    trim_left: bool  # the template strips the content's start
    trim_right: bool

    def trim(self, text: str) -> str:
        text = text.lstrip() if self.trim_left else text
        return text.rstrip() if self.trim_right else text


_Layout = list["str | _Slot"]  # the template's own text, with slots between
Piece = tuple[str, str]  # a stretch of a prompt, and whose it is: "template", "content" or "reply"


class Rendering(Protocol):
    """What the executor needs to let a policy speak: a ``Renderer``, or for programs a ``ByteRenderer``."""

    stop_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]: ...

    def pieces(self, messages: Sequence[Message]) -> list[Piece]: ...

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[int, ...]: ...

    def token_text(self, token: int) -> str: ...

    def encode(self, text: str) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def offsets(self, ids: Sequence[int]) -> list[int]: ...


class Renderer:
    """Renders and decodes for one tokenizer.

    ``stop_ids``: sorted ids that end a reply: the tokenizer's end of sequence, the template's end of turn, and those of
    ``generation_config``. Raises ModelError when there is none, or when the template cannot be rendered at all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None = None) -> None:
        self.tokenizer = tokenizer
        self._template: str | None = tokenizer.get_chat_template() if tokenizer.chat_template else None
        self._layouts: dict[tuple[tuple[str, ...], bool], _Layout | str] = {}
        self._widths: dict[int, int] | None = {} if _is_byte_level(tokenizer) else None
        self._control = set(tokenizer.all_special_ids)  # ids that carry no text
        self._control |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._reply_slot, self._closing = self._end_of_turn()
        stops = {self._closing[-1]} | _ids_of(tokenizer.eos_token_id)
        stops |= _ids_of(generation_config.eos_token_id if generation_config else None)
        self._control |= stops
        self._forbidden = set(self._control)  # ids that no content may be encoded to
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id not in stops:
            self._forbidden.discard(tokenizer.unk_token_id)
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))

    # -- messages → ids

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids [P] up to and including the opening of the assistant's next turn.

        A template that refuses roles gets plainer ones (``text/messages.py``). Raises ModelError when it refuses these
        too.
        """
        return self.encode_pieces(self.pieces(messages))

    def pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """The text of the same prompt, in stretches of one origin. Errors: as ``render``."""
        if not messages:
            raise ConfigError("a prompt needs at least one message")
        layout, messages = self._layout_for(messages, opening=True)
        found = [_filled(item, messages) for item in layout]
        if self._template is None or all(m.role != "assistant" for m in messages):
            return found
        text = self._templated(self._template, [(m.role, m.content) for m in messages], opening=True)
        return found if "".join(piece for piece, _ in found) == text else self._hidden(self._template, messages)

    def encode_pieces(self, pieces: Sequence[Piece]) -> tuple[int, ...]:
        """Their ids. Replies are encoded alone; no content becomes a control token."""
        ids: list[int] = []
        stretch: list[Piece] = []
        for text, origin in pieces:
            if origin != "reply":
                stretch.append((text, origin))
            else:
                ids += self._encode_stretch(stretch) + self._encode_alone(text)
                stretch = []
        return (*ids, *self._encode_stretch(stretch))

    def render_conversation(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """A whole conversation for supervised training: ids [T] and a mask [T].

        The mask is True on what the assistant would have sampled: the tokens of each assistant message and the stop
        token behind them. Before each assistant message the ids are exactly ``render`` of the messages before it.
        Raises ModelError for templates that rewrite earlier turns: such conversations are several rows.
        """
        if not messages or messages[-1].role != "assistant":
            raise ConfigError("a training conversation must end with an assistant message")
        ids: tuple[int, ...] = ()
        mask: list[bool] = []
        for k, message in enumerate(messages):
            if message.role != "assistant":
                continue
            prompt = self.render(messages[:k])
            if prompt[: len(ids)] != ids:
                raise ModelError(
                    f"the chat template changes earlier turns when message {k} is added, so this conversation cannot be"
                    " one row; train on one assistant message per row"
                )
            reply = self._encode_alone(self._reply_slot.trim(message.content))
            mask += [False] * (len(prompt) - len(ids)) + [True] * len(reply)
            mask += [False] * (len(self._closing) - 1) + [True]
            ids = (*prompt, *reply, *self._closing)
        return ids, tuple(mask)

    def encode(self, text: str) -> tuple[int, ...]:
        """A text on its own, as the beginning of a reply: no id of it is a control token."""
        return tuple(self._encode_alone(text))

    # -- ids → text

    def token_text(self, token: int) -> str:
        """The text of one token, control tokens included."""
        return self._text([token])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids without control tokens; bytes that are not UTF-8 become U+FFFD."""
        return self._text([i for i in ids if i not in self._control])

    def offsets(self, ids: Sequence[int]) -> list[int]:
        """For each sampled token [T] the end, in characters of ``decode(ids)``, of the text up to and with it.

        Equal to ``len(decode(ids[:t + 1]))`` wherever that prefix is complete UTF-8; inside of a character it is the
        number of characters that the prefix shares with the whole text. Never decreasing; the last is the text's
        length. Linear in T: decodes a sliding window, with the piece before it as context.
        """
        plain = [i for i in ids if i not in self._control]
        text, ends = self._text(plain), []
        context = settled = 0  # plain[context:settled] is decoded before each window plain[settled:t + 1]
        length = before = 0  # characters of the settled text; of the context
        for t, token in enumerate(plain):
            width = self._width(token)
            if settled == t and width is not None:
                length, before, context, settled = length + width, width, t, t + 1
                ends.append(length)
                continue
            piece = self._text(plain[context : t + 1])[before:]
            shared = _common_prefix(piece, text, length)
            ends.append(length + shared)
            if shared == len(piece) and not piece.endswith(_BROKEN):
                context, settled, length = settled, t + 1, length + shared
                before = len(self._text(plain[context:settled]))
            elif shared == len(piece) and t - settled >= _WINDOW and self._cuts(plain, t + 1, text, length + shared):
                context = settled = t + 1
                length, before = length + shared, 0
        if ends and ends[-1] != len(text):  # a decoder that looks further back than the window
            ends = [_common_prefix(self._text(plain[: t + 1]), text, 0) for t in range(len(plain))]
        running = iter(accumulate(ends, max))
        last, spread = 0, []
        for i in ids:
            last = last if i in self._control else next(running)
            spread.append(last)
        return spread

    # -- inside

    def _text(self, plain: list[int]) -> str:
        text = self.tokenizer.decode(plain, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _width(self, token: int) -> int | None:
        """Characters of a token whose text does not depend on its neighbours; None where it may."""
        if self._widths is None:
            return None
        if token not in self._widths:
            text = self._text([token])
            self._widths[token] = -1 if _BROKEN in text else len(text)
        width = self._widths[token]
        return None if width < 0 else width

    def _cuts(self, plain: list[int], t: int, text: str, length: int) -> bool:
        """Whether a run of broken bytes may be cut before token t: what follows decodes as it does in the text."""
        return text.startswith(self._text(plain[t : t + 8]).rstrip(_BROKEN), length)

    def _end_of_turn(self) -> tuple[_Slot, tuple[int, ...]]:
        """How an assistant turn ends: its slot, and the template's ids after it up to the stop token."""
        layout, _ = self._layout_for([Message("user", ""), Message("assistant", "")], opening=False)
        at, slot = next((i, s) for i, s in enumerate(layout) if isinstance(s, _Slot) and s.reply)
        after = self._tokenize("".join(s for s in layout[at + 1 :] if isinstance(s, str)))
        for i, token in enumerate(after):
            if token in self._control:
                return slot, tuple(after[: i + 1])
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end-of-sequence token and its chat template no end-of-turn token")
        return slot, (self.tokenizer.eos_token_id,)

    def _layout_for(self, messages: Sequence[Message], *, opening: bool) -> tuple[_Layout, Sequence[Message]]:
        knows_tools = self._template is not None and "tool" in self._template
        refused = ""
        for attempt in attempts(messages, knows_tools=knows_tools):
            layout = self._layout(tuple(m.role for m in attempt), opening)
            if not isinstance(layout, str):
                return layout, attempt
            refused = refused or layout
        raise ModelError(f"the chat template cannot render {[m.role for m in messages]}: {refused}")

    def _layout(self, roles: tuple[str, ...], opening: bool) -> _Layout | str:
        """The template's text around the contents of these roles, or why it cannot be rendered."""
        key = (roles, opening)
        if key not in self._layouts:
            if self._template is None:
                self._layouts[key] = self._plain_layout(roles)
            else:
                self._layouts[key] = self._template_layout(self._template, roles, opening)
        return self._layouts[key]

    def _plain_layout(self, roles: tuple[str, ...]) -> _Layout:
        """Without a template: contents with a blank line between; a reply follows its prompt directly, and ends with
        the end of the sequence where something follows it."""
        layout: _Layout = [self.tokenizer.bos_token or ""]
        for i, role in enumerate(roles):
            if i > 0 and role != "assistant":
                layout.append((self.tokenizer.eos_token or "" if roles[i - 1] == "assistant" else "") + "\n\n")
            layout.append(_Slot(message=i, reply=role == "assistant", trim_left=False, trim_right=False))
        return layout

    def _template_layout(self, template: str, roles: tuple[str, ...], opening: bool) -> _Layout | str:
        marks = [f"content{i}placeholder" for i in range(len(roles))]
        turns = [(role, _PAD + mark + _PAD) for role, mark in zip(roles, marks, strict=True)]
        try:
            text = self._templated(template, turns, opening)
        except Exception as error:  # noqa: BLE001  a template is a program of a stranger and may raise anything
            return (str(error).strip() or type(error).__name__).splitlines()[0]
        layout: _Layout = []
        for i, mark in enumerate(marks):
            scaffold, found, text = text.partition(mark)
            if not found:
                return f"it leaves out or reorders the message of role {roles[i]!r}"
            left, right = not scaffold.endswith(_PAD), not text.startswith(_PAD)
            scaffold = scaffold if left else scaffold.removesuffix(_PAD)
            text = text if right else text.removeprefix(_PAD)
            slot = _Slot(message=i, reply=roles[i] == "assistant", trim_left=left, trim_right=right)
            layout += [scaffold, slot]
        return [*layout, text]

    def _templated(self, template: str, turns: Sequence[tuple[str, str]], opening: bool) -> str:
        """The tokenizer's own rendering of (role, content); models that can think are asked not to."""
        options: dict[str, Any] = {"enable_thinking": False} if "enable_thinking" in template else {}
        conversation = [{"role": role, "content": content} for role, content in turns]
        text = self.tokenizer.apply_chat_template(
            conversation, tokenize=False, add_generation_prompt=opening, **options
        )
        assert isinstance(text, str)
        return text

    def _hidden(self, template: str, messages: Sequence[Message]) -> list[Piece]:
        """The pieces of a prompt whose template looks into contents. These show it no control token: a mark stands for
        each."""
        shown = sorted({_MARK[0], *(self.token_text(i) for i in self._forbidden)} - {""}, key=len, reverse=True)
        control = re.compile("|".join(map(re.escape, shown)))
        hidden: list[str] = []

        def mark(found: re.Match[str]) -> str:
            hidden.append(found.group())
            return f"{len(hidden) - 1}".join(_MARK)

        text = self._templated(template, [(m.role, control.sub(mark, m.content)) for m in messages], opening=True)
        parts = re.split(f"{_MARK[0]}(\\d+){_MARK[1]}", text)
        return [(hidden[int(part)], "content") if i % 2 else (part, "template") for i, part in enumerate(parts)]

    def _encode_stretch(self, stretch: Sequence[Piece]) -> list[int]:
        """Encode template and contents together if that makes no control token that the template did not write."""
        own = [
            i for text, origin in stretch if origin == "template" for i in self._tokenize(text) if i in self._forbidden
        ]
        together = self._tokenize("".join(text for text, _ in stretch))
        if [i for i in together if i in self._forbidden] == own:
            return together
        parts = (self._tokenize(text) if origin == "template" else self._encode_alone(text) for text, origin in stretch)
        return [i for part in parts for i in part]

    def _encode_alone(self, content: str) -> list[int]:
        """Encode untrusted text on its own; no id of it is a control token."""
        ids = self._tokenize(content, split_special_tokens=True)
        if self._forbidden.isdisjoint(ids):
            return ids
        if len(content) < 2:
            raise ModelError(f"the tokenizer has no ordinary token for the character {content!r}")
        half = len(content) // 2  # the tokenizer takes a control token's text for it: cut until none is left whole
        return self._encode_alone(content[:half]) + self._encode_alone(content[half:])

    def _tokenize(self, text: str, split_special_tokens: bool = False) -> list[int]:
        if not text:
            return []
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=split_special_tokens).input_ids)


def _filled(item: str | _Slot, messages: Sequence[Message]) -> Piece:
    """A piece of a layout with the content of its message."""
    if isinstance(item, str):
        return item, "template"
    return item.trim(messages[item.message].content), "reply" if item.reply else "content"


def _common_prefix(piece: str, text: str, start: int) -> int:
    """Number of leading characters of ``piece`` that stand in ``text`` at ``start``."""
    if text.startswith(piece, start):
        return len(piece)
    return next(i for i, char in enumerate(piece) if start + i >= len(text) or text[start + i] != char)


def _ids_of(eos: int | list[int] | None) -> set[int]:
    return set() if eos is None else {eos} if isinstance(eos, int) else set(eos)


def _is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a text is the tokens' bytes in a row, read as UTF-8 (GPT-2, Llama 3, Qwen, the embedded base)."""
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    return isinstance(tokenizer, PreTrainedTokenizerFast) and isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)
