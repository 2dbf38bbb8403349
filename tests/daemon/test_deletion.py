"""After `/session delete` and a flush, no byte of the session is left. A deletion survives every crash."""

from dataclasses import replace
from pathlib import Path

from channels.loopback import LoopbackChannel
from gateway.agent.protocol import Chunk, TextDelta
from gateway.agent.tools import Toolbox, ToolContext, tool
from gateway.conversation import ToolCall
from gateway.daemon import Daemon
from gateway.sessions.keys import file_name
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import MARK, Parrot, Slow, ask, delivered, gateway, settings, traces
from tests.files.samples import offered

SCOPE = "agent:main:loopback:direct:somebody"


def marking(daemon: Daemon) -> None:
    """Install an agent that calls a tool, and says the word everywhere."""

    async def look(_context: ToolContext, place: str) -> str:
        """Look."""
        return f"the {MARK} is in {place}"

    call = ToolCall(id="call", name="look", input={"place": f"{MARK} shop"})
    said: list[list[Chunk]] = [
        [TextDelta(text=f"I look for the {MARK}."), call],
        [TextDelta(text=f"Here is the {MARK}.")],
    ]
    provider = ScriptedProvider(*said * 20, [TextDelta(text="done")])
    daemon.agents.replace("main", lambda agent: replace(agent, provider=provider, toolbox=Toolbox([tool(look)])))


async def talk(chat: LoopbackChannel) -> None:
    """Say the word in a message, in a file name, in a title and in commands."""
    chat.files["F"] = f"{MARK} in a file".encode()
    for _ in range(3):
        await chat.say(f"where is my {MARK}?", attachments=[offered(name=f"{MARK}.txt")])
        await chat.hear_message()
    assert MARK in await ask(chat, f"/session rename {MARK}")
    for command in ("/session list", "/history", f"/session search {MARK}", "/session export"):
        assert MARK in await ask(chat, command)


async def test_no_byte_of_a_deleted_session_is_left_after_the_next_flush(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), marking) as (daemon, chat):
        await talk(chat)
        await daemon.flusher.flush()
        await chat.say(f"and the {MARK} again?")
        await chat.hear_message()
        # A crash or a migration may have left these behind.
        sessions = tmp_path / "data/sessions"
        for name in (
            f"sessions/transcripts/{file_name(SCOPE)}.corrupt",
            f"sessions/transcripts/{file_name(SCOPE)}.corrupted-2",
            "sessions/index.json.corrupt-20260101",
            "spool.db.version-3",
            "spool.db.corrupt-20260101",
        ):
            (tmp_path / "data" / name).write_text(f"{SCOPE} {MARK}")
        (sessions / "index.json.corrupt-20260102").write_text("agent:main:loopback:direct:other")
        assert traces(tmp_path)
        assert await ask(chat, "/session delete 1 yes") == "Session 1 is deleted."
        await delivered(daemon)
        await daemon.flusher.flush()
        assert traces(tmp_path) == {}
        assert (sessions / "index.json.corrupt-20260102").exists(), "it belongs to another session"
        # The chat goes on, and no number is used twice.
        assert await ask(chat, "hello") != ""
        assert "2  hello" in await ask(chat, "/session list")


async def test_other_sessions_keep_their_text(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), marking) as (daemon, chat):
        await ask(chat, f"my {MARK}")
        await ask(chat, "/new")
        await ask(chat, "my trumpet")
        assert await ask(chat, "/session delete 1 yes") == "Session 1 is deleted."
        await daemon.flusher.flush()
        assert "my trumpet" in await ask(chat, "/history")
        assert set(traces(tmp_path, "trumpet")) >= {f"sessions/transcripts/{file_name(f'{SCOPE}#2')}"}


async def test_deleting_the_active_session_names_the_one_that_becomes_active(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), marking) as (_, chat):
        await ask(chat, "one")
        await ask(chat, "/new")
        await ask(chat, "two")
        assert await ask(chat, "/session delete 2 yes") == "Session 2 is deleted. You are now in session 1."
        assert "▸ 1" in await ask(chat, "/session list")


async def test_the_answer_of_a_turn_in_a_deleted_session_is_not_stored(tmp_path: Path) -> None:
    slow = Slow()

    def install(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda agent: replace(agent, provider=slow))

    async with gateway(settings(tmp_path), install) as (daemon, chat):
        await chat.say(f"play the {MARK}")
        await slow.is_asked.wait()
        await chat.say(f"louder, {MARK}")
        await chat.say("/session delete 1 yes")
        heard = {(await chat.hear_message()).text for _ in range(2)}
        assert heard == {"Session 1 is deleted. 1 waiting message dropped.", "*The session was deleted.*"}
        await delivered(daemon)
        await daemon.flusher.flush()
        assert traces(tmp_path) == {}


async def test_a_damaged_session_that_was_set_aside_can_be_deleted(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), marking) as (_, chat):
        await ask(chat, f"my {MARK}")
    transcript = tmp_path / "data/sessions/transcripts" / file_name(SCOPE)
    transcript.write_bytes(f"{MARK} is all that is left".encode())
    (tmp_path / "data/sessions/index.clean").unlink()
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        assert not transcript.exists()
        assert await ask(chat, "hello") != ""
        assert "Delete session 1, which can't be read, for good?" in await ask(chat, "/session delete 1")
        assert await ask(chat, "/session delete 1 yes") == "Session 1 is deleted."
        assert "There is no session 1 here" in await ask(chat, "/session delete 1 yes")
        await delivered(daemon)
        await daemon.flusher.flush()
        assert traces(tmp_path) == {}
