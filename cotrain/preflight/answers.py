"""How a solver's answers are read, chosen before a run begins: by name, or by looking at a few answers of the model
itself.

``choose_answer_settings`` turns ``--answer``, ``--steps-as`` and ``--prompt`` into settings of the role ``solver``, as
``--set`` has them, so that they stand in recipe.json and a resumed run has them without asking again. With "auto" the
model answers ``PROBED`` training problems: first as the recipe asks, in tags; where fewer than ``ENOUGH_READ`` of the
answers can be read, in words of its own, asked for "The answer is …"; at last with the bare problem. The first way of
asking in which a format reads ``ENOUGH_READ`` of them is taken, else the best one, if it reads half. Formats that find
a number anywhere ("last-number") are never chosen by themselves. Solutions in words are cut into steps as most of the
answers are written. A format that is named is shown on the same problems, and not refused.

Left out: methods that go on from the beginnings of solutions, which read tags alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cotrain.config.override import changed_settings, is_given, override, role_settings
from cotrain.config.policies import Program
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ConfigError
from cotrain.core.types import Task
from cotrain.preflight.probing import (
    AUTO,
    STEP,
    Say,
    ask_solver,
    context_of,
    first_clear,
    is_package_model,
    most_read,
    player_factory,
    probe_tasks,
    report_choice,
)
from cotrain.rollout.role import Role
from cotrain.text.answers import ENDS, check_answer, free_solution
from cotrain.text.parsers import MAX_CHARS, TAGS, Solution, parse_solution, tagged_solution
from cotrain.text.prompts import IN_TAGS, SOLVE, SOLVE_FULL, fields_of
from cotrain.text.render import Renderer
from cotrain.text.role_prompts import SOLVE_BARE, SOLVE_OWN, ask_own, solve_own
from cotrain.text.steps import check_steps, steps_kind_of

CHOSEN = ("boxed", "hash", "phrase")  # formats that "auto" may take, the strictest first
BASE = "; it has no chat template, so it is a base model: take its instruct version, or teach it so"
MORE = 16  # tokens that a limit must be able to grow by for that to be worth a word
SHOWN = 110  # characters of the end of an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledAnswer:
    """One answer of the model."""

    task: Task
    text: str
    finish: str  # "stop" or "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFormat:
    """How a solver and a verifier are asked and read, as the user says it. None: as the recipe has it, or of a model
    that is not one of the package's own as it writes by itself ("auto")."""

    answer: str | None = None  # a format, a pattern, or "auto"
    prompt: str | None = None  # the solver's template
    steps_as: str | None = None  # how solutions are cut into steps
    verdict: str | None = None  # a form, a pattern, or "auto" (``verdicts.py``)
    verifier_prompt: str | None = None  # the verifier's template

    @property
    def of_answers(self) -> bool:
        """Whether it says anything of the solver."""
        return (self.answer, self.prompt, self.steps_as) != (None, None, None)


DEFAULT_FORMAT = AnswerFormat()  # nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReading:
    """What a format finds in the answers to one way of asking."""

    prompt: str
    answer: str
    steps: str | None = None  # how they are cut; None: in tags as the answer is, else by lines
    said: Sequence[SampledAnswer]
    found: Sequence[Solution | None]  # one for each answer
    unanswered: Sequence[str] = ()  # why, of each problem that the model was not asked
    room: int | None = None  # tokens by which all answers could be longer in the model's context; None: nobody knows

    @property
    def total(self) -> int:
        return len(self.said)

    @property
    def readable(self) -> int:
        return sum(one is not None for one in self.found)


def choose_answer_settings(
    recipe: Recipe,
    answer_format: AnswerFormat,
    *,
    device: str,
    say: Say,
    tasks: Sequence[Task] = (),
    look: bool = True,
) -> tuple[list[str], AnswerReading | None]:
    """Settings of the role ``solver`` ("roles.solver.answer=…") and of all that are asked as it is, such as a teacher
    and the start, [] where all stays as the recipe has it; and the answers that were looked at.

    ``tasks``: what the model is asked, by default training problems. ``look``: False asks no model where the format is
    named. Raises ConfigError where the recipe has no such role, where the prompt does not name the problem, and where
    "auto" cannot read most answers.
    """
    answer, prompt, steps = answer_format.answer, answer_format.prompt, answer_format.steps_as
    role = recipe.roles.get("solver")
    if role is None or role.parse is not parse_solution:
        if answer not in (None, AUTO, TAGS) or prompt is not None or steps is not None:
            raise ConfigError(
                f"recipe {recipe.name!r} has no role 'solver' of plain solutions; leave out --answer, --steps-as, "
                "--prompt"
            )
        return [], None
    _check_flags(recipe, answer, prompt, steps)
    named = None if answer == AUTO else answer
    fixed = prompt is not None or is_given(recipe, "roles.solver.prompt")
    if named is not None and prompt is None and role.prompt == SOLVE_FULL and (named, steps or TAGS) != (TAGS, TAGS):
        prompt = solve_own(named, steps)
    alike = [name for name, one in recipe.roles.items() if one.parse is role.parse and _asks_plainly(one)]
    settings = role_settings(alike, prompt=prompt, answer=named, steps=steps)
    if named is not None or steps is not None:
        settings += _other_role_settings(recipe, named or role.answer, steps)
    known_format = is_package_model(recipe, role) or _tied_to_tags(recipe)
    looks = answer == AUTO or (not known_format and (look if named else not is_given(recipe, "roles.solver.answer")))
    if not looks:
        return settings, None
    probed_role = override(recipe, settings).roles["solver"]
    reading = probe_answers(
        recipe, probed_role, tasks or probe_tasks(recipe), fixed=fixed, named=named, device=device, say=say
    )
    settings += changed_settings(alike, probed_role, reading, ("prompt", "answer", "steps"))
    return [*settings, *_other_role_settings(recipe, reading.answer, reading.steps)], reading


