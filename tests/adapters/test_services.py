from pathlib import Path

import pytest

from gateway.adapters.services import ChannelStore, InMemoryStore
from gateway.contract import Notebook
from gateway.spool import Spool


async def write_and_read(notebook: Notebook) -> dict[str, str]:
    await notebook.write({"a": "1", "b": "2"})
    await notebook.write({"a": None, "b": "3", "c": "4"})
    return await notebook.read()


async def test_what_was_written_last_is_read() -> None:
    assert await write_and_read(InMemoryStore()) == {"b": "3", "c": "4"}


async def test_facts_outlive_the_process(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        assert await write_and_read(ChannelStore(spool, "pigeon", "default")) == {"b": "3", "c": "4"}
    async with await Spool.open(tmp_path) as spool:
        assert await ChannelStore(spool, "pigeon", "default").read() == {"b": "3", "c": "4"}


@pytest.mark.parametrize(("channel", "account"), [("pigeon", "work"), ("pigeon-b", "default"), ("pig", "default")])
async def test_no_other_channel_or_account_reads_them(tmp_path: Path, channel: str, account: str) -> None:
    async with await Spool.open(tmp_path) as spool:
        await write_and_read(ChannelStore(spool, "pigeon", "default"))
        assert await ChannelStore(spool, channel, account).read() == {}
