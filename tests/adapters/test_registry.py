import asyncio
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.adapters.registry import ChannelRegistry
from gateway.adapters.supervisor import ChannelState
from gateway.contract import Inbound, Verdict
from gateway.errors import CannotStart
from gateway.testing import StubBrowser
from tests.polling import until

QUIET = {"web": {"enabled": False}, "terminal": {"enabled": False}}


def settings(folder: Path, **channels: dict[str, object]) -> Settings:
    return Settings.model_validate({"gateway": {"data_dir": folder}, "channels": {**QUIET, **channels}})


async def deliver(_inbound: Inbound) -> Verdict:
    return Verdict.ACCEPTED


def states(channels: ChannelRegistry) -> dict[str, str]:
    return {f"{health.name}:{health.account}": health.state for health in channels.health()}


async def until_up(channels: ChannelRegistry) -> None:
    await until(lambda: {health.state for health in channels.health()} == {ChannelState.UP})


async def test_every_account_is_a_channel_of_its_own(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={"accounts": {"work": {}, "home": {}}}))
    assert set(channels.by_identity) == {("loopback", "work"), ("loopback", "home")}


async def test_a_reload_opens_closes_and_replaces(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={"accounts": {"kept": {}, "gone": {}, "changed": {}}}))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        channels.start(tasks, deliver)
        await until_up(channels)
        before = dict(channels.by_identity)
        accounts = {"kept": {}, "changed": {"allow": ["7"]}, "fresh": {}}
        await channels.reload(settings(tmp_path, loopback={"accounts": accounts}))
        await until_up(channels)
        after = dict(channels.by_identity)
        assert states(channels) == {"loopback:kept": "up", "loopback:changed": "up", "loopback:fresh": "up"}
        await channels.stop()
    assert after["loopback", "kept"] is before["loopback", "kept"]
    assert after["loopback", "changed"] is not before["loopback", "changed"]


async def test_a_channel_is_closed_before_its_successor_starts(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={}))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        channels.start(tasks, deliver)
        await until_up(channels)
        old = channels.by_identity["loopback", "default"]
        assert isinstance(old, LoopbackChannel)
        await channels.reload(settings(tmp_path, loopback={"allow": ["7"]}))
        assert not old.is_reading
        await channels.stop()


async def test_a_reload_that_cannot_work_changes_nothing(tmp_path: Path) -> None:
    channels = ChannelRegistry(StubBrowser())
    channels.open(settings(tmp_path, loopback={}))
    with pytest.raises(CannotStart, match="carrier_pigeon"):
        await channels.reload(settings(tmp_path, carrier_pigeon={}))
    assert set(channels.by_identity) == {("loopback", "default")}
