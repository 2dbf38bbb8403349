"""kill -9 over webhooks: the real daemon, whose answers go to a callback."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time

import aiohttp

from gateway.admin.client import ControlClient
from gateway.errors import GatehouseError
from tests.channels.webhook.harness import Receiver, callback, receiving, sign_standard
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import TIMEOUT, Daemons, daemons
from tests.polling import until


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    receiver: Receiver
    spec: DaemonSpec
    daemons: Daemons

    async def start(self) -> int:
        """Start a daemon, and wait until it takes calls."""
        pid = await self.daemons.start(self.spec)

        async def is_ready() -> bool:
            try:
                async with ControlClient(self.spec.data_dir) as control:
                    return (await control.get("/readyz"))["status"] == "ready"
            except GatehouseError:
                return False

        await until(is_ready)
        return pid

    async def kill(self, pid: int) -> None:
        assert await self.daemons.stop(pid, signal.SIGKILL) == -signal.SIGKILL

    async def call(self, delivery: str) -> tuple[int, str]:
        connector = aiohttp.UnixConnector(str(self.spec.data_dir / "control.sock"))
        headers = sign_standard(b"{}", delivery, time())
        async with (
            aiohttp.ClientSession("http://localhost", connector=connector) as session,
            session.post("/hooks/ci", data=b"{}", headers=headers) as response,
        ):
            return response.status, (await response.json())["status"]


@asynccontextmanager
async def staged(home: Path, *statuses: int, prompt: str) -> AsyncIterator[Stage]:
    async with (
        asyncio.timeout(TIMEOUT),
        receiving(*statuses) as receiver,
        daemons(imports=["channels.webhook"]) as forked,
    ):
        hooks = {"ci": callback(receiver, prompt=prompt)}
        spec = DaemonSpec(home=home, channels={"webhook": {"hooks": hooks}})
        yield Stage(receiver=receiver, spec=spec, daemons=forked)


async def test_an_accepted_call_is_answered_once_after_kill_9(tmp_path: Path) -> None:
    async with staged(tmp_path, prompt="m1 slow") as stage:
        pid = await stage.start()
        assert await stage.call("d1") == (202, "accepted")
        await stage.kill(pid)
        pid = await stage.start()
        assert await stage.call("d1") == (200, "duplicate")
        await stage.kill(pid)
        assert stage.receiver.received.empty()
        stage.spec.gate.touch()
        pid = await stage.start()
        got = await stage.receiver.next()
        assert await stage.call("d1") == (200, "duplicate")
        assert await stage.daemons.stop(pid) == 0
        assert stage.receiver.received.empty()
    assert got.data["data"] == {"hook": "ci", "delivery": "d1", "text": "answer m1 [] #"}


async def test_a_callback_that_failed_is_retried_with_the_same_id_after_kill_9(tmp_path: Path) -> None:
    async with staged(tmp_path, *[503] * 3, prompt="m1") as stage:
        stage.receiver.retry_after = "3600"
        pid = await stage.start()
        await stage.call("d1")
        first = await stage.receiver.next()
        await stage.kill(pid)
        stage.receiver.statuses.clear()
        pid = await stage.start()
        second = await stage.receiver.next()
        assert await stage.daemons.stop(pid) == 0
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.data == second.data
