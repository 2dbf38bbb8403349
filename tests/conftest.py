import asyncio
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Generator, Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.forks.process import stop_fork_servers
from tests.memory_folder import memory_folder
from tests.postgres.fixtures import (
    database_url,
    each_database_url,
    each_postgres,
    new_pgbouncer,
    new_postgres,
    new_proxy,
    postgres,
    postgres_servers,
)
from tests.skip_summary import pytest_terminal_summary
from tests.umask import umask

__all__ = [
    "database_url",
    "each_database_url",
    "each_postgres",
    "new_pgbouncer",
    "new_postgres",
    "new_proxy",
    "postgres",
    "postgres_servers",
    "pytest_terminal_summary",
]

# The time of an example depends mostly on the load of the machine.
settings.register_profile("no_deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no_deadline")


def pytest_configure() -> None:
    """Handle SIGINT again, and put the files of tests into memory.

    A shell ignores SIGINT in background jobs, and child processes inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if folder := memory_folder():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder))  # Where pytest makes the folders of `tmp_path`.


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect no garbage while tests are collected: almost all objects stay, and looking through them takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_sessionfinish() -> None:
    stop_fork_servers()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("asyncio"):  # An event loop for the other tests would cost seconds.
        request.getfixturevalue("leaves_no_task_running")
    before = umask()
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    if structlog.is_configured():  # A command that runs in the process of the test sets up its log.
        root.handlers, root.level = handlers, level
        structlog.reset_defaults()
    assert umask() == before, "the test has changed the umask"


@pytest.fixture
async def leaves_no_task_running() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert not left, f"left running: {sorted(task.get_name() for task in left)}"
