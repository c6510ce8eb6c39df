"""How a real model's solutions and reviews are asked for and read, chosen before a run begins: by name, or by a look at
a few texts of the model itself.

``--answer-format``, ``--steps-as`` and ``--prompt`` become settings of the role ``solver``, ``--verdict`` and
``--verifier-prompt`` of the role ``verifier`` (``config/edits.py``), so that they stand in recipe.json and a run that
goes on has them without asking again.

With "auto" the model answers ``PROBED`` training problems, in up to three rounds:

1. as the recipe asks, in tags;
2. in words of its own, asked for "The answer is …";
3. with the bare problem.

The first round in which a format reads ``ENOUGH_READ`` of the answers is taken; if none does, the one that reads most,
if it reads half. How many rounds there may be and what they cost is said before the first. Formats that find a number
anywhere ("last-number") are never chosen by themselves. Solutions in words are cut into steps as most of the answers
are written. A verifier then reviews the solutions that could be read: in tags, in words, in boxes.

A trial (``--smoke``) asks ``TRIED`` problems, and goes on whatever can be read. A format that is named is shown on the
same texts, and not refused.

A model directory that was taught a role keeps how the role is asked and read (``common_roles.taught_roles``). Of what
nobody says otherwise that is the default, and it is told.

Left out: methods that go on from the beginnings of solutions, judges of other formats (``rollout/verifier_roles.py``)
and those that judge reviews, which read tags alone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from cotrain.config.edits import RoleFields, with_roles
from cotrain.config.names import max_tokens_flag
from cotrain.config.override import is_given
from cotrain.config.policies import Program, is_address, model_names
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.core.seeding import make_nonce, seed_of
from cotrain.core.types import UNLABELLED, Episode, ParseFailure, Task
from cotrain.core.verbosity import clock_text, count_of
from cotrain.distributed.local import LocalBackend
from cotrain.formats.answers import ENDS, check_answer
from cotrain.formats.free_verdicts import BOXED, FORMS, WORDS, check_verdict
from cotrain.formats.role_prompts import REVIEW, REVIEW_FULL, REVIEW_OWN, SOLVE_BARE, SOLVE_OWN, ask_own, solve_own
from cotrain.formats.solutions import TAGS, Solution, parse_solution, write_solution
from cotrain.formats.steps import check_steps, steps_kind_of
from cotrain.inference.contract import ContextLimitedEngine
from cotrain.models.load import resolve_model
from cotrain.prompts.render import Renderer
from cotrain.prompts.templates import IN_TAGS, SOLVE, SOLVE_FULL, fields_of
from cotrain.rollout.common_roles import how_taught, is_terse, taught_roles
from cotrain.rollout.role import Role
from cotrain.rollout.runner import BatchProgress, Roles, RolloutRunner
from cotrain.rollout.verifier_roles import guarded_fields
from cotrain.trainer.async_rollouts import StoppableEngine
from cotrain.trainer.policy_store import PolicyStore

AUTO = "auto"
PROBED = 8  # problems that a model is asked
TRIED = 2  # problems that it is asked in a trial
ENOUGH_READ = 6  # texts of PROBED that must be read for a way of asking to be taken at once
STEP = -3  # the step in the addresses of these texts
CHOSEN = ("boxed", "hash", "phrase")  # formats of answers that "auto" may take, the strictest first
FREE = (WORDS, BOXED)  # forms of reviews that it may take, beside tags
LEAST_ROOM = 16  # tokens by which a limit must be able to grow for the advice to raise it
SHOWN = 110  # characters of the end of a text
VERIFIER_FIELDS = frozenset({"problem", "solution", "count", "nonce"})  # marks of a verifier's prompt

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How a solver and a verifier are asked and read, as the user says it. None: as the recipe has it, or of a model
    that is not one of the package's own as it writes by itself ("auto")."""

    answer: str | None = None  # a format, a pattern, or "auto"
    prompt: str | None = None  # the solver's template
    steps_as: str | None = None  # how solutions are cut into steps
    verdict: str | None = None  # a form, a pattern, or "auto"
    verifier_prompt: str | None = None  # the verifier's template

    @property
    def of_answers(self) -> bool:
        """Whether it says anything of the solver."""
        return (self.answer, self.prompt, self.steps_as) != (None, None, None)

    @property
    def of_reviews(self) -> bool:
        """Whether it says anything of the verifier."""
        return (self.verdict, self.verifier_prompt) != (None, None)


