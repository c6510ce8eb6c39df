"""Training conversations for a verifier: a solution as a run will show it, and a review with the true verdicts.

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
from functools import partial
from typing import Any, Literal

from cotrain.core.errors import DataError
from cotrain.core.types import Task
from cotrain.core.verbosity import ProgressPrinter
from cotrain.data.malformed_rows import Quarantine
from cotrain.data.processbench import FixedSolution, solution_of_row
from cotrain.formats.answers import final_answer
from cotrain.formats.free_verdicts import BOXED, WORDS, write_free_review
from cotrain.formats.role_prompts import REVIEW_FULL, REVIEW_OWN
from cotrain.formats.solutions import TAGS
from cotrain.pretraining.corpora import Corpus, Item, from_items, with_column_note
from cotrain.pretraining.solutions import CHUNK, in_chunks, lost_suffix, open_player, read_rows, why_lost
from cotrain.prompts.chat_template import Message
from cotrain.prompts.templates import fields_of, fill_template
from cotrain.rollout.fixed_solutions import judge_fields
from cotrain.rollout.judges import judge_role
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import fields_for, review
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import Roles, RolloutRunner
from cotrain.storage.kept_work import KeptWork

Form = Literal["steps", "genrm"]
FORMS: tuple[Form, ...] = ("steps", "genrm")
KeptReviews = dict[tuple[bool, str], Item]  # by the truth, and by the review's address or its solution's


def verifier_of(
    model: str, form: Form, max_tokens: int | None = None, verdict: str | None = None, prompt: str | None = None
) -> Role:
    """The role ``verifier`` as a run will have it, played by the policy "solver". ``verdict``, ``prompt``: how it is
    read and asked in the format "steps". Raises ConfigError for another format."""
    role = judge_role("solver", model, form)
    if prompt is None and verdict in REVIEW_OWN and role.prompt == REVIEW_FULL:
        prompt = REVIEW_OWN[str(verdict)]
    role = replace(role, prompt=prompt or role.prompt, verdict_format=verdict or TAGS)
    return role if max_tokens is None else replace(role, sampling=replace(role.sampling, max_tokens=max_tokens))


def gold_reviews(
    path: str, role: Role, form: Form, aside: Quarantine | None = None, *, say: Callable[[str], None]
) -> Corpus:
    """The file's own solutions and labels; those that the form of the verdict cannot say are left out, and told. Raises
    DataError with the layout expected, or sets such a row ``aside``."""

    answered = 0
    unread: list[tuple[str, ...]] = []

    def read_conversation(row: dict[str, Any], where: str) -> Item | None:
        nonlocal answered
        try:
            sample = solution_of_row(row, where, "")
            unread.append(sample.unread)
            answered += final_answer(sample.steps[-1]) is not None
            return _labelled_conversation(sample, role, form)
        except DataError as error:
            raise DataError(
                f"{error}; expected problem, steps and label, the first wrong step or -1", code=error.code
            ) from error

    conversations = read_rows(path, read_conversation, aside)
    items = [item for item in conversations if item is not None]
    if len(items) < len(conversations):
        lost = (
            f"{len(conversations) - len(items)} of {len(conversations)} labelled solutions are left out: the verdict "
            f"{role.verdict_format!r} cannot say that steps and answer differ"
        )
        if not items:
            raise DataError(f"{path}: {lost}; --verdict words says it", code="E_VERDICT_LOST")
        say(f"note: {lost}")
    if not answered:  # a run shows the answer behind the steps, and a verifier that never saw one is at a loss there
        say(f"note: {path}: no last step says its answer in tags, in a box or after ####, as solutions of a run do")
    return with_column_note(from_items(path, items), unread)


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
    work: KeptWork | None = None,
) -> tuple[Corpus, list[dict[str, Any]]]:
    """Reviews of ``samples`` own solutions of each problem, of which ``reviews`` are drawn (0: one is written from the
    truth), and the same as rows of ``messages``; ``work`` keeps each chunk of problems. Raises DataError where there is
    none of right, or none of wrong solutions."""
    roles_by_name = {"solver": solver, "verifier": verifier_of(model, form, max_tokens, verdict, prompt)}
    kept: KeptReviews = {}
    seen = {True: 0, False: 0}  # solutions that can be read
    lost = Counter[str]()

    opened = open_player(model, path, roles_by_name, device=device, seed=seed, aside=aside, say=say)
    with opened as (tasks, player):
        pace = ProgressPrinter(samples * len(tasks), "{} solutions drawn and reviewed", say)
        player.progress = lambda total: pace.add
        for start, chunk in in_chunks(tasks):
            make = partial(_review_chunk, player, chunk, form, reviews, step=-1 - start, samples=samples)
            found = make() if work is None else work.part(f"problems from {start}", make)
            for truth, address, conversation in found["kept"]:
                kept[truth, address] = conversation
            for truth in seen:
                seen[truth] += found["right" if truth else "wrong"]
            lost.update(found["lost"])
            kept_counts = {truth: sum(one is truth for one, _ in kept) for truth in seen}
            review_counts = f"{kept_counts[True]} and {kept_counts[False]} reviews of them are right"
            say(
                f"{min(start + CHUNK, len(tasks))} of {len(tasks)} problems answered: {seen[True]} right and "
                f"{seen[False]} wrong solutions, {review_counts}{lost_suffix(lost)}"
            )
    least = min(kept_counts.values())
    if not least:
        raise DataError(f"{path}: {_why_none(seen, kept_counts, reviews)}{lost_suffix(lost)}", code="E_NO_REVIEWS")
    by_address = {truth: [item for key, item in sorted(kept.items()) if key[0] is truth][:least] for truth in seen}
    items = [item for pair in zip(by_address[True], by_address[False], strict=True) for item in pair]
    return from_items(f"reviews of {path}", items), [{"messages": item} for item in items]


def _review_chunk(
    player: RolloutRunner, chunk: Sequence[Task], form: Form, reviews: int, *, step: int, samples: int
) -> dict[str, Any]:
    """Right reviews of solutions of these problems, each as the truth, its address and a conversation; how many
    solutions are right and wrong; and how many were lost, by reason."""
    kept: list[tuple[bool, str, Item]] = []
    seen = {True: 0, False: 0}
    lost = Counter[str]()

    async def play_episode(task: Task, roles: Roles) -> None:
        solution = await roles.solver(problem=task.prompt)
        truth = await examine(task, roles, solution)
        if truth is None or not solution.parsed.ok:
            return
        seen[truth] += 1
        if reviews:
            for turn in await review(task, roles, solution, n=reviews):
                if turn.parsed.ok and turn.parsed.final == truth:
                    kept.append((truth, turn.id, _with_reply(turn.chat.messages[:1], turn.text)))
            return
        text = _write_labelled_review(solution, truth, form, player.roles["verifier"])
        if text is not None:
            fields = fields_for(task, roles, roles.verifier, solution, solution.tagged_text)
            conversation = _with_reply(roles.verifier.begin(parent=solution, **fields).messages, text)
            kept.append((truth, solution.id, conversation))

    for episode in player.collect(play_episode, chunk, step=step, group_size=samples):
        lost.update(why_lost(episode))
    return {"kept": kept, "right": seen[True], "wrong": seen[False], "lost": dict(lost)}


def _why_none(solution_counts: dict[bool, int], review_counts: dict[bool, int], reviews: int) -> str:
    """What is missing, and what would help."""
    kinds = {True: "right", False: "wrong"}
    for truth, other in ((True, "easier"), (False, "harder")):
        if not solution_counts[truth]:
            return f"none of the model's solutions is {kinds[truth]} and can be read; bring {other} problems"
    truth = not review_counts[True]
    missing = f"no review of a {kinds[truth]} solution is right and can be read"
    if reviews:
        return f"{missing}; --reviews 0 writes them from the truth"
    return f"{missing}: nobody knows which step is wrong; --judge genrm asks for the answer alone, or bring labels"


def _write_labelled_review(solution: Turn, truth: bool, form: Form, role: Role) -> str | None:
    if form == "genrm":
        return _verdict_tag(truth)
    count = len(solution.parsed.steps)
    return _review_text([truth] * count, truth, role) if truth or count == 1 else None


def _review_text(verdicts: Sequence[bool], final: bool, role: Role) -> str | None:
    """The review as the role is read: where its prompt names no count, of the answer alone."""
    answer_only = role.verdict_format in (WORDS, BOXED) and "count" not in fields_of(role.prompt)
    return write_free_review(role.verdict_format, [] if answer_only else verdicts, final)


def _labelled_conversation(sample: FixedSolution, role: Role, form: Form) -> Item | None:
    right = sample.label < 0 if sample.final_answer_correct is None else sample.final_answer_correct
    verdicts = [sample.label < 0 or k < sample.label for k in range(len(sample.steps))]
    text = _verdict_tag(right) if form == "genrm" else _review_text(verdicts, right, role)
    if text is None:
        return None
    prompt = fill_template(
        role.prompt, **role.prompt_fields(judge_fields(sample, guarded="nonce" in fields_of(role.prompt)))
    )
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]


def _with_reply(messages: Sequence[Message], text: str) -> Item:
    """What a role was told before it spoke, and what it is to say."""
    return [*({"role": m.role, "content": m.content} for m in messages), {"role": "assistant", "content": text}]


def _verdict_tag(right: bool) -> str:
    return f"<verdict>{'Yes' if right else 'No'}</verdict>"
