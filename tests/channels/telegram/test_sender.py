"""Sending, against a server that speaks the Bot API."""

import pytest
from msgspec.structs import replace

from gateway.contract import Button, Channel, Drafts, Edits, Outbound, Reacts, Receipt, ShowsTyping
from gateway.errors import AuthRejected, Transient, Undeliverable
from tests.channels.telegram.bot_api import DROP, TOKEN, UNPARSABLE, FakeBotApi, Json, refusal
from tests.channels.telegram.harness import HERE, REPLY, THERE


async def test_an_answer_in_a_group_refers_to_the_message_in_its_topic(channel: Channel, api: FakeBotApi) -> None:
    await channel.send(replace(REPLY, address=THERE), key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["message_thread_id"] == "7"
    assert sent.json("reply_parameters") == {"message_id": 9, "allow_sending_without_reply": True}


async def test_notices_of_the_gateway_are_not_rendered_as_markdown(channel: Channel, api: FakeBotApi) -> None:
    await channel.send(Outbound(address=HERE, text="1. *star* <b>"), key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["text"] == "1. *star* <b>"
    assert "parse_mode" not in sent.fields


async def test_a_text_without_markdown_is_sent_as_it_is(channel: Channel, api: FakeBotApi) -> None:
    await channel.send(replace(REPLY, text="It's 3 > 2."), key="k1")
    sent = await api.called("sendMessage")
    assert sent.fields["text"] == "It's 3 > 2."
    assert "parse_mode" not in sent.fields


@pytest.mark.parametrize("refused", [UNPARSABLE, refusal(400, "Bad Request: ENTITIES_TOO_LONG")])
async def test_a_text_whose_formatting_is_rejected_is_sent_as_plain_text(
    channel: Channel, api: FakeBotApi, refused: tuple[int, Json]
) -> None:
    api.scripted["sendMessage"].append(refused)
    await channel.send(REPLY, key="k1")
    sent = await api.called("sendMessage", times=2)
    assert sent.fields["text"] == "**good** day"
    assert "parse_mode" not in sent.fields


@pytest.mark.parametrize(
    "text", ["[a]: http://b", "| a | b |\n|-|-|\n" + f"| {'x' * 90} | y |\n" * 30 + "| a | b |\n" * 30]
)
async def test_a_text_that_formatting_makes_empty_or_too_long_is_sent_as_plain_text(
    channel: Channel, api: FakeBotApi, text: str
) -> None:
    await channel.send(replace(REPLY, text=text), key="k1")
    assert (await api.called("sendMessage")).fields["text"] == text


async def test_a_message_with_the_same_key_is_sent_once(channel: Channel, api: FakeBotApi) -> None:
    first = await channel.send(REPLY, key="k1")
    assert await channel.send(REPLY, key="k1") == first
    assert await channel.send(REPLY, key="k2") != first
    assert len(api.calls_of("sendMessage")) == 2


async def test_a_send_whose_response_cannot_be_parsed_counts_as_sent(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append((200, {"ok": True, "result": {"message_id": 5, "chat": "new kind"}}))
    assert await channel.send(REPLY, key="k1") == Receipt(message_id="42:5")


async def test_after_a_response_without_a_message_the_outcome_is_unknown(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append((200, {"ok": True}))
    with pytest.raises(Transient) as doubt:
        await channel.send(REPLY, key="k1")
    assert doubt.value.may_have_arrived


async def test_the_delay_that_telegram_asks_for_is_passed_on(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append(refusal(429, "Too Many Requests", retry_after=17))
    with pytest.raises(Transient) as asked:
        await channel.send(REPLY, key="k1")
    assert asked.value.retry_after == 17


@pytest.mark.parametrize(
    ("answer", "may_have_arrived"),
    [
        (DROP, True),
        ((502, "<html>nginx</html>"), True),
        (refusal(502, "Bad Gateway"), False),
        (refusal(429, "Too Many Requests", retry_after=1), False),
    ],
)
async def test_failures_of_telegram_are_transient(
    channel: Channel,
    api: FakeBotApi,
    answer: tuple[int, object],
    may_have_arrived: bool,  # noqa: FBT001 - a table's column.
) -> None:
    api.scripted["sendMessage"].append(answer)
    with pytest.raises(Transient) as trouble:
        await channel.send(REPLY, key="k1")
    assert trouble.value.may_have_arrived is may_have_arrived


async def test_the_outcome_of_typing_and_edits_never_counts_as_unknown(channel: Channel, api: FakeBotApi) -> None:
    """Typing and edits leave the same, however often they are sent."""
    assert isinstance(channel, ShowsTyping)
    assert isinstance(channel, Edits)
    api.scripted["sendChatAction"].append(DROP)
    api.scripted["editMessageText"].append(DROP)
    with pytest.raises(Transient) as trouble:
        await channel.show_typing(THERE)
    assert not trouble.value.may_have_arrived
    with pytest.raises(Transient) as trouble:
        await channel.edit(Receipt(message_id="42:5"), REPLY)
    assert not trouble.value.may_have_arrived


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, "Forbidden: bot was blocked by the user"),
        refusal(400, "Bad Request: chat not found"),
    ],
)
async def test_a_message_to_an_unreachable_chat_is_undeliverable(
    channel: Channel, api: FakeBotApi, answer: tuple[int, object]
) -> None:
    api.scripted["sendMessage"].append(answer)
    with pytest.raises(Undeliverable):
        await channel.send(REPLY, key="k1")


async def test_sending_with_a_revoked_token_raises_auth_rejected(channel: Channel, api: FakeBotApi) -> None:
    for method in ("sendMessage", "editMessageText"):
        api.scripted[method].append(refusal(401, "Unauthorized"))
    with pytest.raises(AuthRejected):
        await channel.send(REPLY, key="k1")
    assert isinstance(channel, Edits)
    with pytest.raises(AuthRejected):
        await channel.edit(Receipt(message_id="42:5"), REPLY)


async def test_a_message_follows_a_group_that_became_a_supergroup(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"].append(refusal(400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-1002))
    receipt = await channel.send(replace(REPLY, address=THERE), key="k1")
    assert receipt.message_id.startswith("-1002:")


async def test_buttons_carry_their_commands(channel: Channel, api: FakeBotApi) -> None:
    buttons = (Button(label="2 Trip", command="/session resume 2"), Button(label="long", command="/x" * 40))
    await channel.send(replace(REPLY, buttons=buttons), key="k1")
    assert (await api.called("sendMessage")).json("reply_markup") == {
        "inline_keyboard": [[{"text": "2 Trip", "callback_data": "/session resume 2"}]]
    }


async def test_reactions_are_set_and_removed(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Reacts)
    await channel.react(THERE, "5", "👀")
    reaction = await api.called("setMessageReaction")
    assert (reaction.fields["chat_id"], reaction.fields["message_id"]) == (THERE.peer, "5")
    assert reaction.json("reaction") == [{"type": "emoji", "emoji": "👀"}]
    await channel.unreact(THERE, "5", "👀")
    assert (await api.called("setMessageReaction", times=2)).json("reaction") == []


async def test_an_edit_without_a_change_is_not_an_error(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Edits)
    api.scripted["editMessageText"].append(refusal(400, "Bad Request: message is not modified: same text"))
    await channel.edit(Receipt(message_id="42:5"), REPLY)
    await channel.edit(Receipt(message_id="42:5"), REPLY)
    edited = await api.called("editMessageText", times=2)
    assert (edited.fields["message_id"], edited.fields["text"]) == ("5", "<b>good</b> day")


async def test_drafts_are_shown_in_private_chats_only(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    await channel.draft(replace(REPLY, address=THERE), key="k1")
    await channel.draft(replace(REPLY, text="good **da"), key="k1")
    await channel.draft(replace(REPLY, text="x" * 5000 + " end"), key="k1")
    first, second = api.calls_of("sendMessageDraft")
    assert first.fields["text"] == "good **da"
    assert first.fields["draft_id"] == second.fields["draft_id"] != "0"
    assert second.fields["text"].endswith(" end")


async def test_a_server_without_drafts_gets_only_one_draft(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    api.lacks.add("sendMessageDraft")
    assert channel.can_draft(HERE)
    assert not channel.can_draft(THERE)
    await channel.draft(REPLY, key="k1")
    assert not channel.can_draft(HERE)
    await channel.draft(REPLY, key="k1")
    assert len(api.calls_of("sendMessageDraft")) == 1


async def test_a_user_who_blocked_the_bot_does_not_end_drafts_for_others(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    api.scripted["sendMessageDraft"].append(refusal(403, "Forbidden: bot was blocked by the user"))
    await channel.draft(REPLY, key="k1")
    await channel.draft(REPLY, key="k1")
    assert len(api.calls_of("sendMessageDraft")) == 2


async def test_drafts_pause_as_long_as_telegram_asks(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, Drafts)
    api.scripted["sendMessageDraft"].append(refusal(429, "Too Many Requests", retry_after=3600))
    await channel.draft(REPLY, key="k1")
    await channel.draft(REPLY, key="k1")
    assert len(api.calls_of("sendMessageDraft")) == 1


async def test_typing_is_shown_in_the_topic_of_the_answer(channel: Channel, api: FakeBotApi) -> None:
    assert isinstance(channel, ShowsTyping)
    await channel.show_typing(THERE)
    shown = await api.called("sendChatAction")
    assert (shown.fields["action"], shown.fields["chat_id"], shown.fields["message_thread_id"]) == (
        "typing",
        "-1001",
        "7",
    )


async def test_no_error_contains_the_token(channel: Channel, api: FakeBotApi) -> None:
    api.scripted["sendMessage"] += [refusal(400, f"Bad Request: no {TOKEN}"), refusal(500, f"/bot{TOKEN}/x"), DROP]
    for key in ("k1", "k2", "k3"):
        with pytest.raises((Transient, Undeliverable)) as raised:
            await channel.send(REPLY, key=key)
        assert TOKEN not in str(raised.getrepr(style="long")).replace(f"TOKEN = '{TOKEN}'", "")
