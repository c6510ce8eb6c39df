"""A recipe: everything that makes one method, and the checks that refuse nonsense before the first step.

A recipe is a frozen value returned by an ordinary function decorated with ``@recipe`` (``config/run_config.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cotrain.algorithms.contract import Algorithm, check_algorithm
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import Policy, Program, samples_in_int8
from cotrain.config.schedule import Phase, Schedule
from cotrain.core.arguments import bound_function, check_kind, check_name_list, check_protocol
from cotrain.core.errors import ConfigError, DataError, UnknownName, error_text, unknown_message
from cotrain.core.signals import Signal, declared_by
from cotrain.core.types import COLDEST, UNLABELLED, Sampling, Store, Task, TaskSource, has_split
from cotrain.core.verbosity import count_of
from cotrain.prompts.templates import fields_of
from cotrain.rollout.role import Role

RAMP = "ramp"  # name of the store of an adaptive ramp (``data/curriculum.py: AdaptiveRamp``)
OPTIONAL_SPLITS = ("ood_length", "ood_template")  # splits that are measured only if a source has them


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Trains one policy on the traces of a role with an algorithm."""

    policy: str
    role: str  # role whose traces are trained on
    algorithm: Algorithm
    weight: float = 1.0  # weight of its loss among the objectives of the same policy
    extra_roles: tuple[str, ...] = ()  # roles trained on in the same groups, such as one that refines answers

    def __post_init__(self) -> None:
        check_kind("Objective: policy", self.policy, str, "the name that the policy has in `policies`")
        check_kind("Objective: role", self.role, str, "the name that the role has in `roles`")
        check_name_list("Objective: extra_roles", self.extra_roles)

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, *self.extra_roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The function that made a recipe, and its arguments."""

    target: str  # "name" of a shipped recipe or "path/to/file.py:function"
    arguments: Mapping[str, Any]
    overrides: tuple[str, ...] = ()  # "dotted.path=value" overrides applied afterwards
    by_size: Mapping[str, Any] = field(default_factory=dict)  # arguments and settings that depend on the model's size


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A complete method. It is checked when it is built, so a recipe that exists can be run."""

    name: str
    tasks: TaskSource
    steps: int
    seed: int
    tasks_per_step: int  # problems in a step
    group_size: int  # episodes for each problem
    policies: Mapping[str, Policy]
    roles: Mapping[str, Role]
    objectives: Mapping[str, Objective]
    schedule: Schedule
    evaluation: Evaluation
    stores: Mapping[str, Store] = field(default_factory=dict)  # initial content of what the run collects
    horizon: int | None = None  # steps over which weights and learning rates decay; None for ``steps``
    # Budgets: the run ends with the step in which one of them is reached, or after ``steps``.
    tokens: int | None = None  # sampled tokens
    flops: float | None = None  # floating-point operations (``trainer/flops.py``)
    seconds: float | None = None  # seconds of training, without evaluations
    updates: int | None = None  # steps in which the leading objective is trained
    refill: int = 0  # rounds in which problems whose answers all earn the same are replaced (``trainer/resample.py``)
    audits: int | None = None  # unlabelled problems a step whose truth is looked up, for metrics alone; None for all
    # Steps between evaluations on the validation split, with one more at the end; 0 for none. If ``updates`` is set,
    # only steps that train the leading objective are counted.
    evaluate_every: int = 0
    description: str = ""
    origin: Origin | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        """Raises ConfigError for a recipe that cannot work. The message names the objective, role or policy, what was
        found and what to change."""
        if not self.objectives:
            raise ConfigError(f"recipe {self.name!r} has no objective: nothing would learn", code="E_NO_OBJECTIVE")
        if not isinstance(self.tasks, TaskSource):
            raise ConfigError(
                f"recipe {self.name!r}: tasks is a {type(self.tasks).__name__}, expected a source of problems with "
                "name, get, size and describe, such as word_problems() or task_source('jsonl', 'questions.jsonl')",
                code="E_TASKS_NOT_SOURCE",
            )
        _check_parts(self)
        _check_numbers(self)
        _check_names(self)
        _check_roles(self)
        _check_policies(self)
        used_policies = _check_evaluation(self)
        for name, objective in self.objectives.items():
            used_policies |= _check_objective(self, name, objective)
        _check_frozen_roles(self)
        check_protocol("evaluation", self.evaluation.protocol, held_out=True)
        _check_phases(self)
        _check_stores(self)
        _check_measures(self)
        for name in self.objectives:
            _check_is_due(self, name)
        for name, objective in self.objectives.items():
            _check_signals(self, name, objective)
        unused = [policy for policy in self.policies if policy not in used_policies]
        if unused:
            raise ConfigError(
                f"policy {unused[0]!r} is used by no role and no objective; leave it out", code="E_POLICY_UNUSED"
            )

    @property
    def has_ramp(self) -> bool:
        """Whether training problems are ordered from easy to hard (``data/curriculum.py``)."""
        return hasattr(self.tasks, "share_at")

    def share_at(self, step: int, stores: Mapping[str, Store]) -> float:
        """The share of the training problems, from the first one on, among which a step draws; 1.0 without a ramp.
        ``stores``: those of the run, as they are when it draws."""
        if not self.has_ramp:
            return 1.0
        adaptive_ramp: Any = stores.get(RAMP)
        if adaptive_ramp is not None:
            return adaptive_ramp.share
        ramped_tasks: Any = self.tasks
        return ramped_tasks.share_at(step, self.horizon or self.steps)

    @property
    def leading_objective(self) -> str:
        """The first objective. The steps that train it draw the same problems in all methods with one seed."""
        return next(iter(self.objectives))

    @property
    def max_steps(self) -> int:
        """Most steps of the run: ``steps``, or fewer if the budget ``updates`` is reached before."""
        if self.updates is None:
            return self.steps
        updates = 0
        for step in range(self.steps):
            if self.leading_objective in self.schedule.phase_at(step).objectives:
                updates += 1
                if updates == self.updates:
                    return step + 1
        return self.steps

    def updates_per_batch(self, policy: str) -> int:
        """The updates of a policy on the samples of one step."""
        return getattr(self.policies[policy], "updates_per_batch", 1)

    def planned_updates(self, policy: str, steps: int) -> int:
        """The updates of a policy in the first ``steps`` steps."""
        its_objectives = [name for name, objective in self.objectives.items() if objective.policy == policy]
        return self.schedule.planned_batches(its_objectives, steps) * self.updates_per_batch(policy)

    def due_for_new_optimizer(self, step: int) -> list[str]:
        """Policies that get a new optimiser before this step (``Schedule.due_for_new_optimizer``)."""
        policy_of_objective = {name: objective.policy for name, objective in self.objectives.items()}
        return self.schedule.due_for_new_optimizer(step, policy_of_objective)


