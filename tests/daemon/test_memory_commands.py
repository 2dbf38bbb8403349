"""`/memory` in the whole gateway: people see and change what is known in their chat."""

from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from gateway.contract import Sender
from gateway.memory import MemoryStore, Source, Statement, memory_folder
from gateway.memory.queue import CHANGE_FACTS, EditStatement, ForgetSession, ForgetStatement, change_operation
from gateway.spool import SetFact
from tests.daemon.harness import ask, gateway, leave, settings
from tests.polling import until

OWNER, GUEST = Sender(id="ada", name="Ada", is_owner=True), Sender(id="bob", name="Bob")
SCOPE, GROUP_SCOPE = "agent:main:loopback:direct:ada", "agent:main:loopback:group:us"
OPEN = {
    "channels": {
        "web": {"enabled": False},
        "terminal": {"enabled": False},
        "loopback": {"dm_policy": "open", "group_policy": "open"},
    }
}
DAY = "2026-11-19"


def store(folder: Path, scope: str = SCOPE) -> MemoryStore:
    return MemoryStore(memory_folder(folder / "data", scope))


def remember(folder: Path, *texts: str, scope: str = SCOPE) -> None:
    statements = [Statement(text=text, sources=(Source(3, number),)) for number, text in enumerate(texts, 14)]
    store(folder, scope).add(statements, day=DAY)


def texts(folder: Path, scope: str = SCOPE) -> list[str]:
    return [statement.text for statement in store(folder, scope).read().statements]


async def say(chat: LoopbackChannel, text: str) -> str:
    return await ask(chat, text, sender=OWNER)


async def test_the_memory_is_shown_with_its_numbers_and_origins(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert (await say(chat, "/memory")).startswith("There is nothing in the memory of this chat yet.")
        remember(tmp_path, "Ada lives in Lisbon.", "Ada likes tea.")
        (store(tmp_path).folder / "recipes.md").write_text("- by hand\n")
        assert (await say(chat, "/memory")).splitlines() == [
            "Memory of this chat (newest first)",
            "3  by hand",
            "2  Ada likes tea. · session 3",
            "1  Ada lives in Lisbon. · session 3",
            "/memory forget <number> removes one, /memory edit <number> <text> changes one",
        ]


async def test_a_long_memory_is_shown_in_part_and_can_be_searched(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        remember(tmp_path, "Ada lives in Lisbon.", *(f"fact {number}" for number in range(30)))
        shown = await say(chat, "/memory")
        assert "and 11 more. /memory search <words> finds some." in shown
        assert "Lisbon" not in shown
        assert "1  Ada lives in Lisbon. · session 3" in await say(chat, "/memory search lives in lisbon?")
        assert "is about bicycles" in await say(chat, "/memory search bicycles")
        assert "Add some words" in await say(chat, "/memory search")


async def test_statements_can_be_forgotten_and_changed(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        remember(tmp_path, "Ada lives in Lisbon.", "Ada likes tea.")
        assert await say(chat, "/memory forget 2") == "Forgotten: Ada likes tea."
        assert await say(chat, "/memory edit 1 Ada lives\nin Porto.") == "Statement 1 says now: Ada lives in Porto."
        assert texts(tmp_path) == ["Ada lives\nin Porto."]
        assert await daemon.spool.facts(CHANGE_FACTS) == {}
        assert "There is no statement 2" in await say(chat, "/memory forget 2")


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("forget", "Which one? Add its number, like /memory forget 3. /memory shows the numbers."),
        ("forget tea", "Which one?"),
        ("forget -1", "Which one?"),
        ("forget 99999999999999999999", "Which one?"),
        ("forget 0", "There is no statement 0 in the memory of this chat. /memory shows the numbers."),
        ("forget 99", "There is no statement 99"),
        ("edit", "Which one?"),
        ("edit 1", "What should it say? Add the text, like /memory edit 1 "),
        ("edit 1 \u200d", "Statement 1 says now"),
        ("edit 9 x", "There is no statement 9"),
        (f"edit 1 {'x' * 2_001}", "That is 2,001 characters, and a statement has up to 2,000. Send a shorter one."),
        ("tea", "There is no command /memory tea."),
    ],
)
async def test_a_mistake_is_answered_with_a_sentence(tmp_path: Path, command: str, answer: str) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        remember(tmp_path, "Ada lives in Lisbon.")
        assert (await say(chat, f"/memory {command}")).startswith(answer)


async def test_in_a_group_everyone_sees_the_memory_and_owners_change_it(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, **OPEN)) as (_, chat):
        remember(tmp_path, "The meeting is on Monday.", scope=GROUP_SCOPE)
        remember(tmp_path, "Ada likes tea.")
        for sender in (GUEST, OWNER):
            shown = await ask(chat, "/memory", sender=sender, group="us")
            assert "1  The meeting is on Monday. · session 3" in shown
            assert "tea" not in shown
        for command in ("forget 1", "edit 1 x"):
            refusal = await ask(chat, f"/memory {command}", sender=GUEST, group="us")
            assert refusal == "Several people share this memory, so only an owner may change it."
        assert await ask(chat, "/memory forget 1", sender=OWNER, group="us") == "Forgotten: The meeting is on Monday."
        assert (texts(tmp_path, GROUP_SCOPE), texts(tmp_path)) == ([], ["Ada likes tea."])


async def test_damaged_files_are_named_and_nothing_is_lost(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        remember(tmp_path, "Ada lives in Lisbon.", "Ada likes tea.")
        path = store(tmp_path).folder / f"{DAY}.md"
        damaged = path.read_bytes() + b"- [7] caf\xff\n"
        path.write_bytes(damaged)
        assert f"{DAY}.md has lines that are not text." in await say(chat, "/memory")
        await say(chat, "/memory forget 2")
        assert texts(tmp_path) == ["Ada lives in Lisbon."]
        kept = path.with_name(f"{path.name}.corrupted").read_bytes()
        assert kept == damaged.replace(b"- [2] Ada likes tea. (session 3, seq 15)\n", b"")
        assert b"tea" not in kept
        assert "is a copy of a damaged file. Repair it by hand, or delete it." in await say(chat, "/memory")


async def test_a_memory_that_cannot_be_read_is_a_sentence_and_the_conversation_goes_on(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await say(chat, "hello")
        folder = store(tmp_path).folder
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.write_text("not a folder")
        for command in ("/memory", "/memory forget 1"):
            assert "can't be read now" in await say(chat, command)
        assert "offline responder" in await say(chat, "and you?")


async def test_changes_that_a_crash_left_behind_are_made_at_the_next_start(tmp_path: Path) -> None:
    remember(tmp_path, "one", "two", "three")
    operations = [
        change_operation(ForgetStatement(scope=SCOPE, number=1)),
        change_operation(EditStatement(scope=SCOPE, number=2, text="TWO")),
        change_operation(ForgetStatement(scope=SCOPE, number=1)),
        change_operation(ForgetSession(scope="agent:main:loopback:direct:bob", session=3)),
        SetFact(name=f"{CHANGE_FACTS}{SCOPE}\t0", value='{"type": "newer"}'),
    ]
    await leave(tmp_path, *operations)
    async with gateway(settings(tmp_path)) as (daemon, _):
        await until(lambda: texts(tmp_path) == ["TWO", "three"])

        async def is_done() -> bool:
            return not await daemon.spool.facts(CHANGE_FACTS)

        await until(is_done)
