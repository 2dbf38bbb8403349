import asyncio
from collections import defaultdict

import pytest

from gateway.lanes import LaneFull, Lanes


class ControlledJobs:
    """Runs items that end when the test opens their gate, and records their order."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.ended: list[str] = []
        self.reasons: list[str] = []

    async def run(self, item: str) -> None:
        self.started.put_nowait(item)
        try:
            await self.gates[item].wait()
        except asyncio.CancelledError as stop:
            self.reasons.append(str(stop))
            raise
        self.ended.append(item)


@pytest.fixture
def jobs() -> ControlledJobs:
    return ControlledJobs()


@pytest.fixture
def lanes(jobs: ControlledJobs) -> Lanes[str]:
    return Lanes(jobs.run, name="lane", max_waiting=3, max_total=5)


async def test_turns_of_a_session_run_one_at_a_time_and_in_order(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for turn in ("a", "b", "c"):
            jobs.gates[turn].set()
            lanes.put("s", turn)
        await lanes.drained()
    assert jobs.ended == ["a", "b", "c"]


async def test_sessions_run_side_by_side(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        lanes.put("t", "b")
        assert {await jobs.started.get(), await jobs.started.get()} == {"a", "b"}
        assert lanes.running == 2
        for turn in ("a", "b"):
            jobs.gates[turn].set()
        await lanes.drained()


async def test_a_full_lane_raises_lane_full(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for item in ("a", "b", "c"):
            lanes.check_room("s")
            lanes.put("s", item)
        with pytest.raises(LaneFull) as full:
            lanes.check_room("s")
        assert full.value.waiting == 3
        lanes.check_room("t")
        lanes.stop_all("")
        await lanes.drained()
    assert jobs.ended == []


async def test_all_lanes_together_can_be_full_too(lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for key in "stuvw":
            lanes.put(key, "a")
        with pytest.raises(LaneFull):
            lanes.check_room("x")
        lanes.stop_all("")
        await lanes.drained()
    assert lanes.waiting == 0


@pytest.mark.parametrize("is_running", [True, False])
async def test_items_put_back_run_before_those_that_came_since(
    jobs: ControlledJobs, lanes: Lanes[str], *, is_running: bool
) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        await jobs.started.get()
        lanes.put("s", "b")
        lanes.put("s", "c")
        taken = lanes.take_waiting("s")
        if is_running:
            lanes.put("s", "d")
        else:
            jobs.gates["a"].set()
            await lanes.drained()
        lanes.put_back("s", taken)
        assert lanes.waiting == 2 + is_running
        for item in "abcd":
            jobs.gates[item].set()
        await lanes.drained()
    assert jobs.ended == ["a", "b", "c", *(["d"] if is_running else [])]
    assert lanes.waiting == 0


async def test_stop_cancels_the_running_item_and_waiting_ones_can_be_taken(
    jobs: ControlledJobs, lanes: Lanes[str]
) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        await jobs.started.get()
        lanes.put("s", "b")
        assert lanes.is_busy("s")
        assert lanes.take_waiting("s") == ["b"]
        assert lanes.stop("s", "enough")
        await lanes.drained()
    assert jobs.reasons == ["enough"]
    assert not lanes.is_busy("s")


async def test_a_lane_continues_after_a_cancelled_turn(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        await jobs.started.get()
        lanes.stop("s")
        jobs.gates["b"].set()
        lanes.put("s", "b")
        await lanes.drained()
    assert jobs.ended == ["b"]


async def test_an_idle_session_costs_nothing(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        jobs.gates["a"].set()
        lanes.put("s", "a")
        await lanes.drained()
        assert (lanes.running, lanes.waiting) == (0, 0)
        assert not lanes.stop("s")


async def test_a_stopped_turn_may_report_its_outcome() -> None:
    """A second stop must not cut that short; only the end of the daemon does."""
    telling, told = asyncio.Event(), asyncio.Event()

    async def run(_item: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            telling.set()
            await told.wait()

    lanes = Lanes(run, name="lane")
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lanes.stop("s")
        await telling.wait()
        assert not lanes.stop("s")
        assert lanes.running == 1
        lanes.abort()
        await lanes.drained()
    assert not told.is_set()


async def test_an_item_that_has_not_started_is_not_stopped_but_can_be_taken(
    jobs: ControlledJobs, lanes: Lanes[str]
) -> None:
    """A task that is cancelled before its first step would never run, and its message never be answered."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        assert not lanes.stop("s", "enough")
        assert lanes.take_waiting("s") == ["a"]
        lanes.put("t", "b")
        assert not lanes.stop("t", "enough")
        jobs.gates["b"].set()
        await lanes.drained()
    assert jobs.ended == ["b"]


