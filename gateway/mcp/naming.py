"""What models call the tools of MCP servers: the server's name first, so that two servers never meet."""

import re
from hashlib import sha256

__all__ = ["server_of", "tool_name"]

SEPARATOR = "__"
_LONGEST = 64
"""Neither of the two big APIs takes a longer name, or other characters than these."""
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """Return `server__tool`. Where that has to be changed to be a name, a part of a hash keeps it apart from others."""
    plain = f"{server}{SEPARATOR}{tool}"
    name = _FORBIDDEN.sub("_", plain)
    if name == plain and len(name) <= _LONGEST:
        return name
    mark = sha256(plain.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: _LONGEST - len(mark) - 1]}-{mark}"


def server_of(name: str) -> str | None:
    """Return the server that a tool's name begins with, or None where it is no server's."""
    server, separator, _ = name.partition(SEPARATOR)
    return server if separator else None
