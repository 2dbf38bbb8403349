"""kill -9 over Telegram: the real daemon, with a fake Bot API server.

Every message is answered, or its sender is told why not. An answer is repeated only if the outcome of its send is
unknown, and is then marked. The channel comes back up each time.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.admin.client import ControlClient
from gateway.outbound.delivery import POSSIBLY_REPEATED
from tests.channels.telegram.bot_api import TEST_TIMEOUT, TOKEN, FakeBotApi, bot_api, visible
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons, daemons


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    api: FakeBotApi
    spec: DaemonSpec
    daemons: Daemons

    async def start(self) -> int:
        """Start a daemon, and wait until it polls."""
        polls = len(self.api.calls_of("getUpdates"))
        pid = await self.daemons.start(self.spec)
        await self.api.called("getUpdates", times=polls + 1)
        return pid

    async def kill(self, pid: int) -> None:
        assert await self.daemons.stop(pid, signal.SIGKILL) == -signal.SIGKILL

    async def finish(self, *words: str) -> list[str]:
        """Let one more daemon answer everything. Returns all answers once each of `words` is in one of them."""
        self.spec.gate.touch()
        pid = await self.start()
        while not all(any(word in text for text in self.shown()) for word in words):
            await self.api.called("sendMessage", times=len(self.api.calls_of("sendMessage")) + 1)
        await self.api.acknowledged()
        await self.is_ready()
        assert await self.daemons.stop(pid) == 0
        return self.shown()

    def shown(self) -> list[str]:
        return [visible(call.fields["text"]) for call in self.api.calls_of("sendMessage")]

    async def is_ready(self) -> None:
        """Check that `/readyz` says so: the channel polls, so it is up."""
        async with ControlClient(self.spec.data_dir) as control:
            assert (await control.get("/readyz"))["status"] == "ready"


@asynccontextmanager
async def staged(home: Path) -> AsyncIterator[Stage]:
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        bot_api() as api,
        daemons(imports=["channels.telegram"]) as forked,
    ):
        telegram: dict[str, object] = {"token": TOKEN, "api_base": api.url, "allow": [42]}
        yield Stage(api=api, spec=DaemonSpec(home=home, channels={"telegram": telegram}), daemons=forked)


async def test_killed_while_the_model_works_and_with_messages_waiting(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        pid = await stage.start()
        await stage.api.say("m1 slow")
        await stage.api.called("sendChatAction")
        for number in (2, 3, 4):
            await stage.api.say(f"m{number}")
        await stage.api.acknowledged()
        await stage.kill(pid)
        answers = await stage.finish("answer m4")
    assert [answer.split()[1] for answer in answers] == ["m1", "m2", "m3", "m4"]


async def test_killed_just_after_an_update_has_arrived(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        pid = await stage.start()
        polls = len(stage.api.calls_of("getUpdates"))
        await stage.api.say("m1")
        await stage.kill(pid)
        answers = await stage.finish("answer m1")
        assert len(stage.api.calls_of("getUpdates")) > polls
    assert len(answers) == 1 or (len(answers) == 2 and answers[1].startswith(POSSIBLY_REPEATED))


async def test_killed_while_a_send_is_in_flight(tmp_path: Path) -> None:
    """The fake has received the request, but the daemon cannot know that. So it sends the answer again, marked."""
    async with staged(tmp_path) as stage:
        pid = await stage.start()
        stage.api.held.add("sendMessage")
        await stage.api.say("m1")
        await stage.api.called("sendMessage")
        await stage.kill(pid)
        stage.api.held.clear()
        answers = await stage.finish(f"{POSSIBLY_REPEATED.strip()}")
    assert len(answers) == 2
    assert [answer.startswith(POSSIBLY_REPEATED) for answer in answers] == [False, True]
    assert all("answer m1" in answer for answer in answers)


async def test_killed_three_times_in_a_row(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for number in range(3):
            pid = await stage.start()
            await stage.api.say(f"m{number} {'slow' if number == 0 else ''}")
            await stage.api.called("sendChatAction", times=number + 1)
            await stage.api.acknowledged()
            await stage.kill(pid)
        answers = await stage.finish("crashed 3 times", "answer m1", "answer m2")
    assert len(answers) == 3
