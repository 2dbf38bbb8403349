"""The whole channel under the real discord.py, against a fake Discord server."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping

import pytest

from channels.discord import open_channel
from channels.discord.errors import NO_INTENT
from config import ChannelSettings, Secret
from gateway.adapters.services import InMemoryStore
from gateway.contract import (
    Channel,
    ChannelContext,
    DropsRepeats,
    Edits,
    FetchesFiles,
    OffersButtons,
    Reacts,
    SendsFiles,
    ShowsTyping,
)
from gateway.errors import AuthRejected, CannotStart, Transient, Undeliverable
from gateway.testing import StubBrowser
from tests.channels.discord.fake_discord import (
    ADAS,
    BOB,
    CHANNEL,
    FakeDiscord,
    refusal,
)
from tests.channels.discord.harness import (
    ADAS_CHAT,
    REPLY,
    Core,
    PulseRecorder,
    open_discord,
    running,
)
from tests.channels.harness import TEST_TIMEOUT


def test_opening_the_channel_does_not_import_discord_py() -> None:
    code = "import sys, channels.discord; print([name for name in sys.modules if name.split('.')[0] == 'discord'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("token", [None, Secret("no token"), Secret("Bot a.b.c"), Secret("a.b")])
def test_a_malformed_token_is_a_config_error(token: Secret | None, pulse: PulseRecorder) -> None:
    context = ChannelContext(
        name="discord",
        account="work",
        settings=ChannelSettings(token=token),
        browser=StubBrowser(),
        notebook=InMemoryStore(),
        pulse=pulse,
    )
    with pytest.raises(CannotStart, match=r"channels\.discord\.accounts\.work\.token"):
        open_channel(context)


async def test_sending_before_the_channel_runs_is_transient(discord: FakeDiscord, pulse: PulseRecorder) -> None:
    with pytest.raises(Transient):
        await open_discord(discord, pulse).send(REPLY, key="k1")


async def test_has_the_abilities_of_the_platform(channel: Channel) -> None:
    for ability in (Edits, ShowsTyping, OffersButtons, DropsRepeats, Reacts, FetchesFiles, SendsFiles):
        assert isinstance(channel, ability)


async def test_text_is_received_and_sent(channel: Channel, discord: FakeDiscord, core: Core) -> None:
    await discord.say("hello")
    taken = await core.next_message()
    assert (taken.text, taken.address, taken.sender.id, taken.sender.name) == ("hello", ADAS_CHAT, "42", "Ada L")
    receipt = await channel.send(REPLY, key="k1")
    (call,) = discord.calls_of("send")
    assert call.body["content"] == "**good** day"
    assert call.body["allowed_mentions"] == {"parse": []}
    assert call.body["flags"] == 4
    assert "message_reference" not in call.body
    assert receipt.message_id == f"{ADAS}:{discord.sent()[0]['id']}"
    assert not discord.calls_of("direct")


async def test_the_channel_can_be_stopped_while_the_disk_is_full(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    class Full(InMemoryStore):
        async def write(self, facts: Mapping[str, str | None]) -> None:
            raise Transient(f"There is no room for {len(facts)} facts.")

    channel = open_discord(discord, pulse, notebook=Full())
    async with asyncio.timeout(TEST_TIMEOUT), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(channel.run(core.deliver), name="channel")
        await pulse.wait_for("up".__eq__)
        await discord.say("hello")
        await pulse.wait_for(lambda beat: "no room" in beat)
        task.cancel()
        await asyncio.wait({task})
    assert task.cancelled()


async def test_slash_commands_are_registered_only_when_they_change(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    for _ in range(2):
        async with running(open_discord(discord, pulse), core.deliver, pulse):
            pass
        pulse.states.clear()
    assert [command["name"] for command in discord.commands] == ["new"]
    assert len(discord.calls_of("set_commands")) == 1


async def test_the_channel_runs_even_if_slash_commands_are_refused(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    discord.scripted["set_commands"].append(refusal(400, 50035, "Invalid Form Body"))
    async with running(open_discord(discord, pulse), core.deliver, pulse):
        await discord.say("hello")
        assert (await core.next_message()).text == "hello"


async def test_without_the_content_intent_the_bot_connects_and_warns(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    discord.flags = 0
    async with running(open_discord(discord, pulse), core.deliver, pulse):
        await discord.say("", channel=CHANNEL, author=BOB)
        await discord.say("hello")
        assert (await core.next_message()).text == "hello"
    assert not discord.gateway.identifies[0]["intents"] & (1 << 15)
    assert "Message Content Intent" in capsys.readouterr().out


@pytest.mark.parametrize(("code", "word"), [(4004, "token"), (4014, "Message Content Intent"), (4013, "intents")])
async def test_a_fatal_close_code_retires_the_channel(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder, code: int, word: str
) -> None:
    discord.gateway.refusals.append(code)
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(AuthRejected, match=word):
            await open_discord(discord, pulse).run(core.deliver)
    assert len(discord.gateway.identifies) == 1
    assert NO_INTENT.count(".") == 1


async def test_a_rejected_token_retires_the_channel(discord: FakeDiscord, core: Core, pulse: PulseRecorder) -> None:
    async with asyncio.timeout(TEST_TIMEOUT):
        with pytest.raises(AuthRejected, match="token"):
            await open_discord(discord, pulse, token="a.b.c").run(core.deliver)


async def test_a_file_is_fetched_from_its_current_url(channel: Channel, discord: FakeDiscord, core: Core) -> None:
    discord.files["a.txt"] = b"what is in it"
    file = {"id": "8", "filename": "../a.txt", "size": 13, "content_type": "text/plain; charset=utf-8"}
    said = await discord.say("look", attachments=[{**file, "url": "http://an-address.invalid/that-is-old"}])
    (attachment,) = (await core.next_message()).attachments
    assert (attachment.name, attachment.media_type) == ("_a.txt", "text/plain")
    discord.messages[ADAS][-1]["attachments"] = [{**file, "url": f"{discord.url}/files/a.txt"}]
    assert isinstance(channel, FetchesFiles)
    assert b"".join([chunk async for chunk in channel.fetch(attachment, ADAS_CHAT)]) == b"what is in it"
    discord.scripted["file"] += [(503, b""), (429, b""), (404, b"")]
    for reaction in (Transient, Transient, Undeliverable):
        with pytest.raises(reaction):
            _ = [chunk async for chunk in channel.fetch(attachment, ADAS_CHAT)]
    discord.messages[ADAS].remove(next(each for each in discord.messages[ADAS] if each["id"] == said["id"]))
    with pytest.raises(Undeliverable):
        _ = [chunk async for chunk in channel.fetch(attachment, ADAS_CHAT)]
