"""``RunConfig``, the settings that every run has, and ``@recipe``, which makes a function of them a recipe.

    @recipe(steps=160)
    def tango(run: RunConfig, *, reviews: int = 8) -> Recipe:
        return run.recipe("tango", policies={"generator": run.learner(), **run.reference_policies()}, …)

    tango(steps=3, seed=1, reviews=3)

The first parameter of the function gets the ``RunConfig``; the others are the method's own. A call passes both kinds by
name, and so does the command line, which finds them in ``tango.parameters``. ``@recipe(steps=160)`` sets another
default, ``@recipe(without=("kl",))`` removes a setting. The arguments are kept in the recipe as its origin, so that a
run can be resumed from its directory alone.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

from cotrain.algorithms.policy_gradient import KLPenalty, kl_penalty
from cotrain.config.edits import with_policies
from cotrain.config.evaluation import Evaluation, ImplicitReward
from cotrain.config.large_model_defaults import LARGE_MICRO_TOKENS, large_policies, size_defaults
from cotrain.config.policies import Learning, LrDecay, Policy, Weights, adapter, frozen, trainable
from cotrain.config.recipe import RAMP, Objective, Origin, Recipe
from cotrain.config.schedule import Schedule
from cotrain.core.arguments import Argument, Weight, bound_arguments, check_argument, hints_of, kind_in_file
from cotrain.core.errors import ConfigError, UnknownName
from cotrain.core.input_files import absolute_path
from cotrain.core.registry import RECIPES, joined_places
from cotrain.core.types import RolloutFn, Store, TaskSource
from cotrain.data.word_problems.source import study_problems
from cotrain.metrics.heldout import Measure, measure_solver
from cotrain.rollout.role import Role, SolverTool

Reset = Literal["nothing", "optimiser", "weights"]  # "weights" also resets the optimizer
Build = Callable[..., Recipe]
# Kinds of parameters that cannot be the first one, which gets the RunConfig.
KEYWORD_KINDS = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
SPLITS = ("ood_length", "ood_template")  # splits measured at the end if the tasks have them

# Problems by what they are made of, each with its ``tasks``, whose address is not used again while they are kept. Not
# empty inside of ``problems_read_once``, where a block has the problems of the one around it.
_PROBLEMS_READ: list[dict[tuple[object, ...], tuple[TaskSource | None, TaskSource]]] = []


@contextmanager
def problems_read_once() -> Iterator[None]:
    """Inside of the block, recipes that are made with the same ``tasks``, ``labelled``, ``ramp`` and ``seed`` have the
    same problems: the files that ``labelled`` and ``ramp`` name may be large."""
    _PROBLEMS_READ.append(_PROBLEMS_READ[-1] if _PROBLEMS_READ else {})
    try:
        yield
    finally:
        _PROBLEMS_READ.pop()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """The settings of every run, whatever its method. The comments are the help of the flags."""

    model: str = "shipped"  # directory, name on the Hub, or a shipped model
    steps: int = 100  # number of training steps
    seed: int = 0  # random seed of the run
    tasks: TaskSource | None = None  # the problems; None: word problems
    labelled: str | int | None = None  # problems with labels: 16, 10%, words:2-3, easy.jsonl; test:64 has none
    ramp: str | None = None  # train from easy to hard, by the samples of a model: suite-NAME.jsonl of `cotrain eval`
    target_solve_rate: float | None = None  # with ramp: harder problems while more is solved; by default by the step
    audits: int | None = None  # problems without labels whose truth metrics look up at each step; by default all
    tasks_per_step: int = 16  # problems drawn at each step
    group_size: int = 8  # solutions of a problem, which are compared with each other
    lr: float = 2e-4  # learning rate of the generator, or of the one policy that learns
    lora: int = 0  # rank of the adapters that are trained, at α = 2 · rank; 0: all weights
    kl: Weight = 0.001  # weight of the KL term between the generator and its initial weights
    tool: SolverTool | None = None  # tool that whoever writes solutions may call: calculator, or my_file.py:function
    temperature: float | None = None  # sampling temperature of all roles; by default 1, or what the method says
    lr_warmup: int | None = None  # warm-up updates, over which learning rates rise (default: 5)
    lr_decay: LrDecay | None = None  # how learning rates fall to 0 (default: constant); wsd: over the last fifth
    updates_per_batch: int | None = None  # updates of each policy on the same samples (default: 1)
    offload: bool = False  # on a GPU, keep policies that do not compute, and all moments, in CPU memory
    load_in_4bit: bool = False  # frozen models and bases of adapters: linear layers in 4 bits, by bitsandbytes
    refill: int = 0  # rounds of each step in which problems whose answers all earn the same are replaced (DAPO)
    mask_truncated: bool = False  # leave answers that were cut at max_tokens out of the loss (DAPO)
    overlong_tokens: int = 0  # last tokens before max_tokens over which a penalty rises to 1 (DAPO); 0: none
    length_penalty: Weight = 0.0  # weight of a reward for the shorter answers of a group (Kimi k1.5)
    evaluate_every: int = 0  # steps between evaluations; 0: only before and after
    evaluation_tasks: int = 256  # held-out problems that are measured before and after training

    def learner(
        self, model: str | None = None, *, lr: float | None = None, iteration: int = 0, reset: Reset = "nothing"
    ) -> Policy:
        """A policy that learns: all of its weights, or an adapter if ``lora`` is set. ``reset``: what is reset after
        every ``iteration`` of its updates."""
        name = model or self.model
        rate = self.lr if lr is None else lr
        if self.lora:
            policy = adapter(name, rank=self.lora, alpha=2 * self.lora, lr=rate)
        else:
            policy = trainable(name, lr=rate)
        if reset == "nothing":
            return policy
        assert isinstance(policy, Learning)
        return replace(policy, reset_every=iteration, reset_to_start=reset == "weights")

    def reference_policies(self) -> dict[str, Policy]:
        """The frozen policy ``reference`` of the KL term; {} if ``kl`` is 0."""
        return {"reference": frozen(self.model)} if self.kl else {}

    def kl_penalty(self) -> KLPenalty | None:
        """The KL term between the generator and the policy ``reference``; None if ``kl`` is 0."""
        return kl_penalty("reference", self.kl)

    def frozen_roles(self) -> dict[str, str]:
        """The role that ``reference`` plays in evaluations, where there is one: judges are also measured on its
        solutions, which stay the same through the run."""
        return {"solver": "reference"} if self.kl else {}

    @property
    def problems(self) -> TaskSource:
        """``tasks``, by default word problems; ordered from easy to hard with ``ramp``; partly without labels with
        ``labelled``."""
        if not _PROBLEMS_READ:
            return self._read_problems()
        made_of = (id(self.tasks), self.labelled, self.ramp, self.target_solve_rate, self.seed)
        if made_of not in _PROBLEMS_READ[-1]:
            _PROBLEMS_READ[-1][made_of] = (self.tasks, self._read_problems())
        _, problems = _PROBLEMS_READ[-1][made_of]
        return problems

    def _read_problems(self) -> TaskSource:
        source = study_problems() if self.tasks is None else self.tasks
        if self.target_solve_rate is not None and self.ramp is None:
            raise ConfigError(
                f"target_solve_rate {self.target_solve_rate} is that of a ramp, and there is none; add ramp, a file of "
                "samples that orders the problems, or leave it out",
                code="E_TARGET_SOLVE_RATE_WITHOUT_RAMP",
            )
        if self.ramp is not None:
            from cotrain.data.curriculum import with_ramp

            if self.labelled is not None:
                raise ConfigError(
                    "ramp orders problems that all have labels; leave out ramp, or labelled",
                    code="E_RAMP_WITH_LABELLED",
                )
            return with_ramp(source, self.ramp)
        if self.labelled is None:
            return source
        from cotrain.data.labels import with_labels

        return with_labels(source, str(self.labelled), self.seed)

    def unlabelled_share(self) -> float:
        """The share of unlabelled problems for a method that needs no labels: 1 if ``labelled`` is set, else 0."""
        return float(self.labelled is not None)

    def values(self) -> dict[str, Any]:
        """All options by name, to call another recipe with them."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def recipe(
        self,
        name: str,
        *,
        policies: Mapping[str, Policy],
        roles: Mapping[str, Role],
        objectives: Mapping[str, Objective],
        schedule: Schedule,
        evaluate: RolloutFn,
        measures: tuple[Measure, ...] = (measure_solver("solver", 8),),
        frozen_roles: Mapping[str, str] | None = None,
        implicit_rewards: tuple[ImplicitReward, ...] = (),
        stores: Mapping[str, Store] | None = None,
    ) -> Recipe:
        """The complete recipe, with these settings applied to its parts.

        Args:
            evaluate: the protocol on held-out problems.
            measures: functions from its episodes to figures.
            frozen_roles: see ``Evaluation``.
            implicit_rewards: see there.
            stores: initial content of what the run collects (``rollout/stores.py``).
        """
        evaluation = Evaluation(
            protocol=evaluate,
            measures=measures,
            tasks=self.evaluation_tasks,
            splits=SPLITS,
            frozen_roles=frozen_roles or {},
            implicit_rewards=implicit_rewards,
        )
        return Recipe(
            name=name,
            tasks=self.problems,
            steps=self.steps,
            seed=self.seed,
            tasks_per_step=self.tasks_per_step,
            group_size=self.group_size,
            policies={name: self._with_policy_settings(policy) for name, policy in policies.items()},
            roles=self._with_tool({name: self._with_temperature(role) for name, role in roles.items()}),
            objectives=self._with_lengths(objectives),
            schedule=schedule,
            evaluation=evaluation,
            refill=self.refill,
            audits=self.audits,
            evaluate_every=self.evaluate_every,
            stores=self._with_adaptive_ramp(stores or {}, objectives),
        )

    def _with_adaptive_ramp(
        self, stores: Mapping[str, Store], objectives: Mapping[str, Objective]
    ) -> Mapping[str, Store]:
        """The stores, and with ``target_solve_rate`` the share of its ramp, which the first objective's roles move."""
        if self.target_solve_rate is None:
            return stores
        from cotrain.data.curriculum import AdaptiveRamp

        first = next(iter(objectives.values()))
        return {RAMP: AdaptiveRamp(target=self.target_solve_rate, roles=first.roles), **stores}

    def _with_temperature(self, role: Role) -> Role:
        if self.temperature is None:
            return role
        return role.with_temperature(self.temperature)

    def _with_tool(self, roles: Mapping[str, Role]) -> Mapping[str, Role]:
        if self.tool is None:
            return roles
        from cotrain.rollout.token_calls import with_tool

        return with_tool(roles, self.tool)

    def _with_lengths(self, objectives: Mapping[str, Objective]) -> Mapping[str, Objective]:
        if not (self.mask_truncated or self.overlong_tokens or self.length_penalty):
            return objectives
        from cotrain.algorithms.advantage_edits import with_length_options

        first = next(iter(objectives))
        algorithm = with_length_options(
            objectives[first].algorithm, self.mask_truncated, self.overlong_tokens, self.length_penalty
        )
        return {**objectives, first: replace(objectives[first], algorithm=algorithm)}

    def _with_policy_settings(self, policy: Policy) -> Policy:
        """The policy with ``offload``, ``load_in_4bit``, ``lr_warmup``, ``lr_decay`` and ``updates_per_batch``."""
        if self.offload and isinstance(policy, Weights):
            policy = replace(policy, offload=True)
        if self.load_in_4bit and isinstance(policy, Weights) and policy.kind in ("adapter", "frozen", "trainable"):
            policy = replace(policy, load_in_4bit=True)
        if not isinstance(policy, Learning):
            return policy
        if self.lr_warmup is not None:
            policy = replace(policy, lr_warmup=self.lr_warmup)
        if self.lr_decay is not None:
            policy = replace(policy, lr_decay=self.lr_decay)
        if self.updates_per_batch is not None:
            policy = replace(policy, updates_per_batch=self.updates_per_batch)
        return policy


