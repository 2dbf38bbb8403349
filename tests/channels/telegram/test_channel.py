"""The channel, against a server that speaks the Bot API."""

import pytest

from channels.telegram import open_channel
from config import ChannelSettings, Secret
from gateway.contract import Channel, Drafts, Edits, OffersButtons, ShowsTyping
from gateway.errors import CannotStart, Transient
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi
from tests.channels.telegram.harness import HERE, REPLY, Core, PulseRecorder, channel_context, opened


@pytest.mark.parametrize("token", [None, Secret("no token"), Secret("123:"), Secret("123:a b")])
def test_a_missing_or_malformed_token_is_a_config_error(token: Secret | None) -> None:
    context = channel_context(ChannelSettings(token=token), account="work")
    with pytest.raises(CannotStart, match=r"channels\.telegram\.accounts\.work\.token"):
        open_channel(context)


async def test_text_goes_both_ways(channel: Channel, api: FakeBotApi, core: Core) -> None:
    await api.say("hello")
    inbound = await core.next_message()
    assert (inbound.text, inbound.address, inbound.sender.id, inbound.sender.name) == ("hello", HERE, "42", "Ada L")
    receipt = await channel.send(REPLY, key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["text"] == "<b>good</b> day"
    assert sent.json("link_preview_options") == {"is_disabled": True}
    assert "reply_parameters" not in sent.fields
    assert receipt.message_id.startswith("42:")


async def test_the_channel_has_the_abilities_of_telegram(channel: Channel) -> None:
    assert isinstance(channel, Drafts)
    assert isinstance(channel, Edits)
    assert isinstance(channel, ShowsTyping)
    assert isinstance(channel, OffersButtons)


async def test_sending_before_the_channel_runs_is_transient(api: FakeBotApi, pulse: PulseRecorder) -> None:
    with pytest.raises(Transient):
        await opened(api, pulse).send(REPLY, key="k1")


@pytest.mark.parametrize("key", ["allow", "group_allow"])
def test_names_in_a_list_of_ids_are_a_config_error(key: str) -> None:
    settings = ChannelSettings.model_validate({"token": TOKEN, key: [42, "@ada"]})
    with pytest.raises(CannotStart, match="@ada"):
        open_channel(channel_context(settings, account="work"))
