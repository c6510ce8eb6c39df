"""Policies with learners of their own: the bits of one process, updates beside each other, and what is refused."""

import threading

import pytest

from cotrain.core.errors import ProcessLost
from cotrain.distributed.cluster_file import OwnLearners, read_cluster_file
from cotrain.distributed.multi_process import ENGINE, LEARNERS, MultiProcessBackend
from cotrain.distributed.placement import learners_label, place_learners
from cotrain.recipes.tango import tango
from cotrain.recipes.votes import co_rewarding
from cotrain.runs import run as loop
from cotrain.trainer.async_rollouts import run_beside
from cotrain.trainer.trainer import CoTrainer
from tests.distributed.processes import Here
from tests.distributed.test_several import RECIPES, SMALL, briefly, digest, undisturbed  # noqa: F401  a fixture
from tests.helpers import EASY
from tests.sentences import refuses

OWN = learners_label("verifier")
APART = {"verifier": 1}


def test_followers_are_held_where_their_source_learns():
    policies = co_rewarding(variant="II", tasks=EASY, **SMALL).policies
    teacher = next(name for name, spec in policies.items() if spec.source_policy)
    source = policies[teacher].source_policy
    places = place_learners(policies, 1, {source: 2})
    assert places[-1].what == learners_label(source) and places[-1].world == 2
    assert set(places[-1].policies) >= {source, teacher}
    with refuses("E_CLUSTER_POLICY", names=(f"'{teacher}'", f"'{source}'")):
        place_learners(policies, 1, {teacher: 1})


def test_no_process_stands_for_nobody():
    policies = {name: spec for name, spec in tango(tasks=EASY, **SMALL).policies.items() if name != "reference"}
    places = place_learners(policies, 1, dict.fromkeys(policies, 1))
    assert [place.what for place in places] == [learners_label(name) for name in policies]


def test_a_table_of_a_policy_that_there_is_not():
    policies = tango(tasks=EASY, **SMALL).policies
    with refuses("E_CLUSTER_POLICY", names=("'verifier'", "verifyer")):
        place_learners(policies, 1, {"verifyer": 1})


