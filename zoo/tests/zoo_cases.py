"""Every method of the zoo at its smallest, with its controls, as ``tests/recipes/test_recipes.py`` has cotrain's."""

from __future__ import annotations

from pathlib import Path

from cotrain_zoo.coder_tester.short_programs import ShortPrograms
from cotrain_zoo.spiral.source import Games

from cotrain.config.recipe import Recipe
from tests.recipes import test_recipes as shipped

TINY_PROGRAMS = str(Path(__file__).parent / "tiny-programs")  # knows short programs and tests of them
GAMES = {"model": "shipped-games"}
CODES = {"model": TINY_PROGRAMS, "tester_lr": 1e-3}
CASES = {  # "recipe" or "recipe: variant" → arguments beside those of ``shipped.SMALL``
    "adversarial_imitation": {"warmup": 1, "discriminator_lr": 1e-3, "steps": 3},
    "adversarial_imitation: frozen": {"warmup": 1, "discriminator": "frozen", "discriminator_lr": 1e-3},
    "adversarial_imitation: raro": {"variant": "raro", "warmup": 0, "discriminator_lr": 1e-3, "replay": 1, "steps": 3},
    "adversarial_imitation: raro, shared": {"variant": "raro", "warmup": 1, "weights": "shared", "kl": 0.01},
    "gar": {"critic_lr": 1e-3, "reviews": 2},
    "gar: frozen": {"critic": "frozen", "kl": 0.0, "reviews": 1},
    "gar: unbalanced": {"critic_lr": 1e-3, "balance": False, "slice_weight": 0.5, "reviews": 2},
    "coder_tester": CODES,
    "coder_tester: code_a1": {**CODES, "variant": "code_a1", "tests": 2, "kl": 0.01},
    "coder_tester: frozen tester": {**CODES, "tester": "frozen", "pay": "tests"},
    "coder_tester: reference tests": {**CODES, "tester": "reference", "pay": "valid", "steps": 3},
    "coder_tester: frozen coder": {**CODES, "coder": "frozen", "valid_by": "programs"},
    "coverrl": {"votes": 8, "reviews": 4, "revisions": 2},
    "coverrl: unbalanced, no veto": {"votes": 8, "balanced": False, "veto": False, "kl": 0.0},
    "debate_solve: reviewer": {"critic": "reviewer", "model": "shipped", "steps": 2},
    "debate_solve": {**GAMES, "steps": 3},
    "debate_solve: frozen": {**GAMES, "judge": "frozen", "votes": 2},
    "debate_solve: consultant": {**GAMES, "critic": "consultant", "kl": 0.01},
    "debate_solve: dpo": {**GAMES, "algorithm": "dpo", "iteration": 1, "steps": 3},
    "debate_solve: rlaif": {"critic": "none"},
    "dsm": {
        "analysis": "asked",
        "warmup": 1,
        "ratio": (1, 1),
        "reviews": 4,
        "votes": 4,
        "steps": 3,
    },
    "dsm: roles": {"warmup": 1, "reviews": 3, "steps": 3, "ratio": (1, 1)},
    "dsm: no meta-verifier": {"analysis": "asked", "meta": False, "warmup": 1, "labels": "answer"},
    "prover_verifier": {"reviews": 2, "sneaky_lr": 1e-3, "verifier_lr": 1e-3},
    "prover_verifier: strings": {"reviews": 2, "strings": 1, "warmup": 1, "steps": 3},
    "prover_verifier: frozen sneaky": {"reviews": 2, "sneaky": "frozen", "kl": 0.0},
    "prover_verifier: frozen verifier": {"reviews": 2, "verifier": "frozen", "steps": 3},
    "prover_verifier: no sneaky": {"reviews": 2, "sneaky": "none", "verifier": "frozen", "warmup": 1, "steps": 4},
    "rubric_judge": {"ratio": (2, 1), "writer_lr": 1e-3, "steps": 3},
    "rubric_judge: no rubric": {"writer": "none", "steps": 3},
    "rubric_judge: frozen judge": {"judge": "frozen", "judgements": 3},
    "spiral": {**GAMES, "tasks": Games("kuhn"), "pool": 2, "pool_every": 1, "steps": 4, "group_size": 8},
    "spiral: no baseline": {**GAMES, "tasks": Games("nim"), "baseline": False, "kl": 0.01},
}
MEASURED = {"rubric_judge": "judge/pair_accuracy", "spiral": "first/metadata/payoff"}  # of those that have no solver
AGAIN = {"debate_solve: rlaif"}  # a variant that is a game of its own
NAMES = sorted({case.split(":")[0] for case in CASES})


def built(case: str) -> Recipe:
    arguments = CASES[case]
    if case.startswith("coder_tester"):
        arguments = {"tasks": ShortPrograms(8), **arguments}  # made late: it tries the sandboxes of this machine
    return shipped.built(case, {case: arguments})
