"""Problems whose prompt leaves no room in the model's context for an answer: found and set aside.

Such an episode fails with the reason "prompt too long" (``rollout/executor.py``), in training and in evaluation; here
they are named. Of a finite source the prompts of roles that are shown the problem alone are looked at before the first
step, as many as a moment's time allows. Left out: prompts that hold what other roles say, whose length nobody knows
beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from cotrain.config.evaluation import has_split
from cotrain.core.errors import TooLong
from cotrain.core.types import Task
from cotrain.engine.contract import as_serving_engine
from cotrain.text.chat_template import Message
from cotrain.text.prompts import fields_of, fill_template
from cotrain.train.trainer import CoTrainer

SECONDS = 3.0  # for looking
NAMED = 3  # problems in a line


def too_long_notes(trainer: CoTrainer) -> Iterator[str]:
    """A line for each split and role of which problems do not fit. Raises TooLong where no problem for training
    does."""
    until = time.monotonic() + SECONDS
    roles = [name for name, role in trainer.recipe.roles.items() if fields_of(role.prompt) == {"problem"}]
    splits = dict.fromkeys(["train", "test", "validation", *trainer.recipe.evaluation.splits])
    for split in splits:
        size = trainer.recipe.tasks.size(split) if has_split(trainer.recipe.tasks, split) else None
        wrong: dict[str, list[tuple[str, int]]] = {role: [] for role in roles}
        checked = 0
        while checked < (size or 0) and time.monotonic() < until:
            task = trainer.recipe.tasks.get(split, checked)
            checked += 1
            for role in roles:
                if (length := _length_if_too_long(trainer, role, task)) is not None:
                    wrong[role].append((task.id, length))
        for role, misfits in wrong.items():
            if misfits:
                line = _too_long_line(trainer, role, split, misfits, checked)
                if split == "train" and len(misfits) == size:
                    raise TooLong(
                        f"{line}; lower max_tokens with --set roles.{role}.sampling.max_tokens=N, or take a model "
                        "with a longer context"
                    )
                yield f"note: {line}; they are set aside"


def _length_if_too_long(trainer: CoTrainer, name: str, task: Task) -> int | None:
    """Tokens of a prompt that does not fit; None for one that does."""
    role = trainer.recipe.roles[name]
    handle = trainer.policies[role.policy]
    if not handle.spec.head or handle.renderer is None:  # a program, or somebody else's model
        return None
    system = [] if role.system is None else [Message("system", role.system)]
    length = len(handle.renderer.render([*system, Message("user", fill_template(role.prompt, problem=task.prompt))]))
    return (
        length if length + role.sampling.max_tokens > as_serving_engine(trainer.engine).context(role.policy) else None
    )


def _too_long_line(trainer: CoTrainer, name: str, split: str, found: list[tuple[str, int]], looked: int) -> str:
    role = trainer.recipe.roles[name]
    named = ", ".join(task for task, _ in found[:NAMED]) + (", …" if len(found) > NAMED else "")
    return (
        f"{len(found)} of {looked} problems of {split} do not fit role {name!r}: prompts of up to "
        f"{max(n for _, n in found)} tokens and max_tokens {role.sampling.max_tokens} exceed the context of "
        f"{as_serving_engine(trainer.engine).context(role.policy)} ({named})"
    )
