"""Owners are asked in chat when someone requests access."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from channels.loopback import LoopbackChannel
from config import GatewaySettings, Settings
from gateway.access.owner_chats import MAX_REQUESTS
from gateway.access.pairing import DENIED, WELCOME
from gateway.contract import Outbound, PeerKind, Sender, Verdict
from gateway.daemon import Daemon
from tests.daemon.harness import gateway, settings

OWNER = Sender(id="1", name="Olga")


def house(folder: Path, *owners: str) -> Settings:
    made = GatewaySettings(data_dir=folder / "data", flush_interval=3600, timezone="UTC", owners=owners)
    return settings(folder, gateway=made)


async def say(chat: LoopbackChannel, text: str, sender: Sender) -> Verdict:
    return await chat.say(text, peer=f"chat of {sender.id}", sender=sender)


async def heard(chat: LoopbackChannel, count: int) -> dict[str, Outbound]:
    """Return the next messages by their chats."""
    messages = [await chat.hear_message() for _ in range(count)]
    return {message.address.peer.removeprefix("chat of "): message for message in messages}


async def test_an_owner_is_asked_once_and_approves_with_a_button_after_a_restart(tmp_path: Path) -> None:
    eve = Sender(id="2", name="Eve\u202e")
    async with gateway(house(tmp_path, "loopback:1")) as (_, chat):
        await say(chat, "/whoami", OWNER)
        await chat.hear_message()
        assert await say(chat, "let me in", eve) is Verdict.REFUSED
        question = (await heard(chat, 2))["1"]
        assert "(loopback:2) asks for access" in question.text
        assert [button.label for button in question.buttons] == ["Approve", "Deny"]
        assert await say(chat, "please", eve) is Verdict.REFUSED
        await say(chat, "/whoami", OWNER)
        assert "You are Olga" in (await chat.hear_message()).text
    async with gateway(house(tmp_path, "loopback:1")) as (_, chat):
        other = Sender(id="3")
        assert await say(chat, question.buttons[0].command, eve) is Verdict.REFUSED
        await say(chat, question.buttons[0].command, OWNER)
        told = await heard(chat, 2)
        assert told["2"].text == WELCOME
        assert "is approved" in told["1"].text
        assert await say(chat, "hello", eve) is Verdict.ACCEPTED
        await chat.hear_message()
        # The chat of the owner is known after the restart, although the owner has not written since.
        await say(chat, question.buttons[1].command, OWNER)
        assert "was approved already" in (await chat.hear_message()).text
        await say(chat, "let me in", other)
        question = (await heard(chat, 2))["1"]
        await say(chat, question.buttons[1].command, OWNER)
        told = await heard(chat, 2)
        assert told["3"].text == DENIED
        assert "was denied" in told["1"].text


async def test_the_first_person_is_told_how_to_become_an_owner(tmp_path: Path) -> None:
    async with gateway(house(tmp_path)) as (_, chat):
        await say(chat, "hello", OWNER)
        assert re.search(r"gatehouse pair approve \S+ --owner\n", (await chat.hear_message()).text)
    async with gateway(house(tmp_path, "loopback:1")) as (_, chat):
        await say(chat, "hello", Sender(id="2"))
        assert "--owner" not in (await chat.hear_message()).text


async def test_a_flood_of_requests_is_not_passed_on(tmp_path: Path) -> None:
    clock = [datetime.now(UTC)]

    async def ask(daemon: Daemon, chat: LoopbackChannel, number: int) -> int:
        """Let one person ask, deny that, and return how many messages the owner got."""
        await say(chat, "let me in", Sender(id=f"stranger {number}"))
        (applicant,) = daemon.pairing.waiting()
        await daemon.pairing.deny(applicant)
        await say(chat, "/whoami", OWNER)
        asked = 0
        while "You are Olga" not in (message := await chat.hear_message()).text:
            asked += "asks for access" in message.text
        return asked

    async with gateway(house(tmp_path, "loopback:1"), now=lambda: clock[0]) as (daemon, chat):
        await say(chat, "/whoami", OWNER)
        await chat.hear_message()
        assert [await ask(daemon, chat, number) for number in range(MAX_REQUESTS + 2)] == [1] * MAX_REQUESTS + [0, 0]
        clock[0] += timedelta(hours=2)
        assert await ask(daemon, chat, 99) == 1


async def test_owners_are_not_asked_in_groups(tmp_path: Path) -> None:
    async with gateway(house(tmp_path, "loopback:1")) as (_, chat):
        await chat.say("/whoami", peer="g", kind=PeerKind.GROUP, sender=OWNER)
        await chat.hear_message()
        await say(chat, "let me in", Sender(id="2"))
        assert (await chat.hear_message()).address.peer == "chat of 2"
        await say(chat, "/start", OWNER)
        greeting = await chat.hear_message()
        assert greeting.address.peer == "chat of 1"
        assert greeting.text.count("\n") == 2
