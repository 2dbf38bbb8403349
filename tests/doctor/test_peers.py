"""Real calls, to servers that speak the platforms' own protocols."""

import pytest

from config import ProviderSettings
from gateway.doctor.finding import Level
from gateway.doctor.peers import check_channel, check_model
from tests.agent.wire import ANTHROPIC, OPENAI, Dialect, serving
from tests.channels.discord.fake_discord import discord_server
from tests.channels.discord.harness import open_discord
from tests.channels.telegram.bot_api import bot_api
from tests.channels.telegram.harness import PulseRecorder, opened

DEADLINE = 90.0


async def test_bot_token_is_checked_without_reading_messages() -> None:
    async with bot_api() as api:
        good = await check_channel(opened(api, PulseRecorder()), DEADLINE)
        bad = await check_channel(opened(api, PulseRecorder(), token="99:nobody"), DEADLINE)
    assert (good.level, bad.level) == (Level.OK, Level.ERROR), good.message
    assert "@" in good.message
    assert "channels.telegram.token" in bad.fix
    assert "nobody" not in bad.message
    assert {call.method for call in api.calls} == {"getMe"}


async def test_discord_token_is_checked() -> None:
    async with discord_server() as discord:
        found = await check_channel(open_discord(discord, PulseRecorder()), DEADLINE)
    assert found.level is Level.OK


async def test_unreachable_platform_is_distinguished_from_a_wrong_token() -> None:
    async with bot_api() as api:
        channel = opened(api, PulseRecorder())
    found = await check_channel(channel, DEADLINE)
    assert found.level is Level.ERROR
    assert "network" in found.fix


async def test_silent_platform_times_out() -> None:
    async with bot_api() as api:
        api.held.add("getMe")
        found = await check_channel(opened(api, PulseRecorder()), 0.5)
    assert found.message == "The platform hasn't answered for 500 ms."


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)
async def test_model_is_called_once(api: Dialect) -> None:
    async with serving(api, api.answer("yes")) as server:
        settings = ProviderSettings.model_validate(server.table())
        found = await check_model("fake", settings, "m", DEADLINE)
    assert found.level is Level.OK
    assert len(server.requests) == 1


async def test_silent_model_times_out() -> None:
    async with serving(OPENAI, OPENAI.answer("yes")) as server:
        found = await check_model("fake", ProviderSettings.model_validate(server.table()), "m", deadline=0.0)
    assert found.level is Level.ERROR
