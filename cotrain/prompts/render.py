"""Messages → token ids, and sampled ids → text with a character offset for every token.

What a message says is untrusted: a solution may contain ``<|im_end|>``, and a verifier must then read these ten
characters, not the end of a turn. So the chat template is rendered with placeholders where the contents go, and only
its own text may become control tokens; contents are encoded with control tokens switched off. Added tokens that
control nothing (``<step>``) stay single tokens.

::

    template     <|im_start|>user\\n ⟨content 0⟩ <|im_end|>\\n<|im_start|>assistant\\n | ⟨reply⟩ | <|im_end|> …
    encoded      ───────────────── one stretch ────────────────────────────────── | alone |

Harmless contents are encoded in one stretch with the template around them, which gives the same ids as the
tokenizer's own ``apply_chat_template``. Replies are encoded alone, because a sampled reply begins on a token boundary;
tokenizers that begin a text in another way than they go on with one (SentencePiece puts a space before its first word)
are given the end of what is before, and the rest of the ids is taken.

Some templates look into contents: they drop the thoughts of earlier turns, take out a flag, escape, repeat. The text of
every prompt is the template's own rendering; where the placeholders do not give it, it is rendered with the beginnings
of control tokens in contents hidden from it, or as it is where that makes no control token more.

A reply that is given, and learned, goes on where the prompt ends, as a sampled one does. So what a prompt has begun is
taken off the reply: a thought, where the prompt ends with ``<think>``. What the template writes between the two, such
as a blank, belongs to the reply. A reply that would leave the thought open, open it twice or close it twice is refused.

Left out: images, and templates that mark turns with ordinary text (``[INST]`` of Llama 2): such
marks cannot be distinguished from contents that imitate them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from cotrain.core.errors import ConfigError, ModelError
from cotrain.prompts.chat_template import ChatTemplate, Message, plainer_versions
from cotrain.prompts.decoding import Decoder, Piece, TokenSequence
from cotrain.prompts.thoughts import (
    TOKENS,
    begins_with_thought,
    broken_thought_in,
    empty_thought_at_end,
    open_thought_of,
)

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

_MARK = ("\ue000", "\ue001")  # around the number of a hidden control token
_PAD = "\t"  # set around a placeholder to see whether the template trims contents
_MARKED = re.compile(f"{_MARK[0]}(\\d+){_MARK[1]}")
PLACEHOLDER = "content{}placeholder"
_BEFORE = 256  # characters that are encoded in front of a text
_ANCHORS = ("\n", ".", "a")  # and what is where its tokens would grow together with them
_EXCHANGE = (Message("user", ""), Message("assistant", ""))  # the shortest conversation with a reply


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slot:
    """Where the template puts the content of a message."""

    message: int  # index of the message
    reply: bool  # an assistant's content
    trim_left: bool  # the template strips the content's start
    trim_right: bool

    def trim_content(self, text: str) -> str:
        text = text.lstrip() if self.trim_left else text
        return text.rstrip() if self.trim_right else text


_Layout = list["str | _Slot"]  # the template's own text, with slots between


class Rendering(Protocol):
    """The interface by which rollouts render prompts: a ``Renderer``, or for programs a ``ByteRenderer``."""

    stop_ids: tuple[int, ...]
    vocabulary: int  # token ids are below

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]: ...

    def prompt_pieces(self, messages: Sequence[Message]) -> list[Piece]: ...

    def encode_pieces(self, pieces: Sequence[Piece], before: str = "") -> tuple[int, ...]: ...

    def token_text(self, token: int) -> str: ...

    def encode(self, text: str, before: Sequence[int] = ()) -> tuple[int, ...]: ...

    def encode_reply(self, text: str, prompt: Sequence[int]) -> tuple[int, ...]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def offsets(self, ids: Sequence[int]) -> list[int]: ...


CALL_TOKENS = ("<|python_start|>", "<|python_end|>", "<|output_start|>", "<|output_end|>")  # tokens of nanochat


class Renderer:
    """Renders and decodes for one tokenizer.

    ``call_ids``: those of ``CALL_TOKENS``, where a tokenizer has all four; they are control tokens that are shown.

    ``stop_ids``: sorted ids that end a reply: the tokenizer's end of sequence, the template's end of turn, and those of
    ``generation_config``. Raises ModelError when there is none, or when the template cannot be rendered at all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None = None) -> None:
        self.tokenizer = tokenizer
        try:
            self._prepare_tokens(tokenizer, generation_config)
        except ModelError as error:
            where = f"model {tokenizer.name_or_path!r}: " if tokenizer.name_or_path else ""
            raise ModelError(f"{where}{error}", code=error.code) from error

    def _prepare_tokens(self, tokenizer: PreTrainedTokenizerBase, generation_config: GenerationConfig | None) -> None:
        self._template = ChatTemplate.from_tokenizer(tokenizer)
        self._layouts: dict[tuple[tuple[str, ...], bool], _Layout | str] = {}
        self._control = set(tokenizer.all_special_ids)  # ids that carry no text
        self._control |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self._decoder = Decoder(tokenizer, self._control)
        self._spaced = self._tokenize("\na")[len(self._tokenize("\n")) :] != self._tokenize("a")
        self._repeats = False  # the template shows a reply again before it ends the turn
        self._ends_turn = True  # the template writes what ends a reply
        self._reply_slot, self._closing = self._end_of_turn()
        self._opening, self._lead = self._texts_around_prompt_end()
        stops = {self._closing[-1]} | _stop_ids_of(tokenizer.eos_token_id)
        stops |= _stop_ids_of(generation_config.eos_token_id if generation_config else None)
        self._control |= stops  # the decoder's too
        self._forbidden = set(self._control)  # ids that no content may be encoded to
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id not in stops:
            self._forbidden.discard(tokenizer.unk_token_id)
        self.stop_ids: tuple[int, ...] = tuple(sorted(stops))
        vocabulary = tokenizer.get_vocab()
        self.call_ids: tuple[int, ...] = tuple(vocabulary[token] for token in CALL_TOKENS if token in vocabulary)
        if len(self.call_ids) != len(CALL_TOKENS) or not stops.isdisjoint(self.call_ids):
            self.call_ids = ()
        self._decoder = Decoder(tokenizer, self._control - set(self.call_ids) - self._thought_ids(stops))
        names = {self.token_text(i) for i in self._control}
        self._control_names = tuple(sorted(name for name in names if name.strip()))
        self.vocabulary = max(tokenizer.get_vocab().values(), default=-1) + 1  # ids are below

    def _thought_ids(self, stops: set[int]) -> set[int]:
        """Control tokens that open or close a thought: they are shown, or a thought would run into the answer."""
        return {i for i in self._control - stops if self.token_text(i) in TOKENS}

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max((len(token.encode("utf-8", "replace")) for token in self.tokenizer.get_vocab()), default=1)

    # -- messages → ids

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt ids [P] up to and including the opening of the assistant's next turn.

        A template that refuses roles gets plainer ones (``prompts/chat_template.py``). Raises ModelError when it
        refuses these too.
        """
        return self.encode_pieces(self.prompt_pieces(messages))

    def prompt_pieces(self, messages: Sequence[Message]) -> list[Piece]:
        """The text of the same prompt, in stretches of one origin. Errors: as ``render``."""
        if not messages:
            raise ConfigError("a prompt needs at least one message", code="E_PROMPT_EMPTY")
        return self._pieces_of(messages, opening=True)

    def encode_pieces(self, pieces: Sequence[Piece], before: str = "") -> tuple[int, ...]:
        """Their ids, behind the text ``before``. Replies are encoded alone; no content becomes a control token."""
        ids: list[int] = []
        stretch: list[Piece] = []
        for text, origin in pieces:
            if origin != "reply":
                stretch.append((text, origin))
                continue
            ids += self._encode_stretch(stretch, before)
            before += _join_pieces(stretch)
            ids += self._encode_alone(text, before)
            before, stretch = before + text, []
        return (*ids, *self._encode_stretch(stretch, before))

    def render_conversation(self, messages: Sequence[Message]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """A whole conversation for supervised training: ids [T] and a mask [T].

        The mask is True on what the assistant would have sampled: the tokens of each assistant message and the stop
        token behind them. Before each assistant message the ids are exactly ``render`` of the messages before it. One
        exception: a reply with a thought, behind a prompt that switches thoughts off by an empty one, takes the empty
        one's place. A template without an end of turn has the end of the sequence behind the last reply; behind an
        earlier one what begins the next turn is learned, if it is a stop token of the model.
        Raises ModelError for templates that rewrite earlier turns, since such conversations are several rows, and for a
        reply that cannot follow its prompt.
        """
        if not messages or messages[-1].role != "assistant":
            raise ConfigError("a training conversation must end with an assistant message", code="E_CONVERSATION_END")
        if self._repeats:
            raise ModelError(
                "the chat template shows a reply again before it ends the turn; give a model without that",
                code="E_CHAT_TEMPLATE_REPEATS",
            )
        row = TokenSequence(ids=(), text="")
        mask: list[bool] = []
        for k, message in enumerate(messages):
            if message.role != "assistant":
                continue
            prompt, reply = self._split_reply(messages[: k + 1])
            asked = self._ids_behind(row, prompt, k)
            mask += [False] * len(asked)
            if row.ids and not self._ends_turn and asked[:1] and asked[0] in self.stop_ids:
                mask[len(row.ids)] = True  # the next turn begins with what ends this reply
            before = _join_pieces(prompt)
            learned = self._encode_given(reply, before)
            mask += [True] * len(learned)
            text = before + _join_pieces(reply)
            closing: tuple[int, ...] = ()
            if self._ends_turn or k == len(messages) - 1:
                closing = self._closing
                text += self._decoder.raw_text(list(closing))
                mask += [False] * (len(closing) - 1) + [True]
            row = TokenSequence(ids=(*row.ids, *asked, *learned, *closing), text=text)
        return row.ids, tuple(mask)

    def encode_reply(self, text: str, prompt: Sequence[int]) -> tuple[int, ...]:
        """A given reply behind the ids of its prompt, with the end of its turn: what a model would have to sample to
        say it. Raises ModelError for a reply that cannot follow this prompt."""
        before = self._decoder.raw_text(list(prompt[-_BEFORE:]))
        return (*self._encode_given(self._reply_behind(text, before), before), *self._closing)

    def check_reply(self, text: str, messages: Sequence[Message]) -> None:
        """Raise ModelError for a reply that cannot follow the prompt of these messages."""
        self._reply_behind(text, _join_pieces(self.prompt_pieces(messages)))

    def _reply_behind(self, text: str, before: str) -> list[Piece]:
        """A given reply as it goes on behind the text ``before``. Raises ModelError."""
        reply = self._reply_slot.trim_content(text)
        _check_thought(reply, before)
        if empty_thought_at_end(before) and begins_with_thought(reply):
            raise ModelError(
                "the prompt switches thoughts off with an empty one, and the reply begins with another; take the "
                "thoughts out of the replies",
                code="E_THOUGHT_IN_REPLY",
            )
        return self._continue_prompt(reply, before)

    def encode(self, text: str, before: Sequence[int] = ()) -> tuple[int, ...]:
        """A text on its own, or as the beginning of a reply behind the ids ``before``: no id of it is a control
        token."""
        return tuple(self._encode_alone(text, self._decoder.raw_text(list(before[-_BEFORE:])) if before else ""))

    @property
    def asks_time(self) -> bool:
        """Whether the template may show the time."""
        return self._template is not None and "strftime_now" in self._template.source

    @property
    def ends_prompts_with_thoughts(self) -> bool:
        """Whether a prompt ends with a thought, which is open or empty: then not every reply can follow it."""
        return open_thought_of(self._opening) is not None or self.switches_thoughts_off

    @property
    def switches_thoughts_off(self) -> bool:
        """Whether a prompt ends with an empty thought."""
        return bool(empty_thought_at_end(self._opening))

    def control_text_at_start(self, text: str) -> str:
        """The control token that a text begins to name; "" where there is none."""
        begun = text.lstrip()
        return max((name for name in self._control_names if begun.startswith(name)), key=len, default="")

    def names_control(self, text: str) -> bool:
        """Whether a text names a control token anywhere."""
        return any(name in text for name in self._control_names)

    def set_time(self, moment: datetime) -> None:
        """Set the time for templates that ask for it; before, it is the time of rendering."""
        if self._template is not None:
            self._template.now = moment
            self._layouts.clear()

    # -- ids → text

    def token_text(self, token: int) -> str:
        """The text of one token, control tokens included."""
        return self._decoder.raw_text([token])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids without control tokens other than tags of thoughts and calls; bytes that are not
        UTF-8 become U+FFFD."""
        return self._decoder.decode(ids)

    def offsets(self, ids: Sequence[int]) -> list[int]:
        """For each sampled token [T] the end of its text; see ``Decoder.offsets``."""
        return self._decoder.offsets(ids)

    # -- inside

    def _end_of_turn(self) -> tuple[_Slot, tuple[int, ...]]:
        """How an assistant turn ends: its slot, and the template's ids after it up to the stop token."""
        layout, _ = self._layout_for(_EXCHANGE, opening=False)
        at, slot = _reply_slot_in(layout)
        closing = "".join(s for s in layout[at + 1 :] if isinstance(s, str))
        after = self._tokenize(closing, "a")
        for i, token in enumerate(after):
            if token in self._control:
                own = self._decoder.raw_text(after[:i])
                self._repeats = any(PLACEHOLDER.format(k) in own for k in range(2))
                return slot, (token,) if self._repeats else tuple(after[: i + 1])
        if self.tokenizer.eos_token_id is None:
            raise ModelError(
                "the tokenizer has no end-of-sequence token and its chat template no end-of-turn token",
                code="E_NO_END_TOKEN",
            )
        self._ends_turn = self._template is None  # without one, ``_plain_layout`` writes it
        return slot, (self.tokenizer.eos_token_id,)

    def _texts_around_prompt_end(self) -> tuple[str, str]:
        """How a prompt ends behind the user's words, and what the template writes between that and a reply: mostly
        nothing, sometimes a blank, the name of a channel, or the end of a thought that the prompt has begun."""
        try:
            asked, messages = self._layout_for(_EXCHANGE[:1], opening=True)
        except ModelError:  # told when a prompt is rendered
            return "", ""
        prompt = _join_pieces([_fill_slot(item, messages) for item in asked])
        whole, _ = self._layout_for(_EXCHANGE, opening=False)
        at, _ = _reply_slot_in(whole)
        before = _join_pieces([_fill_slot(item, _EXCHANGE) for item in whole[:at]])
        opening = asked[-1] if isinstance(asked[-1], str) else ""
        return opening, before.removeprefix(prompt) if before.startswith(prompt) else ""

    def _split_reply(self, messages: Sequence[Message]) -> tuple[list[Piece], list[Piece]]:
        """The prompt of the last message, and what is learned behind it. The reply is written as the template writes
        it in a whole conversation, where that goes on from the prompt and leaves out no word. Raises ModelError."""
        prompt = self.prompt_pieces(messages[:-1])
        reply = self._reply_slot.trim_content(messages[-1].content)
        before = _join_pieces(prompt)
        empty = empty_thought_at_end(before)
        _check_thought(reply, before)
        if empty and begins_with_thought(reply):
            before = before[: len(before) - len(empty)]
            prompt = _cut_pieces(prompt, 0, len(before))
        continued = self._continue_prompt(reply, before)
        own = self._own_reply(messages, before)
        if own is None or _join_pieces(own) == _join_pieces(continued):
            return prompt, continued
        same_words = _without_blanks(own) == _without_blanks(continued)
        return prompt, own if same_words else continued

    def _continue_prompt(self, reply: str, before: str) -> list[Piece]:
        """A reply as it goes on behind the text ``before``. Raises ModelError where it leaves a thought open."""
        lead = self._lead if before.endswith(self._opening) else ""
        thought = open_thought_of(before)
        if thought is None:
            return [(lead, "template"), (reply, "content")] if lead else [(reply, "reply")]
        begun = reply.lstrip()
        if begun.startswith(thought.opens):
            reply = begun.removeprefix(thought.opens).removeprefix(thought.blank)
        if thought.opens in reply.partition(thought.closes)[0]:
            raise ModelError(
                f"prompts of this model end with {thought.opens!r}, and {reply[:40]!r} opens a thought again inside of "
                "that one; leave such rows out, or mend their thoughts",
                code="E_THOUGHT_TWICE",
            )
        if thought.closes in reply and thought.closes in self._control_names:
            raise ModelError(
                f"{thought.closes!r} is a control token of the model, which no reply that is given may hold, so "
                "that its thoughts cannot be learned; take a model whose tags of thoughts are ordinary tokens",
                code="E_THOUGHT_TOKEN",
            )
        if thought.closes in reply:
            return [(reply, "reply")]
        if thought.closes in lead and not begun.startswith(thought.opens):
            return [(lead, "template"), (reply, "content")]
        raise ModelError(
            f"prompts of this model end with {thought.opens!r}, and {reply[:40]!r} never closes that thought; expected "
            f"{thought.closes!r} in the reply; bring replies with their thoughts, or take a model that does not think",
            code="E_THOUGHT_NOT_CLOSED",
        )

    def _own_reply(self, messages: Sequence[Message], before: str) -> list[Piece] | None:
        """Return the pieces that the template renders behind ``before`` and in front of the end of the turn, for the
        whole conversation; None where its text does not begin with ``before``, or cannot be rendered."""
        if self._template is None:
            return None
        try:
            layout, plain = self._layout_for(messages, opening=False)
            pieces = self._pieces_of(messages, opening=False)
        except ModelError:
            return None
        text = _join_pieces(pieces)
        tail = layout[-1] if isinstance(layout[-1], str) else ""
        if plain[-1].role != "assistant" or not text.startswith(before) or not text.endswith(tail):
            return None
        kept = _cut_pieces(pieces, len(before), len(text) - len(tail))
        return [(part, "content" if origin == "reply" else origin) for part, origin in kept]

    def _encode_given(self, reply: Sequence[Piece], before: str) -> tuple[int, ...]:
        """The ids of a given reply; what the template writes in front of it is encoded together with it."""
        if len(reply) == 1 and reply[0][1] == "reply":
            return tuple(self._encode_alone(reply[0][0], before))
        return tuple(self._encode_stretch(reply, before))

    def _ids_behind(self, row: TokenSequence, prompt: Sequence[Piece], number: int) -> tuple[int, ...]:
        """Return the ids that the prompt of message ``number`` adds to the row so far. Raises ModelError where the
        template has written something else before."""
        whole = self.encode_pieces(prompt)
        if whole[: len(row.ids)] == row.ids:
            return whole[len(row.ids) :]
        new = row.new_ids(prompt, self)
        if new is None:
            raise ModelError(
                f"the chat template changes earlier turns when message {number} is added, so this conversation cannot "
                "be one row; train on one assistant message per row",
                code="E_CHAT_TEMPLATE_EDITS_TURNS",
            )
        return new

    def _pieces_of(self, messages: Sequence[Message], *, opening: bool) -> list[Piece]:
        """The template's rendering of messages in stretches of one origin, with or without the opening of a turn."""
        layout, messages = self._layout_for(messages, opening=opening)
        filled = [_fill_slot(item, messages) for item in layout]
        if self._template is None:
            return filled
        text = self._render_template(self._template, messages, opening)
        if _join_pieces(filled) == text:
            return filled
        return self._find_pieces(self._template, messages, layout, text, opening)

    def _layout_for(self, messages: Sequence[Message], *, opening: bool) -> tuple[_Layout, Sequence[Message]]:
        knows_tools = self._template is not None and "tool" in self._template.source
        refused = ""
        for attempt in plainer_versions(messages, knows_tools=knows_tools):
            layout = self._role_layout(tuple(m.role for m in attempt), opening)
            if not isinstance(layout, str):
                return layout, attempt
            refused = refused or layout
        raise ModelError(
            f"the chat template cannot render {[m.role for m in messages]}: {refused}", code="E_CHAT_TEMPLATE_REFUSES"
        )

    def _role_layout(self, roles: tuple[str, ...], opening: bool) -> _Layout | str:
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

    def _template_layout(self, template: ChatTemplate, roles: tuple[str, ...], opening: bool) -> _Layout | str:
        marks = [PLACEHOLDER.format(i) for i in range(len(roles))]
        turns = [(role, _PAD + mark + _PAD) for role, mark in zip(roles, marks, strict=True)]
        try:
            text = template.render(turns, opening=opening)
        except ModelError as error:
            return str(error)
        layout: _Layout = []
        for i, mark in enumerate(marks):
            scaffold, separator, text = text.partition(mark)
            if not separator:
                return f"it leaves out, changes or reorders the message of role {roles[i]!r}"
            left, right = not scaffold.endswith(_PAD), not text.startswith(_PAD)
            scaffold = scaffold if left else scaffold.removesuffix(_PAD)
            text = text if right else text.removeprefix(_PAD)
            slot = _Slot(message=i, reply=roles[i] == "assistant", trim_left=left, trim_right=right)
            layout += [scaffold, slot]
        return [*layout, text]

    def _render_template(self, template: ChatTemplate, messages: Sequence[Message], opening: bool) -> str:
        """The template's own rendering of messages. Raises ModelError."""
        try:
            return template.render([(m.role, m.content) for m in messages], opening=opening)
        except ModelError as error:
            raise ModelError(
                f"the chat template cannot render {[m.role for m in messages]}: {error}", code="E_CHAT_TEMPLATE_REFUSES"
            ) from error

    def _find_pieces(
        self, template: ChatTemplate, messages: Sequence[Message], layout: _Layout, text: str, opening: bool
    ) -> list[Piece]:
        """The pieces of a rendering whose template looks into contents, which is ``text``. Where contents lie in it
        nobody says. So it is rendered again with the beginnings of control tokens in contents hidden, and with these
        tokens as a whole; where neither gives the same text, contents are looked for in it. Raises ModelError where
        control tokens are left that the template does not write by itself."""
        control_texts = sorted({_MARK[0], *(self.token_text(i) for i in self._forbidden)} - {""}, key=len, reverse=True)
        marks = [sign for sign in sorted(set("".join(control_texts))) if not sign.isalnum()]
        signs = re.compile("|".join(map(re.escape, marks)))
        unsigned = [Message(m.role, signs.sub("", m.content)) for m in messages]
        bare = self._render_template(template, unsigned, opening)
        slots: list[Piece] = [(item, "template") for item in layout if isinstance(item, str)]
        allowed_controls = [self._control_ids(slots), self._control_ids([(bare, "template")])]
        control_pattern = re.compile("|".join(map(re.escape, control_texts)))
        risky = sorted({m.content for m in messages if control_pattern.search(m.content)}, key=len, reverse=True)
        parts = re.split("(" + "|".join(map(re.escape, risky)) + ")", text) if risky else [text]
        first_signs = re.compile("|".join(re.escape(token[0]) for token in control_texts))
        for pieces in (
            self._hide_controls(template, messages, first_signs, opening),
            self._hide_controls(template, messages, control_pattern, opening),
            [(part, "content" if i % 2 else "template") for i, part in enumerate(parts)],
            [(text, "template")],
        ):
            if _join_pieces(pieces) == text and self._control_ids(pieces) in allowed_controls:
                return pieces
        raise ModelError(
            f"the chat template makes control tokens of what a message of {[m.role for m in messages]} says; give the "
            "model another one",
            code="E_CHAT_TEMPLATE_CONTROL_TOKENS",
        )

    def _hide_controls(
        self, template: ChatTemplate, messages: Sequence[Message], pattern: re.Pattern[str], opening: bool
    ) -> list[Piece]:
        """The pieces of a rendering with a mark in the place of each string in contents that has the pattern."""
        hidden: list[str] = []

        def mark(match: re.Match[str]) -> str:
            hidden.append(match.group())
            return f"{len(hidden) - 1}".join(_MARK)

        marked = [Message(m.role, pattern.sub(mark, m.content)) for m in messages]
        parts = _MARKED.split(self._render_template(template, marked, opening))
        return [(hidden[int(part)], "content") if i % 2 else (part, "template") for i, part in enumerate(parts)]

    def _control_ids(self, pieces: Sequence[Piece]) -> list[int]:
        """The control tokens that the template writes."""
        ids = (i for text, origin in pieces if origin == "template" for i in self._tokenize(text))
        return [i for i in ids if i in self._forbidden]

    def _encode_stretch(self, stretch: Sequence[Piece], before: str) -> list[int]:
        """Encode template and contents together if that makes no control token that the template did not write."""
        together = self._tokenize(_join_pieces(stretch), before)
        if [i for i in together if i in self._forbidden] == self._control_ids(stretch):
            return together
        ids: list[int] = []
        for text, origin in stretch:
            ids += self._tokenize(text, before) if origin == "template" else self._encode_alone(text, before)
            before += text
        return ids

    def _encode_alone(self, content: str, before: str = "") -> list[int]:
        """Encode untrusted text on its own; no id of it is a control token."""
        if self._spaced and self._control.isdisjoint(ids := self._tokenize(content, before)):
            return ids
        ids = self._tokenize(content, before, split_special_tokens=True)
        if self._forbidden.isdisjoint(ids):
            return ids
        if len(content) < 2:
            raise ModelError(
                f"the tokenizer has no ordinary token for the character {content!r}", code="E_NO_TOKEN_FOR_CHARACTER"
            )
        half = len(content) // 2  # the tokenizer takes a control token's text for it: cut until none is left whole
        first_half = content[:half]
        return self._encode_alone(first_half, before) + self._encode_alone(content[half:], before + first_half)

    def _tokenize(self, text: str, before: str = "", split_special_tokens: bool = False) -> list[int]:
        """The ids of a text as it is behind another one."""

        def ids_of(whole: str) -> list[int]:
            how = {"add_special_tokens": False, "split_special_tokens": split_special_tokens}
            return list(self.tokenizer(whole, **how).input_ids)

        for anchor in (before[-_BEFORE:], *_ANCHORS) if text and before and self._spaced else ():
            first, whole = ids_of(anchor), ids_of(anchor + text)
            if whole[: len(first)] == first:
                return whole[len(first) :]
        return ids_of(text) if text else []