DEFAULT_FORMAT = AnswerFormat()  # nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledText:
    """One answer, or one review, of the model."""

    task: Task
    text: str
    finish: str  # "stop" or "length"; "too long" where the prompt did not fit
    solution: Solution | None = None  # the solution that a review judges


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The texts that came of one way of asking, as they are read."""

    role: Role  # how it is asked and read
    said: Sequence[SampledText]
    parsed: Sequence[Any]  # for each text what its reader made of it, ``ok`` or not
    unanswered: Sequence[str] = ()  # for each problem that the model was not asked, why
    room: int | None = None  # tokens by which all answers could be longer in the model's context; None: nobody knows

    @property
    def readable(self) -> int:
        return sum(one.ok for one in self.parsed)


def read_texts(role: Role, said: Sequence[SampledText]) -> Reading:
    """These texts as the reader of a role reads them."""
    return Reading(role=role, said=said, parsed=[_parse_text(role, text) for text in said])


def _parse_text(role: Role, said: SampledText) -> Any:
    """A text as the reader of a role reads it. A solution that was cut off has no answer to be read."""
    if said.solution is not None:
        return role.parse_reply(said.text, {"count": len(said.solution.steps)})
    if said.finish != "stop":
        return ParseFailure(reason="cut off")
    return role.parse_reply(said.text, {"count": 0})


def choose_formats(
    recipe: Recipe,
    answer_format: AnswerFormat,
    *,
    device: str,
    say: Say,
    look: bool = True,
    trial: bool = False,
    readings: dict[str, Reading] | None = None,
) -> Recipe:
    """The recipe with the formats of solver and verifier, and of all that are asked as they are.

    Args:
        look: False asks no model.
        trial: a short look, which refuses nothing.
        readings: looks at solvers of other recipes, see ``choose_answer_format``.
    """
    if look:
        check_models_found(recipe)
    answer_format = as_taught(recipe, answer_format, say)
    if not look and answer_format.answer in (None, AUTO):
        # Nobody can choose a format. A prompt or a way to cut steps that is given goes with the usual one.
        is_partly_given = answer_format.prompt is not None or answer_format.steps_as is not None
        answer_format = replace(answer_format, answer=TAGS if is_partly_given else None)
    reading = None
    if look or answer_format.answer is not None:
        recipe, reading = choose_answer_format(
            recipe, answer_format, device=device, say=say, look=look, trial=trial, readings=readings
        )
    return choose_verdict_format(
        recipe, answer_format, answer_reading=reading, device=device, say=say, look=look, trial=trial
    )


def check_models_found(recipe: Recipe) -> None:
    """Raise ModelError for a model of any policy whose directory is not there, before another one is asked."""
    for name in sorted(model_names(recipe.policies)):
        if not is_address(name):
            resolve_model(name)


# -- what a model was taught


def as_taught(recipe: Recipe, answer_format: AnswerFormat, say: Say) -> AnswerFormat:
    """The format with what it leaves open filled in: as the models of solver and verifier were taught it. ``say`` hears
    of it."""
    answer_format = _solver_as_taught(recipe, answer_format, say)
    return _verifier_as_taught(recipe, answer_format, say)


def _solver_as_taught(recipe: Recipe, answer_format: AnswerFormat, say: Say) -> AnswerFormat:
    role = recipe.roles.get("solver")
    if role is None or role.parse is not parse_solution or answer_format.answer is not None:
        return answer_format
    if any(is_given(recipe, f"roles.solver.{field}") for field in ("answer_format", "prompt", "step_format")):
        return answer_format
    model = _taught_directory(recipe, role)
    how = _texts_of(taught_roles(model).get("solver"))
    if not how or _is_taught_as_usual(recipe, role, how):
        return answer_format
    answer = how.get("answer", TAGS)
    steps = how.get("steps_as")
    if not _are_tags(answer, steps) and _tied_to_tags(recipe):
        say(f"note: {model} was taught to answer as {answer!r}; recipe {recipe.name!r} reads answers in tags alone")
        return answer_format
    in_steps = f", its steps as {steps}" if steps else ""
    say(
        f"note: {model} was taught to answer as {answer!r}{in_steps}, and is asked and read so; --answer-format, "
        "--steps-as and --prompt choose otherwise"
    )
    return replace(
        answer_format,
        answer=answer,
        steps_as=answer_format.steps_as or steps,
        prompt=answer_format.prompt or how.get("prompt"),
    )


def _verifier_as_taught(recipe: Recipe, answer_format: AnswerFormat, say: Say) -> AnswerFormat:
    role = recipe.roles.get("verifier")
    if role is None or not reviews_steps(recipe) or answer_format.verdict is not None:
        return answer_format
    if any(is_given(recipe, f"roles.verifier.{field}") for field in ("verdict_format", "prompt")):
        return answer_format
    model = _taught_directory(recipe, role)
    how = _texts_of(taught_roles(model).get("verifier"))
    if not how or _is_taught_as_usual(recipe, role, how):
        return answer_format
    verdict = how.get("verdict", TAGS)
    if how.get("form", "steps") != "steps":
        say(f"note: {model} was taught verdicts of the form {how['form']!r}, which this recipe does not ask for")
        return answer_format
    if verdict != TAGS and _reader_of_reviews(recipe) is not None:
        say(f"note: {model} was taught verdicts as {verdict!r}; recipe {recipe.name!r} reads them in tags alone")
        return answer_format
    say(
        f"note: {model} was taught verdicts as {verdict!r}, and is asked and read so; --verdict and --verifier-prompt "
        "choose otherwise"
    )
    return replace(answer_format, verdict=verdict, verifier_prompt=answer_format.verifier_prompt or how.get("prompt"))


def _is_taught_as_usual(recipe: Recipe, role: Role, how: Mapping[str, str]) -> bool:
    """Whether a model of the package was taught the role as recipes ask it already."""
    return is_package_model(recipe, role) and how == _texts_of(how_taught(role))


def _are_tags(answer: str, steps: str | None) -> bool:
    """Whether solutions in this format, cut into steps in this way, are those in tags."""
    return answer == TAGS and (steps or TAGS) == TAGS


def _taught_directory(recipe: Recipe, role: Role) -> str:
    """Where the model of a role lies, or its adapter."""
    spec = recipe.policies[role.policy]
    if spec.lora is not None and spec.lora.path is not None:
        return spec.lora.path
    return spec.model


def _texts_of(how: Mapping[str, Any] | None) -> dict[str, str]:
    """The fields that say something."""
    return {name: value for name, value in (how or {}).items() if isinstance(value, str)}


def _reader_of_reviews(recipe: Recipe) -> str | None:
    """The role that is shown what the verifier wrote."""
    return next((name for name, one in recipe.roles.items() if "review" in fields_of(one.prompt)), None)


# -- solvers


def choose_answer_format(
    recipe: Recipe,
    answer_format: AnswerFormat,
    *,
    device: str,
    say: Say,
    tasks: Sequence[Task] = (),
    look: bool = True,
    trial: bool = False,
    readings: dict[str, Reading] | None = None,
) -> tuple[Recipe, Reading | None]:
    """The recipe with the format of the role ``solver`` and of all that are asked as it is, such as a teacher and the
    reference; and the answers that were looked at, None where no model was asked.

    ``tasks``: what the model is asked, by default training problems. ``look``: False asks no model where the format is
    named; ``trial``: it asks few problems and refuses nothing for what it reads. ``readings`` keeps each look, and has
    those at solvers of other recipes: a solver that is asked alike is not asked again. Raises ConfigError where the
    recipe has no such role, where the prompt does not name the problem, and where "auto" cannot read most answers.
    """
    answer = answer_format.answer
    prompt = answer_format.prompt
    steps = answer_format.steps_as
    role = recipe.roles.get("solver")
    if role is None or role.parse is not parse_solution:
        _check_nothing_is_said(recipe, answer_format)
        return recipe, None
    _check_answer_flags(recipe, answer, prompt, steps)
    named = None if answer == AUTO else answer
    fixed = prompt is not None or is_given(recipe, "roles.solver.prompt")
    asks_as_usual = prompt is None and role.prompt == SOLVE_FULL  # which asks for tags
    if named is not None and asks_as_usual and not _are_tags(named, steps):
        prompt = solve_own(named, steps)
    # The roles that are asked as the solver is, and change with it.
    alike = [name for name, one in recipe.roles.items() if one.parse is role.parse and asks_plainly(one)]
    changed = with_roles(recipe, alike, **_said_fields(prompt=prompt, answer_format=named, step_format=steps))
    if named is not None or steps is not None:
        changed = _with_other_writers(changed, recipe, named or role.answer_format, steps)
    if not _looks_at_answers(recipe, role, answer, look=look):
        return changed, None
    probed = changed.roles["solver"]
    readings = {} if readings is None else readings
    key = repr((_solver_key(recipe, probed), fixed, named, [task.id for task in tasks]))
    if key in readings:
        say(f"answers of {recipe.policies[role.policy].model} were looked at above, and are read alike")
    else:
        readings[key] = probe_answers(
            recipe,
            probed,
            tasks or probe_tasks(recipe, TRIED if trial else PROBED),
            fixed=fixed,
            named=named,
            device=device,
            say=say,
            trial=trial,
        )
    reading = readings[key]
    best = reading.role
    changed = with_roles(changed, alike, **_changed_fields(probed, best, ("prompt", "answer_format", "step_format")))
    return _with_other_writers(changed, recipe, best.answer_format, best.step_format), reading


def _solver_key(recipe: Recipe, role: Role) -> tuple[Any, ...]:
    """The same for solvers of recipes that say the same: of the same weights, asked alike, on the same problems."""
    spec = recipe.policies[role.policy]
    adapter_start = None if spec.lora is None else spec.lora.path
    formats = (role.answer_format, role.step_format, role.is_free_form)
    asked = (role.prompt, role.system, role.sampling, role.tool)
    return (spec.model, adapter_start, asked, formats, recipe.tasks.describe())


def _check_nothing_is_said(recipe: Recipe, answer_format: AnswerFormat) -> None:
    """Raise ConfigError where a format is given for a solver that the recipe has not."""
    says_answer = answer_format.answer not in (None, AUTO, TAGS)
    if says_answer or answer_format.prompt is not None or answer_format.steps_as is not None:
        raise ConfigError(
            f"recipe {recipe.name!r} has no role 'solver' of plain solutions; leave out --answer-format, --steps-as, "
            "--prompt",
            code="E_NO_PLAIN_SOLVER",
        )


def _looks_at_answers(recipe: Recipe, role: Role, answer: str | None, *, look: bool) -> bool:
    """Whether the model itself is asked how it answers. ``look``: as of ``choose_answer_format``."""
    if answer == AUTO:
        return True
    if is_package_model(recipe, role) or _tied_to_tags(recipe):
        return False  # how these answer is known
    if answer is not None:
        return look
    return not is_given(recipe, "roles.solver.answer_format")


def _said_fields(**fields: str | None) -> RoleFields:
    """The fields that were given."""
    return cast(RoleFields, {name: value for name, value in fields.items() if value is not None})


def _changed_fields(before: Role, after: Role, names: Sequence[str]) -> RoleFields:
    """The fields that ``after`` has otherwise than ``before``."""
    values = {name: getattr(after, name) for name in names}
    return cast(RoleFields, {name: value for name, value in values.items() if value != getattr(before, name)})


def _with_other_writers(changed: Recipe, recipe: Recipe, answer: str, steps: str | None) -> Recipe:
    """``changed`` with roles that are shown more than the problem, such as a refiner, and write solutions too: in the
    same form, and asked for it where ``recipe`` asks them for tags."""
    if _are_tags(answer, steps):
        return changed
    for name, role in recipe.roles.items():
        if _asks_for_tags(role):
            prompt = ask_own(role.prompt, answer, steps)
            fields = _said_fields(prompt=prompt, answer_format=answer, step_format=steps)
            changed = with_roles(changed, [name], **fields)
    return changed


def _asks_for_tags(role: Role) -> bool:
    return role.parse is parse_solution and not asks_plainly(role) and IN_TAGS in role.prompt


def asks_plainly(role: Role) -> bool:
    """Whether it is told the problem and nothing else."""
    return fields_of(role.prompt) == {"problem"}


def _check_answer_flags(recipe: Recipe, answer: str | None, prompt: str | None, steps: str | None) -> None:
    if prompt is not None and fields_of(prompt) != {"problem"}:
        marks = ", ".join(sorted(fields_of(prompt))) or "none"
        raise ConfigError(
            f"--prompt: expected a text with the one mark {{problem}}, found the marks {marks}", code="E_PROMPT_MARKS"
        )
    if steps is not None:
        check_steps(steps)
    if answer is not None and answer != AUTO:
        check_answer(answer)
    is_pattern = answer not in (None, AUTO, *ENDS)  # it says how answers are read, and not how they are written
    for name, role in recipe.roles.items():
        is_program = isinstance(recipe.policies[role.policy], Program)
        is_written_by_program = is_program and role.parse is parse_solution and asks_plainly(role)
        if is_pattern and (_asks_for_tags(role) or is_written_by_program):
            raise ConfigError(
                f"--answer-format {answer}: recipe {recipe.name!r} has solutions written in the role {name!r} too, "
                f"and a pattern does not say how; expected one of {', '.join(ENDS)}",
                code="E_ANSWER_PATTERN_NOT_WRITTEN",
            )
    not_tags = []
    if answer not in (None, AUTO, TAGS):
        not_tags.append(f"--answer-format {answer}")
    if steps not in (None, TAGS):
        not_tags.append(f"--steps-as {steps}")
    if not_tags and _tied_to_tags(recipe):
        raise ConfigError(
            f"recipe {recipe.name!r} reads its solver's answers in tags alone; leave out {' and '.join(not_tags)}, or "
            "teach the model the tags first: `cotrain teach solver`",
            code="E_ANSWERS_IN_TAGS_ALONE",
        )


def _tied_to_tags(recipe: Recipe) -> bool:
    """Whether solutions are gone on with from their beginnings, or graded in another way than by their answer."""
    prompts_of_solvers = {SOLVE, SOLVE_FULL, recipe.roles["solver"].prompt}
    # A role that is asked as a solver and read otherwise writes a part of a solution.
    writes_parts = any(
        role.prompt in prompts_of_solvers and role.parse is not parse_solution for role in recipe.roles.values()
    )
    return writes_parts or recipe.tasks.describe().get("kind") in ("programs", "verifiers", "openenv")


def probe_answers(
    recipe: Recipe,
    role: Role,
    tasks: Sequence[Task],
    *,
    fixed: bool = False,
    named: str | None = None,
    device: str,
    say: Say,
    trial: bool = False,
) -> Reading:
    """Ask the model itself, and choose. ``fixed``: with the prompt that the role has and no other. ``named``: the
    format that it is read in, chosen already. Solutions are cut as the role says, else as they are written. Raises
    ConfigError where most answers cannot be read, no format is named, and it is no ``trial``."""
    prompts = [role.prompt] if fixed or named else [role.prompt, SOLVE_OWN["phrase"], SOLVE_BARE]
    rounds = Rounds(len(prompts), len(tasks) * role.sampling.max_tokens, say)
    say(
        f"asking {recipe.policies[role.policy].model} {count_of(len(tasks), 'problem')}, to see how it answers "
        f"({rounds.plan}) …"
    )
    make_runner = runner_factory(recipe, {role.policy}, what="answers", device=device, say=say)

    def readings_by_round() -> Iterator[list[Reading]]:
        """Of each prompt: its answers, read in every format that is tried with it."""
        for prompt in prompts:
            asked = replace(role, prompt=prompt)
            runner = make_runner({"solver": asked})
            episodes = runner.collect(ask_solver, tasks, step=STEP, group_size=1)
            forms = _forms_to_try(role, prompt, fixed=fixed, named=named)
            yield _readings_of(recipe, asked, forms, runner, episodes, tasks)

    best = _first_clear(readings_by_round(), len(tasks), rounds)
    if role.step_format is None and best.role.answer_format != TAGS:
        best = _with_steps_cut(best)
    renderer = make_runner({}).renderers[role.policy]
    is_base_model = isinstance(renderer, Renderer) and not renderer.tokenizer.chat_template
    _report_choice(
        best,
        answer_lines(best),
        lambda: answers_refusal(best, base=is_base_model),
        refuses=named is None and not trial,
        say=say,
    )
    return best


def _forms_to_try(role: Role, prompt: str, *, fixed: bool, named: str | None) -> Sequence[str]:
    """The formats in which answers to this prompt are read. ``fixed``, ``named``: see ``probe_answers``."""
    if named:
        forms: Sequence[str] = [named]
    elif fixed:
        forms = [TAGS, *CHOSEN]
    elif prompt == role.prompt:
        forms = [TAGS]
    else:
        forms = CHOSEN
    return forms


def _readings_of(
    recipe: Recipe,
    asked: Role,
    forms: Sequence[str],
    runner: RolloutRunner,
    episodes: Sequence[Episode],
    tasks: Sequence[Task],
) -> list[Reading]:
    """The answers that a role gave, read in each of these formats."""
    said = _texts_of_episodes(episodes, tasks)
    unanswered = [
        runner.set_aside.get(episode.task_id) or episode.failure or "nothing was said"
        for episode in episodes
        if not episode.traces
    ]
    room = _room_for_longer(recipe, asked, runner, episodes)
    readings = [read_texts(replace(asked, answer_format=form), said) for form in forms]
    return [replace(reading, unanswered=unanswered, room=room) for reading in readings]


def _with_steps_cut(reading: Reading) -> Reading:
    """The reading with the format in which these answers can be split into steps."""
    texts = [said.text for said, parsed in zip(reading.said, reading.parsed, strict=True) if parsed.ok]
    role = replace(reading.role, step_format=steps_kind_of(texts))
    return replace(reading, role=role, parsed=read_texts(role, reading.said).parsed)


def _texts_of_episodes(episodes: Sequence[Episode], tasks: Sequence[Task]) -> list[SampledText]:
    """The texts that were sampled for these problems."""
    said = []
    for episode in episodes:
        for trace in episode.traces:
            said.append(SampledText(task=tasks[episode.task], text=trace.text, finish=trace.finish))
    return said


def _room_for_longer(recipe: Recipe, role: Role, runner: RolloutRunner, episodes: Sequence[Episode]) -> int | None:
    """Tokens by which all answers could be longer in the model's context; None where nobody knows."""
    context = _context_of(recipe, role, runner)
    prompts = [len(trace.prompt_ids) for episode in episodes for trace in episode.traces]
    if context is None or not prompts:
        return None
    return context - max(prompts) - role.sampling.max_tokens


