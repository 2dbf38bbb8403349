"""Listens for NOTIFY in a thread with a connection of its own. Without it, nodes notice everything within a second."""

import asyncio
from collections.abc import Callable
from threading import Event, Thread

import structlog

from config import Settings
from gateway.aio import backoff_delays
from gateway.cluster.membership import CHANNEL
from gateway.database.postgres import connection_parameters

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_CHECK_INTERVAL = 1.0
"""Seconds after which the thread looks whether it has to end."""


class Listener:
    """Calls `wake` on the event loop with each notification, and with an empty text after each connect."""

    def __init__(self, settings: Settings, wake: Callable[[str], None]) -> None:
        url = settings.cluster.listen_url or settings.storage.url
        self._storage = settings.storage.model_copy(update={"url": url})
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._end = Event()
        self._thread = Thread(target=self._run, name="cluster-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread soon. Nothing waits for it."""
        self._end.set()

    def _run(self) -> None:
        delays = backoff_delays(first=0.2, cap=5.0)
        while not self._end.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - the next connection may work.
                log.debug("listener_lost", reason=str(error))
                self._end.wait(next(delays))

    def _listen(self) -> None:
        import psycopg  # noqa: PLC0415 - only gateways with PostgreSQL have it.

        parameters = connection_parameters(self._storage)
        with psycopg.connect("", autocommit=True, **parameters) as connection:  # type: ignore[arg-type]  # Of libpq.
            connection.execute(f"LISTEN {CHANNEL}")
            self._tell("")
            while not self._end.is_set():
                for notification in connection.notifies(timeout=_CHECK_INTERVAL):
                    self._tell(notification.payload)
                    if self._end.is_set():
                        return

    def _tell(self, payload: str) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, payload)
