from types import SimpleNamespace

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)


class MCPEnvironment(Environment):
    def __init__(self, mcp_server):
        self.server = mcp_server

    def get_callables(self):
        return {name: tool.fn for name, tool in self.server.tools.items() if hasattr(tool, "fn")}

    def step(self, action, timeout_s=None, **kwargs):
        raise NotImplementedError("step_async is asked, as by OpenEnv's server")

    async def step_async(self, action, timeout_s=None, **kwargs):
        if isinstance(action, ListToolsAction):
            tools = []
            for tool in self.server.tools.values():
                tools.append(Tool(name=tool.name, description=tool.description or "", input_schema=tool.inputSchema))
            return ListToolsObservation(tools=tools)
        if not isinstance(action, CallToolAction):
            return self._step_impl(action, timeout_s=timeout_s, **kwargs)

        def failed(kind, message):
            error = ToolError(error_type=kind, message=str(message))
            return CallToolObservation(tool_name=action.tool_name, error=error)

        tool = self.server.tools[action.tool_name]
        if action.arguments.keys() != set(tool.inputSchema["properties"]):
            return failed(ToolErrorType.INVALID_ARGS, "missing or unknown arguments")
        try:
            value = tool.fn(**action.arguments)
        except ValueError as error:
            return failed(ToolErrorType.EXECUTION_ERROR, error)
        content = [SimpleNamespace(type="text", text=str(value))]
        return CallToolObservation(tool_name=action.tool_name, result=SimpleNamespace(content=content, is_error=False))