def answer_lines(reading: Reading) -> list[str]:
    """The answers, each with what was read, and the choice in one line."""
    role = reading.role
    lines = []
    n_right = 0
    for said, found in zip(reading.said, reading.parsed, strict=True):
        grade = None
        if found.ok:
            grade = said.task.grade(found.tagged or said.text).value
        n_right += grade is True
        lines.append(f"  …{_end_of(said.text)!r} {_answer_text(said, found)}{GRADES[grade]}")
    asked = "as the recipe asks" if role.prompt == SOLVE_FULL else f"asked {role.prompt!r}"
    cut = ""
    step_counts = [len(found.steps) for found in reading.parsed if found.ok]
    if step_counts and role.step_format:
        cut = f"; steps as {role.step_format}, {sum(step_counts) / len(step_counts):.1f} of an answer"
    lines.append(
        f"answers: {role.answer_format} reads {reading.readable} of {len(reading.said) + len(reading.unanswered)} "
        f"({n_right} right), {asked}{cut}; --answer-format, --steps-as and --prompt choose otherwise"
    )
    return lines


GRADES = {True: ", right", False: ", wrong", None: ""}  # how a line says the grade of an answer


def _answer_text(said: SampledText, found: Any) -> str:
    if found.ok:
        return f"→ {found.answer}"
    return "unreadable" if said.finish == "stop" else "cut off"


