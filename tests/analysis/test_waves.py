"""How far the runs of a comparison are is said from their files."""

import json
import os
import pty
import signal
import sys
import time

import pytest

from cotrain.analysis.comparison.waves import alarms_suffix, progress_line, run_jobs, share_done
from cotrain.core.errors import UnknownName
from cotrain.distributed.device_memory import PARALLEL_RUNS
from tests.sentences import refuses


def test_the_line_has_total_and_time_left():
    line = progress_line([1.0, 0.5, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], 60.0)
    assert line == "[    60 s] 1 of 4 runs are done, 38% of all steps, 2:30 left"
    assert progress_line([0.0], [0.0], 30.0) == "[    30 s] 0 of 1 runs are done, 0% of all steps"


def test_the_time_left_does_not_grow_while_a_run_is_opened():
    """Half of the steps were done after a minute; a minute later it had been "2:00 left", and 4:00 after four."""
    left = [progress_line([1.0, 0.0], [0.0, 0.0], 60.0 + idle, idle=idle).partition("steps, ")[2] for idle in (0, 45)]
    assert left == ["1:00 left", "0:15 left"]
    late = progress_line([1.0, 0.0], [0.0, 0.0], 240.0, idle=180.0)
    assert late == "[   240 s] 1 of 2 runs are done, 50% of all steps, the last one 3:00 ago"


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


def test_a_run_that_is_done_tells_its_alarms_each_once(tmp_path):
    fired = [{"band": name, "key": key} for name, key in (("gap", "gap"), ("cut off", "a/truncated"), ("gap", "other"))]
    summary = json.dumps({"alarms": fired})
    write = f"import pathlib; pathlib.Path('summary.json').write_text({summary!r})"
    (tmp_path / "arm" / "seed-0").mkdir(parents=True)
    lines = []
    code = f"import os; os.chdir({str(tmp_path / 'arm' / 'seed-0')!r}); {write}"
    run_jobs([(tmp_path / "arm" / "seed-0", [sys.executable, "-c", code, "run"])], 1, lines.append)
    assert lines[-1].endswith("s] arm seed-0 is done, 0 to go; alarms: gap, cut off")
    assert alarms_suffix(tmp_path) == ""
    for text in ("{}", '{"alarms": []}', '{"alarms": 3}', "[]", "{"):
        (tmp_path / "summary.json").write_text(text)
        assert alarms_suffix(tmp_path) == ""


def test_runs_know_how_many_share_the_machine_and_one_that_is_killed_is_called_so(tmp_path):
    def job(name, code):
        return tmp_path / "arm" / name, [sys.executable, "-c", f"import os; {code}", "run"]

    note = "open({!r}, 'w').write(os.environ[{!r}])"
    places = [tmp_path / name for name in ("a", "b", "c")]
    run_jobs([job(place.name, note.format(str(place), PARALLEL_RUNS)) for place in places], 2, lambda line: None)
    assert [place.read_text() for place in places] == ["2", "2", "2"]
    with refuses("E_RUN_OF_COMPARISON_FAILED"):
        run_jobs([job("d", "os.kill(os.getpid(), 9)")], 1, lambda line: None)


def test_runs_are_in_groups_of_their_own_in_our_session(tmp_path):
    """So they can be lowered as one: Linux shares a processor among sessions first. None of them waits for input."""
    note = "[os.getsid(0), os.getpgid(0) == os.getpid(), sys.stdin.read()]"
    code = f"import json, os, sys; json.dump({note}, open({str(tmp_path / 'seen')!r}, 'w'))"
    run_jobs([(tmp_path / "arm" / "seed-0", [sys.executable, "-c", code, "run"])], 1, lambda line: None)
    assert json.loads((tmp_path / "seen").read_text()) == [os.getsid(0), True, ""]
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGTTIN, signal.SIGTTOU}


def test_a_run_that_is_done_is_looked_at_before_another_one_begins(tmp_path):
    jobs = [(tmp_path / "arm" / name, [sys.executable, "-c", "", "run"]) for name in ("a", "b")]
    lines = []

    def refuse(folder):
        raise UnknownName("measure", "gredy", [folder.name])

    with refuses("E_UNKNOWN_MEASURE", names="a"):
        run_jobs(jobs, 1, lines.append, refuse)
    assert [line.partition("] ")[2] for line in lines] == ["arm a begins", "arm a is done, 1 to go"]


RUN_AT_TERMINAL = """
import os, signal, sys, time
log = open(sys.argv[1] + ".heard", "a", buffering=1)
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    signal.signal(number, lambda number, frame: log.write(signal.Signals(number).name + "\\n"))
try:
    open("/dev/tty").read(1)
except OSError:
    log.write("no terminal\\n")
while "SIGTERM" not in open(log.name).read():
    time.sleep(0.02)
"""
COMPARISON_AT_TERMINAL = """
import sys
from pathlib import Path
from cotrain.analysis.comparison.waves import run_jobs
place = Path(sys.argv[1])
run_jobs([(place, [sys.executable, "-c", sys.argv[2], str(place)])], 1, lambda line: None)
"""


@pytest.mark.whole
@pytest.mark.parametrize("how", ["ctrl-c", "hangup"])
def test_a_run_hears_of_the_terminal_from_us_alone(how, tmp_path):
    """A Ctrl-C, and a terminal that closes, reach a comparison, which ends its runs; a run that reads the terminal is
    not stopped for good."""
    place = tmp_path / "arm" / "seed-0"
    heard = tmp_path / "arm" / "seed-0.heard"
    child, terminal = pty.fork()
    if not child:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which tests under nohup would ignore, and so would it
        os.execv(sys.executable, [sys.executable, "-c", COMPARISON_AT_TERMINAL, str(place), RUN_AT_TERMINAL])
    while not (heard.exists() and heard.read_text()):
        has_ended, _ = os.waitpid(child, os.WNOHANG)
        assert not has_ended  # a machine may be so busy that the run begins after minutes
        time.sleep(0.02)
    if how == "ctrl-c":
        os.write(terminal, b"\x03")
    else:
        os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + (signal.SIGINT if how == "ctrl-c" else signal.SIGHUP)
    assert heard.read_text().splitlines() == ["no terminal", "SIGTERM"]
    if how == "ctrl-c":
        os.close(terminal)
