"""Recovery of the work that the last run left."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from structlog.contextvars import get_contextvars

from gateway.access.chat_migrations import MIGRATION_FACTS
from gateway.access.owner_chats import OWNER_CHAT_FACTS
from gateway.access.tokens import TOKEN_FACTS
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.agent.tools import Toolbox, ToolContext, tool
from gateway.commands.info import RESTARTED_BY
from gateway.conversation import ToolCall, ToolMessage, UserMessage
from gateway.daemon import Daemon
from gateway.sessions.turn_progress import INTERRUPTED
from gateway.spool import (
    GRANT_FACTS,
    DeleteSession,
    DropEntries,
    InboxState,
    SetFact,
    SetInboxState,
    Spool,
    StartTurn,
)
from gateway.spool.deletion import SESSION_DELETED
from tests.daemon.harness import SCOPE, Parrot, accepted, begin_a_session, gateway, leave, replies, settings


async def test_a_message_to_a_removed_agent_is_answered_with_an_error(tmp_path: Path) -> None:
    bound = {"agents": {"coder": {}}, "bindings": [{"agent": "coder", "channel": "loopback"}]}
    async with gateway(settings(tmp_path, **bound)) as (_, chat):
        await chat.say("hello", peer="ada")
        await chat.hear_message()
    scope = SCOPE.replace("main", "coder")
    await leave(tmp_path, msgspec.structs.replace(accepted("t1", "go on"), agent="coder", scope=scope, session=scope))
    async with gateway(settings(tmp_path)) as (_, chat):
        reply = await chat.hear_message()
    assert reply.is_failure
    assert reply.text == "*The agent coder no longer exists. Resend your message, and another agent will answer.*"


async def test_an_accepted_message_is_answered_after_a_crash(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    await leave(tmp_path, accepted("t1", "my name is Ada"), accepted("t2", "what is my name?"))
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.hear_message()
        assert "Ada" in (await chat.hear_message()).text


async def test_a_collected_message_is_answered_even_if_the_row_of_its_turn_is_unreadable(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    together = SetInboxState(turn="t2", state=InboxState.RUNNING, answered_by="t1")
    await leave(tmp_path, accepted("t1", "lost"), accepted("t2", "my name is Ada"), StartTurn(turn="t1"), together)
    with closing(sqlite3.connect(tmp_path / "data" / "spool.db")) as database, database:
        database.execute("UPDATE inbox SET inbound = '{\"newer\": true}' WHERE turn = 't1'")
    async with gateway(settings(tmp_path)) as (_, chat):
        assert "Ada" in (await chat.hear_message()).text


async def test_facts_of_a_newer_version_are_left_out(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    names = (f"{OWNER_CHAT_FACTS}x", f"{MIGRATION_FACTS}x", f"{TOKEN_FACTS}x", f"{GRANT_FACTS}x", RESTARTED_BY)
    await leave(tmp_path, *(SetFact(name=name, value='{"newer": true}') for name in names))
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("My name is Ada.", peer="ada")
        assert "Ada" in (await chat.hear_message()).text


async def test_the_sender_of_a_message_that_is_too_old_is_told_once(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    await leave(tmp_path, accepted("t1", "hello?", at=datetime.now(UTC) - timedelta(days=3)))
    async with gateway(settings(tmp_path)) as (_, chat):
        notice = await chat.hear_message()
        assert notice.is_failure
        assert "offline too long" in notice.text
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("/status", peer="ada")
        assert "away" not in (await chat.hear_message()).text


async def test_a_turn_that_crashed_the_daemon_three_times_is_abandoned(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    await leave(tmp_path, accepted("t1", "boom"), *[StartTurn(turn="t1")] * 3)
    async with gateway(settings(tmp_path)) as (_, chat):
        assert "3 times" in (await chat.hear_message()).text
        await chat.say("/history", peer="ada")
        assert "3 times" in (await chat.hear_message()).text
    async with await Spool.open(tmp_path / "data") as spool:
        (row,) = (await spool.listing()).inbox
        assert row.turn == "t1"


class Counting:
    """A model that answers once so many turns have asked at the same time, and tells how many those were."""

    def __init__(self, together: int) -> None:
        self.now = self.most = 0
        self._together = together
        self._enough = asyncio.Event()

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self._together:
            self._enough.set()
        await self._enough.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        self.now -= 1
        yield TextDelta(text="Here.")


@pytest.mark.parametrize(("crashes", "together"), [(1, 3), (2, 1)])
async def test_turns_that_crashed_the_daemon_twice_run_one_at_a_time(
    tmp_path: Path, crashes: int, together: int
) -> None:
    """The next crash then sets aside the turn that caused it, and not those that merely ran beside it."""
    peers, model = ("ada", "bob", "eve"), Counting(together)
    await begin_a_session(tmp_path, *peers)
    for peer in peers:
        await leave(tmp_path, accepted(peer, "boom", peer=peer), *[StartTurn(turn=peer)] * crashes)

    def counted(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))

    async with gateway(settings(tmp_path), before=counted) as (_, chat):
        heard = {(await chat.hear_message()).address.peer for _ in peers}
    assert heard == set(peers)
    assert model.most == together


class Beside:
    """A model that tells which turns ran at the same time."""

    def __init__(self) -> None:
        self.together: set[frozenset[str]] = set()
        self._running: set[str] = set()

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        peer = str(get_contextvars()["chat"])
        self._running.add(peer)
        for _ in range(50):
            self.together.add(frozenset(self._running))
            await asyncio.sleep(0)
        self._running.remove(peer)
        yield TextDelta(text="Here.")


async def test_a_turn_that_crashed_the_daemon_twice_runs_without_any_other_turn(tmp_path: Path) -> None:
    """A crash of another turn would otherwise count as a crash of this one."""
    peers, model = ("ada", "bob", "eve"), Beside()
    await begin_a_session(tmp_path, *peers)
    for peer in peers:
        attempts = 2 if peer == "bob" else 1
        await leave(tmp_path, accepted(peer, "boom", peer=peer), *[StartTurn(turn=peer)] * attempts)

    def watched(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))

    async with gateway(settings(tmp_path), before=watched) as (_, chat):
        assert {(await chat.hear_message()).address.peer for _ in peers} == set(peers)
    assert frozenset({"bob"}) in model.together
    assert not [turns for turns in model.together if "bob" in turns and len(turns) > 1]


async def test_a_repeated_event_is_recognised_after_a_restart(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("hello", event_id="e1")
        await chat.hear_message()
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.say("hello", event_id="e1") == "duplicate"


async def test_the_owner_who_restarted_the_gateway_is_told_when_it_is_back(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        await chat.say("/restart", peer="ada")
        assert "Restarting" in (await chat.hear_message()).text
        assert daemon.shutdown.wants_restart
    async with gateway(settings(tmp_path)) as (_, chat):
        back = await chat.hear_message()
        assert (back.text, back.address.peer) == ("I'm back.", "ada")


def mark(log: Path) -> int:
    """Leave a mark and return how many there are."""
    with log.open("a") as file:
        file.write("x")
    return log.stat().st_size


class Stepwise:
    """A model that calls a tool twice and then repeats the results."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        outcomes = [message for message in prompt.messages if isinstance(message, ToolMessage)]
        assert isinstance(prompt.messages[0], UserMessage)
        self.heard = [outcome.output for message in outcomes for outcome in message.outcomes]
        if len(outcomes) < 2:
            yield TextDelta(text=f"Step {len(outcomes) + 1}.")
            yield ToolCall(id=f"call{len(outcomes)}", name="strike", input={})
        else:
            yield TextDelta(text="Done.")


