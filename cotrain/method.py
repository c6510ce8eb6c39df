"""All that a method is written with, under one roof: ``from cotrain import Role, Signal, grpo, …``.

Only names are collected here. ``cotrain`` itself hands them out and imports this module with the first one that is
asked for.
"""

from cotrain.core.address import rng_of
from cotrain.core.arguments import at_least
from cotrain.core.errors import ConfigError
from cotrain.core.notes import (
    ANSWER,
    CORRECT,
    FAILURE,
    FINAL,
    JUDGED,
    LABEL_RIGHT,
    REWARD_RIGHT,
    SCORE,
    STEP_OK,
    Finding,
    Note,
)
from cotrain.core.signals import AGREEMENT, FORMAT, LABEL, MATCH, OUTCOME, STEP, TRUTH, Signal, gives
from cotrain.core.types import Grade, ParseFailure, Sampling, StepVerdicts, Task, TaskSource
from cotrain.learn.after import After, TrainWithPromptOf, drop_flat_groups
from cotrain.learn.algorithms import (
    BY_NAME,
    Clipped,
    Kl,
    dr_grpo,
    grpo,
    maxrl,
    pull_to,
    reinforce,
    reinforce_pp,
    rloo,
)
from cotrain.learn.balance import ClassBalance
from cotrain.learn.mixing import decay
from cotrain.learn.ppo import Ppo, ValueRegression
from cotrain.learn.sft import Sft
from cotrain.loop.evaluation import Evaluation
from cotrain.loop.implied import Implied
from cotrain.loop.policies import Policy, adapter, critic, ema, frozen, program, reward_model, snapshot, trainable
from cotrain.loop.recipe import Objective, Recipe
from cotrain.loop.remote import remote
from cotrain.loop.schedule import Phase, alternate, single
from cotrain.loop.settings import Settings, recipe
from cotrain.metrics.heldout import judged_by, noting, selecting, solving, verifying
from cotrain.play import common_roles, judges
from cotrain.play.executor import Roles
from cotrain.play.idle_loop import together
from cotrain.play.protocols import (
    REVIEWED,
    SOLVED,
    attempts,
    closed,
    examine,
    review,
    review_all,
    reward_review,
    solve,
    solve_then_verify,
)
from cotrain.play.role import Role, Turn
from cotrain.tasks.words.source import study_problems, word_problems

__all__ = [
    "AGREEMENT",
    "ANSWER",
    "BY_NAME",
    "CORRECT",
    "FAILURE",
    "FINAL",
    "FORMAT",
    "JUDGED",
    "LABEL",
    "LABEL_RIGHT",
    "MATCH",
    "OUTCOME",
    "REVIEWED",
    "REWARD_RIGHT",
    "SCORE",
    "SOLVED",
    "STEP",
    "STEP_OK",
    "TRUTH",
    "After",
    "ClassBalance",
    "Clipped",
    "ConfigError",
    "Evaluation",
    "Implied",
    "Finding",
    "Grade",
    "Kl",
    "Note",
    "Objective",
    "ParseFailure",
    "Phase",
    "Policy",
    "Ppo",
    "Recipe",
    "Role",
    "Roles",
    "Sampling",
    "Settings",
    "Sft",
    "Signal",
    "StepVerdicts",
    "Task",
    "TaskSource",
    "TrainWithPromptOf",
    "Turn",
    "ValueRegression",
    "adapter",
    "alternate",
    "at_least",
    "attempts",
    "closed",
    "critic",
    "decay",
    "dr_grpo",
    "drop_flat_groups",
    "ema",
    "examine",
    "frozen",
    "gives",
    "grpo",
    "judged_by",
    "judges",
    "maxrl",
    "noting",
    "common_roles",
    "program",
    "pull_to",
    "recipe",
    "reinforce",
    "reinforce_pp",
    "remote",
    "review",
    "review_all",
    "reward_model",
    "reward_review",
    "rloo",
    "rng_of",
    "selecting",
    "single",
    "snapshot",
    "solve",
    "solve_then_verify",
    "solving",
    "study_problems",
    "together",
    "trainable",
    "verifying",
    "word_problems",
]
