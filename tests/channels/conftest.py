"""What tests of several channels put around one."""

import pytest

from tests.channels.at_work import Beats, Core


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def beats() -> Beats:
    return Beats()
