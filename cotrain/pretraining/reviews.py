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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from cotrain.pretraining.solutions import CHUNK, in_chunks, lost_suffix, open_runner, read_rows, why_lost
from cotrain.prompts.chat_template import Message
from cotrain.prompts.templates import fields_of, fill_template
from cotrain.rollout.fixed_solutions import verifier_fields
from cotrain.rollout.protocols import examine
from cotrain.rollout.reviews import fields_for, review
from cotrain.rollout.role import Role, Turn
from cotrain.rollout.runner import JointProgress, Roles, RolloutRunner
from cotrain.rollout.verifier_roles import verifier_role
from cotrain.storage.kept_work import KeptWork

Form = Literal["steps", "genrm"]
FORMS: tuple[Form, ...] = ("steps", "genrm")
OwnReview = tuple[bool, str, Item]  # the truth, the address of the review or of its solution, the conversation


def verifier_of(
    model: str, form: Form, max_tokens: int | None = None, verdict: str | None = None, prompt: str | None = None
) -> Role:
    """The role ``verifier`` as a run will have it, of the policy "solver". ``verdict``, ``prompt``: how it is
    read and asked in the format "steps". Raises ConfigError for another format."""
    role = verifier_role("solver", model, form)
    if prompt is None and verdict in REVIEW_OWN and role.prompt == REVIEW_FULL:
        prompt = REVIEW_OWN[str(verdict)]
    role = replace(role, prompt=prompt or role.prompt, verdict_format=verdict or TAGS)
    return role if max_tokens is None else replace(role, sampling=replace(role.sampling, max_tokens=max_tokens))


