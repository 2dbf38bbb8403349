import asyncio
from typing import Any

import pytest
from aiohttp import WSCloseCode

from channels.terminal.errors import Lost
from channels.terminal.exchange import Exchange
from channels.terminal.link import AWAY, BACK, linked
from channels.websocket.wire import Commands, Failure, Message, ServerFrame
from gateway.errors import Refused, Transient
from tests.channels.terminal.scripted import QUICKLY, Client, echoing, gateway, never


async def test_asks_and_is_answered() -> None:
    async with gateway(echoing) as connect, linked(connect, never) as link:
        outcome = await link.ask(Exchange("hi"))
    assert outcome.is_answer
    assert outcome.text == "You said: hi"


async def test_sends_again_under_the_same_id_what_was_not_acknowledged() -> None:
    heard: list[dict[str, Any]] = []

    async def vanishing(client: Client) -> None:
        heard.append(await client.heard())

    async def answering(client: Client) -> None:
        heard.append(await client.heard())
        await client.answer("at last", heard[-1])
        await client.stay()

    async with gateway(vanishing, answering) as connect, linked(connect, never, pauses=QUICKLY) as link:
        outcome = await link.ask(Exchange("hi"))
    assert outcome.text == "at last"
    assert heard[0] == heard[1]


async def test_a_message_that_was_taken_is_answered_after_the_connection_came_back() -> None:
    async def vanishing(client: Client) -> None:
        await client.ack(await client.heard())

    async def remembering(client: Client) -> None:
        said = await client.heard()
        await client.ack(said, "duplicate")
        await client.message("still here", to=said)
        await client.stay()

    async with gateway(vanishing, remembering) as connect, linked(connect, never, pauses=QUICKLY) as link:
        outcome = await link.ask(Exchange("hi"))
    assert outcome.is_answer
    assert outcome.text == "still here"


async def test_says_what_was_not_answered_when_nobody_comes_back() -> None:
    async def vanishing(client: Client) -> None:
        await client.heard()

    async with gateway(vanishing) as connect:
        with pytest.RaisesGroup(pytest.RaisesExc(Lost, match="Not answered: tell me")):
            async with linked(connect, never, pauses=QUICKLY) as link:
                await link.ask(Exchange("tell me"))


async def test_does_not_come_back_for_ever_to_a_gateway_that_hangs_up() -> None:
    async def rude(_: Client) -> None:
        return

    async with gateway(*[rude] * 50) as connect:
        with pytest.RaisesGroup(pytest.RaisesExc(Lost, match=r"did not come back\.$")):
            async with linked(connect, never, pauses=QUICKLY):
                await asyncio.Event().wait()


async def test_a_gateway_that_is_not_there_is_a_plain_error() -> None:
    async with gateway() as connect:
        with pytest.raises(Transient):
            async with linked(connect, never):
                pass


async def test_a_gateway_that_refuses_to_have_us_back_is_not_asked_again() -> None:
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
            async with linked(first_only, never, pauses=QUICKLY):
                await asyncio.Event().wait()
    assert tries == 2


async def test_one_chat_too_many_is_told_so() -> None:
    async def full(client: Client) -> None:
        await client.hang_up(WSCloseCode.TRY_AGAIN_LATER)

    async with gateway(full) as connect:
        with pytest.RaisesGroup(pytest.RaisesExc(Refused, match="close one of them")):
            async with linked(connect, never):
                await asyncio.Event().wait()


async def test_tries_again_what_could_not_be_taken_just_now() -> None:
    async def busy(client: Client) -> None:
        for _ in range(2):
            said = await client.heard()
            await client.show("error", text="Not just now.", id=said["id"], can_retry=True)
        await echoing(client)

    async with gateway(busy) as connect, linked(connect, never, pauses=QUICKLY) as link:
        outcome = await link.ask(Exchange("hi"))
    assert outcome.text == "You said: hi"


async def test_gives_up_on_a_gateway_that_never_can() -> None:
    async def busy(client: Client) -> None:
        while True:
            said = await client.heard()
            await client.show("error", text="Not just now.", id=said["id"], can_retry=True)

    async with gateway(busy) as connect, linked(connect, never, pauses=QUICKLY) as link:
        outcome = await link.ask(Exchange("hi"))
    assert not outcome.is_answer
    assert outcome.text == "Not just now."


async def test_a_refusal_is_told_with_its_reason() -> None:
    async def strict(client: Client) -> None:
        said = await client.heard()
        await client.message("Too long.", kind="notice", to=said)
        await client.ack(said, "refused")
        await client.stay()

    async with gateway(strict) as connect, linked(connect, never) as link:
        outcome = await link.ask(Exchange("hi"))
    assert not outcome.is_answer
    assert outcome.text == "Too long."


async def test_a_command_is_answered_by_a_notice_and_a_message_is_not() -> None:
    async def noting(client: Client) -> None:
        while True:
            said = await client.heard()
            await client.ack(said)
            await client.message("A notice.", kind="notice", to=said, key=said["id"])

    async with gateway(noting) as connect, linked(connect, never) as link:
        told = [(await link.ask(Exchange(text))).is_answer for text in ("/new", "!new", "hello", "//hello")]
    assert told == [True, True, False, False]


async def test_an_answer_to_somebody_else_is_not_ours() -> None:
    async def busy(client: Client) -> None:
        said = await client.heard()
        await client.message("not for you", to={"id": "another"}, key="other")
        await client.answer("for you", said)
        await client.stay()

    async with gateway(busy) as connect, linked(connect, never) as link:
        assert (await link.ask(Exchange("hi"))).text == "for you"


async def test_tells_when_the_gateway_is_away_and_when_it_is_back() -> None:
    heard: list[ServerFrame] = []

    async def vanishing(_: Client) -> None:
        return

    async with (
        gateway(vanishing, echoing) as connect,
        linked(connect, lambda frame, _: heard.append(frame), pauses=QUICKLY) as link,
    ):
        await link.ask(Exchange("hi"))
    assert [frame.text for frame in heard if isinstance(frame, Failure)] == [AWAY, BACK]


async def test_every_frame_is_heard_once() -> None:
    heard: list[ServerFrame] = []

    async def repeating(client: Client) -> None:
        await client.show("commands", commands=[])
        await client.message("once", key="same")
        await client.message("once", key="same")
        await client.show("from the future")
        await echoing(client)

    async with gateway(repeating) as connect, linked(connect, lambda frame, _: heard.append(frame)) as link:
        await link.ask(Exchange("hi"))
    assert [type(frame) for frame in heard].count(Commands) == 1
    assert [frame.text for frame in heard if isinstance(frame, Message)] == ["once", "You said: hi"]
