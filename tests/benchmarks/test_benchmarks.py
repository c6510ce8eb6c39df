"""The harness, the work and the floors of ``benchmarks/``, which are scripts and no package."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import base_table
import demo_step
from floors import Ceilings, Cost, Shape, costs
from harness import alternate, ask, check_same, ratio
from work import Work, reward

from cotrain.core.statistics import Estimate
from tests.helpers import TINY

MEBI = 2**20


def says(text: str) -> list[str]:
    return [sys.executable, "-c", f"print('noise'); print({text!r})"]


def test_ratios_are_taken_within_pairs() -> None:
    pairs = [({"s": 1.0}, {"s": 2.0}), ({"s": 10.0}, {"s": 40.0}), ({"s": 2.0}, {"s": 6.0})]  # 2, 4, 3
    found = ratio(pairs, "s")
    assert (found.a, found.b) == (2.0, 6.0)
    assert (found.middle, found.low, found.high, found.pairs) == (3.0, 2.0, 4.0, 3)


def test_the_last_line_of_each_command_counts() -> None:
    assert alternate(says('{"s": 1}'), says('{"s": 2}'), 2) == [({"s": 1}, {"s": 2})] * 2


def test_commands_run_in_turn(tmp_path: Path) -> None:
    log = tmp_path / "log"
    a, b = ([sys.executable, "-c", f"open({str(log)!r}, 'a').write({name!r}); print('{{}}')"] for name in "AB")
    alternate(a, b, 2)
    assert log.read_text(encoding="utf-8") == "ABAB"


def test_a_failing_command_says_what_it_said() -> None:
    with pytest.raises(RuntimeError, match="no such thing"):
        ask([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_unequal_work_is_refused() -> None:
    one = {"sampled_tokens": 8, "learned_tokens": 8, "optimizer_steps": 1, "parameters": 5, "threads": 1}
    check_same(one, dict(one))
    with pytest.raises(RuntimeError, match="learned_tokens: 8 and 7"):
        check_same(one, one | {"learned_tokens": 7})


def test_drawn_lengths_have_the_mean_and_the_limit() -> None:
    work = Work(tasks=250, group=8, prompt=4, new=64, lengths="drawn")
    lengths = work.answers(3)
    assert lengths == work.answers(3) != work.answers(4)
    assert len(lengths) == 2000
    assert max(lengths) == work.longest == 160
    assert sum(lengths) / 2000 == pytest.approx(64, rel=0.05)


def test_fixed_lengths_are_the_mean() -> None:
    assert Work(tasks=2, group=2, prompt=4, new=5).answers(0) == [5, 5, 5, 5]


def test_rewards_of_different_answers_differ() -> None:
    assert reward((1, 2, 3)) != reward((1, 2, 4))


def test_costs_by_hand() -> None:
    # layers: 2·4² + 2·4·2 + 3·4·8 = 32 + 16 + 96 = 144; output 4·10 = 40; norms 3·4 = 12
    shape = Shape(depth=1, width=4, heads=2, kv_heads=1, feed_forward=8, vocabulary=10)
    assert shape.parameters == 144 + 40 + 12
    needed = costs(shape, prompts=1, prompt=3, answers=[2, 3])
    # prefill: 3 tokens, 6 pairs of 4·4 FLOPs
    assert needed["prefill"].flops == 2 * (144 * 3 + 40) + 16 * 6
    # decode: 1 + 2 tokens; the first looks at 3 + 1, the others at 3 + 1 and 3 + 2
    assert needed["decode"].flops == 2 * (144 + 40) * 3 + 16 * (4 + 4 + 5)
    # two steps of all weights, and 2 vectors of 2 numbers of 4 bytes for each of 13 pairs
    assert needed["decode"].traffic == 2 * 4 * 196 + 2 * 2 * 4 * 13
    # scoring: 3 + 3 tokens through the layers, 5 predictions
    assert needed["scoring"].flops == 2 * (144 * 6 + 40 * 5) + 16 * (6 + 13)
    assert needed["update"].flops == 3 * needed["scoring"].flops


def test_a_floor_is_what_takes_longer_at_the_bandwidth_of_its_size() -> None:
    ceilings = Ceilings(flops=100.0, bandwidth={MEBI: 50.0, 4 * MEBI: 10.0})
    assert Cost(flops=200.0, traffic=50.0, held=MEBI).floor(ceilings) == 2.0  # 2 s against 1 s
    assert Cost(flops=200.0, traffic=50.0, held=2 * MEBI).floor(ceilings) == 5.0  # 2 s against 5 s
    assert Cost(flops=0.0, traffic=50.0, held=9 * MEBI).floor(ceilings) == 5.0  # larger than any: the largest's


@pytest.mark.whole
def test_the_table_of_a_base_is_measured_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    base_table.main([TINY, "--lengths", "2", "2", "--problems", "6"])
    *shown, last = capsys.readouterr().out.splitlines()
    found = json.loads(last)[TINY]["2"]
    assert found["solver/pass@1"]["n"] == found["made/right"]["n"] == 6
    assert found["made/right"]["value"] in {n / 6 for n in range(7)} and found["made/parsed"]["value"] > 0.5
    assert any(line.startswith("| 2 | ") for line in shown) and f"{TINY}, checking made solutions" in shown


def test_a_figure_that_is_not_known_is_a_dash() -> None:
    unknown = Estimate(value=math.nan, low=-math.inf, high=math.inf, n=0)
    row = dict.fromkeys((key for keys in base_table.SHOWN.values() for key in keys), unknown)
    row["solver/greedy"] = Estimate(value=0.754, low=0.7, high=0.8, n=99)
    assert "| 3 | – | 0.75 | – |" in base_table.table("m", {3: row})


def test_a_demo_that_became_slower_is_a_warning_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = {"seconds": 2.0, "generator": 3.0, "verifier": 1.0}
    there = {name: value / 2 for name, value in here.items()}
    monkeypatch.setattr(demo_step, "measure_tree", lambda tree, steps: here if tree == str(demo_step.ROOT) else there)
    monkeypatch.setattr(demo_step, "extract_commit", lambda commit, folder: None)
    demo_step.compare_commits("abc", 4, 2)
    shown = capsys.readouterr()
    assert "generator: 3.00 s here, 1.50 s at abc, ratio 0.50 (0.50 to 0.50, 2 pairs)" in shown.out
    assert "warning: a step of the demo takes 2.00 times as long as at abc" in shown.err


def test_a_commit_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--against nowhere: .*; expected a commit of this repository"):
        demo_step.extract_commit("nowhere", str(tmp_path))
