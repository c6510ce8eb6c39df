"""Faults planted in a copy of the package are found, each by its test."""

import subprocess
import sys
from pathlib import Path

import pytest

import cotrain
from tests.device.faults import FAULTS


def test_every_fault_has_a_place_in_the_code_of_today():
    """Quick, so that whoever renames in such a line sees it at once."""
    package = Path(cotrain.__file__).parent
    counts = {fault.name: (package / fault.file).read_text(encoding="utf-8").count(fault.old) for fault in FAULTS}
    assert set(counts.values()) == {1}, [name for name, count in counts.items() if count != 1]


@pytest.mark.whole
@pytest.mark.nightly
@pytest.mark.parametrize("part", ["1/2", "2/2"])
def test_planted_faults_are_found(part):
    """In a process that has imported neither package nor device."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.device.faults", "--part", part],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0 and done.stdout.count("found ") >= 5, done.stdout + done.stderr
