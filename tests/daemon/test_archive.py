"""The archive as people see it: `/new` says what it has archived, and `/session restore` brings it back."""

from pathlib import Path

from channels.loopback import LoopbackChannel
from tests.daemon.harness import Parrot, ask, delivered, gateway, say_and_hear, settings, traces
from tests.files.samples import offered

SMALL = {"backlog_limit": 2}


async def talk(chat: LoopbackChannel, *subjects: str) -> None:
    """Start a session for each subject."""
    for subject in subjects:
        await ask(chat, "/new")
        await ask(chat, f"about {subject}")


async def test_new_says_which_session_it_has_archived(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session=SMALL), Parrot.answering) as (_, chat):
        await talk(chat, "trains", "boats")
        assert await ask(chat, "/new") == "Started session 3. Your next messages go there."
        await ask(chat, "about planes")
        assert await ask(chat, "/new bikes") == (
            "Started session 4: bikes. Your next messages go there.\n"
            "Session 1 (about trains) is in the archive now. /session restore 1 brings it back."
        )
        listed = await ask(chat, "/session list")
        assert "about trains" not in listed
        assert "about boats" in listed


async def test_an_archived_session_is_listed_and_restored(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session=SMALL), Parrot.answering) as (_, chat):
        await talk(chat, "trains", "boats", "planes")
        await ask(chat, "/new")
        listed = await say_and_hear(chat, "/session list archived")
        assert listed.text.splitlines()[:2] == [
            "Archived sessions (newest first)",
            "1  about trains · 2 messages · archived just now",
        ]
        assert [button.command for button in listed.buttons] == ["/session restore 1"]
        assert await ask(chat, "/session restore 1") == (
            "Session 1: about trains is back (2 messages). /session resume 1 goes there.\n"
            "Session 2 (about boats) is in the archive now. /session restore 2 brings it back."
        )
        await ask(chat, "/session resume 1")
        assert "about trains" in await ask(chat, "/history")
        assert await ask(chat, "/session restore 1") == (
            "There is no archived session 1 here. /session list archived shows them."
        )


async def test_no_archived_session_is_said_so(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        await ask(chat, "hello")
        assert "no archived sessions" in await ask(chat, "/session list archived")
        assert "no archived session 7" in await ask(chat, "/session restore 7")
        assert await ask(chat, "/session restore") == (
            "Which one? Add its number, like /session restore 2. /session list archived shows the numbers."
        )


async def test_archived_sessions_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session=SMALL), Parrot.answering) as (_, chat):
        await talk(chat, "trains", "boats", "planes")
        await ask(chat, "/new")
        (file,) = (tmp_path / "data/sessions/archive").rglob("*.gz")
        file.write_bytes(b"no longer a session")
        assert "(1 archived session can't be read)" in await ask(chat, "/session list archived")


async def test_a_new_session_counts_those_it_has_archived_if_there_are_many(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session={"backlog_limit": 40}), Parrot.answering) as (_, chat):
        await talk(chat, *map(str, range(23)))
    async with gateway(settings(tmp_path, session={"backlog_limit": 1}), Parrot.answering) as (_, chat):
        answer = await ask(chat, "/new")
    assert "20 (about 19) and 2 more are in the archive now." in answer


async def test_a_search_finds_archived_sessions_and_says_how_to_restore_them(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session=SMALL), Parrot.answering) as (_, chat):
        await talk(chat, "trains", "boats", "planes")
        await ask(chat, "/new")
        found = await ask(chat, "/session search trains")
        assert "1  about trains · archived, you, " in found
        assert found.endswith("/session restore 1 brings an archived session back.")
        await ask(chat, "/session restore 1")
        found = await ask(chat, "/session search trains")
        assert "1  about trains · you, " in found
        assert "restore" not in found
        await ask(chat, "/session delete 1 yes")
        assert "Nothing found" in await ask(chat, "/session search trains")


async def test_an_archived_session_keeps_its_files_until_it_is_deleted(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path, session=SMALL), Parrot.answering) as (daemon, chat):
        chat.files["F"] = b"xylophone"
        await chat.say("a xylophone", attachments=[offered(name="xylophone.txt")])
        await chat.hear_message()
        await talk(chat, "boats", "planes")
        assert "xylophone" in await ask(chat, "/new")
        await delivered(daemon)
    # A start deletes the files of sessions that do not exist. This one does.
    async with gateway(settings(tmp_path, session=SMALL), Parrot.answering) as (daemon, chat):
        assert any(name.startswith("files/") for name in traces(tmp_path))
        assert any(name.startswith("sessions/archive/") for name in _files(tmp_path))
        assert await ask(chat, "/session delete 1 yes") == "Session 1 is deleted."
        await delivered(daemon)
        await daemon.flusher.flush()
        assert traces(tmp_path) == {}
        assert not any(name.startswith("sessions/archive/") for name in _files(tmp_path))


def _files(folder: Path) -> list[str]:
    data = folder / "data"
    return [str(path.relative_to(data)) for path in data.rglob("*") if path.is_file()]
