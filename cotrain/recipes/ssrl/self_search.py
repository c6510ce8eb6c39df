"""A model that is its own search engine, and the real one in its place: the game of SSRL (arXiv 2508.10874).

::

    question     There are 5 more kites than pears. How many kites are there?
    answer       <search> pears</search><found> There are 16 pears.</found>     as often as it likes
                 <step> kites= pears+5=16+5=21 kites</step><answer>21</answer>

``searches="self"``: the policy writes all of it in one go, the information too. ``searches="real"``: its turn ends with
``</search>``, and the library of the task's world, or a ``search`` of your own, says what is between the next markers;
that is given, so it has neither credit nor loss. What the policy itself wrote as information is marked with the signal
``own_result``, and a recipe may leave it out of what is learned (``algorithms/advantage_edits.py: LeaveOut``). Left
out: thoughts, and passages of several sentences.
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
_PAIR = re.compile(r"<search>([^<]*)</search>\s*<found>([^<]*)</found>\s*")


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
    """One answer. Rewards: ``outcome`` 1 where it is right, ``format`` 1 where it can be read, has a search, and every
    search has its information. ``turns``: searches that the real engine answers, which is ``search`` or the task's
    world. Raises UnknownName for an engine."""
    turn = await play_answer(task, roles, roles.solver, searches, turns, search)
    if turn.failed:
        return
    chat = turn.chat
    for block in FOUND.finditer(chat.response_text):
        chat.reward(OWN, 1.0, span=Span(start=block.start(), end=block.end(), text=block.group()))
    right = CORRECT.require(turn)
    search_count = chat.response_text.count("<search>")
    paired = searches == "real" or (
        search_count == len(_PAIR.findall(chat.response_text)) == chat.response_text.count("<found>")
    )
    chat.reward(OUTCOME, float(right))
    chat.reward(FORMAT, float(turn.parsed.ok and search_count > 0 and paired))


async def play_answer(
    task: Task, roles: Roles, role: RoleHandle, searches: str, turns: int, search: Search | None = None
) -> Turn:
    """The last turn of an answer, examined; its conversation has all of it."""
    if searches not in ENGINES:
        raise UnknownName("searches", searches, ENGINES)
    chat = role.begin(problem=task.prompt)
    world = world_grader_of(task) if isinstance(task.grader, WorldGrader) else None

    async def look_up(query: str) -> str:
        if search is None:
            return world_grader_of(task).look_up(query)
        try:
            return " ".join(await ask_search(search, query.strip())) or UNKNOWN
        except AskFailed as error:
            raise ToolError(str(error)) from error

    turn = await (use_tools(chat, {"search": look_up}, form=SEARCHES, most=turns) if searches == "real" else chat.say())
    if await examine(task, roles, turn, text=without_searches(chat.response_text)) is None:
        return turn
    if world is None:
        return turn
    search_pairs = [(noun.strip(), said.strip()) for noun, said in _PAIR.findall(chat.response_text)]
    if search_pairs:
        turn.add_metadata(
            SUPPORTED, sum(world.look_up(noun) == said for noun, said in search_pairs) / len(search_pairs)
        )
    searched_nouns = {noun.strip() for noun in re.findall(r"<search>([^<]*)</search>", chat.response_text)}
    needed = {fact.target for fact in world.problem.facts[:-1]}
    turn.add_metadata(GATHERED, len(needed & searched_nouns) / len(needed))
    return turn


async def search_both_ways(task: Task, roles: Roles, *, turns: Positive = 4, search: Search | None = None) -> None:
    """To measure: the role ``solver`` is its own engine; ``grounded``, the same policy, has the real one."""
    await play_answer(task, roles, roles.solver, "self", turns)
    await play_answer(task, roles, roles.grounded, "real", turns, search)
