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
from tests.daemon_process import COMMAND, DEFAULTS, TIMEOUT, environment, gatehouse, running, write_config
from tests.forks.process import forked

Answer = dict[str, list[str]]
Reload = Callable[[], Awaitable[Answer]]


async def apply() -> Answer:
    return {"applied": ["http.token"], "restart_needed": []}


async def apply_nothing() -> Answer:
    return {"applied": [], "restart_needed": []}


async def apply_in_part() -> Answer:
    return {"applied": ["http.token"], "restart_needed": ["http.port", "channels.web.enabled"]}


async def refuse() -> Answer:
    raise Refused("providers.gpt.kind: 'openai' is not part of this version.")


def daemon(home: Path, reload: Reload) -> HttpServer:
    """Return all of a daemon that this command sees."""

    async def handle(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(await reload())

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
        (apply, 0, "Applied: http.token.\n"),
        (apply_nothing, 0, "Configuration reloaded. Nothing has changed.\n"),
        (
            apply_in_part,
            0,
            "Applied: http.token.\nNot applied until you restart the gateway: http.port, channels.web.enabled.\n",
        ),
        (refuse, 1, "gatehouse: providers.gpt.kind: 'openai' is not part of this version.\n"),
    ],
)
async def test_prints_the_outcome_of_the_reload(tmp_path: Path, reload: Reload, code: int, said: str) -> None:
    write_config(tmp_path)
    async with daemon(tmp_path, reload):
        asked = await asyncio.to_thread(gatehouse, "reload", home=tmp_path)
    assert (asked.returncode, asked.stdout + asked.stderr) == (code, said)


def test_fails_if_no_gateway_is_running(tmp_path: Path) -> None:
    write_config(tmp_path)
    asked = gatehouse("reload", home=tmp_path)
    assert asked.returncode == 1
    assert "No gateway is running" in asked.stderr


def test_names_the_mistake_in_the_configuration(tmp_path: Path) -> None:
    write_config(tmp_path, "[http]\nport = 'many'")
    asked = gatehouse("reload", home=tmp_path)
    assert asked.returncode == 78
    assert "http.port" in asked.stderr


def test_a_variable_that_only_this_shell_has_is_reported_as_missing_in_the_running_gateway(tmp_path: Path) -> None:
    with running(tmp_path):
        path = write_config(tmp_path, DEFAULTS + 'token = "env:WEB_TOKEN"\n')
        env = environment(tmp_path, {"WEB_TOKEN": "a-token-of-many-letters"})
        asked = forked([str(COMMAND), "reload"], cwd=tmp_path, env=env, stdin="", timeout=TIMEOUT)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == (
        f"gatehouse: {path}: 1 problem\n"
        "  http.token: `env:WEB_TOKEN` cannot be resolved: "
        "WEB_TOKEN is not set in the environment of the running gateway\n"
        "    restart the gateway with WEB_TOKEN set, since a reload cannot pass it on; or use `file:`\n"
    )
