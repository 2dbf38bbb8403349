"""The data of every released version starts with this one, and goes on with its history.

The fixtures are data directories of real gateways that were killed in the middle of their work: see `make.py`.
"""

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path
from time import monotonic

import pytest

from config import load
from gateway.access.guests import Person
from tests.channels.telegram.bot_api import TEST_TIMEOUT, FakeBotApi, Json, bot_api
from tests.channels.telegram.harness import gateway
from tests.versions import story
from tests.versions.fixture import database_versions, read_facts, unpack, unpack_database, versions

ADA = "agent:main:telegram:direct:42"


async def said(api: FakeBotApi, chat: int, words: str, *, after: int = 0) -> str:
    """Return the first message of the bot in a chat that contains some words."""
    for number in range(after + 1, after + 200):
        fields = (await api.called("sendMessage", times=number)).fields
        if int(fields["chat_id"]) == chat and words in fields["text"]:
            return fields["text"]
    raise AssertionError(f"{words!r} was not said")


STORED = [*((version, "files") for version in versions()), *((version, "sqlite") for version in database_versions())]


@pytest.mark.parametrize(("version", "engine"), STORED)
async def test_a_gateway_goes_on_with_the_data_of_a_release(version: str, engine: str, tmp_path: Path) -> None:
    data, facts = unpack(version, tmp_path), read_facts(version)
    storage = ""
    if engine == "sqlite":
        shutil.rmtree(data / "sessions")
        for path in data.glob("spool.*"):
            path.unlink()
        storage = f'[storage]\nurl = "sqlite://{unpack_database(version, data)}"\n'
    async with asyncio.timeout(TEST_TIMEOUT), bot_api(first_update=10_000) as api:
        path = tmp_path / "gatehouse.toml"
        path.write_text(story.config(str(data), api.url) + storage)
        # The clock goes on from the moment at which the gateway was killed: codes and messages have not expired.
        began = monotonic()
        clock = lambda: facts.made + timedelta(seconds=monotonic() - began)  # noqa: E731 - it is passed on at once.
        async with gateway(load(path, {}).settings, now=clock) as daemon:

            async def ask(text: str, sender: Json, words: str) -> str:
                before = len(api.calls_of("sendMessage"))
                await api.say(text, sender=sender)
                return await said(api, int(str(sender["id"])), words, after=before)

            # The reply that was not delivered arrives, and the turn that was interrupted goes on.
            assert story.FIRST in await said(api, 42, "first thing you said")
            assert story.INTERRUPTED in await said(api, 88, "You said")

            # Everyone continues the conversation of before.
            assert "Ada Kitchen" in await ask("what is my name", story.ADA, "name is")
            assert "Bob" in await ask("what is my name", story.BOB, "name is")
            assert story.NOTE in await ask("what do you remember", story.ADA, "mat")
            assert "stretch" in await ask("/reminders", story.ADA, "stretch")
            listed = await ask("/session list", story.ADA, "Travel plans")
            assert all(title in listed for title in story.TITLES)

            # What was said before is complete, also in a session of earlier.
            assert (daemon.sessions.archived_count(ADA) == 1) is facts.has_archive
            found = await ask("/session search Lovelace", story.ADA, "Lovelace")
            assert "my name is Ada Lovelace" in found
            if facts.has_archive:
                await ask("/session restore 1", story.ADA, "is back")
            await ask("/session resume 1", story.ADA, "Back in session 1")
            assert "Ada Lovelace" in await ask("what is my name", story.ADA, "name is")
            attachments = [path.read_bytes() for path in (data / "files").glob(f"*/*{story.FILE}")]
            assert attachments == [story.FILE_CONTENT]

            # Who was let in stays in, and who was waiting still waits.
            assert Person(channel="telegram", account="default", sender="77") in daemon.pairing.guest_book.guests
            assert [each.person.sender for each in daemon.pairing.waiting()] == ["99"]

            # Nobody got an answer twice.
            stars = [call for call in api.calls_of("sendMessage") if story.INTERRUPTED in call.fields["text"]]
            assert len(stars) == 1
