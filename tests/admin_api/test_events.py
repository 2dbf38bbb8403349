"""The events of the gateway: what a reader gets, and how it goes on after a lost connection."""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import structlog
from aiohttp import ClientError

from gateway.contract import TokenScope
from tests.admin_api.harness import administered
from tests.api.harness import Api, Event, read_events


async def read(owner: Api, is_last: Callable[[Event], bool], query: str = "", **headers: str) -> list[Event]:
    """Read events up to the first one that is the last."""
    response = await owner.request("GET", f"/api/events{query}", None, **headers)
    assert response.status == 200, await response.text()
    found: list[Event] = []
    async with aclosing(read_events(response)) as events:
        async for event in events:
            found.append(event)
            if is_last(event):
                break
    response.close()
    return found


def logged(name: str) -> Callable[[Event], bool]:
    return lambda event: event.name == "log" and event.data["event"] == name


async def test_a_new_reader_gets_a_position_and_the_state(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        reset, overview = await read(owner, lambda event: event.name == "overview")
        assert (reset.name, bool(reset.id)) == ("reset", True)
        assert overview.data["ready"]


async def test_a_reader_learns_which_sessions_have_changed(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner, asyncio.TaskGroup() as tasks:
        is_changed = lambda event: event.name == "sessions"  # noqa: E731 - a name for the reader.
        reading = tasks.create_task(read(owner, is_changed, "?topics=sessions"))
        await has_reader(owner)
        session = await owner.start()
        assert session["id"] in (await reading)[-1].data["ids"]


async def has_reader(owner: Api) -> None:
    """Wait until a stream has begun, by reading another one up to its first event."""
    await read(owner, lambda event: event.name == "reset")
    await read(owner, lambda event: event.name == "overview")


async def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        log = structlog.get_logger()
        position = (await read(owner, lambda event: event.name == "reset"))[0].id
        for name in ("first_happened", "second_happened"):
            log.info(name)
        found = await read(owner, logged("second_happened"), "?topics=log", Last_Event_ID=position)
        assert [event.data["event"] for event in found] == ["first_happened", "second_happened"]
        log.info("third_happened")
        found = await read(owner, logged("third_happened"), "?topics=log", Last_Event_ID=found[0].id)
        assert [event.data["event"] for event in found] == ["second_happened", "third_happened"]


async def test_a_reader_that_has_missed_events_is_told(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        for unknown in ("gone:4", "nonsense", "gone:" + "9" * 200):
            (reset,) = await read(owner, lambda event: event.name == "reset", Last_Event_ID=unknown)
            assert reset.id


async def test_the_stream_ends_with_its_token(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        admin = await owner.token_for(TokenScope.ADMIN)
        response = await admin.request("GET", "/api/events")
        assert response.status == 200
        (token,) = owner.daemon.live.token_book.tokens
        await owner.daemon.tokens.revoke(token)
        found = b""
        try:
            async for block in response.content.iter_any():
                found += block
        except ClientError:  # It was cut.
            pass
        status, _ = await admin.call("GET", "/api/overview")
        assert status == 401


async def test_a_wrong_topic_is_refused(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        status, _ = await owner.call("GET", "/api/events?topics=weather")
        assert status == 422
