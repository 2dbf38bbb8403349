"""How strangers get in, through the whole gateway and across restarts."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.access.pairing import DENIED, MAX_TRIES, MAX_WAITING, UNKNOWN_CODE, WELCOME
from gateway.contract import (
    Address,
    Attachment,
    AttachmentKind,
    Inbound,
    OutboundKind,
    PeerKind,
    Sender,
    Verdict,
)
from tests.daemon.harness import gateway, settings

OWNER = Sender(id="owner", name="The owner")
EVE = Sender(id="666", name="Eve\u202e\nof nowhere")


def configured(folder: Path, **loopback: object) -> Settings:
    return settings(
        folder,
        channels={"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": loopback},
    )


async def say(chat: LoopbackChannel, text: str, sender: Sender = EVE) -> Verdict:
    return await chat.say(text, peer=sender.id, sender=sender)


async def ask_owner(chat: LoopbackChannel, text: str) -> str:
    await chat.say(text, peer="owner", sender=replace(OWNER, is_owner=True))
    return await heard(chat, "owner")


async def heard(chat: LoopbackChannel, peer: str) -> str:
    while (message := await chat.hear_message()).address.peer != peer:
        pass
    return message.text


async def code(chat: LoopbackChannel, sender: Sender = EVE) -> str:
    assert await say(chat, "let me in", sender) is Verdict.REFUSED
    found = re.search(r"code: ([A-Z2-9]{4}-[A-Z2-9]{4}) ", await heard(chat, sender.id))
    assert found
    return found[1]


async def nothing_is_heard(chat: LoopbackChannel) -> None:
    """Everything before the owner's question was answered before it, so its answer would come later than theirs."""
    await chat.say("/whoami", peer="marker")
    message = await chat.hear_message()
    assert message.address.peer == "marker"


async def test_an_unknown_sender_gets_one_code_and_is_approved_with_it(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path)) as (_, chat):
        theirs = await code(chat)
        for _ in range(5):
            assert await say(chat, "hello?") is Verdict.REFUSED
        await nothing_is_heard(chat)
        listed = await ask_owner(chat, "/pair")
        assert theirs in listed
        assert "loopback:666" in listed
        assert "\n of" not in listed
        await chat.say(f"/pair approve {theirs.lower().replace('-', ' ')}", peer="owner")
        texts = {(await chat.hear_message()).text for _ in range(2)}
        assert WELCOME in texts
        assert await say(chat, "hello") is Verdict.ACCEPTED
        assert (await chat.hear_message()).kind is OutboundKind.REPLY
        assert "666" in await ask_owner(chat, "/pair")
    transcripts = (tmp_path / "data/sessions/transcripts").iterdir()
    assert not any("let me in" in file.read_text() for file in transcripts)


async def test_codes_and_guests_survive_a_restart(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path)) as (_, chat):
        theirs = await code(chat)
    async with gateway(configured(tmp_path)) as (_, chat):
        await say(chat, "still me")
        await nothing_is_heard(chat)
        await chat.say(f"/pair approve {theirs}", peer="owner")
        assert await heard(chat, "666") == WELCOME
    async with gateway(configured(tmp_path)) as (_, chat):
        assert await say(chat, "hello") is Verdict.ACCEPTED
        await heard(chat, "666")
        assert "no longer has access" in await ask_owner(chat, "/pair revoke loopback:666")
        assert await say(chat, "hello") is Verdict.REFUSED
    async with gateway(configured(tmp_path)) as (_, chat):
        assert await say(chat, "hello") is Verdict.REFUSED


async def test_a_code_works_once(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path)) as (_, chat):
        theirs = await code(chat)
        await chat.say(f"/pair approve {theirs}", peer="owner")
        assert {(await chat.hear_message()).address.peer for _ in range(2)} == {"666", "owner"}
        assert "no longer" in await ask_owner(chat, "/pair revoke loopback:666")
        assert "was approved already" in await ask_owner(chat, f"/pair approve {theirs}")
        assert await say(chat, "hello") is Verdict.REFUSED


async def test_a_denied_person_gets_no_other_code(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path)) as (_, chat):
        theirs = await code(chat)
        assert "was denied" in await ask_owner(chat, f"/pair deny {theirs}")
        assert await heard(chat, "666") == DENIED
        assert await say(chat, "please") is Verdict.REFUSED
        await nothing_is_heard(chat)
        assert "was denied already" in await ask_owner(chat, f"/pair approve {theirs}")


async def test_wrong_codes_invalidate_the_waiting_codes(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path)) as (_, chat):
        theirs = await code(chat)
        for _ in range(MAX_TRIES):
            assert await ask_owner(chat, "/pair approve AAAA-AAAA") == UNKNOWN_CODE
        assert await ask_owner(chat, f"/pair approve {theirs}") == UNKNOWN_CODE
        assert await code(chat) != theirs