def answers_refusal(reading: Reading, *, base: bool = False) -> str:
    """Why the model cannot be trained as it is, and what would help. ``base``: it has no chat template."""
    total = len(reading.said)
    n_cut = sum(one.finish != "stop" for one in reading.said)
    unanswered = reading.unanswered
    limit = max_tokens_flag("solver")
    teach = "`cotrain teach solver`"
    note = ""
    if base:
        note = "; it has no chat template, so it is a base model: take its instruct version, or teach it so"
    if unanswered and len(unanswered) >= total:
        advice = f": {limit}" if "max_tokens" in unanswered[0] else ""
        return f"{len(unanswered)} of {len(unanswered) + total} problems got no answer: {unanswered[0]}{advice}"
    if not total:
        return "no problem was there to be answered; give --data with training problems"
    if 2 * n_cut >= total:
        advice = f"; raise their limit with {limit}, or "
        if reading.room is not None and reading.room < LEAST_ROOM:
            advice = ", and the model's context holds no longer ones; "
        return f"{n_cut} of {total} answers were cut off before they ended{advice}teach the model to end: {teach}{note}"
    unread = [one.text for one, found in zip(reading.said, reading.parsed, strict=True) if not found.ok]
    return (
        f"{len(unread)} of {total} answers cannot be read: …{_end_of(unread[0], 60)!r}; try --answer-format "
        f"last-number, a --prompt FILE of your own, or {teach} first{note}"
    )


