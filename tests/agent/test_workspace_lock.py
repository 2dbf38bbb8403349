"""The lock of a workspace: shared among calls that change files, exclusive for an approved call."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

from gateway.agent.workspace_lock import WorkspaceLock


class Holder:
    """Holds the lock in a task until it is told to leave."""

    def __init__(self, group: asyncio.TaskGroup, way: AbstractAsyncContextManager[None]) -> None:
        self.is_inside = asyncio.Event()
        self.leave = asyncio.Event()
        self.task = group.create_task(self._hold(way), name="holder")

    async def _hold(self, way: AbstractAsyncContextManager[None]) -> None:
        async with way:
            self.is_inside.set()
            await self.leave.wait()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_shared_holders_are_inside_together_and_an_exclusive_one_alone() -> None:
    lock = WorkspaceLock()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        first, second = Holder(group, lock.shared()), Holder(group, lock.shared())
        await first.is_inside.wait()
        await second.is_inside.wait()
        alone, later = Holder(group, lock.exclusive()), Holder(group, lock.shared())
        first.leave.set()
        await settle()
        assert not alone.is_inside.is_set()
        second.leave.set()
        await alone.is_inside.wait()
        await settle()
        assert not later.is_inside.is_set()
        alone.leave.set()
        await later.is_inside.wait()
        later.leave.set()


@pytest.mark.parametrize("is_inside", [False, True])
async def test_a_cancelled_exclusive_holder_lets_the_others_in(*, is_inside: bool) -> None:
    lock = WorkspaceLock()
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        first = Holder(group, lock.shared())
        await first.is_inside.wait()
        alone, later = Holder(group, lock.exclusive()), Holder(group, lock.shared())
        await settle()
        if is_inside:
            first.leave.set()
            await alone.is_inside.wait()
        alone.task.cancel()
        await later.is_inside.wait()
        first.leave.set()
        later.leave.set()
