"""Whose files the tools reach, with a model that does everything that a person asks of it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.contract import PeerKind, Sender
from gateway.conversation import ToolCall, ToolMessage, UserMessage
from gateway.daemon import Daemon
from gateway.files.store import folder_of
from tests.daemon.harness import gateway, settings, workspace
from tests.files.samples import offered
from tests.sandbox.harness import needs_sandbox

ADA = Sender(id="ada", name="Ada", is_owner=True)
BOB = Sender(id="bob", name="Bob")
SECRET = "7z\x01\x02 the secret of Ada"
SCOPE = "agent:main:loopback:direct:{}"


class ObedientProvider:
    """Makes the calls that the person wrote as JSON, and answers with their outputs."""

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        await asyncio.sleep(0)
        last = prompt.messages[-1]
        if isinstance(last, ToolMessage):
            yield TextDelta(text="\n".join(outcome.output for outcome in last.outcomes))
        elif isinstance(last, UserMessage) and last.text.startswith("["):
            for number, (name, arguments) in enumerate(json.loads(last.text.partition("\n")[0])):
                yield ToolCall(id=f"c{number}", name=name, input=arguments)
        else:
            yield TextDelta(text=last.text)


Client = tuple[Daemon, LoopbackChannel]


@asynccontextmanager
async def obedient(folder: Path, **tables: object) -> AsyncIterator[Client]:
    channels = {
        "web": {"enabled": False},
        "terminal": {"enabled": False},
        "loopback": {"dm_policy": "open", "group_policy": "open", "require_mention": False},
    }

    def before(daemon: Daemon) -> None:
        for agent in list(daemon.agents):
            daemon.agents.replace(agent.name, lambda agent: replace(agent, provider=ObedientProvider()))

    tables = {"agents": {"main": {"ask": []}}, "tools": {"shell": {"enabled": True}}, **tables}
    async with gateway(settings(folder, channels=channels, **tables), before) as (daemon, chat):
        chat.files["F"] = SECRET.encode()
        yield daemon, chat


async def told(chat: LoopbackChannel, sender: Sender, text: str, *, group: str | None = None) -> str:
    kind, peer = (PeerKind.GROUP, group) if group else (PeerKind.DIRECT, sender.id)
    await chat.say(text, sender=sender, kind=kind, peer=peer)
    return (await chat.hear_message()).text


async def done(
    chat: LoopbackChannel, sender: Sender, *calls: tuple[str, dict[str, str]], group: str | None = None
) -> str:
    return await told(chat, sender, json.dumps(calls), group=group)


async def upload(chat: LoopbackChannel, sender: Sender) -> str:
    """Send a file, and return the path under which the agent finds it."""
    await chat.say("look", peer=sender.id, sender=sender, attachments=[offered(name="secret.7z")])
    text = (await chat.hear_message()).text
    return text.partition("saved as ")[2].rstrip("]")


def files_named(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


def attacks(folder: Path, path: str) -> list[tuple[str, dict[str, str]]]:
    """Return calls that look for the files of Ada: by relative and absolute paths, and through links."""
    victim, store = workspace(folder, SCOPE.format("ada")), folder / "data/files" / folder_of(SCOPE.format("ada"))
    name = Path(path).name
    mine = workspace(folder, SCOPE.format("bob"))
    (mine / "link").symlink_to(victim)
    (mine / "store").symlink_to(store)
    places = [
        *("..", f"../{victim.name}", str(victim), str(store), "link", "store", "/attachments/..", "/attachments"),
        *(f"/attachments/../{store.name}", "../../main", "../../.."),
    ]
    files = [
        *(path, f"attachments/{name}", f"/attachments/../{store.name}/{name}", str(store / name), f"store/{name}"),
        *("link/notes.txt", f"../{victim.name}/notes.txt", str(victim / "notes.txt")),
    ]
    return [
        *(("list_files", {"path": place}) for place in places),
        *(("search_files", {"path": place, "text": "secret"}) for place in places),
        *((tool, {"path": file}) for tool in ("read_file", "send_file") for file in files),
        *(("write_file", {"path": file, "content": "overwritten"}) for file in files),
        *(("edit_file", {"path": file, "old": "secret", "new": "overwritten"}) for file in files),
    ]


async def test_a_guest_reaches_no_file_of_another_person(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (daemon, chat):
        path = await upload(chat, ADA)
        await done(chat, ADA, ("write_file", {"path": "notes.txt", "content": "a secret note"}))
        assert "secret note" in await done(chat, ADA, ("read_file", {"path": "notes.txt"}))
        chat.files["F"] = b"PK\x03\x04 of Bob"
        await upload(chat, BOB)
        answers = [await done(chat, BOB, call) for call in attacks(tmp_path, path)]
        stored = await daemon.store.find(f"{folder_of(SCOPE.format('ada'))}/{Path(path).name}")
    assert all(answers)
    assert not [
        answer for answer in answers if "secret of" in answer or "secret note" in answer or "notes.txt (" in answer
    ]
    assert stored.path.read_bytes() == SECRET.encode()
    assert (workspace(tmp_path, SCOPE.format("ada")) / "notes.txt").read_text() == "a secret note"


@needs_sandbox
async def test_a_command_reaches_only_the_files_of_its_own_conversation(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        path = await upload(chat, ADA)
        assert "secret of Ada" in await done(chat, ADA, ("shell", {"command": f"cat {path}; echo x > note"}))
        look = f"cat {path}; ls -a / /workspace/.. /attachments; cat /workspace/../*/* {tmp_path}/data/files/*/*"
        answer = await done(chat, BOB, ("shell", {"command": look}))
        assert "secret of Ada" not in answer
        assert "data" not in answer.replace(f"{tmp_path}/data", "")


@needs_sandbox
async def test_a_command_cannot_change_an_attachment(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        path = await upload(chat, ADA)
        answer = await done(chat, ADA, ("shell", {"command": f"echo changed > {path}; rm {path}; cat {path}"}))
    assert "secret of Ada" in answer


async def test_the_tools_of_a_session_see_its_attachments(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        path = await upload(chat, ADA)
        assert path.startswith("/attachments/")
        assert await done(chat, ADA, ("list_files", {})) == "/attachments/"
        assert Path(path).name in await done(chat, ADA, ("list_files", {"path": "/attachments"}))
        assert path in await done(chat, ADA, ("search_files", {"name": "*.7z"}))
        refused = await done(chat, ADA, ("write_file", {"path": path, "content": "x"}))
        assert refused == f"{path!r} cannot be changed. Write to a file in the workspace instead."
        await chat.say(json.dumps([("send_file", {"path": path})]), peer="ada", sender=ADA)
        while (heard := await chat.hear()).how != "file":
            pass
    assert heard.content == SECRET.encode()
    assert heard.message is not None
    assert heard.message.file is not None
    assert heard.message.file.name == "secret.7z"


async def test_a_path_of_an_older_transcript_still_names_its_attachment(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        name = Path(await upload(chat, ADA)).name
        former = f"attachments/{name[:8]}{name[32:]}"
        assert await done(chat, ADA, ("read_file", {"path": former})) == SECRET
        assert "There is no" in await done(chat, BOB, ("read_file", {"path": former}))


async def test_deleting_a_session_deletes_its_attachments_for_the_tools(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        path = await upload(chat, ADA)
        await done(chat, ADA, ("write_file", {"path": "notes.txt", "content": "kept"}))
        await told(chat, ADA, "/new")
        assert "There is no" in await done(chat, ADA, ("read_file", {"path": path}))
        await told(chat, ADA, "/session delete 1 yes")
        assert await done(chat, ADA, ("read_file", {"path": "notes.txt"})) == "kept"
    assert not files_named(tmp_path, "*secret.7z*")


async def test_a_download_that_outlives_its_session_leaves_no_file(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (daemon, chat):
        await told(chat, ADA, "hello")
        chat.files["F"] = None
        await chat.say("look", peer="ada", sender=ADA, attachments=[offered(name="secret.7z")])
        await daemon.sessions.delete(SCOPE.format("ada"))
        chat.files["F"] = SECRET.encode()
        await chat.hear_message()
    assert not files_named(tmp_path, "*secret.7z*")


@pytest.mark.parametrize("place", ["shared", "repo"])
async def test_sharing_a_workspace_does_not_share_attachments(tmp_path: Path, place: str) -> None:
    repo = tmp_path / "website"
    repo.mkdir()
    mode = "shared" if place == "shared" else "private"
    tables = {"repos": [{"name": "website", "path": repo}], "agents": {"main": {"workspace": mode, "ask": []}}}
    async with obedient(tmp_path, **tables) as (daemon, chat):
        for person in (ADA, BOB):
            await told(chat, person, "hello")
            if place == "repo":
                scope = SCOPE.format(person.id)
                await daemon.sessions.set_workspace(scope, "website")
        path = await upload(chat, ADA)
        assert await done(chat, ADA, ("read_file", {"path": path})) == SECRET
        sentence = "Everyone who talks to main shares" if place == "shared" else "belongs to this conversation alone"
        assert sentence in await told(chat, ADA, "/workspace")
        await done(chat, ADA, ("write_file", {"path": "notes.txt", "content": "for all"}))
        assert await done(chat, BOB, ("read_file", {"path": "notes.txt"})) == "for all"
        assert await done(chat, BOB, ("list_files", {})) == "notes.txt (7 bytes)"
        assert "There is no" in await done(chat, BOB, ("read_file", {"path": path}))
    folder = repo if place == "repo" else tmp_path / "data/workspace/main"
    assert [each.name for each in folder.iterdir()] == ["notes.txt"]


async def test_the_members_of_a_group_share_its_workspace(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        await done(chat, ADA, ("write_file", {"path": "plan.txt", "content": "meet at ten"}), group="team")
        assert await done(chat, BOB, ("read_file", {"path": "plan.txt"}), group="team") == "meet at ten"
        assert "There is no" in await done(chat, BOB, ("read_file", {"path": "plan.txt"}))
        assert "There is no" in await done(chat, BOB, ("read_file", {"path": "plan.txt"}), group="others")


async def test_each_agent_has_its_own_workspace_in_a_scope(tmp_path: Path) -> None:
    async with obedient(tmp_path, agents={"main": {}, "coder": {}}) as (_, chat):
        await done(chat, ADA, ("write_file", {"path": "a.txt", "content": "by main"}))
        await told(chat, ADA, "/agent coder")
        assert "There is no" in await done(chat, ADA, ("read_file", {"path": "a.txt"}))
        await told(chat, ADA, "/agent main")
        assert await done(chat, ADA, ("read_file", {"path": "a.txt"})) == "by main"


@pytest.mark.parametrize("peer", ["../../..", "/etc", "..", ".", "a/b", "x" * 1_000, "\u202e\x00", "CON"])
async def test_no_chat_id_names_a_folder_outside(tmp_path: Path, peer: str) -> None:
    async with obedient(tmp_path) as (_, chat):
        await chat.say(json.dumps([("write_file", {"path": "a.txt", "content": "x"})]), peer=peer, sender=ADA)
        await chat.hear_message()
    (made,) = files_named(tmp_path, "a.txt")
    assert made.parent.parent == tmp_path / "data/workspace/main.private"
    assert made.parent.stat().st_mode & 0o777 == 0o700


async def test_a_workspace_that_was_replaced_by_a_link_is_refused(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        await done(chat, ADA, ("write_file", {"path": "notes.txt", "content": "a secret note"}))
        mine = workspace(tmp_path, SCOPE.format("bob"))
        mine.rmdir()
        mine.symlink_to(workspace(tmp_path, SCOPE.format("ada")))
        for call in (
            ("read_file", {"path": "notes.txt"}),
            ("list_files", {}),
            ("write_file", {"path": "notes.txt", "content": "x"}),
            ("send_file", {"path": "notes.txt"}),
            ("shell", {"command": "cat notes.txt"}),
        ):
            assert "outside the workspace" in await done(chat, BOB, call)


async def test_a_workspace_is_created_only_when_a_tool_needs_it(tmp_path: Path) -> None:
    async with obedient(tmp_path) as (_, chat):
        await told(chat, ADA, "hello")
        assert list((tmp_path / "data/workspace/main.private").iterdir()) == []
        assert await done(chat, ADA, ("list_files", {})) == "The folder is empty."
        assert len(list((tmp_path / "data/workspace/main.private").iterdir())) == 1
