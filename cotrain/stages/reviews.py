"""Conversations for a verifier: the solution as a run will show it, and a review whose verdict is the truth.

::

    {"problem", "steps": [text, …], "label": 2, "final_answer_correct": false}     (the layout of ProcessBench)

``label`` is the first wrong step, from 0, and −1 where all are right. The format has a verdict for each step, so those
behind the first wrong one are called wrong too; the label says nothing of them. What another form of a verdict cannot
say, such as a wrong answer without a wrong step in "first-wrong", is left out.

Or solutions are the model's own: it answers each problem several times, and each answer is graded. Its own reviews of
them are kept where their final verdict is right (rejection sampling, as in ``solutions.py``). A model that writes no
review that can be read has none to keep: with ``reviews=0`` they are written from the truth, verdicts without a
derivation. There all steps of a right solution are called right. A wrong solution of several steps, of which nobody
knows where it goes wrong, is left out in the format "steps"; in "genrm" the verdict is about the answer alone, so none
is.

As many right as wrong solutions are kept, so that the more frequent verdict is not what is learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from cotrain.core.errors import DataError
from cotrain.core.pace import Pace
from cotrain.core.types import Task
from cotrain.rollout.executor import Roles
from cotrain.rollout.fixed_solutions import asked_about
from cotrain.rollout.judges import judge
from cotrain.rollout.protocols import examine, fields_for, review
from cotrain.rollout.role import Role, Turn
from cotrain.stages.corpora import Corpus, Item, from_items
from cotrain.stages.solutions import CHUNK, asked_itself, in_chunks, rows_in, why_lost, without
from cotrain.tasks.processbench import Sample, sample_of
from cotrain.tasks.reading import Quarantine
from cotrain.text.free_verdicts import BOXED, TAGS, WORDS, written_review
from cotrain.text.messages import Message
from cotrain.text.prompts import REVIEW_FULL, REVIEW_OWN, fields_of, fill

Form = Literal["steps", "genrm"]
FORMS: tuple[Form, ...] = ("steps", "genrm")
Kept = dict[tuple[bool, str], Item]  # by the truth, and by the review's address or its solution's


def verifier_of(
    model: str, form: Form, max_tokens: int | None = None, verdict: str | None = None, prompt: str | None = None
) -> Role:
    """The role ``verifier`` as a run will have it, played by the policy "solver". ``verdict``, ``prompt``: how it is
    read and asked in the format "steps". Raises ConfigError for another format."""
    role = judge("solver", model, form)
    if prompt is None and verdict in REVIEW_OWN and role.prompt == REVIEW_FULL:
        prompt = REVIEW_OWN[str(verdict)]
    role = replace(role, prompt=prompt or role.prompt, verdict=verdict or TAGS)
    return role if max_tokens is None else replace(role, sampling=replace(role.sampling, max_tokens=max_tokens))


def gold_reviews(
    path: str, role: Role, form: Form, aside: Quarantine | None = None, *, say: Callable[[str], None]
) -> Corpus:
    """The file's own solutions and labels; those that the form of the verdict cannot say are left out, and told. Raises
    DataError with the layout expected, or sets such a row ``aside``."""

    def conversation(row: dict[str, Any], where: str) -> Item | None:
        try:
            return _labelled(sample_of(row, where, ""), role, form)
        except DataError as error:
            raise DataError(f"{error}; expected problem, steps and label, the first wrong step or -1") from error

    found = rows_in(path, conversation, aside)
    items = [item for item in found if item is not None]
    if len(items) < len(found):
        lost = (
            f"{len(found) - len(items)} of {len(found)} labelled solutions are left out: the verdict {role.verdict!r} "
            "cannot say that steps and answer differ"
        )
        if not items:
            raise DataError(f"{path}: {lost}; --verdict words says it")
        say(f"note: {lost}")
    return from_items(path, items)


def own_reviews(
    model: str,
    path: str,
    solver: Role,
    form: Form,
    *,
    samples: int,
    reviews: int,
    max_tokens: int | None = None,
    verdict: str | None = None,
    prompt: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    aside: Quarantine | None = None,
    say: Callable[[str], None],
) -> tuple[Corpus, list[dict[str, Any]]]:
    """Reviews of ``samples`` own solutions of each problem, of which ``reviews`` are drawn (0: one is written from the
    truth), and the same as rows of ``messages``. Raises DataError where there is none of right, or none of wrong
    solutions."""
    roles_of = {"solver": solver, "verifier": verifier_of(model, form, max_tokens, verdict, prompt)}
    kept: Kept = {}
    seen = {True: 0, False: 0}  # solutions that can be read
    lost = Counter[str]()

    async def play(task: Task, roles: Roles) -> None:
        solution = await roles.solver(problem=task.prompt)
        truth = await examine(task, roles, solution)
        if truth is None or not solution.parsed.ok:
            return
        seen[truth] += 1
        if reviews:
            for turn in await review(task, roles, solution, n=reviews):
                if turn.parsed.ok and turn.parsed.final == truth:
                    kept[truth, turn.id] = _answered(turn.chat.messages[:1], turn.text)
            return
        text = _written(solution, truth, form, roles_of["verifier"])
        if text is not None:
            told = fields_for(task, roles, roles.verifier, solution, solution.tagged)
            kept[truth, solution.id] = _answered(roles.verifier.begin(parent=solution, **told).messages, text)

    with asked_itself(model, path, roles_of, device=device, seed=seed, aside=aside) as (tasks, player):
        pace = Pace(samples * len(tasks), "{} solutions drawn and reviewed", say)
        player.watch = lambda total: pace.add
        for start, mine in in_chunks(tasks):
            for episode in player.play(play, mine, step=-1 - start, group_size=samples):
                lost.update(why_lost(episode))
            found = {truth: sum(one is truth for one, _ in kept) for truth in seen}
            judged = f"{found[True]} and {found[False]} reviews of them are right"
            say(
                f"{min(start + CHUNK, len(tasks))} of {len(tasks)} problems answered: {seen[True]} right and "
                f"{seen[False]} wrong solutions, {judged}{without(lost)}"
            )
    least = min(found.values())
    if not least:
        raise DataError(f"{path}: {_why(seen, found, reviews, form)}{without(lost)}")
    by_address = {truth: [item for key, item in sorted(kept.items()) if key[0] is truth][:least] for truth in seen}
    items = [item for pair in zip(by_address[True], by_address[False], strict=True) for item in pair]
    return from_items(f"reviews of {path}", items), [{"messages": item} for item in items]


def _why(seen: dict[bool, int], found: dict[bool, int], reviews: int, form: Form) -> str:
    """What is missing, and what would help."""
    kinds = {True: "right", False: "wrong"}
    for truth, other in ((True, "easier"), (False, "harder")):
        if not seen[truth]:
            return f"none of the model's solutions is {kinds[truth]} and can be read; bring {other} problems"
    truth = not found[True]
    missing = f"no review of a {kinds[truth]} solution is right and can be read"
    if reviews:
        return f"{missing}; --reviews 0 writes them from the truth"
    return f"{missing}: nobody knows which step is wrong; --judge genrm asks for the answer alone, or bring labels"


def _written(solution: Turn, truth: bool, form: Form, role: Role) -> str | None:
    if form == "genrm":
        return _verdict(truth)
    count = len(solution.parsed.steps)
    return _reviewed([truth] * count, truth, role) if truth or count == 1 else None


def _reviewed(verdicts: Sequence[bool], final: bool, role: Role) -> str | None:
    """The review as the role is read: where its prompt names no count, of the answer alone."""
    whole = role.verdict in (WORDS, BOXED) and "count" not in fields_of(role.prompt)
    return written_review(role.verdict, [] if whole else verdicts, final)


def _labelled(sample: Sample, role: Role, form: Form) -> Item | None:
    right = sample.label < 0 if sample.final_answer_correct is None else sample.final_answer_correct
    verdicts = [sample.label < 0 or k < sample.label for k in range(len(sample.steps))]
    text = _verdict(right) if form == "genrm" else _reviewed(verdicts, right, role)
    if text is None:
        return None
    prompt = fill(role.prompt, **role.told(asked_about(sample, guarded="nonce" in fields_of(role.prompt))))
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]


def _answered(told: Sequence[Message], text: str) -> Item:
    """What a role was told before it spoke, and what it is to say."""
    return [*({"role": m.role, "content": m.content} for m in told), {"role": "assistant", "content": text}]


def _verdict(right: bool) -> str:
    return f"<verdict>{'Yes' if right else 'No'}</verdict>"
