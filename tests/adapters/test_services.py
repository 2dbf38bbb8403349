from pathlib import Path

import pytest

from gateway.adapters.services import ChannelStore, InMemoryStore
from gateway.contract import Notebook
from gateway.spool import Spool


async def write_and_read(store: Notebook) -> dict[str, str]:
    await store.write({"a": "1", "b": "2"})
    await store.write({"a": None, "b": "3", "c": "4"})
    return await store.read()


async def test_the_last_value_written_is_read() -> None:
    assert await write_and_read(InMemoryStore()) == {"b": "3", "c": "4"}


async def test_facts_survive_a_restart(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        assert await write_and_read(ChannelStore(spool, "pigeon", "default")) == {"b": "3", "c": "4"}
    async with await Spool.open(tmp_path) as spool:
        assert await ChannelStore(spool, "pigeon", "default").read() == {"b": "3", "c": "4"}


@pytest.mark.parametrize(("channel", "account"), [("pigeon", "work"), ("pigeon-b", "default"), ("pig", "default")])
async def test_other_channels_and_accounts_cannot_read_them(tmp_path: Path, channel: str, account: str) -> None:
    async with await Spool.open(tmp_path) as spool:
        await write_and_read(ChannelStore(spool, "pigeon", "default"))
        assert await ChannelStore(spool, channel, account).read() == {}
