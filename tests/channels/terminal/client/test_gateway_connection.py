import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import WSCloseCode

from channels.terminal.client.gateway_connection import LOST, RECONNECTED, GatewayLost, PendingMessage, connected
from channels.websocket.wire import AckFrame, CommandsFrame, CommandsRequest, ErrorFrame, MessageFrame, ServerFrame
from gateway.contract import OutboundKind, Verdict
from gateway.errors import Refused, Transient
from tests.channels.terminal.client.harness import NO_DELAYS, Client, echoing, gateway, ignore


async def test_a_message_gets_its_answer() -> None:
    async with gateway(echoing) as connect, connected(connect, ignore) as connection:
        outcome = await connection.ask(PendingMessage("hi"))
    assert outcome.is_answer
    assert outcome.text == "You said: hi"


async def test_requests_are_sent_after_each_reconnect_and_before_messages() -> None:
    heard: list[str] = []

    async def vanishing(client: Client) -> None:
        heard.append(await client.requested())

    async def answering(client: Client) -> None:
        heard.append(await client.requested())
        await echoing(client)

    async with (
        gateway(vanishing, answering) as connect,
        connected(connect, ignore, retry_delays=NO_DELAYS, requests=[CommandsRequest()]) as connection,
    ):
        await connection.ask(PendingMessage("hi"))
    assert heard == ["commands", "commands"]


async def test_an_unacknowledged_message_is_resent_with_the_same_id() -> None:
    heard: list[dict[str, Any]] = []

    async def vanishing(client: Client) -> None:
        heard.append(await client.heard())

    async def answering(client: Client) -> None:
        heard.append(await client.heard())
        await client.answer("at last", heard[-1])
        await client.stay()

    async with (
        gateway(vanishing, answering) as connect,
        connected(connect, ignore, retry_delays=NO_DELAYS) as connection,
    ):
        outcome = await connection.ask(PendingMessage("hi"))
    assert outcome.text == "at last"
    assert heard[0] == heard[1]


async def test_an_accepted_message_gets_its_answer_after_a_reconnect() -> None:
    async def vanishing(client: Client) -> None:
        await client.ack(await client.heard())

    async def remembering(client: Client) -> None:
        said = await client.heard()
        await client.ack(said, "duplicate")
        await client.message("still here", to=said)
        await client.stay()

    async with (
        gateway(vanishing, remembering) as connect,
        connected(connect, ignore, retry_delays=NO_DELAYS) as connection,
    ):
        outcome = await connection.ask(PendingMessage("hi"))
    assert outcome.is_answer
    assert outcome.text == "still here"


async def test_a_lost_gateway_is_reported_with_the_unanswered_messages() -> None:
    async def vanishing(client: Client) -> None:
        await client.heard()

    async with gateway(vanishing) as connect:
        with pytest.RaisesGroup(pytest.RaisesExc(GatewayLost, match="Not answered: tell me")):
            async with connected(connect, ignore, retry_delays=NO_DELAYS) as connection:
                await connection.ask(PendingMessage("tell me"))


async def test_reconnecting_ends_if_the_gateway_always_hangs_up() -> None:
    async def rude(_: Client) -> None:
        return

    async with gateway(*[rude] * 50) as connect:
        with pytest.RaisesGroup(pytest.RaisesExc(GatewayLost, match=r"didn't come back\.$")):
            async with connected(connect, ignore, retry_delays=NO_DELAYS):
                await asyncio.Event().wait()


async def test_the_first_connection_is_not_retried() -> None:
    async with gateway() as connect:
        with pytest.raises(Transient):
            async with connected(connect, ignore):
                pass


async def test_a_refused_reconnect_is_not_retried() -> None:
    async def vanishing(_: Client) -> None:
        return

    tries = 0

    async with gateway(vanishing) as connect:

        async def first_only(path: str) -> Any:  # noqa: ANN401 - what `connect` returns.
            nonlocal tries
            tries += 1
            if tries > 1:
                raise Refused("No terminal here.")
            return await connect(path)

        with pytest.RaisesGroup(pytest.RaisesExc(Refused, match="No terminal here")):
            async with connected(first_only, ignore, retry_delays=NO_DELAYS):
                await asyncio.Event().wait()
    assert tries == 2


async def test_too_many_open_chats_are_reported() -> None:
    async def full(client: Client) -> None:
        await client.hang_up(WSCloseCode.TRY_AGAIN_LATER)

    async with gateway(full) as connect:
        with pytest.RaisesGroup(pytest.RaisesExc(Refused, match="Close one of them")):
            async with connected(connect, ignore):
                await asyncio.Event().wait()