def _other_role_settings(recipe: Recipe, answer: str, steps: str | None) -> list[str]:
    """Settings of roles that are shown more than the problem, such as a refiner, and write solutions too: in the same
    form."""
    own = (answer, steps or TAGS) != (TAGS, TAGS)
    asks = {n: ask_own(r.prompt, answer, steps) for n, r in recipe.roles.items() if own and _asks_for_tags(r)}
    return [s for n, prompt in asks.items() for s in role_settings([n], prompt=prompt, answer=answer, steps=steps)]


def _asks_for_tags(role: Role) -> bool:
    return role.parse is parse_solution and not _asks_plainly(role) and IN_TAGS in role.prompt


def _asks_plainly(role: Role) -> bool:
    """Whether it is told the problem and nothing else."""
    return fields_of(role.prompt) == {"problem"}


def _check_flags(recipe: Recipe, answer: str | None, prompt: str | None, steps: str | None) -> None:
    if prompt is not None and fields_of(prompt) != {"problem"}:
        marks = ", ".join(sorted(fields_of(prompt))) or "none"
        raise ConfigError(f"--prompt: expected a text with the one mark {{problem}}, found the marks {marks}")
    if steps is not None:
        check_steps(steps)
    if answer is not None and answer != AUTO:
        check_answer(answer)
    further = [
        n for n, r in recipe.roles.items() if _asks_for_tags(r) or (_is_program_solver(recipe, r) and _asks_plainly(r))
    ]
    if further and answer not in (None, AUTO, *ENDS):
        raise ConfigError(
            f"--answer {answer}: recipe {recipe.name!r} has solutions written in the role {further[0]!r} too, and a "
            f"pattern does not say how; expected one of {', '.join(ENDS)}"
        )
    others = [f"--answer {answer}"] if answer not in (None, AUTO, TAGS) else []
    others += [f"--steps-as {steps}"] if steps not in (None, TAGS) else []
    if others and _tied_to_tags(recipe):
        raise ConfigError(
            f"recipe {recipe.name!r} reads its solver's answers in tags alone; leave out {' and '.join(others)}, or "
            "teach the model the tags first: `cotrain sft --role solver`"
        )


def _tied_to_tags(recipe: Recipe) -> bool:
    """Whether solutions are gone on with from their beginnings, or graded in another way than by their answer."""
    kinds = ("programs", "verifiers", "openenv")
    asks = {SOLVE, SOLVE_FULL, recipe.roles["solver"].prompt}
    begins = [r for r in recipe.roles.values() if r.prompt in asks and r.parse is not parse_solution]
    return bool(begins) or recipe.tasks.describe().get("kind") in kinds


def _is_program_solver(recipe: Recipe, role: Role) -> bool:
    """Whether a program speaks in a role of solutions."""
    return role.parse is parse_solution and isinstance(recipe.policies[role.policy], Program)


