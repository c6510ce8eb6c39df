"""An environment of OpenEnv whose class is loaded into this process, as a task source of the recipe ``environment``:
``--tasks openenv:FILE.py:CLASS`` or ``openenv:PACKAGE.MODULE:CLASS``; needs ``pip install -e '.[openenv]'``.

A task is a seed. Its prompt is a text of what ``reset(seed=…)`` observes, and each of its episodes (``episode.py``) is
played in an instance of its own. Which text of an observation is the prompt, and which one of an action takes the
agent's words, is found where there is one text only, else named in the address::

    openenv:FILE.py:CLASS?prompt=question&action=answer&observation=feedback

The seed is a hash of (class, split, index, attempt). A prompt that a hash puts into another split is drawn again, so
that no prompt is in two splits. Where the class has ``FEW`` prompts or fewer, such as the rules of a game, splits
differ by their seeds alone, which a note says. The class must repeat itself for a seed, which is tried once.

The class is somebody's own code and runs in this process: install what you trust. Refused by name: clients of servers,
tools that do not run in this process, classes whose instances may not be played side by side.

Left out: arguments of the class (a subclass can give them), the lists of tasks that some classes have, time limits.
"""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cotrain.core.errors import ConfigError, DataError, UnknownName
from cotrain.core.seeding import seed_of
from cotrain.core.types import RolloutFn, Task
from cotrain.core.user_code import INTERRUPTS, class_target, failure_of, load_class
from cotrain.core.verbosity import count_of
from cotrain.data.files import SPLITS, split_of
from cotrain.envs.openenv.episode import SEAT, Interface, SeededEpisode, ToolTalk, make_openenv_protocol
from cotrain.envs.openenv.fields import answer_field, prompt_field, split_address
from cotrain.envs.openenv.instance import Instance, Observed, check_class, check_tools, require_openenv, run_now
from cotrain.envs.played import Compare
from cotrain.prompts.render import Rendering

Value = TypeVar("Value")
FEW = 20  # different prompts, up to which splits share them
TRIED = 60  # seeds with which prompts are counted
ATTEMPTS = 200  # seeds for one task


