import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def logging_as_it_was() -> Iterator[None]:
    """For commands that set up the log of their process, which here is the test's."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
