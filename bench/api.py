"""Measures the API for programs over HTTP: prompts, the OpenAI-compatible door and event streams.

The gateway, its model and the baselines are separate processes. This process sends the load, with a client that does
little, and reports its own share of a CPU where it might be the bottleneck.
"""

import asyncio
import json
import math
import os
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, process_time

from bench.daemon import GATEHOUSE, free_port, until_answering
from bench.http_client import Pool, Server
from bench.model_server import served as model_served
from bench.process import Process, run
from bench.table import Row

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = {port}
[api]
max_active_sessions = 5000
idle_minutes = 0
rate_limit = 0
[limits]
tokens_per_user_per_day = 0
[agents.main]
provider = "local"
model = "m"
[providers.local]
kind = "openai"
base_url = "{model}"
"""
TIMES = int(os.environ.get("BENCH_API_TIMES", "500"))
WARM_UP = 20
PROMPT = b'{"text": "How do you do?"}'
PROMPT_RATIO = 3
DOOR_MS = 4
CHATS = 1_000
RATES = (250, 500, 750, 1_000)
SECONDS = float(os.environ.get("BENCH_API_SECONDS", "15"))
"""How long each rate is kept up."""
CONNECTIONS = 32
"""Connections for the prompts of all chats."""
EVENT_P99_MS = 250
DRAIN_TIMEOUT = 60
READERS = 500
LAG_P99_MS = 50
STREAM_CHUNKS, STREAM_RATE = 500, 100
STREAMED_TURNS = int(os.environ.get("BENCH_API_TURNS", "10"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    server: Server
    process: Process


def rows() -> Iterator[Row]:
    with model_served() as model:
        yield from asyncio.run(_prompt(model))
        yield from asyncio.run(_door(model))
        yield from asyncio.run(_chats(model))
        yield from asyncio.run(_readers(model))


@contextmanager
def _gateway(model: str) -> Iterator[Api]:
    with TemporaryDirectory() as home:
        port, config = free_port(), Path(home, "gatehouse.toml")
        config.write_text(CONFIG.format(home=home, port=port, model=model))
        config.chmod(0o600)
        with run([GATEHOUSE, "--config", str(config), "run"], home=Path(home)) as process:
            until_answering(f"http://127.0.0.1:{port}/readyz")
            token = Path(home, "data", "http.token").read_text().strip()
            yield Api(server=Server(port, token), process=process)


@contextmanager
def _bare_server(model: str) -> Iterator[Api]:
    with TemporaryDirectory() as home:
        port = free_port()
        command = [sys.executable, str(Path(__file__).with_name("bare_api.py")), model, f"{home}/lines", str(port)]
        with run(command, home=Path(home)) as process:
            until_answering(f"http://127.0.0.1:{port}/readyz")
            yield Api(server=Server(port), process=process)


async def _alternate(*measures: Callable[[], Awaitable[float]]) -> list[list[float]]:
    """Measure in alternation, so that other load on the machine affects all equally. The first rounds do not count."""
    took: list[list[float]] = [[] for _ in measures]
    for _ in range(WARM_UP + TIMES):
        for measure, times in zip(measures, took, strict=True):
            times.append(await measure())
    return [times[WARM_UP:] for times in took]


async def _timed(pool: Pool, method: str, path: str, body: bytes, status: HTTPStatus) -> float:
    """Return the milliseconds of a request."""
    began = perf_counter()
    response = await pool.request(method, path, body)
    took = (perf_counter() - began) * 1000
    assert response.status == status, response
    return took


def _p99(values: Sequence[float]) -> float:
    return quantiles(values, n=100)[-1]


class Chat:
    """A session of the API whose event stream is followed. Answers come in the order of their prompts."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.waiting: deque[float] = deque()
        """When each prompt that is not answered yet was due to be sent."""
        self.answered = asyncio.Event()
        self.latencies: list[float] = []
        self.surplus = 0
        """Answers that no prompt was sent for."""

    @property
    def path(self) -> str:
        return f"/api/sessions/{self.session}"

    def on_event(self, event: bytes) -> None:
        if b"event: message\n" not in event or b'"role":"agent"' not in event:
            return
        if not self.waiting:
            self.surplus += 1
            return
        self.latencies.append((perf_counter() - self.waiting.popleft()) * 1000)
        if not self.waiting:
            self.answered.set()

    async def ask(self, pool: Pool, due: float) -> None:
        self.waiting.append(due)
        self.answered.clear()
        response = await pool.request("POST", f"{self.path}/prompt", PROMPT)
        assert response.status == HTTPStatus.ACCEPTED, response


async def _new_session(pool: Pool) -> str:
    response = await pool.request("POST", "/api/sessions", b"{}")
    assert response.status == HTTPStatus.CREATED, response
    return str(json.loads(response.body)["id"])


@asynccontextmanager
async def _following(server: Server, pool: Pool) -> AsyncIterator[Chat]:
    chat = Chat(await _new_session(pool))
    async with server.following(f"{chat.path}/events", chat.on_event):
        yield chat


