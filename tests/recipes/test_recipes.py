"""Every shipped method at its smallest: it builds with every control, is documented, and measures something.

That latency and interruption change nothing is proved on the contract protocols (``tests/contracts``), and every night
on all methods here."""

import hashlib
import inspect
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cotrain.config.registry import find_recipe
from cotrain.recipes import NAMES as SHIPPED
from cotrain.recipes.magrpo.halves import Halves
from cotrain.recipes.ssrl.world import World
from cotrain.runs.figures import validation_figure_names
from cotrain.trainer.trainer import CoTrainer
from tests.helpers import EASY, TINY, AnyOrder, RandomLatency

pytestmark = pytest.mark.whole
LIBRARY = replace(EASY, operations=(1, 2))
SMALL = {"model": TINY, "tasks_per_step": 3, "group_size": 4, "evaluation_tasks": 2, "lr": 1e-3, "steps": 2}
GAMES, WRITES = {"model": "shipped-games"}, {"model": "shipped-proposer"}  # TINY knows none of their games
SEARCHES = {"model": "shipped-search"}


def length(task, texts):
    """A joint reward."""
    return float(len("".join(texts)))


CASES = {  # "recipe" or "recipe: variant" → arguments beside SMALL
    "bipolicy": {"reviews": 3},
    "bipolicy: shared": {"weights": "shared", "kl": 0.01},
    "bipolicy: no honest solutions": {"honest": 0},
    "cooper": {"warmup": 1, "rm_lr": 1e-3, "anchor": 0.1},
    "cooper: own rejected answers": {"warmup": 1, "rm_lr": 1e-3, "negatives": "own", "reference": False},
    "cooper: corrupted by a model": {"warmup": 1, "negatives": "model", "false_negative_rate": 0.2, "reference": False},
    "cooper: frozen": {"warmup": 1, "rm": "frozen"},
    "cooper: rule": {"seed": 1, "rm": "rule", "warmup": 1, "steps": 2},
    "generator_verifier_critic": {"critic_lr": 1e-3, "verifier_lr": 1e-3},
    "generator_verifier_critic: dpo": {"verifier_by": "dpo", "kl": 0.01, "tasks_per_step": 5},
    "generator_verifier_critic: two roles": {"critic": "none", "verifier_by": "grpo", "alpha": 0.0},
    "genprm": {"seed": 3, "tasks_per_step": 5, "reviews": 6, "rollouts": 4},
    "genprm: unfiltered": {"consensus": False, "balance": False, "rollouts": 2, "labels": "absolute"},
    "grpo: told wrongly": {"outcome_noise": 0.4},
    "distill": {"teacher": TINY, "lr": 1e-2, "outcome": 1.0},
    "gram": {"unlabelled": 1, "warmup": 6, "judge_lr": 1e-2, "tasks_per_step": 6, "steps": 9},
    "gram: frozen generator": {
        "generator": "frozen",
        "unlabelled": 0,
        "smoothing": 0.0,
        "warmup": 0,
        "tasks_per_step": 6,
    },
    "alphaproof": {"budget": 400},
    "alphaproof: blind": {"budget": 300, "verdicts": "answer", "steps": 4, "tasks_per_step": 6},
    "alphaproof: samples": {"tasks": LIBRARY, "budget": 2000, "search": False, "tasks_per_step": 6},
    "alphaproof: a target": {"budget": 300, "target": 2, "target_split": "test"},
    "at_grpo": {"rounds": 2},
    "at_grpo: global": {"group": "global", "kl": 0.01},
    "at_grpo: dr_mas": {"variant": "dr_mas", "steps": 4},
    "at_grpo: dr_mas, shared": {"variant": "dr_mas", "weights": "shared", "group": "global", "local": 0.5},
    "co_rewarding": {"rate": 0.5},
    "co_rewarding: I": {"variant": "I", "kl": 0.01},
    "co_rewarding: III, frozen": {"variant": "III", "teacher": "frozen"},
    "co_rewarding: none": {"teacher": "none"},
    "constitutional": {**GAMES, "revising": 2, "steps": 4},
    "constitutional: checked by a program": {**GAMES, "feedback": "program", "revising": 1, "steps": 3},
    "constitutional: drafts": {**GAMES, "stages": "revise", "sft_on": "drafts", "revising": 1, "steps": 3},
    "critique": {"critic": "trained", "critic_lr": 1e-3, "refine": "all", "join": 2},
    "critique: paid by gain": {"critic": "trained", "paid_by": "gain", "critic_lr": 1e-3, "refine": "all"},
    "critique: oracle": {"critic": "oracle", "kl": 0.01},
    "critique: none": {"critic": "none"},
    "critique: leak": {"critic": "self", "leak": True},
    "debate": {**GAMES, "steps": 4, "tasks_per_step": 6, "drafts": 8},
    "debate: consultancy": {**GAMES, "steps": 3, "tasks_per_step": 6, "consultancy": True, "drafts": 8},
    "debate: turns": {"turns": 2, "leaves": 2, "words": 2, "steps": 3, "tasks_per_step": 6, "drafts": 8} | GAMES,
    "debate: dpo": {**GAMES, "algorithm": "dpo", "iteration": 2, "steps": 4, "tasks_per_step": 8, "drafts": 8},
    "dpo": {},
    "dpo: hinge": {"loss": "hinge", "beta": 0.5, "sft": 0.1},
    "judged": {"warmup": 1, "verifier_lr": 1e-3},
    "judged: audited": {"warmup": 1, "audit": TINY, "audit_share": 1.0, "verifier_lr": 1e-3},
    "judged: in turn": {"ratio": (1, 1), "warmup": 0},
    "judged: frozen": {"verifier": "frozen", "warmup": 1},
    "judged: truth": {"pay": "truth", "warmup": 0, "balance": False, "kl": 0.01},
    "mae": {**WRITES, "steps": 3},
    "mae: frozen, every question": {**WRITES, "judge": "frozen", "quality": 0.0, "steps": 3},
    "mae: oracle": {**WRITES, "judge": "oracle", "truth": 0.5, "kl": 0.01, "steps": 3},
    "magrpo": {**GAMES, "tasks": Halves()},
    "magrpo: a joint reward": {"joint_reward": length, "turns": 3, "group_size": 2, "tasks_per_step": 2},
    "magrpo: crossed, raw": {**GAMES, "tasks": Halves(), "pairing": "crossed", "estimator": "raw"},
    "mars": {"plan": False, "system1": "none", "noise": 0.0},
    "marti": {**GAMES, "steps": 3},
    "marti: chain": {"workflow": "chain", "shaping": "quality", "history": "all", "kl": 0.01, "tasks_per_step": 5},
    "marti: mixture": {**GAMES, "workflow": "mixture", "steps": 3, "estimator": "rloo", "tasks_per_step": 5},
    "marti: vote": {"workflow": "vote"},
    "pair_judge": {},
    "pair_judge: imitation": {"learn": "sft", "solutions": 0.5},
    "pair_judge: scalar": {"form": "scalar"},
    "pair_judge: a meta judge": {"keep": 2, "rm_lr": 1e-3, "orders": "random", "pay": "score", "kl": 0.01},
    "prime": {"keep": (0.0, 1.0)},
    "prime: before": {"seed": 1, "update": "before", "warmup": 1},
    "prime: frozen": {"seed": 1, "prm": "frozen", "warmup": 1},
    "prime: none": {"prm": "none", "steps": 2},
    "prime: ppo": {"keep": (0.0, 1.0), "estimator": "ppo", "steps": 2},
    "proposer_solver": WRITES,
    "proposer_solver: rzero": {
        "variant": "rzero",
        "gate": True,
        "solver_band": (0.0, 1.0),
        "steps": 4,
        "ratio": (1, 3),
        **WRITES,
    },
    "proposer_solver: frozen": {**WRITES, "proposer": "frozen"},
    "proposer_solver: uniform": {"proposer": "uniform", "kl": 0.01},
    "proposer_solver: no gate": {**WRITES, "gate": False},
    "reward": {"anchor": 0.1},
    "rise": {"verify_share": 0.5, "critic_lr": 1e-3},
    "rise: ppo": {"verify_share": 0.0, "kl": 0.0},
    "self_compare": {"comparisons": 2},
    "self_compare: letters": {"form": "gram", "pairs": 2, "weight": 0.5, "kl": 0.01},
    "self_compare: unpaid": {"comparer": "unpaid"},
    "self_compare: frozen": {"comparer": "frozen"},
    "self_rewarding": {"iteration": 1, "steps": 4},
    "self_rewarding: oracle": {"judge": "oracle", "sft": 0.1, "steps": 3},
    "self_rewarding: frozen": {"judge": "frozen", "steps": 4},
    "self_verify": {"ratio": (1, 1), "reviews": 4},
    "self_verify: joint": {"mode": "joint", "reviews": 4, "kl": 0.01},
    "self_verify: generate": {"mode": "generate", "warmup": 1, "reviews": 4},
    "self_verify: verify": {"mode": "verify", "balance": False, "pairs": 2, "reviews": 4},
    "semi_supervised": {"labelled": "4", "warmup": 1, "steps": 4},
    "semi_supervised: vote": {"labelled": "4", "rest": "vote"},
    "semi_supervised: a weighed vote": {"labelled": "words:1-2", "rest": "both", "warmup": 1, "steps": 4, "kl": 0.01},
    "semi_supervised: frozen": {"labelled": "4", "rest": "frozen", "warmup": 1, "unlabelled": 1.0},
    "semi_supervised: none": {"labelled": "16", "rest": "none", "steps": 8},
    "spin": {"iteration": 1, "steps": 4},
    "spin: hinge, unmixed": {"iteration": 2, "loss": "hinge", "mixed": False, "sft": 0.1},
    "spin: sft": {"control": "sft"},
    "ssp": {**SEARCHES, "tasks": LIBRARY, "verify": False, "steps": 3},
    "ssp: noise": {**SEARCHES, "tasks": LIBRARY, "invalid": -0.1, "kl": 0.01},
    "ssp: frozen": {
        **SEARCHES,
        "tasks": LIBRARY,
        "proposer": "frozen",
        "verify": False,
        "tasks_per_step": 8,
        "steps": 4,
    },
    "ssrl": {**GAMES, "tasks": World()},
    "ssrl: unmasked": {**GAMES, "tasks": World(), "mask": False, "kl": 0.01},
    "ssrl: real engine": {**GAMES, "tasks": World(), "searches": "real", "turns": 2},
    "stepwiser": {"verifier_lr": 1e-3, "rollouts": 3},
    "stepwiser: trained": {"verifier_lr": 1e-3, "generator": "trained", "labels": "ratio", "rollouts": 3},
    "stepwiser: oracle": {"verifier_lr": 1e-3, "labels": "oracle", "balance": False, "reviews": 2},
    "stv": {"model": "shipped", "lessons": 1, "reviews": 2, "verifier_lr": 1e-3},
    "stv: blind": {"model": "shipped", "taught": "blind", "lessons": 1, "reviews": 2},
    "stv: learns on": {"model": "shipped", "lessons": 1, "verifier": "trained", "reviews": 2, "steps": 3},
    "stv: not taught": {"taught": "none", "reviews": 2},
    "tango: rloo": {"estimator": "rloo", "step_scale": "one", "alpha": 0.5, "warmup": 1, "reviews": 4},
    "tango: reinforce++": {"estimator": "reinforce++", "alpha": 0.5, "warmup": 1, "reviews": 4},
    "two_agents_split": {"finishes": 3, "starter_lr": 1e-3},
    "two_agents_split: dpo": {"solver_by": "dpo", "tasks_per_step": 5},
    "two_agents_split: shared": {"weights": "shared", "solver_by": "grpo", "kl": 0.01},
    "two_agents_split: starter alone": {"train": "starter"},
    "ttrl": {"votes": 8},
    "ttrl: truth": {"votes": 8, "labels": "truth", "kl": 0.0},
    "tango: clip higher": {"clip_high": 0.28, "warmup": 1, "reviews": 4},
}
MEASURED = {
    "bipolicy": "verifier/balanced_accuracy",
    "dpo": "generator/pair_accuracy",
    "pair_judge": "judge/pair_accuracy",
    "reward": "rm/pair_accuracy",
    "magrpo": "swapped_bob_answer/metadata/correct",
    "marti": "agent0/metadata/team",
}  # a figure of each method that has no solver
AGAIN = {
    "debate: turns",
    "debate: dpo",
    "magrpo: a joint reward",
}  # variants that are games of their own
ELSEWHERE = {"demo", "grpo", "tango"}  # in tests/runs/test_run.py, whole runs