def _check_parts(recipe: Recipe) -> None:
    """Raise ConfigError for a part of another kind than it is to be, such as a phase where a schedule is expected."""
    where = f"recipe {recipe.name!r}"
    for name, role in recipe.roles.items():
        check_kind(f"{where}: role {name!r}", role, Role, "Role(policy=…, prompt=…, …) or one of common_roles")
    for name, policy in recipe.policies.items():
        check_kind(f"{where}: policy {name!r}", policy, Policy, "a policy, such as run.learner() or frozen(run.model)")
    for name, objective in recipe.objectives.items():
        check_kind(f"{where}: objective {name!r}", objective, Objective, "Objective(policy=…, role=…, algorithm=…)")
        check_algorithm(f"objective {name!r}", objective.algorithm)
    check_kind(f"{where}: schedule", recipe.schedule, Schedule, "constant_schedule(…) or alternate(…)")
    check_kind(f"{where}: evaluation", recipe.evaluation, Evaluation, "Evaluation(protocol=…, measures=…)")


def _check_evaluation(recipe: Recipe) -> set[str]:
    """Raise ConfigError for a reward model of the evaluation that is not there. Returns the policies that roles and
    evaluations use."""
    used_policies = {spec.policy for spec in recipe.roles.values()} | set(recipe.evaluation.frozen_roles.values())
    for reward_model in recipe.evaluation.implicit_rewards:
        _check_known("role", reward_model.role, recipe.roles, "evaluation, implicit_rewards")
        for policy in filter(None, (reward_model.policy, reward_model.reference)):
            _check_known("policy", policy, recipe.policies, "evaluation, implicit_rewards")
            used_policies.add(policy)
    return used_policies


def _check_measures(recipe: Recipe) -> None:
    """Raise ConfigError for a measure of a role that is not there."""
    for measure in recipe.evaluation.measures:
        for role in getattr(measure, "roles", ()):
            _check_known("role", role, recipe.roles, "evaluation, measures")


