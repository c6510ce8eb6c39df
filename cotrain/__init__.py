"""cotrain: train several language models together with reinforcement learning.

    import cotrain
    from cotrain.recipes.tango import tango

    cotrain.run(tango(steps=160), out="runs/mine")

The verbs are those of ``cotrain.api``. What a method is written with is imported from here too: ``from cotrain import
Role, Signal, grpo``. A recipe is in a module of ``cotrain.recipes``, and here as well where nothing else has its name:
``grpo`` here is the estimator, and ``cotrain.recipes.grpo.grpo`` the recipe. Importing this package is cheap: each name
is imported from its module when it is first asked for. ``__init__.pyi`` has the names for type checkers and editors.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
NAMES = {  # module → the names that it has here
    "api": "report resume run trust_code",
    "core.seeding": "rng_of",
    "core.arguments": "AtLeast NotNegative Positive Share Weight at_least",
    "core.errors": "ConfigError",
    "core.notes": "ANSWER CORRECT FAILURE FINAL Finding JUDGED LABEL_RIGHT Note REWARD_RIGHT SCORE STEP_OK",
    "core.signals": "AGREEMENT FORMAT LABEL MATCH OUTCOME STEP Signal TRUTH gives",
    "core.types": "Grade ParseFailure Sampling StepVerdicts Task TaskSource",
    "analysis": "compare",
    "algorithms.advantage_edits": "TrainWithPromptOf",
    "algorithms.grpo": "BY_NAME Clipped Kl dr_grpo grpo maxrl pull_to reinforce reinforce_pp rloo",
    "algorithms.policy_gradient": "After ClassBalance drop_flat_groups",
    "algorithms.samples": "decay",
    "algorithms.ppo": "Ppo ValueRegression",
    "algorithms.sft": "Sft",
    "config.evaluation": "Evaluation Implied",
    "config.policies": "Policy adapter critic ema frozen program reward_model snapshot trainable",
    "config.recipe": "Objective Recipe",
    "config.remote": "remote",
    "config.schedule": "Phase alternate single",
    "config.run_config": "Settings recipe",
    "runs.opening": "evaluate",
    "metrics.heldout": "measure_judge measure_note measure_selection measure_solver measure_solver_and_judge",
    "rollout": "common_roles judges",
    "rollout.runner": "Roles",
    "rollout.event_loop": "together",
    "rollout.protocols": "SOLVED attempts examine include_closing_tag solve",
    "rollout.reviews": "REVIEWED review review_all reward_review solve_then_verify",
    "rollout.role": "Role Turn",
    "data.word_problems.source": "study_problems word_problems",
}
MODULES = ("common_roles", "judges")  # names that are modules
PLACES = {name: f"cotrain.{module}" for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in PLACES:
        place = import_module(PLACES[name])
        value = import_module(f"{PLACES[name]}.{name}") if name in MODULES else getattr(place, name)
    elif not name.startswith("_") and name in import_module("cotrain.recipes").RECIPES:
        module, _, function = import_module("cotrain.recipes").RECIPES[name].partition(":")
        value = getattr(import_module(module), function)
    else:
        raise AttributeError(f"module 'cotrain' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES, *import_module("cotrain.recipes").RECIPES})
