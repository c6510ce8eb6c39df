"""Whole runs of the shipped recipes with a tiny model: interrupted, killed and delayed runs end the same."""

import gzip
import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain import api
from cotrain.algorithms.ppo import PPO, ValueRegression
from cotrain.config.override import override
from cotrain.config.policies import critic, ema, snapshot, trainable
from cotrain.config.recipe import Objective
from cotrain.config.schedule import constant_schedule
from cotrain.core.seeding import permuted_index
from cotrain.core.signals import OUTCOME
from cotrain.recipes.alphaproof.recipe import alphaproof
from cotrain.recipes.at_grpo.recipe import at_grpo
from cotrain.recipes.bipolicy import bipolicy
from cotrain.recipes.constitutional.recipe import constitutional
from cotrain.recipes.debate.recipe import debate
from cotrain.recipes.generator_verifier_critic import generator_verifier_critic
from cotrain.recipes.grpo import grpo
from cotrain.recipes.mae.recipe import mae
from cotrain.recipes.magrpo.recipe import magrpo
from cotrain.recipes.marti.recipe import marti
from cotrain.recipes.pair_judge.recipe import pair_judge
from cotrain.recipes.preferences import dpo, reward
from cotrain.recipes.proposer_solver import proposer_solver
from cotrain.recipes.self_compare import self_compare
from cotrain.recipes.self_rewarding import self_rewarding
from cotrain.recipes.semi_supervised import semi_supervised
from cotrain.recipes.spin import spin
from cotrain.recipes.ssp.recipe import ssp
from cotrain.recipes.ssrl.recipe import ssrl
from cotrain.recipes.tango import tango
from cotrain.recipes.two_agents_split import two_agents_split
from cotrain.rollout.protocols import solve
from cotrain.runs import run as loop
from cotrain.runs.changes import rebuild_recipe
from cotrain.runs.run import Interrupted
from cotrain.storage import checkpoints
from cotrain.storage.ledger import Ledger
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, CountedEngine, RandomLatency, StopAfter, is_documented, kill_after_rows
from tests.sentences import refuses

pytestmark = pytest.mark.whole
SMALL = {"model": TINY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 1, "lr": 1e-3}
GAMES, WRITES, SEARCHES = (  # which TINY never learned
    {**SMALL, "model": f"shipped-{name}"} for name in ("games", "proposer", "search")
)
ALONE = {name: value for name, value in SMALL.items() if name != "group_size"}  # for a method without groups


def ppo(tasks):
    """A generator and a critic that learns without speaking, from the same episodes."""
    made = grpo(steps=2, tasks=tasks, kl=0.0, **SMALL)
    outcome = {OUTCOME: 1.0}
    return replace(
        made,
        policies={"generator": trainable(TINY, lr=1e-3), "critic": critic(TINY, lr=1e-3)},
        objectives={
            "generator": Objective(
                policy="generator", role="solver", algorithm=PPO(reward_weights=outcome, values="critic")
            ),
            "critic": Objective(
                policy="critic", role="solver", algorithm=ValueRegression(reward_weights=outcome, values="critic")
            ),
        },
        schedule=constant_schedule(solve, "generator", "critic"),
    )


def briefly(recipe):
    """With the least that an evaluation can be; "grpo" and "tango" keep all of theirs."""
    return replace(
        recipe, evaluation=replace(recipe.evaluation, group_size=2, greedy=False, frozen_roles={}, splits=())
    )


def stopped_early(recipe):
    """The end is the best of the evaluations."""
    short = briefly(recipe)
    return replace(short, evaluation=replace(short.evaluation, best="solver/pass@1", curve_tasks=2))


def alternating(tasks):
    """Tango as COMMAND runs it."""
    made = tango(steps=4, warmup=1, ratio=(2, 1), reviews=3, evaluate_every=3, tasks=tasks, **SMALL)
    return replace(made, evaluation=replace(made.evaluation, curve_tasks=1, group_size=2, splits=("ood_template",)))


