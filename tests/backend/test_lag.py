"""``--lag 1``: the next step is played beside the update of this one, and the run is the same bits every time."""

import json
import threading

import pytest

from cotrain.backend.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.config.override import override
from cotrain.core.errors import ConfigError
from cotrain.disk import transaction
from cotrain.disk.ledger import Ledger
from cotrain.methods.co_rewarding import co_rewarding
from cotrain.methods.critique import critique
from cotrain.methods.grpo import grpo
from cotrain.methods.magrpo.recipe import magrpo
from cotrain.methods.tango import tango
from cotrain.runs import run as loop
from cotrain.runs.directory import refuse_other_lag
from cotrain.train.guard import Interrupted
from cotrain.train.lag import PlayPipeline, StoppableEngine, check_lag
from tests.backend.processes import Here
from tests.backend.test_several import SMALL, briefly, digest
from tests.helpers import EASY, TINY

FOUR = {**SMALL, "steps": 4}
RECIPES = {
    "adapters": lambda: briefly(tango(warmup=0, ratio=(2, 1), reviews=2, lora=4, tasks=EASY, **FOUR)),
    "packed": lambda: override(
        briefly(tango(warmup=0, ratio=(2, 1), reviews=2, tasks=EASY, **FOUR)),
        [f"policies.{name}.pack_weights=true" for name in ("generator", "verifier")],
    ),
    "EMA teacher": lambda: briefly(
        co_rewarding(variant="II", rate=0.3, tasks=EASY, **{**FOUR, "tasks_per_step": 3, "group_size": 4})
    ),
}


