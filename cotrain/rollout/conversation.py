"""One role's conversation: messages in, turns out, and one training sequence for as long as the turns extend each
other.

::

    chat = roles.solver.begin(problem=task.prompt)       # the system message and the prompt, rendered
    turn = await chat.say(stop=("</call>",))             # what the policy says up to there
    chat.tool("42")                                      # or chat.user(…), chat.environment(…)
    turn = await chat.say()
    turn.reward(BREVITY, 0.1)                            # this turn's tokens
    chat.reward(OUTCOME, 1.0)                            # the whole

``chat.assistant("Let me see: ")`` puts words into the role's own mouth: they are given, and the next turn goes on from
them. A turn that ends by a stop string or at ``max_tokens`` leaves its message open, and may go on likewise. The turns
since the last message of a user or the environment are one *answer*: the parser reads their own words together,
whatever tools said in between, and places in an answer are places in ``answer_text``.

``chat.fork()`` goes on from the same state: its own sequence begins with its first turn, and all before it is its
prompt, so what the trunk sampled is learned once, from the trunk's rewards.

``chat.join(other)`` makes one *trajectory* of several conversations, such as a player's moves in a game or all that an
agent asked a role. What is given to the whole of it is one value, however many training sequences have it.

Addresses: a conversation has its call's, and its turns are numbered (``Address.path``); so the seeds of conversations
side by side do not depend on whose tool was faster. Left out: two turns of one conversation at once, which are forks.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cotrain.core.errors import ConfigError, TooLong
from cotrain.core.notes import CALLS
from cotrain.core.seeding import Address
from cotrain.core.signals import DeclaredSignals, Signal
from cotrain.core.types import FAILED, TOO_LONG, Completion, ParseFailure, Reward, Span, Trace, TurnRange
from cotrain.prompts.chat_template import Message
from cotrain.prompts.decoding import TokenSequence, sampled_after
from cotrain.prompts.render import Piece, Rendering
from cotrain.prompts.templates import fields_of, fill_template
from cotrain.prompts.thoughts import open_thought_of
from cotrain.rollout.event_loop import gather
from cotrain.rollout.play_context import RolloutContext
from cotrain.rollout.role import OUT_OF_RANGE, Role, Turn


class Conversation:
    """The messages and turns of one role since ``begin``."""

    def __init__(
        self,
        *,
        role: Role,
        address: Address,
        group: str,
        parent: Turn | None,
        fields: Mapping[str, Any],
        renderer: Rendering,
        mark: str,
        context: RolloutContext,
        opened: list[Conversation],
        keep: bool,
        declared: DeclaredSignals,
        task_prompt: str,
    ) -> None:
        """``context``: of the play, which asks the engine. ``mark``: the nonce between which it is shown material
        (``formats/nonce.py``). ``opened``: the conversations of the episode, which this one joins.
        ``keep``: it is likely to go on. ``declared``: what the protocol gives. ``task_prompt``: the problem of the
        episode."""
        self.role, self.address, self.group, self.parent, self.fields = role, address, group, parent, fields
        self.mark = mark
        shown = role.prompt_fields(fields)
        if missing := fields_of(role.prompt) - shown.keys():
            raise ConfigError(
                f"role {address.role!r} is asked without {', '.join(sorted(missing))}, which its prompt has (given: "
                f"{', '.join(sorted(fields)) or 'nothing'}); name it in the call, as in "
                f"roles.{address.role}({min(missing)}=…), or change the role's prompt",
                code="E_ROLE_FIELDS_MISSING",
            )
        prompt = fill_template(role.prompt, **shown)
        self.messages = [] if role.system is None else [Message("system", role.system)]
        self.messages.append(Message("user", prompt))
        self.turns: list[Turn] = []  # turns of this conversation; the turns before a fork belong to its trunk
        self.renderer, self._context, self._opened, self._keep = renderer, context, opened, keep
        self._declared = declared
        self._fork: tuple[int, ...] = ()  # address of the place where it left its trunk
        self._said = self._begun = self._forks = 0  # turns requested, turns awaited, forks made
        self._open = False  # True if the last message is the assistant's and goes on
        self._response: tuple[Turn, ...] = ()
        self._sequence: TokenSequence | None = None
        self._last: Turn | None = None  # the turn that the sequence ends with, which may be the trunk's
        self._speaking = self._closed = False  # does it speak now; is its episode over
        self._whole: list[Reward] = []
        self._task_prompt = task_prompt
        self._after_others = any(chat.turns for chat in opened)  # True if its prompt may show what other roles have
        # said
        self._joined: Conversation | None = None  # the conversation whose trajectory it joined
        self._across: list[tuple[Reward, Turn, Turn]] = []  # rewards of spans from a first turn to a last one
        opened.append(self)

    # -- what the others say

    def user(self, text: str) -> None:
        self._add_message("user", text)
        self._response = ()

    def environment(self, text: str) -> None:
        """Add a message of the environment; templates show it as a user's."""
        self._add_message("environment", text)
        self._response = ()

    def tool(self, text: str) -> None:
        """Add a tool's output; ``prompts/chat_template.py`` says how templates without tools show it."""
        self._add_message("tool", text)

    def assistant(self, text: str) -> None:
        """Words put into the role's own mouth, from which its next turn goes on. They are not sampled and not
        learned."""
        self._check_not_speaking()
        if self._open:
            text = self.messages.pop().content + text
        self.messages.append(Message("assistant", text))
        self._open = True

    def set_messages(self, messages: Sequence[Message], renderer: Rendering) -> None:
        """All that its next turn is to answer, in the place of what was said so far: for an agent that sends whole
        conversations. Where they do not begin with the tokens so far, the turn begins a training sequence.
        ``renderer``: the role's, or one of the same tokens that describes tools (``ToolRenderer``)."""
        self._check_not_speaking()
        self.renderer = renderer
        self.messages, self._open, self._response = list(messages), False, ()

    # -- what the role says

    def say(self, *, stop: tuple[str, ...] | None = None, max_tokens: int | None = None) -> Coroutine[Any, Any, Turn]:
        """The next turn, sampled as the role says where nothing else is given.

        Args:
            stop: strings that end it; the string itself is still its text, what follows in the same token is not.

        A first turn whose prompt does not fit the context fails with the reason ``TOO_LONG`` where others had spoken
        when the conversation began and it shows more than the problem: a review of an answer that is too long is then
        missing, and nothing else.

        Errors, when awaited: TooLong for any other prompt that does not fit the context; RuntimeError when it is this
        role's turn to listen.
        """
        own = self.role.sampling
        sampling = replace(
            own,
            stop=own.stop if stop is None else stop,
            max_tokens=own.max_tokens if max_tokens is None else max_tokens,
        )
        number, self._said = self._said, self._said + 1
        path = (*self._fork, number) if self._fork or number else ()
        return self._speak_turn(replace(self.address, path=path), replace(self.role, sampling=sampling))

    def many(
        self, n: int, *, stop: tuple[str, ...] | None = None, max_tokens: int | None = None
    ) -> Coroutine[Any, Any, list[Turn]]:
        """The next turn ``n`` times at once, each in a fork of its own; arguments as of ``say``."""
        return gather([self.fork().say(stop=stop, max_tokens=max_tokens) for _ in range(n)])

    def fork(self) -> Conversation:
        """Another conversation that goes on from this state, with the same group and parent."""
        self._check_not_speaking()
        fork = Conversation(
            role=self.role,
            address=self.address,
            group=self.group,
            parent=self.parent,
            fields=self.fields,
            renderer=self.renderer,
            mark=self.mark,
            context=self._context,
            opened=self._opened,
            keep=self._keep,
            declared=self._declared,
            task_prompt=self._task_prompt,
        )
        fork._closed = self._closed
        fork.messages, fork._open, fork._response = list(self.messages), self._open, self._response
        fork._sequence, fork._last = self._sequence, self._last
        fork._fork, self._forks = (*self._fork, self._said, self._forks), self._forks + 1
        return fork

    @property
    def unawaited_turns(self) -> int:
        """Turns that were asked for and not awaited."""
        return self._said - self._begun

    @property
    def response_text(self) -> str:
        """The role's own words in its present answer."""
        return "".join(turn.text for turn in self._response)

    def probability(self, span: Span) -> float:
        """The probability with which the tokens of a span of ``answer_text`` were sampled, given all before them."""
        p = 1.0
        for turn, mine in self._locate_span(span):
            p *= turn.probability(mine)
        return p

    # -- what is said about it

    def join(self, other: Conversation) -> None:
        """This conversation and the other one are parts of one trajectory, for which their role is paid once: give the
        whole of each (``reward``) the same. Nothing where they are one already."""
        if other.address.role != self.address.role:
            raise ConfigError(
                f"conversation {self.address} joins {other.address}, which is of another role; one trajectory is what "
                "one role has said",
                code="E_CONVERSATION_OF_OTHER_ROLE",
            )
        mine, theirs = self._trajectory(), other._trajectory()
        if mine is not theirs:
            mine._joined = theirs

    def reward(self, signal: Signal, value: float, *, span: Span | None = None) -> None:
        """A signal for the whole conversation: one value, on each of its training sequences; or for a span of
        ``answer_text``. A value that cannot be learned from fails all turns that it is for.

        Raises ValueError when the span is empty or not of this text.
        """
        if span is None:
            if any(given.name == signal.name for given in self._whole):
                raise ConfigError(
                    f"signal {signal.name!r} is given to {self.address} twice; give it once, such as the mean",
                    code="E_SIGNAL_GIVEN_TWICE",
                )
            if not self.turns:
                raise RuntimeError(f"conversation {self.address} has no turn of its own that could be rewarded")
            whole_reward = self.turns[-1].reward_for(signal, value)
            if whole_reward is None:
                _fail_turns(self.turns, signal)
            else:
                self._whole.append(whole_reward)
            return
        places = self._locate_span(span)
        (first, start), (last, end) = places[0], places[-1]
        if first is last:
            last.reward(signal, value, span=end)
        else:
            reward = last.reward_for(signal, value, span=end)
            if reward is None:
                _fail_turns([turn for turn, _ in places], signal)
                return
            assert reward.tokens is not None  # it has a span
            tokens = (first.token_range(start)[0], reward.tokens[1])
            self._across.append((replace(reward, tokens=tokens), first, last))

    def close(self) -> None:
        """The episode is over: nothing more is said."""
        self._closed = True

    def sequences(self) -> list[list[Turn]]:
        """Its turns by the training sequence that they are in."""
        found: dict[str, list[Turn]] = {}
        for turn in self.turns:
            found.setdefault(turn.first.id, []).append(turn)
        return list(found.values())

    # -- inside

    async def _speak_turn(self, address: Address, role: Role) -> Turn:
        self._begun += 1
        self._check_not_speaking()
        if self.messages[-1].role == "assistant" and not self._open:
            raise RuntimeError(f"role {address.role!r} has ended its answer; tell it something before it speaks again")
        self._speaking = True
        try:
            prompt = self._prompt_pieces()
            new = None if self._sequence is None else self._sequence.new_ids(prompt, self.renderer)
            going_on = self._sequence if new is not None else None
            prompt_ids = self.renderer.encode_pieces(prompt) if going_on is None else (*going_on.ids, *(new or ()))
            fields = {**self.fields, "messages": tuple(self.messages)} if self._last else self.fields
            if self._closed:
                raise RuntimeError(f"role {address.role!r} was to speak after its episode was over")
            completion = await self._context.sample_answer(
                address,
                role,
                prompt_ids,
                fields,
                keep=self._keep,
                continues=self._last.address if going_on and self._last else None,
            )
        except TooLong:
            if self._last is not None or not self._after_others or self._shows_problem_alone():
                raise
            completion = self._too_long_completion(role)
        finally:
            self._speaking = False
        return self._add_turn(address, role, prompt, prompt_ids, completion, extends=going_on is not None)

    def _shows_problem_alone(self) -> bool:
        """True if the role's prompt shows the problem of the episode and nothing else."""
        alone = fields_of(self.role.prompt) == {"problem"} and self.fields["problem"] == self._task_prompt
        return alone and self.messages[-1].role == "user"

    def _too_long_completion(self, role: Role) -> Completion:
        """The failed completion of a prompt that does not fit the context because of what other roles said.

        Neither the problem nor the others are at fault, so this turn fails alone."""
        ids = (self.renderer.stop_ids[0],)
        return Completion(
            token_ids=ids, logprobs=(0.0,), finish=FAILED, policy=role.policy, version=0, failure=TOO_LONG
        )

    def _add_turn(
        self,
        address: Address,
        role: Role,
        prompt: Sequence[Piece],
        prompt_ids: tuple[int, ...],
        completion: Completion,
        *,
        extends: bool,
    ) -> Turn:
        turn = Turn(
            address=address,
            group=self.group,
            parent=self.parent,
            prompt_ids=prompt_ids,
            completion=completion,
            renderer=self.renderer,
            declared=self._declared,
            stop=role.sampling.stop,
            chat=self,
            first=self.turns[-1].first if extends and self.turns else None,
        )
        most, left = role.sampling.max_tokens, self._last.left if self._response and self._last else None
        turn.left, turn.goes_on = most - len(completion.token_ids), not self._open and most == left
        later_parts = len(completion.parts[1:])  # each stands at an address of its own
        self._said, self._begun = self._said + later_parts, self._begun + later_parts
        if completion.calls:
            turn.add_finding(CALLS, list(completion.calls))
        self.turns.append(turn)
        if completion.failure is not None:
            turn.fail(completion.failure)
        opened = self._open  # the last piece of the prompt is what the role has begun to say
        ids = completion.token_ids
        self.assistant(self.renderer.decode(ids))
        self._open = not ids or ids[-1] not in self.renderer.stop_ids
        self._sequence = sampled_after(prompt, prompt_ids, ids, self.renderer)
        self._last, self._response = turn, (*self._response, turn)
        asked = "".join(text for text, _ in prompt[: len(prompt) - opened])
        thinking = open_thought_of(asked) is not None
        if completion.failure == TOO_LONG:
            turn.parsed = None if role.parse is None else ParseFailure(reason=TOO_LONG)
        else:
            turn.parsed = role.parse_reply(self.response_text, self.fields, thinking=thinking)
        return turn

    def _trajectory(self) -> Conversation:
        """The conversation that stands for all of its trajectory."""
        chat = self
        while chat._joined is not None:
            chat = chat._joined
        return chat

    def _prompt_pieces(self) -> list[Piece]:
        """The prompt of the next turn: all messages, and what there is of the one that goes on."""
        if not self._open:
            return self.renderer.prompt_pieces(self.messages)
        *before, begun = self.messages
        return [*self.renderer.prompt_pieces(before), (begun.content, "reply")]

    def _add_message(self, role: str, text: str) -> None:
        self._check_not_speaking()
        self.messages.append(Message(role, text))
        self._open = False

    def _locate_span(self, span: Span) -> list[tuple[Turn, Span]]:
        """The parts of a span of ``response_text`` in its turns."""
        if not span.text or self.response_text[span.start : span.end] != span.text:
            raise ValueError(f"span [{span.start}, {span.end}) {span.text[:20]!r} is not in what {self.address} said")
        places, at = [], 0
        for turn in self._response:
            start, end = max(span.start - at, 0), min(span.end - at, len(turn.text))
            if start < end:
                places.append((turn, Span(start=start, end=end, text=turn.text[start:end])))
            at += len(turn.text)
        return places

    def _check_not_speaking(self) -> None:
        if self._speaking:
            raise RuntimeError(f"conversation {self.address} is speaking; await its turn, or fork it before")

    def _join_turns(self, turns: Sequence[Turn], *, signals_of_turns: bool = False) -> Trace:
        """The trace of a training sequence. ``signals_of_turns``: those of a single turn have its tokens."""
        trace = join_traces([turn.trace() for turn in turns], self.renderer.decode)
        if signals_of_turns:
            length = len(trace.token_ids)
            trace = replace(trace, rewards=tuple(_with_tokens(signal, length) for signal in trace.rewards))
        at = {turn.id: len(turn.prompt_ids) - len(trace.prompt_ids) for turn in turns}
        more = list(self._whole)
        for signal, first, last in self._across:
            if last.id in at and signal.tokens is not None:
                start, end = signal.tokens
                more.append(replace(signal, tokens=(at[first.id] + start if first.id in at else 0, at[last.id] + end)))
        going_on = {at[turn.id] for turn in turns if turn.goes_on}
        parts = tuple(replace(part, goes_on=part.start in going_on) for part in trace.turns)
        return replace(trace, rewards=(*trace.rewards, *more), turns=parts) if more or parts else trace


