"""A recipe: everything that makes one method, and the checks that refuse nonsense before the first step.

A recipe is a frozen value returned by an ordinary function decorated with ``@recipe`` (``config/run_config.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cotrain.algorithms.contract import Algorithm
from cotrain.config.evaluation import Evaluation
from cotrain.config.policies import Policy, Program
from cotrain.config.schedule import Schedule
from cotrain.core.arguments import bound_function, check_protocol
from cotrain.core.errors import ConfigError, DataError, unknown_message
from cotrain.core.signals import Signal, declared_by
from cotrain.core.types import COLDEST, UNLABELLED, Sampling, Store, TaskSource, has_split
from cotrain.core.verbosity import count_of
from cotrain.prompts.templates import fields_of
from cotrain.rollout.role import Role

USUAL = ("ood_length", "ood_template")  # splits that recipes ask for whether a source has them or not


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Trains one policy on the traces of a role with an algorithm."""

    policy: str
    role: str  # role whose traces are trained on
    algorithm: Algorithm
    weight: float = 1.0  # weight of its loss among the objectives of the same policy
    extra_roles: tuple[str, ...] = ()  # roles trained on in the same groups, such as one that refines answers

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, *self.extra_roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The function that made a recipe, and its arguments."""

    target: str  # "name" of a shipped recipe or "path/to/file.py:function"
    arguments: Mapping[str, Any]
    overrides: tuple[str, ...] = ()  # "dotted.path=value" overrides applied afterwards
    by_size: Mapping[str, Any] = field(default_factory=dict)  # those of them that depend on the size of the model


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One method, complete. Building one checks it; a recipe that exists can be run."""

    name: str
    tasks: TaskSource
    steps: int
    seed: int
    tasks_per_step: int  # P problems a step
    group_size: int  # G episodes a problem
    policies: Mapping[str, Policy]
    roles: Mapping[str, Role]
    objectives: Mapping[str, Objective]
    schedule: Schedule
    evaluation: Evaluation
    stores: Mapping[str, Store] = field(default_factory=dict)  # initial content of what the run collects
    horizon: int | None = None  # steps over which weights and learning rates decay; None for ``steps``
    tokens: int | None = None  # the run ends with the step in which it has sampled so many, or with ``steps``
    flops: float | None = None  # the same with operations (``trainer/flops.py``)
    seconds: float | None = None  # the same with seconds of training, evaluations left out
    updates: int | None = None  # the same with steps at which the leading objective is due
    refill: int = 0  # rounds in which problems whose answers all earn the same are replaced (``trainer/resample.py``)
    audits: int | None = None  # problems without labels, a step, whose truth is looked up for metrics, None for all
    evaluate_every: int = 0  # steps between evaluations on the validation split, one more at the end; 0 for none. Where
    # ``updates`` end the run, these are counted
    description: str = ""
    origin: Origin | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_recipe(self)

    def share_at(self, step: int) -> float:
        """The share of the training problems, the first ones, that a step draws among: all, without a ramp."""
        share_at = getattr(self.tasks, "share_at", None)  # a source with a ramp has it, see ``data/curriculum.py``
        if share_at is None:
            return 1.0
        return share_at(step, self.horizon or self.steps)

    @property
    def leading_objective(self) -> str:
        """The objective whose steps draw the same problems in all methods: the first one."""
        return next(iter(self.objectives))

    @property
    def max_steps(self) -> int:
        """The most steps that the run can have: ``steps``, or fewer where ``updates`` end it."""
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
        return getattr(self.policies[policy], "updates_per_batch", 1)

    def planned_updates(self, policy: str, steps: int) -> int:
        """The updates of a policy in the first ``steps`` steps."""
        due = [name for name, objective in self.objectives.items() if objective.policy == policy]
        return self.schedule.planned_batches(due, steps) * self.updates_per_batch(policy)

    def due_for_new_optimizer(self, step: int) -> list[str]:
        """Policies that begin this step with a new optimiser, see ``Schedule.due_for_new_optimizer``."""
        policy_of_objective = {name: objective.policy for name, objective in self.objectives.items()}
        return self.schedule.due_for_new_optimizer(step, policy_of_objective)


