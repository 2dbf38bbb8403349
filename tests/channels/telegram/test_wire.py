import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import fields, replace

from channels.telegram.payloads import Message, RichMessage, Update, parse_update
from channels.telegram.wire import TOO_DEEP, BotIdentity, keyboard, read_migration, read_update
from gateway.contract import AttachmentKind, Button, Inbound, PeerKind, Quote
from tests.channels.telegram.bot_api import ADA, BOB, BOT, GROUP
from tests.channels.telegram.generated_updates import updates

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
IDENTITY = BotIdentity(channel="telegram", account="default", id=123456, username="gate_bot")
PRIVATE = {"id": 42, "type": "private", "first_name": "Ada"}
SENT = 1_772_366_400
MENTION = {"type": "mention", "offset": 3, "length": 9}
NEWS = {"id": -5, "type": "channel", "title": "News"}

Json = dict[str, Any]  # JSON of any shape.


def message(text: str | None = None, **fields: object) -> Json:
    told = {} if text is None else {"text": text}
    return {"message_id": 5, "date": SENT, "chat": PRIVATE, "from": ADA, **told, **fields}


def an_update(kind: str, content: Json) -> Update:
    received = parse_update(json.dumps({"update_id": 1, kind: content}))
    assert received is not None
    assert received.update is not None
    return received.update


def parsed(content: Json, kind: str = "message", bot: BotIdentity = IDENTITY) -> Inbound | None:
    return read_update(an_update(kind, content), bot, now=NOW)


def accepted(content: Json, kind: str = "message", bot: BotIdentity = IDENTITY) -> Inbound:
    inbound = parsed(content, kind, bot)
    assert inbound is not None
    return inbound


def in_group(text: str, *entities: tuple[str, int, int], **fields: object) -> Json:
    found = [{"type": kind, "offset": offset, "length": length} for kind, offset, length in entities]
    return message(text, chat=GROUP, entities=found, **fields)


def test_a_private_message_is_read() -> None:
    inbound = accepted(message("hello"))
    assert (inbound.address.kind, inbound.address.peer, inbound.address.thread) == (PeerKind.DIRECT, "42", None)
    assert (inbound.event_id, inbound.message_id, inbound.is_addressed) == ("42:5", "5", True)
    assert inbound.sent_at == datetime.fromtimestamp(SENT, UTC)


def test_a_field_that_is_null_counts_as_absent() -> None:
    optional = [field.encode_name for field in fields(Message) if not field.required]
    assert accepted({**dict.fromkeys(optional), **message("hello")}) == accepted(message("hello"))


def test_a_rich_message_that_is_nested_too_deeply_is_still_a_message() -> None:
    block: object = "text"
    for _ in range(20_000):
        block = {"blocks": [block]}
    plain = an_update("message", message()).message
    assert plain is not None
    nested = replace(plain, rich_message=RichMessage(blocks=[block]))
    inbound = read_update(Update(update_id=1, message=nested), IDENTITY, now=NOW)
    assert inbound is not None
    assert inbound.text == TOO_DEEP


def test_a_topic_is_a_thread_but_a_chain_of_replies_is_not() -> None:
    assert accepted(message("a", chat=GROUP, is_topic_message=True, message_thread_id=7)).address.thread == "7"
    assert accepted(message("a", chat=GROUP, message_thread_id=7)).address.thread is None


def test_an_edit_is_a_separate_event_that_names_the_edited_message() -> None:
    inbound = accepted(message("hello", edit_date=SENT + 60), "edited_message")
    assert (inbound.event_id, inbound.edits, inbound.text) == ("42:5:1", "42:5", "hello")
    assert inbound.sent_at == datetime.fromtimestamp(SENT, UTC)
    assert accepted(message("hello")).edits is None


