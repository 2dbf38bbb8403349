import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from config import Settings
from gateway.access.rules import Live
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.turns.busy import BusyPolicy


async def nothing(_job: Job) -> None:
    pass


def job(channel: str, sender: Sender, turn: str = "t") -> Job:
    inbound = Inbound(
        address=Address(channel=channel, kind=PeerKind.DIRECT, peer=sender.id),
        sender=sender,
        event_id=turn,
        text="hello",
        sent_at=datetime.now(UTC),
    )
    return Job(turn=turn, inbound=inbound, agent="main", scope="s", session="s", number=1)


def test_a_message_of_a_removed_channel_collects_no_others(tmp_path: Path) -> None:
    live = Live(Settings.model_validate({"gateway": {"data_dir": tmp_path}}))
    policy = BusyPolicy(live, Lanes(nothing, name="lane"))
    assert policy.take_collected(job("gone", Sender(id="ada"))) == []


@pytest.mark.parametrize("busy", ["collect", "steer"])
async def test_waiting_messages_of_a_revoked_user_are_not_collected_or_steered(tmp_path: Path, busy: str) -> None:
    """Where several people share a conversation."""
    channels = {"loopback": {"busy": busy, "dm_policy": "allowlist", "allow": ["ada"]}}
    live = Live(Settings.model_validate({"gateway": {"data_dir": tmp_path}, "channels": channels}))
    lanes: Lanes[Job] = Lanes(nothing, name="lane")
    policy = BusyPolicy(live, lanes)
    first = job("loopback", Sender(id="ada"))
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for turn, sender in (("t2", "ada"), ("t3", "eve"), ("t4", "ada")):
            lanes.put("s", job("loopback", Sender(id=sender), turn))
        taken = policy.take_collected(first) if busy == "collect" else policy.take_steering("s")
        assert [each.turn for each in taken] == ["t2"]
