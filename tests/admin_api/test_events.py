"""The events of the gateway: what a reader gets, and how it goes on after a lost connection."""

from collections.abc import Callable
from contextlib import aclosing, suppress
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
        reset, overview = await read(owner, lambda event: event.name == "overview", "?topics=overview")
        assert (reset.name, bool(reset.id)) == ("reset", True)
        assert overview.data["ready"]


async def test_a_reader_learns_which_sessions_have_changed(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        response = await owner.request("GET", "/api/events?topics=sessions")
        async with aclosing(read_events(response)) as events:
            assert (await anext(events)).name == "reset"
            session = await owner.start()
            changed = await anext(events)
        assert (changed.name, changed.data["ids"]) == ("sessions", [session["id"]])
        response.close()


async def test_a_reader_goes_on_where_it_was(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        log = structlog.get_logger()
        position = (await read(owner, lambda event: event.name == "reset"))[0].id
        for name in ("first_happened", "second_happened"):
            log.info(name)
        found = await read(owner, logged("second_happened"), "?topics=log", Last_Event_ID=position)
        (first, second) = (each for each in found if each.data["event"].endswith("_happened"))
        assert (first.data["event"], second.data["event"]) == ("first_happened", "second_happened")
        log.info("third_happened")
        found = await read(owner, logged("third_happened"), "?topics=log", Last_Event_ID=first.id)
        assert [event.data["event"] for event in found if event.data["event"].endswith("_happened")] == [
            "second_happened",
            "third_happened",
        ]


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
        with suppress(ClientError):  # It is cut.
            await response.read()
        response.close()
        status, _ = await admin.call("GET", "/api/overview")
        assert status == 401


async def test_a_wrong_topic_is_refused(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        status, _ = await owner.call("GET", "/api/events?topics=weather")
        assert status == 422