# -- verifiers


def reviews_steps(recipe: Recipe) -> bool:
    """Whether the recipe has a role "verifier" whose verdicts can be read in another form."""
    role = recipe.roles.get("verifier")
    return role is not None and bool(role.words)


def choose_verdict_format(
    recipe: Recipe,
    answer_format: AnswerFormat,
    *,
    answer_reading: Reading | None = None,
    device: str,
    say: Say,
    look: bool = True,
    trial: bool = False,
) -> Recipe:
    """The recipe with the format of the role ``verifier`` and of all that judge as it does.

    ``answer_reading``: answers of the solver that were drawn already. ``look``: False asks no model; ``trial``: it
    refuses nothing for what it reads. Raises ConfigError where the recipe has no such role, for a prompt without
    problem and solution, and where "auto" cannot read half of the reviews.
    """
    verdict = answer_format.verdict
    prompt = answer_format.verifier_prompt
    role = recipe.roles.get("verifier")
    if role is None or not reviews_steps(recipe):
        _check_no_verdict_is_said(recipe, answer_format)
        return recipe
    reader = _reader_of_reviews(recipe)
    _check_verdict_flags(recipe, role, verdict, prompt, reader)
    named = None if verdict == AUTO else verdict
    fixed = prompt is not None or is_given(recipe, "roles.verifier.prompt")
    if named in REVIEW_OWN and not fixed and role.prompt in (REVIEW, REVIEW_FULL):
        prompt = REVIEW_OWN[str(named)]
    alike = [name for name, one in recipe.roles.items() if one.parse is role.parse and one.words]
    changed = with_roles(recipe, alike, **_said_fields(prompt=prompt, verdict_format=named))
    is_chosen = verdict is None and is_given(recipe, "roles.verifier.verdict_format")
    if not look or is_chosen or is_package_model(recipe, role):
        return changed
    probed = changed.roles["verifier"]
    free = FREE if reader is None else ()  # a review that another role is shown stays in tags
    ways = [replace(probed, verdict_format=named or TAGS)]
    if named is None:
        ways += [_verifier_for(form, probed, fixed=fixed) for form in free]
    best = _probe_reviews(
        recipe,
        ways,
        free,
        answer_reading,
        named=named is not None,
        fixed=fixed,
        device=device,
        say=say,
        trial=trial,
    )
    if best is None:
        return changed
    return with_roles(changed, alike, **_changed_fields(probed, best.role, ("prompt", "verdict_format")))


