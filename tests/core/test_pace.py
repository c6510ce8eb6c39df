"""Lines of progress have total and time left, and there are few of them."""

from cotrain.core.verbosity import Pace, clock_text


def test_lines_come_every_five_seconds_and_ten_times_at_most():
    said, now = [], [0.0]
    pace = Pace(100, "gsm8k: {} problems", said.append, clock=lambda: now[0])
    for _ in range(100):
        now[0] += 1.0
        pace.add()
    assert said[0] == "gsm8k: 10 of 100 problems, 1:30 left"
    assert said[-1] == "gsm8k: 90 of 100 problems, 0:10 left" and len(said) == 9


def test_what_is_over_at_once_says_nothing():
    said = []
    pace = Pace(3, "{}", said.append, clock=lambda: 0.0)
    for _ in range(3):
        pace.add()
    assert said == []


def test_what_was_done_before_says_nothing_of_the_speed():
    said, now = [], [0.0]
    pace = Pace(1000, "{}", said.append, done=500, clock=lambda: now[0])
    now[0] = 100.0
    pace.add(100)
    assert said == ["600 of 1,000, 6:40 left"] and clock_text(7384) == "2:03:04"
