"""One instance of an environment class of OpenEnv, and what it observes.

OpenEnv's own server awaits a class's ``reset_async`` and ``step_async`` where the class has them, and else calls its
``reset`` and ``step`` in a thread. So does an ``Instance``, whose thread is its own: what the environment opened there,
such as a data base, it meets there again.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from cotrain.core.errors import ConfigError, UserError, install_extra

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observation after a reset or a step."""

    fields: dict[str, Any]
    reward: float | None  # None where it pays nothing at this step
    done: bool

    @property
    def texts(self) -> list[str]:
        """The names of the fields that hold a text."""
        return [name for name, value in self.fields.items() if isinstance(value, str) and value.strip()]

    def text_for_policy(self, field: str, beside: str) -> str:
        """The words that the policy is shown. ``field``: where they are, "" if nobody said so: then they are the only
        text but what stands in the field ``beside``, which holds the prompt and may do so in every observation. Where
        there is no such text all fields are shown, as JSON."""
        if field:
            value = self.fields.get(field, "")
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        texts = self.texts
        if len(texts) > 1:
            texts = [name for name in texts if name != beside]
        if len(texts) == 1:
            return str(self.fields[texts[0]])
        return json.dumps(self.fields, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The outcome of one call of a tool."""

    outcome: str  # "ok", or why it failed: a short phrase, by which calls are counted
    output: str  # the words that the policy is shown
    observed: Observed


class Instance:
    """An environment, made by its class without arguments between ``open`` and ``close``."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=kind.__name__)
        self._environment: Any = None

    async def open(self) -> None:
        """Make the environment."""
        try:
            self._environment = await self._in_thread(self._kind)
        except BaseException:
            self._thread.shutdown(wait=False)
            raise

    async def close(self) -> None:
        """Close it, and end its thread."""
        try:
            await self._in_thread(self._environment.close)
        finally:
            self._thread.shutdown(wait=False)

    async def reset(self, seed: int) -> Observed:
        """Begin the episode of this seed."""
        if self._is_async("reset_async"):
            return read_observation(await self._environment.reset_async(seed=seed))
        return read_observation(await self._in_thread(lambda: self._environment.reset(seed=seed)))

    async def step(self, action: Any) -> Observed:
        """Take one action, an object of the environment's own class."""
        return read_observation(await self._take(action))

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool, which is one step of the environment."""
        from openenv.core.env_server.mcp_types import CallToolAction

        observation = await self._take(CallToolAction(tool_name=name, arguments=arguments))
        error = getattr(observation, "error", None)
        if error is not None:
            reason = str(error.error_type.value).replace("_", " ")
            return CallResult(
                outcome=reason, output=f"({reason}) {error.message}", observed=read_observation(observation)
            )
        result = getattr(observation, "result", None)
        failed = bool(getattr(result, "is_error", False))
        outcome = "execution error" if failed else "ok"
        return CallResult(outcome=outcome, output=_result_text(result), observed=read_observation(observation))

    async def list_tools(self) -> tuple[list[Any], list[str]]:
        """The tools of the environment, each with name, description and input_schema, and the names of those that do
        not run in this process. Nothing, for an environment without tools."""
        from openenv.core.env_server.mcp_environment import MCPEnvironment
        from openenv.core.env_server.mcp_types import ListToolsAction

        if not isinstance(self._environment, MCPEnvironment):
            return [], []
        observation = await self._take(ListToolsAction())
        if "error" in observation.metadata:
            raise RuntimeError(observation.metadata["error"])
        functions = await self._in_thread(self._environment.get_callables)
        elsewhere = [tool.name for tool in observation.tools if tool.name not in functions]
        return list(observation.tools), elsewhere

    async def _take(self, action: Any) -> Any:
        if self._is_async("step_async"):
            return await self._environment.step_async(action)
        return await self._in_thread(lambda: self._environment.step(action))

    def _is_async(self, method: str) -> bool:
        """Whether the class has this method of its own, and not that of OpenEnv's base class."""
        from openenv.core.env_server.interfaces import Environment

        return getattr(self._kind, method) is not getattr(Environment, method)

    async def _in_thread(self, function: Callable[[], Value]) -> Value:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def read_observation(observation: Any) -> Observed:
    """An observation of OpenEnv, whose fields are those that its class adds; where these hold no text, its metadata."""
    fields = observation.model_dump(exclude={"reward", "done", "metadata"})
    reward = None if observation.reward is None else float(observation.reward)
    own = Observed(fields=fields, reward=reward, done=bool(observation.done))
    if own.texts:
        return own
    return Observed(fields={**fields, **observation.metadata}, reward=reward, done=own.done)


def _result_text(result: Any) -> str:
    """The result of a tool, as text: MCP's texts as they are, anything else as JSON."""
    if isinstance(result, str):
        return result
    contents = getattr(result, "content", None)
    if contents is None:
        return "" if result is None else json.dumps(result, ensure_ascii=False, default=str)
    return "\n".join(getattr(content, "text", f"({content.type})") for content in contents)


def run_now(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """The result of a coroutine, wherever it is asked for: in a thread and an event loop of its own."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, coroutine).result()


def require_openenv() -> None:
    """Raise UserError where OpenEnv is not installed."""
    try:
        import openenv.core.env_server.interfaces  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"openenv is not installed; run: {install_extra('openenv')}", code="E_OPENENV_NOT_INSTALLED"
        ) from error


def check_class(where: str, kind: Any) -> None:
    """Raise ConfigError for a class of which no instances can be run side by side in this process."""
    from openenv.core.env_server.interfaces import Environment

    if not issubclass(kind, Environment):
        is_client = hasattr(kind, "from_docker_image")
        if is_client:
            what = "is a client, whose environment runs in another process"
            instead = "name the class of the environment itself, or its server: openenv:http://HOST:PORT"
        else:
            what = "is no environment of OpenEnv"
            instead = "name a class that extends openenv.core.env_server.interfaces.Environment"
        raise ConfigError(f"{where} {what}; {instead}", code="E_NOT_OPENENV_CLASS")
    if not kind.SUPPORTS_CONCURRENT_SESSIONS:
        raise ConfigError(
            f"{where} does not allow several sessions at once, and the episodes of a step are run at once; set "
            "SUPPORTS_CONCURRENT_SESSIONS = True in the class, if its instances share nothing",
            code="E_ENVIRONMENT_NOT_CONCURRENT",
        )
    reset = kind.reset_async if kind.reset_async is not Environment.reset_async else kind.reset
    parameters = inspect.signature(reset).parameters.values()
    takes_seed = any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters)
    if not takes_seed:
        raise ConfigError(
            f"{where}: its reset takes no seed; a task source must repeat itself, so expected `def reset(self, "
            "seed=None, …)`",
            code="E_ENVIRONMENT_WITHOUT_SEED",
        )


def check_tools(where: str, elsewhere: Sequence[str]) -> None:
    """Raise ConfigError for tools that do not run in this process."""
    if elsewhere:
        raise ConfigError(
            f"{where}: its tool {elsewhere[0]!r} is no function of this process; only tools that run in this process "
            "can be called, so take it out, or write it as a function of the environment's own MCP server",
            code="E_ENVIRONMENT_TOOLS_ELSEWHERE",
        )
