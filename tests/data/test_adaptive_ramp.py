"""``--target-solve-rate``: a ramp that widens while more is solved than that; the same bits whatever happens."""

import json
import math
from dataclasses import replace

import pytest

from cotrain.cli.main import main
from cotrain.config.override import override
from cotrain.core.errors import StateError
from cotrain.core.notes import CORRECT
from cotrain.core.seeding import Address
from cotrain.core.types import Episode, Trace
from cotrain.data.curriculum import BEGIN, AdaptiveRamp
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.recipes.grpo import grpo
from cotrain.recipes.tango import tango
from cotrain.rollout.stores import TaskPool
from cotrain.runs import run as loop
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from cotrain.trainer.failures import Interrupted
from cotrain.trainer.trainer import CoTrainer
from tests.distributed.processes import Here
from tests.distributed.test_several import briefly, digest
from tests.helpers import EASY, TINY, CountedEngine, LeaveAfter, RandomLatency
from tests.sentences import refuses

PROBLEMS = 40
STEPS = 6
TARGET = 0.1  # the tiny model solves some 0.15
RAMP = AdaptiveRamp(target=0.5, roles=("solver",))


def answer(right, *, role="solver", failure=None, member=0):
    """The only trace of an episode."""
    trace = Trace(
        address=Address(step=0, task=0, member=member, role=role, call=0), role=role, policy="generator", version=0,
        group="0", prompt_ids=(1,), token_ids=(2,), logprobs=(-1.0,), text="", finish="stop", rewards=(),
        failure=failure, metadata={} if right is None else {CORRECT.name: right},
    )  # fmt: skip
    return Episode(step=0, task=0, member=member, task_id="t", traces=(trace,))


def test_by_hand():
    """Three of four are right: 0.1 + 0.2 · (0.75 − 0.5). Then none of two: that less 0.2 · 0.5, but no less than at the
    beginning."""
    wider = RAMP.with_episodes([answer(True), answer(True), answer(False), answer(True)], 0)
    assert wider.share == pytest.approx(0.15) and wider.solve_rate == 0.75
    narrower = wider.with_episodes([answer(False), answer(False)], 1)
    assert narrower.share == BEGIN and narrower.solve_rate == 0.0
    assert narrower.with_episodes([answer(True), answer(False)], 2).share == BEGIN  # at the target it holds
    nearly_all = replace(RAMP, share=0.95)
    assert nearly_all.with_episodes([answer(True)], 3).share == 1.0
    slower = replace(RAMP, gain=0.1).with_episodes([answer(True)], 0)
    assert slower.share == pytest.approx(0.15)


def test_only_graded_answers_of_its_roles_count():
    episodes = [answer(True), answer(False, role="verifier"), answer(False, failure="lost"), answer(None)]
    ramp = RAMP.with_episodes(episodes, 0)
    assert ramp.solve_rate == 1.0
    assert ramp.with_episodes([answer(None, failure="no grader")], 1) == ramp
    assert ramp.with_episodes([answer(None)], 1) == ramp
    assert RAMP.with_episodes([answer(None, failure="no grader")], 0) == RAMP
    with refuses("E_RAMP_NOTHING_GRADED", names="2 answers of step 1"):
        RAMP.with_episodes([answer(None), answer(None)], 0)


def test_roles_that_do_not_answer_are_said_once(capsys):
    """As in a phase that they have no part in: the ramp waits for them."""
    others = [answer(True, role="verifier"), answer(None, failure="lost")]
    for step in range(3):
        assert RAMP.with_episodes(others, step) == RAMP
    said = capsys.readouterr().err
    assert said.count("note: target_solve_rate: role 'solver' gave no answer in step 1") == 1 and "10%" in said
    RAMP.with_episodes([answer(True)], 0)
    assert not capsys.readouterr().err


def test_its_state_has_its_bits():
    ramp = replace(RAMP, share=0.1 + 0.2 / 3, solve_rate=1 / 3)
    assert RAMP.restore_state(json.loads(json.dumps(ramp.state()))) == ramp
    assert RAMP.restore_state(json.loads(json.dumps(RAMP.state()))) == RAMP
    with pytest.raises(StateError):
        RAMP.restore_state({"share": 0.5})


