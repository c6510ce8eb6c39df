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
whatever tools said in between, and places in an answer are places in ``response_text``.

``chat.fork()`` goes on from the same state: its own sequence begins with its first turn, and all before it is its
prompt, so what the trunk sampled is learned once, from the trunk's rewards.

``chat.join(other)`` makes one *trajectory* of several conversations, such as a player's moves in a game or all that an
agent asked a role. What is given to the whole of it is one value, however many training sequences have it.

Addresses: a conversation has the address of the call that began it, and its turns are numbered below that
(``Address.path``). A turn's seed is a hash of its address, so it does not depend on whose tool was faster. Left out:
two turns of one conversation at once; each needs a fork of its own.
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
from cotrain.rollout.context import RolloutContext
from cotrain.rollout.event_loop import gather
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
        nonce: str,
        context: RolloutContext,
        siblings: list[Conversation],
        keep_cache: bool,
        declared: DeclaredSignals,
        task_prompt: str,
    ) -> None:
        """
        Args:
            role: who speaks.
            address: address of the call that began it; its turns are numbered below.
            group: traces of one group are compared with each other.
            parent: the turn that it judges or answers.
            fields: what is put into the role's prompt.
            renderer: makes tokens of messages.
            nonce: the marker between which tools show what they found (``formats/nonce.py``).
            context: asks the engine.
            siblings: all conversations of the episode, to which whoever makes this one adds it.
            keep_cache: it is likely to go on after its first turn.
            declared: the rewards that the protocol declares.
            task_prompt: the problem of the episode.

        Raises ConfigError for a field of the role's prompt that is not given.
        """
        prompt_fields = role.prompt_fields(fields)
        missing = fields_of(role.prompt) - prompt_fields.keys()
        if missing:
            raise ConfigError(
                f"role {address.role!r} is asked without {', '.join(sorted(missing))}, which its prompt has (given: "
                f"{', '.join(sorted(fields)) or 'nothing'}); name it in the call, as in "
                f"roles.{address.role}({min(missing)}=…), or change the role's prompt",
                code="E_ROLE_FIELDS_MISSING",
            )
        self.role = role
        self.address = address
        self.group = group
        self.parent = parent
        self.fields = fields
        self.nonce = nonce
        self.renderer = renderer
        self._context = context
        self._siblings = siblings
        self._keep_cache = keep_cache
        self._declared = declared
        self._task_prompt = task_prompt

        self.messages: list[Message] = []
        if role.system is not None:
            self.messages.append(Message("system", role.system))
        self.messages.append(Message("user", fill_template(role.prompt, **prompt_fields)))
        self.turns: list[Turn] = []  # turns of this conversation; the turns before a fork belong to its trunk

        # Where it stands.
        self._fork: tuple[int, ...] = ()  # of a fork: the beginning of its turns' ``Address.path`` (see ``fork``)
        self._turns_requested = 0
        self._turns_awaited = 0
        self._forks_made = 0
        self._open = False  # True if the last message is the assistant's and goes on
        self._speaking = False
        self._closed = False  # True once its episode is over
        self._response: tuple[Turn, ...] = ()  # turns since the last message of a user or the environment
        self._sequence: TokenSequence | None = None  # the tokens so far, where the next turn may extend them
        self._last: Turn | None = None  # the turn that the sequence ends with, which may be the trunk's
        self._may_show_others = any(chat.turns for chat in siblings)  # other roles had spoken when it began

        # What it is paid as a whole.
        self._whole_rewards: list[Reward] = []
        self._rewards_across: list[tuple[Reward, Turn, Turn]] = []  # rewards of spans from a first turn to a last one
        self._joined: Conversation | None = None  # the conversation whose trajectory it joined

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
        """Replace all messages so far, for an agent that sends the whole conversation with each request. Where the new
        messages do not begin with the tokens so far, the next turn begins another training sequence. ``renderer``: the
        role's, or one of the same tokens that describes tools (``ToolRenderer``)."""
        self._check_not_speaking()
        self.renderer = renderer
        self.messages = list(messages)
        self._open = False
        self._response = ()

    # -- what the role says

    def say(self, *, stop: tuple[str, ...] | None = None, max_tokens: int | None = None) -> Coroutine[Any, Any, Turn]:
        """The next turn, sampled as the role says where nothing else is given.

        Args:
            stop: strings that end it; the string itself is still its text, what follows in the same token is not.

        Errors, when awaited: RuntimeError when it is this role's turn to listen; TooLong for a prompt that does not fit
        the context, which ends the episode. An exception is the first turn of a conversation that shows more than the
        problem after other roles have spoken, such as a review of a long answer: that turn fails with the reason
        ``TOO_LONG``, and nothing else.
        """
        sampling = self.role.sampling
        if stop is not None:
            sampling = replace(sampling, stop=stop)
        if max_tokens is not None:
            sampling = replace(sampling, max_tokens=max_tokens)
        role = replace(self.role, sampling=sampling)

        # The first turn has the address of the conversation itself; those after it, and all of a fork, have a path.
        number = self._turns_requested
        self._turns_requested += 1
        is_first_of_trunk = number == 0 and not self._fork
        path = () if is_first_of_trunk else (*self._fork, number)
        return self._speak_turn(replace(self.address, path=path), role)

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
            nonce=self.nonce,
            context=self._context,
            siblings=self._siblings,
            keep_cache=self._keep_cache,
            declared=self._declared,
            task_prompt=self._task_prompt,
        )
        self._siblings.append(fork)
        fork.messages = list(self.messages)
        fork._closed = self._closed
        fork._open = self._open
        fork._response = self._response
        fork._sequence = self._sequence
        fork._last = self._last
        # Its turns come after the trunk's turns so far; the second number tells it from other forks at this place.
        fork._fork = (*self._fork, self._turns_requested, self._forks_made)
        self._forks_made += 1
        return fork

    @property
    def unawaited_turns(self) -> int:
        """Turns that were asked for and not awaited."""
        return self._turns_requested - self._turns_awaited

    @property
    def response_text(self) -> str:
        """The role's own words in its present answer."""
        return "".join(turn.text for turn in self._response)

    def probability(self, span: Span) -> float:
        """The probability with which the tokens of a span of ``response_text`` were sampled, given all before them."""
        p = 1.0
        for turn, part in self._locate_span(span):
            p *= turn.probability(part)
        return p

    # -- what is said about it

    def join(self, other: Conversation) -> None:
        """This conversation and the other one become parts of one trajectory, for which their role is paid once: give
        the whole of each (``reward``) the same. Does nothing where they are parts of one already."""
        if other.address.role != self.address.role:
            raise ConfigError(
                f"conversation {self.address} joins {other.address}, which is of another role; one trajectory is what "
                "one role has said",
                code="E_CONVERSATION_OF_OTHER_ROLE",
            )
        own_head = self._trajectory_head()
        other_head = other._trajectory_head()
        if own_head is not other_head:
            own_head._joined = other_head

    def reward(self, signal: Signal, value: float, *, span: Span | None = None) -> None:
        """A reward for the whole conversation: one value, on each of its training sequences; or for a span of
        ``response_text``. A value that cannot be learned from fails all turns that it is for.

        Raises ValueError when the span is empty or not of this text.
        """
        if span is None:
            self._reward_whole(signal, value)
        else:
            self._reward_span(signal, value, span)

    def close(self) -> None:
        """The episode is over: nothing more is said."""
        self._closed = True

    def sequences(self) -> list[list[Turn]]:
        """Its turns by the training sequence that they are in."""
        turns_by_sequence: dict[str, list[Turn]] = {}
        for turn in self.turns:
            turns_by_sequence.setdefault(turn.first.id, []).append(turn)
        return list(turns_by_sequence.values())

    # -- inside

    def _reward_whole(self, signal: Signal, value: float) -> None:
        if any(reward.name == signal.name for reward in self._whole_rewards):
            raise ConfigError(
                f"signal {signal.name!r} is given to {self.address} twice; give it once, such as the mean",
                code="E_SIGNAL_GIVEN_TWICE",
            )
        if not self.turns:
            raise RuntimeError(f"conversation {self.address} has no turn of its own that could be rewarded")
        reward = self.turns[-1].reward_for(signal, value)  # checked as a reward of its last turn would be
        if reward is None:
            _fail_turns(self.turns, signal)
        else:
            self._whole_rewards.append(reward)

    def _reward_span(self, signal: Signal, value: float, span: Span) -> None:
        parts = self._locate_span(span)
        first_turn, first_part = parts[0]
        last_turn, last_part = parts[-1]
        if first_turn is last_turn:
            last_turn.reward(signal, value, span=last_part)
            return

        # Across turns: from a token of the first one to a token of the last one. Each counts from its turn's start.
        reward = last_turn.reward_for(signal, value, span=last_part)
        if reward is None:
            _fail_turns([turn for turn, _ in parts], signal)
            return
        assert reward.tokens is not None  # it has a span
        start, _ = first_turn.token_range(first_part)
        _, end = reward.tokens
        # A fork may end a span in a turn of its trunk, which is then the one that learns from it.
        last_turn.chat._rewards_across.append((replace(reward, tokens=(start, end)), first_turn, last_turn))

    async def _speak_turn(self, address: Address, role: Role) -> Turn:
        self._turns_awaited += 1
        self._check_not_speaking()
        if self.messages[-1].role == "assistant" and not self._open:
            raise RuntimeError(f"role {address.role!r} has ended its answer; tell it something before it speaks again")
        self._speaking = True
        try:
            prompt = self._prompt_pieces()

            # Where the prompt begins with the tokens so far, only what is new is encoded: nothing is tokenised again.
            earlier = self._sequence
            new_ids = None if earlier is None else earlier.new_ids(prompt, self.renderer)
            extends = new_ids is not None
            if earlier is not None and new_ids is not None:
                prompt_ids = (*earlier.ids, *new_ids)
            else:
                prompt_ids = self.renderer.encode_pieces(prompt)

            fields = self.fields
            continues = None  # the turn whose tokens an engine may have in its cache
            if self._last is not None:
                fields = {**fields, "messages": tuple(self.messages)}  # for programs that speak: what was said so far
                continues = self._last.address if extends else None
            if self._closed:
                raise RuntimeError(f"role {address.role!r} was to speak after its episode was over")
            completion = await self._context.sample_answer(
                address, role, prompt_ids, fields, keep_cache=self._keep_cache, continues=continues
            )
        except TooLong:
            is_first = self._last is None
            others_are_at_fault = is_first and self._may_show_others and not self._shows_problem_alone()
            if not others_are_at_fault:
                raise
            completion = self._too_long_completion(role)
        finally:
            self._speaking = False
        return self._add_turn(address, role, prompt, prompt_ids, completion, extends=extends)

    def _shows_problem_alone(self) -> bool:
        """True if the role's prompt shows the problem of the episode and nothing else."""
        if fields_of(self.role.prompt) != {"problem"}:
            return False
        shows_own_problem = self.fields["problem"] == self._task_prompt
        return shows_own_problem and self.messages[-1].role == "user"

    def _too_long_completion(self, role: Role) -> Completion:
        """The failed completion of a prompt that does not fit the context because of what other roles said.

        Neither the problem nor the others are at fault, so this turn fails alone."""
        return Completion(
            token_ids=(self.renderer.stop_ids[0],),
            logprobs=(0.0,),
            finish=FAILED,
            policy=role.policy,
            version=0,
            failure=TOO_LONG,
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
        """Make a turn of a completion, and move the conversation on."""
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
        ids = completion.token_ids
        max_tokens = role.sampling.max_tokens

        # A response may have several turns that share one token limit. This turn goes on with the one before if it was
        # allowed just the tokens that were left of that limit.
        tokens_left_before = None
        if self._response and self._last is not None:
            tokens_left_before = self._last.tokens_left
        turn.tokens_left = max_tokens - len(ids)
        turn.goes_on = not self._open and max_tokens == tokens_left_before

        later_parts = len(completion.parts[1:])  # parts of a completion with tools; each has an address of its own
        self._turns_requested += later_parts
        self._turns_awaited += later_parts
        if completion.calls:
            turn.add_finding(CALLS, list(completion.calls))
        self.turns.append(turn)
        if completion.failure is not None:
            turn.fail(completion.failure)

        had_begun = self._open  # the last piece of the prompt is then what the role has begun to say
        self.assistant(self.renderer.decode(ids))  # as a message, or behind what it has begun to say
        has_ended = bool(ids) and ids[-1] in self.renderer.stop_ids
        self._open = not has_ended
        self._sequence = sampled_after(prompt, prompt_ids, ids, self.renderer)
        self._last = turn
        self._response = (*self._response, turn)

        pieces_of_others = prompt[:-1] if had_begun else prompt
        prompt_text = "".join(text for text, _ in pieces_of_others)
        is_thinking = open_thought_of(prompt_text) is not None
        if completion.failure == TOO_LONG:
            turn.parsed = None if role.parse is None else ParseFailure(reason=TOO_LONG)
        else:
            turn.parsed = role.parse_reply(self.response_text, self.fields, thinking=is_thinking)
        return turn

    def _trajectory_head(self) -> Conversation:
        """The conversation that stands for all of its trajectory."""
        chat = self
        while chat._joined is not None:
            chat = chat._joined
        return chat

    def _prompt_pieces(self) -> list[Piece]:
        """The prompt of the next turn: all messages, and what there is of the one that goes on."""
        if not self._open:
            return self.renderer.prompt_pieces(self.messages)
        *before, beginning = self.messages
        return [*self.renderer.prompt_pieces(before), (beginning.content, "reply")]

    def _add_message(self, role: str, text: str) -> None:
        self._check_not_speaking()
        self.messages.append(Message(role, text))
        self._open = False

    def _locate_span(self, span: Span) -> list[tuple[Turn, Span]]:
        """The parts of a span of ``response_text`` in its turns."""
        if not span.text or self.response_text[span.start : span.end] != span.text:
            raise ValueError(f"span [{span.start}, {span.end}) {span.text[:20]!r} is not in what {self.address} said")
        parts = []
        turn_start = 0
        for turn in self._response:
            start = max(span.start - turn_start, 0)
            end = min(span.end - turn_start, len(turn.text))
            if start < end:
                parts.append((turn, Span(start=start, end=end, text=turn.text[start:end])))
            turn_start += len(turn.text)
        return parts

    def _check_not_speaking(self) -> None:
        if self._speaking:
            raise RuntimeError(f"conversation {self.address} is speaking; await its turn, or fork it before")

    def _join_turns(self, turns: Sequence[Turn], *, signals_of_turns: bool = False) -> Trace:
        """The trace of a training sequence. ``signals_of_turns``: rewards of a single turn have its tokens."""
        trace = join_traces([turn.trace() for turn in turns], self.renderer.decode)
        rewards = list(trace.rewards)
        if signals_of_turns:
            length = len(trace.token_ids)
            rewards = [_with_tokens(reward, length) for reward in rewards]
        rewards += self._whole_rewards

        # Where each turn begins among the tokens of the sequence, which follow the prompt of its first turn.
        turn_starts = {turn.id: len(turn.prompt_ids) - len(trace.prompt_ids) for turn in turns}
        for reward, first, last in self._rewards_across:
            if last.id not in turn_starts or reward.tokens is None:
                continue
            start, end = reward.tokens
            if first.id in turn_starts:
                start += turn_starts[first.id]
            else:
                start = 0  # the span began in an earlier sequence
            rewards.append(replace(reward, tokens=(start, turn_starts[last.id] + end)))

        continued_starts = {turn_starts[turn.id] for turn in turns if turn.goes_on}
        parts = tuple(replace(part, goes_on=part.start in continued_starts) for part in trace.turns)
        return replace(trace, rewards=tuple(rewards), turns=parts)


def finish_conversations(chats: Sequence[Conversation]) -> list[Trace]:
    """A trace for each training sequence of an episode, in the order of their addresses.

    Where a trajectory has several traces, each has the key of the first one as ``Trace.trajectory``, and

    - a reward without tokens is one of the whole trajectory;
    - a reward of a single turn has the range of its tokens, also where that turn is all of its sequence.
    """
    trajectories: dict[int, list[Conversation]] = {}
    for chat in chats:
        trajectories.setdefault(id(chat._trajectory_head()), []).append(chat)

    traces: list[Trace] = []
    for members in trajectories.values():
        sequences = []
        for chat in members:
            for turns in chat.sequences():
                sequences.append((chat, turns))

        if len(sequences) == 1:
            chat, turns = sequences[0]
            traces.append(chat._join_turns(turns))
            continue

        parts = [chat._join_turns(turns, signals_of_turns=True) for chat, turns in sequences]
        first_address = min((part.address for part in parts), default=None)
        traces += [replace(part, trajectory=str(first_address)) for part in parts]
    return sorted(traces, key=lambda trace: trace.address)


def _fail_turns(turns: Sequence[Turn], signal: Signal) -> None:
    for turn in turns:
        turn.fail(OUT_OF_RANGE.format(signal.name))


def _with_tokens(reward: Reward, length: int) -> Reward:
    """A reward of a whole turn as one of its tokens."""
    if reward.tokens is not None:
        return reward
    return replace(reward, tokens=(0, length))


def join_traces(turns: Sequence[Trace], decode: Callable[[Sequence[int]], str]) -> Trace:
    """The traces of turns that extend each other as one: the prompt of each begins with all tokens of the one before.

    A reward for a whole turn becomes one for its tokens. Of several reasons not to train the first stands, and of
    several findings or metadata of one name the last. The version is the oldest.
    """
    first = turns[0]
    last = turns[-1]
    if len(turns) == 1:
        return first

    prompt_length = len(first.prompt_ids)
    token_ids = (*last.prompt_ids, *last.token_ids)[prompt_length:]
    logprobs = [0.0] * len(token_ids)  # 0 for the tokens between two turns, which are not sampled
    entropies = bytearray(len(token_ids))
    parts: list[TurnRange] = []
    rewards: list[Reward] = []
    findings: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    text = ""
    for turn in turns:
        start = len(turn.prompt_ids) - prompt_length
        length = len(turn.token_ids)
        end = start + length

        previous_end = parts[-1].end if parts else 0
        text += decode(token_ids[previous_end:start]) + turn.text
        logprobs[start:end] = turn.logprobs
        entropies[start:end] = turn.entropies or bytes(length)

        own_parts = turn.turns or (TurnRange(start=0, end=length, finish=turn.finish),)
        for part in own_parts:
            parts.append(replace(part, start=start + part.start, end=start + part.end))
        for reward in turn.rewards:
            low, high = reward.tokens or (0, length)
            rewards.append(replace(reward, tokens=(start + low, start + high)))
        findings |= turn.findings
        metadata |= turn.metadata

    has_entropies = all(turn.entropies for turn in turns)
    failures = [turn.failure for turn in turns if turn.failure]
    return replace(
        first,
        version=min(turn.version for turn in turns),
        token_ids=token_ids,
        logprobs=tuple(logprobs),
        entropies=bytes(entropies) if has_entropies else b"",
        text=text,
        finish=last.finish,
        rewards=tuple(rewards),
        failure=failures[0] if failures else None,
        findings=findings,
        metadata=metadata,
        turns=tuple(parts),
    )
