"""The HTTP client for MCP servers that are reached by URL. It limits the size of each message that it reads."""

from collections.abc import AsyncIterator
from typing import cast

import httpx2

from config import McpSettings
from gateway.mcp.limits import TOO_LARGE

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_OVERLAP = 3
"""Bytes of the last chunk that may belong to the end of an event."""


class ResponseTooLarge(httpx2.SSEError, httpx2.StreamError):
    """The SDK fails only the request if it sees one of the base classes: the one in a stream, the other in a body."""


def open_http_client(settings: McpSettings) -> httpx2.AsyncClient:
    """Return a client that is not connected yet. The caller closes it."""
    headers = {name: secret.reveal() for name, secret in settings.headers.items()}
    return httpx2.AsyncClient(
        # The limit counts bytes as they are sent. A compressed body could be a thousand times as large.
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=httpx2.Timeout(settings.timeout),
        # Proxies from the environment are not used: the headers may contain a key.
        transport=_LimitedTransport(httpx2.AsyncHTTPTransport(trust_env=False), settings.max_result_bytes),
        trust_env=False,
    )


class _LimitedTransport(httpx2.AsyncBaseTransport):
    def __init__(self, transport: httpx2.AsyncHTTPTransport, limit: int) -> None:
        self._transport = transport
        self._limit = limit

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._transport.handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("it compresses its answers although it was asked not to")
        stream = cast("httpx2.AsyncByteStream", response.stream)
        is_event_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        response.stream = _LimitedStream(stream, self._limit, is_event_stream=is_event_stream)
        return response

    async def aclose(self) -> None:
        await self._transport.aclose()


class _LimitedStream(httpx2.AsyncByteStream):
    """Raises `ResponseTooLarge` when the body, or one event of an event stream, has more than `limit` bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, *, is_event_stream: bool) -> None:
        self._stream = stream
        self._limit = limit
        self._is_event_stream = is_event_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, last = 0, b""
        async for chunk in self._stream:
            size += len(chunk)
            if self._is_event_stream:
                seen = last + chunk
                end = max(seen.rfind(mark) + len(mark) if mark in seen else 0 for mark in _EVENT_ENDS)
                size = len(seen) - end if end else size
                last = seen[-_OVERLAP:]
            if size > self._limit:
                raise ResponseTooLarge(TOO_LARGE)
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()
