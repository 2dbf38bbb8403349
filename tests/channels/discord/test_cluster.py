"""Two gateways with the same Discord bot on one PostgreSQL: one of them is connected, and the other one goes on."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.channels.discord.fake_discord import ADA, BOB, CHANNEL, GUILD, TOKEN, FakeDiscord, discord_server
from tests.channels.harness import TEST_TIMEOUT
from tests.daemon_process import DaemonProcess, by_fork_with, write_config

CHATS = [CHANNEL, "510", "511", "512", "513", "514", "515", "516"]

_CONFIG = """
[gateway]
data_dir = "{home}/data"
log_format = "json"
[http]
port = 0
token = "cluster-token-0123456789"
[storage]
url = "{url}"
[cluster]
enabled = true
name = "{name}"
lease_seconds = 4.0
[channels.discord]
token = "{token}"
api_base = "{api}"
allow = ["{ada}"]
group_allow = ["{guild}"]
"""
_SECOND_BOT = """
[channels.discord.accounts.work]
token = "{token}"
api_base = "{api}"
"""


class Nodes:
    def __init__(self, folder: Path, url: str, discord: FakeDiscord) -> None:
        self._folder = folder
        self._url = url
        self._discord = discord
        self.running: dict[str, DaemonProcess] = {}

    async def start(self, name: str, *, api: str = "", second: str = "") -> None:
        """Start a node. `second` is the Discord of a second bot."""
        home = self._folder / name
        home.mkdir()
        config = _CONFIG.format(
            home=home,
            url=self._url,
            name=name,
            token=TOKEN,
            api=api or self._discord.url,
            ada=ADA["id"],
            guild=GUILD,
        )
        if second:
            config += _SECOND_BOT.format(token=TOKEN, api=second)
        write_config(home, config)
        start = by_fork_with("channels.discord.connection", "psycopg", "gateway.cluster.node")
        self.running[name] = await asyncio.to_thread(DaemonProcess, home, None, start)
        await asyncio.to_thread(self.running[name].ready)

    async def logged(self, name: str, event: str) -> None:
        async with asyncio.timeout(TEST_TIMEOUT):
            # A thread reads the log.
            while all(line["event"] != event for line in self.running[name].log):  # noqa: ASYNC110 - see above.
                await asyncio.sleep(0.05)

    async def close(self) -> None:
        for daemon in self.running.values():
            await asyncio.to_thread(daemon.__exit__, None, None, None)


@pytest.fixture
async def nodes(tmp_path: Path, database_url: str, discord: FakeDiscord) -> AsyncIterator[Nodes]:
    """Two nodes, of which the first is connected, and each of which owns half of the conversations."""
    nodes = Nodes(tmp_path, database_url, discord)
    try:
        await nodes.start("a")
        await discord.until(lambda: discord.gateway.sessions)
        await nodes.start("b")
        await nodes.logged("b", "shards_taken")
        yield nodes
    finally:
        await nodes.close()


def answered(discord: FakeDiscord) -> Counter[int]:
    return Counter(message["message_reference"]["message_id"] for chat in CHATS for message in discord.sent(chat))


async def ask_everywhere(discord: FakeDiscord, text: str) -> list[int]:
    return [int((await discord.call_bot(text, channel=chat))["id"]) for chat in CHATS]


async def test_the_next_leader_resumes_the_session_and_loses_no_message(nodes: Nodes, discord: FakeDiscord) -> None:
    gateway = discord.gateway
    asked = await ask_everywhere(discord, "one")
    await discord.until(lambda: len(answered(discord)) == len(asked))
    asked += await ask_everywhere(discord, "two")
    await asyncio.to_thread(nodes.running["a"].kill)
    asked += await ask_everywhere(discord, "three")
    await discord.until(lambda: len(answered(discord)) == len(asked))
    asked += await ask_everywhere(discord, "four")
    await discord.until(lambda: len(answered(discord)) == len(asked))
    assert len(gateway.identifies) == len(gateway.resumed) == 1
    assert gateway.resumed[0]["seq"] > 0

    await nodes.start("c")
    assert await asyncio.to_thread(nodes.running["b"].stop) == 0
    seen = len(gateway.sessions["s1"].events)
    asked += await ask_everywhere(discord, "five")
    await discord.until(lambda: len(answered(discord)) == len(asked))
    assert (len(gateway.identifies), len(gateway.resumed)) == (1, 2)
    assert seen - 1 <= gateway.resumed[1]["seq"] <= seen, "a node that leaves saves the number of the last event"
    assert set(answered(discord)) == set(asked)
    assert all(is_answered_once_or_marked(discord, number) for number in asked)
    assert gateway.most_open == 1


def is_answered_once_or_marked(discord: FakeDiscord, number: int) -> bool:
    """Return whether one message answers another. A kill during a send may repeat it, with a mark."""
    answers = [
        message
        for chat in CHATS
        for message in discord.sent(chat)
        if message["message_reference"]["message_id"] == number
    ]
    return len(answers) == 1 or all("repeated" in message["content"] for message in answers[1:])


async def test_a_leader_whose_resume_is_refused_reads_the_history(nodes: Nodes, discord: FakeDiscord) -> None:
    asked = await ask_everywhere(discord, "one")
    await discord.until(lambda: len(answered(discord)) == len(asked))
    discord.gateway.resumes = lambda: "never"
    assert await asyncio.to_thread(nodes.running["a"].stop) == 0
    asked += await ask_everywhere(discord, "two")
    await discord.until(lambda: len(answered(discord)) == len(asked))
    assert answered(discord) == dict.fromkeys(asked, 1)
    assert (len(discord.gateway.resumed), len(discord.gateway.identifies)) == (1, 2)
    assert discord.gateway.most_open == 1


@pytest.mark.usefixtures("nodes")
async def test_the_owner_of_a_chat_answers_slash_commands_below_them(discord: FakeDiscord) -> None:
    for chat in CHATS:
        await discord.act(2, {"name": "whoami"}, channel=chat, author=BOB)
    await discord.until(lambda: all(discord.private(chat) for chat in CHATS))
    for chat in CHATS:
        (answer,) = discord.private(chat)
        assert "You are" in answer["content"]
        assert not discord.sent(chat)
    assert discord.calls_of("read_interaction"), "a node that has not received the command answers some of them"


async def test_a_node_receives_for_all_bots_that_others_cannot_connect(
    tmp_path: Path, database_url: str, discord: FakeDiscord
) -> None:
    """Two bots, and two nodes, one of which reaches neither: the other one takes more than its share."""
    nodes = Nodes(tmp_path, database_url, discord)
    away = "http://127.0.0.1:1/api"
    async with discord_server() as second:
        try:
            await nodes.start("cut_off", api=away, second=away)
            await nodes.start("connected", second=second.url)
            await discord.until(lambda: discord.gateway.sessions)
            await second.until(lambda: second.gateway.sessions)
        finally:
            await nodes.close()