async def test_nothing_starts_after_stop_all(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.stop_all("")
        lanes.put("s", "a")
        await lanes.drained()
    assert jobs.started.empty()


async def test_a_parked_item_is_not_waited_for_until_it_continues_or_is_stopped() -> None:
    parked, go_on = asyncio.Event(), asyncio.Event()

    async def run(_item: str) -> None:
        with house.parked("key"):
            parked.set()
            await go_on.wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        house: Lanes[str] = Lanes(run, name="lane")
        house.open(group)
        house.put("key", "first")
        house.put("key", "second")
        await parked.wait()
        await house.drained()
        assert (house.running, house.parked_count, house.waiting) == (0, 1, 1)
        house.stop_all("")
        assert (house.running, house.parked_count) == (1, 0)
        await house.drained()
        assert not house.is_busy("key")


async def test_a_reserved_lane_runs_the_item_it_was_reserved_for_first(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        assert lanes.reserve("s")
        assert not lanes.reserve("s"), "it is in use now"
        lanes.put("s", "b")
        lanes.put_reserved("s", "a")
        for turn in ("a", "b"):
            jobs.gates[turn].set()
        await lanes.drained()
    assert jobs.ended == ["a", "b"]


async def test_a_released_lane_runs_the_items_that_came_since(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.reserve("s")
        lanes.reserve("idle")
        lanes.put("s", "b")
        jobs.gates["b"].set()
        lanes.release("idle")
        lanes.release("s")
        await lanes.drained()
    assert jobs.ended == ["b"]
    assert not lanes.is_busy("idle")


async def test_an_item_that_comes_after_the_release_still_runs(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.reserve("s")
        lanes.release("s")
        jobs.gates["a"].set()
        lanes.put_reserved("s", "a")
        await lanes.drained()
    assert jobs.ended == ["a"]


async def test_a_reserved_lane_is_not_drained_until_it_is_released_after_stop_all(
    jobs: ControlledJobs, lanes: Lanes[str]
) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.reserve("s")
        lanes.stop_all("")
        lanes.put_reserved("s", "a")
        lanes.release("s")
        await lanes.drained()
    assert jobs.started.empty()


async def test_a_reserved_item_can_be_stopped_but_not_taken_out(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    """It is durable as begun, so it has to say how it ended, also when it could not run yet."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.reserve("s")
        lanes.put("s", "b")
        lanes.put_reserved("s", "a")
        assert lanes.take_waiting("s") == ["b"]
        assert lanes.waiting == 0
        assert lanes.stop("s", "enough")
        assert not lanes.stop("s", "more than enough")
        lanes.put("s", "c")
        jobs.gates["c"].set()
        await lanes.drained()
    assert jobs.reasons == ["enough"]
    assert jobs.ended == ["c"]


async def test_a_detached_item_ends_beside_the_next(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        assert await jobs.started.get() == "a"
        lanes.detach("s")
        assert not lanes.is_busy("s")
        lanes.put("s", "b")
        assert await jobs.started.get() == "b", "though the first has not ended"
        jobs.gates["a"].set()
        jobs.gates["b"].set()
        await lanes.drained()
    assert sorted(jobs.ended) == ["a", "b"]
    assert not lanes.is_busy("s")


async def test_a_lane_is_not_detached_while_others_wait_in_it(jobs: ControlledJobs, lanes: Lanes[str]) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        lanes.put("s", "a")
        lanes.put("s", "b")
        assert await jobs.started.get() == "a"
        lanes.detach("s")
        assert lanes.is_busy("s")
        jobs.gates["b"].set()
        jobs.gates["a"].set()
        await lanes.drained()
    assert jobs.ended == ["a", "b"]


async def test_the_running_item_can_continue_with_the_next_one_that_suits(
    jobs: ControlledJobs, lanes: Lanes[str]
) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        lanes.open(tasks)
        for turn in ("a", "b", "c"):
            jobs.gates[turn].set()
            lanes.put("s", turn)
        assert lanes.take_next("s", lambda item: item == "b") is None
        assert lanes.take_next("s", lambda item: item == "a") == "a"
        assert lanes.take_next("t", lambda _: True) is None
        assert lanes.waiting == 2
        await lanes.drained()
    assert jobs.ended == ["b", "c"]
