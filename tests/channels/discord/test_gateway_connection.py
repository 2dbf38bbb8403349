"""The line to the gateway under the real discord.py, with everything that a gateway does to its bots."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from channels.discord.gateway_connection import AT_MOST, LONGEST_PAUSE, RESUMES, WINDOW, Client, Identifies, Line
from config import Secret
from gateway.errors import AuthRejected
from tests.channels.discord.gateway_sessions import INVALID, RECONNECT
from tests.channels.discord.harness import Beats
from tests.channels.discord.server import PATIENCE, TOKEN, FakeDiscord, discord_server

LONG = 300.0


@dataclass(slots=True)
class Held:
    """A line, what came over it, and how long it paused; it pauses in no time, but for very long pauses in none."""

    beats: Beats = field(default_factory=Beats)
    identifies: Identifies = field(default_factory=lambda: Identifies(deque()))
    events: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    line: Line | None = None
    hello_within: float = 20.0

    def hear(self, text: str) -> None:
        assert self.line is not None
        self.line.hear(text)

    def note(self, event: str, data: dict[str, str]) -> None:
        if event == "MESSAGE_CREATE":
            self.events.append(data["content"])
            self.changed.set()

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await (asyncio.Event().wait() if seconds > LONG else asyncio.sleep(0.001))


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with discord_server() as discord:
        yield discord


@asynccontextmanager
async def holding(discord: FakeDiscord, held: Held) -> AsyncIterator[Held]:
    async with asyncio.timeout(PATIENCE), Client(discord.url, held.hear) as client, asyncio.TaskGroup() as tasks:
        await client.login(TOKEN)
        held.line = Line(
            client,
            Secret(TOKEN),
            held.identifies,
            held.beats,
            held.note,
            hello_within=held.hello_within,
            sleep=held.sleep,
        )
        task = tasks.create_task(held.line.run(), name="line")
        yield held
        task.cancel()


@asynccontextmanager
async def up(discord: FakeDiscord) -> AsyncIterator[Held]:
    async with holding(discord, Held()) as held:
        await held.beats.wait_for("up".__eq__)
        held.beats.heard.clear()
        yield held


async def heard(discord: FakeDiscord, held: Held, text: str) -> None:
    """Have something said, and wait until it has come over the line."""
    await discord.say(text)
    while text not in held.events:
        held.changed.clear()
        await held.changed.wait()


async def test_the_wish_to_connect_anew_is_routine_and_costs_no_event(discord: FakeDiscord) -> None:
    async with up(discord) as held:
        await discord.gateway.order(RECONNECT)
        await discord.say("meanwhile")
        await discord.until(lambda: discord.gateway.resumed)
        await heard(discord, held, "after")
    assert held.events == ["meanwhile", "after"]
    assert len(discord.gateway.identifies) == 1
    assert set(held.beats.heard) == {"up"}
    assert not held.pauses


async def test_one_who_wishes_to_connect_anew_again_and_again_is_not_obeyed_at_once(discord: FakeDiscord) -> None:
    async with up(discord) as held:
        for time in range(1, 4):
            await discord.gateway.order(RECONNECT)
            await heard(discord, held, f"after {time}")
    assert (len(discord.gateway.resumed), len(held.pauses)) == (3, 2)


@pytest.mark.parametrize("code", [None, 1000, 1006, 4000, 4009])
async def test_a_line_that_breaks_is_taken_up_where_it_broke(discord: FakeDiscord, code: int | None) -> None:
    async with up(discord) as held:
        await discord.gateway.cut(code=code)
        await discord.say("meanwhile")
        await discord.until(lambda: discord.gateway.resumed)
        await heard(discord, held, "after")
    assert held.events == ["meanwhile", "after"]
    assert len(discord.gateway.identifies) == 1


async def test_a_session_that_may_be_resumed_is(discord: FakeDiscord) -> None:
    async with up(discord) as held:
        await discord.gateway.order(INVALID, data=True)
        await discord.until(lambda: discord.gateway.resumed)
        await heard(discord, held, "after")
    assert len(discord.gateway.identifies) == 1


async def test_a_session_that_is_over_is_begun_anew_after_a_while(discord: FakeDiscord) -> None:
    async with up(discord) as held:
        await discord.gateway.order(INVALID, data=False)
        await discord.until(lambda: len(discord.gateway.sessions) == 2)
        await heard(discord, held, "after")
    assert not discord.gateway.resumed
    assert any(1.0 <= pause <= 5.0 for pause in held.pauses)


@pytest.mark.parametrize("answer", ["again", "never"])
async def test_a_session_that_is_refused_again_and_again_is_begun_anew(discord: FakeDiscord, answer: str) -> None:
    discord.gateway.resumes = lambda: answer
    async with up(discord) as held:
        await discord.gateway.cut()
        await discord.until(lambda: len(discord.gateway.sessions) == 2)
        await heard(discord, held, "after")
    assert len(discord.gateway.resumed) == (RESUMES if answer == "again" else 1)
    assert len(discord.gateway.identifies) == 2


async def test_a_gateway_that_does_not_say_hello_is_left(discord: FakeDiscord) -> None:
    discord.gateway.says_hello = False
    async with holding(discord, Held(hello_within=0.05)) as held:
        await discord.until(lambda: discord.gateway.connections >= 3)
        discord.gateway.says_hello = True
        await held.beats.wait_for("up".__eq__)
        await heard(discord, held, "hello")
    assert "did not answer in time" in held.beats.heard[0]


async def test_a_line_without_answers_to_heartbeats_is_left_though_events_come(discord: FakeDiscord) -> None:
    discord.gateway.interval = 0.2
    async with up(discord) as held:
        discord.gateway.acknowledges = False
        while not discord.gateway.resumed:
            await discord.say("still there")
            await asyncio.sleep(0.01)
        discord.gateway.acknowledges = True
        await heard(discord, held, "after")
    assert "did not answer in time" in held.beats.heard[0]


def test_a_dead_line_is_noticed_within_90_seconds() -> None:
    discords_interval, slack = 41.25, 1.75
    assert discords_interval * slack < 90


async def test_a_discord_that_is_away_is_asked_with_growing_pauses(discord: FakeDiscord) -> None:
    discord.scripted["gateway"].extend([(503, {"message": "away"})] * 12)
    async with holding(discord, Held()) as held:
        await held.beats.wait_for("up".__eq__)
    pauses = held.pauses
    assert pauses[0] <= 1.0 < pauses[3]
    assert max(pauses) <= LONGEST_PAUSE
    assert len(discord.gateway.identifies) == 1


async def test_it_logs_in_at_most_twenty_times_an_hour(discord: FakeDiscord) -> None:
    discord.gateway.refusals.extend([4000] * (AT_MOST + 5))
    async with holding(discord, Held()) as held:
        await held.beats.wait_for(lambda reason: "too often" in reason)
    assert len(discord.gateway.identifies) == AT_MOST
    assert held.pauses[-1] > LONG


async def test_it_waits_when_discord_allows_no_more_logins(discord: FakeDiscord) -> None:
    discord.remaining = 0
    async with holding(discord, Held()) as held:
        await held.beats.wait_for("up".__eq__)
    assert held.pauses[0] == 1.0


@pytest.mark.parametrize("code", [4004, 4010, 4011, 4012, 4013, 4014])
async def test_a_refusal_for_good_ends_it(discord: FakeDiscord, code: int) -> None:
    discord.gateway.refusals.append(code)
    held = Held()
    with pytest.raises(ExceptionGroup) as ended:
        async with holding(discord, held):
            await asyncio.Event().wait()
    assert ended.group_contains(AuthRejected)


def test_logins_are_counted_over_an_hour() -> None:
    now = 0.0
    identifies = Identifies(deque(), clock=lambda: now)
    assert identifies.are_new
    for _ in range(AT_MOST):
        assert identifies.pause() == 0
        identifies.count()
        now += 1
    assert identifies.pause() == WINDOW - AT_MOST
    now = WINDOW
    assert identifies.pause() == 0
