#!/usr/bin/env python3
"""An MCP server with the official Python SDK (`pip install "mcp>=2,<3"`): what is in stock.

A function becomes a tool: its name, its types and its first lines are what an agent is told. The text of a `ToolError`
reaches the agent, which reads it and tries again; of other exceptions it hears only that they were raised.
"""

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

STOCK = {"paper": 12, "ink": 3}

server = MCPServer("stock")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def count(item: str) -> int:
    """How many of an item are in stock."""
    if item not in STOCK:
        raise ToolError(f"there is no {item}; there are {', '.join(sorted(STOCK))}")
    return STOCK[item]


@server.tool()
def take(item: str, number: int = 1) -> str:
    """Takes items out of the stock."""
    left = count(item) - number
    if left < 0:
        raise ToolError(f"only {STOCK[item]} of {item} are left")
    STOCK[item] = left
    return f"{left} of {item} are left"


if __name__ == "__main__":
    server.run()