def test_the_cluster_file_has_a_table_for_each(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text("cpus = 4\n[learner]\ngpus = 1\n[learner.verifier]\ngpus = 0.5\nworld = 2\n[learner.critic]\n")
    cluster = read_cluster_file(str(path))
    assert cluster.learners == {"verifier": OwnLearners(gpus=0.5, world=2), "critic": OwnLearners()}
    assert cluster.worlds == {"verifier": 2, "critic": 1}
    assert cluster.gpus_of(f"{OWN} (rank 1 of 2)", "RankHost") == 0.5
    assert cluster.gpus_of(learners_label("critic"), "LearnerHost") == 0.0
    assert cluster.gpus_of(LEARNERS, "LearnerHost") == 1.0


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[learner.verifier]\ngpu = 1", "E_CLUSTER_FILE_KEY: 'gpu'"),
        ("[learner.verifier]\nworld = 0", "E_CLUSTER_FILE_VALUE: learner.verifier.world is 0 | at least 1"),
        ("[learner]\nverifier = 1", "E_CLUSTER_FILE_KEY: 'verifier'"),
    ],
)
def test_what_is_wrong_in_a_table(text, code, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with refuses(code) as refused:
        read_cluster_file(str(path))
    assert "--cluster" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.whole
@pytest.mark.cluster
@pytest.mark.parametrize("name", ["separate policies", "adapters", "EMA teacher"])
def test_learners_apart_have_the_bits_of_one_process(name, undisturbed, tmp_path):  # noqa: F811
    policy = "generator" if name == "EMA teacher" else "verifier"
    launcher = Here()
    backend = MultiProcessBackend(launcher, worlds={policy: 1})
    loop.start_run(RECIPES[name](), tmp_path / "run", checkpoint_every=1, backend=backend)
    assert launcher.begun[learners_label(policy)] == 1 and launcher.begun[ENGINE] == 1
    assert digest(tmp_path / "run") == undisturbed(name)


@pytest.mark.whole
@pytest.mark.cluster
@pytest.mark.parametrize("what", [LEARNERS, OWN, ENGINE])
def test_a_lost_process_of_several_changes_nothing(what, undisturbed, tmp_path):  # noqa: F811
    method = "advance" if what == ENGINE else "update"
    launcher = Here([(what, method, 1)])
    backend = MultiProcessBackend(launcher, worlds=APART)
    loop.start_run(RECIPES["separate policies"](), tmp_path / "run", checkpoint_every=1, backend=backend)
    assert launcher.lost == 1
    assert digest(tmp_path / "run") == undisturbed("separate policies")


class Meeting(Here):
    """Updates of two processes begin only when both have been asked for one."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Barrier(2, timeout=60.0)

    def begin(self, what, host, settings):
        process = super().begin(what, host, settings)
        ask = process.ask

        def ask_together(method, *arguments):
            if method == "update":
                self.gate.wait()
            return ask(method, *arguments)

        process.ask = ask_together
        return process


def at_once():
    return briefly(tango(simultaneous=True, reviews=2, tasks=EASY, **SMALL))


@pytest.mark.whole
def test_two_policies_that_are_due_at_once_are_updated_beside_each_other(tmp_path):
    """A barrier that both must reach: one after the other would wait for ever."""
    rows = []
    for backend in (None, MultiProcessBackend(Meeting(), worlds=APART)):
        trainer = CoTrainer(at_once(), backend=backend)
        rows.append([trainer.step().row for _ in range(2)])
        trainer.close()
    assert rows[0] == rows[1]


@pytest.mark.whole
def test_the_others_are_untouched_by_an_update(tmp_path):
    launcher = Here()
    recipe = briefly(tango(warmup=1, ratio=(1, 1), reviews=2, tasks=EASY, **SMALL))
    trainer = CoTrainer(recipe, backend=MultiProcessBackend(launcher, worlds=APART))
    trainer.step()  # of the verifier alone
    assert launcher.asked[OWN, "update"] == 1 and launcher.asked[LEARNERS, "update"] == 0
    trainer.close()


def test_all_are_over_when_one_fails():
    done = []
    lost = ProcessLost("gone")

    def fails():
        raise lost

    def works():
        done.append(1)

    with pytest.raises(ProcessLost) as raised:
        run_beside([fails, works])
    assert raised.value is lost and done == [1]
    assert run_beside([lambda: 1, lambda: 2]) == [1, 2]


class Overlapping(Here):
    """The verifier's update is over only when the engine has been asked for the next step's solutions."""

    def __init__(self):
        super().__init__()
        self.learning, self.sampled = threading.Event(), threading.Event()
        self.overlaps = 0

    def begin(self, what, host, settings):
        process = super().begin(what, host, settings)
        ask, send = process.ask, process.send

        def ask_watched(method, *arguments):
            if method != "update":
                return ask(method, *arguments)
            self.sampled.clear()
            self.learning.set()
            try:
                assert self.sampled.wait(60.0), "nothing was sampled beside the update"
                self.overlaps += 1
                return ask(method, *arguments)
            finally:
                self.learning.clear()

        def send_watched(method, *arguments):
            answer = send(method, *arguments)
            if method == "advance" and arguments[0] and self.learning.is_set():
                self.sampled.set()
            return answer

        if what == OWN:
            process.ask = ask_watched
        if what == ENGINE:
            process.send = send_watched
        return process


@pytest.mark.whole
def test_the_generator_writes_the_next_solutions_while_the_verifier_learns(tmp_path):
    """Warm-up: the verifier learns at each step, from reviews of new solutions. An update that waits for sampling to
    begin would wait for ever if it did not begin beside it."""
    recipe = briefly(tango(warmup=3, ratio=(1, 1), reviews=2, tasks=EASY, **SMALL))
    results = []
    overlapping = Overlapping()
    for backend in (None, MultiProcessBackend(overlapping, worlds=APART)):
        trainer = CoTrainer(recipe, backend=backend)
        steps = []
        for number in range(3):
            if backend is not None and number == 2:  # nothing is played behind the last step
                overlapping.sampled.wait = lambda seconds: True
            steps.append(trainer.step())
        assert trainer.rollouts.state() is None  # what is played early is in no checkpoint
        results.append([(step.row, step.episodes) for step in steps])
        trainer.close()
    assert overlapping.overlaps == 3
    assert results[0] == results[1]


@pytest.mark.whole
@pytest.mark.parametrize("method", ["advance", "publish"])
def test_an_engine_that_is_lost_beside_an_update_changes_nothing(method, undisturbed, tmp_path):  # noqa: F811
    for turn in (3, 6, 9):
        launcher = Here([(ENGINE, method, turn)])
        backend = MultiProcessBackend(launcher, worlds=APART)
        out = tmp_path / f"run {turn}"
        loop.start_run(RECIPES["separate policies"](), out, checkpoint_every=1, backend=backend)
        assert digest(out) == undisturbed("separate policies")
