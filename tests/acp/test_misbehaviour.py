"""Coding agents that die, stay silent or break the protocol: the turn ends with a reason, and the gateway goes on."""

import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.contract import Sender
from gateway.sessions import SessionStatus
from tests.acp.harness import coder, needs_sandbox, processes, received, sessions_of
from tests.daemon.harness import ask, gateway, say_and_hear
from tests.polling import until

pytestmark = needs_sandbox

BOB = Sender(id="bob", name="Bob")
ENDED = "This session has ended. Your next message starts another one, as /new @app does."


@pytest.fixture(autouse=True)
def mark(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """Return the mark of the agents of this test. None of them may be left, and the SDK must not log tracebacks."""
    mark = uuid4().hex
    with caplog.at_level(logging.WARNING):
        yield mark
    assert processes(mark) == []
    assert [record.getMessage() for record in caplog.get_records("call") if record.exc_info] == []


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home that all sessions share, for agents that fail only once."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("die=start exit=3", "it ended by itself with exit code 3"),
        ("die=initialize", "it ended by itself with exit code 1"),
        ("die=new exit=0", "it ended by itself with exit code 0"),
        ("die=set_mode", "it ended by itself with exit code 1"),
        ("die=prompt", "it ended by itself with exit code 1"),
        ("die=text", "it ended by itself with exit code 1"),
    ],
)
async def test_a_program_that_dies_ends_its_session_and_the_next_message_starts_another(
    tmp_path: Path, home: Path, mark: str, options: str, reason: str
) -> None:
    words = [*options.split(), "reason=no_such_key", "once", f"mark={mark}"]
    async with gateway(coder(tmp_path, words, home=home, mode="ask")) as (daemon, chat):
        failed = await say_and_hear(chat, "say Hello.")
        said = "Hello.\n\n" if "text" in options else ""
        assert failed.text == f"{said}*The agent coder failed: {reason}. {ENDED}*"
        assert failed.is_failure
        assert failed.details == ("no such key" if "die" in options else "")
        [session] = sessions_of(daemon)
        assert (session.status, session.status_why) == (SessionStatus.ERROR, "agent_failed")
        notice = "*Session 1 has ended with an error, so this is session 2.*"
        assert await ask(chat, "say Hello again.") == f"{notice}\n\nHello again."
        assert sessions_of(daemon)[1].repo == "app"


@pytest.mark.parametrize("options", ["silent=start", "silent=initialize", "silent=new", "silent=set_mode", "version=2"])
async def test_a_program_that_does_not_start_ends_its_session(tmp_path: Path, mark: str, options: str) -> None:
    configured = coder(tmp_path, [options, f"mark={mark}"], mode="ask", start_timeout=1.0)
    async with gateway(configured) as (daemon, chat):
        failed = await say_and_hear(chat, "say Hello.")
        late = "it did not start within 1 seconds"
        reason = "it broke the protocol: it speaks version 2 of ACP, not 1" if "version" in options else late
        assert failed.text == f"*The agent coder failed: {reason}. {ENDED}*"
        assert sessions_of(daemon)[0].status is SessionStatus.ERROR
        await until(lambda: not processes(mark))


async def test_noise_between_the_messages_of_a_turn_is_ignored(tmp_path: Path, mark: str) -> None:
    noise = [
        *("garbage", "invalid", "unknown", "other Not for this session.", "think Hm.", "commands", "config", "title T"),
        'raw {"jsonrpc": "2.0", "id": {"a": 1}, "result": {}}',
        'raw {"jsonrpc": "2.0", "id": [2], "error": {"code": 1}}',
        'raw {"jsonrpc": "2.0", "id": true, "result": {}}',
        'raw {"jsonrpc": "2.0", "id": {"b": 1}, "method": "session/request_permission"}',
        'notify session/update {"sessionId": 5}',
        'request session/request_permission {"options": 3}',
    ]
    configured = coder(tmp_path, ["garbage=new", "invalid=new", "unknown=prompt", f"mark={mark}"])
    async with gateway(configured) as (daemon, chat):
        answer = await ask(chat, " ;; ".join(["say Fine.", *noise, "say Still fine."]))
        assert answer.startswith("Fine.{")
        assert "Invalid params" in answer
        assert answer.endswith("Still fine.")
        assert await ask(chat, "say Next.") == "Next."
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]
    assert received(tmp_path).count("start") == 1


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("kill", "it was killed by signal 9"),
        ("exit 7 bad luck", "it ended by itself with exit code 7"),
        ("huge 9", "it sent a message of more than 8 MB"),
        ('raw {"jsonrpc": "2.0", "id": 3, "result": {"stopReason": 7}} ;; hang', "it broke the protocol"),
        ('raw {"jsonrpc": "2.0", "id": 3, "result": []} ;; hang', "it broke the protocol"),
        ("\n".join(["raw no JSON"] * 201), "it sent more than 200 lines that are not JSON-RPC messages"),
    ],
)
async def test_a_program_that_breaks_in_a_turn_says_why(tmp_path: Path, mark: str, script: str, reason: str) -> None:
    async with gateway(coder(tmp_path, [f"mark={mark}"])) as (daemon, chat):
        assert await ask(chat, "say Hello.") == "Hello."
        failed = await say_and_hear(chat, f"say I work.\n{script}")
        assert failed.text.startswith(f"I work.\n\n*The agent coder failed: {reason}")
        assert failed.text.endswith(f". {ENDED}*")
        assert failed.details == ("bad luck" if "luck" in script else "")
        assert sessions_of(daemon)[0].status_why == "agent_failed"
        await until(lambda: not processes(mark))


