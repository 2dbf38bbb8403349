"""A Discord bot from end to end: the real daemon and the real discord.py, against a fake Discord server."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from gateway.build import open_daemon
from tests.agent.scripted import PatientProvider
from tests.channels.discord.fake_discord import (
    ADA,
    ADAS,
    BOB,
    BOBS,
    CHANNEL,
    CUT,
    DONE,
    GUILD,
    THREAD,
    TOKEN,
    UNDONE,
    FakeDiscord,
    discord_server,
    refusal,
)
from tests.channels.discord.harness import daemon_settings, running_daemon, shown
from tests.channels.harness import TEST_TIMEOUT
from tests.daemon_process import DEFAULTS, DaemonProcess, by_fork_with, write_config


def long_file(data: Path) -> str:
    """Write a long file to the shared workspace, so that an answer takes a while. Return its last word."""
    workspace = data / "workspace" / "main"
    workspace.mkdir(parents=True)
    (workspace / "long.txt").write_text(" ".join(f"word{number}" for number in range(250)))
    return "word249"


async def test_a_direct_message_is_answered(tmp_path: Path, discord: FakeDiscord) -> None:
    async with running_daemon(discord, daemon_settings(tmp_path, discord)):
        await discord.say("hello")
        await shown(discord, "offline", ADAS)
        assert discord.calls_of("typing")


async def test_buttons_of_the_session_list_resume_a_session(tmp_path: Path, discord: FakeDiscord) -> None:
    async with running_daemon(discord, daemon_settings(tmp_path, discord)):
        await discord.say("hello")
        await shown(discord, "offline", ADAS)
        await discord.act(2, {"name": "new", "options": [{"type": 3, "name": "title", "value": "Trip"}]})
        await shown(discord, "Started session 2", ADAS)
        await discord.act(2, {"name": "session", "options": [{"type": 1, "name": "list"}]})
        listed = await shown(discord, "newest first", ADAS)
        buttons = listed["components"][0]["components"]
        assert [button["custom_id"] for button in buttons] == ["/session resume 2", "/session resume 1"]
        await discord.act(3, {"custom_id": buttons[1]["custom_id"]}, message={"id": listed["id"]})
        await shown(discord, "Back in session 1", ADAS)
        await discord.act(3, {"custom_id": "/session resume 7"}, message={"id": listed["id"]})
        await shown(discord, "no session 7", ADAS)


async def test_session_numbers_are_completed_only_for_people_with_access(tmp_path: Path, discord: FakeDiscord) -> None:
    begun = {"type": 4, "name": "number", "value": "", "focused": True}
    data = {"name": "session", "options": [{"type": 1, "name": "resume", "options": [begun]}]}
    async with running_daemon(discord, daemon_settings(tmp_path, discord, {"session": {"dm_scope": "main"}})):
        await discord.say("/new Secret plans")
        await shown(discord, "Started session", ADAS)
        await discord.act(4, data, author=BOB, channel=BOBS)
        assert (await discord.called("answer_interaction")).body["data"]["choices"] == []
        await discord.act(4, data)
        offered = (await discord.called("answer_interaction", times=2)).body["data"]["choices"]
    assert [choice["name"] for choice in offered] == ["1 Secret plans"]


async def test_in_a_server_the_bot_answers_only_messages_that_mention_it(tmp_path: Path, discord: FakeDiscord) -> None:
    async with running_daemon(discord, daemon_settings(tmp_path, discord)):
        await discord.say("just talking", channel=CHANNEL, author=BOB)
        asked = await discord.call_bot("/whoami", channel=THREAD)
        answer = await shown(discord, "You are", THREAD)
    assert answer["message_reference"]["message_id"] == int(asked["id"])
    assert not discord.sent(CHANNEL)


async def test_in_a_server_without_access_a_command_is_refused_in_private(tmp_path: Path, discord: FakeDiscord) -> None:
    async with running_daemon(discord, daemon_settings(tmp_path, discord, group_allow=["1"])):
        await discord.act(2, {"name": "whoami"}, channel=CHANNEL, author=BOB)
        assert "can't answer you here" in (await discord.called("tell_interaction")).body["content"]
    assert not discord.sent(CHANNEL)


async def test_completions_respect_bindings_by_server(tmp_path: Path, discord: FakeDiscord) -> None:
    tables = {"agents": {"main": {}, "helper": {}}, "bindings": [{"agent": "helper", "guild": GUILD}]}
    begun = {"type": 4, "name": "number", "value": "", "focused": True}
    async with running_daemon(discord, daemon_settings(tmp_path, discord, tables)):
        await discord.call_bot("/new Ours")
        await shown(discord, "Started session")
        data = {"name": "session", "options": [{"type": 1, "name": "resume", "options": [begun]}]}
        await discord.act(4, data, channel=CHANNEL, author=BOB)
        offered = (await discord.called("answer_interaction")).body["data"]["choices"]
    assert [choice["name"] for choice in offered] == ["1 Ours"]


async def test_an_answer_grows_by_editing_one_message(tmp_path: Path, discord: FakeDiscord) -> None:
    provider = PatientProvider(["One", " and two", " and that is all."], partial(shown, discord))
    async with running_daemon(discord, daemon_settings(tmp_path, discord)) as daemon:
        daemon.agents.replace("main", lambda main: replace(main, provider=provider))
        await discord.call_bot("count")
        await discord.called("edit", times=2)
    assert [call.body["content"] for call in discord.calls_of("send")] == ["One"]
    texts = [call.body["content"] for call in discord.calls_of("edit")]
    assert texts == ["One and two", "One and two and that is all."]


async def test_a_refused_token_retires_discord_and_readiness_says_so(tmp_path: Path, discord: FakeDiscord) -> None:
    discord.gateway.refusals.append(4004)
    configured = daemon_settings(tmp_path, discord)
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        open_daemon(configured, listen=False) as daemon,
        asyncio.TaskGroup() as tasks,
    ):
        started = asyncio.Event()
        tasks.create_task(daemon.run(started.set), name="daemon")
        await started.wait()
        (running,) = [task for task in asyncio.all_tasks() if task.get_name() == "channel:discord:default"]
        await running
        health = daemon.status.health()
        daemon.stop()
    assert not health.ready
    assert (health.channels[0].state, "Developer Portal" in health.channels[0].reason) == ("retired", True)


async def test_two_bots_run_at_the_same_time(tmp_path: Path, discord: FakeDiscord) -> None:
    async with discord_server() as other:
        accounts = {"work": {"token": TOKEN, "api_base": other.url, "allow": [ADA["id"]]}}
        async with running_daemon(discord, daemon_settings(tmp_path, discord, accounts=accounts)):
            await other.until(lambda: other.gateway.sessions)
            await discord.say("/whoami")
            await other.say("/status")
            await shown(discord, "You are", ADAS)
            await other.heard(1)
    assert len(discord.sent()) == len(other.sent()) == 1


def config(discord: FakeDiscord, extra: str = "") -> str:
    table = f'token = "{TOKEN}"\napi_base = "{discord.url}"\nallow = ["42"]\ngroup_allow = ["{GUILD}"]\n'
    return f"{DEFAULTS.replace('[gateway]', f'[gateway]{extra}')}\n[channels.discord]\n{table}"


@asynccontextmanager
async def process(folder: Path, discord: FakeDiscord) -> AsyncIterator[DaemonProcess]:
    """Start a daemon process, and continue once it is connected. Leaving the block kills it."""
    sessions = len(discord.gateway.sessions)
    with DaemonProcess(folder, start=by_fork_with("channels.discord.connection")) as daemon:
        await asyncio.to_thread(daemon.ready)
        await discord.until(lambda: len(discord.gateway.sessions) > sessions)
        yield daemon
        daemon.process.kill()


async def test_after_being_killed_repeatedly_the_daemon_answers_every_message_once(
    tmp_path: Path, discord: FakeDiscord
) -> None:
    """Killed during a model call, right after a message arrived, and during sends that do and do not arrive."""
    end = long_file(tmp_path / "data")
    write_config(tmp_path, f'{config(discord)}[agents.main]\nworkspace = "shared"\n')
    asked = []
    async with process(tmp_path, discord):
        asked.append(await discord.call_bot("read long.txt"))
        await discord.called("edit")
    async with process(tmp_path, discord):
        await shown(discord, end)
        asked.append(await discord.call_bot("just arrived"))
    asked.append(await discord.call_bot("written while the daemon is down"))
    discord.scripted["send"].append(DONE)
    sent = len(discord.calls_of("send"))
    async with process(tmp_path, discord):
        await discord.called("send", times=sent + 1)
        asked += [await discord.call_bot(f"waiting {number}") for number in range(4)]
    discord.scripted["send"].append(UNDONE)
    async with process(tmp_path, discord):
        await discord.called("send", times=sent + 2)
    async with process(tmp_path, discord) as daemon:
        await discord.until(lambda: len(answers(discord)) >= len(asked))
        assert await asyncio.to_thread(is_ready, daemon.url)
        assert await asyncio.to_thread(daemon.stop) == 0
    assert answers(discord) == {int(message["id"]): 1 for message in asked}
    assert not [message for message in discord.sent(CHANNEL) if "repeated" in message["content"]]


def answers(discord: FakeDiscord) -> dict[int, int]:
    return dict(Counter(message["message_reference"]["message_id"] for message in discord.sent(CHANNEL)))


def is_ready(url: str) -> bool:
    with urlopen(f"{url}/readyz") as answer:  # noqa: S310 - our own server.
        return bool(answer.status == 200)


async def test_the_token_is_in_no_log_and_no_file(tmp_path: Path, discord: FakeDiscord) -> None:
    discord.scripted["gateway"].append(refusal(503, 0, f"no {TOKEN}"))
    discord.scripted["send"] += [CUT, refusal(503, 0, TOKEN)]
    (tmp_path / "token").write_text(TOKEN)
    write_config(tmp_path, config(discord, '\nlog_level = "debug"').replace(f'"{TOKEN}"', '"file:token"'))
    with DaemonProcess(tmp_path, start=by_fork_with("channels.discord.connection")) as daemon:
        await asyncio.to_thread(daemon.wait_for, "channel_up", channel="discord")
        await discord.say("hello")
        await asyncio.to_thread(daemon.wait_for, "message_handled")
        assert await asyncio.to_thread(daemon.stop) == 0
        assert TOKEN not in json.dumps(daemon.log) + daemon.errors()
    files = [file for file in daemon.data.rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if TOKEN.encode() in file.read_bytes()]
