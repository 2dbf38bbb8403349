"""Several accounts of two platforms in one gateway, each with separate conversations."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from config import Settings
from gateway.build import open_daemon
from gateway.daemon import Daemon
from tests.channels.discord.fake_discord import ADA as DISCORD_ADA
from tests.channels.discord.fake_discord import TOKEN as DISCORD_TOKEN
from tests.channels.discord.fake_discord import FakeDiscord, discord_server
from tests.channels.telegram.bot_api import ADA, TOKEN, FakeBotApi, bot_api
from tests.daemon.harness import Parrot
from tests.polling import until

TIMEOUT = 120


def settings(folder: Path, telegrams: list[FakeBotApi], discords: list[FakeDiscord]) -> Settings:
    telegram = [{"token": TOKEN, "api_base": api.url, "allow": [ADA["id"]]} for api in telegrams]
    discord = [{"token": DISCORD_TOKEN, "api_base": api.url, "allow": [DISCORD_ADA["id"]]} for api in discords]
    return Settings.model_validate(
        {
            "gateway": {"data_dir": folder / "data"},
            "session": {"dm_scope": "per-account-channel-peer"},
            "channels": {
                "web": {"enabled": False},
                "terminal": {"enabled": False},
                "telegram": {**telegram[0], "accounts": {"work": telegram[1]}},
                "discord": {**discord[0], "accounts": {"work": discord[1]}},
            },
        }
    )


@asynccontextmanager
async def gateway(configured: Settings) -> AsyncIterator[Daemon]:
    async with asyncio.timeout(TIMEOUT), open_daemon(configured, listen=False) as daemon, asyncio.TaskGroup() as tasks:
        started = asyncio.Event()
        tasks.create_task(daemon.run(started.set), name="daemon")
        await started.wait()
        await until(lambda: daemon.status.health().ready, within=TIMEOUT)
        yield daemon
        daemon.stop()


async def test_four_bots_answer_in_separate_conversations(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with AsyncExitStack() as servers:
        telegrams = [await servers.enter_async_context(bot_api()) for _ in range(2)]
        discords = [await servers.enter_async_context(discord_server()) for _ in range(2)]
        async with gateway(settings(tmp_path, telegrams, discords)) as daemon:
            parrot.installed(daemon)
            assert [(each.name, each.account) for each in daemon.status.health().channels] == [
                ("telegram", "default"),
                ("telegram", "work"),
                ("discord", "default"),
                ("discord", "work"),
            ]
            for count, word in enumerate(("first", "second"), start=1):
                for number, (telegram, discord) in enumerate(zip(telegrams, discords, strict=True)):
                    await telegram.say(f"{word} on telegram {number}")
                    await discord.say(f"{word} on discord {number}")
                for number, (telegram, discord) in enumerate(zip(telegrams, discords, strict=True)):
                    answer = await telegram.called("sendMessage", times=count)
                    assert answer.fields["text"] == f"heard: {word} on telegram {number}"
                    assert (await discord.heard(count))["content"] == f"heard: {word} on discord {number}"
    assert sorted(parrot.heard[4:]) == sorted(
        [f"first on {name} {number}", f"second on {name} {number}"]
        for name in ("telegram", "discord")
        for number in (0, 1)
    )
