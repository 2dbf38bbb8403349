"""The session that a schedule has for itself, over restarts and beyond the limit of a chat."""

from pathlib import Path

import pytest

from gateway.sessions.keys import session_key
from gateway.sessions.retention import MAX_APART
from gateway.sessions.session import NewSession
from tests.agent.wire import OPENAI, serving
from tests.daemon.harness import ADA, delivered, gateway
from tests.schedules.harness import SCOPE, Clock, runs_of, scheduled, told

DAILY = '/schedule add "0 13 * * *" Look'


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_after_a_restart_and_without_the_index_a_schedule_continues_its_session(
    tmp_path: Path, clock: Clock
) -> None:
    replies = [OPENAI.answer(text) for text in ("Hi.", "One.", "Two.", "Hi again.")]
    async with serving(OPENAI, *replies) as server:
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            await told(chat, "hello")
            await told(chat, DAILY)
            clock.move(daemon, hours=1)
            assert (await chat.hear_message()).text == "One."
            await delivered(daemon)
        (tmp_path / "data/sessions/index.json").unlink()
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            active = daemon.sessions.active(SCOPE)
            assert active is not None
            assert active.number == 1
            clock.move(daemon, days=1)
            assert (await chat.hear_message()).text == "Two."
            await delivered(daemon)
            assert {run.session for run in await runs_of(daemon)} == {session_key(SCOPE, 2)}
            assert (await told(chat, "hello again")).text == "Hi again."
    said = [each["content"] for each in server.requests[2].body["messages"] if each["role"] == "assistant"]
    assert said == ["One."]
    answered = [each["content"] for each in server.requests[3].body["messages"] if each["role"] == "assistant"]
    assert answered == ["Hi."], "the person talks in the session of the chat"


async def test_a_schedule_whose_session_was_displaced_by_newer_ones_starts_another(
    tmp_path: Path, clock: Clock
) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("One."), OPENAI.answer("Two.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, DAILY)
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "One."
        await delivered(daemon)
        for _ in range(MAX_APART):
            await daemon.sessions.start_new(SCOPE, agent="main", origin=ADA, new=NewSession(is_apart=True))
        numbers = {meta.number for meta in daemon.sessions.list(SCOPE)}
        assert numbers == set(range(2, MAX_APART + 2))
        clock.move(daemon, days=1)
        assert (await chat.hear_message()).text == "Two."
        await delivered(daemon)
        assert [run.session for run in await runs_of(daemon)] == [
            session_key(SCOPE, MAX_APART + 2),
            session_key(SCOPE, 1),
        ]
