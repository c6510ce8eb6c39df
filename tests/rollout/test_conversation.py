"""Conversations: one trace for turns that extend each other, forks, rewards for a turn and for the whole."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from cotrain.core.errors import TooLong
from cotrain.core.notes import ANSWER, CORRECT, GOLD
from cotrain.core.seeding import Address
from cotrain.core.signals import OUTCOME, Signal, gives
from cotrain.core.types import TOO_LONG, Completion, Sampling, Span
from cotrain.inference.local import LocalEngine
from cotrain.inference.reference import ReferenceEngine
from cotrain.prompts.byte_tokenizer import ByteRenderer
from cotrain.rollout.event_loop import engine_paused, gather
from cotrain.rollout.role import Role
from cotrain.rollout.runner import RolloutRunner
from tests.formats.chat_templates import renderer_of
from tests.helpers import CharRenderer, RandomLatency, letter_tasks, spoken, tiny_model
from tests.sentences import refuses

TURN, ROOT, LEAF = Signal("turn"), Signal("root"), Signal("leaf")
PART, ACROSS, INSIDE = (Signal(name, per="span") for name in ("span", "across", "inside"))
all_given = gives(OUTCOME, TURN, ROOT, LEAF, PART, ACROSS, INSIDE)

ROLES = {
    "solver": Role(policy="a", prompt="{problem}=", sampling=Sampling(max_tokens=9), parse=lambda text, fields: text),
    "other": Role(policy="a", prompt="{problem}#", sampling=Sampling(max_tokens=5)),
    "echo": Role(policy="echo", prompt="{problem}", sampling=Sampling(max_tokens=1)),
}


def echo(fields, rng):
    heard = fields["messages"][-1].content if "messages" in fields else "first"
    return f"<{heard}> and more"


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def play(model, protocol, *, wrap=lambda engine: engine, engine=LocalEngine, tasks=1, group_size=1, seed=0):
    renderers = {"a": CharRenderer(), "echo": ByteRenderer()}
    executor = RolloutRunner(wrap(spoken({"echo": echo}, engine({"a": model}))), renderers, ROLES, seed=seed)
    episodes = executor.collect(protocol, letter_tasks(tasks), step=3, group_size=group_size)
    assert [e.failure for e in episodes] == [None] * len(episodes)
    return episodes


def said(trace):
    return CharRenderer().decode(trace.prompt_ids), trace.text


@all_given
async def three_turns(task, roles):
    chat = roles.solver.begin(problem=task.prompt)
    first = await chat.say(max_tokens=4)
    whole = Span(start=0, end=len(first.text), text=first.text)
    assert chat.probability(whole) == first.probability(whole) <= 1.0
    chat.tool("[42]")
    second = await chat.say(stop=("e", "t", "a"))
    chat.user("[ok]")
    third = await chat.say()
    assert [t.id for t in chat.turns] == ["3:0:0:solver:0", "3:0:0:solver:0.1", "3:0:0:solver:0.2"]
    assert second.parsed == first.text + second.text and third.parsed == third.text == chat.response_text
    assert third.prompt_ids == (*second.prompt_ids, *second.completion.token_ids, *CharRenderer().encode("[ok]"))
    second.reward(TURN, 0.5)
    second.reward(PART, 1.0, span=Span(start=1, end=3, text=second.text[1:3]))
    chat.reward(OUTCOME, 2.0)
    first.add_metadata(CORRECT, True)
    second.add_finding(ANSWER, "x")
    third.add_metadata(GOLD, "1")


def test_turns_that_extend_each_other_are_one_trace(model):
    [episode] = play(model, three_turns)
    [trace] = episode.traces
    one, two, three = trace.turns
    assert (
        str(trace.address) == "3:0:0:solver:0" and (one.start, one.end) == (0, 4) and len(trace.token_ids) == three.end
    )
    assert two.start == 4 + 4 and three.start == two.end + 4
    assert trace.mask == tuple(any(t.start <= i < t.end for t in trace.turns) for i in range(three.end))
    assert all(trace.logprobs[i] == 0.0 for i, m in enumerate(trace.mask) if not m)
    assert len(trace.entropies) == three.end
    assert all((level > 0) is m for level, m in zip(trace.entropies, trace.mask, strict=True))
    assert trace.text.count("[42]") == trace.text.count("[ok]") == 1
    assert [(s.name, s.value, s.tokens) for s in trace.rewards] == [
        ("turn", 0.5, (two.start, two.end)),
        ("span", 1.0, (two.start + 1, two.start + 3)),
        ("outcome", 2.0, None),
    ]
    assert trace.metadata == {"correct": True, "gold": "1"} and trace.findings == {"answer": "x"}
    assert trace.finish == three.finish


def test_the_reference_engine_says_the_same(model):
    fast, slow = (play(model, three_turns, engine=engine) for engine in (LocalEngine, ReferenceEngine))
    for one, other in zip(fast[0].traces, slow[0].traces, strict=True):
        assert one.token_ids == other.token_ids and one.turns == other.turns
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_one_turn_is_a_trace_as_ever(model):
    @all_given
    async def short(task, roles):
        turn = await roles.solver(problem=task.prompt)
        turn.reward(OUTCOME, 1.0)

    @all_given
    async def begun(task, roles):
        turn = await roles.solver.begin(problem=task.prompt).say()
        turn.reward(OUTCOME, 1.0)

    @all_given
    async def whole(task, roles):
        chat = roles.solver.begin(problem=task.prompt)
        await chat.say()
        chat.user("nobody answers this")
        chat.reward(OUTCOME, 1.0)

    [trace] = play(model, short)[0].traces
    assert trace.turns == () and all(trace.mask) and trace.rewards[0].tokens is None
    assert [trace] == list(play(model, begun)[0].traces) == list(play(model, whole)[0].traces)


def test_a_fork_goes_on_from_a_trunk_that_is_learned_once(model):
    @all_given
    async def tree(task, roles):
        trunk = roles.solver.begin(problem=task.prompt)
        root = await trunk.say(max_tokens=5)
        trunk.environment("|")
        leaves = await trunk.many(3)
        inner = trunk.fork()
        inner.user("!")
        await inner.say()
        last = await inner.fork().many(2, max_tokens=3)
        assert [t.id for t in (*leaves, *last)] == [
            *(f"3:0:0:solver:0.1.{i}.0" for i in range(3)),
            *(f"3:0:0:solver:0.1.3.1.0.0.{i}.0" for i in range(2)),
        ]
        trunk.reward(ROOT, 1.0)
        for i, leaf in enumerate(leaves):
            leaf.chat.reward(LEAF, float(i))
        assert len({leaf.prompt_ids for leaf in leaves}) == 1 and len({leaf.text for leaf in leaves}) == 3
        assert leaves[0].prompt_ids == (*root.prompt_ids, *root.completion.token_ids, *CharRenderer().encode("|"))

    [episode] = play(model, tree)
    trunk, *others = episode.traces
    assert [t.turns for t in episode.traces] == [()] * 7 and [s.name for s in trunk.rewards] == ["root"]
    assert sorted(s.value for t in others for s in t.rewards) == [0.0, 1.0, 2.0]
    assert {t.group for t in episode.traces} == {"0:solver"}
    assert len({t.address for t in episode.traces}) == 7


def test_words_put_into_its_mouth_are_given(model):
    @all_given
    async def protocol(task, roles):
        chat = roles.solver.begin(problem=task.prompt)
        chat.assistant("I ")
        chat.assistant("say ")
        first = await chat.say(max_tokens=3)
        chat.assistant(", so ")
        second = await chat.say()
        assert CharRenderer().decode(first.prompt_ids).endswith("=I say ")
        assert second.parsed == chat.response_text == first.text + second.text
        both = Span(start=1, end=len(chat.response_text), text=chat.response_text[1:])
        chat.reward(ACROSS, 1.0, span=both)
        chat.reward(INSIDE, 2.0, span=Span(start=4, end=5, text=chat.response_text[4:5]))
        parts = Span(start=1, end=3, text=first.text[1:]), Span(start=0, end=len(second.text), text=second.text)
        expected = first.probability(parts[0]) * second.probability(parts[1])
        assert chat.probability(both) == pytest.approx(expected)
        with pytest.raises(ValueError, match="is not in what"):
            chat.reward(ACROSS, 1.0, span=Span(start=0, end=2, text="??"))

    [trace] = play(model, protocol)[0].traces
    inside, across = trace.rewards
    assert (inside.name, inside.tokens) == ("inside", (trace.turns[1].start + 1, trace.turns[1].start + 2))
    last = trace.turns[1].end - (trace.token_ids[-1] == 0)
    assert (across.name, across.tokens) == ("across", (1, last))


def test_a_fork_may_reward_a_span_of_the_answer_that_its_trunk_began(model):
    @all_given
    async def protocol(task, roles):
        trunk = roles.solver.begin(problem=task.prompt)
        first = await trunk.say(max_tokens=4)
        trunk.tool("|")
        await trunk.say(max_tokens=4)
        fork = trunk.fork()
        said = fork.response_text
        fork.reward(ACROSS, 1.0, span=Span(start=1, end=len(first.text) + 2, text=said[1 : len(first.text) + 2]))
        fork.tool("|")
        await fork.say(max_tokens=4)

    trunk, fork = play(model, protocol)[0].traces
    [across] = trunk.rewards
    assert (across.name, across.tokens) == ("across", (1, trunk.turns[1].start + 2))
    assert fork.rewards == ()


@pytest.mark.whole
def test_addresses_and_answers_do_not_depend_on_whose_tool_was_faster(model):
    async def talk(chat, turns):
        for _ in range(turns):
            turn = await chat.say(stop=("a", "e", "o"))
            async with engine_paused():
                await asyncio.sleep(random.random() * 0.003)
            chat.tool(f"[{len(turn.text)}]")
        drafts = await chat.many(2)
        drafts[0].reward(OUTCOME, 1.0)

    @all_given
    async def crowd(task, roles):
        await gather([talk(roles.solver.begin(problem=task.prompt), turns) for turns in (3, 1, 2)])

    expected = play(model, crowd, tasks=2, group_size=2)
    for seed in range(2):
        assert play(model, crowd, wrap=lambda e, s=seed: RandomLatency(e, s), tasks=2, group_size=2) == expected


def test_two_roles_debate_and_a_program_hears_what_is_said(model):
    @all_given
    async def debate(task, roles):
        one, other = roles.solver.begin(problem=task.prompt), roles.other.begin(problem=task.prompt)
        machine = roles.echo.begin(problem=task.prompt)
        assert (await machine.say()).text == "<first> and more"
        for _ in range(2):
            mine, theirs = await gather([one.say(), other.say()])
            one.user(theirs.text)
            other.user(mine.text)
        machine.user("hear me")
        assert (await machine.say(stop=("me>",))).text == "<hear me>"

    [episode] = play(model, debate)
    assert [(t.role, len(t.turns)) for t in episode.traces] == [("echo", 2), ("other", 2), ("solver", 2)]


def test_a_template_that_rewrites_begins_a_new_trace_with_the_reward_of_the_whole(model):
    renderer, sequences = renderer_of("qwen-3-thinking"), []

    class Thinking:
        """Thinks, calls a tool, answers, and answers again."""

        parts = iter(["so\n</think>\n\nfirst", "again\n</think>\n\nsecond", "more\n</think>\n\nthird"])

        async def sample(self, request):
            ids = (*renderer.encode(next(self.parts)), renderer.tokenizer.convert_tokens_to_ids("<|im_end|>"))
            sequences.append((request.continues, request.keep))
            return Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), finish="stop", policy="a", version=0)

        def advance(self):
            return False

        def publish(self, policy, version): ...

        def counts(self):
            return {}

    @all_given
    async def protocol(task, roles):
        chat = roles.solver.begin(problem="Q")
        await chat.say()
        chat.tool("42")
        await chat.say()
        chat.user("Sure?")
        last = await chat.say()
        chat.reward(OUTCOME, 1.0)
        last.reward(TURN, 0.5)

    [episode] = RolloutRunner(Thinking(), {"a": renderer}, {"solver": ROLES["solver"]}, seed=0).collect(
        protocol, letter_tasks(1), step=3, group_size=1
    )
    assert episode.failure is None, episode.failure
    before, after = episode.traces
    assert [str(t.address) for t in (before, after)] == ["3:0:0:solver:0", "3:0:0:solver:0.2"]
    assert [len(t.turns) for t in (before, after)] == [2, 0]
    assert [(s.name, s.tokens) for s in before.rewards] == [("outcome", None)]
    assert [(s.name, s.tokens) for s in after.rewards] == [("turn", (0, len(after.token_ids))), ("outcome", None)]
    assert before.trajectory == after.trajectory == str(before.address)  # the outcome was given once
    text = renderer.tokenizer.decode(after.prompt_ids)
    assert (
        "so" not in text and "<|im_start|>assistant\nfirst<|im_end|>" in text and text.endswith("assistant\n<think>\n")
    )
    assert sequences == [(None, True), (before.address, True), (None, True)]


def test_who_may_not_speak_is_told(model):
    @all_given
    async def protocol(task, roles):
        chat = roles.echo.begin(problem="x")
        with pytest.raises(RuntimeError, match="no turn of its own"):
            chat.reward(OUTCOME, 1.0)
        await chat.say()
        with pytest.raises(RuntimeError, match="has ended its answer"):
            await chat.say()
        solver = roles.solver.begin(problem="x")
        first = asyncio.ensure_future(solver.say())
        await asyncio.sleep(0)
        for wrong in (lambda: solver.user("!"), solver.fork):
            with pytest.raises(RuntimeError, match="is speaking"):
                wrong()
        with pytest.raises(RuntimeError, match="is speaking"):
            await solver.say()
        await first
        solver.user("!")
        await solver.say()
        with refuses("E_ROLE_FIELDS_MISSING", names="problem"):
            roles.solver.begin(question="x")
        solver.user("y" * 200)
        with pytest.raises(TooLong):
            await solver.say()

    play(model, protocol)


def test_paths_of_addresses():
    first = Address(step=1, task=2, member=3, role="r", call=4)
    third, leaf = first.later_turn(2), Address(step=1, task=2, member=3, role="r", call=4, path=(2, 0, 0))
    assert [str(a) for a in (first, third, leaf, leaf.later_turn(1))] == [
        "1:2:3:r:4", "1:2:3:r:4.2", "1:2:3:r:4.2.0.0", "1:2:3:r:4.2.0.1",
    ]  # fmt: skip
    for address in (first, third, leaf):
        assert Address.parse(str(address)) == address and address.later_turn(0) == address
    assert sorted([leaf, third, first]) == [first, third, leaf]


def test_conversations_that_join_are_one_trajectory(model):
    @all_given
    async def protocol(task, roles):
        first, second, third = (roles.solver.begin(problem=letter) for letter in "abc")
        for chat in (first, second, third):
            await chat.say()
        third.join(second)
        second.join(first)
        first.join(third)  # they are one already
        for chat in (first, second, third):
            chat.reward(OUTCOME, 1.0)
        third.turns[0].reward(TURN, 0.5)
        with refuses("E_CONVERSATION_OF_OTHER_ROLE"):
            first.join(roles.other.begin(problem="x"))
        await roles.solver(problem="alone")

    [episode] = play(model, protocol)
    *joined, alone = episode.traces
    assert [trace.trajectory for trace in joined] == [str(joined[0].address)] * 3 and alone.trajectory == ""
    assert len({trace.trajectory_id for trace in episode.traces}) == 2
    signals = [(reward.name, reward.tokens) for reward in joined[2].rewards]
    assert signals == [("turn", (0, len(joined[2].token_ids))), ("outcome", None)]


def test_what_is_too_long_since_others_said_too_much_fails_alone(model):
    """A first turn after others have spoken; not the problem's own, nor a conversation that outgrows its context."""
    seen = {}

    @all_given
    async def protocol(task, roles):
        first = await roles.solver(problem=task.prompt)
        first.reward(OUTCOME, 1.0)
        review = await roles.other(problem="x" * 200, parent=first)
        seen.update(failed=review.failed, parsed=review.parsed, unread=(await roles.solver(problem="y" * 200)).parsed)

    [episode] = play(model, protocol)
    other, solved, unsolved = episode.traces
    assert (solved.failure, other.failure, unsolved.failure) == (None, TOO_LONG, TOO_LONG)
    assert [reward.value for reward in solved.rewards] == [1.0] and other.parent == str(solved.address)
    assert other.finish == "failed" and other.text == ""
    assert seen["failed"] and seen["parsed"] is None, "a role without a parser"
    assert not seen["unread"].ok and seen["unread"].reason == TOO_LONG

    @all_given
    async def too_long_a_problem(task, roles):
        await roles.solver(problem="x" * 200)

    @all_given
    async def outgrows(task, roles):
        chat = roles.solver.begin(problem=task.prompt)
        await chat.say()
        chat.user("x" * 200)
        await chat.say()

    @all_given
    async def too_long_for_the_second(task, roles):
        await roles.solver(problem="x")
        await roles.solver(problem=task.prompt)

    long = [replace(task, prompt="y" * 200) for task in letter_tasks(1)]
    for broken, tasks in (
        (too_long_a_problem, letter_tasks(1)),
        (outgrows, letter_tasks(1)),
        (too_long_for_the_second, long),
    ):
        executor = RolloutRunner(LocalEngine({"a": model}), {"a": CharRenderer()}, {"solver": ROLES["solver"]}, seed=0)
        [episode] = executor.collect(broken, tasks, step=0, group_size=1)
        assert episode.failure == TOO_LONG
