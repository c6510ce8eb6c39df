from enum import StrEnum
from typing import Any

from openenv.core.env_server.types import Action, Observation
from pydantic import BaseModel, Field


class Tool(BaseModel):
    name: str
    description: str
    input_schema: dict[str, Any]


class ToolErrorType(StrEnum):
    EXECUTION_ERROR = "execution_error"
    INVALID_ARGS = "invalid_args"


class ToolError(BaseModel):
    error_type: ToolErrorType
    message: str


class ListToolsAction(Action): ...


class CallToolAction(Action):
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ListToolsObservation(Observation):
    tools: list[Tool]


class CallToolObservation(Observation):
    tool_name: str
    result: Any = None
    error: ToolError | None = None
