"""Keys of truth and findings: declared once, typed, plain JSON."""

import importlib
import math
import pkgutil
from types import SimpleNamespace

import pytest

import cotrain.recipes
import cotrain.rollout
from cotrain.core import notes
from cotrain.core.notes import CORRECT, FIRST_WRONG, MEASURED, SCORE, STEP_OK, STEPS, VERDICTS, Finding, Metadata

SHARE = Metadata[float]("share", float, "a share")


def test_a_value_of_the_declared_type_becomes_json():
    assert STEPS.checked_json([(0, 3, "a = 1"), [4, 6, "b"]], "t") == [[0, 3, "a = 1"], [4, 6, "b"]]
    assert VERDICTS.checked_json((True, False), "t") == [True, False] and VERDICTS.checked_json([], "t") == []
    assert STEP_OK.checked_json(None, "t") is None and FIRST_WRONG.checked_json(0, "t") == 0
    assert (
        SHARE.checked_json(1, "t") == 1 and type(SHARE.checked_json(1, "t")) is int
    )  # the ledger keeps what was written


@pytest.mark.parametrize(
    ("key", "value"),
    [(CORRECT, 1), (CORRECT, "yes"), (SHARE, True), (SHARE, "0.5"), (SHARE, None), (FIRST_WRONG, 1.0),
        (FIRST_WRONG, True),
     (STEP_OK, [1, 0]), (STEP_OK, "no"), (STEPS, [(0, 3)]), (STEPS, [("0", 3, "a")]), (VERDICTS, None)],
)  # fmt: skip
def test_another_type_raises(key, value):
    with pytest.raises(TypeError, match=f"'{key.name}' of 0:0:0:solver:0 is .*; expected .*{key.meaning}"):
        key.checked_json(value, "0:0:0:solver:0")


def test_a_number_without_end_raises():
    for value in (math.nan, math.inf, -math.inf):
        with pytest.raises(ValueError, match="expected a number within"):
            SCORE.checked_json(value, "t")


def test_what_was_not_written_is_none_or_refused():
    trace = SimpleNamespace(metadata={"correct": False, "step_ok": None}, findings={"score": None})
    assert CORRECT.of(trace) is False and CORRECT.require(trace) is False
    assert FIRST_WRONG.of(trace) is None and STEP_OK.of(trace) is None
    assert SCORE.is_in(trace) and not VERDICTS.is_in(trace) and SCORE.of(trace) is None
    for note in (FIRST_WRONG, STEP_OK):
        with pytest.raises(LookupError, match=f"'{note.name}' is not noted"):
            note.require(trace)


def test_every_key_is_declared_once():
    """Of notes no name stands twice; of findings only ``steps``, which are spans of a solution or verdicts of a
    judgement."""
    found: dict[tuple[type, str], set[int]] = {}
    for package in (cotrain.rollout, cotrain.recipes):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Metadata | Finding):
                    found.setdefault((type(value), value.name), set()).add(id(value))
    for value in vars(notes).values():
        if isinstance(value, Metadata | Finding):
            found.setdefault((type(value), value.name), set()).add(id(value))
    assert {name for (_, name), ids in found.items() if len(ids) > 1} == {"steps"}
    assert {"correct", "gold", "step_ok", "step_reasons", "first_wrong"} == MEASURED