def built(case, cases=CASES):
    name = case.split(":")[0]
    arguments = {"tasks": EASY, **SMALL, **cases[case]}
    taken = find_recipe(name).parameters  # some methods have no group
    return find_recipe(name)(**{key: value for key, value in arguments.items() if key != "group_size" or key in taken})


def digest(trainer: CoTrainer, rows: list) -> str:
    """Over weights, moments, state and metrics."""
    found = hashlib.sha256(json.dumps([trainer.state(), rows], sort_keys=True).encode())
    for policy, tensors in sorted(trainer.policies.tensors().items()):
        for name, tensor in sorted(tensors.items()):
            found.update(f"{policy} {name}".encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def check_learning(recipe, *, again: bool) -> None:
    """Every policy of it learns; with ``again`` the same bits, delayed and resumed."""
    trainer = CoTrainer(recipe)
    start = {policy: dict(tensors) for policy, tensors in trainer.policies.tensors().items()}
    rows = [trainer.step().row for _ in range(recipe.steps)]
    for row in rows:
        assert not [key for key in row if key.startswith("failures/")], row
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float)), row
    for policy in trainer.policies.update_counts:
        assert trainer.policies.update_counts[policy] > 0, f"{policy} never learned: {rows}"
        now = trainer.policies.tensors()[policy]
        moved = [n for n, t in start[policy].items() if n.startswith("model.") and not torch.equal(t, now[n])]
        assert moved, f"{policy} was updated, but no weight moved"
    if not again:
        return

    first = CoTrainer(recipe, wrap_engine=lambda engine: RandomLatency(engine, 7))
    replayed = [first.step().row for _ in range(recipe.steps - 1)]
    saved = json.loads(json.dumps(first.state())), first.policies.tensors()
    second = CoTrainer(recipe, wrap_engine=lambda engine: RandomLatency(engine, 8))
    second.load(*saved)
    replayed.append(second.step().row)
    assert replayed == rows
    assert digest(second, replayed) == digest(trainer, rows)


