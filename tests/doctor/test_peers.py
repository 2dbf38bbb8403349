"""Real calls, to servers that speak the platforms' own protocols."""

import asyncio

import pytest

from config import ProviderSettings
from gateway.doctor.finding import Level
from gateway.doctor.peers import prove_channel, prove_model
from tests.agent.streaming import TICKS
from tests.agent.wire import ANTHROPIC, OPENAI, Dialect, serving
from tests.channels.discord.fake_discord import discord_server
from tests.channels.discord.harness import open_discord
from tests.channels.telegram.bot_api import bot_api
from tests.channels.telegram.harness import Beats, opened

PATIENCE = 90.0


async def test_a_bots_token_is_tried_out_without_taking_a_message() -> None:
    async with bot_api() as api:
        good = await prove_channel(opened(api, Beats()), PATIENCE)
        bad = await prove_channel(opened(api, Beats(), token="99:nobody"), PATIENCE)
    assert (good.level, bad.level) == (Level.FINE, Level.WRONG), good.message
    assert "@" in good.message
    assert "channels.telegram.token" in bad.fix
    assert "nobody" not in bad.message
    assert {call.method for call in api.calls} == {"getMe"}


async def test_a_second_platform_is_asked_in_the_same_way() -> None:
    async with discord_server() as discord:
        found = await prove_channel(open_discord(discord, Beats()), PATIENCE)
    assert found.level is Level.FINE


async def test_a_platform_out_of_reach_is_told_apart_from_a_wrong_token() -> None:
    async with bot_api() as api:
        channel = opened(api, Beats())
    found = await prove_channel(channel, PATIENCE)
    assert found.level is Level.WRONG
    assert "network" in found.fix


async def test_a_platform_that_says_nothing_is_not_waited_for() -> None:
    async with bot_api() as api:
        api.held.add("getMe")
        found = await prove_channel(opened(api, Beats()), 0.5)
    assert found.message == "The platform has not answered for 0.5 seconds."


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)
async def test_a_model_is_asked_for_a_word(api: Dialect) -> None:
    async with serving(api, api.answer("yes")) as server:
        settings = ProviderSettings.model_validate(server.table())
        found = await prove_model("fake", settings, "m", PATIENCE)
        for _ in range(TICKS):
            await asyncio.sleep(0)
    assert found.level is Level.FINE
    assert len(server.requests) == 1


async def test_a_model_that_says_nothing_is_not_waited_for() -> None:
    async with serving(OPENAI, OPENAI.answer("yes")) as server:
        found = await prove_model("fake", ProviderSettings.model_validate(server.table()), "m", deadline=0.0)
    assert found.level is Level.WRONG
