"""Recall in the whole gateway: the offline responder passes on what the tool finds."""

import re
from pathlib import Path

import pytest

from gateway.contract import Address, PeerKind, Sender
from gateway.daemon import Daemon
from gateway.memory.statement import Statement
from gateway.memory.store import MemoryStore, memory_folder
from gateway.sessions import entries as e
from tests.daemon.harness import MARK, ask, delivered, gateway, settings

BOB = Sender(id="bob", name="Bob", is_owner=True)
ADA = Sender(id="ada", name="Ada", is_owner=True)
LINKS = {"identity_links": {"ada": ["loopback:ada", "telegram:7"]}}


async def store(daemon: Daemon, scope: str, *texts: str) -> None:
    origin = Address(channel="telegram", kind=PeerKind.DIRECT, peer="x")
    session = await daemon.sessions.start_new(scope, agent="main", origin=origin)
    await daemon.sessions.append(session.key, [e.User(content=text) for text in texts])


def hits(answer: str) -> list[str]:
    """Return where an answer has found messages of people."""
    return re.findall(r"(?m)^- (.+), \d{4}-\d\d-\d\d, user: ", answer)


async def test_a_word_is_found_once_in_its_own_chat_until_its_session_is_deleted(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session={"backlog_limit": 1})) as (daemon, chat):
        await ask(chat, f"The {MARK} is in the attic")
        for text in ("/new", "hello"):
            await ask(chat, text)
        assert "Session 1" in await ask(chat, "/new")
        found = await ask(chat, f"recall {MARK}")
        assert hits(found) == ["session 1, archived"]
        assert f'"The {MARK} is in the attic"' in found
        assert "/session restore <number>" in found
        for elsewhere in (await ask(chat, f"recall {MARK}", sender=BOB), await ask(chat, f"recall {MARK}", group="us")):
            assert "Nothing was found" in elsewhere
        assert "is back" in await ask(chat, "/session restore 1")
        assert "session 1" in hits(await ask(chat, "recall where is the thing in the attic?"))
        await ask(chat, "/session delete 1 yes")
        await delivered(daemon)
        assert "session 1" not in hits(await ask(chat, "recall attic"))


async def test_the_agent_does_not_recall_what_was_cleared(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, f"The {MARK} is in the attic")
        await ask(chat, "/clear")
        assert "Nothing was found" in await ask(chat, f"recall {MARK}")
        await ask(chat, f"The {MARK} is in the cellar")
        found = await ask(chat, f"recall the {MARK} is in")
        assert "cellar" in found
        assert "attic" not in found


async def test_a_question_finds_the_messages_with_its_telling_words(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        session = f"agent:main:loopback:direct:{ADA.id}"
        chatter = [f"what did we say about the weather on day {number}?" for number in range(60)]
        await store(daemon, session, "The hotel in Lisbon is called Borboleta", *chatter)
        await store(daemon, session, "A hotel in Porto", *chatter, "Lisbon again")
        found = await ask(chat, "recall what did I say about the hotel that we liked in Lisbon?", sender=ADA)
        assert "Borboleta" in found.splitlines()[2]
        assert "weather" not in found


async def test_a_question_about_something_unknown_does_not_find_its_small_words(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        for _ in range(2):
            chatter = [f"what did we say about the weather on day {number}?" for number in range(400)]
            await store(daemon, f"agent:main:loopback:direct:{ADA.id}", *chatter)
        for unknown in ("elephant", "giraffe"):  # Before and after the flush, which indexes the messages.
            found = await ask(chat, f"recall what did we say about the {unknown}?", sender=ADA)
            assert hits(found) == []
            assert "day 399" in await ask(chat, "recall what did we say about the weather?", sender=ADA)
            await daemon.sessions.flush()


async def test_messages_with_several_telling_words_come_before_newer_ones_with_one(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        session = f"agent:main:loopback:direct:{ADA.id}"
        one_of_them = [f"{word} {number}" for number in range(45) for word in ("hotel", "Lisbon")]
        chatter = [f"nothing in particular {number}" for number in range(300)]
        await store(daemon, session, "The Lisbon hotel is called Borboleta", *one_of_them, *chatter)
        found = await ask(chat, "recall which hotel in Lisbon?", sender=ADA)
        assert "Borboleta" in found.splitlines()[2]


async def test_a_message_with_some_of_several_frequent_words_is_found(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        session = f"agent:main:loopback:direct:{ADA.id}"
        one_of_them = [f"{word} {number}" for number in range(45) for word in ("hotel", "Lisbon")]
        chatter = [f"breakfast {number}" for number in range(150)]
        await store(daemon, session, "The Lisbon hotel is called Borboleta", *one_of_them, *chatter)
        found = await ask(chat, "recall hotel Lisbon breakfast", sender=ADA)
        assert "Borboleta" in found.splitlines()[2]


async def test_an_old_message_with_all_words_comes_before_many_newer_ones_with_some(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        session = f"agent:main:loopback:direct:{ADA.id}"
        some_of_them = [f"the Lisbon hotel {number}" for number in range(60)]
        chatter = [f"breakfast {number}" for number in range(150)]
        await store(daemon, session, "breakfast in the Lisbon hotel Borboleta", *some_of_them, *chatter)
        found = await ask(chat, "recall hotel Lisbon breakfast", sender=ADA)
        assert "Borboleta" in found.splitlines()[2]


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_person_recalls_their_other_channels_only_if_that_is_allowed(
    tmp_path: Path,
    is_allowed: bool,  # noqa: FBT001 - a parameter of the test.
) -> None:
    others = ("telegram:direct:7", "telegram:direct:~bob", "telegram:group:~ada", "telegram:group:7:sender:7")
    async with gateway(settings(tmp_path, session={**LINKS, "recall_linked": is_allowed})) as (daemon, chat):
        await store(daemon, "agent:main:telegram:direct:~ada", f"my own {MARK}")
        for other in (*(f"agent:main:{other}" for other in others), "agent:ops:telegram:direct:~ada"):
            await store(daemon, other, f"a foreign {MARK}")
        memory = MemoryStore(memory_folder(tmp_path / "data", "agent:main:telegram:direct:~ada"))
        memory.add([Statement(text=f"Ada plays the {MARK}", noted="2026-03-01")], day="2026-03-01")
        found = await ask(chat, f"recall {MARK}", sender=ADA)
        assert hits(found) == (["telegram"] if is_allowed else [])
        assert (f'- note (telegram, 2026-03-01): "Ada plays the {MARK}"' in found) is is_allowed
        assert "foreign" not in found
        assert "/session" not in found
        for elsewhere in (await ask(chat, f"recall {MARK}", sender=BOB), await ask(chat, f"recall {MARK}", group="us")):
            assert "Nothing was found" in elsewhere