def check_recipe(recipe: Recipe) -> None:
    """Raise ConfigError with one line: which objective, role or policy, what was found, what to change."""
    if not recipe.objectives:
        raise ConfigError(f"recipe {recipe.name!r} has no objective: nothing would learn", code="E_NO_OBJECTIVE")
    if not isinstance(recipe.tasks, TaskSource):
        raise ConfigError(
            f"recipe {recipe.name!r}: tasks is a {type(recipe.tasks).__name__}, expected a source of problems with "
            "name, get, size and describe, such as word_problems() or task_source('jsonl', 'questions.jsonl')",
            code="E_TASKS_NOT_SOURCE",
        )

    _check_numbers(recipe)
    _check_names(recipe)
    _check_roles(recipe)
    _check_policies(recipe)

    used = {spec.policy for spec in recipe.roles.values()} | set(recipe.evaluation.frozen_roles.values())
    for reward_model in recipe.evaluation.implicit_rewards:
        _check_known("role", reward_model.role, recipe.roles, "evaluation, implicit_rewards")
        for policy in filter(None, (reward_model.policy, reward_model.reference)):
            _check_known("policy", policy, recipe.policies, "evaluation, implicit_rewards")
            used.add(policy)
    for name, objective in recipe.objectives.items():
        used |= _check_objective(recipe, name, objective)
    _check_frozen_roles(recipe)

    check_protocol("evaluation", recipe.evaluation.protocol, held_out=True)
    _check_phases(recipe)
    _check_stores(recipe)
    for measure in recipe.evaluation.measures:
        for role in getattr(measure, "roles", ()):
            _check_known("role", role, recipe.roles, "evaluation, measures")

    for name in recipe.objectives:
        if not any(name in phase.objectives for phase in recipe.schedule.phases):
            raise ConfigError(
                f"objective {name!r} is due in no phase; name it in one or leave it out", code="E_OBJECTIVE_NEVER_DUE"
            )
    for name, objective in recipe.objectives.items():
        _check_signals(recipe, name, objective)
    idle = [p for p in recipe.policies if p not in used]
    if idle:
        raise ConfigError(
            f"policy {idle[0]!r} is used by no role and no objective; leave it out", code="E_POLICY_UNUSED"
        )


def _check_numbers(recipe: Recipe) -> None:
    """Raise ConfigError for numbers that are too small, and for ones that say nothing without another setting."""
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
        most = getattr(recipe, label)
        if most is not None and not 0.0 < most < math.inf:
            raise ConfigError(
                f"recipe {recipe.name!r}: {label} is {most}, expected a number above 0", code="E_RECIPE_SETTING_RANGE"
            )


def _check_names(recipe: Recipe) -> None:
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
    """Raise ConfigError for a role that no policy here can play, or whose prompt or sampling does not work."""
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
    """Raise ConfigError for a policy that depends on another one which does not fit."""
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
    """Raise ConfigError for a role of an evaluation that is to stay the same, and whose policy changes."""
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
        check_protocol(f"phase {phase.name!r}", phase.protocol, passed, unnamed=recipe.stores.keys())


def _check_stores(recipe: Recipe) -> None:
    for name, store in recipe.stores.items():
        if not callable(getattr(store, "with_episodes", None)):
            kind = type(store).__name__
            wanted = "one with the methods of cotrain.rollout.stores, such as TaskPool()"
            raise ConfigError(
                f"recipe {recipe.name!r}: store {name!r} is a {kind}; expected {wanted}", code="E_STORE_KIND"
            )


