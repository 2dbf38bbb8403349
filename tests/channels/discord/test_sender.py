"""Sending under the real discord.py, against a fake Discord server."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.contract import (
    Button,
    Channel,
    Edits,
    Enclosure,
    LooksBack,
    Outbound,
    Reacts,
    Receipt,
    SendsFiles,
    ShowsTyping,
)
from gateway.errors import AuthRejected, Transient, Undeliverable
from gateway.outbound.delivery import split_into_parts
from tests.channels.discord.fake_discord import (
    ADA,
    ADAS,
    CUT,
    LOST,
    THREAD,
    TOKEN,
    TOO_FAST,
    FakeDiscord,
    Json,
    refusal,
)
from tests.channels.discord.harness import ADAS_CHAT, REPLY, THREAD_CHAT, Core


async def test_the_direct_channel_of_a_silent_person_is_asked_for_once(channel: Channel, discord: FakeDiscord) -> None:
    await channel.send(REPLY, key="k1")
    await channel.send(REPLY, key="k2")
    assert len(discord.sent()) == 2
    assert len(discord.calls_of("direct")) == 1


async def test_a_repeated_send_shows_one_message(channel: Channel, discord: FakeDiscord) -> None:
    first = await channel.send(REPLY, key="a key that is longer than a nonce may be")
    assert await channel.send(REPLY, key="a key that is longer than a nonce may be") == first
    assert await channel.send(REPLY, key="k2") != first
    assert len(discord.sent()) == 2
    assert all(call.body["enforce_nonce"] and len(call.body["nonce"]) == 25 for call in discord.calls_of("send"))


async def test_retrying_a_send_whose_response_was_lost_shows_one_message(
    channel: Channel, discord: FakeDiscord
) -> None:
    discord.scripted["send"].append(LOST)
    with pytest.raises(Transient) as lost:
        await channel.send(REPLY, key="k1")
    assert lost.value.may_have_arrived
    await channel.send(REPLY, key="k1")
    assert len(discord.sent()) == 1


async def test_retrying_a_send_that_never_arrived_sends_it(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(CUT)
    with pytest.raises(Transient):
        await channel.send(REPLY, key="k1")
    assert not discord.sent()
    await channel.send(REPLY, key="k1")
    assert len(discord.sent()) == 1


async def test_a_long_rate_limit_is_raised_with_its_duration(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(TOO_FAST)
    with pytest.raises(Transient) as asked:
        await channel.send(REPLY, key="k1")
    assert asked.value.retry_after == 3600


async def test_a_short_rate_limit_is_waited_out(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(429, 0, "You are being rate limited.", retry_after=0.01))
    await channel.send(REPLY, key="k1")
    assert len(discord.sent()) == 1


async def test_a_server_error_is_transient(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(503, 0, "Service Unavailable"))
    with pytest.raises(Transient):
        await channel.send(REPLY, key="k1")


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, 50007, "Cannot send messages to this user"),
        refusal(403, 50001, "Missing Access"),
        refusal(404, 10003, "Unknown Channel"),
    ],
)
async def test_a_send_that_discord_refuses_is_undeliverable(
    channel: Channel, discord: FakeDiscord, answer: tuple[int, object]
) -> None:
    discord.scripted["send"].append(answer)
    with pytest.raises(Undeliverable):
        await channel.send(REPLY, key="k1")


async def test_an_invalid_address_is_undeliverable(channel: Channel) -> None:
    with pytest.raises(Undeliverable):
        await channel.send(replace(REPLY, address=replace(ADAS_CHAT, peer="ada")), key="k1")


async def test_a_token_revoked_at_run_time_raises_auth_rejected(channel: Channel, discord: FakeDiscord) -> None:
    for call in ("send", "edit", "history"):
        discord.scripted[call].append(refusal(401, 0, "401: Unauthorized"))
    with pytest.raises(AuthRejected):
        await channel.send(REPLY, key="k1")
    assert isinstance(channel, Edits)
    with pytest.raises(AuthRejected):
        await channel.edit(Receipt(message_id=f"{ADAS}:1"), REPLY)
    with pytest.raises(AuthRejected):
        await looked_back(channel, REPLY)


async def test_notices_are_escaped(channel: Channel, discord: FakeDiscord) -> None:
    await channel.send(Outbound(address=ADAS_CHAT, text="1. *star* _a_"), key="k1")
    assert discord.sent()[0]["content"] == r"1. \*star\* \_a\_"


async def test_a_long_notice_is_split_so_that_it_stays_escaped(channel: Channel, discord: FakeDiscord) -> None:
    notice = Outbound(address=ADAS_CHAT, text="May I?\n" + "`*_|" * 1_200)
    parts = split_into_parts(notice, channel=channel, key="k", turn=None, files=(), at=datetime.now(UTC), is_next=False)
    for number, part in enumerate(parts):
        await channel.send(part.message, key=f"k{number}")
    sent = [each["content"] for each in discord.sent()]
    assert all(len(text) <= 2000 for text in sent)
    assert all(not re.search(r"(?<!\\)(\\\\)*[`*_|]", text) for text in sent)
    assert "".join(sent).replace("\\", "").replace("\n", "") == notice.text.replace("\n", "")


async def test_a_notice_whose_form_is_refused_stays_escaped(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(400, 50035, "Invalid Form Body"))
    await channel.send(Outbound(address=ADAS_CHAT, text="*a*", buttons=(Button(label="x", command="/x"),)), key="k1")
    (sent,) = discord.sent()
    assert sent["content"] == r"\*a\*"
    assert "components" not in sent


async def test_a_refused_form_is_sent_as_plain_text(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"].append(refusal(400, 50035, "Invalid Form Body"))
    buttons = (Button(label="x", command="/x"),)
    await channel.send(replace(REPLY, text="| a |\n|-|\n| b |", buttons=buttons), key="k1")
    (sent,) = discord.sent()
    assert sent["content"] == "| a |\n|-|\n| b |"
    assert "components" not in sent


@pytest.mark.parametrize(
    "refused",
    [
        refusal(403, 160002, "Cannot reply without permission to read message history"),
        refusal(403, 160009, "Cannot reference a message without permission to read message history"),
        refusal(400, 50035, "Invalid Form Body: Cannot reply to a system message"),
    ],
)
async def test_a_refused_reply_is_sent_without_the_reference(
    channel: Channel, discord: FakeDiscord, refused: tuple[int, Json]
) -> None:
    discord.scripted["send"].append(refused)
    await channel.send(replace(REPLY, address=THREAD_CHAT), key="k1")
    (sent,) = discord.sent(THREAD)
    assert sent["content"] == REPLY.text
    assert "message_reference" not in sent


async def test_text_that_formatting_makes_too_long_is_sent_unformatted(channel: Channel, discord: FakeDiscord) -> None:
    table = "| a | b |\n|-|-|\n" + f"| {'x' * 60} | y |\n" + "| a | b |\n" * 100
    await channel.send(replace(REPLY, text=table), key="k1")
    assert discord.sent()[0]["content"] == table.strip()


async def test_an_edit_without_a_change_makes_no_call(channel: Channel, discord: FakeDiscord) -> None:
    assert isinstance(channel, Edits)
    receipt = await channel.send(REPLY, key="k1")
    await channel.edit(receipt, REPLY)
    await channel.edit(receipt, replace(REPLY, text="good night"))
    await channel.edit(receipt, replace(REPLY, text="good night"))
    assert discord.sent()[0]["content"] == "good night"
    assert len(discord.calls_of("edit")) == 1


async def test_a_draft_sent_before_a_crash_is_edited_to_the_final_text(channel: Channel, discord: FakeDiscord) -> None:
    """Discord responds to a repeated send with the existing message, which holds less text."""
    await channel.send(replace(REPLY, text="go"), key="k1")
    await channel.send(replace(REPLY, text="good"), key="k1")
    assert [message["content"] for message in discord.sent()] == ["good"]


async def test_editing_a_deleted_message_is_undeliverable(channel: Channel) -> None:
    assert isinstance(channel, Edits)
    with pytest.raises(Undeliverable):
        await channel.edit(Receipt(message_id=f"{ADAS}:1"), REPLY)


async def test_typing_and_reactions_appear_in_the_thread_of_the_message(channel: Channel, discord: FakeDiscord) -> None:
    assert isinstance(channel, ShowsTyping)
    assert isinstance(channel, Reacts)
    await channel.show_typing(THREAD_CHAT)
    await channel.react(THREAD_CHAT, "12", "👀")
    assert (await discord.called("typing")).path == f"/api/channels/{THREAD}/typing"
    await channel.unreact(THREAD_CHAT, "12", "👀")
    for call in (await discord.called("react"), await discord.called("unreact")):
        assert f"/channels/{THREAD}/messages/12/reactions/" in call.path


async def test_buttons_carry_their_commands(channel: Channel, discord: FakeDiscord) -> None:
    buttons = tuple(Button(label=f"{number} Trip", command=f"/session resume {number}") for number in range(7))
    await channel.send(replace(REPLY, buttons=(*buttons, Button(label="long", command="/x" * 60))), key="k1")
    rows = discord.sent()[0]["components"]
    assert [len(row["components"]) for row in rows] == [5, 2]
    assert rows[0]["components"][2]["custom_id"] == "/session resume 2"


async def test_a_repeated_file_send_shows_one_file(channel: Channel, discord: FakeDiscord, tmp_path: Path) -> None:
    assert isinstance(channel, SendsFiles)
    path = tmp_path / "x"
    path.write_text("what is in it")
    file = Enclosure(name="a.txt", media_type="text/plain", size=13, ref="x")
    for _ in range(2):
        await channel.send_file(replace(REPLY, text="", file=file), path, key="k1")
    (sent,) = discord.sent()
    assert sent["files"] == ["what is in it"]


async def test_no_error_contains_the_token(channel: Channel, discord: FakeDiscord) -> None:
    discord.scripted["send"] += [refusal(400, 1, f"no {TOKEN}"), refusal(503, 1, f"{TOKEN}"), CUT]
    for key in ("k1", "k2", "k3"):
        with pytest.raises((Transient, Undeliverable)) as raised:
            await channel.send(REPLY, key=key)
        assert TOKEN not in str(raised.getrepr(style="short"))
    assert ADA["id"] == ADAS_CHAT.peer


async def looked_back(channel: Channel, message: Outbound, known: set[str] | None = None) -> Receipt | None:
    assert isinstance(channel, LooksBack)
    return await channel.look_back(message, since=datetime.now(UTC) - timedelta(minutes=1), known=known or set())


async def test_look_back_finds_a_message_that_arrived(channel: Channel, discord: FakeDiscord) -> None:
    assert await looked_back(channel, REPLY) is None
    receipt = await channel.send(REPLY, key="k1")
    discord.written("**good** day")
    assert await looked_back(channel, REPLY) == receipt
    assert await looked_back(channel, REPLY, {receipt.message_id}) is None
    assert await looked_back(channel, replace(REPLY, text="good night")) is None


async def test_look_back_in_a_server_matches_only_the_reply_to_the_same_message(
    channel: Channel, discord: FakeDiscord, core: Core
) -> None:
    asked = [await discord.call_bot("same", channel=THREAD) for _ in range(2)]
    replies = [replace(REPLY, address=THREAD_CHAT, reply_to=(await core.next_message()).message_id) for _ in asked]
    receipt = await channel.send(replies[0], key="k1")
    assert [await looked_back(channel, reply) for reply in replies] == [receipt, None]


async def test_look_back_without_access_to_the_history_is_undeliverable(channel: Channel, discord: FakeDiscord) -> None:
    """Discord does not refuse the call; it returns an empty list."""
    discord.scripted["history"].append((200, []))
    with pytest.raises(Undeliverable):
        await looked_back(channel, replace(REPLY, address=THREAD_CHAT))