def _check_no_verdict_is_said(recipe: Recipe, answer_format: AnswerFormat) -> None:
    """Raise ConfigError where a format is given for a verifier that the recipe has not."""
    if answer_format.verdict not in (None, AUTO, TAGS) or answer_format.verifier_prompt is not None:
        raise ConfigError(
            f"recipe {recipe.name!r} has no role 'verifier' that reviews steps; leave out --verdict, --verifier-prompt",
            code="E_NO_STEP_VERIFIER",
        )


def _verifier_for(form: str, role: Role, *, fixed: bool) -> Role:
    """A verifier that is asked for verdicts in this form. ``fixed``: with the prompt that it has."""
    return replace(role, verdict_format=form, prompt=role.prompt if fixed else REVIEW_OWN[form])


def _check_verdict_flags(
    recipe: Recipe, role: Role, verdict: str | None, prompt: str | None, reader: str | None
) -> None:
    """``reader``: the role that is shown what the verifier wrote."""
    marks = None if prompt is None else fields_of(prompt)
    if marks is not None and not {"problem", "solution"} <= marks <= VERIFIER_FIELDS:
        raise ConfigError(
            "--verifier-prompt: expected the marks {problem} and {solution}, and at most {count} and {nonce}, found "
            f"{', '.join(sorted(marks)) or 'none'}",
            code="E_PROMPT_MARKS",
        )
    if verdict is None or verdict in (AUTO, TAGS):
        return
    check_verdict(verdict)
    if verdict not in FORMS and prompt is None and role.prompt in (REVIEW, REVIEW_FULL):
        raise ConfigError(
            f"--verdict {verdict}: nothing asks for it; add --verifier-prompt FILE with {{problem}}, {{solution}}",
            code="E_VERDICT_NOT_ASKED",
        )
    if reader is not None:
        raise ConfigError(
            f"recipe {recipe.name!r} shows reviews to its role {reader!r}, which reads them in tags; leave out "
            f"--verdict {verdict}",
            code="E_REVIEWS_IN_TAGS_ALONE",
        )


