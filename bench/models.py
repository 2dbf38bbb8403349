"""Measures what Gatehouse adds to the time of a model: per step, per first chunk and per stream, and request sizes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import monotonic, perf_counter, process_time
from typing import cast

import structlog
from openai import AsyncOpenAI

from bench.model_server import CHUNKS, CHUNKS_PER_SECOND, STEPS, served
from bench.table import Row
from channels.loopback import LoopbackChannel
from config import ProviderSettings, Settings
from gateway.agent.loop import run_agent
from gateway.agent.protocol import Done, Prompt
from gateway.agent.providers.registry import ProviderRegistry
from gateway.agent.providers.wire import to_openai
from gateway.agent.toolbox import BUILT_IN
from gateway.agent.tools import Toolbox, ToolContext, tool
from gateway.build import open_daemon
from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome, UserMessage
from tests.agent.wire import ANTHROPIC, OPENAI, Dialect, serving
from tests.skills.harness import add_skill

RUNS = 8
STEP_LIMIT = 0.5
FIRST_TIMES = 40
FIRST_LIMIT_MS = 5
STREAMS = 50
LAG_LIMIT_MS = 50
SIZE_LIMIT = 4_000
SKILLS = 10
MORE_TOOLS: Mapping[str, object] = {
    "shell": {"enabled": True},
    "search": {"engine": "searxng", "url": "http://127.0.0.1:9"},
    "images": {"provider": "media"},
    "speech": {"provider": "media"},
}


@tool
async def count(_context: ToolContext, number: int) -> str:
    """Return a number."""
    return str(number)


TOOLBOX = Toolbox([*BUILT_IN, count])


def rows() -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with served() as url:
        sdk, ours = asyncio.run(_steps(f"{url}/steps"))
        yield Row(
            what="a step of the agent loop, CPU",
            measured=f"{ours:.2f} ms, {ours / sdk:.2f}x",
            baseline=f"the SDK alone: {sdk:.2f} ms",
            target=f"<= {STEP_LIMIT}x",
            is_met=ours <= STEP_LIMIT * sdk,
        )
        delays = asyncio.run(_draft_delays(f"{url}/clock"))
        yield Row(
            what="a model's first chunk, sent, to the first draft",
            measured=f"p50 {median(delays):.2f} ms, p95 {quantiles(delays, n=20)[-1]:.2f} ms",
            baseline="",
            target=f"< {FIRST_LIMIT_MS} ms",
            is_met=median(delays) < FIRST_LIMIT_MS,
        )
        idle, lag = asyncio.run(_lags(f"{url}/paced"))
        yield Row(
            what=f"event-loop lag, {STREAMS} streams at {CHUNKS_PER_SECOND} chunks/s",
            measured=f"p99 {lag:.1f} ms",
            baseline=f"idle: p99 {idle:.1f} ms",
            target=f"p99 < {LAG_LIMIT_MS} ms",
            is_met=lag < LAG_LIMIT_MS,
        )
    for what, skills, tools in (
        ("default tools", 0, {}),
        (f"default tools, {SKILLS} skills", SKILLS, {}),
        (f"all tools that need a setting as well, {SKILLS} skills", SKILLS, MORE_TOOLS),
    ):
        sizes = {api.kind: asyncio.run(_size(api, skills, tools)) for api in (OPENAI, ANTHROPIC)}
        yield Row(
            what=f'the request for a first "hello", {what}',
            measured=", ".join(f"{kind} {size:,} bytes" for kind, size in sizes.items()),
            baseline="",
            target="reported" if tools else f"< {SIZE_LIMIT:,} bytes",
            is_met=bool(tools) or max(sizes.values()) < SIZE_LIMIT,
        )


async def _steps(url: str) -> tuple[float, float]:
    """Return the CPU milliseconds of a step: by the SDK alone, with requests of the same size, and by our loop."""
    settings = ProviderSettings.model_validate({"kind": "openai", "base_url": url})
    providers = ProviderRegistry({"local": settings})
    provider = providers.for_agent("local", "m", ())
    bare = AsyncOpenAI(api_key="none", base_url=url, max_retries=0)
    sdk, ours = [], []
    with TemporaryDirectory() as folder:
        context = ToolContext(workspace=Path(folder), memory=Path(folder) / "memory", now=lambda: datetime.now(UTC))
        for _ in range(RUNS):
            began = process_time()
            await _run_sdk_alone(bare)
            between = process_time()
            events = run_agent(
                _prompt(0), provider=provider, toolbox=TOOLBOX, context=context, max_iterations=STEPS + 1
            )
            assert [event async for event in events][-1] == Done(text="Done.", steps=STEPS + 1)
            sdk.append((between - began) * 1000 / (STEPS + 1))
            ours.append((process_time() - between) * 1000 / (STEPS + 1))
    await providers.aclose()
    await bare.close()
    return median(sdk[1:]), median(ours[1:])


async def _run_sdk_alone(bare: AsyncOpenAI) -> None:
    """Send the same requests as the agent loop, with the bare SDK."""
    for step in range(STEPS + 1):
        prompt = _prompt(step)
        tools = [
            {"type": "function", "function": {"name": each.name, "parameters": each.schema}} for each in prompt.tools
        ]
        body = {"messages": to_openai(prompt.messages), "tools": tools}
        async with await bare.chat.completions.create(model="m", messages=[], stream=True, extra_body=body) as stream:
            assert [chunk async for chunk in stream]


def _prompt(steps: int) -> Prompt:
    messages: list[Message] = [UserMessage(text="hello")]
    for step in range(steps):
        call = ToolCall(id=f"call_{step:016}", name="count", input={"number": step})
        outcome = ToolOutcome(id=call.id, output=str(step))
        messages += [AssistantMessage(text="", tool_calls=(call,)), ToolMessage(outcomes=(outcome,))]
    return Prompt(system="", messages=messages, tools=TOOLBOX.specs(), model="m")


@asynccontextmanager
async def _gateway(
    folder: Path, provider: dict[str, object], skills: Sequence[str] = (), tools: Mapping[str, object] = {}
) -> AsyncIterator[LoopbackChannel]:
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}}
    agents = {"main": {"provider": "local", "model": "m"}}
    providers = {"local": provider, "media": {"kind": "openai", "base_url": "http://127.0.0.1:9/v1"}}
    tables = {"gateway": {"data_dir": folder}, "channels": channels, "agents": agents, "providers": providers}
    settings = Settings.model_validate({**tables, "skills": {"folders": skills}, "tools": tools})
    async with open_daemon(settings, listen=False) as daemon, asyncio.TaskGroup() as tasks:
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        await daemon.agents.warm_up()
        yield cast("LoopbackChannel", daemon.channels.by_identity["loopback", "default"])
        daemon.stop()


async def _draft_delays(url: str) -> list[float]:
    """Return the milliseconds from the sending of each first chunk to its first draft."""
    took = []
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), {"kind": "openai", "base_url": url}) as chat:
            for number in range(FIRST_TIMES + 5):
                await chat.say("what time is it?", peer=f"peer{number}")
                while (heard := await chat.hear()).how != "draft" or not heard.message:
                    continue
                took.append((monotonic() - float(heard.message.text)) * 1000)
                await chat.hear_message()
    return took[5:]


async def _lags(url: str) -> tuple[float, float]:
    with TemporaryDirectory() as folder:
        async with _gateway(Path(folder), {"kind": "openai", "base_url": url}) as chat:
            idle = await _lag_while(asyncio.sleep(1))
            return idle, await _lag_while(_talk(chat))


async def _talk(chat: LoopbackChannel) -> None:
    for peer in range(STREAMS):
        await chat.say("talk to me", peer=f"peer{peer}")
    for _ in range(STREAMS):
        reply = await chat.hear_message()
        assert reply.text.count("word") == CHUNKS, reply.text


async def _lag_while(work: Awaitable[None]) -> float:
    """Return the p99 of the delays of an event-loop timer during `work`, in milliseconds."""
    lags: list[float] = []

    async def watch() -> None:
        while True:
            began = perf_counter()
            await asyncio.sleep(0.005)
            lags.append((perf_counter() - began - 0.005) * 1000)

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watch(), name="watch")
        await work
        watching.cancel()
    return quantiles(lags, n=100)[-1]


async def _size(api: Dialect, skills: int, tools: Mapping[str, object]) -> int:
    with TemporaryDirectory() as data, TemporaryDirectory() as folder:
        for number in range(skills):
            add_skill(Path(folder), f"skill-number-{number}", "word " * 200)
        folders = [folder] if skills else []
        async with (
            serving(api, api.answer("Hello!")) as server,
            _gateway(Path(data), server.table(), folders, tools) as chat,
        ):
            await chat.say("hello")
            await chat.hear_message()
            return server.requests[0].size
