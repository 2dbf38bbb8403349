"""A gateway whose agents ask a model that speaks the real wire format, from a server on this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.contract import Sender
from gateway.daemon import Daemon
from tests.agent.wire import OPENAI, Reply, WireServer, serving
from tests.daemon.harness import gateway, settings

ADA = Sender(id="ada", name="Ada")
SMALL = {"context_tokens": 8_000, "max_output_tokens": 2_000, "input_price": 1.0, "output_price": 10.0}
"""A request may have 5,700 tokens, and from 4,275 on the conversation is summed up."""


def modelled(folder: Path, server: WireServer, **tables: Any) -> Settings:  # noqa: ANN401 - tables of any shape.
    agents = {"main": {"provider": "house", "model": "small", "tools": []}, **tables.pop("agents", {})}
    provider = server.table(models={"small": SMALL, "other": {}})
    channels = {
        "web": {"enabled": False},
        "terminal": {"enabled": False},
        "loopback": {"dm_policy": "open", "group_policy": "open"},
    }
    # Replies are scripted in their order, so no session is archived between two messages.
    session = {"archive_to_memory": False, **tables.pop("session", {})}
    return settings(folder, providers={"house": provider}, agents=agents, channels=channels, session=session, **tables)


@asynccontextmanager
async def talking(
    folder: Path,
    *script: Reply,
    **tables: Any,  # noqa: ANN401 - as above.
) -> AsyncIterator[tuple[WireServer, LoopbackChannel, Daemon]]:
    async with serving(OPENAI, *script) as server, gateway(modelled(folder, server, **tables)) as (daemon, chat):
        yield server, chat, daemon


def said(server: WireServer, number: int = -1) -> list[str]:
    """Return the texts of a request, its system prompt first."""
    return [message["content"] for message in server.requests[number].body["messages"]]


def configured(folder: Path, server: WireServer, agent: dict[str, Any] | None = None, **table: object) -> Settings:
    main = {"provider": "fake", "model": "m", **(agent or {})}
    return settings(folder, providers={"fake": server.table(**table)}, agents={"main": main})