def _probe_reviews(
    recipe: Recipe,
    ways: Sequence[Role],
    free: Sequence[str],
    answer_reading: Reading | None,
    *,
    named: bool,
    fixed: bool,
    device: str,
    say: Say,
    trial: bool,
) -> Reading | None:
    """Ask the model itself for reviews, in each of these ways until one can be read; None where there is no solution to
    review.

    Args:
        ways: the verifier, asked and read in one way each.
        free: forms beside tags that a verifier of this recipe may write.
        answer_reading: answers of the solver that were drawn already; None: they are drawn here.
        named: the form is chosen already.
        fixed: the ways differ in how the same reviews are read, which are drawn once.

    Raises ConfigError where most cannot be read, no form is named, and it is no ``trial``.
    """
    solver = recipe.roles.get("solver")
    policies = {ways[0].policy}
    if solver is not None and answer_reading is None:
        policies.add(solver.policy)
    make_runner = runner_factory(recipe, policies, what="texts", device=device, say=say)
    if answer_reading is None and solver is not None and asks_plainly(solver):
        problems = probe_tasks(recipe, TRIED if trial else PROBED)
        episodes = make_runner({"solver": solver}).collect(ask_solver, problems, step=STEP, group_size=1)
        # A solution that was cut off may be reviewed as well: here it need not have ended.
        texts = [replace(text, finish="stop") for text in _texts_of_episodes(episodes, problems)]
        answer_reading = read_texts(solver, texts)
    solved = [] if answer_reading is None else _solved_problems(answer_reading)
    if not solved:
        say("note: no solution of the solver could be read, so no review was looked at")
        return None
    limit = max(way.sampling.max_tokens for way in ways)
    rounds = Rounds(1 if fixed else len(ways), len(solved) * limit, say)
    say(
        f"asking {recipe.policies[ways[0].policy].model} for {count_of(len(solved), 'review')}, to see how it judges "
        f"({rounds.plan}) …"
    )
    ask = partial(_ask_review, given={task.id: solution for task, solution in solved})
    tasks = [task for task, _ in solved]

    def readings_by_round() -> Iterator[list[Reading]]:
        said: list[SampledText] = []
        for role in ways:
            if not fixed or not said:
                episodes = make_runner({"verifier": role}).collect(ask, tasks, step=STEP, group_size=1)
                said = [_review_text(episode, *solved[episode.task]) for episode in episodes]
            yield [read_texts(role, said)]

    best = _first_clear(readings_by_round(), len(solved), rounds)
    tried = [role.verdict_format for role in ways]
    others = [form for form in free if form not in tried]
    all_the_same = "" if named or trial else "; --verdict tags goes on all the same"
    _report_choice(
        best,
        review_lines(best),
        lambda: reviews_refusal(best, others=others) + all_the_same,
        refuses=not named and not trial,
        say=say,
    )
    return best


def _solved_problems(reading: Reading) -> list[tuple[Task, Solution]]:
    """The problems whose solutions could be read, with these."""
    pairs = zip(reading.said, reading.parsed, strict=True)
    return [(said.task, solution) for said, solution in pairs if isinstance(solution, Solution)]


def _review_text(episode: Episode, task: Task, solution: Solution) -> SampledText:
    """The review of a solution; without a text where the prompt did not fit."""
    if not episode.traces:
        return SampledText(task=task, text="", finish="too long", solution=solution)
    trace = episode.traces[0]
    return SampledText(task=task, text=trace.text, finish=trace.finish, solution=solution)


async def _ask_review(task: Task, roles: Roles, *, given: Mapping[str, Solution]) -> None:
    text = _tagged_text(given[task.id])
    fields: Mapping[str, Any] = {"solution": text}
    if "nonce" in roles.verifier.fields:
        fields = guarded_fields(make_nonce(0, task.id), solution=text)
    await roles.verifier(problem=task.prompt, count=len(given[task.id].steps), **fields)


def _tagged_text(solution: Solution) -> str:
    return solution.tagged or write_solution([step.text for step in solution.steps], solution.answer)


# How a line says what was read of a review, and what is true of its solution.
UNREAD = {"length": "cut off", "too long": "the prompt does not fit"}
VERDICTS = {True: "right", False: "wrong", None: "no verdict"}
TRUTHS = {True: "in truth right", False: "in truth wrong", None: "not graded"}


def review_lines(reading: Reading) -> list[str]:
    """The reviews, each with what was read, and the choice in one line."""
    role = reading.role
    lines = []
    agreeing = 0
    for said, found in zip(reading.said, reading.parsed, strict=True):
        end = _end_of(said.text)
        if not found.ok:
            why = UNREAD.get(said.finish, found.reason)
            lines.append(f"  …{end!r} unreadable: {why}")
            continue
        truth = None if said.solution is None else said.task.grade(_tagged_text(said.solution)).value
        agreeing += truth is not None and found.final is truth
        marks = " ".join("✓" if ok else "✗" for ok in found.steps or ())
        steps = f", steps {marks}" if marks else ""
        lines.append(f"  …{end!r} → {VERDICTS[found.final]}{steps}; {TRUTHS[truth]}")
    asked = "as the recipe asks" if role.prompt in (REVIEW, REVIEW_FULL) else "asked in words of its own"
    lines.append(
        f"verdicts: {role.verdict_format} reads {reading.readable} of {len(reading.said)} reviews ({agreeing} agree "
        f"with the truth), {asked}; --verdict and --verifier-prompt choose otherwise"
    )
    return lines


