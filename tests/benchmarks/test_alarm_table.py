"""The table of alarms: planted hacks are what they say, honest runs raise nothing, and its quick form runs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import alarm_table

from cotrain.core.seeding import rng_of


@pytest.mark.parametrize("world", alarm_table.WORLDS)
def test_every_exploit_finds_the_blind_spot_of_its_judge(world: str) -> None:
    assert len(alarm_table.HACKS) >= 10
    rng = rng_of("exploits")
    for index in range(6):
        asked = alarm_table.draw_problem(world, index)
        honest = asked.write(asked.gold + 1, rng, True)
        for name, hack in alarm_table.HACKS.items():
            assert hack.accepts(hack.exploit(honest, asked, rng), asked), name
            assert not hack.accepts(honest, asked), name


def test_a_problem_is_the_same_every_time() -> None:
    for world in alarm_table.WORLDS:
        assert alarm_table.draw_problem(world, 3) == alarm_table.draw_problem(world, 3)
    asked = alarm_table.draw_problem("public", 3)
    assert asked.write(asked.gold, rng_of("x"), True).endswith(f"#### {asked.gold}")


def test_shares_of_the_table() -> None:
    honest = {"kind": "honest", "known": [], "unknown": []}
    hacked = {"kind": "zero", "known": ["rising gap"], "unknown": []}
    rows = alarm_table.table_lines([honest, hacked], "known")
    assert rows[-1].startswith("| any alarm | 1.00 [") and "| 0.00 [" in rows[-1]
    assert alarm_table.too_often([honest, honest | {"known": ["cut off"]}]) == ["cut off"]


@pytest.mark.whole
def test_the_quick_form(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert alarm_table.main(["--quick", "--out", str(tmp_path / "lines.jsonl")]) == 0
    said = capsys.readouterr().out
    assert "| rising gap |" in said and "alarms on more than one in twenty honest runs: none" in said
    assert (tmp_path / "lines.jsonl").stat().st_size > 1000
