"""Failing turns: the person is told, and the next message is answered."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from config import GatewaySettings
from gateway.adapters.services import SessionBrowser
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta
from gateway.contract import Address, PeerKind, Sender
from gateway.daemon import Daemon
from gateway.errors import ProviderBusy, ProviderFailed, Refused
from gateway.sessions import entries
from gateway.spool import SpoolUnavailable
from gateway.turns.approvals import Approvals
from gateway.turns.usage import LimitReached
from tests.agent.wire import OPENAI
from tests.daemon.harness import Slow, ask, gateway, settings, transcript_entries, transcript_json
from tests.daemon.models import said, talking

OTHERS_OFF = {"web": {"enabled": False}, "terminal": {"enabled": False}}


class Scripted:
    """A model at the edge of the gateway that fails as told, and then answers."""

    def __init__(self, *failures: Exception | float) -> None:
        self.failures = list(failures)

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        yield TextDelta(text="Half an ")
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, Exception):
                raise failure
            await asyncio.sleep(failure)
        yield TextDelta(text="answer.")


def use(daemon: Daemon, provider: Provider) -> None:
    daemon.agents.replace("main", lambda agent: replace(agent, provider=provider))


async def test_a_failure_is_shown_to_people_and_not_to_the_model(tmp_path: Path) -> None:
    refusal, answer = OPENAI.refusal(404, "model_not_found"), OPENAI.answer("Hello.")
    async with talking(tmp_path, refusal, answer) as (server, chat, daemon):
        failed = await ask(chat, "hello")
        await ask(chat, "hello again")
        _, *asked = said(server)
        shown = await ask(chat, "/history")
        (session,) = daemon.sessions.list("agent:main:loopback:direct:somebody")
        address = Address(channel="loopback", kind=PeerKind.DIRECT, peer="somebody")
        approvals = Approvals(daemon.live, daemon.sessions)
        browser = SessionBrowser(daemon.live, daemon.sessions, approvals, daemon.spool)
        lines = await browser.history(address, Sender(id="somebody", is_owner=True), limit=9)
    assert asked == ["hello", "hello again"]
    reason = failed.strip("*")
    assert reason
    assert shown == f"You: hello\n\nGateway: {reason}\n\nYou: hello again\n\nAgent: Hello."
    assert [(line.role, line.text, line.is_failure) for line in lines][1] == ("assistant", failed, True)
    assert session.messages == 3
    (stored,) = (entry for entry in transcript_entries(tmp_path) if isinstance(entry, entries.System))
    assert (stored.content, stored.is_failure) == (reason, True)


@pytest.mark.parametrize(
    ("kind", "is_owner", "sees_details"),
    [(PeerKind.DIRECT, True, True), (PeerKind.DIRECT, False, False), (PeerKind.GROUP, True, False)],
)
async def test_the_details_of_a_failure_are_for_owners_only(
    tmp_path: Path, kind: PeerKind, *, is_owner: bool, sees_details: bool
) -> None:
    failure = ProviderFailed("The model is out of credit.")
    failure.details = "openai/gpt, HTTP 402"
    table = {"loopback": {"dm_policy": "open", "group_policy": "open"}}
    async with gateway(settings(tmp_path, channels={**OTHERS_OFF, **table})) as (daemon, chat):
        use(daemon, Scripted(failure))
        await chat.say("hello", kind=kind, sender=Sender(id="ada", is_owner=is_owner))
        failed = await chat.hear_message()
    assert failed.is_failure
    assert failed.details == (failure.details if sees_details else "")
    (stored,) = (entry for entry in transcript_entries(tmp_path) if isinstance(entry, entries.System))
    assert stored.details == failed.details


async def test_the_reason_of_a_stop_is_not_part_of_the_conversation(tmp_path: Path) -> None:
    slow = Slow()
    async with gateway(settings(tmp_path)) as (daemon, chat):
        use(daemon, slow)
        await chat.say("hello")
        await slow.is_asked.wait()
        await chat.say("/stop")
        assert (await chat.hear_message()).text == "Stopped."
        await daemon.lanes.drained()
        history = await daemon.sessions.history("agent:main:loopback:direct:somebody")
    assert [type(message).__name__ for message in history] == ["UserMessage"]


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (ProviderFailed("The model is out of credit."), "*The model is out of credit.*"),
        (ZeroDivisionError(), "*Something went wrong on my side."),
    ],
)
async def test_a_model_failure_is_reported_and_the_next_message_is_answered(
    tmp_path: Path, failure: Exception, sentence: str
) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        use(daemon, Scripted(failure))
        await chat.say("hello")
        reply = await chat.hear_message()
        assert reply.is_failure
        assert reply.text.startswith(f"Half an \n\n{sentence}")
        await chat.say("again")
        assert (await chat.hear_message()).text == "Half an answer."


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (ZeroDivisionError(), "Something went wrong on my side. The bot's operator can find the details in the log."),
        (SpoolUnavailable("The disk is full."), "main now answers with other in session 1."),
    ],
)
async def test_a_failing_command_ends_neither_the_daemon_nor_its_lane(
    tmp_path: Path, failure: Exception, sentence: str
) -> None:
    failures = [failure]

    def about(name: str) -> ModelInfo:
        if failures:
            raise failures.pop()
        return ModelInfo(name=name)

    async with gateway(settings(tmp_path)) as (daemon, chat):
        await chat.say("hello")
        await chat.hear_message()
        daemon.agents.replace("main", lambda agent: replace(agent, about=about))
        await chat.say("/model other")
        assert (await chat.hear_message()).text == sentence
        await chat.say("/history")
        assert "hello" in (await chat.hear_message()).text


async def test_a_hanging_model_is_timed_out(tmp_path: Path) -> None:
    quick = GatewaySettings(data_dir=tmp_path / "data", turn_timeout=0.2)
    async with gateway(settings(tmp_path, gateway=quick)) as (daemon, chat):
        use(daemon, Scripted(3600.0))
        await chat.say("hello")
        reply = await chat.hear_message()
        assert reply.is_failure
        assert "longer than 0.2 seconds" in reply.text
        await chat.say("again")
        assert (await chat.hear_message()).text == "Half an answer."


def unlinked(folder: Path) -> None:
    for transcript in (folder / "data/sessions/transcripts").iterdir():
        transcript.unlink()


@pytest.mark.parametrize("damage", [unlinked])
async def test_a_session_whose_file_is_gone_is_reported_and_replaced(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        use(daemon, Scripted())
        await chat.say("hello")
        await chat.hear_message()
        damage(tmp_path)
        texts = []
        for _ in range(3):
            await chat.say("still there?")
            texts.append((await chat.hear_message()).text)
        assert texts[-1] == "Half an answer."


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (ProviderFailed("No."), "model"),
        (ProviderBusy("Later."), "model"),
        (LimitReached("Enough."), "limit"),
        (Refused("Not this."), "refused"),
        (RuntimeError("A bug."), "bug"),
    ],
)
async def test_the_transcript_says_why_a_turn_failed(tmp_path: Path, failure: Exception, cause: str) -> None:
    async with gateway(settings(tmp_path), lambda daemon: use(daemon, Scripted(failure))) as (_, chat):
        await ask(chat, "hello")
    assert [entry["reason"] for entry in transcript_json(tmp_path) if entry["type"] == "turn_end"] == [cause]
