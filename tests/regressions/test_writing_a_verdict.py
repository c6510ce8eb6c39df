"""A wrong program wrote its own verdict to the descriptors that it found open."""

from __future__ import annotations

import pytest

from cotrain.core.types import Grade
from tests.regressions.conftest import DEADLINE_S, GOOD, WAITS_S

SAID = {
    "a verdict": b'{"id": 1, "value": true, "reason": null}\n',
    "for any number": b"".join(
        b'{"id": %d, "value": true, "reason": null, "spent_s": 0.0}\n' % n for n in range(1, 40)
    ),
    "nothing": b"",
    "noise": bytes(range(256)) * 300,
    "a message": b"\x00\x00\x00\x0d" + b'{"gives": 4 }' + b"\x00\x00\x00\x0d" + b'{"gives":-2 }',
    "a long one": b"\xff\xff\xff\xff" + b"[" * 100_000,
    "a deep one": (99_999).to_bytes(4, "big") + b"[" * 99_999,
    "no value": b"\x00\x00\x00\x14" + b'{"gives":{"int":{}}}',
    "a name of ours": b"\x00\x00\x00\x1d" + b'{"gives":{"builtin":"eval"}} ',
}
WAITING = ("noise", "a deep one")  # their examiner waits for the end of a message
WRITE = """
import os
for number in range(64):
    try:
        os.write(number, {said!r}[:60000])
    except OSError:
        pass
def twice(x):
    return 0
"""
CLOSE = "import os\nos.closerange(0, 100)\ndef twice(x):\n    return 0\n"


@pytest.mark.whole
@pytest.mark.parametrize("name", SAID)
def test_what_a_program_writes_is_no_verdict(sandbox, name):
    deadline_s = WAITS_S if name in WAITING else DEADLINE_S
    grade = sandbox.ask(WRITE.format(said=SAID[name]), solution=GOOD, deadline_s=deadline_s)
    assert grade.value is False
    assert sandbox.is_well()


def test_a_program_that_closes_everything_is_wrong(sandbox):
    assert sandbox.ask(CLOSE, solution=GOOD) == Grade(value=False, reason="program died")
    assert sandbox.is_well()