def use(daemon: Daemon, provider: Stepwise, *strikes: str, log: Path, hangs: asyncio.Event | None = None) -> None:
    @tool
    async def strike(_context: ToolContext) -> str:
        """Leave a mark."""
        marks = await asyncio.to_thread(mark, log)
        if hangs is not None and marks == 2:
            hangs.set()
            await asyncio.Event().wait()
        return strikes[0] if strikes else f"mark {marks}"

    daemon.agents.replace("main", lambda agent: replace(agent, provider=provider, toolbox=Toolbox([strike])))


async def test_a_turn_resumes_after_its_last_step_and_repeats_no_finished_tool(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    hangs = asyncio.Event()
    async with gateway(settings(tmp_path, gateway={"data_dir": tmp_path / "data", "shutdown_timeout": 0})) as (
        daemon,
        chat,
    ):
        use(daemon, Stepwise(), log=marks, hangs=hangs)
        await chat.say("work", peer="ada")
        await hangs.wait()
    assert marks.read_text() == "xx"
    model = Stepwise()
    async with gateway(settings(tmp_path), before=lambda daemon: use(daemon, model, log=marks)) as (_, chat):
        reply = await chat.hear_message()
    assert reply.text == "Step 1.\n\nStep 2.\n\nDone."
    assert model.heard == ["mark 1", INTERRUPTED]
    assert marks.read_text() == "xx"


@pytest.mark.parametrize("lost", ["index", "tail", "all"])
async def test_transcripts_are_restored_from_the_spool_after_a_power_cut(tmp_path: Path, lost: str) -> None:
    """The disk has only the last synced state of a transcript: here nothing, or half a line."""
    async with gateway(settings(tmp_path)) as (daemon, chat):
        for text in ("my name is Ada", "hello"):
            await chat.say(text, peer="ada")
            await chat.hear_message()
        daemon.stop()
        saved = (tmp_path / "data/spool.db").read_bytes(), (tmp_path / "data/spool.db-wal").read_bytes()
    (tmp_path / "data/spool.db").write_bytes(saved[0])
    (tmp_path / "data/spool.db-wal").write_bytes(saved[1])
    (transcript,) = (tmp_path / "data/sessions/transcripts").glob("*.jsonl")
    if lost == "all":
        transcript.unlink()
    elif lost == "tail":
        os.truncate(transcript, transcript.stat().st_size // 2)
    (tmp_path / "data/sessions/index.json").unlink()
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("what is my name?", peer="ada")
        assert "Ada" in (await chat.hear_message()).text
        await chat.say("/history 50", peer="ada")
        history = (await chat.hear_message()).text
    assert history.count("You: my name is Ada") == 1
    assert history.count("You: hello") == 1


async def test_a_message_whose_session_was_deleted_before_the_crash_is_not_moved(tmp_path: Path) -> None:
    """Its text is gone, so another session could not answer it."""
    await begin_a_session(tmp_path)
    async with await Spool.open(tmp_path / "data") as spool:
        await spool.commit(accepted("t1", "what is it?"), StartTurn(turn="t1"))
        await spool.commit(DeleteSession(session=SCOPE, scope=SCOPE), DropEntries(session=SCOPE))
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        assert (await chat.hear_message()).text == SESSION_DELETED
        await chat.say("hello", peer="ada")
        assert await replies(chat, 1) == ["heard: hello"]


async def test_a_turn_goes_on_if_a_part_of_the_daemon_has_crashed(tmp_path: Path) -> None:
    """No person has stopped it, so no one is told that."""

    async def crash_during_a_turn() -> None:
        parrot = Parrot()
        async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
            await chat.say("hello", peer="ada")
            await parrot.is_asked.wait()
            daemon.spool.broken.set()
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await crash_during_a_turn()
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        assert (await chat.hear_message()).text == "heard: hello"