async def test_the_number_of_valid_codes_is_limited_and_further_people_are_told_once(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path)) as (_, chat):
        for number in range(MAX_WAITING):
            await code(chat, Sender(id=f"s{number}"))
        await say(chat, "me too")
        told = await heard(chat, "666")
        assert "666" in told
        assert "Too many people are waiting" in told
        await say(chat, "me too")
        await nothing_is_heard(chat)


@pytest.mark.parametrize("command", ["/pair", "/pair approve AAAA-AAAA", "/pair deny AAAA-AAAA", "/pair revoke x:1"])
async def test_only_an_owner_decides_about_access(tmp_path: Path, command: str) -> None:
    async with gateway(configured(tmp_path, dm_policy="open")) as (_, chat):
        assert await say(chat, command) is Verdict.REFUSED
        assert await heard(chat, "666") == "Only an owner decides who has access."


async def test_codes_are_not_shown_in_a_group(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path, group_policy="open")) as (_, chat):
        await chat.say("/pair", peer="g", kind=PeerKind.GROUP, sender=Sender(id="owner", is_owner=True))
        assert "in a direct chat" in await heard(chat, "g")


async def test_with_an_allowlist_unknown_senders_get_no_code(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path, dm_policy="allowlist")) as (_, chat):
        await say(chat, "hi")
        told = await heard(chat, "666")
        assert "channels.loopback.allow" in told
        assert "code" not in told
        await say(chat, "hi")
        await nothing_is_heard(chat)


async def test_a_rate_limited_person_is_told_once_and_stop_still_works(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path, dm_policy="open", rate_limit=2)) as (_, chat):
        verdicts = [await say(chat, f"message {number}") for number in range(6)]
        assert verdicts == [Verdict.ACCEPTED] * 2 + [Verdict.REFUSED] * 4
        assert await say(chat, "/stop") is Verdict.ACCEPTED
        assert await chat.say("hello", peer="other", sender=Sender(id="other")) is Verdict.ACCEPTED
        # A chat gets its messages in order, so the answer to /stop comes after all notices.
        heard_by_eve = [await heard(chat, "666")]
        while not heard_by_eve[-1].startswith("Stopped"):
            heard_by_eve.append(await heard(chat, "666"))
        assert sum("2 messages a minute" in each for each in heard_by_eve) == 1


async def test_a_backlog_written_over_hours_is_not_rate_limited(tmp_path: Path) -> None:
    async with gateway(configured(tmp_path, dm_policy="open", rate_limit=2)) as (_, chat):
        said = Inbound(
            address=Address(channel="loopback", kind=PeerKind.DIRECT, peer="666"),
            sender=EVE,
            event_id="",
            text="/whoami",
            sent_at=datetime.now(UTC),
        )
        late = [
            replace(said, event_id=f"e{minute}", sent_at=said.sent_at - timedelta(minutes=minute))
            for minute in range(10, 0, -1)
        ]
        assert {await chat.submit(each) for each in late} == {Verdict.ACCEPTED}


FILE = Attachment(kind=AttachmentKind.FILE, name="x", media_type="text/plain", size=1, ref="r")
PATHS_IN: dict[str, dict[str, object]] = {
    "a message": {"text": "hello"},
    "an edit": {"text": "hello", "edits": "e0"},
    "a file": {"text": "", "attachments": (FILE,)},
    "a forwarded message": {"text": "hello", "forwarded_from": "the owner"},
    "a command": {"text": "/session list"},
    "a command of the owner's": {"text": "/restart"},
    "a pressed button": {"text": "/session resume 1"},
    "an approval": {"text": "/pair approve AAAA-AAAA"},
    "a mistyped command": {"text": "/nwe"},
    "nothing": {"text": ""},
    "too much": {"text": "x" * 40_000},
    "a name that is on the list": {"text": "hello", "sender": Sender(id="666", name="ada")},
    "nobody": {"text": "hello", "sender": Sender(id="")},
}


@pytest.mark.parametrize("path", PATHS_IN)
async def test_an_unknown_sender_gets_no_access_by_any_path(tmp_path: Path, path: str) -> None:
    async with gateway(configured(tmp_path, allow=["ada"], group_allow=["ada"])) as (daemon, chat):
        for number, kind in enumerate([PeerKind.GROUP, PeerKind.CHANNEL, PeerKind.DIRECT]):
            address = Address(channel="loopback", kind=kind, peer="666")
            inbound = Inbound(address=address, sender=EVE, event_id=f"e{number}", text="", sent_at=datetime.now(UTC))
            verdict = await chat.submit(replace(inbound, **PATHS_IN[path]))
            assert verdict is (Verdict.REFUSED if kind is PeerKind.DIRECT else Verdict.IGNORED)
        if path != "nobody":
            assert "This bot is private." in await heard(chat, "666")
        await nothing_is_heard(chat)
        assert not daemon.shutdown.wants_restart
    assert not list((tmp_path / "data/sessions/transcripts").iterdir())