def _check_is_due(recipe: Recipe, objective: str) -> None:
    """Raise ConfigError for an objective that no phase trains."""
    if not any(objective in phase.objectives for phase in recipe.schedule.phases):
        raise ConfigError(
            f"objective {objective!r} is due in no phase; name it in one or leave it out", code="E_OBJECTIVE_NEVER_DUE"
        )


def _check_numbers(recipe: Recipe) -> None:
    """Raise ConfigError for numbers out of range, and for settings that have no effect without another one."""
    evaluation = recipe.evaluation
    needs = recipe.objectives[recipe.leading_objective].algorithm.needs()
    if recipe.refill and (needs.min_group_size < 2 or not needs.reward_signals):
        raise ConfigError(
            f"recipe {recipe.name!r}: refill is {recipe.refill}, but its first objective compares no answers of a "
            "group; leave it out",
            code="E_REFILL_WITHOUT_GROUPS",
        )

    for label, value, least in (
        ("steps", recipe.steps, 1),
        ("seed", recipe.seed, 0),
        ("tasks_per_step", recipe.tasks_per_step, 1),
        ("group_size", recipe.group_size, 1),
        ("tokens", 1 if recipe.tokens is None else recipe.tokens, 1),
        ("updates", 1 if recipe.updates is None else recipe.updates, 1),
        ("horizon", 1 if recipe.horizon is None else recipe.horizon, 1),
        ("evaluate_every", recipe.evaluate_every, 0),
        ("refill", recipe.refill, 0),
        ("audits", recipe.audits or 0, 0),
        ("evaluation.tasks", evaluation.tasks, 1),
        ("evaluation.curve_tasks", evaluation.curve_tasks, 1),
        ("evaluation.group_size", evaluation.group_size, 1),
    ):
        if value < least:
            raise ConfigError(
                f"recipe {recipe.name!r}: {label} is {value}, expected at least {least}", code="E_RECIPE_SETTING_RANGE"
            )

    if recipe.audits is not None and not any(phase.unlabelled for phase in recipe.schedule.phases):
        raise ConfigError(
            f"recipe {recipe.name!r}: audits is {recipe.audits}, and no phase draws problems without labels; say which "
            "problems have one with --labelled, such as --labelled 16",
            code="E_AUDITS_WITHOUT_UNLABELLED",
        )
    if evaluation.best and not recipe.evaluate_every:
        raise ConfigError(
            f"recipe {recipe.name!r}: evaluation.best is {evaluation.best!r} and evaluate_every is 0; expected steps "
            "between evaluations, of which the best one is taken",
            code="E_BEST_WITHOUT_EVALUATION",
        )
    for label in ("flops", "seconds"):
        budget = getattr(recipe, label)
        if budget is not None and not 0.0 < budget < math.inf:
            raise ConfigError(
                f"recipe {recipe.name!r}: {label} is {budget}, expected a number above 0", code="E_RECIPE_SETTING_RANGE"
            )


def _check_names(recipe: Recipe) -> None:
    """Raise ConfigError for names of splits, policies, roles and objectives that are not allowed."""
    wrong = [split for split in recipe.evaluation.splits if not isinstance(split, str)]
    if wrong:
        raise ConfigError(
            f"recipe {recipe.name!r}: evaluation.splits names {wrong[0]!r}, expected the name of a split",
            code="E_SPLIT_NAME",
        )
    for name in (*recipe.policies, *recipe.roles, *recipe.objectives):
        if not name or not name.isascii() or not name.replace("_", "").replace("-", "").isalnum():
            raise ConfigError(
                f"recipe {recipe.name!r}: {name!r} is no name; use letters, digits, '-' and '_'", code="E_NAME_SPELLING"
            )


def _check_roles(recipe: Recipe) -> None:
    """Raise ConfigError for a role that its policy cannot play, or whose prompt or sampling does not work."""
    for role, spec in recipe.roles.items():
        _check_known("policy", spec.policy, recipe.policies, f"role {role!r}")
        _check_sampling(role, spec.sampling)
        fields = fields_of(spec.prompt)
        if role == "solver" and "problem" not in fields:
            fields_text = f"the fields {', '.join(sorted(fields))}" if fields else "no field"
            raise ConfigError(
                f"role 'solver': its prompt has {fields_text}, so that it does not see the problem; expected "
                f"{{problem}} in it",
                code="E_PROMPT_WITHOUT_PROBLEM",
            )
        if not recipe.policies[spec.policy].plays:
            kind = recipe.policies[spec.policy].kind
            raise ConfigError(
                f"role {role!r} is played by {spec.policy!r}, which is of kind {kind!r} and cannot speak",
                code="E_ROLE_CANNOT_SPEAK",
            )