@pytest.mark.parametrize(
    ("content", "chat"),
    [
        ({"migrate_from_chat_id": -5}, GROUP),
        ({"migrate_to_chat_id": GROUP["id"]}, {"id": -5, "type": "group", "title": "The group"}),
    ],
)
def test_a_group_that_becomes_a_supergroup_is_a_migration(content: Json, chat: Json) -> None:
    update = an_update("message", message(chat=chat, **content))
    change = read_migration(update, IDENTITY)
    assert change is not None
    assert [(each.peer, each.kind) for each in change] == [("-5", PeerKind.GROUP), ("-1001", PeerKind.GROUP)]
    assert read_migration(an_update("message", message("hi")), IDENTITY) is None


def test_a_live_location_is_read_once() -> None:
    moving = message(location={"latitude": 1.5, "longitude": 2, "live_period": 60}, edit_date=SENT)
    assert accepted(moving).text == "[location: 1.500000, 2.000000]"
    assert parsed(moving, "edited_message") is None


@pytest.mark.parametrize(
    ("content", "is_addressed"),
    [
        (in_group("hello"), False),
        (in_group("hello @gate_bot", ("mention", 6, 9)), True),
        (in_group("😀 @Gate_Bot", ("mention", 3, 9)), True),
        (in_group("hello @gate_bot2", ("mention", 6, 10)), False),
        (in_group("/status", ("bot_command", 0, 7)), True),
        (in_group("/status@Gate_bot", ("bot_command", 0, 16)), True),
        (in_group("see /status", ("bot_command", 4, 7)), False),
        (in_group("yes", reply_to_message={"message_id": 4, "date": 1, "chat": GROUP, "from": BOT}), True),
        (in_group("yes", reply_to_message={"message_id": 4, "date": 1, "chat": GROUP, "from": BOB}), False),
        (
            message(
                caption="look @gate_bot", caption_entities=[{"type": "mention", "offset": 5, "length": 9}], chat=GROUP
            ),
            True,
        ),
        (
            message("Gate, hi", entities=[{**MENTION, "type": "text_mention", "user": BOT}], chat=GROUP),
            True,
        ),
    ],
)
def test_in_a_group_the_bot_is_addressed_by_mention_command_or_reply(content: Json, is_addressed: bool) -> None:  # noqa: FBT001 - a table's column.
    assert accepted(content).is_addressed is is_addressed


def test_an_entity_that_begins_inside_a_surrogate_pair_does_no_harm() -> None:
    assert accepted(in_group("😀 hi", ("mention", 1, 1), ("bot_command", 0, 1))).text == "😀 hi"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"checklist": {"title": "Trip", "tasks": [{"id": 1, "text": "pack"}]}}, "[checklist: Trip, pack]"),
        ({"story": {"chat": PRIVATE, "id": 1}}, "[story]"),
        ({"paid_media": {"star_count": 5, "paid_media": [{"type": "preview"}]}}, "[paid media]"),
        ({"game": {"title": "Chess", "description": "d", "photo": []}}, "[game: Chess]"),
    ],
)
def test_content_that_bots_cannot_see_becomes_a_note(content: Json, text: str) -> None:
    assert accepted(message(**content)).text == text


def test_the_text_of_a_rich_message_is_read() -> None:
    paragraph = {"type": "paragraph", "text": ["see ", {"type": "bold", "text": "this"}]}
    item = {"label": "1.", "blocks": [{"type": "pre", "text": "code"}]}
    table = {"type": "table", "cells": [[{"align": "left", "valign": "top", "text": "cell"}]]}
    blocks = [paragraph, {"type": "list", "items": [item]}, {"type": "divider"}, table]
    assert accepted(message(rich_message={"blocks": blocks})).text == "see this\n1.\ncode\ncell"


def test_a_message_in_a_topic_that_the_bot_created_is_not_a_reply_to_the_bot() -> None:
    opening = {"message_id": 4, "date": 1, "chat": GROUP, "from": BOT}
    opening["forum_topic_created"] = {"name": "t", "icon_color": 1}
    assert not accepted(in_group("hello", reply_to_message=opening)).is_addressed


