"""The gateway connection under the real discord.py, against a gateway that misbehaves in every documented way."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from channels.discord.gateway_connection import (
    HEARTBEAT_SLACK,
    LOGIN_WINDOW,
    MAX_LOGINS,
    MAX_RECONNECT_DELAY,
    MAX_RESUMES,
    DiscordGatewayConnection,
    LoginRateLimit,
)
from config import Secret
from gateway.errors import AuthRejected
from tests.channels.discord.fake_discord import TOKEN, FakeDiscord
from tests.channels.discord.fake_gateway import INVALID, RECONNECT
from tests.channels.discord.harness import PulseRecorder
from tests.channels.harness import TEST_TIMEOUT

LONG_DELAY = 300.0


@dataclass(slots=True)
class Recorder:
    """Records the state, events and delays of a connection. Short delays take no time, long ones never end."""

    pulse: PulseRecorder = field(default_factory=PulseRecorder)
    events: list[str] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def on_event(self, event: str, data: dict[str, str], _sequence: int) -> None:
        if event == "MESSAGE_CREATE":
            self.events.append(data["content"])
            self.changed.set()

    async def sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await (asyncio.Event().wait() if seconds > LONG_DELAY else asyncio.sleep(0.001))


@asynccontextmanager
async def connecting(discord: FakeDiscord, *, hello_timeout: float = 20.0) -> AsyncIterator[Recorder]:
    recorder = Recorder()
    connection = DiscordGatewayConnection(
        discord.url,
        Secret(TOKEN),
        LoginRateLimit(deque()),
        recorder.pulse,
        hello_timeout=hello_timeout,
        sleep=recorder.sleep,
    )
    async with asyncio.timeout(TEST_TIMEOUT), connection.client as client, asyncio.TaskGroup() as tasks:
        await client.login(TOKEN)
        task = tasks.create_task(connection.run(recorder.on_event), name="gateway")
        yield recorder
        task.cancel()


@asynccontextmanager
async def connected(discord: FakeDiscord) -> AsyncIterator[Recorder]:
    async with connecting(discord) as recorder:
        await recorder.pulse.wait_for("up".__eq__)
        recorder.pulse.states.clear()
        yield recorder


async def say_and_receive(discord: FakeDiscord, recorder: Recorder, text: str) -> None:
    """Write a message as a person, and wait until the connection has received it."""
    await discord.say(text)
    while text not in recorder.events:
        recorder.changed.clear()
        await recorder.changed.wait()


async def test_a_reconnect_request_is_routine_and_loses_no_event(discord: FakeDiscord) -> None:
    async with connected(discord) as recorder:
        await discord.gateway.order(RECONNECT)
        await discord.say("missed")
        await discord.until(lambda: discord.gateway.resumed)
        await say_and_receive(discord, recorder, "after")
    assert recorder.events == ["missed", "after"]
    assert len(discord.gateway.identifies) == 1
    assert set(recorder.pulse.states) == {"up"}
    assert not recorder.delays


async def test_repeated_reconnect_requests_are_delayed(discord: FakeDiscord) -> None:
    async with connected(discord) as recorder:
        for time in range(1, 4):
            await discord.gateway.order(RECONNECT)
            await say_and_receive(discord, recorder, f"after {time}")
    assert (len(discord.gateway.resumed), len(recorder.delays)) == (3, 2)


@pytest.mark.parametrize("code", [None, 1000, 1006, 4000, 4009])
async def test_a_broken_connection_is_resumed_without_losing_events(discord: FakeDiscord, code: int | None) -> None:
    async with connected(discord) as recorder:
        await discord.gateway.cut(code=code)
        await discord.say("missed")
        await discord.until(lambda: discord.gateway.resumed)
        await say_and_receive(discord, recorder, "after")
    assert recorder.events == ["missed", "after"]
    assert len(discord.gateway.identifies) == 1


async def test_an_invalid_but_resumable_session_is_resumed(discord: FakeDiscord) -> None:
    async with connected(discord) as recorder:
        await discord.gateway.order(INVALID, data=True)
        await discord.until(lambda: discord.gateway.resumed)
        await say_and_receive(discord, recorder, "after")
    assert len(discord.gateway.identifies) == 1


async def test_an_invalid_session_leads_to_a_delayed_login(discord: FakeDiscord) -> None:
    async with connected(discord) as recorder:
        await discord.gateway.order(INVALID, data=False)
        await discord.until(lambda: len(discord.gateway.sessions) == 2)
        await say_and_receive(discord, recorder, "after")
    assert not discord.gateway.resumed
    assert any(1.0 <= delay <= 5.0 for delay in recorder.delays)


@pytest.mark.parametrize("answer", ["again", "never"])
async def test_after_failed_resumes_the_bot_logs_in_again(discord: FakeDiscord, answer: str) -> None:
    discord.gateway.resumes = lambda: answer
    async with connected(discord) as recorder:
        await discord.gateway.cut()
        await discord.until(lambda: len(discord.gateway.sessions) == 2)
        await say_and_receive(discord, recorder, "after")
    assert len(discord.gateway.resumed) == (MAX_RESUMES if answer == "again" else 1)
    assert len(discord.gateway.identifies) == 2


async def test_a_gateway_that_sends_no_hello_is_abandoned(discord: FakeDiscord) -> None:
    discord.gateway.says_hello = False
    async with connecting(discord, hello_timeout=0.05) as recorder:
        await discord.until(lambda: discord.gateway.connections >= 3)
        discord.gateway.says_hello = True
        await recorder.pulse.wait_for("up".__eq__)
        await say_and_receive(discord, recorder, "hello")
    assert "didn't answer in time" in recorder.pulse.states[0]


async def test_a_connection_without_heartbeat_acks_is_abandoned_even_if_events_arrive(discord: FakeDiscord) -> None:
    discord.gateway.interval = 0.2
    async with connected(discord) as recorder:
        discord.gateway.acknowledges = False
        while not discord.gateway.resumed:
            await discord.say("still there")
            await asyncio.sleep(0.01)
        discord.gateway.acknowledges = True
        await say_and_receive(discord, recorder, "after")
    assert "didn't answer in time" in recorder.pulse.states[0]


def test_a_dead_connection_is_noticed_within_90_seconds() -> None:
    discords_heartbeat_interval = 41.25
    assert discords_heartbeat_interval * HEARTBEAT_SLACK < 90


async def test_an_unavailable_discord_is_retried_with_backoff(discord: FakeDiscord) -> None:
    discord.scripted["gateway"].extend([(503, {"message": "away"})] * 12)
    async with connecting(discord) as recorder:
        await recorder.pulse.wait_for("up".__eq__)
    delays = recorder.delays
    assert delays[0] <= 1.0 < delays[3]
    assert max(delays) <= MAX_RECONNECT_DELAY
    assert len(discord.gateway.identifies) == 1


async def test_the_bot_logs_in_at_most_twenty_times_an_hour(discord: FakeDiscord) -> None:
    discord.gateway.refusals.extend([4000] * (MAX_LOGINS + 5))
    async with connecting(discord) as recorder:
        await recorder.pulse.wait_for(lambda reason: "too often" in reason)
    assert len(discord.gateway.identifies) == MAX_LOGINS
    assert recorder.delays[-1] > LONG_DELAY


async def test_the_bot_waits_when_discord_allows_no_more_logins(discord: FakeDiscord) -> None:
    discord.remaining = 0
    async with connecting(discord) as recorder:
        await recorder.pulse.wait_for("up".__eq__)
    assert recorder.delays[0] == 1.0


@pytest.mark.parametrize("code", [4004, 4010, 4011, 4012, 4013, 4014])
async def test_a_fatal_close_code_raises_auth_rejected(discord: FakeDiscord, code: int) -> None:
    discord.gateway.refusals.append(code)
    with pytest.raises(ExceptionGroup) as ended:
        async with connecting(discord):
            await asyncio.Event().wait()
    assert ended.group_contains(AuthRejected)


def test_logins_are_counted_over_an_hour() -> None:
    now = 0.0
    limit = LoginRateLimit(deque(), clock=lambda: now)
    assert limit.is_first
    for _ in range(MAX_LOGINS):
        assert limit.delay() == 0
        limit.count()
        now += 1
    assert limit.delay() == LOGIN_WINDOW - MAX_LOGINS
    now = LOGIN_WINDOW
    assert limit.delay() == 0
