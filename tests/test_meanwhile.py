from datetime import UTC, datetime
from pathlib import Path

from config import Settings
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.jobs import Job
from gateway.lanes import Lanes
from gateway.live import Live
from gateway.meanwhile import Meanwhile
from gateway.signs import Signs


async def nothing(_job: Job) -> None:
    pass


def test_a_message_whose_channel_has_left_the_settings_stands_for_itself(tmp_path: Path) -> None:
    inbound = Inbound(
        address=Address(channel="gone", kind=PeerKind.DIRECT, peer="ada"),
        sender=Sender(id="ada"),
        event_id="1",
        text="hello",
        sent_at=datetime.now(UTC),
    )
    job = Job(turn="t", inbound=inbound, agent="main", scope="s", session="s", number=1)
    live = Live(Settings.model_validate({"gateway": {"data_dir": tmp_path}}))
    assert Meanwhile(live, Lanes(nothing, name="lane"), Signs({})).collected(job) == []
