"""A model that nobody can read raises one alarm, with the advice that helps; what is left when that is mended is told
then."""

import pytest

from cotrain.metrics.alarms import Monitor, check_rows

NOTHING = {"generator/zero_spread_groups": 1.0, "generator/credit/samples": 0, "generator/dropped/zero_spread": 64}


def rows(count, **more):
    named = {key.replace("__", "/"): value for key, value in more.items()}
    return [{"step": i, "phase": "p", **NOTHING, **named} for i in range(count)]


def told(series, **how):
    return [(alarm.band, alarm.key, alarm.step) for alarm in check_rows(series, **how)]


def test_a_wholly_unreadable_model_is_told_once():
    for share in (0.95, 1.0):
        series = rows(30, solver__parse_failures=share, solver__accuracy=0.0, solver__truncated=0.1)
        assert told(series, finished=True) == [("unreadable answers", "solver/parse_failures", 0)]
        (alarm,) = check_rows(series)
        assert "--answer-format or --prompt" in alarm.advice


def test_answers_that_are_all_cut_off_are_told_once():
    series = rows(30, solver__parse_failures=1.0, solver__accuracy=0.0, solver__truncated=1.0)
    assert told(series, finished=True) == [("mostly cut off", "solver/truncated", 0)]
    judge = rows(30, verifier__parse_failures=1.0, verifier__base_rate=0.5)
    judge = [{key: value for key, value in row.items() if not key.startswith("generator")} for row in judge]
    assert told(judge) == [("mostly unreadable reviews", "verifier/parse_failures", 0)]  # no second one later


def test_a_partial_cause_hides_nothing():
    series = rows(3, solver__parse_failures=0.6, solver__accuracy=0.0)
    assert sorted(told(series)) == [
        ("constant reward", "generator/zero_spread_groups", 0),
        ("unreadable answers", "solver/parse_failures", 0),
    ]


def test_constant_reward_is_told_at_the_first_step_and_alone():
    monitor, series = Monitor(), rows(30, solver__parse_failures=0.0, solver__accuracy=1.0)
    (first,) = monitor.add_row(series[0])
    assert (first.band, first.step) == ("constant reward", 0)
    assert "1.00 at 1 step alone" in first.line() and "No group of the first step" in first.line()
    assert [alarm for row in series[1:] for alarm in monitor.add_row(row)] == [] == monitor.end_run()
    (alarm,) = monitor.alarms
    assert (alarm.step, alarm.last, alarm.reading) == (0, 29, "1.00")
    assert alarm.advice.startswith("No group has two different rewards")


def test_what_remains_when_the_cause_is_gone_is_told_then():
    series = rows(4, solver__parse_failures=1.0, solver__accuracy=0.0)
    series += [row | {"step": row["step"] + 4, "solver/parse_failures": 0.1} for row in series]
    assert told(series) == [
        ("unreadable answers", "solver/parse_failures", 0),
        ("constant reward", "generator/zero_spread_groups", 4),
    ]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_first_step_in_which_some_group_has_spread_is_silent(share):
    series = rows(2, solver__parse_failures=0.0, solver__accuracy=0.5)
    series = [row | {"generator/zero_spread_groups": share, "generator/credit/samples": 8} for row in series]
    assert told(series) == []


def test_what_a_short_run_was_told_is_not_told_again_at_its_end():
    series = rows(1, agent__parse_failures=1.0, agent__accuracy=0.0)
    assert told(series, finished=True) == [("unreadable answers", "agent/parse_failures", 0)]


def test_a_constant_reward_is_not_always_the_problems_fault():
    (alarm,) = [one for one in check_rows(rows(3, solver__accuracy=1.0)) if one.band == "constant reward"]
    assert "a format is paid that all of them keep" in alarm.advice


def test_a_trial_of_two_problems_says_nothing_of_equal_rewards():
    """Four groups that are all right or all wrong are chance."""
    series = rows(2, solver__accuracy=0.5, solver__parse_failures=0.0, generator__advantage__outcome=0.0)
    assert told(series, finished=True, problems=2) == []
    assert [name for name, *_ in told(series, finished=True, problems=8)] == ["constant reward"]
    learned = [row | {"generator/credit/samples": 8, "generator/coverage/outcome": 1.0} for row in series]
    assert told(learned, finished=True, problems=2) == []
    assert [name for name, *_ in told(rows(4), finished=True, problems=2)] == ["constant reward"]
    nothing = [
        {"step": i, "phase": "p", "generator/credit/samples": 0, "generator/dropped/no tokens": 8} for i in (0, 1)
    ]
    assert [name for name, *_ in told(nothing, finished=True, problems=2)] == ["no samples"]  # another reason
