"""Client of the daemon's control socket: HTTP over the Unix socket in the data directory."""

import contextlib
import json
import socket
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast
from urllib.parse import quote

import aiohttp

from gateway.conversation import Json
from gateway.errors import GatehouseError, Refused
from gateway.http.server import CONTROL_NAME, short_socket_path

UPLOAD_TIMEOUT = 600.0
REQUEST_TIMEOUT = 35.0
"""Slightly more than the daemon allows its own handlers, so that its error message arrives."""
ORIGIN = "http://gatehouse"
"""Any name would do: the socket leads to one daemon only."""


class NotRunning(GatehouseError):
    """No daemon answers on this data directory."""


class ControlClient:
    """A client of the daemon that works on `data_dir`. Use it as an async context manager.

    Raises `Refused` with the daemon's message if the daemon answers with an error, and `NotRunning` if it does not
    answer at all.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._open = contextlib.AsyncExitStack()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            try:
                path = stack.enter_context(short_socket_path(self._data_dir / CONTROL_NAME))
            except OSError as error:
                raise self._not_running() from error
            session = aiohttp.ClientSession(
                ORIGIN,
                connector=aiohttp.UnixConnector(path),
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT),
            )
            self._session = await stack.enter_async_context(session)
            self._open = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def get(self, path: str) -> dict[str, Json]:
        return await self._request("GET", path)

    async def post(
        self, path: str, body: dict[str, Json] | None = None, *, limit: float = REQUEST_TIMEOUT
    ) -> dict[str, Json]:
        return await self._request("POST", path, limit=limit, json=body or {})

    async def patch(self, path: str, body: dict[str, Json]) -> dict[str, Json]:
        return await self._request("PATCH", path, json=body)

    async def delete(self, path: str) -> dict[str, Json]:
        return await self._request("DELETE", path, json={})

    async def upload(self, name: str, content: BinaryIO | bytes) -> dict[str, Json]:
        """Store a file for a message. Returns the fields of its attachment."""
        headers = {"Content-Type": "application/octet-stream"}
        path = f"/files?name={quote(name)}"
        return await self._request("POST", path, limit=UPLOAD_TIMEOUT, data=content, headers=headers)

    async def websocket(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket, which the caller closes. Its frames have no deadline."""
        try:
            return await self._opened().ws_connect(path)
        except aiohttp.WSServerHandshakeError as error:
            if error.status in {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE}:
                # In a cluster, another node may be about to take over the conversation. It is worth another attempt.
                raise GatehouseError("The gateway can't serve this conversation right now.") from error
            raise Refused(
                f"The gateway refused {path} (HTTP status {error.status}). Is it the same version as this command?"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._not_running() from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        limit: float = REQUEST_TIMEOUT,
        **options: Any,  # noqa: ANN401  # Those of aiohttp.
    ) -> dict[str, Json]:
        timeout = aiohttp.ClientTimeout(total=limit)
        try:
            async with self._opened().request(method, path, timeout=timeout, **options) as response:
                content = await response.read()
        except TimeoutError as error:
            raise Refused("The gateway didn't answer in time. Check its log.") from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._not_running() from error
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise Refused("The gateway's answer is not JSON. Is it the same version as this command?") from error
        if isinstance(answer, dict):
            if isinstance(answer.get("error"), str):
                raise Refused(answer["error"])
            # A problem document of the API. A gateway that is not ready answers with 503 and its state.
            if response.status >= HTTPStatus.BAD_REQUEST and isinstance(answer.get("detail"), str):
                raise Refused(answer["detail"])
        return cast("dict[str, Json]", answer)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("ControlClient is used outside of its context.")
        return self._session

    def _not_running(self) -> NotRunning:
        return NotRunning(f"No gateway is running on {self._data_dir}. Start one with `gatehouse run`.")


def is_running(data_dir: Path) -> bool:
    """Return True if a daemon listens on the control socket. The socket of a killed daemon refuses connections."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            with short_socket_path(data_dir / CONTROL_NAME) as path:
                probe.connect(path)
        except BlockingIOError:
            return True  # The daemon listens, and its backlog is full.
        except OSError:
            return False
    return True
