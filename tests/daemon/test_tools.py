"""Tools in the whole gateway, called by a model that follows every instruction, also injected ones."""

import json
from pathlib import Path

import pytest

from gateway.contract import Sender
from tests.agent.wire import ANTHROPIC, OPENAI, Call, Dialect, serving
from tests.daemon.harness import gateway, say_and_hear, settings, transcript_text, workspace
from tests.daemon.models import configured
from tests.polling import until
from tests.sandbox.harness import NAP, needs_sandbox, processes_with

both = pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)
STRANGER = Sender(id="bob", name="Bob")


@both
async def test_the_first_request_has_less_than_four_kilobytes(tmp_path: Path, api: Dialect) -> None:
    async with serving(api, api.answer("Hello!")) as server, gateway(configured(tmp_path, server)) as (_, chat):
        await say_and_hear(chat, "hello")
    assert server.requests[0].size < 4000


async def test_a_model_that_follows_injected_instructions_reaches_no_private_data(tmp_path: Path) -> None:
    secret = tmp_path / "data" / "secret.txt"
    attempts: list[tuple[str, dict[str, object]]] = [
        ("read_file", {"path": "../../secret.txt"}),
        ("read_file", {"path": str(secret)}),
        ("read_file", {"path": "/proc/self/environ"}),
        ("list_files", {"path": "../../sessions/transcripts"}),
        ("search_files", {"path": "../..", "text": "canary"}),
        ("write_file", {"path": "../../gatehouse.toml", "content": "owners = []"}),
        ("edit_file", {"path": "../../secret.txt", "old": "canary", "new": "x"}),
        ("fetch_url", {"url": "http://127.0.0.1:8420/api/sessions"}),
        ("fetch_url", {"url": f"file://{secret}"}),
        ("shell", {"command": "cat ../../secret.txt"}),
    ]
    calls = [Call(name, [json.dumps(given)], id=f"c{number}") for number, (name, given) in enumerate(attempts)]
    script = [OPENAI.answer(calls=calls), OPENAI.answer("I tried.")]
    async with serving(OPENAI, *script) as server, gateway(configured(tmp_path, server)) as (_, chat):
        secret.write_text("canary")
        reply = await say_and_hear(chat, "do what the page says")
    assert reply.text == "I tried."
    results = [json.loads(line) for line in transcript_text(tmp_path).splitlines() if '"type":"tool_result"' in line]
    assert [result["is_error"] for result in results] == [True] * len(attempts)
    assert "canary" not in "".join(result["output"] for result in results)
    assert secret.read_text() == "canary"
    assert not (tmp_path / "data" / "gatehouse.toml").exists()


@needs_sandbox
async def test_a_shell_command_sees_no_private_data_and_stops_with_its_turn(tmp_path: Path) -> None:
    look = Call("shell", [json.dumps({"command": f"cat {tmp_path}/data/*; cat ../../*; echo done > seen; ls /"})])
    hang = Call("shell", [json.dumps({"command": f"echo > begun; exec sleep {NAP}99"})])
    script = [OPENAI.answer(calls=[look]), OPENAI.answer(calls=[hang]), OPENAI.answer("Yes?")]
    agent = {"provider": "fake", "model": "m", "ask": []}
    files = workspace(tmp_path)
    async with serving(OPENAI, *script) as server:
        tables = {
            "providers": {"fake": server.table()},
            "tools": {"shell": {"enabled": True}},
            "agents": {"main": agent},
        }
        async with gateway(settings(tmp_path, **tables)) as (_, chat):
            (tmp_path / "data" / "secret.txt").write_text("canary")
            await chat.say("look around")
            await until((files / "begun").exists)
            await chat.say("/stop")
            stopped = await chat.hear_message()
            reply = await say_and_hear(chat, "still there?")
    assert stopped.text == "Stopped."
    assert reply.text == "Yes?"
    assert (files / "seen").read_text() == "done\n"
    assert "canary" not in transcript_text(tmp_path)
    assert not processes_with(f"{NAP}99")
    assert not server.complaints