def finish_conversations(chats: Sequence[Conversation]) -> list[Trace]:
    """Seal all conversations of an episode: a trace for each sequence that has turns, in the order of their addresses.

    Traces of one trajectory name its first one. There a signal of a single turn is one for its tokens, also where that
    turn is all of its sequence; so what has no tokens is of the whole trajectory, whatever the chat template keeps of
    earlier turns.
    """
    trajectories: dict[int, list[Conversation]] = {}
    for chat in chats:
        trajectories.setdefault(id(chat._trajectory()), []).append(chat)
    traces: list[Trace] = []
    for members in trajectories.values():
        sequences = [(chat, turns) for chat in members for turns in chat.sequences()]
        if len(sequences) == 1:
            chat, turns = sequences[0]
            traces.append(chat._join_turns(turns))
            continue
        parts = [chat._join_turns(turns, signals_of_turns=True) for chat, turns in sequences]
        first = min((part.address for part in parts), default=None)
        traces += [replace(part, trajectory=str(first)) for part in parts]
    return sorted(traces, key=lambda trace: trace.address)


def _fail_turns(turns: Sequence[Turn], signal: Signal) -> None:
    for turn in turns:
        turn.fail(OUT_OF_RANGE.format(signal.name))


def _with_tokens(signal: Reward, length: int) -> Reward:
    return signal if signal.tokens is not None else replace(signal, tokens=(0, length))