class FewWords:
    """So many word problems that the tiny model was made for."""

    name = "few words"

    def get(self, split, index):
        return EASY.get(split, index)

    def size(self, split):
        return PROBLEMS if split == "train" else EASY.size(split)

    def describe(self):
        return {"kind": self.name, "settings": {}}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    """A file of samples by which the n-th problem is the n-th easiest."""
    path = tmp_path_factory.mktemp("samples") / "suite.jsonl"
    rows = []
    for n in range(PROBLEMS):
        prompt = EASY.get("train", n).prompt
        rows += [{"problem": prompt, "sample": k, "correct": k >= n} for k in range(PROBLEMS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def small(samples, method=grpo, **settings):
    """A short run whose share moves far at each step."""
    arguments = {
        **{"model": TINY, "tasks": FewWords(), "ramp": samples, "target_solve_rate": TARGET, "steps": STEPS},
        **{"tasks_per_step": 4, "group_size": 4, "evaluation_tasks": 1, "lr": 1e-3, "kl": 0.0, **settings},
    }
    return override(briefly(method(**arguments)), ["stores.ramp.gain=1.0"])


def metrics_of(directory):
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def hardest_of_steps(directory):
    """The hardest problem that each step drew, as a share of all."""
    with Ledger(directory / "episodes") as ledger:
        drawn = [{int(e.task_id.rpartition("/")[2]) for e in ledger.read(step)} for step in ledger.steps()]
    return [(max(numbers) + 1) / PROBLEMS for numbers in drawn]


@pytest.fixture(scope="module")
def undisturbed(samples, tmp_path_factory):
    """The directory of a run in peace, by how many steps sampling is ahead, and how often its engine advanced."""
    known = {}

    def of(async_steps):
        if async_steps not in known:
            engines = []

            def count(engine):
                engines.append(CountedEngine(engine))
                return engines[-1]

            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            loop.start_run(small(samples), folder, checkpoint_every=1, wrap_engine=count, async_steps=async_steps)
            known[async_steps] = folder, engines[0].count
        return known[async_steps]

    return of


@pytest.mark.whole
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_step_draws_among_what_is_known_when_it_is_sampled(ahead, undisturbed):
    """The rates of the steps before it; with sampling K steps ahead not those of the last K."""
    folder, _ = undisturbed(ahead)
    rows = metrics_of(folder)
    shares = [BEGIN]
    for row in rows:
        assert row["ramp/solve_rate"] == row["solver/accuracy"]
        moved = shares[-1] + 1.0 * (row["solver/accuracy"] - TARGET)
        shares.append(min(1.0, max(BEGIN, moved)))
        assert row["ramp/share"] == shares[-1]
    assert len(set(shares)) > 2, "else the test says nothing"

    known = [shares[max(0, step - ahead)] for step in range(STEPS)]
    hardest = hardest_of_steps(folder)
    for step in range(STEPS):
        assert hardest[step] <= math.ceil(known[step] * PROBLEMS) / PROBLEMS, step
    assert max(hardest) > BEGIN


@pytest.mark.whole
@pytest.mark.parametrize("ahead", [0, 2])
def test_latency_a_stop_and_other_processes_change_no_bit(ahead, undisturbed, samples, tmp_path):
    folder, advances = undisturbed(ahead)
    expected = digest(folder)

    def delay_and_stop(engine):
        return CountedEngine(RandomLatency(engine, 7), stop_at=3 * advances // 4)

    late = tmp_path / "late"
    with pytest.raises(Interrupted):
        loop.start_run(small(samples), late, checkpoint_every=1, wrap_engine=delay_and_stop, async_steps=ahead)
    assert 0 < checkpoints.latest_checkpoint(late / "checkpoints").step < STEPS
    loop.resume_run(small(samples), late, wrap_engine=lambda engine: RandomLatency(engine, 8))
    assert digest(late) == expected

    killed = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        loop.start_run(small(samples), killed, checkpoint_every=2, observer=LeaveAfter(4), async_steps=ahead)
    loop.resume_run(small(samples), killed)
    assert digest(killed)["weights"] == expected["weights"]
    assert metrics_of(killed) == metrics_of(folder)

    apart = tmp_path / "apart"
    launcher = Here([(ENGINE, "advance", 9), (LEARNERS, "update", 3)])
    backend = MultiProcessBackend(launcher)
    loop.start_run(small(samples), apart, checkpoint_every=1, backend=backend, async_steps=ahead)
    assert launcher.lost == 2 and digest(apart) == expected


@pytest.mark.whole
def test_a_step_does_not_begin_beside_the_update_whose_answers_it_waits_for(samples):
    """Tango's solutions would begin while the verifier learns; on an adaptive ramp their problems are not known yet."""
    recipe = small(samples, tango, steps=4, warmup=2, ratio=(1, 1), reviews=2)
    results = []
    for backend in (None, MultiProcessBackend(Here(), worlds={"verifier": 1})):
        trainer = CoTrainer(recipe, backend=backend)
        results.append([(step.row, step.episodes) for step in (trainer.step() for _ in range(4))])
        trainer.close()
    assert results[0] == results[1]
    assert len({row["ramp/share"] for row, _ in results[0]}) > 1


@pytest.mark.whole
def test_replacements_come_from_the_share_of_their_step(samples):
    trainer = CoTrainer(small(samples, refill=2))
    share = BEGIN
    replaced = 0
    for _ in range(STEPS):
        result = trainer.step()
        numbers = [int(episode.task_id.rpartition("/")[2]) for episode in result.episodes]
        assert max(numbers) < math.ceil(share * PROBLEMS)
        share = result.row["ramp/share"]
        replaced += result.row["replacements"]
    trainer.close()
    assert replaced


def test_a_fixed_ramp_shows_its_share_too(samples):
    arguments = {"model": TINY, "tasks": FewWords(), "tasks_per_step": 1, "group_size": 2, "kl": 0.0}
    recipe = grpo(ramp=samples, steps=2, **arguments)
    assert not recipe.stores and [recipe.share_at(step, {}) for step in (0, 1)] == [pytest.approx(0.1), 1.0]
    trainer = CoTrainer(recipe)
    assert trainer.step().row["ramp/share"] == 1.0
    trainer.close()


def test_what_is_refused(samples):
    with refuses("E_TARGET_SOLVE_RATE_WITHOUT_RAMP", names="0.5"):
        grpo(model=TINY, tasks=FewWords(), target_solve_rate=0.5)
    for rate in (0.0, 1.0, -0.5, 50.0):
        with refuses("E_TARGET_SOLVE_RATE_RANGE", names=str(rate)):
            grpo(model=TINY, tasks=FewWords(), ramp=samples, target_solve_rate=rate)
    with refuses("E_RAMP_ENDLESS", names="words"):
        grpo(model=TINY, tasks=EASY, ramp=samples, target_solve_rate=0.5)
    for setting in ("gain=-0.1", "gain=2", "share=0"):
        with refuses("E_RAMP_RANGE", names=setting.partition("=")[0]):
            override(small(samples), [f"stores.ramp.{setting}"])
    with refuses("E_STORE_NAME", names="TaskPool"):
        replace(small(samples), stores={"ramp": TaskPool()})


@pytest.mark.whole
def test_from_the_command_line(samples, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with open("rows.jsonl", "w") as file:
        for n in range(PROBLEMS):
            task = EASY.get("train", n)
            file.write(json.dumps({"question": task.prompt, "answer": task.gold}) + "\n")
    run = ["run", "grpo", "--model", TINY, "--data", "rows.jsonl", "--ramp", samples, "--threads", "1"]
    assert main([*run, "--target-solve-rate", "0.2", "--smoke", "--kl", "0", "--out", "run"]) == 0
    assert "ramp: share of the problems 1" in capsys.readouterr().out
    assert main(["resume", "run", "--steps", "4", "--threads", "1"]) == 0
    arguments = json.loads((tmp_path / "run" / "recipe.json").read_text())["origin"]["arguments"]
    assert arguments["target_solve_rate"] == 0.2
    assert [row["ramp/share"] >= BEGIN for row in metrics_of(tmp_path / "run") if "kind" not in row] == [True] * 4
    assert main([*run[:6], "--target-solve-rate", "0.5", "--out", "other"]) == 2
    assert "target_solve_rate 0.5 is that of a ramp" in capsys.readouterr().err
