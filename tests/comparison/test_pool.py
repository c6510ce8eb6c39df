"""How far the runs of a comparison are is said from their files."""

import json

from cotrain.comparison.pool import far, share_done


def test_the_line_has_total_and_time_left():
    line = far([1.0, 0.5, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], 60.0)
    assert line == "[    60 s] 1 of 4 runs are done, 38% of all steps, 2:30 left"
    assert far([0.0], [0.0], 30.0) == "[    30 s] 0 of 1 runs are done, 0% of all steps"


def test_a_run_tells_its_share_by_what_ends_it(tmp_path):
    assert share_done(tmp_path) == 0.0
    (tmp_path / "recipe.json").write_text(json.dumps({"steps": 10}))
    rows = [json.dumps({"step": step, "tokens": 100 * step}) for step in range(5)]
    (tmp_path / "timings.jsonl").write_text("")
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"st']))
    assert share_done(tmp_path) == 0.5
    ends = {"steps": 1_000_000, "settings": {"steps": 1_000_000, "tokens": 500, "flops": None}}
    (tmp_path / "recipe.json").write_text(json.dumps(ends))
    assert share_done(tmp_path) == 0.8
    (tmp_path / "summary.json").write_text("{}")
    assert share_done(tmp_path) == 1.0
