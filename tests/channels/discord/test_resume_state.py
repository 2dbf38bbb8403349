"""The saved gateway session: what the next node resumes, and when it has to log in instead."""

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from channels.discord.gateway_connection import (
    LOGIN_WINDOW,
    MAX_LOGINS,
    DiscordGatewayConnection,
    LoginRateLimit,
)
from channels.discord.resume_state import SAVE_INTERVAL, GatewaySession, ResumeState
from config import Secret
from gateway.adapters.services import InMemoryStore
from gateway.contract import Notebook
from tests.channels.discord.fake_discord import TOKEN, FakeDiscord
from tests.channels.discord.harness import PulseRecorder
from tests.channels.harness import TEST_TIMEOUT

READY = {"session_id": "s1", "resume_gateway_url": "wss://gateway.test"}


@dataclass(slots=True)
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class CountingStore(InMemoryStore):
    writes = 0

    async def write(self, facts: Mapping[str, str | None]) -> None:
        self.writes += 1
        await super().write(facts)


def resume_state(notebook: Notebook, times: deque[float] | None = None, clock: Clock | None = None) -> ResumeState:
    clock = clock or Clock()
    times = deque[float]() if times is None else times
    return ResumeState(notebook, times, max_age=LOGIN_WINDOW, clock=clock, wall_clock=lambda: clock.now + 1e9)


async def loaded(notebook: Notebook) -> GatewaySession | None:
    state = resume_state(notebook)
    await state.load()
    return state.session


async def test_the_session_is_saved_at_intervals_and_at_the_end() -> None:
    notebook, clock = CountingStore(), Clock()
    state = resume_state(notebook, clock=clock)
    await state.handled("READY", READY, 1, is_complete=True)
    for number in range(2, 50):
        await state.handled("MESSAGE_CREATE", {}, number, is_complete=True)
    assert (await loaded(notebook)) == GatewaySession(id="s1", sequence=1, url="wss://gateway.test")
    clock.now += SAVE_INTERVAL + 1
    await state.handled("MESSAGE_CREATE", {}, 50, is_complete=True)
    await state.handled("MESSAGE_CREATE", {}, 51, is_complete=True)
    assert notebook.writes == 2
    await state.save(is_complete=True)
    assert (await loaded(notebook)) == GatewaySession(id="s1", sequence=51, url="wss://gateway.test")


async def test_a_session_is_not_resumed_while_missed_messages_are_unread() -> None:
    notebook = InMemoryStore()
    state = resume_state(notebook)
    await state.handled("READY", READY, 1, is_complete=True)
    await state.handled("MESSAGE_CREATE", {}, 2, is_complete=False)
    assert await loaded(notebook) is None
    await state.save(is_complete=False)
    assert await loaded(notebook) is None
    await state.handled("MESSAGE_CREATE", {}, 3, is_complete=True)
    assert (await loaded(notebook)) == GatewaySession(id="s1", sequence=3, url="wss://gateway.test")


async def test_a_login_ends_the_saved_session_and_counts_at_all_nodes() -> None:
    notebook, clock, times = InMemoryStore(), Clock(), deque[float]()
    state, limit = resume_state(notebook, times, clock), LoginRateLimit(times, clock)
    await state.handled("READY", READY, 1, is_complete=True)
    for _ in range(MAX_LOGINS):
        limit.count()
        await state.login()
        clock.now += 1
    assert await loaded(notebook) is None
    others = deque[float]()
    await resume_state(notebook, others, clock).load()
    assert LoginRateLimit(others, clock).delay() == LOGIN_WINDOW - MAX_LOGINS
    clock.now += LOGIN_WINDOW
    await resume_state(notebook, others, clock).load()
    assert LoginRateLimit(others, clock).is_first


async def test_the_bot_logs_in_if_the_host_of_its_session_is_gone(discord: FakeDiscord) -> None:
    notebook, pulse = InMemoryStore(), PulseRecorder()
    saved = {"id": "s0", "sequence": 7, "url": "ws://127.0.0.1:1/"}
    await notebook.write({"gateway_session": json.dumps(saved)})
    times = deque[float]()
    state = resume_state(notebook, times)
    await state.load()
    connection = DiscordGatewayConnection(
        discord.url, Secret(TOKEN), LoginRateLimit(times), pulse, sleep=lambda _: asyncio.sleep(0)
    )
    async with asyncio.timeout(TEST_TIMEOUT), connection.client as client, asyncio.TaskGroup() as tasks:
        await client.login(TOKEN)
        task = tasks.create_task(connection.run(lambda _event, _data, _sequence: None, state), name="gateway")
        await pulse.wait_for("up".__eq__)
        task.cancel()
    assert (len(discord.gateway.identifies), len(discord.gateway.resumed)) == (1, 0)
