"""Recorded Discord payloads, translated to our messages."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.discord.wire import DiscordBot, DiscordChat, button_rows, created_at, read_message
from gateway.contract import AttachmentKind, Button, Inbound, PeerKind, Quote
from tests.channels.discord.fake_discord import ADA, BOB, BOT

THE_BOT = DiscordBot(channel="discord", account="default", id="900", role="950")
DIRECT = DiscordChat(channel="601")
GUILD_CHANNEL = DiscordChat(channel="501", guild="500")
THREAD = DiscordChat(channel="502", guild="500", parent="501")


def message(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - Discord payloads have no fixed shape.
    return {"id": "1571765967107653632", "channel_id": "601", "author": ADA, "content": "hello", "type": 0, **fields}


def taken(chat: DiscordChat = GUILD_CHANNEL, **fields: Any) -> Inbound:  # noqa: ANN401 - as above.
    inbound = read_message(message(**fields), chat, THE_BOT)
    assert inbound is not None
    return inbound


def test_addresses_of_direct_chats_channels_and_threads() -> None:
    direct, channel, thread = (taken(chat) for chat in (DIRECT, GUILD_CHANNEL, THREAD))
    assert (direct.address.kind, direct.address.peer, direct.guild) == (PeerKind.DIRECT, "42", None)
    assert (channel.address.kind, channel.address.peer, channel.guild) == (PeerKind.CHANNEL, "501", "500")
    assert (thread.address.peer, thread.address.thread, thread.guild) == ("501", "502", "500")


def test_a_snowflake_contains_its_time() -> None:
    assert created_at("175928847299117063").isoformat() == "2016-04-30T11:18:25.796000+00:00"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, False),
        ({"mentions": [BOT]}, True),
        ({"mentions": [BOB]}, False),
        ({"mention_roles": ["950"]}, True),
        ({"mention_roles": ["951"]}, False),
        ({"type": 19, "referenced_message": {"author": BOT}}, True),
        ({"type": 19, "referenced_message": {"author": BOB}}, False),
        ({"type": 19, "referenced_message": None}, False),
    ],
)
def test_in_a_server_the_bot_must_be_mentioned_or_replied_to(fields: dict[str, Any], *, expected: bool) -> None:
    assert taken(**fields).is_addressed is expected
    assert taken(DIRECT, **fields).is_addressed


def test_without_require_mention_every_message_addresses_the_bot() -> None:
    bot = DiscordBot(channel="discord", account="default", id="900", must_be_mentioned=False)
    inbound = read_message(message(), GUILD_CHANNEL, bot)
    assert inbound is not None
    assert inbound.is_addressed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<@900> /new", "/new"),
        ("<@!900>, hello", "hello"),
        ("<@&950> /new", "/new"),
        ("<@&951> /new", "<@&951> /new"),
        ("hello <@900>", "hello @gate"),
        ("ask <@77> or <@5>", "ask @bob or <@5>"),
        ("<@77> hello", "@bob hello"),
        ("  spaces", "spaces"),
    ],
)
def test_mentions_become_names_and_a_leading_mention_of_the_bot_is_removed(text: str, expected: str) -> None:
    assert taken(content=text, mentions=[BOT, BOB]).text == expected


@pytest.mark.parametrize("fields", [{"author": BOT}, {"webhook_id": "1"}, {"type": 7}])
def test_messages_not_written_by_a_person_are_skipped(fields: dict[str, Any]) -> None:
    assert read_message(message(**fields), DIRECT, THE_BOT) is None


def test_an_empty_message_in_a_server_is_read_only_if_it_mentions_the_bot() -> None:
    """Without the content intent, everything that people say to each other is empty."""
    assert read_message(message(content=""), GUILD_CHANNEL, THE_BOT) is None
    assert read_message(message(content=""), GUILD_CHANNEL, replace(THE_BOT, must_be_mentioned=False)) is None
    assert taken(content="<@900>", mentions=[BOT]).text == ""
    assert taken(DIRECT, content="").text == ""


def test_the_sender_has_the_name_shown_in_the_server() -> None:
    assert taken(member={"nick": "The Countess"}).sender.name == "The Countess"
    assert taken(author=BOB).sender.name == "bob"


@pytest.mark.parametrize(
    ("replied", "expected"),
    [
        (None, None),
        ({"author": BOB, "content": "It\nrains."}, Quote(author="bob", text="It\nrains.")),
        ({"author": BOT, "content": "Hi"}, Quote(author="gate", text="Hi", is_ours=True)),
        ({"author": BOB, "content": "<@42>?", "mentions": [ADA]}, Quote(author="bob", text="@Ada L?")),
        ({"author": BOB, "content": "", "embeds": [{"title": "News"}]}, Quote(author="bob", text="News")),
        ({"author": BOB, "content": ""}, None),
    ],
)
def test_a_reply_quotes_the_message_it_answers(replied: dict[str, Any] | None, expected: Quote | None) -> None:
    inbound = taken(type=19, referenced_message=replied)
    assert (inbound.text, inbound.quotes) == ("hello", expected)


def test_a_reply_without_files_has_the_files_of_the_message_it_answers() -> None:
    replied = {"id": "7", "author": BOB, "content": "", "attachments": [{"id": "1", "filename": "a.pdf"}]}
    (theirs,) = taken(type=19, referenced_message=replied).attachments
    assert (theirs.name, theirs.ref) == ("a.pdf", "501:7:1")
    (own,) = taken(type=19, referenced_message=replied, attachments=[{"id": "2", "filename": "b.pdf"}]).attachments
    assert own.name == "b.pdf"
    assert taken(type=19, referenced_message=replied | {"author": BOT}).attachments == ()


def test_a_forward_is_marked_and_keeps_its_files() -> None:
    snapshot = {"message": {"content": "/restart", "attachments": [{"id": "1", "filename": "a.png"}]}}
    inbound = taken(content="", message_reference={"type": 1}, message_snapshots=[snapshot])
    assert (inbound.text, inbound.forwarded_from) == ("/restart", "")
    assert len(inbound.attachments) == 1


def test_a_forwarded_bot_post_has_the_text_of_its_embeds() -> None:
    embed = {"title": "News", "description": "It rains.", "fields": [{"name": "Where", "value": "here"}]}
    container = {"type": 17, "components": [{"type": 10, "content": "More news"}, {"type": 14}]}
    for post, expected in (
        ({"embeds": [embed]}, "News\nIt rains.\nWhere: here"),
        ({"components": [container]}, "More news"),
    ):
        snapshot = {"message": {"content": "", **post}}
        inbound = taken(content="", message_reference={"type": 1}, message_snapshots=[snapshot])
        assert (inbound.text, inbound.forwarded_from) == (expected, "")
    assert taken(embeds=[embed]).text == "hello"


@pytest.mark.parametrize(
    ("file", "flags", "kind"),
    [
        ({"content_type": "image/png"}, 0, AttachmentKind.IMAGE),
        ({"content_type": "audio/ogg"}, 1 << 13, AttachmentKind.VOICE),
        ({"content_type": "audio/ogg"}, 0, AttachmentKind.AUDIO),
        ({"content_type": "video/mp4"}, 0, AttachmentKind.VIDEO),
        ({}, 0, AttachmentKind.FILE),
    ],
)
def test_files_are_attachments(file: dict[str, Any], flags: int, kind: AttachmentKind) -> None:
    inbound = taken(content="", flags=flags, attachments=[{"id": "8", "filename": "../x", "size": 3, **file}])
    (attachment,) = inbound.attachments
    assert (attachment.kind, attachment.size, attachment.ref) == (kind, 3, f"501:{inbound.message_id}:8")
    assert "/" not in attachment.name


def test_stickers_and_polls_become_notes() -> None:
    poll = {"question": {"text": "Where?"}, "answers": [{"poll_media": {"text": "Here"}}]}
    assert taken(content="", sticker_items=[{"name": "Wave"}]).text == "[sticker Wave]"
    assert taken(content="", poll=poll).text == "[poll: Where?, Here]"


def test_buttons_stay_within_discords_limits() -> None:
    rows = button_rows([Button(label="x" * 200, command="/a"), Button(label="", command="/b" * 51)])
    assert len(rows) == 1
    assert len(rows[0]["components"]) == 1
    assert len(rows[0]["components"][0]["label"]) <= 80
    assert button_rows([]) == []


@given(st.text(), st.integers(min_value=0, max_value=2**63 - 1))
def test_any_text_is_read_or_skipped(text: str, number: int) -> None:
    inbound = read_message(message(content=text, id=str(number)), GUILD_CHANNEL, THE_BOT)
    assert (inbound is None) == (not text.strip())