class OpenEnvEpisodes:
    """Tasks of the environment class ``target``, ``size`` in each split.

    ``fields``: names of fields, as in an address: "prompt", "action", "observation". Raises UserError when openenv is
    not installed, ConfigError for a class that cannot be played.
    """

    def __init__(self, target: str, size: int = 1000, fields: Mapping[str, str] | None = None) -> None:
        require_openenv()
        if size < 1:
            raise ConfigError(f"size must be at least 1, not {size}", code="E_TASKS_SIZE")
        place, named = split_address(target, ("prompt", "action", "observation"))
        named |= dict(fields or {})
        kind = load_class(place, f"openenv:{place}")
        path, _, class_name = place.rpartition(":")
        self.name = f"openenv:{Path(path).name}:{class_name}"  # wherever the file is
        check_class(self.name, kind)

        self._target = class_target(kind) or place
        self._size = size
        self._prompts: dict[tuple[str, int], tuple[int, str]] = {}  # (split, index) → seed and prompt
        self.interface = self._find_interface(kind, named)
        self._check_repeats()
        prompts = set(self._prompts_of(range(TRIED)))
        self._splits_share_prompts = len(prompts) <= FEW
        self.notes: list[str] = []
        if self._splits_share_prompts:
            self.notes.append(
                f"{self.name} has {count_of(len(prompts), 'prompt')} ({TRIED} seeds were tried), so its splits differ "
                "by their seeds alone"
            )

    # -- a task source

    def get(self, split: str, index: int) -> Task:
        """The task at an index. Raises UnknownName, IndexError, DataError where prompts are too few for the split."""
        if not 0 <= index < self.size(split):
            raise IndexError(f"{self.name}: no task {index} in split {split!r} of {self.size(split)}")
        if (split, index) not in self._prompts:
            self._prompts[split, index] = self._draw_prompt(split, index)
        seed, prompt = self._prompts[split, index]
        return Task(
            id=f"{self.name}/{split}/{index}",
            prompt=prompt,
            gold=None,
            solution=None,
            difficulty=0.0,
            grader=SeededEpisode(seed=seed),
            gradable=False,
        )

    def size(self, split: str) -> int:
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return self._size

    def describe(self) -> dict[str, Any]:
        """``OpenEnvEpisodes(**source.describe()["settings"])`` is this source, as long as the class is the same."""
        fields = {
            "prompt": self.interface.prompt,
            "action": self.interface.action,
            "observation": self.interface.observation,
        }
        return {"kind": "openenv_class", "settings": {"target": self._target, "size": self._size, "fields": fields}}

    # -- episodes

    def seats(self) -> Mapping[str, bool]:
        """Name of a seat → may it learn. There is one."""
        return {SEAT: True}

    def make_protocol(self, seats: Sequence[str], turns: int, compare: Compare) -> RolloutFn:
        """The protocol that plays an episode. ``compare`` is of no account: all episodes of a task begin with the same
        words."""
        return make_openenv_protocol(self.interface, turns)

    def check_can_call(self, renderer: Rendering) -> None:
        """Raise ConfigError for a model that cannot call the environment's tools; ``renderer`` is the model's."""
        if self.interface.tools:
            ToolTalk(self.interface, renderer)

    # -- inside

    def _find_interface(self, kind: type, named: Mapping[str, str]) -> Interface:
        async def list_and_reset(instance: Instance) -> tuple[list[Any], list[str], Observed]:
            tools, elsewhere = await instance.list_tools()
            return tools, elsewhere, await instance.reset(0)

        tools, elsewhere, first = self._ask_instance(kind, list_and_reset)
        check_tools(self.name, elsewhere)
        action_kind = action_class(kind)
        takes_text = action_kind is not None and (not tools or "action" in named)
        if not (takes_text or tools):
            raise ConfigError(
                f"{self.name}: its step does not say which action it takes; expected `def step(self, action: MyAction, "
                "…)`, or a class that extends Environment[MyAction, …]",
                code="E_ENVIRONMENT_ACTION",
            )
        action = ""
        if takes_text:
            action = answer_field(self.name, action_kind.model_json_schema(), named.get("action", ""))
        return Interface(
            name=self.name,
            kind=kind,
            prompt=prompt_field(self.name, first.fields, named.get("prompt", "")),
            observation=named.get("observation", ""),
            action_kind=action_kind if takes_text else None,
            action=action,
            tools=tools,
        )

    def _check_repeats(self) -> None:
        (first,) = self._prompts_of([0])
        (second,) = self._prompts_of([0])
        if first != second:
            raise ConfigError(
                f"{self.name}: two resets with seed 0 give two prompts; a task source must repeat itself",
                code="E_SOURCE_NOT_REPEATABLE",
            )

    def _draw_prompt(self, split: str, index: int) -> tuple[int, str]:
        """The seed of a task and its prompt."""
        for attempt in range(ATTEMPTS):
            seed = seed_of("openenv", self.name, split, index, attempt) % 2**31
            (prompt,) = self._prompts_of([seed])
            if self._splits_share_prompts or split_of(prompt) == split:
                return seed, prompt
        raise DataError(
            f"{self.name}: too few different prompts for a {split!r} split; does it make use of its seed?",
            code="E_TOO_FEW_QUESTIONS",
        )

    def _prompts_of(self, seeds: Iterable[int]) -> list[str]:
        """The prompts of these seeds, from one instance."""

        async def reset_to_each(instance: Instance) -> list[str]:
            return [self.interface.prompt_in(await instance.reset(seed)) for seed in seeds]

        return self._ask_instance(self.interface.kind, reset_to_each)

    def _ask_instance(self, kind: type, ask: Callable[[Instance], Awaitable[Value]]) -> Value:
        """Open an instance, and return what ``ask`` returns for it. Raises ConfigError for whatever the class
        raises."""

        async def open_and_ask() -> Value:
            instance = Instance(kind)
            await instance.open()
            try:
                return await ask(instance)
            finally:
                await instance.close()

        try:
            return run_now(open_and_ask())
        except INTERRUPTS:
            raise
        except BaseException as error:
            raise ConfigError(
                f"{self.name} cannot be reset: {failure_of(error)}", code="E_ENVIRONMENT_NOT_LOADED"
            ) from error


def action_class(kind: Any) -> Any:
    """The class of the actions that a class's own steps take: by the annotation of ``action`` in ``step``, else by the
    arguments of the base class, as in ``Environment[MyAction, …]``; without OpenEnv's own classes for tools. None where
    neither says one."""
    from openenv.core.env_server.types import Action

    named: list[Any] = []
    for method in (kind.step, getattr(kind, "_step_impl", None)):
        if method is not None:
            named.append(_hints_of(method).get("action"))
    for base in getattr(kind, "__orig_bases__", ()):
        named += typing.get_args(base)[:1]

    for candidate in named:
        for one in typing.get_args(candidate) or (candidate,):  # the members of a union
            is_own = (
                isinstance(one, type) and issubclass(one, Action) and not one.__module__.startswith("openenv.core.")
            )
            if is_own:
                return one
    return None


def _hints_of(method: Any) -> dict[str, Any]:
    """The annotations of a method; none where a name in them cannot be found."""
    try:
        return typing.get_type_hints(method)
    except (NameError, TypeError):
        return {}
