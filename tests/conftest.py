import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.forks.process import end_parents
from tests.skip_summary import pytest_terminal_summary
from tests.umask import umask

__all__ = ["pytest_terminal_summary"]

# How long an example takes says something about the machine, and about the others who work on it.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Undo what a shell does to jobs in its background: what the tests start shall hear an interrupt."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish() -> None:
    end_parents()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("asyncio"):  # An event loop for those that need none would cost seconds in all.
        request.getfixturevalue("no_task_is_left_running")
    before = umask()
    yield
    assert umask() == before, "left another umask to the tests after it"


@pytest.fixture
async def no_task_is_left_running() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert not left, f"left running: {sorted(task.get_name() for task in left)}"
