"""How a verifier's reviews are read, chosen before a run begins: by name, or by looking at a few reviews of the model
itself.

``choose_verdict_settings`` turns ``--verdict`` and ``--verifier-prompt`` into settings of the role ``verifier``, as
``answers.py`` does for the solver. With "auto" the model reviews up to ``PROBED`` solutions of the solver, those that
can be read: first as the recipe asks, in tags; where fewer than ``ENOUGH_READ`` of the reviews can be read, in words,
then in boxes. Where not half can be read in any way, the run does not begin. A form that is named is shown on the same
solutions, and not refused.

Left out: judges of other formats (``rollout/judges.py``), and those that judge reviews, which read tags.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cotrain.config.override import changed_settings, is_given, override, role_settings
from cotrain.config.recipe import Recipe
from cotrain.core.address import make_nonce
from cotrain.core.errors import ConfigError
from cotrain.core.types import Episode, Task
from cotrain.preflight.answers import AnswerFormat, AnswerReading
from cotrain.preflight.probing import (
    AUTO,
    STEP,
    Say,
    ask_solver,
    first_clear,
    is_package_model,
    player_factory,
    probe_tasks,
    report_choice,
)
from cotrain.rollout.executor import Executor, Roles
from cotrain.rollout.judges import guarded_fields as between_markers
from cotrain.rollout.role import Role
from cotrain.text.free_verdicts import BOXED, FORMS, WORDS, check_verdict
from cotrain.text.parsers import TAGS, Solution
from cotrain.text.prompts import fields_of
from cotrain.text.role_prompts import REVIEW, REVIEW_FULL, REVIEW_OWN

SHOWN = 110  # characters of the end of a review
MAY_ASK = frozenset({"problem", "solution", "count", "nonce"})  # marks of a verifier's prompt
NEEDED = frozenset({"problem", "solution"})
FREE = (WORDS, BOXED)  # forms that "auto" may take, beside tags
Solved = tuple[Task, Solution]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewReading:
    """What a form finds in the reviews to one way of asking."""

    prompt: str
    verdict: str
    texts: Sequence[str]
    finishes: Sequence[str]  # of each text, "stop" or "length"; "too long" for a prompt that does not fit
    parsed: Sequence[Any]  # what the reader made of each
    truths: Sequence[bool | None]  # is the solution right

    @property
    def total(self) -> int:
        return len(self.texts)

    @property
    def readable(self) -> int:
        return sum(one.ok for one in self.parsed)


def choose_verdict_settings(
    recipe: Recipe,
    answer_format: AnswerFormat,
    *,
    answer_reading: AnswerReading | None = None,
    device: str,
    say: Say,
    look: bool = True,
) -> list[str]:
    """Settings of the role ``verifier`` ("roles.verifier.verdict=…") and of all that judge as it does; [] where all
    stays as the recipe has it.

    ``answer_reading``: how the solver's answers are read, where that was looked at already. ``look``: False asks no
    model. Raises ConfigError where the recipe has no such role, for a prompt without problem and solution, and where
    "auto" cannot read half of the reviews.
    """
    verdict, prompt, role = answer_format.verdict, answer_format.verifier_prompt, recipe.roles.get("verifier")
    if role is None or not role.words:
        if verdict not in (None, AUTO, TAGS) or prompt is not None:
            raise ConfigError(
                f"recipe {recipe.name!r} has no role 'verifier' that reviews steps; leave out --verdict, "
                "--verifier-prompt"
            )
        return []
    _check_flags(recipe, role, verdict, prompt)
    named = None if verdict == AUTO else verdict
    fixed = prompt is not None or is_given(recipe, "roles.verifier.prompt")
    if named in REVIEW_OWN and not fixed and role.prompt in (REVIEW, REVIEW_FULL):
        prompt = REVIEW_OWN[str(named)]
    alike = [name for name, one in recipe.roles.items() if one.parse is role.parse and one.words]
    settings = role_settings(alike, prompt=prompt, verdict=named)
    is_chosen = verdict is None and is_given(recipe, "roles.verifier.verdict")
    if not look or is_chosen or is_package_model(recipe, role):
        return settings
    probed_role = override(recipe, settings).roles["verifier"]
    ways = [replace(probed_role, verdict=named or TAGS)]
    if named is None:
        ways += [
            replace(probed_role, verdict=f, prompt=probed_role.prompt if fixed else REVIEW_OWN[f])
            for f in _free_forms(recipe)
        ]
    best = probe_reviews(recipe, ways, answer_reading, named=named is not None, fixed=fixed, device=device, say=say)
    return settings if best is None else [*settings, *changed_settings(alike, probed_role, best, ("prompt", "verdict"))]


def _free_forms(recipe: Recipe) -> tuple[str, ...]:
    """The forms beside tags in which reviews may be written; () where another role is shown them."""
    return () if _shows_reviews(recipe) else FREE


def _check_flags(recipe: Recipe, role: Role, verdict: str | None, prompt: str | None) -> None:
    if prompt is not None:
        marks = fields_of(prompt)
        if not (marks >= NEEDED and marks <= MAY_ASK):
            raise ConfigError(
                f"--verifier-prompt: expected the marks {{problem}} and {{solution}}, and at most {{count}} and "
                f"{{nonce}}, found {', '.join(sorted(marks)) or 'none'}"
            )
    if verdict in (None, AUTO, TAGS):
        return
    assert verdict is not None
    check_verdict(verdict)
    if verdict not in FORMS and prompt is None and role.prompt in (REVIEW, REVIEW_FULL):
        raise ConfigError(f"--verdict {verdict}: nothing asks for it; add --verifier-prompt FILE with {{problem}}, "
                          "{solution}")  # fmt: skip
    if reader := _shows_reviews(recipe):
        raise ConfigError(
            f"recipe {recipe.name!r} shows reviews to its role {reader!r}, which reads them in tags; leave out "
            f"--verdict {verdict}"
        )


def _shows_reviews(recipe: Recipe) -> str | None:
    """The role that is shown what the verifier wrote."""
    return next((name for name, role in recipe.roles.items() if "review" in fields_of(role.prompt)), None)


def probe_reviews(
    recipe: Recipe,
    ways: Sequence[Role],
    answer_reading: AnswerReading | None,
    *,
    named: bool,
    fixed: bool,
    device: str,
    say: Say,
) -> ReviewReading | None:
    """Ask the model itself for reviews, in each of these ways until one can be read; None where there is no solution to
    review. ``fixed``: they differ in how the same reviews are read. Raises ConfigError where most cannot be read and no
    form is named."""
    role = ways[0]
    policies = {role.policy} | (
        {recipe.roles["solver"].policy} if answer_reading is None and "solver" in recipe.roles else set()
    )
    player = player_factory(recipe, policies, what="texts", device=device, say=say)
    solved = _readable_solutions(answer_reading) if answer_reading is not None else _sample_solutions(recipe, player)
    if not solved:
        say("note: no solution of the solver could be read, so no review was looked at")
        return None
    say(f"asking {recipe.policies[role.policy].model} for {len(solved)} reviews, to see how it judges …")
    ask = partial(_ask_review, given={task.id: solution for task, solution in solved})
    tasks = [task for task, _ in solved]

    def review_readings() -> Iterator[ReviewReading]:
        episodes: Sequence[Episode] = ()
        for asked in ways:
            if not (fixed and episodes):
                episodes = player({"verifier": asked}).play(ask, tasks, step=STEP, group_size=1)
            yield _read_reviews(asked, solved, episodes)

    best = first_clear(review_readings(), len(solved))

    def refusal_text() -> str:
        others = [form for form in _free_forms(recipe) if form not in [asked.verdict for asked in ways]]
        return reviews_refusal(best, others=others) + ("" if named else "; --verdict tags goes on all the same")

    report_choice(best, review_lines(best), refusal_text, named=named, say=say)
    return best


def _readable_solutions(seen: AnswerReading) -> list[Solved]:
    return [(one.task, found) for one, found in zip(seen.said, seen.found, strict=True) if found is not None]


def _sample_solutions(recipe: Recipe, player: Callable[[Mapping[str, Role]], Executor]) -> list[Solved]:
    """Solutions of the recipe's solver that can be read; [] where it is asked for something else than a problem."""
    role = recipe.roles.get("solver")
    if role is None or fields_of(role.prompt) != {"problem"}:
        return []
    tasks = probe_tasks(recipe)
    episodes = player({"solver": role}).play(ask_solver, tasks, step=STEP, group_size=1)
    found = [(tasks[e.task], role.parse_reply(t.text, {})) for e in episodes for t in e.traces]
    return [(task, solution) for task, solution in found if isinstance(solution, Solution)]