def join_traces(turns: Sequence[Trace], decode: Callable[[Sequence[int]], str]) -> Trace:
    """The traces of turns that extend each other as one: the prompt of each begins with all tokens of the one before.

    A signal for a whole turn becomes one for its tokens. The first reason not to train stands; what was noted and shown
    last stands too. The version is the oldest.
    """
    first, last = turns[0], turns[-1]
    if len(turns) == 1:
        return first
    start = len(first.prompt_ids)
    token_ids = (*last.prompt_ids, *last.token_ids)[start:]
    logprobs, levels = [0.0] * len(token_ids), bytearray(len(token_ids))
    parts: list[TurnRange] = []
    signals: list[Reward] = []
    text = ""
    for turn in turns:
        at = len(turn.prompt_ids) - start
        end = at + len(turn.token_ids)
        text += decode(token_ids[parts[-1].end if parts else 0 : at]) + turn.text
        logprobs[at:end] = turn.logprobs
        levels[at:end] = turn.entropies or bytes(end - at)
        own_parts = turn.turns or (TurnRange(start=0, end=end - at, finish=turn.finish),)
        parts += [replace(part, start=at + part.start, end=at + part.end) for part in own_parts]
        for signal in turn.rewards:
            low, high = signal.tokens or (0, end - at)
            signals.append(replace(signal, tokens=(at + low, at + high)))
    return replace(
        first,
        version=min(turn.version for turn in turns),
        token_ids=token_ids,
        logprobs=tuple(logprobs),
        entropies=bytes(levels) if all(turn.entropies for turn in turns) else b"",
        text=text,
        finish=last.finish,
        rewards=tuple(signals),
        failure=next((turn.failure for turn in turns if turn.failure), None),
        findings={name: value for turn in turns for name, value in turn.findings.items()},
        metadata={name: value for turn in turns for name, value in turn.metadata.items()},
        turns=tuple(parts),
    )
