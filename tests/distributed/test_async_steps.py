"""``--async-steps K``: a later step is played beside the update of this one, and the run is the same bits every
time."""

import json
import threading

import pytest

from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.recipes.critique import critique
from cotrain.recipes.grpo import grpo
from cotrain.recipes.magrpo.recipe import magrpo
from cotrain.recipes.tango import tango
from cotrain.recipes.votes import co_rewarding
from cotrain.runs import run as loop
from cotrain.runs.directory import check_same_async_steps
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from cotrain.trainer.async_rollouts import RolloutBatch, RolloutPipeline, StoppableEngine, check_async_steps
from cotrain.trainer.failures import Interrupted
from tests.distributed.processes import Here
from tests.distributed.test_several import SMALL, briefly, digest
from tests.helpers import EASY, TINY, LeaveAfter
from tests.sentences import refuses

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
    """The directory of a recipe's run with a policy lag of one, engine and learners apart."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = tmp_path_factory.mktemp("async_steps") / "run"
            loop.start_run(
                RECIPES[name](), known[name], checkpoint_every=1, backend=MultiProcessBackend(Here()), async_steps=1
            )
        return known[name]

    return of


def rows(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.cluster
@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_two_runs_are_the_same(name, lagging, tmp_path):
    """As are those of which play and update wait for each other, below."""
    loop.start_run(
        RECIPES[name](), tmp_path / "again", checkpoint_every=1, backend=MultiProcessBackend(Here()), async_steps=1
    )
    assert digest(tmp_path / "again") == digest(lagging(name))


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_it_is_not_the_run_without_a_lag(name, lagging, tmp_path):
    loop.start_run(RECIPES[name](), tmp_path / "usual", checkpoint_every=1)
    assert digest(tmp_path / "usual")["weights"] != digest(lagging(name))["weights"]
    assert json.loads((lagging(name) / "recipe.json").read_text())["async_steps"] == 1
    assert "async_steps" not in json.loads((tmp_path / "usual" / "recipe.json").read_text())


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
def test_one_process_that_plays_and_updates_in_turn_gives_the_same_run(name, lagging, tmp_path):
    loop.start_run(RECIPES[name](), tmp_path / "run", checkpoint_every=1, async_steps=1)
    assert digest(tmp_path / "run") == digest(lagging(name))


@pytest.mark.whole
def test_the_lag_of_each_policy_is_told_and_is_that_of_its_schedule(lagging):
    """Tango, generator, generator, verifier, generator: who was updated just before learns from what was said before
    that update."""
    found = [{key: row[key] for key in row if key.endswith("/updates_behind")} for row in rows(lagging("adapters"))]
    assert found == [
        {"generator/updates_behind": 0},
        {"generator/updates_behind": 1},
        {"verifier/updates_behind": 0},
        {"generator/updates_behind": 0},
    ]
    with Ledger(lagging("adapters") / "episodes") as ledger:
        said = [{(t.policy, t.version) for e in ledger.read(step) for t in e.traces} for step in range(4)]
    assert [dict(step)["generator"] for step in said] == [0, 0, 1, 2]


def test_what_was_said_one_update_ago_has_a_ratio(lagging):
    """Same bits of sampler and learner give a difference of rounding; an update between them moves it."""
    near, far = (row["generator/generator/sampler_trainer_diff"] for row in rows(lagging("adapters"))[:2])
    assert near < 1e-5 < 1e-4 < far


@pytest.mark.whole
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("stop", [Interrupted(15), KeyboardInterrupt()])
def test_a_resumed_run_is_the_undisturbed_one(name, stop, lagging, tmp_path):
    """Stopped with a checkpoint at once, and killed with one of the step before; gone on with in one process."""
    out = tmp_path / "run"
    with pytest.raises(type(stop)):
        loop.start_run(
            RECIPES[name](),
            out,
            checkpoint_every=1,
            backend=MultiProcessBackend(Here()),
            async_steps=1,
            observer=LeaveAfter(2, stop),
        )
    _, documents = checkpoints.latest_checkpoint(out / "checkpoints").load()
    finished = documents["state"]["finished"]
    assert finished == (2 if isinstance(stop, Interrupted) else 1)
    assert {episode["step"] for episode in documents["ahead"]["episodes"]} == {finished}
    loop.resume_run(RECIPES[name](), out)
    assert digest(out) == digest(lagging(name))
    assert "ahead" not in checkpoints.latest_checkpoint(out / "checkpoints").load()[1]


LOSSES = [
    *((ENGINE, method, n) for method, n in (("counts", 1), ("advance", 3), ("advance", 25), ("publish", 4))),
    *((LEARNERS, method, n) for method, n in (("update", 1), ("tensors", 3), ("update", 4))),
]


@pytest.mark.whole
@pytest.mark.parametrize("name", list(RECIPES))
def test_lost_processes_change_nothing(name, lagging, tmp_path):
    launcher = Here(LOSSES)
    loop.start_run(
        RECIPES[name](), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher), async_steps=1
    )
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
            if what == ENGINE and method == "advance" and threading.current_thread().name.startswith("rollouts ahead"):
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
        RECIPES["adapters"](),
        tmp_path / "run",
        checkpoint_every=1,
        backend=MultiProcessBackend(launcher),
        async_steps=1,
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

    plays = RolloutPipeline(engine, 1, overlaps_update=True)
    with pytest.raises(OSError, match="of the update"), plays.collect_during_update(0, play, until=2):
        begun.wait()
        raise OSError("of the update")
    assert not plays.ready and plays.state() is None and engine.get_signal() == 0
    engine.asked = 15
    with pytest.raises(Interrupted), plays.collect_during_update(0, play, until=2):
        seen.append("begun")
    assert not seen
    plays.close()


class Asked(StoppableEngine):
    """Asked to stop or not, without an engine."""

    def __init__(self):
        self.asked = 0
        self.get_signal = lambda: self.asked


def recorded_plays(pipeline, play, published, *, steps=7):
    """The plays that are learned from. A step publishes when both its play and its update are over."""
    learned = []
    for step in range(steps):
        learned.append(dict(pipeline.take(step, play, until=steps).outside))
        with pipeline.collect_during_update(step, play, until=steps) as overlap:
            overlap.end_update()
        pipeline.drop_oldest()
        published.append(step)
        saved = json.loads(json.dumps(pipeline.state()))
        left = [play["outside"]["step"] for play in (saved or {"batches": []})["batches"]]
        assert left == list(range(step + 1, min(step + 1 + pipeline.async_steps, steps)))
        pipeline.load(saved)  # as a run that is resumed has them
    pipeline.close()
    return learned


@pytest.mark.parametrize("apart", [False, True])
def test_a_play_has_seen_all_updates_but_the_last_ones(apart):
    """With a policy lag of 3 plays 0 to 3 are of the start, play 4 has seen one update, and so on."""
    engine, published = Asked(), []
    engine.asked = 0

    def play(step):
        return RolloutBatch(episodes=(), outside={"step": step, "seen": len(published)}, oom_counts={}, seconds={})

    learned = recorded_plays(RolloutPipeline(engine, 3, overlaps_update=apart), play, published)
    assert learned == [{"step": step, "seen": max(0, step - 3)} for step in range(7)]


def longer():
    return briefly(tango(warmup=0, ratio=(2, 1), reviews=2, lora=4, tasks=EASY, **{**FOUR, "steps": 6}))


@pytest.fixture(scope="module")
def three_behind(tmp_path_factory):
    """The directory of a run with a policy lag of 3 in one process."""
    out = tmp_path_factory.mktemp("three") / "run"
    loop.start_run(longer(), out, checkpoint_every=1, async_steps=3)
    return out


@pytest.mark.whole
def test_a_lag_of_three_is_told_as_counted_by_hand(three_behind):
    """Generator, generator, verifier, twice. What is learned from misses the updates of the three steps before."""
    found = rows(three_behind)
    for step, row in enumerate(found):
        policy = row["phase"]
        missed = [before for before in found[max(0, step - 3) : step] if before["phase"] == policy]
        lags = {key: row[key] for key in row if key.endswith("/updates_behind")}
        assert lags == {f"{policy}/updates_behind": sum(not before[f"{policy}/skipped"] for before in missed)}
    assert [row.get("generator/updates_behind") for row in found] == [0, 1, None, 2, 2, None]
    with Ledger(three_behind / "episodes") as ledger:
        said = [{(t.policy, t.version) for e in ledger.read(step) for t in e.traces} for step in range(6)]
    assert [dict(step)["generator"] for step in said] == [0, 0, 0, 0, 1, 2]


@pytest.mark.whole
def test_a_lag_of_three_killed_after_every_step_is_the_undisturbed_run(three_behind, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        loop.start_run(longer(), out, checkpoint_every=1, async_steps=3, observer=LeaveAfter(1))
    for kept in range(5):
        saved = checkpoints.latest_checkpoint(out / "checkpoints")
        ahead = saved.load()[1].get("ahead", {"batches": []})["batches"] if saved else []
        due = [episode["step"] for play in ahead for episode in play["episodes"][:1]]
        assert due == (list(range(kept, min(kept + 3, 6))) if kept else [])
        with pytest.raises(KeyboardInterrupt):
            loop.resume_run(longer(), out, observer=LeaveAfter(2))
    loop.resume_run(longer(), out)
    assert digest(out) == digest(three_behind)


@pytest.mark.whole
def test_a_lag_of_three_is_the_same_with_processes_that_are_lost(three_behind, tmp_path):
    launcher = Here(LOSSES)
    loop.start_run(longer(), tmp_path / "run", checkpoint_every=1, backend=MultiProcessBackend(launcher), async_steps=3)
    assert launcher.lost == len(LOSSES)
    assert digest(tmp_path / "run") == digest(three_behind)


@pytest.mark.whole
def test_a_reward_of_ones_own_is_learned_two_updates_late(tmp_path):
    (tmp_path / "mine.py").write_text("def paid(task, answer, right):\n    return float(sum(map(ord, answer.text)))\n")
    brief = ["--model", TINY, "--steps=4", "--tasks-per-step=2", "--group-size=2", "--evaluation-tasks=1", "--kl=0"]
    words = [*brief, "--max-tokens=6", "--async-steps=2", "--out", str(tmp_path / "run")]
    assert main(["run", "grpo", "--reward", f"{tmp_path / 'mine.py'}:paid", *words]) == 0
    with Ledger(tmp_path / "run" / "episodes") as ledger:
        said = [{t.version for e in ledger.read(step) for t in e.traces} for step in range(4)]
    assert said == [{0}, {0}, {0}, {1}]
    assert [row["generator/updates_behind"] for row in rows(tmp_path / "run")] == [0, 1, 2, 2]


def test_what_async_steps_do_not_go_with_is_refused_in_one_line(lagging):
    joint = magrpo(model=TINY, steps=1)
    with refuses("E_ASYNC_STEPS_WITHOUT_RATIO", names="--async-steps 1"):
        check_async_steps(joint, 1)
    with refuses("E_ASYNC_STEPS_WITHOUT_RATIO", names="algorithm.loss.on_policy.cap"):
        check_async_steps(critique(model=TINY, steps=1), 1)
    check_async_steps(joint, 0)
    plain = [
        name for name, objective in joint.objectives.items() if not objective.algorithm.needs().off_policy_corrected
    ]
    check_async_steps(override(joint, [f"objectives.{name}.algorithm.loss.cap=2" for name in plain]), 1)
    with refuses("E_ASYNC_STEPS_WITHOUT_RATIO", names="--async-steps 3"):
        check_async_steps(joint, 3)
    for wrong in (-1, 9):
        with refuses("E_ASYNC_STEPS_RANGE", names=(f"--async-steps {wrong}", "0 to 8")):
            check_async_steps(grpo(model=TINY, steps=1), wrong)
    check_async_steps(grpo(model=TINY, steps=1), 8)
    check_same_async_steps(lagging("adapters"), None)
    with refuses("E_ASYNC_STEPS_CHANGED", names=("--async-steps 0", "--async-steps 1")):
        check_same_async_steps(lagging("adapters"), 0)
