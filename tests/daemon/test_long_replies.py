"""An answer that would take too many messages is sent as a file, with its beginning as a preview."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import pytest

from config import Settings
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.contract import Channel, Outbound
from gateway.daemon import Daemon
from gateway.errors import ProviderFailed
from gateway.outbound.long_replies import LongReplies
from gateway.sessions import entries
from tests.daemon.harness import SCOPE, begin_a_session, gateway, settings, transcript_entries
from tests.outbound.harness import ADDRESS, FileWire, Wire

SENTENCE = "The quick brown fox jumps over the lazy dog. "
LONG = SENTENCE * 23_000
"""More than a megabyte, which would be 260 messages."""


class Long:
    """A model that answers with a given text."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        yield TextDelta(text=self._text)


def answering(daemon: Daemon, text: str) -> None:
    daemon.agents.replace("main", lambda agent: replace(agent, provider=Long(text)))


async def test_a_very_long_answer_is_a_preview_and_a_file(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        answering(daemon, LONG)
        await chat.say("tell me everything")
        preview, file = [await chat.hear_message() for _ in range(2)]
        (stored,) = (tmp_path / "data/files").glob("*/*-answer.md")
        assert stored.read_text() == LONG
    assert preview.text.startswith(SENTENCE)
    assert len(preview.text) < 1_200
    assert "The file answer.md has all of it" in preview.text
    assert preview.file is None
    assert file.file is not None
    assert (file.file.name, file.file.media_type, file.file.size) == ("answer.md", "text/markdown", len(LONG))
    answers = [entry.content for entry in transcript_entries(tmp_path) if isinstance(entry, entries.Assistant)]
    assert answers == [LONG], "The transcript has the whole answer."


def with_limits(folder: Path, *, gateway_wide: int | None = None, channel: int | None = None) -> Settings:
    wide = {} if gateway_wide is None else {"max_reply_parts": gateway_wide}
    own = {} if channel is None else {"max_reply_parts": channel}
    return settings(
        folder,
        gateway={"data_dir": folder / "data", **wide},
        channels={"loopback": {"enabled": True, "dm_policy": "open", **own}},
    )


@pytest.mark.parametrize(
    ("gateway_wide", "channel", "parts", "is_file"),
    [
        (None, None, 5, False),
        (None, None, 6, True),
        (2, None, 3, True),
        (2, 10, 9, False),
        (None, 1, 2, True),
        (0, None, 12, False),
    ],
)
async def test_the_limit_is_set_for_the_gateway_or_a_channel(
    tmp_path: Path, gateway_wide: int | None, channel: int | None, parts: int, *, is_file: bool
) -> None:
    async with gateway(with_limits(tmp_path, gateway_wide=gateway_wide, channel=channel)) as (daemon, chat):
        answering(daemon, SENTENCE * (88 * parts - 10))
        await chat.say("tell me more")
        messages = [await chat.hear_message() for _ in range(2 if is_file else parts)]
    assert [message.file is not None for message in messages] == ([False, True] if is_file else [False] * parts)


async def test_a_failed_answer_shows_its_failure_in_the_preview(tmp_path: Path) -> None:
    class Failing(Long):
        async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            yield TextDelta(text=LONG)
            raise ProviderFailed("The model cannot be reached.")

    async with gateway(settings(tmp_path)) as (daemon, chat):
        daemon.agents.replace("main", lambda agent: replace(agent, provider=Failing(LONG)))
        await chat.say("tell me everything")
        preview = await chat.hear_message()
    assert preview.text.endswith("*The model cannot be reached.*")


async def test_a_channel_that_cannot_send_the_file_gets_the_answer_in_parts(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    reply = Outbound(address=ADDRESS, text=LONG)
    channels: tuple[Channel, ...] = (Wire(), FileWire())
    async with gateway(settings(tmp_path)) as (daemon, _):
        for channel in channels:
            replies = LongReplies(
                daemon.live, {("wire", "default"): channel}, daemon.store, daemon.sessions, lambda _: 0
            )
            assert await replies.shorten([reply], turn="t", session=SCOPE, note="") == [reply]
            fitting = Outbound(address=ADDRESS, text=SENTENCE * 20)
            (sent,) = await replies.shorten([fitting], turn="t", session=SCOPE, note="")
            assert (sent.file is not None) == isinstance(channel, FileWire)


async def test_messages_that_were_streamed_stay_when_the_answer_becomes_a_file(tmp_path: Path) -> None:
    has_seen_two = asyncio.Event()

    class Streaming:
        async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            yield TextDelta(text=LONG[:9_000])
            await has_seen_two.wait()
            yield TextDelta(text=LONG[9_000:])

    shown: dict[str, str] = {}
    async with gateway(settings(tmp_path)) as (daemon, chat):
        daemon.agents.replace("main", lambda agent: replace(agent, provider=Streaming()))
        await chat.say("tell me everything")
        while True:
            heard = await chat.hear()
            if heard.how == "file":
                break
            if heard.how not in {"send", "edit"} or heard.message is None:
                continue
            assert heard.message.text.startswith(shown.get(heard.key, "").rstrip()), "What people read stays."
            shown[heard.key] = heard.message.text
            if len(shown) == 2:
                has_seen_two.set()
    text = "".join(shown.values())
    assert "The file answer.md has all of it" in text
    assert LONG.startswith(text[:9_000])
