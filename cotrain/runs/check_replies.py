"""Replies of a file that cannot be said in a model's tokens, found before a run begins.

A prompt of some models ends with a thought: open, so that a reply has to close it, or empty, so that a reply must not
begin another. A reply that does otherwise cannot follow its prompt (``prompts/render.py``). It is refused here, or with
``--lenient`` set aside, as ``cotrain sft`` does. Left out: replies that somebody writes while the run goes on.
"""

from __future__ import annotations

from collections.abc import Iterator

from cotrain.config.policies import Program
from cotrain.config.recipe import Recipe
from cotrain.core.errors import ModelError
from cotrain.core.types import has_split
from cotrain.data.preferences import Chats, ChatTask, messages_of
from cotrain.prompts.chat_template import Message
from cotrain.prompts.render import Renderer
from cotrain.runs.check_models import renderer_of

SPLITS = ("train", "validation", "test")


def refuse_or_set_aside_replies(recipe: Recipe) -> None:
    """Set the rows aside whose replies cannot follow their prompts, in the tokens of whoever learns them. Raises
    DataError where the data are not read leniently. No weights are loaded."""
    tasks = recipe.tasks
    if not isinstance(tasks, Chats):
        return
    reasons: dict[tuple[str, int], str] = {}
    for renderer in _renderers_of_given_replies(recipe):
        for split, index, task in _all_tasks(tasks):
            reason = _why_unsayable(task, renderer)
            if reason is not None:
                reasons[split, index] = reason
    tasks.set_aside(reasons)


def _all_tasks(tasks: Chats) -> Iterator[tuple[str, int, ChatTask]]:
    """Every task of a file, with its split and its place there."""
    for split in SPLITS:
        size = tasks.size(split) if has_split(tasks, split) else 0
        for index in range(size or 0):
            task = tasks.get(split, index)
            assert isinstance(task, ChatTask)
            yield split, index, task


def _renderers_of_given_replies(recipe: Recipe) -> list[Renderer]:
    """The renderers of programs that say a file's replies in a model's tokens, where its prompts end with a thought."""
    renderers = []
    for role in recipe.roles.values():
        policy = recipe.policies[role.policy]
        speaks_in_tokens = isinstance(policy, Program) and policy.tokens_of is not None
        if not speaks_in_tokens:
            continue
        renderer = renderer_of(role.policy, recipe.policies)
        if isinstance(renderer, Renderer) and renderer.ends_prompts_with_thoughts:
            renderers.append(renderer)
    return renderers


def _why_unsayable(task: ChatTask, renderer: Renderer) -> str | None:
    """Why one of a task's replies cannot follow its prompt; None where all can."""
    messages = messages_of(task) or [Message("user", task.prompt)]
    for reply in (task.solution, task.rejected):
        if reply is None:
            continue
        try:
            renderer.check_reply(reply, messages)
        except ModelError as error:
            return str(error)
    return None
