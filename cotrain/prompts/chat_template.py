"""A tokenizer's chat template: a stranger's program in Jinja, compiled by transformers and rendered here.

The text is a function of the conversation and of one moment. ``strftime_now`` tells the moment that
``ChatTemplate.now`` holds: of a run the one in which it was begun, so that a run that is resumed on another day sends
the same prompts. What else a template could take from outside is refused: random draws, and places in memory.

A template may also compute for ever, in loops or in one power of two numbers. So before it is trusted it is rendered in
a copy of this process, with little time and memory (``_try_template``). Left out: templates slow for some contents
only.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotrain.core.errors import ModelError

if TYPE_CHECKING:
    from jinja2 import Template
    from transformers import PreTrainedTokenizerBase

# -- Messages of a conversation, and what becomes of those that a chat template does not know.


TOOL_MARKERS = ("<tool_response>\n", "\n</tool_response>")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str  # "system", "user", "assistant", "tool" or "environment"
    content: str


def plainer_versions(messages: Sequence[Message], *, knows_tools: bool) -> Iterator[list[Message]]:
    """The same conversation in ever plainer roles, for a template to take the first that it can."""
    spoken = [Message("user", m.content) if m.role == "environment" else m for m in messages]
    if knows_tools or all(m.role != "tool" for m in spoken):
        yield spoken
    plain = [Message("user", m.content.join(TOOL_MARKERS)) if m.role == "tool" else m for m in spoken]
    yield plain
    yield _fold_roles(plain)


def _fold_roles(messages: Sequence[Message]) -> list[Message]:
    """System messages go in front of the first user message; neighbours of one role become one message."""
    system = [m.content for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    if system and all(m.role != "user" for m in others):
        others.insert(0, Message("user", "\n\n".join(system)))
        system = []
    folded: list[Message] = []
    for m in others:
        if m.role == "user" and system:
            m = Message("user", "\n\n".join([*system, m.content]))
            system = []
        if folded and folded[-1].role == m.role:
            m = Message(m.role, folded.pop().content + "\n\n" + m.content)
        folded.append(m)
    return folded


SECONDS = 1  # CPU seconds for a template's trial; a usual one takes a hundredth of one
MEMORY = 2**29  # bytes of its trial
LONGEST = 10**6  # characters that it may write around short messages
_PATIENCE = 60.0  # seconds by the clock, after which a trial says nothing
_PLACE = re.compile(r" at 0x[0-9a-f]{4,}>")  # in memory, where Python shows one
_TRIALS = ("u", "su", "ua", "sua", "uau", "uaua", "uauau")  # roles: system, user, assistant
_ROLES = {"s": "system", "u": "user", "a": "assistant"}

TemplateTurn = tuple[str, str]  # role, content


class ChatTemplate:
    """The template of one tokenizer."""

    def __init__(self, source: str, special: Mapping[str, str], *, tried: bool = False) -> None:
        """``special``: the tokenizer's special tokens by their names. Raises ModelError for a template that takes too
        long, unless it was ``tried`` before."""
        self.source, self._special = source, dict(special)
        self.now = datetime.now()
        self.tools: list[Any] | None = None  # functions to describe, as OpenAI's protocol has them
        wrong = "" if tried else _try_template(source, tuple(sorted(self._special.items())))
        if wrong:
            raise ModelError(
                f"the chat template {wrong} for a few short messages; give the model another one",
                code="E_CHAT_TEMPLATE_BAD",
            )

    @classmethod
    def from_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> ChatTemplate | None:
        """The one for conversations without tools; None where the tokenizer has none. Raises ModelError."""
        template: Any = tokenizer.chat_template
        if isinstance(template, Mapping) and template:
            if "default" not in template:
                names = ", ".join(sorted(map(str, template)))
                raise ModelError(
                    f"the tokenizer has chat templates of the names {names}, and none is called 'default'; name the "
                    "one to use so in its tokenizer_config.json",
                    code="E_CHAT_TEMPLATE_NO_DEFAULT",
                )
            template = template["default"]
        if not template:
            return None
        if not isinstance(template, str):
            raise ModelError(
                f"the tokenizer's chat_template is a {type(template).__name__}; expected a text",
                code="E_CHAT_TEMPLATE_NOT_TEXT",
            )
        return cls(template, tokenizer.special_tokens_map)

    def render(self, turns: Sequence[TemplateTurn], *, opening: bool, calls: Sequence[Any] = ()) -> str:
        """Render a conversation; models that can think are asked not to. ``opening``: up to the beginning of the
        assistant's next turn. ``calls``: of tools, in the last turn. Raises ModelError."""
        try:
            text = self._render_turns(turns, opening, calls)
        except Exception as error:  # a template is a program of a stranger and may raise anything
            raise ModelError(
                (str(error).strip() or type(error).__name__).splitlines()[0], code="E_CHAT_TEMPLATE_SYNTAX"
            ) from error
        if _PLACE.search(text) and not any(_PLACE.search(content) for _, content in turns):
            raise ModelError(
                "it shows a place in memory, which is another one in every process", code="E_CHAT_TEMPLATE_VARIES"
            )
        return text

    def _render_turns(self, turns: Sequence[TemplateTurn], opening: bool, calls: Sequence[Any] = ()) -> str:
        options: dict[str, Any] = {"enable_thinking": False} if "enable_thinking" in self.source else {}
        messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in turns]
        if calls:
            messages[-1]["tool_calls"] = list(calls)
        return _compile_template(self.source).render(
            **self._special,
            **options,
            messages=messages,
            tools=self.tools,
            documents=None,
            add_generation_prompt=opening,
            strftime_now=self._format_now,
        )

    def _format_now(self, form: str) -> str:
        return self.now.strftime(form.replace("%s", str(int(self.now.timestamp()))))