async def _prompt(model: str) -> list[Row]:
    with _gateway(f"{model}/plain") as gateway, _bare_server(f"{model}/plain") as bare:
        async with (
            gateway.server.connected() as ours,
            bare.server.connected() as theirs,
            _following(gateway.server, ours) as chat,
        ):

            async def prompt() -> float:
                chat.answered.clear()
                chat.waiting.append(perf_counter())
                took = await _timed(ours, "POST", f"{chat.path}/prompt", PROMPT, HTTPStatus.ACCEPTED)
                async with asyncio.timeout(DRAIN_TIMEOUT):
                    await chat.answered.wait()
                return took

            async def append() -> float:
                return await _timed(theirs, "POST", "/append", PROMPT, HTTPStatus.ACCEPTED)

            accepted, appended = await _alternate(prompt, append)
    ratio = median(accepted) / median(appended)
    return [
        Row(
            what="API: POST prompt to 202",
            measured=f"p50 {median(accepted):.2f} ms, {ratio:.2f}x, p99 {_p99(accepted):.2f} ms",
            baseline=f"bare aiohttp and fsync: p50 {median(appended):.2f} ms, p99 {_p99(appended):.2f} ms",
            target=f"p50 < {PROMPT_RATIO}x",
            is_met=ratio < PROMPT_RATIO,
        ),
        Row(
            what="API: POST prompt to the event with the answer",
            measured=f"p50 {median(chat.latencies):.2f} ms, p99 {_p99(chat.latencies):.2f} ms",
            baseline="",
            target="reported",
            is_met=True,
        ),
    ]


async def _door(model: str) -> list[Row]:
    def body(name: str) -> bytes:
        message = {"role": "user", "content": "This is question 10007."}
        return json.dumps({"model": name, "messages": [message]}).encode()

    path = "/v1/chat/completions"
    with _gateway(f"{model}/echo") as gateway:
        direct_server = Server(int(model.rpartition(":")[2]))
        async with gateway.server.connected() as ours, direct_server.connected() as direct:
            if (await ours.request("POST", path, body("main"))).status == HTTPStatus.NOT_FOUND:
                print("API: /v1/chat/completions is left out, because this version does not have it", file=sys.stderr)
                return []
            stateless, in_session, bare = await _alternate(
                lambda: _timed(ours, "POST", path, body("main"), HTTPStatus.OK),
                lambda: _timed(ours, "POST", path, body("main@bench"), HTTPStatus.OK),
                lambda: _timed(direct, "POST", "/echo/chat/completions", body("m"), HTTPStatus.OK),
            )
    found = []
    for which, times in (("stateless", stateless), ("in a session", in_session)):
        added = median(times) - median(bare)
        found.append(
            Row(
                what=f"API: /v1/chat/completions, {which}",
                measured=f"p50 {median(times):.2f} ms, {added:.2f} ms added",
                baseline=f"the model directly: p50 {median(bare):.2f} ms",
                target=f"< {DOOR_MS} ms added",
                is_met=added < DOOR_MS,
            )
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Prompts that were sent at one rate, and their answers. Times are in milliseconds."""

    latencies: list[float]
    sent: int
    surplus: int
    rate: float
    """Answers a second, from the first prompt to the last answer."""
    cpu: float
    """The server's CPU time for each prompt."""
    own_share: float
    """The CPU share of this process."""

    @property
    def lost(self) -> int:
        return self.sent - len(self.latencies)

    @property
    def p99(self) -> float:
        return _p99(self.latencies)

    def describe(self) -> str:
        return (
            f"p50 {median(self.latencies):.0f} ms, p99 {self.p99:.0f} ms, {self.rate:.0f} answers/s, lost {self.lost}, "
            f"repeated {self.surplus}, CPU {self.cpu:.2f} ms per prompt (client {self.own_share:.0%})"
        )


async def _chats(model: str) -> list[Row]:
    with _gateway(f"{model}/plain") as gateway:
        ours, memory = await _loads(gateway, CHATS), gateway.process.memory_mb()
    with _bare_server(f"{model}/plain") as bare:
        theirs = await _loads(bare, CHATS)
    found = []
    for rate, load in ours.items():
        is_target = rate == CHATS
        is_whole = not load.lost and not load.surplus
        found.append(
            Row(
                what=f"API: {CHATS:,} event streams, {rate:,} prompts/s",
                measured=f"{load.describe()}, {memory:.0f} MB",
                baseline=f"bare aiohttp: {theirs[rate].describe()}",
                target=f"p99 < {EVENT_P99_MS} ms, none lost" if is_target else "none lost",
                is_met=is_whole and (load.p99 < EVENT_P99_MS or not is_target),
            )
        )
    return found


async def _loads(api: Api, number: int) -> dict[int, Load]:
    """Open so many chats, and send prompts at each rate to all of them in turn."""
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(api.server.connected(CONNECTIONS))
        chats = [await stack.enter_async_context(_following(api.server, pool)) for _ in range(number)]
        await _send(api, pool, chats, rate=RATES[0], seconds=number / RATES[0])  # The first prompt of each chat.
        return {rate: await _send(api, pool, chats, rate=rate, seconds=SECONDS) for rate in RATES}


async def _send(api: Api, pool: Pool, chats: Sequence[Chat], *, rate: int, seconds: float) -> Load:
    """Send prompts at a steady rate, to one chat after the other, and wait for all answers.

    A latency begins when its prompt was due, so a client that falls behind makes the figures worse and not better.
    """
    for chat in chats:
        chat.latencies.clear()
        chat.surplus = 0
    prompts = int(rate * seconds)
    before, own, began = api.process.usage(), process_time(), perf_counter()
    async with asyncio.TaskGroup() as sending:
        for number in range(prompts):
            due = began + number / rate
            if (early := due - perf_counter()) > 0:
                await asyncio.sleep(early)
            chat = chats[number % len(chats)]
            sending.create_task(chat.ask(pool, due), name=f"prompt:{number}")
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT):
            for chat in chats:
                if chat.waiting:
                    await chat.answered.wait()
    except TimeoutError:  # The figures say how many are lost.
        for chat in chats:
            chat.waiting.clear()
    took = perf_counter() - began
    own_share = (process_time() - own) / took
    await asyncio.sleep(0.5)  # The work after an answer is part of its cost.
    return Load(
        latencies=[latency for chat in chats for latency in chat.latencies],
        sent=prompts,
        surplus=sum(chat.surplus for chat in chats),
        rate=prompts / took,
        cpu=(api.process.usage() - before).cpu_ms / prompts,
        own_share=own_share,
    )