@pytest.fixture(scope="module")
def lagging(tmp_path_factory):
    """The directory of a recipe's run with a lag of one, engine and learners apart."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp("lag") / "run"
            loop.start_run(RECIPES[name](), known[name], checkpoint_every=1, backend=MultiProcessBackend(Here()), lag=1)
        return known[name]

    return of


def rows(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.cluster
@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_two_runs_are_the_same(name, lagging, tmp_path):
    """As are those of which play and update wait for each other, below."""
    loop.start_run(RECIPES[name](), tmp_path / "again", checkpoint_every=1, backend=MultiProcessBackend(Here()), lag=1)
    assert digest(tmp_path / "again") == digest(lagging(name))


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_it_is_not_the_run_without_a_lag(name, lagging, tmp_path):
    loop.start_run(RECIPES[name](), tmp_path / "usual", checkpoint_every=1)
    assert digest(tmp_path / "usual")["weights"] != digest(lagging(name))["weights"]
    assert json.loads((lagging(name) / "recipe.json").read_text())["lag"] == 1
    assert "lag" not in json.loads((tmp_path / "usual" / "recipe.json").read_text())


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_one_process_that_plays_and_updates_in_turn_gives_the_same_run(name, lagging, tmp_path):
    loop.start_run(RECIPES[name](), tmp_path / "run", checkpoint_every=1, lag=1)
    assert digest(tmp_path / "run") == digest(lagging(name))


@pytest.mark.whole
def test_the_lag_of_each_policy_is_told_and_is_that_of_its_schedule(lagging):
    """Tango, generator, generator, verifier, generator: who was updated just before learns from what was said before
    that update."""
    found = [{key: row[key] for key in row if key.endswith("/lag")} for row in rows(lagging("adapters"))]
    assert found == [{"generator/lag": 0}, {"generator/lag": 1}, {"verifier/lag": 0}, {"generator/lag": 0}]
    with Ledger(lagging("adapters") / "episodes") as ledger:
        said = [{(t.policy, t.version) for e in ledger.read(step) for t in e.traces} for step in range(4)]
    assert [dict(step)["generator"] for step in said] == [0, 0, 1, 2]


def test_what_was_said_one_update_ago_has_a_ratio(lagging):
    """Same bits of sampler and learner give a difference of rounding; an update between them moves it."""
    near, far = (row["generator/generator/sampler_trainer_diff"] for row in rows(lagging("adapters"))[:2])
    assert near < 1e-5 < 1e-4 < far


class Stop:
    """Asks a run to stop once so many steps are done, or leaves it without a word."""

    def __init__(self, steps, error=KeyboardInterrupt):
        self.left, self.error = steps, error

    def message(self, text): ...

    def update(self, row):
        self.left -= 1
        if not self.left:
            raise self.error


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stop", [Interrupted(15), KeyboardInterrupt()])
def test_a_resumed_run_is_the_undisturbed_one(name, stop, lagging, tmp_path):
    """Stopped with a checkpoint at once, and killed with one of the step before; gone on with in one process."""
    out = tmp_path / "run"
    with pytest.raises(type(stop)):
        loop.start_run(
            RECIPES[name](), out, checkpoint_every=1, backend=MultiProcessBackend(Here()), lag=1, observer=Stop(2, stop)
        )
    _, documents = transaction.latest_checkpoint(out / "checkpoints").load()
    finished = documents["state"]["finished"]
    assert finished == (2 if isinstance(stop, Interrupted) else 1)
    assert {episode["step"] for episode in documents["ahead"]["episodes"]} == {finished}
    loop.resume_run(RECIPES[name](), out)
    assert digest(out) == digest(lagging(name))
    assert "ahead" not in transaction.latest_checkpoint(out / "checkpoints").load()[1]


LOSSES = [
    *((ENGINE, method, n) for method, n in (("counts", 1), ("advance", 3), ("advance", 25), ("publish", 4))),
    *((LEARNERS, method, n) for method, n in (("update", 1), ("tensors", 3), ("update", 4))),
]


@pytest.mark.whole
@pytest.mark.parametrize("name", list(RECIPES))
def test_lost_processes_change_nothing(name, lagging, tmp_path):
    launcher = Here(LOSSES)
    loop.start_run(RECIPES[name](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher), lag=1)
    assert launcher.lost == len(LOSSES)
    assert digest(tmp_path / "run") == digest(lagging(name))


class Meeting(Here):
    """Play and update of a step wait for each other to have begun; then one of them is lost, if it shall be."""

    def __init__(self, lost=(), at=1):
        """``lost``: who, beside the update of step ``at``."""
        super().__init__()
        self.due, self.at, self.seen, self.met = set(lost), at, set(), threading.Barrier(2, timeout=300.0)
        self.again = False  # is the next update one that was lost?

    def begin(self, what, host, settings):
        process = super().begin(what, host, settings)
        send = process.send

        def watched(method, *arguments):
            step = None
            if what == ENGINE and method == "advance" and threading.current_thread().name.startswith("play"):
                step = min((one.request.address.step for one in arguments[0]), default=0) - 1
            elif what == LEARNERS and method == "update":
                step = None if self.again else min({0, 1, 2} - {s for w, s in self.seen if w == what}, default=None)
                self.again = False
            if step in (0, 1, 2) and (what, step) not in self.seen:
                self.seen.add((what, step))
                self.met.wait()
                if what in self.due and step == self.at:
                    self.due.remove(what)
                    if what == LEARNERS:  # the engine's thread comes here too, and is not to say anything of it
                        self.again = True
                    self.losses.add((what, method, self.asked[what, method] + 1))
            return send(method, *arguments)

        process.send = watched
        return process


LOST = [(), *(pytest.param(lost, marks=pytest.mark.whole) for lost in ((ENGINE,), (LEARNERS,), (ENGINE, LEARNERS)))]


@pytest.mark.whole
@pytest.mark.parametrize("lost", LOST)
def test_play_and_update_go_on_at_once_and_either_may_be_lost(lost, lagging, tmp_path):
    """Neither ends before the other has begun: taking turns, they would wait for ever."""
    launcher = Meeting(lost)
    loop.start_run(
        RECIPES["adapters"](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher), lag=1
    )
    assert launcher.seen == {(what, step) for what in (ENGINE, LEARNERS) for step in range(3)}
    assert launcher.lost == len(lost)
    assert digest(tmp_path / "run") == digest(lagging("adapters"))


def test_a_play_that_fails_or_is_given_up_leaves_no_thread_and_no_play():
    engine, begun, seen = Asked(), threading.Event(), []

    def play(step):
        begun.set()
        while True:
            engine.raise_if_stopped()

    plays = PlayPipeline(play, engine, 1, apart=True)
    with pytest.raises(OSError, match="of the update"), plays.playing_ahead(1, until=2):
        begun.wait()
        raise OSError("of the update")
    assert plays.ready is None and plays.state() is None and engine.stopping() == 0
    engine.asked = 15
    with pytest.raises(Interrupted), plays.playing_ahead(1, until=2):
        seen.append("begun")
    assert not seen
    plays.close()


class Asked(StoppableEngine):
    """Asked to stop or not, without an engine."""

    def __init__(self):
        self.asked = 0
        self.stopping = lambda: self.asked


def test_what_a_lag_does_not_go_with_is_refused_in_one_line(lagging):
    joint = magrpo(model=TINY, steps=1)
    with pytest.raises(ConfigError, match=r"--lag 1: objective '\w+' has a loss without a ratio.*loss\.cap=2"):
        check_lag(joint, 1)
    with pytest.raises(ConfigError, match=r"by\.loss\.otherwise\.cap=2"):
        check_lag(critique(model=TINY, steps=1), 1)
    check_lag(joint, 0)
    plain = [name for name, objective in joint.objectives.items() if not objective.by.needs().ratio]
    check_lag(override(joint, [f"objectives.{name}.by.loss.cap=2" for name in plain]), 1)
    with pytest.raises(ConfigError, match="--lag 2: expected 0, or 1"):
        check_lag(grpo(model=TINY, steps=1), 2)
    refuse_other_lag(lagging("adapters"), None)
    with pytest.raises(ConfigError, match=r"--lag 0: the run in .* was begun with --lag 1"):
        refuse_other_lag(lagging("adapters"), 0)
