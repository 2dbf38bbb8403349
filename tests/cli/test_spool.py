import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

from gateway.contract import Address, Outbound, PeerKind
from gateway.spool import AddToOutbox, MarkDead, Spool
from tests.daemon_process import gatehouse, running, write_config

REPLY = Outbound(address=Address(channel="web", kind=PeerKind.DIRECT, peer="owner"), text="hello\x1b[31m there")


async def leave_dead_replies(data: Path) -> None:
    async with await Spool.open(data) as spool:
        for key in ("k1", "k2"):
            send = AddToOutbox(key=key, turn=None, message=REPLY, at=datetime.now(UTC))
            await spool.commit(send, MarkDead(key=key, reason="blocked by the user"))


def make_unreadable(data: Path, key: str) -> None:
    with closing(sqlite3.connect(data / "spool.db")) as database, database:
        database.execute("UPDATE outbox SET message = '{\"newer\": true}' WHERE key = ?", [key])


def test_undelivered_replies_are_listed_and_can_be_retried(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    asyncio.run(leave_dead_replies(tmp_path / "data"))
    make_unreadable(tmp_path / "data", "k2")
    listed = gatehouse("spool", home=tmp_path)
    assert "dead" in listed.stdout
    assert "blocked by the user" in listed.stdout
    assert "unreadable k2" in listed.stdout
    assert "\x1b" not in listed.stdout
    with running(tmp_path):
        (row,) = json.loads(gatehouse("spool", "--json", home=tmp_path).stdout)["undelivered"]
        assert (row["key"], row["state"]) == ("k1", "dead")
        assert "Replies to send again: 1." in gatehouse("spool", "retry", "k1", home=tmp_path).stdout
        deadline = monotonic() + 30
        while json.loads(gatehouse("spool", "--json", home=tmp_path).stdout)["undelivered"]:
            assert monotonic() < deadline


def test_retrying_an_unknown_key_fails(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "data").mkdir(mode=0o700)
    refused = gatehouse("spool", "retry", "nothing", home=tmp_path)
    assert refused.returncode == 1
    assert "No failed reply has this key" in refused.stderr