async def test_an_error_answer_fails_only_the_turn(tmp_path: Path, mark: str) -> None:
    async with gateway(coder(tmp_path, [f"mark={mark}"])) as (daemon, chat):
        failed = await say_and_hear(chat, "say I try. ;; fail -32603 no credit left")
        assert failed.text == "I try.\n\n*The agent coder couldn't answer. no credit left.*"
        assert failed.is_failure
        failed = await say_and_hear(chat, 'raw {"jsonrpc": "2.0", "id": 3, "error": "text"} ;; stop end_turn')
        assert failed.text == "*The agent coder couldn't answer. text.*"
        assert (await ask(chat, "recall")).startswith("say I try. ;; fail -32603 no credit left | raw {")
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]
    assert received(tmp_path).count("start") == 1


@pytest.mark.parametrize("point", ["initialize", "new", "set_mode"])
async def test_an_error_answer_at_the_start_leaves_the_session_open(
    tmp_path: Path, home: Path, mark: str, point: str
) -> None:
    options = [f"error={point}", "reason=you_are_not_logged_in", "once", f"mark={mark}"]
    async with gateway(coder(tmp_path, options, home=home, mode="ask")) as (daemon, chat):
        failed = await ask(chat, "say Hello.")
        assert failed == "*The agent coder can't start a session. you are not logged in.*"
        await until(lambda: not processes(mark))
        assert "Hello again." in await ask(chat, "say Hello again.")
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]


async def test_a_missing_program_leaves_the_session_open(tmp_path: Path) -> None:
    program = tmp_path / "agent"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    async with gateway(coder(tmp_path, command=(str(program),))) as (daemon, chat):
        program.unlink()
        assert f"{program} does not exist" in await ask(chat, "say Hello.")
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ACTIVE]


async def test_only_an_owner_in_a_direct_chat_sees_what_the_program_wrote(tmp_path: Path, mark: str) -> None:
    configured = coder(tmp_path, [f"mark={mark}"], channel={"dm_policy": "open", "group_policy": "open"})
    owner = Sender(id="ada", name="Ada", is_owner=True)
    async with gateway(configured) as (_, chat):
        assert (await say_and_hear(chat, "exit 1 the key is 5", sender=owner)).details == "the key is 5"
        for heard in (
            await say_and_hear(chat, "exit 1 the key is 5", sender=BOB),
            await say_and_hear(chat, "exit 1 the key is 5", sender=owner, group="team"),
        ):
            assert (heard.is_failure, heard.details) == (True, "")
            assert "the key" not in heard.text


async def test_the_sessions_of_others_go_on_when_a_program_dies(tmp_path: Path, mark: str) -> None:
    ada, eve = (Sender(id=name, name=name, is_owner=True) for name in ("ada", "eve"))
    async with gateway(coder(tmp_path, [f"mark={mark}"])) as (_, chat):
        await chat.say("say I wait. ;; wait go ;; say Done.", sender=eve, peer="eve")
        await until(lambda: "session/prompt" in received(tmp_path))
        assert "exit code 1" in await ask(chat, "die", sender=ada)
        (tmp_path / "repos" / "app" / "go").touch()
        answer = await chat.hear_message()
        assert (answer.address.peer, answer.text) == ("eve", "I wait.Done.")


async def test_a_session_in_error_cannot_be_resumed(tmp_path: Path, mark: str) -> None:
    async with gateway(coder(tmp_path, [f"mark={mark}"])) as (daemon, chat):
        await ask(chat, "die")
        refused = await ask(chat, "/session resume 1")
        assert await ask(chat, "/retry") == "There is no answer to regenerate here."
        assert "Hello." in await ask(chat, "say Hello.")
        assert await ask(chat, "/session resume 1") == refused
        sentence = "Session 1 has ended with an error, so it can only be read. /new @app starts another one."
        assert refused == await ask(chat, "/session close 1") == sentence
        assert [session.status for session in sessions_of(daemon)] == [SessionStatus.ERROR, SessionStatus.ACTIVE]
