"""Lines of progress have total and time left, and there are few of them."""

import threading
import time
import weakref

from cotrain.core import verbosity
from cotrain.core.verbosity import ProgressPrinter, clock_text, remind_of


def test_lines_come_every_five_seconds_and_ten_times_at_most():
    said, now = [], [0.0]
    pace = ProgressPrinter(100, "gsm8k: {} problems", said.append, clock=lambda: now[0])
    for _ in range(100):
        now[0] += 1.0
        pace.add()
    assert said[0] == "gsm8k: 10 of 100 problems, 1:30 left"
    assert said[-1] == "gsm8k: 90 of 100 problems, 0:10 left" and len(said) == 9


def test_what_is_over_at_once_says_nothing():
    said = []
    pace = ProgressPrinter(3, "{}", said.append, clock=lambda: 0.0)
    for _ in range(3):
        pace.add()
    assert said == []


def test_what_was_done_before_says_nothing_of_the_speed():
    said, now = [], [0.0]
    pace = ProgressPrinter(1000, "{}", said.append, done=500, clock=lambda: now[0])
    now[0] = 100.0
    pace.add(100)
    assert said == ["600 of 1,000, 6:40 left"] and clock_text(7384) == "2:03:04"


def test_answers_of_one_batch_have_no_time_left():
    """The first of eight that took 55 s was told as "6:05 left", and all were there a minute later."""
    said, now = [], [0.0]
    pace = ProgressPrinter(8, "{} answers", said.append, at_once=True, clock=lambda: now[0])
    now[0] = 55.0
    pace.add()
    assert said == ["1 of 8 answers"]


def test_a_minute_without_a_word_is_ended():
    said, now = [], [0.0]
    pace = ProgressPrinter(8, "{} answers", said.append, at_once=True, clock=lambda: now[0])
    for now[0] in (30.0, 61.0, 70.0, 122.0):
        pace.remind()
    assert said == ["0 of 8 answers, after 1:01", "0 of 8 answers, after 2:02"]
    pace.add(8)
    now[0] = 400.0
    pace.remind()
    assert len(said) == 2


def test_pace_of_what_was_given_up_is_forgotten():
    before = len(verbosity._REMINDED)
    pace = ProgressPrinter(8, "{}", print)
    assert len(verbosity._REMINDED) == before + 1
    del pace
    assert len(verbosity._REMINDED) == before


class SlowWork:
    """Says that it was reminded of."""

    def __init__(self, reminded: threading.Event) -> None:
        self._reminded = reminded

    def remind(self) -> None:
        self._reminded.set()


def test_what_was_reminded_of_is_forgotten_when_it_is_over(monkeypatch):
    """A server had said every minute how much of its checkpoint was read, long after it was read."""
    monkeypatch.setattr(verbosity, "PACE_SECONDS", 0.0)
    monkeypatch.setattr(verbosity, "_REMINDER_THREADS", {})  # a thread that does not sleep for five seconds yet
    reminded = threading.Event()
    work = SlowWork(reminded)
    remind_of(work)
    assert reminded.wait(30.0)

    left = weakref.ref(work)
    del work
    deadline = time.monotonic() + 5.0
    while left() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert left() is None


def test_time_left_is_that_of_the_latter_half():
    """Answers that are under way at once end late: by the mean of all, 128 episodes of a minute were "1:17 left" half a
    minute before their end."""
    said, now = [], [0.0]
    pace = ProgressPrinter(128, "{}", said.append, clock=lambda: now[0])
    for now[0], done in ((20.0, 13), (27.0, 33), (33.0, 64), (41.0, 81), (47.0, 97)):
        pace.add(done - pace.done)
    left = [int(line[-7:-5]) for line in said[2:]]
    assert all(true / 2 < told < 2 * true for told, true in zip(left, (27, 19, 13), strict=True))


def test_a_training_that_begins_says_the_time_left_from_its_first_row_on(monkeypatch, capsys):
    """Steps of two minutes had said nothing of it for four."""
    from cotrain.cli.stages import StepPrinter

    now = [0.0]
    monkeypatch.setattr(verbosity.time, "monotonic", lambda: now[0])
    fresh, resumed = StepPrinter(10, is_new=True), StepPrinter(10)
    for now[0], step in ((120.0, 1), (180.0, 2)):
        fresh.show_row({"step": step})
        resumed.show_row({"step": step + 5})
    assert capsys.readouterr().out.splitlines() == [
        "step 1 of 10  18 min left",
        "step 6 of 10",
        "step 2 of 10  12 min left",
        "step 7 of 10  3 min left",
    ]


def test_training_says_once_a_minute_that_a_step_goes_on(monkeypatch, capsys):
    from cotrain.cli.stages import StepPrinter
    from cotrain.reports.live import LiveTable

    now = [0.0]
    monkeypatch.setattr(verbosity.time, "monotonic", lambda: now[0])
    printer, live = StepPrinter(12), LiveTable({"steps": 12})
    with live:
        for now[0] in (30.0, 61.0, 100.0):
            printer.remind()
            live.remind()
        printer.show_row({"step": 1, "loss": 1.5})
        live.update({"step": 0, "phase": "train", "seconds": 100.0})
        now[0] = 170.0
        printer.remind()
        live.remind()
    now[0] = 400.0
    live.remind()
    said = [line for line in capsys.readouterr().out.splitlines() if "after" in line]
    assert said == [
        "the first step goes on, after 1:01",
        "step 1 is not over yet, after 1:40",
        "what follows step 1 of 12 goes on, after 1:10",
        "step 2 is not over yet, after 1:10",
    ]
