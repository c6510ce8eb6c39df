"""What the tests use of FastMCP 3: functions as tools, and a tool of another server."""

import inspect
from types import SimpleNamespace

TYPES = {int: "integer", str: "string"}


class FastMCP:
    def __init__(self, name):
        self.tools = {}

    def tool(self, function):
        self.tools[function.__name__] = SimpleNamespace(
            name=function.__name__, description=function.__doc__, inputSchema=schema_of(function), fn=function
        )
        return function

    def mount(self, other, namespace):
        """Its tools, which are asked for and not called as functions."""
        for name, tool in other.tools.items():
            tool = SimpleNamespace(
                name=f"{namespace}_{name}", description=tool.description, inputSchema=tool.inputSchema
            )
            self.tools[tool.name] = tool


def schema_of(function):
    parameters = inspect.signature(function, eval_str=True).parameters
    properties = {name: {"type": TYPES[one.annotation]} for name, one in parameters.items()}
    return {"type": "object", "properties": properties, "required": list(properties)}
