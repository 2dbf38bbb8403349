"""The fixture of empty storages."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config import Settings
from tests.sessions.engines import storage_url
from tests.storage_copy.harness import settings

NewStorage = Callable[[str], Settings]
"""Takes an engine, and returns the settings of an empty storage."""


@pytest.fixture
def new_storage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[NewStorage]:
    databases: list[str] = []

    def new_database() -> str:
        databases.append(request.getfixturevalue("postgres").new_database())
        return databases[-1]

    count = 0

    def new(engine: str) -> Settings:
        nonlocal count
        count += 1
        folder = tmp_path / f"{count}-{engine}"
        return settings(folder, storage_url(engine, folder, new_database))

    yield new
    for url in databases:
        request.getfixturevalue("postgres").drop_database(url)
