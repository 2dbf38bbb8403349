"""The command line's way to a running daemon: HTTP over the Unix socket in the data directory."""

import contextlib
import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Self, cast

import aiohttp

from gateway.conversation import Json
from gateway.errors import GatehouseError, Refused
from gateway.http.server import CONTROL_NAME, short_socket_path

__all__ = ["ControlClient", "NotRunning", "is_running"]

REQUEST_TIMEOUT = 35.0
"""A little more than the daemon gives its own handlers."""
ORIGIN = "http://gatehouse"
"""The socket leads to one daemon only, so the name in the URL says nothing."""


class NotRunning(GatehouseError):
    """No daemon answers on this data directory."""


class ControlClient:
    """One client of the daemon that works on `data_dir`; use it as an async context manager.

    An error that the daemon answers with is raised as `Refused`, with its sentence.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._open = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as opening:
            try:
                path = opening.enter_context(short_socket_path(self._data_dir / CONTROL_NAME))
            except OSError as error:
                raise self._not_running() from error
            session = aiohttp.ClientSession(
                ORIGIN,
                connector=aiohttp.UnixConnector(path),
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT),
            )
            self._session = await opening.enter_async_context(session)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def get(self, path: str) -> dict[str, Json]:
        return await self._ask("GET", path, None, REQUEST_TIMEOUT)

    async def post(
        self, path: str, body: dict[str, Json] | None = None, *, patience: float = REQUEST_TIMEOUT
    ) -> dict[str, Json]:
        return await self._ask("POST", path, body or {}, patience)

    async def websocket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket, which the caller closes. What it carries has no deadline."""
        try:
            return await self._opened().ws_connect(path)
        except aiohttp.WSServerHandshakeError as error:
            raise Refused(f"The daemon refused {path} ({error.status}); is it of the same version?") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._not_running() from error

    async def _ask(self, method: str, path: str, body: dict[str, Json] | None, patience: float) -> dict[str, Json]:
        timeout = aiohttp.ClientTimeout(total=patience)
        try:
            async with self._opened().request(method, path, json=body, timeout=timeout) as response:
                answer = await response.read()
        except TimeoutError as error:
            raise Refused("The daemon did not answer in time; see its log.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._not_running() from error
        return _understand(answer)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("Control is used outside of its context.")
        return self._session

    def _not_running(self) -> NotRunning:
        return NotRunning(f"Gatehouse is not running on {self._data_dir}; start it with `gatehouse run`.")


def is_running(data_dir: Path) -> bool:
    """Tell whether a daemon is listening there. A socket left by a killed one refuses connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            with short_socket_path(data_dir / CONTROL_NAME) as path:
                probe.connect(path)
        except BlockingIOError:
            # Somebody listens, and is busy.
            return True
        except OSError:
            return False
    return True


def _understand(answer: bytes) -> dict[str, Json]:
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise Refused("The daemon's answer is not JSON; is it of the same version?") from error
    if isinstance(found, dict) and isinstance(found.get("error"), str):
        raise Refused(found["error"])
    return cast("dict[str, Json]", found)
