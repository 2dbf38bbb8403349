"""Commands that read transcripts: they may take long and delay nothing else."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from channels.loopback import LoopbackChannel
from config import GatewaySettings
from gateway.contract import Verdict
from gateway.daemon import Daemon
from gateway.spool import InboxState, Spool, StartTurn
from tests.daemon.harness import Slow, accepted, ask, begin_a_session, gateway, leave, settings

SEARCH = "/session search heron"


@asynccontextmanager
async def quick(folder: Path, **limits: object) -> AsyncIterator[tuple[Daemon, LoopbackChannel]]:
    """Run a gateway whose model answers at once."""
    model = Slow()
    model.may_answer.set()
    configured = GatewaySettings.model_validate({"data_dir": folder / "data", "flush_interval": 3600, **limits})
    async with gateway(settings(folder, gateway=configured)) as (daemon, chat):
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))
        yield daemon, chat


@asynccontextmanager
async def searching(folder: Path, **limits: object) -> AsyncIterator[tuple[LoopbackChannel, threading.Event]]:
    """Have a chat whose search does not end before its gate is opened."""
    async with quick(folder) as (_, chat):
        for text in ("the heron stands in the water", "/new", "hello"):
            await chat.say(text, peer="ada")
            await chat.hear_message()
    async with quick(folder, **limits) as (daemon, chat):
        gate = threading.Event()
        reader = daemon.sessions._reader  # noqa: SLF001 - the only way to have a read that does not end
        held = reader.submit(gate.wait)
        taking = asyncio.create_task(chat.say(SEARCH, peer="ada", event_id="search"), name="taking")
        try:
            await asyncio.wait({taking}, timeout=30)
            assert taking.done(), "it was not taken while it ran"
            assert taking.result() is Verdict.ACCEPTED
            yield chat, gate
        finally:
            gate.set()
            await held


async def test_a_long_search_delays_neither_other_chats_nor_its_own(tmp_path: Path) -> None:
    async with searching(tmp_path) as (chat, gate):
        for peer, text in (("bob", "hello"), ("ada", "hello"), ("ada", "/whoami"), ("ada", "/new")):
            await chat.say(text, peer=peer)
            assert (await chat.hear_message()).address.peer == peer
        gate.set()
        assert "the heron stands" in (await chat.hear_message()).text


async def test_reading_commands_of_a_chat_keep_their_order_and_other_chats_run_concurrently(tmp_path: Path) -> None:
    async with searching(tmp_path) as (chat, gate):
        await chat.say("/history", peer="ada")
        await chat.say("hello", peer="bob")
        await chat.hear_message()
        await chat.say("/history", peer="bob")
        assert (await chat.hear_message()).address.peer == "bob"
        gate.set()
        first, second = [(await chat.hear_message()).text for _ in range(2)]
    assert "the heron stands" in first
    assert second.startswith("You: hello")


async def test_a_repeated_reading_command_is_answered_once(tmp_path: Path) -> None:
    async with searching(tmp_path) as (chat, gate):
        assert await chat.say(SEARCH, peer="ada", event_id="search") is Verdict.DUPLICATE
        gate.set()
        await chat.hear_message()
        assert await chat.say(SEARCH, peer="ada", event_id="search") is Verdict.DUPLICATE


async def test_stop_ends_a_reading_command_and_drops_those_behind_it(tmp_path: Path) -> None:
    async with searching(tmp_path) as (chat, gate):
        await chat.say("/history", peer="ada")
        await chat.say("/stop", peer="ada")
        texts = {(await chat.hear_message()).text for _ in range(2)}
        gate.set()
    assert texts == {"Stopped. 1 waiting message dropped.", "Stopped. Nothing has changed."}
    async with await Spool.open(tmp_path / "data") as spool:
        assert (await spool.recover()).inbox == ()


async def test_too_many_waiting_reading_commands_are_refused(tmp_path: Path) -> None:
    async with searching(tmp_path, max_queued_per_session=1) as (chat, gate):
        await chat.say("hello", peer="ada")
        await chat.hear_message()  # Whatever was accepted has begun by now.
        assert await chat.say("/history", peer="ada") is Verdict.ACCEPTED
        assert await chat.say("/history", peer="ada") is Verdict.REFUSED
        assert "1 messages are already waiting" in (await chat.hear_message()).text
        gate.set()
        assert [(await chat.hear_message()).text[:3] for _ in range(2)] == ["1  ", "You"]


async def test_a_reading_command_cut_off_by_a_crash_is_answered_beside_the_turns(tmp_path: Path) -> None:
    model = Slow()
    await begin_a_session(tmp_path)
    await leave(tmp_path, accepted("t1", "hello?"), accepted("t2", "/session search hello"))

    def slowed(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))

    async with gateway(settings(tmp_path), before=slowed) as (_, chat):
        assert "1  hello · you" in (await chat.hear_message()).text
        model.may_answer.set()
        assert (await chat.hear_message()).text == "Done."


async def test_a_reading_command_that_crashed_the_daemon_three_times_is_abandoned(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    await leave(tmp_path, accepted("t1", SEARCH), *[StartTurn(turn="t1")] * 3)
    async with quick(tmp_path) as (_, chat):
        assert "3 times" in (await chat.hear_message()).text
        await chat.say("/history", peer="ada")
        assert "3 times" not in (await chat.hear_message()).text
    async with await Spool.open(tmp_path / "data") as spool:
        assert [row.turn for row in (await spool.listing()).inbox] == ["t1"]


async def test_a_reading_command_cut_off_by_a_shutdown_is_answered_after_the_next_start(tmp_path: Path) -> None:
    """A shutdown does not count as a crash, however often it happens."""
    async with searching(tmp_path, shutdown_timeout=0.01) as (chat, _):
        await chat.say("hello", peer="ada")
        await chat.hear_message()  # Whatever was accepted has begun by now.
        await chat.say("/restart", peer="ada")
        await asyncio.wait({task for task in asyncio.all_tasks() if task.get_name() == "daemon"})
    async with await Spool.open(tmp_path / "data") as spool:
        (row,) = (await spool.recover()).inbox
        assert (row.inbound.text, row.state, row.attempts) == (SEARCH, InboxState.RUNNING, 0)
    async with quick(tmp_path) as (_, chat):
        texts = "".join([(await chat.hear_message()).text for _ in range(2)])
        assert "I'm back." in texts
        assert "the heron stands" in texts


async def test_a_reading_command_starts_no_session(tmp_path: Path) -> None:
    async with quick(tmp_path) as (_, chat):
        assert (await ask(chat, "/history")).startswith("This session has no messages")
        assert (await ask(chat, SEARCH)).startswith("Nothing found for heron")
        assert (await ask(chat, "/session list")).startswith("There is no session here yet")
        await ask(chat, "hello")
        await ask(chat, "/session close")
        assert (await ask(chat, "/history")).startswith("You: hello")
        assert "2  " not in await ask(chat, "/session list")


async def test_a_reading_command_does_not_count_as_a_running_turn(tmp_path: Path) -> None:
    async with quick(tmp_path) as (_, chat):
        await ask(chat, "hello")
        assert "0 turns running, 0 messages waiting" in await ask(chat, "/status")
