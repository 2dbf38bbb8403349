"""A server of the official SDK, run as a program of its own: `program.py`, or `program.py <port>` for HTTP."""

import asyncio
import os
import sys

from mcp.server.mcpserver import Context, MCPServer

app = MCPServer("sums")


@app.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@app.tool()
def refuse() -> str:
    """Fail."""
    raise ValueError("not today")


@app.tool()
def environment() -> str:
    """Tell what it was given."""
    return " ".join(sorted(f"{name}={value}" for name, value in os.environ.items()))


@app.tool()
async def headers(context: Context) -> str:
    """Tell who calls."""
    return str(dict(context.headers or {}).get("authorization"))


@app.tool()
def die() -> None:
    """End the program in the middle of a call."""
    sys.stderr.write("I have had enough\n")
    sys.stderr.flush()
    os._exit(3)


@app.tool()
async def hang() -> None:
    """Never answer."""
    await asyncio.sleep(3600)


@app.tool()
def letters(number: int) -> str:
    """Return a text of this length."""
    return "x" * number


@app.tool()
def daemonise(seconds: str) -> str:
    """Start a process that leaves the session, and whose parent ends."""
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.execvp("sleep", ["sleep", seconds])  # noqa: S606, S607 - a test program.
    os.wait()
    return "started"


if os.environ.get("HUGE_TOOL"):
    app.add_tool(lambda: "", name="huge", description="Has a large schema.")
    app._tool_manager._tools["huge"].parameters["description"] = "x" * int(os.environ["HUGE_TOOL"])  # noqa: SLF001


if len(sys.argv) > 1:
    app.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    app.run("stdio")