def _check_policies(recipe: Recipe) -> None:
    """Raise ConfigError for a policy that depends on another one that does not fit."""
    for name, policy_spec in recipe.policies.items():
        if policy_spec.source_policy is not None:
            _check_follower(recipe, name, policy_spec.source_policy)
        if isinstance(policy_spec, Program) and policy_spec.tokens_of is not None:
            _check_known("policy", policy_spec.tokens_of, recipe.policies, f"policy {name!r}, tokens_of")
            if not recipe.policies[policy_spec.tokens_of].head:
                kind = recipe.policies[policy_spec.tokens_of].kind
                raise ConfigError(
                    f"policy {name!r} speaks in tokens of {policy_spec.tokens_of!r}, of kind {kind!r}; name a model",
                    code="E_TOKENS_OF_NO_MODEL",
                )


def _check_frozen_roles(recipe: Recipe) -> None:
    """Raise ConfigError for a policy of ``Evaluation.frozen_roles`` that is not frozen."""
    for role, policy in recipe.evaluation.frozen_roles.items():
        _check_known("role", role, recipe.roles, "evaluation, fixed")
        _check_known("policy", policy, recipe.policies, "evaluation, fixed")
        kind = recipe.policies[policy].kind
        if not recipe.policies[policy].is_constant:
            raise ConfigError(
                f"evaluation, fixed: policy {policy!r} is {kind} and changes; expected a frozen one",
                code="E_FIXED_POLICY_CHANGES",
            )


def _check_phases(recipe: Recipe) -> None:
    """Raise ConfigError for a phase whose sizes, objectives, stores or protocol do not work."""
    for phase in recipe.schedule.phases:
        for label, size in (("tasks", phase.tasks), ("group_size", phase.group_size)):
            if size is not None and size < 1:
                raise ConfigError(f"phase {phase.name!r} {label} is {size}, expected at least 1", code="E_PHASE_SIZE")
        if phase.unlabelled:
            from cotrain.data.labels import check_unlabelled

            check_unlabelled(recipe.tasks, f"phase {phase.name!r}")
        for name in phase.objectives:
            _check_known("objective", name, recipe.objectives, f"phase {phase.name!r}")
        for name in phase.stores:
            _check_known("store", name, recipe.stores, f"phase {phase.name!r}")
        passed = {name: recipe.stores[name] for name in phase.stores}
        check_protocol(f"phase {phase.name!r}", phase.protocol, passed, all_stores=recipe.stores.keys())


def _check_stores(recipe: Recipe) -> None:
    """Raise ConfigError for a store without the methods of one, and for another one by the name of the ramp's."""
    if not recipe.stores:
        return
    from cotrain.rollout.stores import missing_methods  # most runs have no store

    for name, store in recipe.stores.items():
        if name == RAMP and not hasattr(store, "share"):
            raise ConfigError(
                f"recipe {recipe.name!r}: a store named {RAMP!r} holds the share of a ramp, and this one is a "
                f"{type(store).__name__}; give it another name",
                code="E_STORE_NAME",
            )
        missing = missing_methods(store)
        if missing:
            raise ConfigError(
                f"recipe {recipe.name!r}: store {name!r} is a {type(store).__name__}, without {' and '.join(missing)}; "
                "expected one with the methods of cotrain.rollout.stores, such as TaskPool()",
                code="E_STORE_KIND",
            )


def _check_sampling(role: str, sampling: Sampling) -> None:
    """Raise ConfigError for sampling settings out of range."""
    is_temperature = 0.0 <= sampling.temperature < math.inf
    is_top_p = 0.0 < sampling.top_p <= 1.0
    if sampling.max_tokens < 1 or not is_temperature or not is_top_p:
        raise ConfigError(
            f"role {role!r} is sampled with max_tokens {sampling.max_tokens}, temperature {sampling.temperature} and "
            f"top_p {sampling.top_p}; expected at least 1 token, a temperature of at least 0, and a top_p above 0 and "
            "at most 1",
            code="E_SAMPLING_RANGE",
        )


