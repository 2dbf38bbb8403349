"""Clients that go away in mid-answer, turns that never end, restarts and shutdowns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from gateway.api.prompts import Prompts
from gateway.contract import Caller, TokenScope
from gateway.daemon import Daemon
from gateway.files.uploads import FileRoutes
from gateway.http.responses import HttpError
from gateway.openai_door.answer import read_whole
from gateway.openai_door.request_messages import chat_messages
from gateway.openai_door.session_choice import SessionChoice
from gateway.openai_door.session_turns import DoorRequest, SessionTurns
from gateway.openai_door.types import ChatMessage
from gateway.repos.repositories import Repositories
from tests.agent.wire import OPENAI, serving
from tests.api.harness import api
from tests.daemon.harness import settings
from tests.daemon.tools import Rocket, launch
from tests.daemon_process import DaemonProcess, running
from tests.openai_door.harness import DoorTest, Echo, door
from tests.polling import until

HELLO = {"messages": [{"role": "user", "content": "hello"}], "input": "hello"}
BOTH = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
STREAMED_OR_NOT = pytest.mark.parametrize("is_stream", [False, True])


async def leave_in_mid_answer(test: DoorTest, path: str, model: str, *, is_stream: bool) -> None:
    """Send a request, and cut the connection while the model answers."""
    test.model.may_answer.clear()
    body = {"model": model, "stream": is_stream, "store": False, **HELLO}
    async with aiohttp.ClientSession() as http:
        request = http.post(f"{test.daemon.server.url}{path}", json=body, headers=test.program.authorization)
        sending = asyncio.ensure_future(request)
        await test.model.is_asked.wait()
        if is_stream:
            response = await sending
            await response.content.readline()
            response.close()
        else:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending


@BOTH
@STREAMED_OR_NOT
async def test_the_answer_of_a_session_is_stored_without_its_client(
    tmp_path: Path, path: str, *, is_stream: bool
) -> None:
    async with door(tmp_path) as test:
        await leave_in_mid_answer(test, path, "main@trip", is_stream=is_stream)
        await until(lambda: not test.daemon.sessions.feed._followers)  # noqa: SLF001 - nothing else shows them.
        assert not test.model.was_stopped.is_set()
        test.model.may_answer.set()
        (session,) = test.sessions()
        await until(lambda: not test.daemon.lanes.is_busy(session.key))
        assert await test.texts() == ["hello", "You said: hello"]


@BOTH
@STREAMED_OR_NOT
async def test_a_stateless_request_is_cancelled_and_charged(tmp_path: Path, path: str, *, is_stream: bool) -> None:
    async with door(tmp_path) as owner, owner.client() as test:
        await leave_in_mid_answer(test, path, "main", is_stream=is_stream)
        await test.model.was_stopped.wait()
        await asyncio.wait_for(test.daemon.stateless.drained(), 60)
        status, usage = await test.program.call("GET", "/api/usage")
        assert (status, usage["total"]["inputTokens"] > 0) == (200, True), "the model has read the request"


@asynccontextmanager
async def refused(daemon: Daemon, text: str) -> AsyncIterator[asyncio.Task[HttpError]]:
    """Send a message to a session, and yield a task that returns its error. It notices early that its turn is gone."""
    turns = SessionTurns(
        live=daemon.live,
        sessions=daemon.sessions,
        programs=daemon.programs,
        prompts=Prompts(daemon.intake, daemon.spool, now=daemon.now),
        repos=Repositories(daemon.live),
        spool=daemon.spool,
        lanes=daemon.lanes,
        uploads=FileRoutes(daemon.store, lambda: 0, daemon.now),
        unwritten_text=daemon.turns.unwritten_text,
        is_stopping=lambda: False,
        now=daemon.now,
        check_interval=0.02,
    )
    request = DoorRequest(
        caller=Caller(name="owner", is_owner=True),
        choice=SessionChoice(agent="main", name="trip", param="model"),
        received=chat_messages([ChatMessage(role="user", content=text)]),
    )

    async def ask() -> HttpError:
        with pytest.raises(HttpError) as caught:
            async with turns.open(request) as answer:
                await read_whole(answer)
        return caught.value

    async with asyncio.TaskGroup() as tasks:
        yield tasks.create_task(ask(), name=text)


async def test_a_dropped_message_ends_its_request(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        async with refused(test.daemon, "one") as stopped:
            await test.model.is_asked.wait()
            async with refused(test.daemon, "two") as dropped:
                await until(lambda: test.daemon.lanes.waiting)
                (session,) = test.sessions()
                await test.program.call("DELETE", f"/api/sessions/{session.id}")
        assert (dropped.result().status, dropped.result().extra["code"]) == (409, "message_dropped")
        assert "cancelled by owner" in str(stopped.result())


async def test_a_deleted_session_ends_its_requests(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        async with refused(test.daemon, "one") as deleted:
            await test.model.is_asked.wait()
            (session,) = test.sessions()
            await test.program.call("DELETE", f"/api/sessions/{session.id}?permanent=true")
        assert deleted.result().status == 409


async def test_a_request_waits_for_an_approval(tmp_path: Path) -> None:
    rocket = Rocket()
    toolbox = rocket.toolbox()
    async with door(tmp_path) as owner, owner.client() as test:
        owner.daemon.agents.replace("main", lambda main: replace(main, toolbox=toolbox))
        test.model.calls = [[launch("moon")]]
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(test.ask("Go!", "main@trip"), name="asking")
            await until(lambda: owner.daemon.approvals.open_questions)
            (session,) = test.sessions()
            _, found = await test.program.call("GET", f"/api/sessions/{session.id}")
            question = found["messages"][-1]["content"]
            path = f"/api/sessions/{session.id}/approvals/{question['approvalId']}"
            status, _ = await test.program.call("POST", path, {"decision": "approve"})
            assert status == 200
        assert asking.result() == "You said: Go!\n\nYou said: Go!"
        assert rocket.launched == ["moon"]


async def test_a_revoked_token_loses_its_stream(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client(TokenScope.PROMPT) as test:
        test.model.may_answer.clear()
        stream = await test.openai.chat.completions.create(
            model="main", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        (token,) = owner.daemon.tokens.book.tokens
        await owner.daemon.tokens.revoke(token)
        with pytest.raises(openai.APIConnectionError):
            _ = [chunk async for chunk in stream]
        await test.model.was_stopped.wait()
        with pytest.raises(openai.AuthenticationError):
            await test.ask("hello")


async def test_a_shutdown_lets_requests_finish(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(test.ask("hello", model), name=model) for model in ("main", "main@trip")]
            await until(lambda: len(test.model.prompts) == 2)
            test.daemon.stop()
            await until(lambda: test.daemon.intake._is_closed)  # noqa: SLF001 - nothing else shows it.
            with pytest.raises(openai.InternalServerError, match="shutting down"):
                await test.ask("one more", "main@trip")
            test.model.may_answer.set()
        assert [task.result() for task in asked] == ["You said: hello"] * 2


async def test_a_forced_shutdown_cuts_requests_and_charges_them(tmp_path: Path) -> None:
    configured, model = settings(tmp_path), Echo()
    async with api(configured, model.install) as program:
        test = DoorTest(
            program=program,
            model=model,
            openai=AsyncOpenAI(base_url=f"{program.daemon.server.url}/v1", api_key=program.token, max_retries=0),
        )
        model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_is_cut(test, name), name=name) for name in ("main", "main@trip")]
            await until(lambda: len(model.prompts) == 2)
            program.daemon.stop()
            program.daemon.stop()
        assert all(task.result() for task in asked)
        await test.openai.close()
    model.may_answer.set()
    async with door(tmp_path, configured) as test:
        (session,) = test.sessions()
        await until(lambda: not test.daemon.lanes.is_busy(session.key))
        assert await test.texts() == ["hello", "You said: hello"], "the turn of the session went on after the start"
        _, usage = await test.program.call("GET", "/api/usage")
        assert usage["total"]["inputTokens"] > 11, "the stateless one was charged too"


async def _is_cut(test: DoorTest, model: str) -> bool:
    with pytest.raises((openai.APIConnectionError, openai.InternalServerError)) as caught:
        await test.ask("hello", model)
    return isinstance(caught.value, openai.APIConnectionError) or "shutting down" in caught.value.message


CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = 0
[providers.fake]
kind = "openai"
base_url = "%s"
api_key = "k"
[agents.main]
provider = "fake"
model = "m"
"""


