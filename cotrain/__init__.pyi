"""The public names of ``cotrain``, listed once: ``__init__.py`` imports each from here when it is first asked for, and
type checkers and editors read this file. All else is imported from its folder."""

# Running: the verbs of the command line.
from .api import run as run
from .api import resume as resume
from .runs.opening import evaluate as evaluate
from .analysis import compare as compare
from .api import report as report
from .api import trust_code as trust_code

# What a method returns.
from .config.recipe import Recipe as Recipe
from .config.run_config import RunConfig as RunConfig
from .config.run_config import recipe as recipe
from .config.recipe import Objective as Objective
from .config.schedule import Phase as Phase
from .config.schedule import constant_schedule as constant_schedule
from .config.schedule import alternate as alternate
from .config.evaluation import Evaluation as Evaluation

# Whose weights speak.
from .config.policies import trainable as trainable
from .config.policies import adapter as adapter
from .config.policies import frozen as frozen
from .config.policies import ema as ema
from .config.policies import snapshot as snapshot
from .config.policies import critic as critic
from .config.policies import reward_model as reward_model
from .config.policies import program as program
from .config.remote import remote as remote

# Problems, and who speaks about them.
from .core.types import Task as Task
from .core.types import TaskSource as TaskSource
from .core.types import Grade as Grade
from .core.types import Sampling as Sampling
from .rollout.role import Role as Role
from .rollout.runner import Roles as Roles
from .rollout.role import Turn as Turn

# What is rewarded.
from .core.signals import Signal as Signal
from .core.signals import gives as gives
from .core.signals import OUTCOME as OUTCOME
from .core.signals import STEP as STEP
from .core.signals import FORMAT as FORMAT
from .core.signals import AGREEMENT as AGREEMENT
from .core.notes import CORRECT as CORRECT

# Protocols, and what is measured.
from .rollout.protocols import solve as solve
from .rollout.reviews import solve_then_verify as solve_then_verify
from .rollout.protocols import examine as examine
from .rollout.event_loop import gather as gather
from .metrics.heldout import measure_solver as measure_solver

# How a policy learns.
from .algorithms.grpo import GRPO as GRPO
from .algorithms.grpo import RLOO as RLOO
from .algorithms.ppo import PPO as PPO
from .algorithms.sft import SFT as SFT
from .algorithms.policy_gradient import KLPenalty as KLPenalty
from .algorithms.class_balance import ClassBalance as ClassBalance
from .algorithms.samples import decay as decay

# For protocols and errors.
from .core.errors import ConfigError as ConfigError
from .core.seeding import rng_of as rng_of

__version__: str
__all__: list[str]
