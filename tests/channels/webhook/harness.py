"""Senders that sign their calls as the real ones do, a receiver of callbacks, and a gateway with hooks."""

import asyncio
import hashlib
import hmac
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any
from uuid import uuid4

import aiohttp
from aiohttp import web

from channels.loopback import LoopbackChannel
from config import HttpSettings, Settings
from gateway.build import open_daemon
from gateway.daemon import Daemon
from tests.daemon.harness import DAEMON_TIMEOUT, Parrot, settings

KEY = b"0123456789abcdef0123456789abcdef"
SECRETS = {
    "standard": "whsec_" + b64encode(KEY).decode(),
    "github": "a-secret-that-github-knows",
    "gitlab": "a-secret-that-gitlab-knows",
    "stripe": "whsec_a-secret-that-stripe-knows",
    "slack": "a-secret-that-slack-knows-1234",
}
Headers = dict[str, str]


def digest(key: bytes, signed: bytes) -> bytes:
    return hmac.new(key, signed, hashlib.sha256).digest()


def sign_standard(body: bytes, delivery: str, at: float, key: bytes = KEY) -> Headers:
    signed = f"{delivery}.{int(at)}.".encode() + body
    signature = f"v1,{b64encode(digest(key, signed)).decode()}"
    return {"webhook-id": delivery, "webhook-timestamp": str(int(at)), "webhook-signature": signature}


def sign_github(body: bytes, delivery: str, _at: float) -> Headers:
    signature = digest(SECRETS["github"].encode(), body).hex()
    return {"X-Hub-Signature-256": f"sha256={signature}", "X-GitHub-Delivery": delivery}


def sign_gitlab(_body: bytes, delivery: str, _at: float) -> Headers:
    return {"X-Gitlab-Token": SECRETS["gitlab"], "Idempotency-Key": delivery, "X-Gitlab-Event-UUID": "e-1"}


def sign_stripe(body: bytes, _delivery: str, at: float) -> Headers:
    signature = digest(SECRETS["stripe"].encode(), f"{int(at)}.".encode() + body).hex()
    return {"Stripe-Signature": f"t={int(at)},v0={'0' * 64},v1={signature}"}


def sign_slack(body: bytes, _delivery: str, at: float) -> Headers:
    signature = digest(SECRETS["slack"].encode(), f"v0:{int(at)}:".encode() + body).hex()
    return {"X-Slack-Request-Timestamp": str(int(at)), "X-Slack-Signature": f"v0={signature}"}


SIGNERS: dict[str, Callable[[bytes, str, float], Headers]] = {
    "standard": sign_standard,
    "github": sign_github,
    "gitlab": sign_gitlab,
    "stripe": sign_stripe,
    "slack": sign_slack,
}
PRESETS = tuple(SIGNERS)


def hook(preset: str = "standard", **keys: Any) -> dict[str, Any]:  # noqa: ANN401 - of any shape.
    """Return the table of a hook."""
    return {"preset": preset, "secrets": [SECRETS[preset]], **keys}


def configured(folder: Path, hooks: dict[str, dict[str, object]], **tables: Any) -> Settings:  # noqa: ANN401 - any shape.
    channels = {
        "web": {"enabled": False},
        "terminal": {"enabled": False},
        "loopback": {"dm_policy": "open"},
        **tables.pop("channels", {}),
    }
    channels["webhook"] = {"hooks": hooks, **channels.get("webhook", {})}
    return settings(folder, channels=channels, **tables)


@dataclass
class Caller:
    """A program that calls hooks."""

    session: aiohttp.ClientSession
    preset: str = "standard"

    async def call(
        self,
        name: str,
        payload: object = None,
        *,
        delivery: str | None = None,
        at: float | None = None,
        body: bytes | None = None,
        headers: Headers | None = None,
        content_type: str = "application/json",
    ) -> tuple[int, dict[str, Any]]:
        """Call a hook, and return the status and the JSON of the response."""
        raw = json.dumps({} if payload is None else payload).encode() if body is None else body
        if headers is None:
            headers = SIGNERS[self.preset](raw, delivery or uuid4().hex, time() if at is None else at)
        headers = {"Content-Type": content_type, **headers}
        async with self.session.post(f"/hooks/{name}", data=raw, headers=headers) as response:
            if response.status >= 400:
                assert response.content_type == "application/problem+json"
            return response.status, await response.json(content_type=None)


@asynccontextmanager
async def listening(
    made: Settings,
    before: Callable[[Daemon], None] = Parrot.answering,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> AsyncIterator[tuple[Daemon, Caller]]:
    """Run a gateway that listens on a free port."""
    assert made.http == HttpSettings(port=0)
    async with (
        asyncio.timeout(DAEMON_TIMEOUT),
        open_daemon(made, now=now) as daemon,
        aiohttp.ClientSession(daemon.server.url) as session,
        asyncio.TaskGroup() as tasks,
    ):
        before(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        yield daemon, Caller(session)
        daemon.stop()


def chat_of(daemon: Daemon) -> LoopbackChannel:
    chat = daemon.channels.by_identity["loopback", "default"]
    assert isinstance(chat, LoopbackChannel)
    return chat


@dataclass
class Received:
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


@dataclass
class Receiver:
    """A server that gets callbacks. It answers with `statuses` first, and then with 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    retry_after: str = "0"
    received: asyncio.Queue[Received] = field(default_factory=asyncio.Queue)

    async def handle(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        await self.received.put(Received(headers, await request.read()))
        status = self.statuses.pop(0) if self.statuses else 204
        return web.Response(status=status, headers={"Retry-After": self.retry_after, "Location": "/elsewhere"})

    async def next(self) -> Received:
        async with asyncio.timeout(DAEMON_TIMEOUT):
            return await self.received.get()


@asynccontextmanager
async def receiving(*statuses: int, port: int = 0) -> AsyncIterator[Receiver]:
    receiver = Receiver(statuses=list(statuses))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", receiver.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield receiver
    finally:
        await runner.cleanup()


def callback(receiver: Receiver, **keys: Any) -> dict[str, Any]:  # noqa: ANN401 - of any shape.
    """Return the table of a hook whose answers go to `receiver`."""
    url = {} if "callback_field" in keys else {"callback_url": f"{receiver.url}/answers"}
    given: dict[str, Any] = {
        "answer": "callback",
        "callback_secret": SECRETS["standard"],
        "callback_hosts": ["127.0.0.1"],
        **url,
    }
    return hook(**{**given, **keys})
