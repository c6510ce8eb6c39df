"""cotrain: train several language models together with reinforcement learning.

    import cotrain
    from cotrain.methods.tango import tango

    cotrain.run(tango(steps=160), out="runs/mine")

The verbs are those of ``cotrain.api``. What a method is written with is imported from here too: ``from cotrain import
Role, Signal, grpo``. Importing this package is cheap: each name is imported from its module when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test holds the two lists against each other
    # fmt: off
    from cotrain.api import evaluate as evaluate
    from cotrain.api import report as report
    from cotrain.api import resume as resume
    from cotrain.api import run as run
    from cotrain.api import trust_code as trust_code
    from cotrain.core.address import rng_of as rng_of
    from cotrain.core.arguments import AtLeast as AtLeast
    from cotrain.core.arguments import NotNegative as NotNegative
    from cotrain.core.arguments import Positive as Positive
    from cotrain.core.arguments import at_least as at_least
    from cotrain.core.errors import ConfigError as ConfigError
    from cotrain.core.notes import ANSWER as ANSWER
    from cotrain.core.notes import CORRECT as CORRECT
    from cotrain.core.notes import FAILURE as FAILURE
    from cotrain.core.notes import FINAL as FINAL
    from cotrain.core.notes import JUDGED as JUDGED
    from cotrain.core.notes import LABEL_RIGHT as LABEL_RIGHT
    from cotrain.core.notes import REWARD_RIGHT as REWARD_RIGHT
    from cotrain.core.notes import SCORE as SCORE
    from cotrain.core.notes import STEP_OK as STEP_OK
    from cotrain.core.notes import Finding as Finding
    from cotrain.core.notes import Note as Note
    from cotrain.core.signals import AGREEMENT as AGREEMENT
    from cotrain.core.signals import FORMAT as FORMAT
    from cotrain.core.signals import LABEL as LABEL
    from cotrain.core.signals import MATCH as MATCH
    from cotrain.core.signals import OUTCOME as OUTCOME
    from cotrain.core.signals import STEP as STEP
    from cotrain.core.signals import TRUTH as TRUTH
    from cotrain.core.signals import Signal as Signal
    from cotrain.core.signals import gives as gives
    from cotrain.core.types import Grade as Grade
    from cotrain.core.types import ParseFailure as ParseFailure
    from cotrain.core.types import Sampling as Sampling
    from cotrain.core.types import StepVerdicts as StepVerdicts
    from cotrain.core.types import Task as Task
    from cotrain.core.types import TaskSource as TaskSource
    from cotrain.lab import compare as compare
    from cotrain.learn.after import After as After
    from cotrain.learn.after import TrainWithPromptOf as TrainWithPromptOf
    from cotrain.learn.after import drop_flat_groups as drop_flat_groups
    from cotrain.learn.algorithms import BY_NAME as BY_NAME
    from cotrain.learn.algorithms import Clipped as Clipped
    from cotrain.learn.algorithms import Kl as Kl
    from cotrain.learn.algorithms import dr_grpo as dr_grpo
    from cotrain.learn.algorithms import grpo as grpo
    from cotrain.learn.algorithms import maxrl as maxrl
    from cotrain.learn.algorithms import pull_to as pull_to
    from cotrain.learn.algorithms import reinforce as reinforce
    from cotrain.learn.algorithms import reinforce_pp as reinforce_pp
    from cotrain.learn.algorithms import rloo as rloo
    from cotrain.learn.policy_gradient import ClassBalance as ClassBalance
    from cotrain.learn.samples import decay as decay
    from cotrain.learn.ppo import Ppo as Ppo
    from cotrain.learn.ppo import ValueRegression as ValueRegression
    from cotrain.learn.sft import Sft as Sft
    from cotrain.config.evaluation import Evaluation as Evaluation
    from cotrain.config.evaluation import Implied as Implied
    from cotrain.config.policies import Policy as Policy
    from cotrain.config.policies import adapter as adapter
    from cotrain.config.policies import critic as critic
    from cotrain.config.policies import ema as ema
    from cotrain.config.policies import frozen as frozen
    from cotrain.config.policies import program as program
    from cotrain.config.policies import reward_model as reward_model
    from cotrain.config.policies import snapshot as snapshot
    from cotrain.config.policies import trainable as trainable
    from cotrain.config.recipe import Objective as Objective
    from cotrain.config.recipe import Recipe as Recipe
    from cotrain.config.remote import remote as remote
    from cotrain.config.schedule import Phase as Phase
    from cotrain.config.schedule import alternate as alternate
    from cotrain.config.schedule import single as single
    from cotrain.config.settings import Settings as Settings
    from cotrain.config.settings import recipe as recipe
    from cotrain.metrics.heldout import judged_by as judged_by
    from cotrain.metrics.heldout import noting as noting
    from cotrain.metrics.heldout import selecting as selecting
    from cotrain.metrics.heldout import solving as solving
    from cotrain.metrics.heldout import verifying as verifying
    from cotrain.rollout import common_roles as common_roles
    from cotrain.rollout import judges as judges
    from cotrain.rollout.executor import Roles as Roles
    from cotrain.rollout.idle_loop import together as together
    from cotrain.rollout.protocols import REVIEWED as REVIEWED
    from cotrain.rollout.protocols import SOLVED as SOLVED
    from cotrain.rollout.protocols import attempts as attempts
    from cotrain.rollout.protocols import closed as closed
    from cotrain.rollout.protocols import examine as examine
    from cotrain.rollout.protocols import review as review
    from cotrain.rollout.protocols import review_all as review_all
    from cotrain.rollout.protocols import reward_review as reward_review
    from cotrain.rollout.protocols import solve as solve
    from cotrain.rollout.protocols import solve_then_verify as solve_then_verify
    from cotrain.rollout.role import Role as Role
    from cotrain.rollout.role import Turn as Turn
    from cotrain.tasks.words.source import study_problems as study_problems
    from cotrain.tasks.words.source import word_problems as word_problems
    # fmt: on

__version__ = "0.1.0"
NAMES = {  # module → the names that it has here
    "api": "evaluate report resume run trust_code",
    "core.address": "rng_of",
    "core.arguments": "AtLeast NotNegative Positive at_least",
    "core.errors": "ConfigError",
    "core.notes": "ANSWER CORRECT FAILURE FINAL Finding JUDGED LABEL_RIGHT Note REWARD_RIGHT SCORE STEP_OK",
    "core.signals": "AGREEMENT FORMAT LABEL MATCH OUTCOME STEP Signal TRUTH gives",
    "core.types": "Grade ParseFailure Sampling StepVerdicts Task TaskSource",
    "lab": "compare",
    "learn.after": "After TrainWithPromptOf drop_flat_groups",
    "learn.algorithms": "BY_NAME Clipped Kl dr_grpo grpo maxrl pull_to reinforce reinforce_pp rloo",
    "learn.policy_gradient": "ClassBalance",
    "learn.samples": "decay",
    "learn.ppo": "Ppo ValueRegression",
    "learn.sft": "Sft",
    "config.evaluation": "Evaluation Implied",
    "config.policies": "Policy adapter critic ema frozen program reward_model snapshot trainable",
    "config.recipe": "Objective Recipe",
    "config.remote": "remote",
    "config.schedule": "Phase alternate single",
    "config.settings": "Settings recipe",
    "metrics.heldout": "judged_by noting selecting solving verifying",
    "rollout": "common_roles judges",
    "rollout.executor": "Roles",
    "rollout.idle_loop": "together",
    "rollout.protocols": "REVIEWED SOLVED attempts closed examine review review_all reward_review solve "
    "solve_then_verify",
    "rollout.role": "Role Turn",
    "tasks.words.source": "study_problems word_problems",
}
MODULES = ("common_roles", "judges")  # names that are modules
PLACES = {name: f"cotrain.{module}" for module, names in NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in PLACES:
        raise AttributeError(f"module 'cotrain' has no attribute {name!r}")
    module = name in MODULES
    value = import_module(f"{PLACES[name]}.{name}") if module else getattr(import_module(PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PLACES})