def check_any_order(make) -> None:
    """Who is asked what, and what is said, at each address: whoever is answered first."""

    def said(wrap=None):
        trainer = CoTrainer(make(), **({"wrap_engine": wrap} if wrap else {}))
        traces = [t for _ in range(trainer.recipe.steps) for e in trainer.step().episodes for t in e.traces]
        return {str(t.address): (t.prompt_ids, t.token_ids) for t in traces}

    expected = said()
    for seed in (1, 2):
        assert said(lambda engine, s=seed: AnyOrder(engine, s)) == expected


def check_measures(recipe, figure: str = "solver/pass@1") -> None:
    """Its figures on held-out problems: there are some, each within its interval, of those that it can have."""
    figures, _ = CoTrainer(recipe).evaluate("test", 2, group_size=2)
    assert figure in figures
    names = validation_figure_names(recipe)
    assert names is not None and figures.keys() <= names
    for key, measured in figures.items():
        assert measured.low <= measured.value <= measured.high, key


@pytest.mark.parametrize("name", sorted({case.split(":")[0] for case in CASES}))
def test_every_control_builds_a_recipe(name):
    """A recipe that exists was checked: its names, its signals, who learns from whom."""
    for case in CASES:
        if case.split(":")[0] == name:
            assert built(case).objectives, case


@pytest.mark.nightly
@pytest.mark.parametrize("case", CASES)
def test_a_method_learns_and_does_not_depend_on_latency_or_interruption(case):
    check_learning(built(case), again=":" not in case or case in AGAIN)  # of most variants learning is enough


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in CASES if ":" not in case or case in AGAIN])
def test_a_method_plays_the_same_in_any_order(case):
    check_any_order(lambda: built(case))


@pytest.mark.parametrize("name", sorted(set(SHIPPED) - ELSEWHERE))
def test_a_method_is_tested_and_documented(name):
    assert name in {case.split(":")[0] for case in CASES}
    file = Path(inspect.getsourcefile(inspect.unwrap(find_recipe(name).build)))
    pages = Path(__file__).parents[2] / "docs" / "methods"
    if (pages / f"{name}.md").exists():
        return
    page = file.parent.name if file.name == "recipe.py" else file.stem
    assert f"`{name}`" in (pages / f"{page}.md").read_text()


@pytest.mark.parametrize("name", sorted(set(SHIPPED) - ELSEWHERE))
def test_what_a_method_measures(name):
    check_measures(built(name), MEASURED.get(name, "solver/pass@1"))
