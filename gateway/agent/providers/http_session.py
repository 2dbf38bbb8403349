"""The HTTP session of a provider: opened when it is first needed, shared, and closed after use."""

import asyncio
import ssl
from functools import partial
from pathlib import Path

from aiohttp import ClientResponse, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from config import ProviderSettings

MAX_CONNECTIONS = 1000
"""Further requests wait. The limit on turns is much lower."""
KEEP_ALIVE = 60.0
MAX_HEADER_BYTES = 65_536
END_TIMEOUT = 0.1
"""Seconds until the end of a response must follow its last event. A connection that has not reached it is closed."""

_CA_FILES = (
    "/etc/ssl/cert.pem",
    "/etc/pki/tls/cert.pem",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/ca-bundle.pem",
)
"""Where systems keep their CA certificates. A Python that was built elsewhere may know only a place that is empty."""


class SharedSession:
    """Holds one session for all concurrent steps: `async with` lends it for one step.

    It uses no proxies from the environment: the key in `headers` goes only where the settings say.
    """

    def __init__(self, settings: ProviderSettings, headers: dict[str, str], *, is_encrypted: bool) -> None:
        self._settings = settings
        self._headers = headers
        self._is_encrypted = is_encrypted
        self._session: ClientSession | None = None
        self._opening = asyncio.Lock()
        self._users = 0
        self._is_retired = False
        self._unfinished: set[ClientResponse] = set()
        """Responses whose last event has arrived, but not their end."""

    async def __aenter__(self) -> ClientSession:
        # A reload closes the session while steps may still use it:
        # 1. `aclose` marks it as retired, and closes it only if no step uses it.
        # 2. Otherwise the last step closes it in `__aexit__`.
        # 3. A step that starts after that opens a new session, and closes that one as well.
        self._users += 1
        try:
            return self._session or await self._open()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._users -= 1
        if self._is_retired:
            await self._close_if_unused()

    def release(self, response: ClientResponse, *, is_complete: bool) -> None:
        """Return the connection to the pool. If the response was not read to its end, close the connection."""
        if not is_complete or response.content.is_eof():
            response.release()
            return
        # The end usually follows at once, and aiohttp returns the connection then. Nothing has to wait for it.
        self._unfinished.add(response)
        late = asyncio.get_running_loop().call_later(END_TIMEOUT, self._give_up, response)
        response.content.on_eof(late.cancel)
        response.content.on_eof(partial(self._unfinished.discard, response))

    async def warm_up(self) -> None:
        if not self._is_retired:
            async with self:  # If `aclose` is called in the meantime, this closes the session.
                pass

    async def aclose(self) -> None:
        """Close the session, or let the last step that uses it do so. A later step opens a new session."""
        self._is_retired = True
        await self._close_if_unused()

    async def _open(self) -> ClientSession:
        async with self._opening:  # Only one of several first steps opens the session.
            if self._session is None:
                settings = self._settings
                # Reading the certificates takes 40 ms.
                certificates = await asyncio.to_thread(system_certificates) if self._is_encrypted else True
                self._session = ClientSession(
                    connector=TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE, ssl=certificates),
                    headers=self._headers,
                    cookie_jar=DummyCookieJar(),
                    # aiohttp's `connect` includes the DNS lookup; its `sock_connect` would not.
                    timeout=ClientTimeout(connect=settings.connect_timeout, sock_read=settings.idle_timeout),
                    max_line_size=MAX_HEADER_BYTES,
                    max_field_size=MAX_HEADER_BYTES,
                )
            return self._session

    async def _close_if_unused(self) -> None:
        if self._users == 0 and self._session is not None:
            session, self._session = self._session, None
            for response in tuple(self._unfinished):
                self._give_up(response)
            await session.close()

    def _give_up(self, response: ClientResponse) -> None:
        self._unfinished.discard(response)
        response.release()


def system_certificates() -> ssl.SSLContext:
    """Return a context with the system's CA certificates. It ignores those that the environment names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    paths = ssl.get_default_verify_paths()
    files = [path for path in (paths.openssl_cafile, *_CA_FILES) if Path(path).is_file()]
    folder = paths.openssl_capath if Path(paths.openssl_capath).is_dir() else None
    if files or folder:
        context.load_verify_locations(files[0] if files else None, folder)
    return context