def _check_sampling(role: str, how: Sampling) -> None:
    if how.max_tokens < 1 or not 0.0 <= how.temperature < math.inf or not 0.0 < how.top_p <= 1.0:
        raise ConfigError(
            f"role {role!r} is sampled with max_tokens {how.max_tokens}, temperature {how.temperature} and top_p "
            f"{how.top_p}; expected at least 1 token, a temperature of at least 0, and a top_p above 0 and at most 1",
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
    """Raise ConfigError where an objective cannot learn from what this role says, as it is played and sampled."""
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
    """Raise ConfigError unless some protocol gives each reward that the objective reads to one of its roles."""
    reads = objective.algorithm.needs().reward_signals
    if not reads:
        return
    given_signals: list[Signal] = []
    for phase in recipe.schedule.phases:
        if name not in phase.objectives:
            continue
        declared = declared_by(phase.protocol)
        if declared is None:
            raise ConfigError(
                f"phase {phase.name!r}: protocol {bound_function(phase.protocol).__name__!r} does not say what it "
                f"rewards, and objective {name!r} reads {', '.join(map(str, reads))}; put "
                f"@gives({reads[0].name.upper()}.to({objective.role!r})) above it, from cotrain.core.signals",
                code="E_PROTOCOL_WITHOUT_GIVES",
            )
        for role in objective.roles:
            given_signals += declared.signals_for(role)

    for signal in reads:
        if signal in given_signals:
            continue
        where = f"objective {name!r} reads signal {signal.name!r} per {signal.per}"
        roles = " or ".join(map(repr, objective.roles))
        if signal.name in map(str, given_signals):
            raise ConfigError(
                f"{where}, but the protocol gives it to role {roles} of the other kind; use one signal object in both",
                code="E_SIGNAL_OF_OTHER_KIND",
            )
        raise ConfigError(
            f"{where}, which no protocol gives to role {roles} when it is due: "
            f"{unknown_message('signal', signal.name, map(str, given_signals))}",
            code="E_SIGNAL_NOT_GIVEN",
        )


def _check_follower(recipe: Recipe, name: str, of: str) -> None:
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
    """Raise DataError where a split that the run needs is empty: it would train, or measure, nothing; UnknownName where
    one is asked for that there is not."""
    needed = ["test"]
    if any(phase.unlabelled < 1 for phase in recipe.schedule.phases):
        needed.insert(0, "train")
    if recipe.evaluate_every:
        needed.append("validation")
    for split in needed:
        if recipe.tasks.size(split) == 0:
            raise DataError(f"tasks {recipe.tasks.name!r}: {_why_empty(recipe.tasks, split)}", code="E_SPLIT_EMPTY")
    for split in recipe.evaluation.splits:
        if split not in USUAL:
            recipe.tasks.size(split)  # raises UnknownName for one that the source does not have
    _check_step_is_filled(recipe)


def _why_empty(tasks: TaskSource, split: str) -> str:
    """Advice for a split without problems."""
    from cotrain.data.labels import Unanswered

    if isinstance(tasks, Unanswered):
        return _why_unanswered(split)
    instead = ", or take a method such as ttrl" if split == "train" else ""
    return (
        f"no problem with an answer is left for {split}; bring more rows (a file is cut by a hash of each question "
        f"into 80 % train, 10 % validation and 10 % test) or a directory with train.jsonl and test.jsonl{instead}"
    )


def _why_unanswered(split: str) -> str:
    """The message for a split that is needed and in which no problem has an answer."""
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
    """Raise DataError where a step would draw the same row of a file twice, as there are fewer of them. Where some have
    no label, the user has said how few are to be learned from; and a source that makes its problems may mean few."""
    size = recipe.tasks.size("train")
    is_file = hasattr(recipe.tasks, "path")
    if size is None or not is_file or has_split(recipe.tasks, UNLABELLED):
        return
    drawn = max(phase.tasks or recipe.tasks_per_step for phase in recipe.schedule.phases)
    if size < drawn:
        raise DataError(
            f"tasks {recipe.tasks.name!r}: {size} {'problem is' if size == 1 else 'problems are'} there for training, "
            f"and a step draws {drawn}; bring more rows, or draw fewer with --tasks-per-step {max(size, 1)}",
            code="E_TOO_FEW_TASKS",
        )


def cap_path(name: str, objective: Objective) -> str:
    """Where the bound of an objective's ratio is set; a loss of two sorts of samples has it in the second's."""
    within = "loss.on_policy" if hasattr(getattr(objective.algorithm, "loss", None), "on_policy") else "loss"
    return f"objectives.{name}.algorithm.{within}.cap"


def _learns_before(recipe: Recipe, name: str) -> tuple[str, str] | None:
    """A phase, and the objective whose update of the same policy comes before this one's there; None without."""
    for phase in recipe.schedule.phases:
        if name not in phase.in_turn:
            continue
        for earlier in phase.in_turn[: phase.in_turn.index(name)]:
            if recipe.objectives[earlier].policy == recipe.objectives[name].policy:
                return phase.name, earlier
    return None


def check_due(recipe: Recipe, *, steps_flag: str = "--steps", warmup_flag: str = "") -> None:
    """Raise ConfigError for an objective that its policy could not learn from: it is due at none of the steps planned,
    it would compare one answer with itself, or take what was sampled some updates ago for the present policy's.

    ``steps_flag``: by which the steps are given. ``warmup_flag``: what is before the length of a warm-up, as in
    "--warmup " or "tango:warmup="; "" where there is no such parameter."""
    _check_updates_have_ratio(recipe)
    _check_groups_have_spread(recipe)
    _check_objectives_come(recipe, steps_flag, warmup_flag)


def _check_updates_have_ratio(recipe: Recipe) -> None:
    """Raise ConfigError for an objective without importance ratio whose policy is updated between sampling and
    learning."""
    for name, objective in recipe.objectives.items():
        needs = objective.algorithm.needs()
        if needs.off_policy_corrected:
            continue
        n_updates = recipe.updates_per_batch(objective.policy)
        update_before = _learns_before(recipe, name)
        if n_updates > 1:
            found = str(n_updates)
            instead = f"--set policies.{objective.policy}.updates_per_batch=1"
        elif needs.on_policy and update_before is not None:
            phase_name, earlier = update_before
            found = f"that of {earlier!r} before it"
            instead = f"phase {phase_name!r} no in_turn"
        else:
            continue
        with_cap = f", or --set {cap_path(name, objective)}=2" if needs.on_policy else ""
        raise ConfigError(
            f"objective {name!r} has a loss without a ratio, which holds for one update of a batch, found {found}; "
            f"give {instead}{with_cap}",
            code="E_LOSS_WITHOUT_RATIO",
        )


def _check_groups_have_spread(recipe: Recipe) -> None:
    """Raise ConfigError for an objective that compares answers to a problem, in a phase that has too few of them."""
    for phase in recipe.schedule.phases:
        declared = declared_by(phase.protocol)
        if declared is None:
            continue
        size = phase.group_size or recipe.group_size
        for name in phase.objectives:
            objective = recipe.objectives[name]
            least = objective.algorithm.needs().min_group_size
            is_asked_once = objective.role in declared.once and not objective.extra_roles
            if size < least and is_asked_once:
                raise ConfigError(
                    f"phase {phase.name!r}: objective {name!r} compares at least {least} answers to a problem, and "
                    f"group_size is {size}; raise it",
                    code="E_GROUP_TOO_SMALL",
                )


def _check_objectives_come(recipe: Recipe, steps_flag: str, warmup_flag: str) -> None:
    """Raise ConfigError for an objective that is due at none of the run's steps."""
    schedule = recipe.schedule
    warmup = sum(length for _, length in schedule.warmup)
    every = warmup + len(schedule.cycle)  # an objective that is not due by then is never due
    for name in recipe.objectives:
        first = next((step for step in range(every) if name in schedule.phase_at(step).objectives), None)
        if first is not None and first < recipe.steps:
            continue
        if first is None:
            idle = next(phase.name for phase in schedule.phases if name in phase.objectives)
            advice = f"phase {idle!r} is never played; give it a place in the schedule, or leave the objective out"
        else:
            shorter_warmup = _shorter_warmup(recipe, first, warmup_flag)
            advice = f"it is due first at step {first + 1}; give {steps_flag} {first + 1} or more{shorter_warmup}"
        raise ConfigError(
            f"objective {name!r} is due at none of the {count_of(recipe.steps, 'step')}: {advice}",
            code="E_OBJECTIVE_NEVER_DUE",
        )


def _shorter_warmup(recipe: Recipe, first: int, flag: str) -> str:
    """The other way to reach an objective that is due at step ``first`` alone: a warm-up of a third of the steps that
    there are for it. "" where there is no warm-up."""
    warmup = sum(length for _, length in recipe.schedule.warmup)
    if not warmup:
        return ""
    shorter = f", or shorten the warm-up of {count_of(warmup, 'step')}"
    longest = recipe.steps - 1 - (first - warmup)  # with a longer one the objective would still not be due
    is_one_stage = sum(length > 0 for _, length in recipe.schedule.warmup) == 1
    if not (flag and is_one_stage and longest >= 0):
        return shorter
    return f"{shorter}, as in {flag}{min(longest, max(1, longest // 3))}"


def _check_known(kind: str, name: str, names: Mapping[str, Any], where: str) -> None:
    if name not in names:
        raise ConfigError(f"{where}: {unknown_message(kind, name, names)}", code="E_NO_SUCH_PART")
