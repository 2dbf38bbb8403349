"""Live events: what a reader gets, how it goes on after a lost connection, and that slow readers hurt no one."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.api.events import MAX_UNSENT_BYTES, EventBlock, ReaderStream, SessionEvents, position_of
from gateway.contract import TokenScope
from gateway.daemon import Daemon
from gateway.http.responses import HttpError
from gateway.sessions import entries
from tests.api.harness import Api, Event, Json, api, read_events
from tests.daemon.harness import Parrot, settings
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.polling import until


class Dictation:
    """A model that says the pieces it is given, until it gets None."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[str | None] = asyncio.Queue()

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        while (piece := await self.pieces.get()) is not None:
            yield TextDelta(text=piece)

    def say(self, *pieces: str | None) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)

    def installed(self, daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda chosen: replace(chosen, provider=self))


async def read_until(program: Api, session: Json, last: str, query: str = "", **headers: str) -> list[Event]:
    """Read events up to the first one called `last`."""
    response = await program.request("GET", f"/api/sessions/{session['id']}/events{query}", None, **headers)
    assert response.status == 200, await response.text()
    assert response.content_type == "text/event-stream"
    found: list[Event] = []
    async with aclosing(read_events(response)) as events:
        async for event in events:
            found.append(event)
            if event.name == last:
                break
    response.close()
    return found


async def has_readers(program: Api, number: int) -> None:
    await until(lambda: program.daemon.events.reader_count == number)


async def test_a_reader_gets_text_as_it_is_written_and_messages_when_they_are_stored(tmp_path: Path) -> None:
    model = Dictation()
    async with api(settings(tmp_path), model.installed) as program:
        session = await program.start()
        reading = asyncio.create_task(read_until(program, session, "turn"))
        await has_readers(program, 1)
        await program.prompt(session, "hello")
        model.say("Hel", "lo", " there", None)
        events = await reading
        assert events[0].name == "message"
        assert events[0].data["role"] == "user"
        assert "".join(event.data["text"] for event in events if event.name == "delta") == "Hello there"
        assert [event.name for event in events if event.name != "delta"] == ["message", "message", "turn"]
        answer = [event for event in events if event.name == "message"][-1]
        assert answer.data["content"] == {"type": "text", "text": "Hello there", "partial": False}
        assert events[-1].data["outcome"] == "answered"
        assert answer.id.startswith(f"{session['id']}:")


