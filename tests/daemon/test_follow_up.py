"""Messages that follow one another in a session: the turn of the next begins in the commit that ends the one before."""

import asyncio
import threading
from pathlib import Path

from channels.loopback import LoopbackChannel
from gateway.daemon import Daemon
from gateway.outbound.reactions import SEEN
from tests.daemon.harness import Parrot, gateway, message, replies, settings, transcript_json
from tests.polling import until


async def one_waits_for_another(chat: LoopbackChannel, parrot: Parrot) -> None:
    await chat.submit(message("first", "1"))
    await parrot.is_asked.wait()
    await chat.submit(message("second", "2"))


async def test_a_waiting_message_starts_in_the_commit_that_ends_the_turn_before(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await one_waits_for_another(chat, parrot)
        parrot.may_answer.set()
        assert await replies(chat, 2) == ["heard: first", "heard: second"]
    entries = [entry for entry in transcript_json(tmp_path) if "turn" in entry]
    assert [entry["type"] for entry in entries] == ["user", "assistant", "turn_end"] * 2
    assert len({entry["turn"] for entry in entries[:3]}) == len({entry["turn"] for entry in entries[3:]}) == 1
    assert entries[2]["ts"] == entries[3]["ts"], "entries of one commit have one time"


async def test_a_stop_while_a_turn_ends_stops_the_turn_that_follows(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
        await one_waits_for_another(chat, parrot)
        await _stop_while_it_ends(daemon, parrot)
        assert await replies(chat, 2) == ["heard: first", "*Stopped.*"]
        await chat.submit(message("third", "3"))
        assert await replies(chat, 1) == ["heard: third"]
    ends = [entry["outcome"] for entry in transcript_json(tmp_path) if entry["type"] == "turn_end"]
    assert ends == ["answered", "stopped", "answered"]
    assert ["second"] not in [heard[-1:] for heard in parrot.heard], "it was never asked"


async def test_a_stopped_follow_up_loses_its_waiting_reaction(tmp_path: Path) -> None:
    parrot = Parrot()
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"waiting_sign": "reaction"}}
    async with gateway(settings(tmp_path, channels=channels), parrot.installed) as (daemon, chat):
        await one_waits_for_another(chat, parrot)
        while (await chat.hear()).how != SEEN:
            pass
        await _stop_while_it_ends(daemon, parrot)
        while (await chat.hear()).how != f"no {SEEN}":
            pass


async def test_a_message_behind_a_turn_whose_session_is_deleted_is_answered(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
        await one_waits_for_another(chat, parrot)
        sessions = daemon.sessions
        await sessions.delete("agent:main:loopback:direct:ada")
        parrot.may_answer.set()
        first, second = await replies(chat, 2)
    assert first == "*The session was deleted.*"
    assert "no longer exists" in second


async def test_a_follow_up_turn_resumes_after_a_restart(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
        await one_waits_for_another(chat, parrot)
        silent = Parrot()
        silent.installed(daemon)
        parrot.may_answer.set()
        assert await replies(chat, 1) == ["heard: first"]
        await silent.is_asked.wait()
        daemon.stop()
        daemon.stop()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        assert await replies(chat, 1) == ["heard: second"]
    said = [entry["content"] for entry in transcript_json(tmp_path) if entry["type"] == "user"]
    assert said == ["first", "second"]


async def _stop_while_it_ends(daemon: Daemon, parrot: Parrot) -> None:
    """Send /stop while the commit that ends the first turn and starts the second is under way."""
    gate = threading.Event()
    spool, lanes = daemon.spool, daemon.lanes
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(spool._writer.run(lambda _: gate.wait()), name="gate")  # noqa: SLF001 - as above
        parrot.may_answer.set()
        try:
            await until(lambda: not lanes.waiting)
            lanes.stop("agent:main:loopback:direct:ada")
        finally:
            gate.set()
