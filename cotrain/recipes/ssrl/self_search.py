"""The rollouts of SSRL (arXiv 2508.10874): a model that is its own search engine, or has a real one.

::

    question     There are 5 more kites than pears. How many kites are there?
    answer       <search> pears</search><found> There are 16 pears.</found>     any number of searches
                 <step> kites= pears+5=16+5=21 kites</step><answer>21</answer>

- ``searches="self"``: the policy writes all of this in one turn, with what the searches find. The signal
  ``own_result`` marks these blocks, so that a recipe can leave them out of the loss
  (``algorithms/advantage_edits.py: LeaveOut``).
- ``searches="real"``: the policy's turn ends at ``</search>``. The library of the task's world, or a ``search`` of the
  user's, writes the block that follows; its tokens are context, without advantage or loss.

Left out: thoughts, and passages of several sentences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from cotrain.core.arguments import Positive
from cotrain.core.errors import UnknownName
from cotrain.core.notes import CORRECT, GATHERED, Metadata
from cotrain.core.signals import FORMAT, OUTCOME, Signal, gives
from cotrain.core.types import ParseFailure, Span, Task
from cotrain.formats.role_replies import FOUND, searched_solution, without_searches
from cotrain.formats.solutions import Solution
from cotrain.recipes.ssrl.world import UNKNOWN, WorldGrader, world_grader_of
from cotrain.rollout.conversation import Conversation
from cotrain.rollout.protocols import examine
from cotrain.rollout.role import Turn
from cotrain.rollout.runner import RoleHandle, Roles
from cotrain.rollout.tools.calls import CallFormat, ToolError, tag_format, use_tools
from cotrain.rollout.tools.search import AskFailed, Search, ask_search

OWN = Signal("own_result", per="span", meaning="1 on what a policy wrote in the place of search results")
SUPPORTED = Metadata[float]("supported", float, "share of the information it wrote itself that the library holds")
ENGINES = ("self", "real")
_SEARCH = re.compile(r"<search>([^<]*)</search>")
_SEARCH_WITH_RESULT = re.compile(r"<search>([^<]*)</search>\s*<found>([^<]*)</found>\s*")


def _show_found(chat: Conversation, output: str, mark: str) -> None:
    chat.assistant(f"<found> {output.strip()}</found>")


SEARCHES = CallFormat(stop=("</search>",), read=tag_format("search", "found").read, show=_show_found)


def parse_searched(text: str, fields: Mapping[str, Any]) -> Solution | ParseFailure:
    return searched_solution(text)


@gives(OUTCOME.to("solver"), FORMAT.to("solver"), OWN.to("solver"))
async def search_within(
    task: Task,
    roles: Roles,
    *,
    searches: Literal["self", "real"] = "self",
    turns: Positive = 4,
    search: Search | None = None,
) -> None:
    """One answer. Its rewards are ``outcome``, 1 where it is right, and ``format``, 1 where it can be read, has a
    search, and every search has its result.

    ``turns``: searches that the real engine answers, at most. The real engine is ``search``, by default the task's
    world. Raises UnknownName for what ``searches`` cannot be.
    """
    turn = await play_answer(task, roles, roles.solver, searches, turns, search)
    if turn.failed:
        return

    chat = turn.chat
    text = chat.response_text
    for block in FOUND.finditer(text):
        chat.reward(OWN, 1.0, span=Span(start=block.start(), end=block.end(), text=block.group()))

    n_searches = text.count("<search>")
    n_results = text.count("<found>")
    n_pairs = len(_SEARCH_WITH_RESULT.findall(text))
    has_all_results = searches == "real" or n_searches == n_pairs == n_results
    chat.reward(OUTCOME, float(CORRECT.require(turn)))
    chat.reward(FORMAT, float(turn.parsed.ok and n_searches > 0 and has_all_results))


async def play_answer(
    task: Task, roles: Roles, role: RoleHandle, searches: str, turns: int, search: Search | None = None
) -> Turn:
    """The last turn of an answer, graded and examined. Its conversation (``Turn.chat``) holds the whole answer."""
    if searches not in ENGINES:
        raise UnknownName("searches", searches, ENGINES)
    chat = role.begin(problem=task.prompt)

    async def look_up(query: str) -> str:
        """The result of the real search engine."""
        if search is None:
            return world_grader_of(task).look_up(query)
        try:
            return " ".join(await ask_search(search, query.strip())) or UNKNOWN
        except AskFailed as error:
            raise ToolError(str(error)) from error

    if searches == "real":
        turn = await use_tools(chat, {"search": look_up}, form=SEARCHES, most=turns)
    else:
        turn = await chat.say()

    is_right = await examine(task, roles, turn, text=without_searches(chat.response_text))
    if is_right is not None and isinstance(task.grader, WorldGrader):
        _note_searches(turn, chat.response_text, task.grader)
    return turn


def _note_searches(turn: Turn, text: str, world: WorldGrader) -> None:
    """Record which share of an answer's search results the world's library agrees with, and which share of the needed
    facts was searched for."""
    pairs = [(noun.strip(), result.strip()) for noun, result in _SEARCH_WITH_RESULT.findall(text)]
    if pairs:
        n_supported = sum(world.look_up(noun) == result for noun, result in pairs)
        turn.add_metadata(SUPPORTED, n_supported / len(pairs))

    searched_nouns = {noun.strip() for noun in _SEARCH.findall(text)}
    *needed_facts, _ = world.problem.facts  # the last fact stands in the question
    needed_nouns = {fact.target for fact in needed_facts}
    turn.add_metadata(GATHERED, len(needed_nouns & searched_nouns) / len(needed_nouns))


async def search_both_ways(task: Task, roles: Roles, *, turns: Positive = 4, search: Search | None = None) -> None:
    """The evaluation: the role ``solver`` is its own engine; ``grounded``, the same policy, has the real one."""
    await play_answer(task, roles, roles.solver, "self", turns)
    await play_answer(task, roles, roles.grounded, "real", turns, search)
