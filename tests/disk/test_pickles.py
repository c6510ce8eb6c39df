"""Pickles read as notes: plain values come back, and nothing that a pickle asks for is done."""

import collections
import datetime
import io
import pickle
import pickletools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotrain.core.errors import DataError
from cotrain.disk.pickles import Made, Name, read_pickle

keys = st.one_of(st.text(max_size=300), st.binary(max_size=300), st.integers(), st.none(), st.booleans())
plain = st.recursive(
    st.one_of(keys, st.floats(allow_nan=False)),
    lambda inner: st.one_of(st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner)),
    max_leaves=20,
)


@given(value=plain, protocol=st.integers(3, 5))
@settings(max_examples=200, deadline=None)
def test_plain_values_come_back(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol), "here") == value


def test_objects_are_notes_with_their_arguments_and_state():
    class Local:
        pass

    made = read_pickle(pickle.dumps(datetime.timedelta(3), 4), "here")
    assert made == Made(Name("datetime", "timedelta"), (3, 0, 0))
    ordered = collections.OrderedDict(a=1)
    ordered.mark = "x"
    found = read_pickle(pickle.dumps(ordered, 2), "here")
    assert found.by == Name("collections", "OrderedDict") and found.items == {"a": 1} and found.state == {"mark": "x"}


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, canary):
        self.canary = canary

    def __reduce__(self):
        return (open, (str(self.canary), "w"))


def bombs(canary):
    """The same attack through every instruction that calls something."""
    target = str(canary).encode()
    argument = b"X" + len(target).to_bytes(4, "little") + target
    mode = b"X\x01\x00\x00\x00w"
    yield pickle.dumps(Bomb(canary), 4)
    yield pickle.dumps({"harmless": [Bomb(canary)]}, 2)
    yield b"\x80\x02cio\nopen\n" + argument + mode + b"\x86R."  # GLOBAL, REDUCE
    yield b"\x80\x02(" + argument + mode + b"iio\nopen\n."  # INST
    yield b"\x80\x02(cio\nopen\n" + argument + mode + b"o."  # OBJ


def test_no_pickle_writes_its_canary(tmp_path):
    canary = tmp_path / "canary"
    attacks = list(bombs(canary))
    for content in attacks:
        pickle.loads(content)  # noqa: S301 - the control: these attacks are real
        assert canary.exists(), "the control: plain pickle is taken in"
        canary.unlink()
    for content in attacks:
        try:
            assert "open" in repr(read_pickle(content, "here"))
        except DataError as error:
            assert str(error).startswith("here: ") and "\n" not in str(error)
    assert not canary.exists()


@given(st.binary(max_size=60), st.integers(0, 10_000))
@settings(max_examples=300, deadline=None)
def test_broken_ones_are_one_error(noise, seed):
    whole = pickle.dumps({"a": (1, 2.5, b"x"), "b": datetime.timedelta(1)}, 4)
    at = seed % len(whole)
    for content in (noise, whole[:at] + noise, whole[:at] + noise + whole[at + len(noise) :]):
        try:
            read_pickle(content, "here")
        except DataError as error:
            assert str(error).startswith("here: ")


def test_a_memo_of_four_billion_entries_costs_nothing():
    content = b"\x80\x02Nr\xff\xff\xff\xff."
    assert [o.name for o, _, _ in pickletools.genops(io.BytesIO(content))][2] == "LONG_BINPUT"
    assert read_pickle(content, "here") is None
    for content in (b"", b"\x80\x04\x82\x01.", b"\x80\x04cio\nFileIO\n)}\x92."):  # nothing, EXT1, NEWOBJ_EX
        with pytest.raises(DataError, match="not a pickle"):
            read_pickle(content, "here")
