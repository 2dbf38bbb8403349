"""The SDK client of a provider: created off the event loop when it is first needed, shared, and closed after use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from config import ProviderSettings

if TYPE_CHECKING:
    from httpx2 import AsyncClient


class IsClosable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=IsClosable)


class SharedClient(Generic[C]):
    """Holds one client for all concurrent steps. `connect` imports the SDK, so it runs in a thread."""

    def __init__(self, connect: Callable[[], C]) -> None:
        self._connect = connect
        self._client: C | None = None
        self._opening = asyncio.Lock()
        self._users = 0
        self._is_retired = False

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[C]:
        """Lend the client for one step."""
        # A reload closes the client while steps may still use it:
        # 1. `aclose` marks it as retired, and closes it only if no step uses it.
        # 2. Otherwise the last step closes it here.
        # 3. A step that starts after that opens a new client, and closes that one as well.
        self._users += 1
        try:
            yield await self._opened()
        finally:
            self._users -= 1
            if self._is_retired:
                await self._close_if_unused()

    async def warm_up(self) -> None:
        if not self._is_retired:
            await self._opened()

    async def aclose(self) -> None:
        """Close the client, or let the last step that uses it do so. A later step opens a new client."""
        self._is_retired = True
        await self._close_if_unused()

    async def _opened(self) -> C:
        async with self._opening:  # Only one of several first steps creates the client.
            if self._client is None:
                self._client = await asyncio.to_thread(self._connect)
            return self._client

    async def _close_if_unused(self) -> None:
        if self._users == 0 and self._client is not None:
            client, self._client = self._client, None
            await client.close()


def http_client(settings: ProviderSettings) -> AsyncClient:
    """Create the HTTP client for an SDK.

    It uses no proxies from the environment and follows no redirects: the key goes only where the settings say.
    """
    import httpx2  # noqa: PLC0415 - as heavy as the SDKs, which depend on it.

    from gateway.agent.providers.aiohttp_transport import AiohttpTransport  # noqa: PLC0415 - imports httpx2 as well.

    return httpx2.AsyncClient(
        transport=AiohttpTransport(),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(settings.idle_timeout, connect=settings.connect_timeout),
    )