def probe_answers(
    recipe: Recipe,
    role: Role,
    tasks: Sequence[Task],
    *,
    fixed: bool = False,
    named: str | None = None,
    device: str,
    say: Say,
) -> AnswerReading:
    """Ask the model itself, and choose. ``fixed``: with the prompt that the role has and no other. ``named``: the
    format that it is read in, chosen already. Solutions are cut as the role says, else as they are written. Raises
    ConfigError where most answers cannot be read and no format is named."""
    steps = role.steps
    say(f"asking {recipe.policies[role.policy].model} {len(tasks)} problems, to see how it answers …")
    player = player_factory(recipe, {role.policy}, what="answers", device=device, say=say)

    def answer_readings() -> Iterator[AnswerReading]:
        for prompt in [role.prompt] if fixed or named else [role.prompt, SOLVE_OWN["phrase"], SOLVE_BARE]:
            executor = player({"solver": replace(role, prompt=prompt)})
            episodes = executor.play(ask_solver, tasks, step=STEP, group_size=1)
            answers = [
                SampledAnswer(task=tasks[e.task], text=t.text, finish=t.finish) for e in episodes for t in e.traces
            ]
            formats = (TAGS, *CHOSEN) if fixed else (TAGS,) if prompt == role.prompt else CHOSEN
            best = most_read(read_answers(prompt, answer, answers, steps) for answer in ([named] if named else formats))
            unanswered = [
                executor.set_aside.get(e.task_id) or e.failure or "nothing was said" for e in episodes if not e.traces
            ]
            taken = [len(t.prompt_ids) + role.sampling.max_tokens for e in episodes for t in e.traces]
            context = context_of(recipe, role, executor)
            room = None if context is None or not taken else context - max(taken)
            yield replace(best, unanswered=unanswered, room=room)

    best = first_clear(answer_readings(), len(tasks))
    if steps is None and best.answer != TAGS:
        steps = steps_kind_of([one.text for one, found in zip(best.said, best.found, strict=True) if found])
        best = replace(best, found=read_answers(best.prompt, best.answer, best.said, steps).found, steps=steps)

    def refusal_text() -> str:
        renderer = player({}).renderers[role.policy]
        return answers_refusal(best, base=isinstance(renderer, Renderer) and not renderer.tokenizer.chat_template)

    report_choice(best, answer_lines(best), refusal_text, named=named is not None, say=say)
    return best


def read_answers(prompt: str, answer: str, said: Sequence[SampledAnswer], steps: str | None = None) -> AnswerReading:
    """What a format makes of these answers. One that was cut off has none."""
    solutions = []
    tagged = answer == TAGS and steps in (None, TAGS)
    for one in said:
        whole = one.finish == "stop" and len(one.text) <= MAX_CHARS
        parsed = (tagged_solution(one.text) if tagged else free_solution(one.text, answer, steps)) if whole else None
        solutions.append(parsed if isinstance(parsed, Solution) else None)
    return AnswerReading(prompt=prompt, answer=answer, steps=steps, said=said, found=solutions)


def answer_lines(reading: AnswerReading) -> list[str]:
    """The answers, each with what was read, and the choice in one line."""
    lines, right = [], 0
    for answer, solution in zip(reading.said, reading.found, strict=True):
        end = " ".join(answer.text.split())[-SHOWN:]
        grade = None if solution is None else answer.task.grade(solution.tagged or answer.text).value
        right += grade is True
        mark = "cut off" if answer.finish != "stop" else "unreadable" if solution is None else f"→ {solution.answer}"
        verdict = {True: ", right", False: ", wrong", None: ""}[grade]
        lines.append(f"  …{end!r} {mark}{verdict}")
    total = len(reading.said) + len(reading.unanswered)
    prompt_note = "as the recipe asks" if reading.prompt == SOLVE_FULL else f"asked {reading.prompt!r}"
    counts = [len(found.steps) for found in reading.found if found is not None]
    cut = ""
    if counts and reading.steps is not None:
        cut = f"; steps as {reading.steps}, {sum(counts) / len(counts):.1f} of an answer"
    lines.append(
        f"answers: {reading.answer} reads {reading.readable} of {total} ({right} right), {prompt_note}{cut}; "
        "--answer, --steps-as and --prompt choose otherwise"
    )
    return lines


def answers_refusal(reading: AnswerReading, *, base: bool = False) -> str:
    """Why the model cannot be trained as it is, and what would help. ``base``: it has no chat template."""
    total, cut = len(reading.said), sum(one.finish != "stop" for one in reading.said)
    unread, left = total - reading.readable, reading.unanswered
    limit = "--set roles.solver.sampling.max_tokens=N (of a suite --max-tokens N)"
    if left and len(left) >= total:
        todo = f": {limit}" if "max_tokens" in left[0] else ""
        return f"{len(left)} of {len(left) + total} problems got no answer: {left[0]}{todo}"
    if not total:
        return "no problem was there to be answered; give --data with training problems"
    if 2 * cut >= total:
        full = reading.room is not None and reading.room < MORE
        todo = ", and the model's context holds no longer ones; " if full else f"; raise their limit with {limit}, or "
        return (
            f"{cut} of {total} answers were cut off before they ended{todo}teach the model to end: "
            f"`cotrain sft --role solver`{BASE if base else ''}"
        )
    example = next(
        (" ".join(one.text.split())[-60:] for one, f in zip(reading.said, reading.found, strict=True) if not f), ""
    )
    return (
        f"{unread} of {total} answers cannot be read: …{example!r}; try --answer last-number, a --prompt FILE of your "
        f"own, or `cotrain sft --role solver` first{BASE if base else ''}"
    )