RUN_CONFIG_NAMES = tuple(field.name for field in dataclasses.fields(RunConfig))


class RecipeFunction:
    """A recipe function, as ``@recipe`` returns it. Called with settings and the method's own parameters, by name, it
    returns a ``Recipe``.

    ``build``: the function as it was written. ``parameters``: all parameters of a call, settings first.
    """

    def __init__(self, build: Build, *, without: tuple[str, ...], reads: str, defaults: Mapping[str, Any]) -> None:
        """Args: see ``recipe``. Raises ConfigError and UnknownName."""
        functools.update_wrapper(self, build)
        self.build = build
        self.without = without
        self.reads = reads
        self.name = build.__name__
        where = f"recipe {self.name!r}"
        settings = settings_taken(where, without, defaults)
        own = own_arguments(where, build)
        self.parameters: dict[str, Argument] = settings | own

    def __call__(self, **arguments: Any) -> Recipe:
        return self.make(arguments)

    @property
    def description(self) -> str:
        """The docstring of the function, else that of its module."""
        return inspect.getdoc(self.build) or inspect.getdoc(inspect.getmodule(self.build)) or ""

    def own_parameters(self) -> dict[str, Argument]:
        """The method's own parameters."""
        return {name: argument for name, argument in self.parameters.items() if name not in RUN_CONFIG_NAMES}

    def settings(self) -> dict[str, Argument]:
        """The settings of ``RunConfig`` that it has, with its defaults."""
        return {name: argument for name, argument in self.parameters.items() if name in RUN_CONFIG_NAMES}

    def make(self, user_arguments: Mapping[str, Any], *, again: bool = False) -> Recipe:
        """The recipe with these arguments. ``again``: for a run that was started before, whose defaults do not depend
        on the size of the model any more. Raises ConfigError and UnknownName, one line each."""
        for name in user_arguments:
            if name in self.without:
                raise ConfigError(
                    f"{self.name}: this recipe does not take the setting {name!r}; leave it out",
                    code="E_SETTING_NOT_TAKEN",
                )
        values = bound_arguments(self.name, self.parameters, user_arguments)
        values |= self._loaded_from_files(values)
        has_defaults = len(user_arguments) < len(values)  # False for the file of a dry run, which names all of them
        by_size = size_defaults(values, user_arguments) if has_defaults and not again else {}
        values |= by_size

        settings = {name: value for name, value in values.items() if name in RUN_CONFIG_NAMES}
        own = {name: value for name, value in values.items() if name not in RUN_CONFIG_NAMES}
        recipe = self.build(RunConfig(**settings), **own)
        if not isinstance(recipe, Recipe):
            raise ConfigError(
                f"recipe function {self.name!r} returned {recipe!r}, expected a Recipe", code="E_NOT_RECIPE"
            )

        arguments = {name: describe_argument(name, value) for name, value in values.items()}
        origin = Origin(target=target_of(self.build), arguments=arguments)
        recipe = replace(recipe, description=recipe.description or self.description, origin=origin)
        if not has_defaults or again:
            return recipe
        return _with_sizes_of_policies(recipe, by_size)

    def _loaded_from_files(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The objects of arguments that name one in a file of the user's, ``my_file.py:name``."""
        loaded: dict[str, Any] = {}
        for name, value in values.items():
            if not isinstance(value, str):
                continue
            is_shipped_tool = name == "tool" and ".py:" not in value
            kind = kind_in_file(self.parameters[name].hint)
            if kind is None or is_shipped_tool:
                continue
            from cotrain.core.user_code import load_object

            loaded[name] = load_object(value, f"{name} of {self.name}", kind)
        return loaded


def _with_sizes_of_policies(recipe: Recipe, by_size: Mapping[str, Any]) -> Recipe:
    """The recipe with fewer ``micro_tokens`` for policies of large models. Its origin also names all defaults that
    depend on the size of the model; ``by_size``: the arguments among them."""
    large = large_policies(recipe.policies)
    if large:
        recipe = with_policies(recipe, large, micro_tokens=LARGE_MICRO_TOKENS)
    all_by_size = dict(by_size)
    for name in large:
        all_by_size[f"policies.{name}.micro_tokens"] = LARGE_MICRO_TOKENS
    if not all_by_size or recipe.origin is None:
        return recipe
    return replace(recipe, origin=replace(recipe.origin, by_size=all_by_size))


@overload
def recipe(build: Build, /) -> RecipeFunction: ...
@overload
def recipe(
    *, without: tuple[str, ...] = (), reads: str = "jsonl", **defaults: Any
) -> Callable[[Build], RecipeFunction]: ...
def recipe(
    build: Build | None = None, /, *, without: tuple[str, ...] = (), reads: str = "jsonl", **defaults: Any
) -> RecipeFunction | Callable[[Build], RecipeFunction]:
    """Decorate a function of ``RunConfig`` and the method's own parameters that returns a Recipe.

    Args:
        defaults: settings with another default.
        without: settings that the method does not have.
        reads: the kind of tasks in the file of ``--data``, unless ``--tasks`` names another kind.

    Arguments are checked against the annotations before the function is called (``core/arguments.py``). Raises
    ConfigError and UnknownName, one line each.
    """

    def decorate(function: Build) -> RecipeFunction:
        return RecipeFunction(function, without=without, reads=reads, defaults=defaults)

    return decorate if build is None else decorate(build)


def settings_taken(where: str, without: Collection[str], defaults: Mapping[str, Any]) -> dict[str, Argument]:
    """The settings of ``RunConfig`` that a recipe has, with its own defaults. Raises UnknownName and ConfigError."""
    hints = hints_of(RunConfig)
    fields = {field.name: field for field in dataclasses.fields(RunConfig)}
    for name in (*without, *defaults):
        if name not in fields:
            raise UnknownName(f"setting of {where}", name, fields)
    for name, value in defaults.items():
        check_argument(f"default {name} of {where}", value, hints[name])
    return {
        name: Argument(hint=hints[name], default=defaults.get(name, field.default))
        for name, field in fields.items()
        if name not in without
    }


def own_arguments(where: str, build: Build) -> dict[str, Argument]:
    """The parameters of a recipe function after the first one, which gets the settings. Raises ConfigError for a
    function without a first parameter, and for a parameter with the name of a setting."""
    parameters = list(inspect.signature(build).parameters.values())
    if not parameters or parameters[0].default is not inspect.Parameter.empty or parameters[0].kind in KEYWORD_KINDS:
        raise ConfigError(
            f"{where}: its first parameter takes the settings that every run has; expected "
            f"`def {build.__name__}(run: RunConfig, …)`",
            code="E_RECIPE_SIGNATURE",
        )
    config_name = parameters[0].name
    hints = hints_of(build)
    own: dict[str, Argument] = {}
    for parameter in parameters[1:]:
        if parameter.name in RUN_CONFIG_NAMES:
            raise ConfigError(
                f"{where}: parameter {parameter.name!r} is a setting of every run; use {config_name}.{parameter.name}, "
                f"with @recipe({parameter.name}=…) for another default",
                code="E_PARAMETER_IS_SETTING",
            )
        own[parameter.name] = Argument(hint=hints.get(parameter.name, Any), default=parameter.default)
    return own


def target_of(build: Build) -> str:
    """The text by which a recipe function is found: its name if it is registered, else ``/path/to/file.py:name``."""
    if build.__module__.startswith("cotrain.recipes."):
        return build.__name__
    place = f"{build.__module__}:{build.__name__}"
    for name, value in joined_places(RECIPES).items():
        if value == place:
            return name
    file = inspect.getsourcefile(build)
    return f"{absolute_path(file) if file else build.__module__}:{build.__name__}"


def describe_argument(name: str, value: Any) -> Any:
    """An argument as JSON. Plain values stay as they are. A task source becomes its description, with its class if it
    is not one of cotrain's; a function or a dataclass becomes the name of its file."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [describe_argument(name, v) for v in value]
    from cotrain.core.user_code import describe_object

    return describe_object(name, value)
