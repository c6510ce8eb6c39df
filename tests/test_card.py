"""The model card says which alarm fired, when, what was read, and what to do."""

from cotrain.metrics.alarms import check_rows
from cotrain.serving.export import _alarm_text


def test_an_alarm_on_the_card_has_its_name_step_and_reading():
    rows = [{"step": i, "solver/parse_failures": 0.8, "solver/accuracy": 0.1} for i in range(3)]
    (alarm,) = check_rows(rows)
    line = _alarm_text(alarm.to_json())
    assert line.startswith(
        "unreadable answers, after step 1 to 3 (solver/parse_failures: 0.80; healthy: at most 0.5). "
    )
    assert line.endswith(alarm.advice)
    (alarm,) = check_rows(rows[:1])
    assert _alarm_text(alarm.to_json()).startswith("unreadable answers, after step 1 (solver")
    assert _alarm_text({"odd": 1}) == '{"odd": 1}'
