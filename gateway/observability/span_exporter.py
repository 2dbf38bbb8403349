"""Sends finished spans to an OpenTelemetry collector, in batches. It is imported only if `tracing.endpoint` is set.

Nothing waits for it. While the collector is away, spans wait in memory, up to a limit; then the oldest are dropped.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus

import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector
from msgspec import Struct

from config import Settings
from config.secrets import Secret
from gateway import __version__
from gateway.agent.providers.http_session import system_certificates
from gateway.aio import backoff_delays
from gateway.metrics import Metrics
from gateway.observability.otlp import (
    CONTENT_TYPE,
    PATH,
    encode_request,
    encode_resource,
    encode_span,
    rejected_spans,
)
from gateway.safe_http.post import retry_after
from gateway.tracing import Span

log = structlog.get_logger()

BATCH_DELAY = 5.0
"""Seconds that the first span of a batch waits for others, unless the batch is full before."""
MAX_BATCH = 512
MAX_WAITING = 8192
"""Spans that wait for the collector. They take about 3 MB."""
REQUEST_TIMEOUT = 10.0
MAX_RETRY_DELAY = 60.0
MAX_ANSWER_BYTES = 65_536
EXPORTED, DROPPED, REJECTED = "exported", "dropped", "rejected"

_RETRIED = {
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
}
"""https://opentelemetry.io/docs/specs/otlp/#retryable-response-codes"""


class ExportFailed(Exception):
    """A batch has not arrived. The message is a sentence for the operator, without the headers of the request."""

    def __init__(self, reason: str, *, is_final: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.is_final = is_final
        """Whether the collector would refuse the same batch again."""
        self.retry_after = retry_after


class Collector(Struct, frozen=True, kw_only=True):
    """Where the spans go, and what they are about."""

    url: str
    headers: Mapping[str, Secret]
    resource: bytes

    @classmethod
    def of(cls, settings: Settings) -> "Collector":
        tracing = settings.tracing
        node = settings.cluster.name if settings.cluster.enabled else ""
        about = {
            "service.name": tracing.service_name,
            "service.version": __version__,
            "service.instance.id": node or socket.gethostname(),
        }
        # As in the official SDKs, the endpoint is the part before /v1/traces.
        endpoint = (tracing.endpoint or "").rstrip("/").removesuffix(PATH)
        return cls(url=f"{endpoint}{PATH}", headers=tracing.headers, resource=encode_resource(about))

    async def open_session(self) -> ClientSession:
        """Return a session for one after the other request. The caller closes it."""
        is_encrypted = self.url.startswith("https:")
        certificates = await asyncio.to_thread(system_certificates) if is_encrypted else True
        return ClientSession(
            connector=TCPConnector(limit=1, ssl=certificates),
            cookie_jar=DummyCookieJar(),
            headers={
                **{name: value.reveal() for name, value in self.headers.items()},
                "Content-Type": CONTENT_TYPE,
                "User-Agent": f"Gatehouse/{__version__}",
            },
            timeout=ClientTimeout(total=REQUEST_TIMEOUT),
        )

    async def post(self, session: ClientSession, spans: list[bytes]) -> int:
        """Send a batch. Return how many spans of it the collector has rejected. Raises `ExportFailed`."""
        body = encode_request(self.resource, spans, version=__version__)
        try:
            # The headers may have a key, so it goes only where the settings say.
            async with session.post(self.url, data=body, allow_redirects=False) as response:
                answer = await response.content.read(MAX_ANSWER_BYTES)
                status, wait = response.status, retry_after(response.headers.get("Retry-After", ""))
        except (ClientError, OSError, ValueError) as error:  # A TimeoutError is an OSError.
            raise ExportFailed(f"The collector cannot be reached ({type(error).__name__}).") from error
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return min(rejected_spans(answer), len(spans))
        reason = f"The collector has answered with status {status}."
        raise ExportFailed(reason, is_final=status not in _RETRIED, retry_after=wait)


class SpanExporter:
    """`add` is called from everywhere, and `run` is a task of the daemon."""

    def __init__(self, collector: Collector, metrics: Metrics, *, delay: float = BATCH_DELAY) -> None:
        self._collector = collector
        self._spans = metrics.spans
        self._delay = delay
        self._waiting: deque[bytes] = deque()
        self._has_spans = asyncio.Event()
        self._is_full = asyncio.Event()
        """Set while there are enough spans for a batch."""
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_ending = asyncio.Event()
        """Set from `flush` on: then nothing waits."""
        for outcome in (EXPORTED, DROPPED, REJECTED):
            self._spans[(outcome,)] += 0

    def add(self, span: Span) -> None:
        """Put a span into the queue. It neither waits nor raises."""
        try:
            encoded = encode_span(span)
        except Exception:  # A bug in a trace must not cost a person the answer.
            log.exception("span_invalid", name=span.name)
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self._spans[DROPPED,] += 1
        self._waiting.append(encoded)
        self._has_spans.set()
        self._is_idle.clear()
        if len(self._waiting) >= MAX_BATCH:
            self._is_full.set()

    async def run(self) -> None:
        """Send batches until cancelled. No failure of the collector ends it."""
        async with await self._collector.open_session() as session:
            while True:
                await self._has_spans.wait()
                if not self._is_ending.is_set():
                    await _wait(self._is_full, self._delay)
                await self._send(session, [self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH))])
                if len(self._waiting) < MAX_BATCH:
                    self._is_full.clear()
                if not self._waiting:
                    self._has_spans.clear()
                    self._is_idle.set()

    async def flush(self) -> None:
        """Send all spans that wait. If the collector is away, they are dropped. The caller sets the deadline."""
        self._is_ending.set()
        self._is_full.set()
        await self._is_idle.wait()

    async def _send(self, session: ClientSession, batch: list[bytes]) -> None:
        """Send a batch, and try again until it has arrived or cannot arrive."""
        delays, has_failed = backoff_delays(cap=MAX_RETRY_DELAY), False
        while True:
            try:
                rejected = await self._collector.post(session, batch)
            except ExportFailed as failure:
                if not has_failed:
                    log.warning("traces_not_exported", reason=str(failure), spans=len(batch))
                has_failed = True
                if self._is_ending.is_set():  # A shutdown does not wait for a collector that is away.
                    batch = [*batch, *self._waiting]
                    self._waiting.clear()
                if failure.is_final or self._is_ending.is_set():
                    self._spans[DROPPED,] += len(batch)
                    return
                await _wait(self._is_ending, min(max(next(delays), failure.retry_after or 0.0), MAX_RETRY_DELAY))
            else:
                if has_failed:
                    log.info("traces_exported_again", spans=len(batch))
                if rejected:
                    log.warning("spans_rejected", spans=rejected)
                self._spans[EXPORTED,] += len(batch) - rejected
                self._spans[REJECTED,] += rejected
                return


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, but not for longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
