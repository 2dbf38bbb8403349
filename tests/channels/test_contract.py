"""Runs the contract suite against the built-in channels that need no fake platform."""

from collections.abc import AsyncIterator
from importlib.metadata import entry_points

import pytest

from gateway.testing import Core, FarSide
from gateway.testing.suite import ChannelContract
from tests.channels.far_sides import FAR_SIDES


class TestContract(ChannelContract):
    @pytest.fixture(params=sorted(FAR_SIDES))
    async def far_side(self, request: pytest.FixtureRequest, core: Core) -> AsyncIterator[FarSide]:
        async with FAR_SIDES[request.param](core) as far_side:
            yield far_side


def test_every_built_in_channel_runs_the_contract_suite() -> None:
    """Discord, Telegram and webhooks run it in their own tests, against fake platforms."""
    built_in = {point.name for point in entry_points(group="gatehouse.channels") if point.value.startswith("channels.")}
    assert built_in - {"discord", "telegram", "webhook"} == set(FAR_SIDES)
