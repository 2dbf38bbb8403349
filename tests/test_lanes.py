import asyncio
from collections import defaultdict
from datetime import UTC, datetime

import pytest

from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused
from gateway.lanes import Job, Lanes

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def job(session: str, turn: str) -> Job:
    inbound = Inbound(
        address=Address(channel="loopback", kind=PeerKind.DIRECT, peer="p"),
        sender=Sender(id="p"),
        event_id=turn,
        text=turn,
        sent_at=NOW,
    )
    return Job(inbound=inbound, agent="main", scope=session, session=session, number=1, turn=turn, accepted_at=NOW)


class Stage:
    """Runs jobs that end when told to, and remembers who ran beside whom."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.ended: list[str] = []
        self.reasons: list[str] = []

    async def run(self, job: Job) -> None:
        self.started.put_nowait(job.turn)
        try:
            await self.gates[job.turn].wait()
        except asyncio.CancelledError as stop:
            self.reasons.append(str(stop))
            raise
        self.ended.append(job.turn)


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
def lanes(stage: Stage) -> Lanes:
    return Lanes(stage.run, max_waiting=3)


async def test_turns_of_a_session_run_one_at_a_time_and_in_order(stage: Stage, lanes: Lanes) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for turn in ("a", "b", "c"):
            stage.gates[turn].set()
            lanes.put(job("s", turn))
        await lanes.drained()
    assert stage.ended == ["a", "b", "c"]


async def test_sessions_run_side_by_side(stage: Stage, lanes: Lanes) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put(job("s", "a"))
        lanes.put(job("t", "b"))
        assert {await stage.started.get(), await stage.started.get()} == {"a", "b"}
        assert lanes.running == 2
        for turn in ("a", "b"):
            stage.gates[turn].set()
        await lanes.drained()


async def test_a_full_lane_refuses_with_a_sentence(stage: Stage, lanes: Lanes) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for turn in ("a", "b", "c"):
            lanes.put(job("s", turn))
        with pytest.raises(Refused, match="/stop"):
            lanes.put(job("s", "d"))
        lanes.stop("s")
        await lanes.drained()
    assert stage.ended == []


async def test_stop_cancels_the_turn_and_drops_what_waits(stage: Stage, lanes: Lanes) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put(job("s", "a"))
        await stage.started.get()
        lanes.put(job("s", "b"))
        was_running, dropped = lanes.stop("s", "enough")
        assert was_running
        assert [each.turn for each in dropped] == ["b"]
        await lanes.drained()
    assert stage.reasons == ["enough"]


async def test_a_lane_goes_on_after_a_cancelled_turn(stage: Stage, lanes: Lanes) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put(job("s", "a"))
        await stage.started.get()
        lanes.stop("s")
        stage.gates["b"].set()
        lanes.put(job("s", "b"))
        await lanes.drained()
    assert stage.ended == ["b"]


async def test_an_idle_session_costs_nothing(stage: Stage, lanes: Lanes) -> None:
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        stage.gates["a"].set()
        lanes.put(job("s", "a"))
        await lanes.drained()
        assert (lanes.running, lanes.waiting) == (0, 0)
        assert lanes.stop("s") == (False, [])


async def test_a_stopped_turn_may_say_how_it_ended() -> None:
    """A second stop must not cut that short; only the end of the daemon does."""
    telling, told = asyncio.Event(), asyncio.Event()

    async def run(_job: Job) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            telling.set()
            await told.wait()

    lanes = Lanes(run, max_waiting=3)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put(job("s", "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lanes.stop("s") == (True, [])
        await telling.wait()
        assert lanes.stop("s") == (False, [])
        assert lanes.running == 1
        lanes.abandon()
        await lanes.drained()
    assert not told.is_set()