async def _ask_review(task: Task, roles: Roles, *, given: Mapping[str, Solution]) -> None:
    solution = given[task.id]
    text = _tagged_text(solution)
    guarded = "nonce" in roles.verifier.fields
    fields: dict[str, Any] = {"solution": text}
    if guarded:
        fields = {**between_markers(make_nonce(0, task.id), solution=text)}
    await roles.verifier(problem=task.prompt, count=len(solution.steps), **fields)


def _tagged_text(solution: Solution) -> str:
    if solution.tagged is not None:
        return solution.tagged
    return "".join(f"<step>{s.text}</step>" for s in solution.steps) + f"<answer>{solution.answer}</answer>"


def _read_reviews(role: Role, solved: Sequence[Solved], episodes: Sequence[Episode]) -> ReviewReading:
    texts, finishes, parsed = [], [], []
    for episode in episodes:
        _, solution = solved[episode.task]
        trace = next(iter(episode.traces), None)
        texts.append("" if trace is None else trace.text)
        finishes.append("too long" if trace is None else trace.finish)
        parsed.append(role.parse_reply(texts[-1], {"count": len(solution.steps)}))
    truths = [task.grade(_tagged_text(solution)).value for task, solution in solved]
    return ReviewReading(
        prompt=role.prompt, verdict=role.verdict, texts=texts, finishes=finishes, parsed=parsed, truths=truths
    )