def _check_objective(recipe: Recipe, name: str, objective: Objective) -> set[str]:
    """Raise ConfigError for an objective that its policy could not learn from. Returns the policies that it uses: the
    one that is trained, and those that score tokens."""
    where = f"objective {name!r}"
    _check_trained_policy(recipe, where, objective)
    needs = objective.algorithm.needs()
    for role in objective.roles:
        _check_known("role", role, recipe.roles, where)
    for role in objective.roles:
        is_untrained = role in needs.baseline_roles and role != objective.role
        if not is_untrained:
            _check_learned_role(recipe, where, objective, role)
    _check_head(recipe, where, objective)
    return {objective.policy, *_check_scoring_policies(recipe, where, objective)}


def _check_trained_policy(recipe: Recipe, where: str, objective: Objective) -> None:
    """Raise ConfigError for a weight that is none, and for a policy that cannot be trained; UnknownName for one that
    there is not."""
    if not 0.0 < objective.weight < math.inf:
        raise ConfigError(
            f"{where}: weight is {objective.weight}, expected a positive number", code="E_OBJECTIVE_WEIGHT"
        )
    _check_known("policy", objective.policy, recipe.policies, where)
    policy = recipe.policies[objective.policy]
    if not policy.is_trained:
        raise ConfigError(
            f"{where} trains policy {objective.policy!r}, which is of kind {policy.kind!r}; make it trainable",
            code="E_POLICY_NOT_TRAINABLE",
        )


def _check_learned_role(recipe: Recipe, where: str, objective: Objective, role: str) -> None:
    """Raise ConfigError where an objective cannot learn from what this role says, as it is asked and sampled."""
    needs = objective.algorithm.needs()
    player = recipe.roles[role].policy
    sampling = recipe.roles[role].sampling
    if needs.on_policy and player != objective.policy:
        raise ConfigError(
            f"{where} uses {type(objective.algorithm).__name__}, which needs samples drawn by the policy it trains, "
            f"but role {role!r} is played by {player!r}; use SFT, or let {objective.policy!r} play the role",
            code="E_OFF_POLICY_ROLE",
        )
    if needs.on_policy and (sampling.is_greedy or sampling.top_p < 1.0):
        raise ConfigError(
            f"{where} learns from role {role!r}, which is sampled at temperature {sampling.temperature} and "
            f"top_p {sampling.top_p}; expected a temperature of at least {COLDEST:g} and top_p 1, "
            "else its log-probabilities are not the policy's",
            code="E_SAMPLING_NOT_LEARNABLE",
        )
    temperature = recipe.roles[objective.role].sampling.temperature
    if sampling.temperature != temperature:
        raise ConfigError(
            f"{where} learns from role {objective.role!r} at temperature {temperature} and from role {role!r} at "
            f"{sampling.temperature}; sample both at one temperature",
            code="E_TEMPERATURES_DIFFER",
        )


def _check_head(recipe: Recipe, where: str, objective: Objective) -> None:
    """Raise ConfigError where the policy predicts something else than the algorithm trains."""
    head = recipe.policies[objective.policy].head
    needed_head = objective.algorithm.needs().head
    if head != needed_head:
        raise ConfigError(
            f"{where} uses {type(objective.algorithm).__name__}, which trains a {needed_head!r} head, but policy "
            f"{objective.policy!r} has {head!r}",
            code="E_HEAD_MISMATCH",
        )


def _check_scoring_policies(recipe: Recipe, where: str, objective: Objective) -> set[str]:
    """Raise ConfigError for a policy that is to score tokens and cannot. Returns those policies."""
    needs = objective.algorithm.needs()
    if needs.reference_policy == objective.policy:
        raise ConfigError(
            f"{where} compares policy {objective.policy!r} with itself as its reference, which changes nothing; "
            "expected another policy, such as a frozen one on the same model",
            code="E_REFERENCE_IS_ITSELF",
        )
    policies: set[str] = set()
    if needs.reference_policy is not None:
        _check_scorer(recipe, where, "reference", needs.reference_policy, "lm")
        policies.add(needs.reference_policy)
    if needs.value_policy is not None:
        _check_scorer(recipe, where, "values", needs.value_policy, "value")
        policies.add(needs.value_policy)
    for policy in needs.scoring_policies:
        _check_scorer(recipe, where, "scores", policy, "lm")
        policies.add(policy)
    return policies