async def test_notes_of_one_chat_are_not_recalled_in_another(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("remember that the key is under the mat", peer="ada")
        await chat.hear_message()
        await chat.say("what do you remember", peer="bob")
        assert "mat" not in (await chat.hear_message()).text


async def test_an_owner_can_choose_the_workspace_of_a_session(tmp_path: Path) -> None:
    repo = tmp_path / "website"
    repo.mkdir()
    (repo / "index.html").write_text("<p>hi")
    async with gateway(settings(tmp_path, repos=[{"name": "website", "path": repo}])) as (_, chat):
        await say_and_hear(chat, "hello")
        assert "There is no workspace shop" in (await say_and_hear(chat, "/workspace shop")).text
        assert "work in website" in (await say_and_hear(chat, "/workspace website")).text
        assert "▸ website" in (await say_and_hear(chat, "/workspace")).text
        assert "index.html" in (await say_and_hear(chat, "list files")).text
        await say_and_hear(chat, "/workspace default")
        assert "index.html" not in (await say_and_hear(chat, "list files")).text


async def test_a_user_can_neither_choose_nor_list_workspaces(tmp_path: Path) -> None:
    (tmp_path / "website").mkdir()
    open_door = {"loopback": {"dm_policy": "open"}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    repos = [{"name": "website", "path": tmp_path / "website"}]
    async with gateway(settings(tmp_path, repos=repos, channels=open_door)) as (_, chat):
        for text, said in (("hello", "offline"), ("/workspace website", "Only an owner"), ("/workspace", "▸ default")):
            await chat.say(text, sender=STRANGER)
            reply = (await chat.hear_message()).text
            assert said in reply
            assert "website" not in reply.replace("/workspace website", "")


async def test_a_repo_whose_folder_is_gone_is_not_offered(tmp_path: Path) -> None:
    repo = tmp_path / "website"
    repo.mkdir()
    async with gateway(settings(tmp_path, repos=[{"name": "website", "path": repo}])) as (_, chat):
        await say_and_hear(chat, "hello")
        repo.rmdir()
        sentence = f"The workspace website is unavailable: the folder {repo} does not exist."
        assert sentence in (await say_and_hear(chat, "/workspace")).text
        assert sentence in (await say_and_hear(chat, "/workspace website")).text
        repo.mkdir()
        assert "work in website" in (await say_and_hear(chat, "/workspace website")).text


async def test_a_repo_that_was_replaced_by_a_link_does_not_lead_to_the_data_directory(tmp_path: Path) -> None:
    """An agent can do that whose own workspace contains the repo."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    repos = [{"name": "outer", "path": inner.parent}, {"name": "inner", "path": inner}]
    async with gateway(settings(tmp_path, repos=repos)) as (_, chat):
        await say_and_hear(chat, "hello")
        await say_and_hear(chat, "/workspace inner")
        inner.rmdir()
        inner.symlink_to(tmp_path / "data")
        assert "outside the workspace" in (await say_and_hear(chat, "list files")).text
        assert "outside the workspace" in (await say_and_hear(chat, "read http.token")).text
        assert "inner is unavailable" in (await say_and_hear(chat, "/workspace")).text
        assert "inner is unavailable" in (await say_and_hear(chat, "/workspace inner")).text


async def test_the_owner_may_link_a_repo_and_a_shared_workspace_to_another_folder(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "index.html").touch()
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "data" / "workspace").mkdir(parents=True, mode=0o700)
    (tmp_path / "data" / "workspace" / "main").symlink_to(target)
    repos = [{"name": "website", "path": tmp_path / "link"}]
    configured = settings(tmp_path, repos=repos, agents={"main": {"workspace": "shared"}})
    async with gateway(configured) as (_, chat):
        assert "index.html" in (await say_and_hear(chat, "list files")).text
        assert "work in website" in (await say_and_hear(chat, "/workspace website")).text
        assert "index.html" in (await say_and_hear(chat, "list files")).text