async def test_a_reader_goes_on_after_its_last_event(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        await program.prompt(session, "one")
        await program.answered(session)
        first = await read_until(program, session, "turn", "?since=0")
        texts = [event.data["content"]["text"] for event in first if event.name == "message"]
        assert texts == ["one", "heard: one"]
        await program.prompt(session, "two")
        await program.answered(session, 2)
        rest = await read_until(program, session, "turn", Last_Event_ID=first[-1].id)
        assert [event.data["content"]["text"] for event in rest if event.name == "message"] == ["two", "heard: two"]
        assert not {event.id for event in first if event.id} & {event.id for event in rest}


async def test_a_reader_who_comes_in_the_middle_gets_the_text_so_far(tmp_path: Path) -> None:
    model = Dictation()
    async with api(settings(tmp_path), model.installed) as program:
        session = await program.start()
        await program.prompt(session, "hello")
        model.say("The first half")
        await until(lambda: (program.daemon.turns.unwritten_text(session["key"]) or ("", ""))[1])
        reading = asyncio.create_task(read_until(program, session, "turn"))
        await has_readers(program, 1)
        model.say(" and the second.", None)
        events = await reading
        whole = "".join(event.data["text"] for event in events if event.name in ("text", "delta"))
        assert whole == "The first half and the second."
        messages = [event.data for event in events if event.name == "message"]
        assert [message["content"]["text"] for message in messages] == ["The first half and the second."]


async def test_tool_calls_and_approvals_come_as_messages_that_change(tmp_path: Path) -> None:
    rocket, provider = Rocket(), scripted([TextDelta(text="I will."), launch("Mars")])
    async with api(settings(tmp_path), agent(provider, rocket)) as program:
        session = await program.start()
        reading = asyncio.create_task(read_until(program, session, "turn"))
        await has_readers(program, 1)
        await program.prompt(session, "go")
        await until(lambda: program.daemon.approvals.open_questions)
        (question,) = program.daemon.approvals.open_questions
        await program.call("POST", f"/api/sessions/{session['id']}/approvals/{question}", {"decision": "approve"})
        messages = [event.data for event in await reading if event.name == "message"]
        tools = [message for message in messages if message["content"]["type"] == "tool"]
        assert [tool["content"]["result"] for tool in tools] == [None, "launched at Mars"]
        assert tools[0]["id"] == tools[1]["id"]
        decisions = [each["content"]["decision"] for each in messages if each["content"]["type"] == "approval"]
        assert decisions == [None, "approved"]


async def test_a_tool_result_reaches_readers_who_came_in_the_middle_of_its_turn(tmp_path: Path) -> None:
    """Also if the first of them has given a position that the session has not reached."""
    rocket, provider = Rocket(), scripted([TextDelta(text="I will."), launch("Mars")])
    async with api(settings(tmp_path), agent(provider, rocket)) as program:
        session = await program.start()
        await program.prompt(session, "go")
        await until(lambda: program.daemon.approvals.open_questions)
        readings = []
        for number, query in enumerate(["?since=1000000", "", "?since=0"], start=1):
            readings.append(asyncio.create_task(read_until(program, session, "turn", query)))
            await has_readers(program, number)
        (question,) = program.daemon.approvals.open_questions
        await program.call("POST", f"/api/sessions/{session['id']}/approvals/{question}", {"decision": "approve"})
        for reading in readings:
            contents = [event.data["content"] for event in await reading if event.name == "message"]
            results = [content["result"] for content in contents if content["type"] == "tool"]
            assert results[-1] == "launched at Mars"


async def test_nothing_is_missed_that_happens_while_a_reader_reads_the_transcript(tmp_path: Path) -> None:
    configured = settings(tmp_path)
    async with api(configured) as program:
        session = await program.start()
        lines = [entries.System(content="x" * 20_000)] * 400
        await program.daemon.sessions.append(session["key"], lines)
    async with api(configured) as program:  # After the restart, the session is not cached, and takes long to read.
        meta = await program.daemon.sessions.directory.find(session["id"])
        assert meta is not None
        reading = asyncio.create_task(read_until(program, session, "title", f"?since={meta.seq}"))
        await has_readers(program, 1)
        await program.daemon.sessions.set_title(meta.key, "new")
        assert [event.data for event in await reading] == [{"title": "new"}]


async def test_status_changes_are_events(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        reading = asyncio.create_task(read_until(program, session, "status"))
        await has_readers(program, 1)
        await program.call("POST", f"/api/sessions/{session['id']}/complete")
        assert (await reading)[-1].data == {"status": "completed", "by": "owner", "reason": "requested"}


@pytest.mark.parametrize("path", ["?permanent=true", "/archive"])
async def test_a_stream_ends_when_its_session_is_deleted_or_archived(tmp_path: Path, path: str) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        await program.prompt(session, "hello")
        await program.answered(session)
        response = await program.request("GET", f"/api/sessions/{session['id']}/events")
        await has_readers(program, 1)
        method = "POST" if path == "/archive" else "DELETE"
        status, _ = await program.call(method, f"/api/sessions/{session['id']}{path}")
        assert status == 200
        assert [event.name async for event in read_events(response)] == ["gone"]


async def test_an_event_id_of_another_session_is_refused(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        one, other = await program.start(), await program.start()
        for wrong in (f"{other['id']}:3", "3", "", "x:y", f"{one['id']}:-1", f"{one['id']}:{'9' * 40}"):
            response = await program.request("GET", f"/api/sessions/{one['id']}/events", Last_Event_ID=wrong)
            assert response.status == 422, wrong
            assert response.content_type == "application/problem+json"


@given(st.text(), st.text())
def test_any_event_id_is_a_position_or_an_error(session: str, given_id: str) -> None:
    with suppress(HttpError):
        assert position_of(session, given_id) >= 0


async def test_the_first_text_is_sent_at_once() -> None:
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    reader, events = ReaderStream(transport, 0, is_chunked=False), SessionEvents("session")
    reader.go_live(0)
    events.readers.add(reader)
    theirs.settimeout(0)
    with theirs:
        events.on_text("turn", "Hel")
        events.on_text("turn", "lo")
        for _ in range(2):  # Once around the event loop. Nothing waits for a timer.
            await asyncio.sleep(0)
        assert theirs.recv(1000) == b'event: delta\ndata: {"turn":"turn","text":"Hello"}\n\n'
        transport.abort()


async def test_a_slow_reader_falls_behind_without_growing() -> None:
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    reader, block = ReaderStream(transport, 0, is_chunked=True), EventBlock.of(b"x" * 1000, seq=1)
    reader.go_live(0)
    with theirs:
        while reader.is_live:  # Until the buffers of the socket are full.
            reader.write(block)
        unsent = transport.get_write_buffer_size()
        assert MAX_UNSENT_BYTES < unsent < MAX_UNSENT_BYTES + len(block.chunk)
        reader.write(block)
        assert transport.get_write_buffer_size() == unsent
        transport.abort()


async def test_a_reader_that_does_not_read_delays_no_one(tmp_path: Path) -> None:
    """Its socket is full, so that its writes block. The others and the turn go on."""
    model = Dictation()
    async with api(settings(tmp_path), model.installed) as program:
        session = await program.start()
        host, port = "127.0.0.1", program.daemon.server.port
        reader, writer = await asyncio.open_connection(host, port, limit=1024)
        head = f"GET /api/sessions/{session['id']}/events HTTP/1.1\r\nHost: {host}:{port}\r\n"
        writer.write(f"{head}Authorization: Bearer {program.token}\r\n\r\n".encode())
        await has_readers(program, 1)
        try:
            for _ in range(6):  # More than the buffers of a socket hold.
                reading = asyncio.create_task(read_until(program, session, "turn"))
                await has_readers(program, 2)
                await program.prompt(session, "hello")
                model.say(*["x" * 20_000] * 40, None)
                answer = [event for event in await reading if event.name == "message"][-1]
                assert len(answer.data["content"]["text"]) == 40 * 20_000
                await has_readers(program, 1)
            assert not reader.at_eof()
        finally:
            writer.close()
            await writer.wait_closed()


async def test_a_client_of_http_1_0_gets_events_without_chunks(tmp_path: Path) -> None:
    """Some proxies speak HTTP/1.0 to the servers behind them."""
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        host, port = "127.0.0.1", program.daemon.server.port
        reader, writer = await asyncio.open_connection(host, port)
        head = f"GET /api/sessions/{session['id']}/events HTTP/1.0\r\nHost: {host}:{port}\r\n"
        writer.write(f"{head}Authorization: Bearer {program.token}\r\n\r\n".encode())
        assert b"chunked" not in await reader.readuntil(b"\r\n\r\n")
        await has_readers(program, 1)
        await program.prompt(session, "hello")
        received = await reader.readuntil(b"event: turn\n")
        assert {line.partition(b":")[0] for line in received.splitlines()} == {b"retry", b"", b"id", b"event", b"data"}
        writer.close()
        await writer.wait_closed()


async def test_a_revoked_token_ends_its_streams(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        reader = await program.token_for(TokenScope.READ, TokenScope.PROMPT)
        session = await reader.start()
        response = await reader.request("GET", f"/api/sessions/{session['id']}/events")
        await has_readers(program, 1)
        (token,) = program.daemon.live.token_book.tokens
        await program.daemon.tokens.revoke(token)
        await has_readers(program, 0)
        response.close()


async def test_a_token_that_expires_ends_its_streams(tmp_path: Path) -> None:
    moment = datetime.now(UTC)
    async with api(settings(tmp_path), Parrot.answering, now=lambda: moment) as program:
        reader = await program.token_for(TokenScope.READ, TokenScope.PROMPT, expires_in=3600.0)
        session = await reader.start()
        response = await reader.request("GET", f"/api/sessions/{session['id']}/events")
        await has_readers(program, 1)
        moment += timedelta(hours=1)
        await has_readers(program, 0)
        response.close()
        again = await reader.request("GET", f"/api/sessions/{session['id']}/events")
        assert again.status == 401
        # Its session goes on without it.
        await program.prompt(session, "hello")
        await program.answered(session)


@pytest.mark.parametrize("readers", [5])
async def test_streams_end_when_the_gateway_stops(tmp_path: Path, readers: int) -> None:
    async with api(settings(tmp_path), Parrot.answering) as program:
        session = await program.start()
        responses = [await program.request("GET", f"/api/sessions/{session['id']}/events") for _ in range(readers)]
        await has_readers(program, readers)
        program.daemon.stop()
        for response in responses:
            await response.read()  # It ends, and does not break off.