@functools.lru_cache(maxsize=32)
def _compile_template(source: str) -> Template:
    """As transformers compiles it, without what draws at random."""
    from transformers.utils import chat_template_utils

    # A template of our own, not one from its cache.
    compiled: Any = chat_template_utils._compile_jinja_template.__wrapped__(source)
    compiled.environment.filters["random"] = compiled.environment.globals["lipsum"] = _check_no_chance
    return compiled


def _check_no_chance(*given: Any, **named: Any) -> str:
    raise ValueError("it draws at random, so no run with it could be repeated")


@functools.lru_cache(maxsize=32)
def _try_template(source: str, special: tuple[tuple[str, str], ...]) -> str:
    """Compile and render a template in a copy of this process: what is wrong where that takes too much time or memory,
    or ends the process. Its other errors are raised when it is rendered here."""
    from transformers.utils import chat_template_utils  # noqa: F401  whose import is no part of the trial

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about fork with threads: the copy runs Python alone
        try:
            child = os.fork()
        except OSError:  # no more processes here: then there is no trial
            return ""
    if child == 0:
        _render_in_copy(source, special)
    status, deadline = None, time.monotonic() + _PATIENCE
    try:
        while status is None and time.monotonic() < deadline:
            ended_pid, child_status = os.waitpid(child, os.WNOHANG)
            status = child_status if ended_pid else None
            time.sleep(0.0 if ended_pid else 0.002)
    finally:
        if status is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    if code >= 0:
        return "takes too much memory, or writes too much text," if code else ""
    return f"takes more than {SECONDS} s" if -code in (signal.SIGXCPU, signal.SIGKILL) else f"ends by signal {-code}"


def _render_in_copy(source: str, special: tuple[tuple[str, str], ...]) -> None:
    """Never returns: the code with which the copy ends says what was found."""
    code = 1
    try:
        used_bytes = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY, used_bytes + MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        trial = ChatTemplate(source, dict(special), tried=True)
        longest = 0
        for roles in _TRIALS:
            turns = [(_ROLES[role], f"content {i}") for i, role in enumerate(roles)]
            for opening in (True, False):
                try:
                    longest = max(longest, len(trial._render_turns(turns, opening)))
                except MemoryError:
                    raise
                except Exception:  # noqa: BLE001  told by whoever renders it
                    continue
        code = int(longest > LONGEST)
    except MemoryError:
        code = 1
    except (OSError, ValueError):  # a system without these limits
        code = 0
    finally:
        os._exit(code)