def review_lines(reading: ReviewReading) -> list[str]:
    """The reviews, each with what was read, and the choice in one line."""
    lines, agreeing = [], 0
    for text, finish, verdict, truth in zip(
        reading.texts, reading.finishes, reading.parsed, reading.truths, strict=True
    ):
        end = " ".join(text.split())[-SHOWN:]
        if not verdict.ok:
            why = {"length": "cut off", "too long": "the prompt does not fit"}.get(finish, verdict.reason)
            lines.append(f"  …{end!r} unreadable: {why}")
            continue
        word = {True: "right", False: "wrong", None: "no verdict"}[verdict.final]
        agreeing += truth is not None and verdict.final is truth
        truth_note = {True: "in truth right", False: "in truth wrong", None: "not graded"}[truth]
        steps = f", steps {' '.join('✓' if ok else '✗' for ok in verdict.steps)}" if verdict.steps else ""
        lines.append(f"  …{end!r} → {word}{steps}; {truth_note}")
    prompt_note = "as the recipe asks" if reading.prompt in (REVIEW, REVIEW_FULL) else "asked in words of its own"
    lines.append(
        f"verdicts: {reading.verdict} reads {reading.readable} of {len(reading.texts)} reviews ({agreeing} agree with "
        f"the truth), {prompt_note}; --verdict and --verifier-prompt choose otherwise"
    )
    return lines


def reviews_refusal(reading: ReviewReading, *, others: Sequence[str]) -> str:
    """Why the verifier cannot be used as it is, and what would help. ``others``: forms that are worth a try."""
    total, unread = len(reading.texts), [i for i, one in enumerate(reading.parsed) if not one.ok]
    cut = sum(reading.finishes[i] == "length" for i in unread)
    teach = "or teach it: `cotrain sft --role verifier`"
    if reading.finishes.count("too long") * 2 >= total:
        return (
            f"{reading.finishes.count('too long')} of {total} prompts do not fit the context together with their "
            "review; lower --set roles.verifier.sampling.max_tokens=N, or shorten --verifier-prompt"
        )
    if 2 * cut >= total:
        return (
            f"{cut} of {total} reviews were cut off before their verdict; raise their limit with "
            f"--set roles.verifier.sampling.max_tokens=N, {teach}"
        )
    (most, _), *_ = Counter(reading.parsed[i].reason for i in unread).most_common()
    example = " ".join(reading.texts[unread[0]].split())[-60:]
    other = f"--verdict {others[0]}, " if others else ""
    return (
        f"{len(unread)} of {total} reviews cannot be read (most often: {most}): …{example!r}; try {other}a "
        f"--verifier-prompt FILE of your own, {teach}"
    )
