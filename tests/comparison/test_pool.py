"""How far the runs of a comparison are is said from their files."""

import json

from cotrain.comparison.pool import far, share_done


def test_the_line_has_total_and_time_left():
    line = far([1.0, 0.5, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], 60.0)
    assert line == "[    60 s] 1 of 4 runs are done, 38% of all steps, 2:30 left"
    assert far([0.0], [0.0], 30.0) == "[    30 s] 0 of 1 runs are done, 0% of all steps"


def test_a_run_tells_its_share_by_its_steps(tmp_path):
    assert share_done(tmp_path) == 0.0
    (tmp_path / "recipe.json").write_text(json.dumps({"steps": 10}))
    rows = [json.dumps({"step": step}) for step in range(5)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*rows, '{"st']))
    assert share_done(tmp_path) == 0.5
    (tmp_path / "summary.json").write_text("{}")
    assert share_done(tmp_path) == 1.0
