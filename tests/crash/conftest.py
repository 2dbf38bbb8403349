from functools import partial

import pytest

from tests.crash.engines import NewStorage, new_storage


@pytest.fixture
def storages(engine: str, request: pytest.FixtureRequest) -> NewStorage:
    """Return what creates storages of the engine that the test is parametrised with."""
    return new_storage(engine, partial(request.getfixturevalue, "postgres"))