def _check_scorer(recipe: Recipe, where: str, what: str, policy: str, head: str) -> None:
    """Raise ConfigError for a policy without the head that scores tokens; UnknownName for one that there is not.
    ``what``: what it computes, "reference", "values" or "scores"."""
    _check_known("policy", policy, recipe.policies, f"{where}, {what}")
    spec = recipe.policies[policy]
    if not spec.head:
        raise ConfigError(
            f"{where}: {what} policy {policy!r} is of kind {spec.kind!r}, which has no probabilities",
            code="E_POLICY_WITHOUT_PROBABILITIES",
        )
    if spec.head != head:
        raise ConfigError(
            f"{where}: {what} policy {policy!r} must have head {head!r}, it has {spec.head!r}",
            code="E_HEAD_MISMATCH",
        )


def _check_signals(recipe: Recipe, name: str, objective: Objective) -> None:
    """Raise ConfigError for a signal that an objective reads and that no protocol of its phases gives to its roles."""
    read_signals = objective.algorithm.needs().reward_signals
    if not read_signals:
        return
    declared_signals: list[Signal] = []
    for phase in recipe.schedule.phases:
        if name not in phase.objectives:
            continue
        declared = declared_by(phase.protocol)
        if declared is None:
            raise ConfigError(
                f"phase {phase.name!r}: protocol {bound_function(phase.protocol).__name__!r} does not say what it "
                f"rewards, and objective {name!r} reads {', '.join(map(str, read_signals))}; put "
                f"@gives({read_signals[0].name.upper()}.to({objective.role!r})) above it, from cotrain.core.signals",
                code="E_PROTOCOL_WITHOUT_GIVES",
            )
        for role in objective.roles:
            declared_signals += declared.signals_for(role)

    for signal in read_signals:
        if signal in declared_signals:
            continue
        where = f"objective {name!r} reads signal {signal.name!r} per {signal.per}"
        roles = " or ".join(map(repr, objective.roles))
        if signal.name in map(str, declared_signals):
            raise ConfigError(
                f"{where}, but the protocol gives it to role {roles} of the other kind; use one signal object in both",
                code="E_SIGNAL_OF_OTHER_KIND",
            )
        raise ConfigError(
            f"{where}, which no protocol gives to role {roles} when it is due: "
            f"{unknown_message('signal', signal.name, map(str, declared_signals))}",
            code="E_SIGNAL_NOT_GIVEN",
        )


def _check_follower(recipe: Recipe, name: str, of: str) -> None:
    """Raise ConfigError if policy ``name`` cannot take over the weights of policy ``of``."""
    follower = recipe.policies[name]
    _check_known("policy", of, recipe.policies, f"policy {name!r}")
    source = recipe.policies[of]
    if not source.is_trained or source.head != follower.head:
        raise ConfigError(
            f"policy {name!r} follows {of!r}, which must be trainable, with the same head", code="E_FOLLOWS_UNTRAINABLE"
        )
    if source.lora is not None:
        raise ConfigError(
            f"policy {name!r} follows {of!r}, which is an adapter; make {of!r} trainable (lora=0), or {name!r} frozen",
            code="E_FOLLOWS_ADAPTER",
        )
    if source.model != follower.model:
        raise ConfigError(
            f"policy {name!r} begins with {follower.model!r} and follows {of!r}, which begins with "
            f"{source.model!r}; they must be one model",
            code="E_FOLLOWS_OTHER_MODEL",
        )


def check_problems(recipe: Recipe) -> None:
    """Raise DataError if a split that the run needs is empty, so that nothing would be trained or measured; UnknownName
    for a split that the source does not have."""
    needed = ["test"]
    if any(phase.unlabelled < 1 for phase in recipe.schedule.phases):
        needed.insert(0, "train")
    if recipe.evaluate_every:
        needed.append("validation")
    for split in needed:
        _check_split(recipe.tasks, split)
        if recipe.tasks.size(split) == 0:
            raise DataError(f"tasks {recipe.tasks.name!r}: {_why_empty(recipe.tasks, split)}", code="E_SPLIT_EMPTY")
    for split in recipe.evaluation.splits:
        if split not in OPTIONAL_SPLITS:
            recipe.tasks.size(split)  # raises UnknownName for a split that the source does not have
    _check_step_is_filled(recipe)


