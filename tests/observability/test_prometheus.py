"""The metrics of a gateway after a conversation."""

from pathlib import Path

import aiohttp

from config import HttpSettings, Secret
from gateway.build import open_daemon
from gateway.contract import Sender, Verdict
from tests.agent.wire.openai import OPENAI
from tests.daemon.harness import ask, settings
from tests.daemon.models import talking
from tests.observability.scrape import scrape
from tests.polling import until

REFUSAL = OPENAI.refusal(401, "invalid_api_key")
ANSWER = OPENAI.answer("Hello.", tokens=(1_000, 200))
TOKEN = "a-token-of-this-test-0123456789"
PROXIED = {"X-Forwarded-For": "192.0.2.7"}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


async def test_messages_turns_model_requests_and_costs_are_counted(tmp_path: Path) -> None:
    async with talking(tmp_path, ANSWER) as (_, chat, _daemon):
        assert await chat.say("hello", peer="ada", event_id="once") is Verdict.ACCEPTED
        await chat.hear_message()
        assert await chat.say("hello", peer="ada", event_id="once") is Verdict.DUPLICATE
        await ask(chat, "/status")
        await _wait_until_delivered(tmp_path)
        seen = await scrape(tmp_path / "data")
    assert seen.value("gatehouse_messages_received_total", channel="loopback", verdict="accepted") == 2
    assert seen.value("gatehouse_messages_received_total", channel="loopback", verdict="duplicate") == 1
    assert seen.value("gatehouse_messages_settled_total", channel="loopback", outcome="answered") == 1
    assert seen.value("gatehouse_messages_settled_total", channel="loopback", outcome="failed") == 0
    assert seen.value("gatehouse_commands_total", channel="loopback", command="status") == 1
    assert seen.value("gatehouse_replies_total", channel="loopback", outcome="delivered") == 2
    assert seen.value("gatehouse_turn_seconds_count", channel="loopback") == 1
    assert seen.value("gatehouse_model_requests_total", model="house/small", outcome="answered") == 1
    assert seen.value("gatehouse_model_first_token_seconds_count", model="house/small") == 1
    assert seen.value("gatehouse_tokens_total", model="house/small", kind="input") == 1_000
    assert seen.value("gatehouse_tokens_total", model="house/small", kind="output") == 200
    assert seen.value("gatehouse_cost_total", model="house/small") == 0.003
    assert seen.value("gatehouse_channel_up", channel="loopback", account="default") == 1
    assert (seen.value("gatehouse_ready"), seen.value("gatehouse_degraded")) == (1, 0)
    assert seen.value("gatehouse_sessions") == seen.value("gatehouse_scopes") == 1
    assert seen.value("process_resident_memory_bytes") > 1_000_000


async def _wait_until_delivered(folder: Path) -> None:
    """Wait until the last reply is stored as delivered. The chat receives it earlier."""

    async def is_delivered() -> bool:
        return not (await scrape(folder / "data")).value("gatehouse_replies_waiting")

    await until(is_delivered)


async def test_a_failing_model_is_counted_and_makes_the_gateway_degraded(tmp_path: Path) -> None:
    async with talking(tmp_path, REFUSAL) as (_, chat, daemon):
        for _ in range(3):
            await ask(chat, "hello")
        seen = await scrape(tmp_path / "data")
        health = daemon.status.health()
        status = await ask(chat, "/status")
    assert seen.value("gatehouse_messages_settled_total", channel="loopback", outcome="failed") == 3
    assert seen.value("gatehouse_model_requests_total", model="house/small", outcome="failed") == 3
    assert (seen.value("gatehouse_ready"), seen.value("gatehouse_degraded")) == (1, 1)
    assert (health.ready, health.state) == (True, "degraded")
    assert "house/small failed 3 times in a row" in status


async def test_no_label_names_a_person_a_chat_or_a_session(tmp_path: Path) -> None:
    async with talking(tmp_path, ANSWER) as (_, chat, _daemon):
        for peer in ("ada", "bob", "eve"):
            await chat.say("hello", peer=peer, sender=Sender(id=peer, name=peer))
            await chat.hear_message()
        seen = await scrape(tmp_path / "data")
    known = {"channel", "account", "verdict", "outcome", "command", "model", "kind", "state", "version", "engine", "le"}
    assert set().union(*seen.labels.values()) <= known


async def test_scraping_over_http_needs_the_token(tmp_path: Path) -> None:
    assert await _statuses(tmp_path, HttpSettings(port=0, token=Secret(TOKEN))) == {
        "plain": 401,
        "proxied": 401,
        "token": 200,
    }


async def test_open_metrics_still_need_the_token_through_a_proxy(tmp_path: Path) -> None:
    open_metrics = HttpSettings(port=0, token=Secret(TOKEN), open_metrics=True)
    assert await _statuses(tmp_path, open_metrics) == {"plain": 200, "proxied": 401, "token": 200}


async def _statuses(folder: Path, http: HttpSettings) -> dict[str, int]:
    ways = {
        "plain": {},
        "proxied": {"X-Forwarded-For": "192.0.2.7"},
        "token": {"X-Forwarded-For": "192.0.2.7", **BEARER},
    }
    async with open_daemon(settings(folder, http=http)) as daemon, aiohttp.ClientSession(daemon.server.url) as client:
        found = {}
        for way, headers in ways.items():
            async with client.get("/metrics", headers=headers) as answer:
                found[way] = answer.status
        return found
