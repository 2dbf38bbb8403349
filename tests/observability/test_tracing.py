"""Traces of a whole gateway, as a collector receives them."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from channels.loopback import LoopbackChannel
from gateway.daemon import Daemon
from gateway.spool import StartTurn
from tests.agent.wire import OPENAI, Call, Reply, serving
from tests.daemon.harness import MARK, Slow, accepted, ask, begin_a_session, delivered, gateway, leave, settings
from tests.daemon.models import modelled
from tests.daemon_process import DEFAULTS, DaemonProcess, gatehouse, running, write_config
from tests.observability.collector import Collector, collecting, values
from tests.observability.scrape import scrape

TURN = "0123456789abcdef0123456789abcdef"


def traced(folder: Path, collector: Collector, **tables: Any) -> Any:  # noqa: ANN401 - as `settings`.
    return settings(folder, tracing=collector.table(), **tables)


def parents(collector: Collector) -> dict[str, set[str]]:
    """Return the names of the parents of the spans of each name. The root has an empty one."""
    names = {(span.trace_id, span.span_id): span.name for span in collector.spans}
    found: dict[str, set[str]] = {}
    for span in collector.spans:
        parent = names[span.trace_id, span.parent_span_id] if span.parent_span_id else ""
        found.setdefault(span.name, set()).add(parent)
    return found


async def test_a_trace_shows_the_way_of_a_message(tmp_path: Path) -> None:
    calls = [Call("list_files", [json.dumps({"path": "."})])]
    script: list[Reply] = [OPENAI.answer("Let me look.", calls=calls), OPENAI.answer("There is nothing.")]
    async with collecting() as collector, serving(OPENAI, *script) as server:
        agents = {"main": {"provider": "house", "model": "small", "tools": ["list_files"]}}
        configured = modelled(tmp_path, server, agents=agents, tracing=collector.table(service_name="front-door"))
        async with gateway(configured) as (daemon, chat):
            await ask(chat, "what is here?")
            await delivered(daemon)
    assert parents(collector) == {
        "message": {""},
        "intake": {"message"},
        "commit": {"message", "turn"},
        "lane wait": {"message"},
        "turn": {"message"},
        "chat house/small": {"turn"},
        "execute_tool list_files": {"turn"},
        "delivery": {"message"},
    }
    assert len({span.trace_id for span in collector.spans}) == 1
    root, turn = collector.one("message"), collector.one("turn")
    about = values(root.attributes)
    assert about["gatehouse.turn"] == root.trace_id.hex(), "so that the lines of the log are found"
    assert about["gatehouse.channel"] == "loopback"
    assert about["gatehouse.outcome"] == "answered"
    assert values(turn.attributes)["gatehouse.tools"] == 1
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in collector.spans)
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in collector.spans)
    assert all(span.status.code == Status.STATUS_CODE_OK for span in collector.spans)
    first, second = collector.named("chat house/small")
    assert first.kind == Span.SPAN_KIND_CLIENT
    asked = values(first.attributes)
    assert asked["gen_ai.operation.name"] == "chat"
    assert asked["gen_ai.usage.input_tokens"] == server_tokens(asked)
    assert turn.start_time_unix_nano <= first.start_time_unix_nano <= second.start_time_unix_nano
    assert all(each["service.name"] == "front-door" for each in collector.resources)


def server_tokens(asked: dict[str, Any]) -> int:
    tokens = asked["gen_ai.usage.input_tokens"]
    assert isinstance(tokens, int)
    assert tokens > 0
    return tokens


async def test_no_text_no_person_and_no_secret_is_in_a_trace(tmp_path: Path) -> None:
    calls = [Call("read_file", [json.dumps({"path": f"{MARK}.txt"})]), Call(f"do_{MARK}", ["{}"])]
    script: list[Reply] = [OPENAI.answer(f"{MARK} first", calls=calls), OPENAI.refusal(400, f"{MARK} is not allowed")]
    headers = {"Authorization": "Bearer hunter2-hunter2"}
    async with collecting() as collector, serving(OPENAI, *script) as server:
        agents = {"main": {"provider": "house", "model": "small", "tools": ["read_file"]}}
        configured = modelled(tmp_path, server, agents=agents, tracing=collector.table(headers=headers))
        async with gateway(configured) as (daemon, chat):
            await chat.say(f"{MARK}?", peer="cassandra")
            await chat.hear_message()
            await delivered(daemon)
    body = b"".join(collector.bodies)
    assert collector.one("turn").status.code == Status.STATUS_CODE_ERROR
    assert collector.named("execute_tool read_file")
    for secret in (MARK, "cassandra", "hunter2", str(tmp_path)):
        assert secret.encode() not in body
    assert all(each["Authorization"] == "Bearer hunter2-hunter2" for each in collector.headers)


async def test_a_trace_goes_on_after_a_crash(tmp_path: Path) -> None:
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    begin = accepted(TURN, "hello", at=an_hour_ago)
    await begin_a_session(tmp_path)
    await leave(tmp_path, begin, StartTurn(turn=TURN))
    async with collecting() as collector, gateway(traced(tmp_path, collector)) as (daemon, chat):
        await chat.hear_message()
        await delivered(daemon)
    root, turn = collector.one("message"), collector.one("turn")
    assert {span.trace_id.hex() for span in collector.spans} == {TURN}
    assert root.span_id.hex() == TURN[16:]
    assert root.start_time_unix_nano == pytest.approx(an_hour_ago.timestamp() * 1e9, abs=1e6)
    assert turn.parent_span_id == collector.one("delivery").parent_span_id == root.span_id
    assert values(turn.attributes)["gatehouse.is_resumed"] is True


async def test_a_turn_that_a_shutdown_suspends_is_traced_by_both_processes(tmp_path: Path) -> None:
    slow = Slow()
    impatient = {"shutdown_timeout": 0.0, "flush_interval": 3600, "data_dir": tmp_path / "data", "timezone": "UTC"}
    async with collecting() as collector:
        async with gateway(traced(tmp_path, collector, gateway=impatient), partial(answer_with, slow)) as (_, chat):
            await chat.say("hello")
            await slow.is_asked.wait()
        before = collector.one("turn")
        assert not collector.named("message"), "it has not ended"
        async with gateway(traced(tmp_path, collector)) as (daemon, chat):
            await chat.hear_message()
            await delivered(daemon)
    first, second = collector.named("turn")
    assert first == before
    assert values(first.attributes)["gatehouse.outcome"] == "suspended"
    assert values(second.attributes)["gatehouse.outcome"] == "answered"
    root = collector.one("message")
    assert {first.trace_id, second.trace_id} == {root.trace_id}
    assert {first.parent_span_id, second.parent_span_id} == {root.span_id}


async def test_messages_that_one_turn_answers_are_linked(tmp_path: Path) -> None:
    slow = Slow()
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"busy": "collect"}}
    async with collecting() as collector:
        configured = traced(tmp_path, collector, channels=channels)
        async with gateway(configured, partial(answer_with, slow)) as (daemon, chat):
            await chat.say("one")
            await slow.is_asked.wait()
            await chat.say("two")
            await chat.say("three")
            slow.may_answer.set()
            await hear_all(chat, daemon)
    first, second = sorted(collector.named("turn"), key=lambda span: span.start_time_unix_nano)
    roots = {span.trace_id for span in collector.named("message")}
    assert len(roots) == 3
    assert not first.links
    assert {second.trace_id, *(link.trace_id for link in second.links)} == roots - {first.trace_id}
    assert len(collector.named("lane wait")) == 3


def answer_with(model: Slow, daemon: Daemon) -> None:
    daemon.agents.replace("main", lambda agent: replace(agent, provider=model))


async def hear_all(chat: LoopbackChannel, daemon: Daemon) -> None:
    for _ in range(2):
        await chat.hear_message()
    await delivered(daemon)


async def test_a_command_in_a_lane_is_traced(tmp_path: Path) -> None:
    async with collecting() as collector, gateway(traced(tmp_path, collector)) as (daemon, chat):
        await ask(chat, "hello")
        await ask(chat, "/history")
        await delivered(daemon)
    command = collector.one("command history")
    root = next(span for span in collector.named("message") if span.trace_id == command.trace_id)
    assert command.parent_span_id == root.span_id


async def test_only_the_share_that_is_wanted_is_traced(tmp_path: Path) -> None:
    async with collecting() as collector:
        configured = settings(tmp_path, tracing=collector.table(sample_ratio=0.0))
        async with gateway(configured) as (_, chat):
            await ask(chat, "hello")
    assert not collector.bodies


async def test_a_collector_that_is_away_disturbs_nothing(tmp_path: Path) -> None:
    async with collecting() as collector:
        gone = collector.table()
    async with gateway(settings(tmp_path, tracing=gone)) as (daemon, chat):
        assert await ask(chat, "hello")
        await delivered(daemon)
        seen = await scrape(tmp_path / "data")
    assert seen.labels["gatehouse_trace_spans_total"] == {"outcome"}


async def test_metrics_count_spans_only_with_tracing(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)):
        seen = await scrape(tmp_path / "data")
    assert "gatehouse_trace_spans_total" not in seen.names


async def test_a_process_sends_its_last_spans_when_it_ends(tmp_path: Path) -> None:
    async with collecting() as collector:
        config = f'{DEFAULTS}[tracing]\nendpoint = "{collector.url}"\n'
        events = await asyncio.to_thread(converse_and_stop, tmp_path, config)
    assert events[-1] == "shutdown_finished"
    assert collector.one("message").trace_id == collector.one("turn").trace_id


async def test_a_trace_goes_on_after_kill_9(tmp_path: Path) -> None:
    never = asyncio.Event()
    async with collecting() as collector, serving(OPENAI, never, OPENAI.answer("Here I am.")) as server:
        table = server.table()
        config = f"""{DEFAULTS}
            [tracing]
            endpoint = "{collector.url}"
            [agents.main]
            provider = "house"
            model = "small"
            [providers.house]
            kind = "openai"
            base_url = "{table["base_url"]}"
            api_key = "{table["api_key"]}"
        """
        await asyncio.to_thread(write_config, tmp_path, config)
        with DaemonProcess(tmp_path) as daemon:
            await asyncio.to_thread(daemon.ready)
            client = asyncio.create_task(asyncio.to_thread(gatehouse, "chat", "--once", "hello", home=tmp_path))
            await server.asked(1)
            daemon.kill()
        with DaemonProcess(tmp_path) as daemon:
            await asyncio.to_thread(daemon.ready)
            handled = await asyncio.to_thread(daemon.wait_for, "message_handled")
            await client
            assert await asyncio.to_thread(daemon.stop) == 0
        never.set()
    root, turn = collector.one("message"), collector.one("turn")
    assert root.trace_id.hex() == handled["turn"], "the log has the id of the trace"
    assert (turn.trace_id, turn.parent_span_id) == (root.trace_id, root.span_id)
    assert values(turn.attributes)["gatehouse.is_resumed"] is True
    assert root.start_time_unix_nano < turn.start_time_unix_nano


def converse_and_stop(home: Path, config: str) -> list[str]:
    with running(home, config) as daemon:
        assert gatehouse("chat", "--once", "hello", home=home).returncode == 0
        assert daemon.stop() == 0
    return [line["event"] for line in daemon.log]


def test_nothing_of_the_exporter_is_imported_without_tracing() -> None:
    program = (
        "import sys, gateway.build, gateway.cli.serve; "
        "print(*[name for name in sys.modules if 'span_exporter' in name or 'otlp' in name or 'telemetry' in name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
