from pathlib import Path

import pytest

from gateway.adapters.services import ChannelStore, InMemoryStore, SessionBrowser
from gateway.contract import Address, Notebook, PeerKind, Sender
from gateway.spool import Spool
from tests.daemon.harness import gateway, settings


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


OWNER, GUEST = Sender(id="1", is_owner=True), Sender(id="2")


@pytest.mark.parametrize(
    ("kind", "sender", "is_needed"),
    [("offline", OWNER, True), ("offline", GUEST, False), ("openai", OWNER, False)],
)
async def test_only_an_owner_without_a_model_is_told_to_set_one_up(
    tmp_path: Path, kind: str, sender: Sender, *, is_needed: bool
) -> None:
    provider = {"kind": kind, "base_url": "http://127.0.0.1:9/v1"}
    configured = settings(tmp_path, providers={"x": provider}, agents={"main": {"provider": "x", "model": "m"}})
    address = Address(channel="loopback", kind=PeerKind.DIRECT, peer=sender.id)
    async with gateway(configured) as (daemon, _):
        browser = SessionBrowser(daemon.live, daemon.sessions, daemon.approvals)
        assert browser.needs_setup(address, sender) is is_needed