def test_without_require_mention_everything_but_commands_for_other_bots_is_addressed() -> None:
    eager = BotIdentity(channel="telegram", account="default", id=1, username="gate_bot", must_be_mentioned=False)
    assert accepted(in_group("hello"), bot=eager).is_addressed
    assert parsed(in_group("/new@other_bot", ("bot_command", 0, 14)), bot=eager) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("@gate_bot /new", "/new"),
        ("@Gate_Bot, hi", "hi"),
        ("@gate_bottle hi", "@gate_bottle hi"),
        ("@gate_bot", "@gate_bot"),
    ],
)
def test_the_bots_name_is_removed_from_the_start_of_a_text(text: str, expected: str) -> None:
    assert accepted(in_group(text)).text == expected


@pytest.mark.parametrize(
    ("origin", "name"),
    [
        ({"type": "user", "date": 1, "sender_user": BOB}, "Bob"),
        ({"type": "hidden_user", "date": 1, "sender_user_name": "Someone else"}, "Someone else"),
        ({"type": "chat", "date": 1, "sender_chat": GROUP}, "The group"),
        (
            {"type": "channel", "date": 1, "chat": NEWS, "message_id": 1},
            "News",
        ),
    ],
)
def test_a_forwarded_message_names_its_author(origin: Json, name: str) -> None:
    assert accepted(message("/new", forward_origin=origin)).forwarded_from == name
    assert accepted(message("/new")).forwarded_from is None


EARLIER = {"message_id": 3, "date": SENT, "chat": GROUP, "from": {"id": 7, "is_bot": False, "first_name": "Bob"}}
OURS = {**EARLIER, "from": {"id": IDENTITY.id, "is_bot": True, "first_name": "Gate"}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"reply_to_message": EARLIER | {"text": "It\nrains."}}, Quote(author="Bob", text="It\nrains.")),
        ({"reply_to_message": EARLIER | {"sender_chat": NEWS, "text": "Rain"}}, Quote(author="News", text="Rain")),
        ({"reply_to_message": OURS | {"text": "Hi"}}, Quote(author="Gate", text="Hi", is_ours=True)),
        (
            {"reply_to_message": EARLIER | {"dice": {"emoji": "🎲", "value": 4}}},
            Quote(author="Bob", text="[dice 🎲: 4]"),
        ),
        (
            {"reply_to_message": EARLIER | {"text": "It rains."}, "quote": {"text": "rains", "position": 3}},
            Quote(author="Bob", text="rains"),
        ),
        (
            {"reply_to_message": EARLIER | {"forum_topic_created": {"name": "Rain", "icon_color": 1}}},
            None,
        ),
        (
            {
                "external_reply": {"origin": {"type": "hidden_user", "date": SENT, "sender_user_name": "Eve"}},
                "quote": {"text": "Psst", "position": 0},
            },
            Quote(author="Eve", text="Psst"),
        ),
    ],
)
def test_a_reply_quotes_the_message_it_refers_to(fields: Json, expected: Quote | None) -> None:
    inbound = accepted(message("What does that mean?", **fields))
    assert (inbound.text, inbound.quotes) == ("What does that mean?", expected)


def test_a_reply_without_files_gets_the_files_of_the_message_it_refers_to() -> None:
    replied = EARLIER | {"document": {**FILE, "file_name": "a.pdf"}}
    (theirs,) = accepted(message("Read that.", reply_to_message=replied)).attachments
    assert theirs.name == "a.pdf"
    own = {"document": {**FILE, "file_name": "b.pdf"}, "caption": "Or that."}
    assert [file.name for file in accepted(message(None, reply_to_message=replied, **own)).attachments] == ["b.pdf"]
    assert accepted(message("And?", reply_to_message=OURS | replied | {"from": OURS["from"]})).attachments == ()


