import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from config import HttpSettings, Secret
from gateway.contract import Access, Caller, Route
from gateway.errors import Refused
from gateway.http.auth import Auth
from gateway.http.server import HttpServer
from tests.running import gatehouse, write_config

RELOADED = "Configuration reloaded. If a changed setting needs a restart, the log names it (`restart_needed`).\n"


async def accept() -> None:
    pass


async def refuse() -> None:
    raise Refused("providers.gpt.kind: 'openai' is not part of this version.")


def daemon(home: Path, reload: Callable[[], Awaitable[None]]) -> HttpServer:
    """Return all of a daemon that this command sees."""

    async def handle(_request: web.Request, _: Caller) -> web.StreamResponse:
        await reload()
        return web.json_response({})

    (home / "data").mkdir()
    return HttpServer(
        HttpSettings(),
        auth=Auth(Secret("a-token-nobody-uses")),
        routes=[Route(method="POST", path="/reload", access=Access.CONTROL, handle=handle)],
        control_path=home / "data/control.sock",
        listen=False,
    )


@pytest.mark.parametrize(
    ("reload", "code", "said"),
    [
        (accept, 0, RELOADED),
        (refuse, 1, "gatehouse: providers.gpt.kind: 'openai' is not part of this version.\n"),
    ],
)
async def test_prints_whether_the_reload_succeeded(
    tmp_path: Path, reload: Callable[[], Awaitable[None]], code: int, said: str
) -> None:
    write_config(tmp_path)
    async with daemon(tmp_path, reload):
        asked = await asyncio.to_thread(gatehouse, "reload", home=tmp_path)
    assert (asked.returncode, asked.stdout + asked.stderr) == (code, said)


def test_fails_if_no_gateway_is_running(tmp_path: Path) -> None:
    write_config(tmp_path)
    asked = gatehouse("reload", home=tmp_path)
    assert asked.returncode == 1
    assert "is not running" in asked.stderr


def test_names_the_mistake_in_the_configuration(tmp_path: Path) -> None:
    write_config(tmp_path, "[http]\nport = 'many'")
    asked = gatehouse("reload", home=tmp_path)
    assert asked.returncode == 78
    assert "http.port" in asked.stderr