def _check_split(tasks: TaskSource, split: str) -> None:
    """Raise UnknownName for a split that a source does not have, ConfigError for one whose problems are no tasks, or
    are others each time that they are asked for."""
    try:
        size = tasks.size(split)
    except UnknownName:
        raise
    except LookupError as error:
        raise ConfigError(
            f"tasks {tasks.name!r}: size({split!r}) raised {error_text(error)}; expected a number of problems, or None "
            "for an endless split (every source has train, validation and test)",
            code="E_SOURCE_SPLIT",
        ) from error
    if size == 0:
        return
    first = tasks.get(split, 0)
    if not isinstance(first, Task):
        raise ConfigError(
            f"tasks {tasks.name!r}: get({split!r}, 0) returned a {type(first).__name__}; expected Task(id=…, "
            "prompt=…, gold=…, …)",
            code="E_SOURCE_NOT_TASK",
        )
    again = tasks.get(split, 0)
    if (first.prompt, first.gold) != (again.prompt, again.gold):
        raise ConfigError(
            f"tasks {tasks.name!r}: get({split!r}, 0) gave two different problems, and a resumed run would train on "
            f"others; draw them with rng_of({tasks.name!r}, split, index) instead of a global generator",
            code="E_SOURCE_NOT_REPEATABLE",
        )


def _why_empty(tasks: TaskSource, split: str) -> str:
    """Why a split has no problems, and what to do."""
    from cotrain.data.labels import Unanswered

    if isinstance(tasks, Unanswered):
        return _why_unanswered(split)
    instead = ", or take a method such as ttrl" if split == "train" else ""
    return (
        f"no problem with an answer is left for {split}; bring more rows (a file is cut by a hash of each question "
        f"into 80 % train, 10 % validation and 10 % test) or a directory with train.jsonl and test.jsonl{instead}"
    )


def _why_unanswered(split: str) -> str:
    """The same for tasks of which no problem has an answer."""
    if split == "train":
        return (
            "no problem has an answer, and this method is paid by answers; bring solved problems in a file of their "
            "own, with --labelled FILE, or take a method that a judge or a vote pays, such as ttrl, or judged with "
            "--verifier frozen --warmup 0"
        )
    return (
        f"no problem has an answer, and none of them is left for {split}; bring more rows (a tenth of them, by a hash, "
        f"is {split}), or solved problems in a file of their own, with --labelled FILE"
    )


def _check_step_is_filled(recipe: Recipe) -> None:
    """Raise DataError if a file has fewer training problems than a step draws, so that a row would be drawn twice. Not
    checked if some problems have no label, as the user chose how many have one; nor for sources without a file."""
    size = recipe.tasks.size("train")
    is_file = hasattr(recipe.tasks, "path")
    if size is None or not is_file or has_split(recipe.tasks, UNLABELLED):
        return
    n_drawn = max(phase.tasks or recipe.tasks_per_step for phase in recipe.schedule.phases)
    if size < n_drawn:
        raise DataError(
            f"tasks {recipe.tasks.name!r}: {size} {'problem is' if size == 1 else 'problems are'} there for training, "
            f"and a step draws {n_drawn}; bring more rows, or draw fewer with --tasks-per-step {max(size, 1)}",
            code="E_TOO_FEW_TASKS",
        )


def cap_path(name: str, objective: Objective) -> str:
    """The setting that caps the importance ratio of an objective. ``Shaped`` has it in the loss that it contains."""
    loss = getattr(objective.algorithm, "loss", None)
    loss_path = "loss.on_policy" if hasattr(loss, "on_policy") else "loss"
    return f"objectives.{name}.algorithm.{loss_path}.cap"


def _learns_before(recipe: Recipe, name: str) -> tuple[str, str] | None:
    """A phase with ``in_turn``, and its objective that updates the same policy before objective ``name`` does; None if
    there is none."""
    for phase in recipe.schedule.phases:
        if name not in phase.in_turn:
            continue
        for earlier in phase.in_turn[: phase.in_turn.index(name)]:
            if recipe.objectives[earlier].policy == recipe.objectives[name].policy:
                return phase.name, earlier
    return None


def check_due(recipe: Recipe, *, steps_flag: str = "--steps", warmup_flag: str = "") -> None:
    """Raise ConfigError for an objective from which its policy could not learn: its loss has no importance ratio and is
    used after an update, its groups are too small, or it is trained in none of the planned steps.

    Args:
        steps_flag: the flag for the number of steps, for messages.
        warmup_flag: text in front of the length of a warm-up, such as "--warmup " or "tango:warmup="; "" if the recipe
            has no such parameter.
    """
    for name, objective in recipe.objectives.items():
        _check_ratio(recipe, name, objective)
    for phase in recipe.schedule.phases:
        _check_group_size(recipe, phase)
    for name in recipe.objectives:
        _check_is_trained(recipe, name, steps_flag, warmup_flag)


