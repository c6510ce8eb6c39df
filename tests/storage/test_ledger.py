"""The ledger: exact round trips, entry at any step, torn tails, cutting back, and that no damage goes unnoticed."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import math
import os
import random
import struct
from functools import partial
from pathlib import Path

import pytest
from fault_files import KILLED, FaultyFiles, in_child
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.core.errors import StateError
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Reward, Trace, TurnRange
from cotrain.storage.episode_json import decode_floats, encode_floats, trace_from_json, trace_to_json
from cotrain.storage.file_ops import DiskError
from cotrain.storage.ledger import NAME, Ledger, encode_member
from tests.sentences import refuses

FLOAT32 = struct.Struct("<f")


def episodes_of(step: int, tasks: int = 2, members: int = 2, tokens: int = 5) -> tuple[Episode, ...]:
    draw = random.Random(step)

    def trace(task: int, member: int, role: str) -> Trace:
        ids = tuple(draw.randrange(500) for _ in range(tokens))
        logprobs = tuple(FLOAT32.unpack(FLOAT32.pack(math.log1p(-draw.random())))[0] for _ in ids)
        address = Address(step=step, task=task, member=member, role=role, call=0)
        return Trace(
            address=address,
            role=role,
            policy="generator" if role == "solver" else "verifier",
            version=step,
            group=f"{step}:{task}",
            prompt_ids=tuple(random.Random(task).randrange(500) for _ in range(8)),
            token_ids=ids,
            logprobs=logprobs,
            text=" ".join(draw.choice(["so", "12", "+", "é<"]) for _ in ids),
            finish="stop",
            rewards=(Reward(name="outcome", value=0.1), Reward(name="step", value=-1.0, tokens=(1, 3))),
            findings={"steps": ["a", "b"], "final": None},
            metadata={"correct": True},
            parent=None if role == "solver" else str(dataclasses.replace(address, role="solver")),
        )

    return tuple(
        Episode(
            step=step,
            task=task,
            member=member,
            task_id=f"words/train/{task}",
            traces=tuple(trace(task, member, role) for role in ("solver", "verifier")),
        )
        for task in range(tasks)
        for member in range(members)
    )


def filled(directory: Path, steps: list[int]) -> bytes:
    with Ledger(directory) as ledger:
        for step in steps:
            ledger.append(step, episodes_of(step))
        ledger.sync()
    return (directory / NAME).read_bytes()


names = st.text(max_size=6)
ids = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
signals = st.builds(
    Reward, name=names, value=st.floats(allow_nan=False), tokens=st.none() | st.tuples(st.integers(), st.integers())
)
traces = st.builds(
    Trace,
    address=st.builds(
        Address, step=st.just(4), task=st.integers(), member=st.integers(), role=names, call=st.integers(), path=ids
    ),
    role=names,
    policy=names,
    version=st.integers(),
    group=names,
    prompt_ids=ids,
    token_ids=ids,
    logprobs=st.lists(st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False), max_size=5).map(tuple),
    text=st.text(max_size=20) | st.just("\ud800 \u2028\r\x00"),
    finish=names,
    rewards=st.lists(signals, max_size=3).map(tuple),
    failure=st.none() | names,
    findings=st.dictionaries(names, values, max_size=3),
    metadata=st.dictionaries(names, values, max_size=3),
    parent=st.none() | names,
    turns=st.lists(st.builds(TurnRange, start=st.integers(0, 9), end=st.integers(0, 9), finish=names), max_size=3).map(
        tuple
    ),
    entropies=st.lists(st.integers(0, 91), max_size=5).map(bytes),
)
episodes = st.builds(
    Episode,
    step=st.just(4),
    task=st.integers(),
    member=st.integers(),
    task_id=names,
    traces=st.lists(traces, max_size=3).map(tuple),
    failure=st.none() | names,
)


@pytest.mark.whole
@settings(deadline=None, max_examples=60)
@given(st.lists(episodes, max_size=3))
def test_everything_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, given: list[Episode]) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("ledger"))
    ledger.append(4, given)
    back = ledger.read(4)
    assert back == tuple(given)
    assert [t.logprobs for e in back for t in e.traces] == [t.logprobs for e in given for t in e.traces]
    ledger.close()


def test_the_mask_of_several_turns_is_stored_as_their_spans() -> None:
    [episode, *_] = episodes_of(1, tokens=9)
    turns = (TurnRange(start=0, end=4, finish="stop"), TurnRange(start=7, end=9, finish="length"))
    trace = dataclasses.replace(episode.traces[0], turns=turns)
    stored = json.loads(json.dumps(trace_to_json(trace)))
    assert stored["turns"] == [[0, 4, "stop"], [7, 9, "length"]] and trace_from_json(stored) == trace
    assert trace.mask == (True,) * 4 + (False,) * 3 + (True,) * 2 and trace.sampled_count == 6
    assert episode.traces[0].mask == (True,) * 9 and episode.traces[0].sampled_count == 9


@given(st.lists(st.floats(), max_size=6))
def test_floats_keep_their_bits(floats: list[float]) -> None:
    back = decode_floats(encode_floats(floats))
    assert struct.pack(f"{len(floats)}d", *back) == struct.pack(f"{len(floats)}d", *floats)


def test_float32_takes_four_bytes_and_the_rest_eight() -> None:
    assert encode_floats([-0.5, -1.25]) == "f4:AAAAvwAAoL8="
    assert encode_floats([-0.1]) == "f8:mpmZmZmZub8="
    assert encode_floats([1e300]).startswith("f8:") and encode_floats([]) == "f4:"
    for bad in ("", "f4", "f2:AAAA", "f4:AAA", "f4:AA\nAAA=", "f8:AAAAvw=="):
        with pytest.raises(ValueError, match=r"."):
            decode_floats(bad)


def test_the_same_episodes_give_the_same_bytes_readable_by_gzip(tmp_path: Path) -> None:
    content = filled(tmp_path / "a", [1, 2, 5])
    assert content == filled(tmp_path / "b", [1, 2, 5])
    lines = gzip.decompress(content).decode("ascii").splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1] * 4 + [2] * 4 + [5] * 4
    assert json.loads(lines[0])["traces"][0]["findings"] == {"steps": ["a", "b"], "final": None}


def test_entering_at_a_step_or_an_address(tmp_path: Path) -> None:
    filled(tmp_path, [1, 2, 5])
    ledger = Ledger(tmp_path)
    assert ledger.steps() == (1, 2, 5)
    assert [m.episodes for m in ledger.members()] == [4, 4, 4]
    assert ledger.read(2) == episodes_of(2)
    wanted = episodes_of(5)[3].traces[1]
    assert ledger.find(wanted.address) == wanted
    with refuses("E_NOT_RECORDED", names=("step 3", "steps 1")):
        ledger.read(3)
    with refuses("E_NOT_RECORDED", names="5:1:1:judge:0"):
        ledger.find(dataclasses.replace(wanted.address, role="judge"))
    assert Ledger(tmp_path / "absent").steps() == () and not (tmp_path / "absent").exists()


def test_what_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.append(2, ())
    for step in (1, 2):
        with refuses("E_LEDGER_STEP_ORDER", names=("step 2", f"step {step}")):
            ledger.append(step, ())
    with refuses("E_LEDGER_STEP_ORDER", names=("step 4", "step 3")):
        ledger.append(3, episodes_of(4))
    episode = episodes_of(3)[0]
    trace = dataclasses.replace(episode.traces[0], findings={"p": {1: 2}})
    with refuses("E_STATE_NOT_JSON", names=("trace 3", "key 1")):
        ledger.append(3, [dataclasses.replace(episode, traces=(trace,))])
    assert ledger.steps() == (2,) and ledger.read(2) == ()
    ledger.close()


def test_a_reader_sees_whole_steps_while_they_are_written(tmp_path: Path) -> None:
    reader, writer = Ledger(tmp_path), Ledger(tmp_path)
    assert reader.steps() == ()
    for step in (0, 1):
        writer.append(step, episodes_of(step))
        assert reader.extent()[:2] == (step + 1, step)
        assert reader.read(step) == episodes_of(step)
    with (tmp_path / NAME).open("ab") as file:
        file.write(encode_member(2, episodes_of(2))[:-1])
    assert reader.steps() == (0, 1)
    assert writer.truncate_after(0) == 1
    assert reader.steps() == (0,)
    writer.append(1, episodes_of(1))
    assert reader.steps() == (0, 1)
    writer.close()


def test_a_tail_torn_at_any_byte_is_ignored_and_repaired(memory_path: Path) -> None:
    content = filled(memory_path, [0, 1])
    path, start = memory_path / NAME, len(encode_member(0, episodes_of(0)))
    for end in range(start, len(content), 7):
        for zeros in (b"", bytes(200)):  # a power cut may leave zeros where nothing was written
            if zeros and end != start:
                continue
            path.write_bytes(content[:end] + zeros)
            ledger = Ledger(memory_path)
            assert ledger.steps() == (0,)
            ledger.append(1, episodes_of(1))
            ledger.close()
            assert path.read_bytes() == content


@pytest.mark.parametrize("step", range(-1, 5))
def test_truncate_and_write_again_gives_the_same_file(tmp_path: Path, step: int) -> None:
    content = filled(tmp_path, [0, 1, 3])
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"\x1f\x8btorn")
    later = [s for s in (0, 1, 3) if s > step]
    with Ledger(tmp_path) as ledger:
        assert ledger.truncate_after(step) == len(later)
        assert ledger.steps() == tuple(s for s in (0, 1, 3) if s <= step)
    assert filled(tmp_path, later) == content
    assert Ledger(tmp_path / "absent").truncate_after(step) == 0


@pytest.mark.parametrize("fault", ["ENOSPC", "EIO", "disk full", "short write"])
def test_an_error_leaves_no_half_step(memory_path: Path, fault: str) -> None:
    content = filled(memory_path / "right", [0, 1, 2])
    counted = FaultyFiles()
    with Ledger(memory_path / "counted", files=counted) as ledger:
        for step in range(3):
            ledger.append(step, episodes_of(step))
    for at, operation in enumerate(counted.log):
        if operation == "close":
            continue
        files = FaultyFiles(fault, at)
        with Ledger(memory_path / str(at), files=files) as ledger:
            for step in range(3):
                try:
                    ledger.append(step, episodes_of(step))
                except DiskError as error:
                    assert error.code == "E_DISK_REFUSED" and f"step {step} " in str(error)
                    assert Ledger(memory_path / str(at)).steps() == tuple(range(step))
                    files.at = None
                    ledger.append(step, episodes_of(step))
        assert (memory_path / str(at) / NAME).read_bytes() == content


@pytest.mark.whole
def test_killed_at_every_operation(memory_path: Path) -> None:
    content = filled(memory_path / "right", [0, 1, 2])

    def work(directory: Path, files: FaultyFiles) -> None:
        with Ledger(directory, files=files) as ledger:
            for step in range(3):
                if step not in ledger.steps():
                    ledger.append(step, episodes_of(step))

    counted = FaultyFiles()
    work(memory_path / "counted", counted)
    for at in range(counted.count):
        directory = memory_path / str(at)
        assert in_child(partial(work, directory, FaultyFiles("kill", at))) == KILLED
        work(directory, FaultyFiles())
        assert (directory / NAME).read_bytes() == content


@pytest.mark.whole
def test_a_flipped_bit_is_detected_or_harmless(memory_path: Path) -> None:
    """Harmless are the few bits of padding between a member's last block and its checksum."""
    content = bytearray(filled(memory_path, [0, 1, 2]))
    path, draw, silent, padding = memory_path / NAME, random.Random(0), [], 0
    for _ in range(600):
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            ledger = Ledger(memory_path)
            if [ledger.read(step) for step in (0, 1, 2)] == [episodes_of(step) for step in (0, 1, 2)]:
                padding += 1
            else:
                silent.append(bit)
        except StateError as error:
            assert "damaged" in str(error)
        content[bit // 8] ^= 1 << bit % 8
    assert silent == [] and padding < 6


def test_damage_is_not_taken_for_a_torn_tail(tmp_path: Path) -> None:
    content = bytearray(filled(tmp_path, [0, 1, 2]))
    second = Ledger(tmp_path).members()[1].start
    content[second] ^= 1
    (tmp_path / NAME).write_bytes(content)
    ledger = Ledger(tmp_path)
    assert ledger.read(0) == episodes_of(0)
    for attempt in (lambda: ledger.read(1), lambda: ledger.append(3, ()), lambda: ledger.truncate_after(1)):
        with refuses("E_LEDGER_DAMAGED", names=(f"byte {second}", "steps 0 to 0")):
            attempt()
    assert (tmp_path / NAME).read_bytes() == content
    assert ledger.truncate_after(0) == 0  # a checkpoint of step 0 needs nothing of what is damaged
    ledger.append(1, episodes_of(1))
    assert ledger.steps() == (0, 1)
    ledger.close()


def test_a_step_that_does_not_rise_is_damage(tmp_path: Path) -> None:
    filled(tmp_path, [0, 1])
    with (tmp_path / NAME).open("ab") as file:
        file.write(encode_member(1, episodes_of(1)))
    with refuses("E_LEDGER_DAMAGED", names="steps 0"):
        Ledger(tmp_path).append(2, ())


def test_a_cut_that_the_disk_refuses_forgets_nothing(tmp_path: Path) -> None:
    filled(tmp_path, [0, 1, 2])
    counted = FaultyFiles()
    Ledger(tmp_path, files=counted).truncate_after(2)
    ledger = Ledger(tmp_path, files=FaultyFiles("EIO", counted.count))
    with pytest.raises(DiskError):
        ledger.truncate_after(0)
    with refuses("E_LEDGER_STEP_ORDER", names="step 2"):
        ledger.append(1, ())
    assert ledger.read(2) == episodes_of(2)


def test_a_ledger_that_is_left_holds_no_file(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with Ledger(tmp_path) as ledger:
        ledger.append(0, ())
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.whole
def test_the_index_holds_no_object_for_each_step(tmp_path: Path) -> None:
    """A run may have a hundred thousand steps: 20 bytes each, and nothing that the collector of garbage sees."""
    with Ledger(tmp_path) as ledger:
        for step in range(20):
            ledger.append(step, ())
        before = _objects()
        for step in range(20, 320):
            ledger.append(step, ())
        assert _objects() - before < 100
        assert len(ledger.steps()) == 320 and ledger.members()[300].step == 300


def _objects() -> int:
    gc.collect()
    return len(gc.get_objects())


def test_a_step_is_compact() -> None:
    """The log-probabilities alone are 4 bytes per token; random ids and words are most of the rest."""
    member = encode_member(0, episodes_of(0, tasks=4, members=4, tokens=100))
    assert len(member) / (4 * 4 * 2 * 100) < 7.5


def test_a_field_of_older_ledgers_is_read_over() -> None:
    trace = episodes_of(1)[0].traces[0]
    assert trace_from_json({**trace_to_json(trace), "learn_ids": [1, 2]}) == trace


def test_entropies_are_a_character_a_token_and_older_ledgers_have_none() -> None:
    trace = dataclasses.replace(episodes_of(1)[0].traces[0], entropies=bytes([0, 22, 91]))
    stored = trace_to_json(trace)
    assert stored["entropies"] == "#9~" and trace_from_json(stored) == trace
    del stored["entropies"]
    assert trace_from_json(stored).entropies == b"" and "entropies" not in trace_to_json(trace_from_json(stored))
