"""Telegram's webhook at two gateways on one PostgreSQL: any of them takes a call."""

import asyncio
from pathlib import Path

import aiohttp

from tests.channels.telegram.bot_api import TOKEN, FakeBotApi, album_part
from tests.daemon_process import DaemonProcess, by_fork_with, write_config

PATH = "/telegram/default/webhook"
HEADER = "X-Telegram-Bot-Api-Secret-Token"
CHATS = range(1, 9)

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
[channels.telegram]
token = "{token}"
api_base = "{api}"
dm_policy = "open"
[channels.telegram.options]
webhook_url = "http://127.0.0.1/"
"""


async def test_an_album_whose_parts_reach_several_nodes_is_one_message(
    tmp_path: Path, database_url: str, api: FakeBotApi
) -> None:
    nodes: list[DaemonProcess] = []
    try:
        for name in "ab":
            home = tmp_path / name
            home.mkdir()
            write_config(home, _CONFIG.format(home=home, url=database_url, name=name, token=TOKEN, api=api.url))
            start = by_fork_with("channels.telegram", "psycopg", "gateway.cluster.node")
            nodes.append(await asyncio.to_thread(DaemonProcess, home, None, start))
            await asyncio.to_thread(nodes[-1].ready)
            await api.called("getWebhookInfo", times=len(nodes))
        async with aiohttp.ClientSession() as client:
            for part in (1, 2, 3):
                for chat in CHATS:
                    update = album_part(10 * chat + part, sender={"id": chat, "is_bot": False, "first_name": "P"})
                    node = nodes[(chat + part) % 2].url
                    async with client.post(f"{node}{PATH}", json=update, headers={HEADER: api.secret}) as response:
                        assert response.status == 200
        await api.called("sendMessage", times=len(CHATS))
        assert await asyncio.to_thread(nodes[0].stop) == 0
        assert api.webhook
        assert len(api.calls_of("sendMessage")) == len(CHATS)
    finally:
        for daemon in nodes:
            await asyncio.to_thread(daemon.__exit__, None, None, None)
