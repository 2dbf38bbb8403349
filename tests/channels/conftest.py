"""Fixtures shared by the tests of all channels."""

import pytest

from tests.channels.harness import Core, PulseRecorder


@pytest.fixture
def core() -> Core:
    return Core()


@pytest.fixture
def pulse() -> PulseRecorder:
    return PulseRecorder()