@asynccontextmanager
async def process(home: Path, base_url: str) -> AsyncIterator[tuple[DaemonProcess, AsyncOpenAI]]:
    """Run a daemon in a process of its own."""
    context = running(home, CONFIG % base_url)
    daemon = await asyncio.to_thread(context.__enter__)
    try:
        async with AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key=daemon.token, max_retries=0) as client:
            yield daemon, client
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_prompt_is_answered_after_a_crash(tmp_path: Path) -> None:
    """The daemon is killed between accepting the prompt and the answer."""
    hanging = asyncio.Event()
    async with serving(OPENAI, hanging, OPENAI.answer("Good ", "morning.")) as server:
        url = server.table()["base_url"]
        async with process(tmp_path, url) as (daemon, client), asyncio.TaskGroup() as tasks:

            async def ask() -> None:
                with pytest.raises(openai.APIConnectionError):
                    await client.responses.create(model="main@trip", input="hello")

            tasks.create_task(ask(), name="asking")
            await server.asked(1)
            await asyncio.to_thread(daemon.kill)
        hanging.set()
        async with process(tmp_path, url) as (daemon, client):
            await asyncio.to_thread(daemon.wait_for, "message_handled")
            response = await client.responses.create(
                model="main@trip",
                input=[
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": "Good morning."},
                    {"role": "user", "content": "again"},
                ],
            )
            assert (await client.responses.retrieve(response.id)).output_text == "Good morning."
        said = [message["content"] for message in server.requests[-1].body["messages"][1:]]
        assert said == ["hello", "Good morning.", "again"]