def _check_ratio(recipe: Recipe, name: str, objective: Objective) -> None:
    """Raise ConfigError for a loss without a ratio whose samples are from before an update of the same policy."""
    needs = objective.algorithm.needs()
    if needs.off_policy_corrected:
        return
    if needs.on_policy and samples_in_int8(recipe.policies[objective.policy]):
        raise ConfigError(
            f"objective {name!r} has a loss without a ratio, which takes what int8 weights sampled for the present "
            f"policy's; give --set {cap_path(name, objective)}=2, or leave out pack_weights=int8",
            code="E_EIGHT_BIT_WITHOUT_RATIO",
        )
    n_updates = recipe.updates_per_batch(objective.policy)
    update_before = _learns_before(recipe, name)
    if n_updates > 1:
        problem = str(n_updates)
        instead = f"--set policies.{objective.policy}.updates_per_batch=1"
    elif needs.on_policy and update_before is not None:
        phase_name, earlier = update_before
        problem = f"that of {earlier!r} before it"
        instead = f"phase {phase_name!r} no in_turn"
    else:
        return

    otherwise = f", or --set {cap_path(name, objective)}=2" if needs.on_policy else ""
    raise ConfigError(
        f"objective {name!r} has a loss without a ratio, which holds for one update of a batch, found {problem}; "
        f"give {instead}{otherwise}",
        code="E_LOSS_WITHOUT_RATIO",
    )


def _check_group_size(recipe: Recipe, phase: Phase) -> None:
    """Raise ConfigError for a phase whose groups have fewer answers than an objective compares."""
    declared = declared_by(phase.protocol)
    if declared is None:
        return
    size = phase.group_size or recipe.group_size
    for name in phase.objectives:
        objective = recipe.objectives[name]
        least = objective.algorithm.needs().min_group_size
        # Known for roles with one turn in an episode; other groups are checked at the first step.
        if size < least and objective.role in declared.once and not objective.extra_roles:
            raise ConfigError(
                f"phase {phase.name!r}: objective {name!r} compares at least {least} answers to a problem, and "
                f"group_size is {size}; raise it",
                code="E_GROUP_TOO_SMALL",
            )


def _check_is_trained(recipe: Recipe, name: str, steps_flag: str, warmup_flag: str) -> None:
    """Raise ConfigError for an objective that is trained in none of the planned steps."""
    schedule = recipe.schedule
    warmup_steps = sum(length for _, length in schedule.warmup)
    all_phases_seen = warmup_steps + len(schedule.cycle)  # an objective that was not trained by then never is
    first = next((step for step in range(all_phases_seen) if name in schedule.phase_at(step).objectives), None)
    if first is not None and first < recipe.steps:
        return
    if first is None:
        idle = next(phase.name for phase in schedule.phases if name in phase.objectives)
        advice = f"phase {idle!r} is never run; give it a place in the schedule, or leave the objective out"
    else:
        advice = f"it is due first at step {first + 1}; give {steps_flag} {first + 1} or more"
        advice += _shorter_warmup(recipe, first, warmup_flag)
    raise ConfigError(
        f"objective {name!r} is due at none of the {count_of(recipe.steps, 'step')}: {advice}",
        code="E_OBJECTIVE_NEVER_DUE",
    )


def _shorter_warmup(recipe: Recipe, first: int, flag: str) -> str:
    """Advice for an objective that is first trained at step ``first``, after the last one: shorten the warm-up, to a
    third of the longest that would do. "" for a schedule without a warm-up."""
    warmup_steps = sum(length for _, length in recipe.schedule.warmup)
    if not warmup_steps:
        return ""
    advice = f", or shorten the warm-up of {count_of(warmup_steps, 'step')}"
    # with a longer warm-up the objective would still not be trained
    longest = recipe.steps - 1 - (first - warmup_steps)
    has_one_stage = sum(length > 0 for _, length in recipe.schedule.warmup) == 1
    if not (flag and has_one_stage and longest >= 0):
        return advice
    return f"{advice}, as in {flag}{min(longest, max(1, longest // 3))}"


def _check_known(kind: str, name: str, names: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a name that is not among ``names``."""
    if name not in names:
        raise ConfigError(f"{where}: {unknown_message(kind, name, names)}", code="E_NO_SUCH_PART")