def reviews_refusal(reading: Reading, *, others: Sequence[str]) -> str:
    """Why the verifier cannot be used as it is, and what would help. ``others``: forms that are worth a try."""
    total = len(reading.said)
    unread = [(one, found) for one, found in zip(reading.said, reading.parsed, strict=True) if not found.ok]
    finishes = Counter(one.finish for one, _ in unread)
    limit = max_tokens_flag("verifier")
    teach = "or teach it: `cotrain teach verifier`"
    if 2 * finishes["too long"] >= total:
        return (
            f"{finishes['too long']} of {total} prompts do not fit the context together with their review; lower "
            f"{limit}, or shorten --verifier-prompt"
        )
    if 2 * finishes["length"] >= total:
        return (
            f"{finishes['length']} of {total} reviews were cut off before their verdict; raise their limit with "
            f"{limit}, {teach}"
        )
    [(reason, _)] = Counter(found.reason for _, found in unread).most_common(1)
    first_unread, _ = unread[0]
    other = f"--verdict {others[0]}, " if others else ""
    return (
        f"{len(unread)} of {total} reviews cannot be read (most often: {reason}): "
        f"…{_end_of(first_unread.text, 60)!r}; try {other}a --verifier-prompt FILE of your own, {teach}"
    )


# -- a look at a model


def is_package_model(recipe: Recipe, role: Role) -> bool:
    """Whether a model of the package plays this role, or a program. A server's model is none: nobody here taught it."""
    spec = recipe.policies[role.policy]
    if spec.outside:
        return False
    return not spec.head or is_terse(spec.model)


def probe_tasks(recipe: Recipe, most: int = PROBED) -> list[Task]:
    """So many training problems at most, spread over the split where it ends."""
    split = "train" if recipe.tasks.size("train") != 0 else UNLABELLED
    size = recipe.tasks.size(split)
    indices = range(most) if size is None else spread_indices(size, most)
    return [recipe.tasks.get(split, index) for index in indices]


def spread_indices(size: int, most: int = PROBED) -> list[int]:
    """At most ``most`` of so many, spread over them."""
    count = min(most, size)
    return [i * size // count for i in range(count)]


async def ask_solver(task: Task, roles: Roles) -> None:
    """The solver answers, and nobody grades it."""
    await roles.solver(problem=task.prompt)


def runner_factory(
    recipe: Recipe, policies: Iterable[str], *, what: str, device: str, say: Say
) -> Callable[[Mapping[str, Role]], RolloutRunner]:
    """Return a function that makes a runner of roles of these policies, as they begin. ``what``: the texts that
    progress counts, "answers"."""
    backend = LocalBackend(device)
    store = PolicyStore(backend.open({n: recipe.policies[n] for n in sorted(policies)}, seed=recipe.seed))
    seed = seed_of("probe", recipe.seed)

    def make_runner(roles: Mapping[str, Role]) -> RolloutRunner:
        return RolloutRunner(
            StoppableEngine(backend.engine, lambda: 0),
            store.renderers,
            roles,
            seed,
            progress=BatchProgress(f"  {{}} {what}", say),
        )

    return make_runner


def _context_of(recipe: Recipe, role: Role, runner: RolloutRunner) -> int | None:
    """Tokens of prompt and answer that the model of a role takes; None where another server has it."""
    if not recipe.policies[role.policy].generates or not isinstance(runner.engine, ContextLimitedEngine):
        return None
    return runner.engine.context(role.policy)


class Rounds:
    """The rounds of a look: what they may cost is said before the first, how they went before each further one."""

    def __init__(self, most: int, tokens: int, say: Say) -> None:
        """``most``: rounds that there may be; ``tokens``: that one of them may sample."""
        self.most = most
        self._tokens = tokens
        self._say = say
        self._done = 0
        self._begun = time.monotonic()

    @property
    def plan(self) -> str:
        """Says what the look may cost."""
        tokens = f"at most {self._tokens:,} tokens in all"
        return tokens if self.most == 1 else f"up to {self.most} rounds, each of {tokens}"

    def next_round(self, readable: int, asked: int) -> None:
        """A round is over in which so many texts could be read, and there is another one."""
        self._done += 1
        now = time.monotonic()
        seconds = now - self._begun
        self._begun = now
        self._say(
            f"  round {self._done} of {self.most} took {clock_text(seconds)}: {readable} of {asked} can be read; "
            "asking in other words …"
        )


def _first_clear(tries: Iterable[Sequence[Reading]], asked: int, rounds: Rounds) -> Reading:
    """The best reading of the first way of asking in which enough of what was asked is read, none behind it drawn; else
    the one that reads most, of equals the first."""
    best_of_round: list[Reading] = []
    for readings in tries:
        best = max(readings, key=_count_readable)
        best_of_round.append(best)
        if best.readable * PROBED >= ENOUGH_READ * asked:
            break
        if len(best_of_round) < rounds.most:
            rounds.next_round(best.readable, asked)
    return max(best_of_round, key=_count_readable)


def _count_readable(reading: Reading) -> int:
    return reading.readable


def _report_choice(best: Reading, lines: Iterable[str], why: Callable[[], str], *, refuses: bool, say: Say) -> None:
    """Say what was chosen, and where not half of it can be read, ``why``: as a ConfigError where that ``refuses`` the
    run, else as a note."""
    for line in lines:
        say(line)
    if best.said and 2 * best.readable >= len(best.said):
        return
    if refuses:
        raise ConfigError(why(), code="E_FORMAT_NOT_FOUND")
    say(f"note: {why()}")


def _end_of(text: str, length: int = SHOWN) -> str:
    return " ".join(text.split())[-length:]