async def test_a_message_is_resent_after_a_temporary_error() -> None:
    async def busy(client: Client) -> None:
        for _ in range(2):
            said = await client.heard()
            await client.show("error", text="Not just now.", id=said["id"], can_retry=True)
        await echoing(client)

    async with gateway(busy) as connect, connected(connect, ignore, retry_delays=NO_DELAYS) as connection:
        outcome = await connection.ask(PendingMessage("hi"))
    assert outcome.text == "You said: hi"


async def test_resending_ends_with_the_last_error() -> None:
    async def busy(client: Client) -> None:
        while True:
            said = await client.heard()
            await client.show("error", text="Not just now.", id=said["id"], can_retry=True)

    async with gateway(busy) as connect, connected(connect, ignore, retry_delays=NO_DELAYS) as connection:
        outcome = await connection.ask(PendingMessage("hi"))
    assert not outcome.is_answer
    assert outcome.text == "Not just now."


async def test_a_refusal_is_reported_with_its_reason() -> None:
    async def strict(client: Client) -> None:
        said = await client.heard()
        await client.message("Too long.", kind="notice", to=said)
        await client.ack(said, "refused")
        await client.stay()

    async with gateway(strict) as connect, connected(connect, ignore) as connection:
        outcome = await connection.ask(PendingMessage("hi"))
    assert not outcome.is_answer
    assert outcome.text == "Too long."


async def test_a_notice_answers_a_command_but_not_a_message() -> None:
    async def noting(client: Client) -> None:
        while True:
            said = await client.heard()
            await client.ack(said)
            await client.message("A notice.", kind="notice", to=said, key=said["id"])

    async with gateway(noting) as connect, connected(connect, ignore) as connection:
        told = [(await connection.ask(PendingMessage(text))).is_answer for text in ("/new", "!new", "hello", "//hello")]
    assert told == [True, True, False, False]


async def test_answers_to_other_messages_are_ignored() -> None:
    async def busy(client: Client) -> None:
        said = await client.heard()
        await client.message("not for you", to={"id": "another"}, key="other")
        await client.answer("for you", said)
        await client.stay()

    async with gateway(busy) as connect, connected(connect, ignore) as connection:
        assert (await connection.ask(PendingMessage("hi"))).text == "for you"


async def test_a_lost_connection_and_its_return_are_reported() -> None:
    heard: list[ServerFrame] = []

    async def vanishing(_: Client) -> None:
        return

    async with (
        gateway(vanishing, echoing) as connect,
        connected(connect, lambda frame, _: heard.append(frame), retry_delays=NO_DELAYS) as connection,
    ):
        await connection.ask(PendingMessage("hi"))
    assert [frame.text for frame in heard if isinstance(frame, ErrorFrame)] == [LOST, RECONNECTED]


async def test_every_frame_is_received_once() -> None:
    heard: list[ServerFrame] = []

    async def repeating(client: Client) -> None:
        await client.show("commands", commands=[])
        await client.message("once", key="same")
        await client.message("once", key="same")
        await client.show("from the future")
        await echoing(client)

    async with gateway(repeating) as connect, connected(connect, lambda frame, _: heard.append(frame)) as connection:
        await connection.ask(PendingMessage("hi"))
    assert [type(frame) for frame in heard].count(CommandsFrame) == 1
    assert [frame.text for frame in heard if isinstance(frame, MessageFrame)] == ["once", "You said: hi"]


NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "is_question", "is_answer"),
    [
        ("delete it", True, False),
        ("yes", False, True),
        ("No.", False, True),
        ("/approve", False, True),
        ("hello", False, False),
    ],
)
async def test_a_notice_answers_commands_and_yes_or_no_but_a_question_is_no_answer(
    said: str, *, is_question: bool, is_answer: bool
) -> None:
    """A question ends the waiting without being an answer: the user has to reply first."""
    pending = PendingMessage(said)
    pending.receive(AckFrame(id=pending.id, verdict=Verdict.ACCEPTED, at=NOW))
    pending.receive(
        MessageFrame(
            key="k",
            kind=OutboundKind.NOTICE,
            text="Sure?",
            at=NOW,
            reply_to=pending.id,
            is_question=is_question,
        )
    )
    assert (await pending.outcome()).is_answer is is_answer