POINT = {"latitude": 1, "longitude": 2}
VENUE = {"location": POINT, "title": "Inn", "address": "Road"}
STILL = {"type": "regular", "is_animated": False, "is_video": False}
FLAT = {"width": 1, "height": 1}
FILE = {"file_id": "F", "file_unique_id": "U", "file_size": 10}


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        ({"photo": [{**FILE, **FLAT}], "caption": "look"}, AttachmentKind.IMAGE, "look"),
        ({"document": {**FILE, "file_name": "../../etc/x"}}, AttachmentKind.FILE, ""),
        ({"voice": {**FILE, "duration": 1}}, AttachmentKind.VOICE, ""),
        ({"audio": {**FILE, "duration": 1, "file_name": "a.mp3"}}, AttachmentKind.AUDIO, ""),
        ({"video": {**FILE, **FLAT, "duration": 1}}, AttachmentKind.VIDEO, ""),
        ({"video_note": {**FILE, "length": 1, "duration": 1}}, AttachmentKind.VIDEO, ""),
        ({"animation": {**FILE, **FLAT, "duration": 1}, "document": FILE}, AttachmentKind.VIDEO, ""),
    ],
)
def test_files_become_attachments(content: Json, kind: AttachmentKind, text: str) -> None:
    inbound = accepted(message(**content))
    (attachment,) = inbound.attachments
    assert (attachment.kind, attachment.ref, attachment.size) == (kind, "F", 10)
    assert inbound.text == text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"sticker": {**FILE, **FLAT, **STILL, "emoji": "😀"}}, "[sticker 😀]"),
        ({"contact": {"phone_number": "1", "first_name": "Bob"}}, "[contact: Bob, 1]"),
        ({"dice": {"emoji": "🎲", "value": 4}}, "[dice 🎲: 4]"),
        (
            {"venue": VENUE, "location": POINT},
            "[place: Inn, Road at 1.000000, 2.000000]",
        ),
    ],
)
def test_stickers_contacts_dice_and_venues_become_notes(content: Json, text: str) -> None:
    inbound = accepted(message(**content))
    assert (inbound.text, inbound.attachments) == (text, ())


@pytest.mark.parametrize(
    "content",
    [
        message("hi", **{"from": BOT}),
        message(new_chat_title="x"),
        message("hi", chat=NEWS),
        message("hi", chat=GROUP, sender_chat=NEWS),
        message("hi", chat=GROUP, sender_chat=GROUP, is_automatic_forward=True),
    ],
)
def test_messages_that_no_person_wrote_are_skipped(content: Json) -> None:
    assert parsed(content) is None


def test_an_anonymous_administrator_is_identified_as_the_group() -> None:
    assert accepted(message("hi", chat=GROUP, sender_chat=GROUP)).sender.id == str(GROUP["id"])


def button(data: str | None, **fields: object) -> Json:
    return {"id": "q1", "from": BOB, "chat_instance": "1", "message": message("list"), "data": data, **fields}


def test_the_sender_of_a_button_press_is_the_person_who_pressed() -> None:
    inbound = accepted(button("/session resume 2"), "callback_query")
    assert (inbound.text, inbound.sender.id, inbound.event_id, inbound.sent_at) == (
        "/session resume 2",
        "77",
        "button:q1",
        NOW,
    )


def test_a_button_on_a_deleted_message_still_works() -> None:
    gone = {"message_id": 5, "date": 0, "chat": PRIVATE}
    assert accepted(button("/new", message=gone), "callback_query").address.peer == "42"


@pytest.mark.parametrize("content", [button(None), button("not a command"), button("/new", message=None)])
def test_button_presses_that_are_not_commands_are_skipped(content: Json) -> None:
    assert parsed(content, "callback_query") is None


def test_buttons_whose_command_exceeds_the_limit_are_left_out() -> None:
    fits, too_long = Button(label="a" * 99, command="/" + "x" * 63), Button(label="b", command="/" + "ü" * 32)
    markup = keyboard([fits, too_long])
    assert markup is not None
    assert [[key["callback_data"] for key in row] for row in markup["inline_keyboard"]] == [[fits.command]]
    assert keyboard([too_long]) is None


@given(updates)
def test_an_update_is_read_or_skipped(raw: Json) -> None:
    received = parse_update(json.dumps(raw))
    assert received is not None
    if received.update is None:
        return
    inbound = read_update(received.update, IDENTITY, now=NOW)
    assert inbound is None or (
        inbound.event_id and inbound.address.peer and inbound.sender.id and inbound.sent_at.tzinfo
    )
