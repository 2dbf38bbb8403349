"""Failing turns: the person is told, and the next message is answered."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from config import GatewaySettings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta
from gateway.daemon import Daemon
from gateway.errors import ProviderFailed
from gateway.spool import SpoolFull
from tests.daemon.harness import gateway, settings


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
        (SpoolFull("The disk is full."), "main now answers with other in session 1."),
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