def followed(tasks):
    """A generator reviewed by its former self, held near its own average."""
    made = briefly(tango(steps=3, verifier="frozen", tasks=tasks, **SMALL))
    judge = snapshot(TINY, of="generator", every=2, keep=2, pick="oldest")
    return replace(
        made, policies={**made.policies, "verifier": judge, "reference": ema(TINY, of="generator", rate=0.1)}
    )


CASTS = {
    "followers": followed,
    "ppo": lambda tasks: briefly(ppo(tasks)),
    "grpo": lambda tasks: grpo(steps=2, tasks=tasks, **SMALL),
    "grpo-oracle": lambda tasks: briefly(grpo(steps=2, tasks=tasks, steps_judged_by="oracle", **SMALL)),
    "alphaproof": lambda tasks: briefly(alphaproof(steps=3, budget=300, tasks=tasks, **ALONE)),
    "alphaproof-target": lambda tasks: briefly(
        alphaproof(steps=3, budget=300, target=2, target_split="test", tasks=tasks, **ALONE)
    ),
    "at-grpo": lambda tasks: briefly(at_grpo(steps=3, rounds=2, tasks=tasks, **SMALL)),
    "bipolicy": lambda tasks: briefly(bipolicy(steps=3, reviews=2, tasks=tasks, **SMALL)),
    "bipolicy-shared": lambda tasks: briefly(bipolicy(steps=2, reviews=2, weights="shared", tasks=tasks, **SMALL)),
    "debate": lambda tasks: briefly(debate(steps=3, drafts=8, tasks=tasks, **GAMES)),
    "debate-dpo": lambda tasks: briefly(
        debate(algorithm="dpo", turns=2, leaves=2, iteration=2, steps=4, drafts=8, tasks=tasks, **GAMES)
    ),
    "pair-judge": lambda tasks: briefly(pair_judge(steps=3, keep=2, tasks=tasks, **SMALL)),
    "reward": lambda tasks: briefly(reward(steps=3, tasks=tasks, **ALONE)),
    "constitutional": lambda tasks: briefly(constitutional(steps=4, revising=2, tasks=tasks, **GAMES)),
    "three": lambda tasks: briefly(generator_verifier_critic(steps=3, verifier_by="dpo", tasks=tasks, **SMALL)),
    "semi-supervised": lambda tasks: stopped_early(
        semi_supervised(rest="both", labelled="4", steps=5, warmup=1, evaluate_every=2, tasks=tasks, **SMALL)
    ),
    "split": lambda tasks: briefly(two_agents_split(steps=3, finishes=2, tasks=tasks, **SMALL)),
    "mae": lambda tasks: briefly(mae(steps=3, tasks=tasks, **WRITES)),
    "magrpo": lambda tasks: briefly(magrpo(steps=3, **GAMES)),
    "marti": lambda tasks: briefly(marti(steps=3, tasks=tasks, **GAMES)),
    "proposer-solver": lambda tasks: briefly(proposer_solver(steps=3, tasks=tasks, **WRITES)),
    "self-rewarding": lambda tasks: briefly(self_rewarding(steps=3, iteration=1, tasks=tasks, **SMALL)),
    "spin-restart": lambda tasks: briefly(spin(steps=5, iteration=2, reset="weights", tasks=tasks, **ALONE)),
    "spin": lambda tasks: briefly(spin(steps=4, iteration=1, tasks=tasks, **ALONE)),
    "ssp": lambda tasks: briefly(ssp(steps=3, verify=False, tasks=replace(tasks, operations=(1, 2)), **SEARCHES)),
    "ssrl": lambda tasks: briefly(ssrl(steps=3, **GAMES)),
    "ssrl-real": lambda tasks: briefly(ssrl(steps=3, searches="real", **GAMES)),
    "tango": alternating,
    "tango-lora": lambda tasks: briefly(
        tango(steps=3, warmup=1, ratio=(1, 1), reviews=3, lora=4, tasks=tasks, **SMALL)
    ),
    "tango-frozen": lambda tasks: briefly(tango(steps=2, verifier="frozen", tasks=tasks, **SMALL)),
    "tango-simultaneous": lambda tasks: briefly(tango(steps=2, simultaneous=True, reviews=4, tasks=tasks, **SMALL)),
}
CASTS["self_compare"] = lambda tasks: briefly(
    self_compare(steps=3, comparisons=2, form="gram", candidates=2, tasks=tasks, **SMALL)
)
CASTS["packed"] = lambda tasks: override(
    briefly(tango(steps=3, warmup=1, ratio=(1, 1), reviews=3, tasks=tasks, **SMALL)),
    ["policies.generator.pack_weights=true", "policies.verifier.pack_weights=true"],
)
CASTS["packed-lora"] = lambda tasks: override(CASTS["tango-lora"](tasks), ["policies.generator.pack_weights=true"])
SILENT = {  # no model speaks, so the engine never advances
    "dpo": lambda: briefly(dpo(steps=3, tasks=EASY, **ALONE)),
    "dpo-lora": lambda: briefly(dpo(steps=3, lora=4, tasks=EASY, **ALONE)),
    "spin-sft": lambda: briefly(spin(steps=3, control="sft", tasks=EASY, **ALONE)),
}
CANARY = "canary-7f3a"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Each cast's run in peace, made once, with a secret in the environment: its directory, and how often its engine
    advanced."""
    made = {}

    def run(name):
        if name not in made:
            engines = []
            folder = tmp_path_factory.mktemp("whole") / name
            loop.start_run(CASTS[name](EASY), folder, checkpoint_every=1, wrap_engine=lambda e: counted(engines, e))
            made[name] = folder, engines[0].count
        return made[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", CANARY)
        yield run


def digest(folder: Path) -> str:
    """Over everything that must not depend on interruptions: weights, state, metrics, ledger."""
    found = hashlib.sha256()
    newest = checkpoints.latest_checkpoint(folder / "checkpoints").path
    files = [
        *sorted(newest.iterdir()),
        folder / "metrics.jsonl",
        *sorted((folder / "episodes").iterdir()),
        folder / "summary.json",
    ]
    for file in files:
        found.update(file.name.encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def counted(engines, engine, stop_at=None):
    engines.append(CountedEngine(engine, stop_at))
    return engines[-1]


@pytest.mark.parametrize(
    "name", [name if name in ("grpo", "tango") else pytest.param(name, marks=pytest.mark.nightly) for name in CASTS]
)
def test_every_cast_resumes_bit_for_bit_and_ignores_latency(name, whole, tmp_path):
    """The other run is delayed at random, interrupted in its last steps, and delayed otherwise when it goes on."""
    folder, advances = whole(name)
    check_resuming(lambda: CASTS[name](EASY), folder, advances, tmp_path / "other")


def check_resuming(make, folder, advances, other):
    """``folder``: of a run in peace, whose engine advanced so often."""
    assert any(e.traces for e in Ledger(folder / "episodes").read(0))
    stop_at = 3 * advances // 4
    with pytest.raises(Interrupted):
        loop.start_run(
            make(), other, checkpoint_every=1, wrap_engine=lambda e: counted([], RandomLatency(e, 7), stop_at)
        )
    assert checkpoints.latest_checkpoint(other / "checkpoints").step > 0
    loop.resume_run(make(), other, wrap_engine=lambda engine: RandomLatency(engine, 8))
    assert digest(other) == digest(folder)


@pytest.mark.parametrize("name", SILENT)
def test_a_run_in_which_no_model_speaks_stops_when_it_is_asked_to(name, tmp_path):
    loop.start_run(SILENT[name](), tmp_path / "whole")
    with pytest.raises(Interrupted):
        loop.start_run(SILENT[name](), tmp_path / "other", observer=StopAfter(step=0))
    assert checkpoints.latest_checkpoint(tmp_path / "other/checkpoints").step == 1
    loop.resume_run(SILENT[name](), tmp_path / "other")
    assert digest(tmp_path / "other") == digest(tmp_path / "whole")


def test_what_was_chosen_for_a_run_of_a_bare_recipe_is_not_chosen_anew(whole, tmp_path):
    """A recipe in which nobody chose goes on as the run was begun, also where its weights are laid out."""
    bare = replace(CASTS["packed"](EASY), origin=None)
    with pytest.raises(Interrupted):
        loop.start_run(
            bare,
            tmp_path / "run",
            checkpoint_every=1,
            wrap_engine=lambda e: counted([], e, 3 * whole("packed")[1] // 4),
        )
    open_again = {name: replace(spec, pack_weights=None) for name, spec in bare.policies.items()}
    loop.resume_run(replace(bare, policies=open_again), tmp_path / "run")
    assert digest(tmp_path / "run") == digest(whole("packed")[0])


def test_the_weights_really_move(whole):
    folder, _ = whole("tango")
    tensors, documents = checkpoints.latest_checkpoint(folder / "checkpoints").load()
    start = CoTrainer(CASTS["tango"](EASY)).policies.tensors()
    assert set(tensors) == {"generator", "verifier"}
    for policy in tensors:
        assert documents["state"]["policies"][policy]["updates"] > 0
        moved = [
            n for n in start[policy] if n.startswith("model.") and not torch.equal(start[policy][n], tensors[policy][n])
        ]
        assert len(moved) > 10, policy


def test_the_end_is_paired_with_the_start_problem_by_problem(whole):
    folder, _ = whole("tango")
    summary = json.loads((folder / "summary.json").read_text())
    both = set(summary["before"]) & set(summary["after"])
    assert set(summary["change"]) == both and "solver/pass@1" in both and "verifier/fixed/parsed" in both
    for key in both:
        expected = summary["after"][key]["value"] - summary["before"][key]["value"]
        assert summary["change"][key]["value"] == pytest.approx(expected)


def test_no_model_scores_what_nobody_asked_for(whole):
    """The reference: what the generator learns from. Values: what a critic was asked about. The verifier: nothing."""
    rows = [json.loads(line) for line in (whole("tango")[0] / "metrics.jsonl").read_text().splitlines()]
    seen = set()
    for row in rows:
        for name in ("generator", "verifier"):
            if f"{name}/scored/reference" in row:
                learned = row.get(f"{name}/learned_tokens", 0) if name == "generator" else 0
                assert (row[f"{name}/scored/reference"], row[f"{name}/scored/values"]) == (learned, 0)
                seen.add((name, learned > 0))
    assert {("generator", True), ("verifier", False)} <= seen
    rows = [json.loads(line) for line in (whole("ppo")[0] / "metrics.jsonl").read_text().splitlines()]
    assert any(value > 0 for row in rows for key, value in row.items() if key.endswith("/scored/values"))


FLAGS = ["--model", TINY, "--operations", "2", "2", "--set", "tasks.max_value=20", "--tasks-per-step", "3",
    "--group-size", "4",
         "--evaluation-tasks", "1", "--lr", "1e-3", "--checkpoint-every", "1", "--threads", "1", "--out"]  # fmt: skip
RUN = [sys.executable, "-m", "cotrain.cli.main", "run"]
COMMAND = [*RUN, "tango", "--steps", "4", "--warmup", "1", "--ratio", "2", "1", "--reviews", "3", "--evaluate-every",
    "3",
           "--set", "evaluation.curve_tasks=1", "--set", "evaluation.group_size=2",
           "--set", 'evaluation.splits=["ood_template"]', *FLAGS]  # fmt: skip


def test_killed_at_a_random_point_a_run_ends_as_if_never_killed(whole, tmp_path):
    chance = random.Random(time.time_ns())
    for tried in range(4):  # on a busy machine it may end before it is killed
        killed = tmp_path / f"killed-{tried}"
        rows = chance.randint(1, 4)  # of the metrics, before the kill; tests/disk kills twenty times
        if was_killed := kill_after_rows([*COMMAND, str(killed)], killed, rows, then=chance.random() * 0.1):
            break
    assert was_killed
    api.resume(killed)
    assert digest(killed) == digest(whole("tango")[0])


def test_a_signal_saves_and_says_how_to_go_on(tmp_path):
    out = tmp_path / "run"
    brief = ["--set", "evaluation.splits=[]", "--set", "evaluation.group_size=1"]
    command = [*RUN, "grpo", "--steps", "50", *brief, *FLAGS, str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while not (out / "before.json").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    text, _ = process.communicate(timeout=600)
    assert process.returncode == 143, text
    assert f"cotrain resume {out}" in text
    assert (out / "report.html").exists()
    assert "Traceback" not in text


def test_every_metric_of_a_run_is_documented(whole):
    for cast in ("tango", "grpo-oracle", "ppo"):
        rows = [json.loads(line) for line in (whole(cast)[0] / "metrics.jsonl").read_text().splitlines()]
        assert not {key for row in rows for key in row if not is_documented(key)}, cast


def test_a_curve_measures_the_judge_on_what_never_changes(whole):
    rows = [json.loads(line) for line in (whole("tango")[0] / "metrics.jsonl").read_text().splitlines()]
    measured = [row for row in rows if row.get("kind") == "evaluation"]
    assert len(measured) == 3  # at the start, after three steps and at the end
    for row in measured:
        assert any(key.startswith("eval/verifier/fixed/true_") for key in row)
        assert not any(key.startswith("eval/solver/fixed/") or key.endswith("/fixed/error_f1") for key in row)


def test_timings_hold_the_seconds_of_each_policy(whole):
    rows = [json.loads(line) for line in (whole("tango")[0] / "timings.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        own = row["generator/seconds"], row["verifier/seconds"]
        assert min(own) > 0.0 and sum(own) < row["rollout"] and row["reference/seconds"] == 0.0


def test_a_directory_in_use_is_refused(tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.txt").write_text("do not lose me")
    with refuses("E_OUT_NOT_EMPTY"):
        loop.start_run(CASTS["grpo"](EASY), out)
    assert (out / "thesis.txt").read_text() == "do not lose me"
    (out / "recipe.json").write_text("{}")
    with refuses("E_OUT_HOLDS_RUN", names="cotrain resume"):
        loop.start_run(CASTS["grpo"](EASY), out)
    with refuses("E_NOT_RUN_DIRECTORY", names="nowhere"):
        rebuild_recipe(tmp_path / "nowhere")


def test_a_run_goes_on_with_its_own_recipe_only(whole):
    """Also where a recipe was changed in a way that its function and arguments do not tell."""
    folder, _ = whole("grpo")
    with refuses("E_RECIPE_CHANGED", names=("evaluation.group_size was 8", "is 3")):
        other = CASTS["grpo"](EASY)
        loop.resume_run(replace(other, evaluation=replace(other.evaluation, group_size=3)), folder)
    assert (
        rebuild_recipe(whole("grpo-oracle")[0]).evaluation.greedy is False
    )  # a plain setting, changed by ``briefly``, stays
    with refuses("E_RECIPE_CHANGED", names="policies.critic was"):
        rebuild_recipe(whole("ppo")[0])


def test_a_budget_of_tokens_ends_a_run():
    trainer = CoTrainer(replace(CASTS["grpo-oracle"](EASY), tokens=1))
    assert not trainer.is_done and trainer.step().row["tokens"] > 1 and trainer.is_done


def test_a_permutation_visits_every_place_once():
    for size in (1, 2, 7, 64, 1000):
        assert sorted(permuted_index(i, size, 5) for i in range(size)) == list(range(size))
    assert [permuted_index(i, 50, 1) for i in range(50)] != [permuted_index(i, 50, 2) for i in range(50)]


def test_the_environment_is_not_written_into_a_run(whole):
    folder, _ = whole("grpo")
    files = [(f.suffix, f.read_bytes()) for f in folder.rglob("*") if f.is_file()]
    written = b"".join(gzip.decompress(content) if suffix == ".gz" else content for suffix, content in files)
    assert b"token_ids" in written and CANARY.encode() not in written