@dataclass(slots=True)
class Reader:
    """What one reader of a busy session has got."""

    messages: int = 0
    deltas: int = 0
    words: int = 0

    def on_event(self, event: bytes) -> None:
        if b"event: delta\n" in event:
            self.deltas += 1
            self.words += event.count(b"word")
        elif b"event: message\n" in event and b'"role":"agent"' in event:
            self.messages += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """A busy session and its readers."""

    readers: list[Reader]
    lag_ms: float
    """The bound below which 99 % of the samples of the event-loop lag were."""
    cpu_share: float
    own_share: float

    @property
    def complete(self) -> int:
        """Readers that have got every message and every word of the streamed text."""
        words = STREAM_CHUNKS * STREAMED_TURNS
        return sum(reader.messages == STREAMED_TURNS and reader.words == words for reader in self.readers)


async def _readers(model: str) -> list[Row]:
    with _gateway(f"{model}/paced/{STREAM_CHUNKS}/{STREAM_RATE}") as gateway:
        one, many = [await _crowd(gateway, readers) for readers in (1, READERS)]
    return [
        Row(
            what=f"API: one session, {STREAM_RATE} deltas/s, {READERS} readers",
            measured=f"event-loop lag p99 <= {many.lag_ms:g} ms, CPU {many.cpu_share:.0%}, "
            f"{many.complete} readers got everything, in {median(each.deltas for each in many.readers):.0f} pieces",
            baseline=f"1 reader: p99 <= {one.lag_ms:g} ms, CPU {one.cpu_share:.0%}, "
            f"{one.readers[0].deltas} pieces; the client's CPU: {many.own_share:.0%}",
            target=f"p99 < {LAG_P99_MS} ms, all complete",
            is_met=many.lag_ms <= LAG_P99_MS and many.complete == READERS,
        )
    ]


async def _crowd(gateway: Api, number: int) -> Crowd:
    readers = [Reader() for _ in range(number)]
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(gateway.server.connected())
        chat = await stack.enter_async_context(_following(gateway.server, pool))
        for reader in readers:
            await stack.enter_async_context(gateway.server.following(f"{chat.path}/events", reader.on_event))
        lag, before, own, began = await _lag(pool), gateway.process.usage(), process_time(), perf_counter()
        for _ in range(STREAMED_TURNS):
            await chat.ask(pool, perf_counter())
            async with asyncio.timeout(DRAIN_TIMEOUT):
                await chat.answered.wait()
        took = perf_counter() - began
        used, own_share = gateway.process.usage() - before, (process_time() - own) / took
        lag_ms = _p99_bound(lag, await _lag(pool))
        await asyncio.sleep(1)  # The last events are on their way.
    return Crowd(readers=readers, lag_ms=lag_ms, cpu_share=used.cpu_ms / took / 1000, own_share=own_share)


async def _lag(pool: Pool) -> dict[float, int]:
    """Return how many samples of the gateway's event-loop lag were below each bound, in milliseconds."""
    text = (await pool.request("GET", "/metrics")).body.decode()
    found = re.findall(r'^gatehouse_event_loop_lag_seconds_bucket\{le="(.+?)"\} (\d+)', text, re.MULTILINE)
    return {float(bound) * 1000: int(count) for bound, count in found}


def _p99_bound(before: dict[float, int], after: dict[float, int]) -> float:
    counts = {bound: count - before[bound] for bound, count in after.items()}
    enough = 0.99 * counts[math.inf]
    return min(bound for bound, count in counts.items() if count >= enough)