def gold_reviews(
    path: str, role: Role, form: Form, aside: Quarantine | None = None, *, say: Callable[[str], None]
) -> Corpus:
    """The file's own solutions and labels; those that the form of the verdict cannot say are left out, and told. Raises
    DataError with the layout expected, or sets such a row ``aside``."""

    def read_conversation(row: dict[str, Any], where: str) -> LabelledReview:
        try:
            sample = solution_of_row(row, where, "")
            return LabelledReview(
                conversation=_labelled_conversation(sample, role, form),
                says_answer=final_answer(sample.steps[-1]) is not None,
                unread=sample.unread,
            )
        except DataError as error:
            raise DataError(
                f"{error}; expected problem, steps and label, the first wrong step or -1{_sampling_hint(row)}",
                code=error.code,
            ) from error

    rows = read_rows(path, read_conversation, aside)
    items = [row.conversation for row in rows if row.conversation is not None]
    if len(items) < len(rows):
        left_out = (
            f"{len(rows) - len(items)} of {len(rows)} labelled solutions are left out: the verdict "
            f"{role.verdict_format!r} cannot say that steps and answer differ"
        )
        if not items:
            raise DataError(f"{path}: {left_out}; --verdict words says it", code="E_VERDICT_LOST")
        say(f"note: {left_out}")
    # A run shows the answer behind the steps, and a verifier that never saw one is at a loss there.
    if not any(row.says_answer for row in rows):
        say(f"note: {path}: no last step says its answer in tags, in a box or after ####, as solutions of a run do")
    return with_column_note(from_items(path, items), [row.unread for row in rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledReview:
    """A row of labelled solutions as a verifier learns it."""

    conversation: Item | None  # None: the form of the verdict cannot say what its labels say
    says_answer: bool  # its last step says an answer
    unread: tuple[str, ...]  # columns that have a value and were not read


def _sampling_hint(row: Mapping[str, Any]) -> str:
    """The hint for a row that has no steps to review; "" for others."""
    return "" if "steps" in row else "; with problems and answers alone add --from-samples"


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
    reviews_of: dict[bool, dict[str, Item]] = {True: {}, False: {}}  # by the truth, then by address
    solution_counts = {True: 0, False: 0}  # readable solutions by their truth
    lost_reasons = Counter[str]()

    opened = open_runner(model, path, roles_by_name, device=device, seed=seed, aside=aside, say=say)
    with opened as (tasks, runner):
        pace = ProgressPrinter(samples * len(tasks), "{} solutions drawn and reviewed", say)
        runner.progress = JointProgress(pace)
        for start, chunk in in_chunks(tasks):
            make = partial(_review_chunk, runner, chunk, form, reviews, step=-1 - start, samples=samples)
            outcome = make() if work is None else work.part(f"problems from {start}", make)
            for truth, address, conversation in outcome["kept"]:
                reviews_of[truth][address] = conversation
            solution_counts[True] += outcome["right"]
            solution_counts[False] += outcome["wrong"]
            lost_reasons.update(outcome["lost"])

            answered = min(start + CHUNK, len(tasks))
            solution_text = f"{solution_counts[True]} right and {solution_counts[False]} wrong solutions"
            review_text = f"{len(reviews_of[True])} and {len(reviews_of[False])} reviews of them are right"
            lost_text = lost_suffix(lost_reasons)
            say(f"{answered} of {len(tasks)} problems answered: {solution_text}, {review_text}{lost_text}")

    review_counts = {truth: len(conversations) for truth, conversations in reviews_of.items()}
    count = min(review_counts.values())  # as many of right as of wrong solutions
    if not count:
        raise DataError(
            f"{path}: {_why_none(solution_counts, review_counts, reviews)}{lost_suffix(lost_reasons)}",
            code="E_NO_REVIEWS",
        )
    of_right = [conversation for _, conversation in sorted(reviews_of[True].items())][:count]
    of_wrong = [conversation for _, conversation in sorted(reviews_of[False].items())][:count]
    items = [item for pair in zip(of_right, of_wrong, strict=True) for item in pair]
    return from_items(f"reviews of {path}", items), [{"messages": item} for item in items]


def _review_chunk(
    runner: RolloutRunner, chunk: Sequence[Task], form: Form, reviews: int, *, step: int, samples: int
) -> dict[str, Any]:
    """Right reviews of solutions of these problems, each as the truth, its address and a conversation; how many
    solutions are right and wrong; and how many were lost, by reason."""
    own_reviews: list[OwnReview] = []
    solution_counts = {True: 0, False: 0}
    lost_reasons = Counter[str]()

    async def solve_and_review(task: Task, roles: Roles) -> None:
        solution = await roles.solver(problem=task.prompt)
        truth = await examine(task, roles, solution)
        if truth is None or not solution.parsed.ok:
            return
        solution_counts[truth] += 1
        if reviews:
            own_reviews.extend(await _right_reviews(task, roles, solution, truth, reviews))
        else:
            own_reviews.extend(_written_review(task, roles, solution, truth, form, runner.roles["verifier"]))

    for episode in runner.collect(solve_and_review, chunk, step=step, group_size=samples):
        lost_reasons.update(why_lost(episode))
    return {
        "kept": own_reviews,
        "right": solution_counts[True],
        "wrong": solution_counts[False],
        "lost": dict(lost_reasons),
    }


async def _right_reviews(task: Task, roles: Roles, solution: Turn, truth: bool, count: int) -> list[OwnReview]:
    """Draw ``count`` reviews of a solution and keep those whose final verdict is right."""
    turns = await review(task, roles, solution, n=count)
    right = [turn for turn in turns if turn.parsed.ok and turn.parsed.final == truth]
    return [(truth, turn.id, _with_reply(turn.chat.messages[:1], turn.text)) for turn in right]


def _written_review(task: Task, roles: Roles, solution: Turn, truth: bool, form: Form, role: Role) -> list[OwnReview]:
    """The review of a solution that is written from the truth; [] where nobody knows which step is wrong."""
    text = _write_labelled_review(solution, truth, form, role)
    if text is None:
        return []
    fields = fields_for(task, roles, roles.verifier, solution, solution.tagged_text)
    messages = roles.verifier.begin(parent=solution, **fields).messages
    return [(truth, solution.id, _with_reply(messages, text))]


def _why_none(solution_counts: dict[bool, int], review_counts: dict[bool, int], reviews: int) -> str:
    """Say which solutions or reviews are missing, and what would help."""
    kinds = {True: "right", False: "wrong"}
    for truth, other in ((True, "easier"), (False, "harder")):
        if not solution_counts[truth]:
            return f"none of the model's solutions is {kinds[truth]} and can be read; bring {other} problems"
    truth = not review_counts[True]
    missing = f"no review of a {kinds[truth]} solution is right and can be read"
    if reviews:
        return f"{missing}; --reviews 0 writes them from the truth"
    return (
        f"{missing}: nobody knows which step is wrong; --review-format genrm asks for the answer alone, or bring labels"
    )


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
        role.prompt, **role.prompt_fields(verifier_fields(sample, guarded="nonce" in fields_of(role.prompt)))
    )
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]


def _with_reply(messages: Sequence[Message], text: str) -> Item:
    """The messages before a role's reply, and the reply that it is to learn."""
    return [*({"role": m.role, "content": m.content} for m in messages), {"role": "assistant", "content": text}]


def _verdict_tag(right: bool) -> str:
    return f"<verdict>{'Yes' if right else 'No'}</verdict>"