def _join_pieces(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)


def _check_thought(reply: str, before: str) -> None:
    """Raise ModelError for a reply behind a prompt that has ended its thought, where the reply never ends its own, or
    ends one again."""
    broken = broken_thought_in(reply) if empty_thought_at_end(before) else ""
    if broken:
        raise ModelError(
            f"prompts of this model switch thoughts off, and the reply {reply[:40]!r} {broken}; bring replies with "
            "whole thoughts, or without any",
            code="E_THOUGHT_IN_REPLY",
        )


def _without_blanks(pieces: Sequence[Piece]) -> str:
    return "".join(_join_pieces(pieces).split())


def _cut_pieces(pieces: Sequence[Piece], start: int, end: int) -> list[Piece]:
    """The characters ``[start, end)`` of a text in pieces."""
    kept = []
    at = 0
    for text, origin in pieces:
        part = text[max(0, start - at) : max(0, end - at)]
        if part:
            kept.append((part, origin))
        at += len(text)
    return kept


def _reply_slot_in(layout: _Layout) -> tuple[int, _Slot]:
    """Where the assistant's content stands in a layout."""
    return next((i, item) for i, item in enumerate(layout) if isinstance(item, _Slot) and item.reply)


def generation_config_of(model: PreTrainedModel) -> GenerationConfig | None:
    """The generation settings that a model's authors wrote next to it, such as its stop tokens; those that transformers
    makes up are left out. Ends of sequence that stand in config.json alone were noted when the model was read
    (``models/ends.py``)."""
    settings = getattr(model, "generation_config", None)  # a model that scores has none
    if settings is not None and not settings._from_model_config and settings.eos_token_id is not None:
        return settings
    return getattr(model, "written_ends", None)


def _fill_slot(item: str | _Slot, messages: Sequence[Message]) -> Piece:
    """A piece of a layout with the content of its message."""
    if isinstance(item, str):
        return item, "template"
    return item.trim_content(messages[item.message].content), "reply" if item.reply else "content"


def _stop_ids_of(eos: Any) -> set[int]:
    """The token ids of an end-of-sequence setting. Raises ModelError for what is neither a token id nor a list of
    some."""
    ids = [] if eos is None else list(eos) if isinstance(eos, list | tuple) else [eos]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise ModelError(
                f"eos_token_id holds {token!r}; expected a token id or a list of them", code="E_END_TOKEN_ID"
            )
    return set(ids)
