"""Set-up shared by the tests of a cluster: real nodes on a real PostgreSQL, with a fake Telegram and a fake model."""

import asyncio
import json
import re
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import psycopg
from aiohttp import web

from gateway.cli.common import EXIT_CONFIG
from gateway.extraction.request import SYSTEM
from gateway.outbound.delivery import POSSIBLY_REPEATED
from gateway.shards import SHARD_COUNT
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi, bot_api, visible
from tests.daemon_process import DaemonProcess, Start, by_fork_with, by_shell, write_config
from tests.polling import POLL_INTERVAL

TIMEOUT = 120.0
LEASE = 4.0
HTTP_TOKEN = "cluster-token-0123456789"
TRACE = "trace.txt"
"""The file that the model writes by a tool."""

CONFIG = """
[gateway]
data_dir = "{home}/data"
log_format = "json"
shutdown_timeout = 10.0
owners = ["telegram:901", "telegram:902", "telegram:903"]
[http]
port = 0
token = "{http_token}"
[storage]
url = "{url}"
[cluster]
enabled = true
name = "{name}"
lease_seconds = {lease}
{own}
[providers.fake]
kind = "openai"
base_url = "{model}"
api_key = "key"
[agents.main]
provider = "fake"
model = "fake-model"
[api]
max_active_sessions = 1000
rate_limit = 0
[channels.telegram]
token = "{telegram_token}"
api_base = "{api}"
dm_policy = "open"
rate_limit = 100000
busy = "followup"
"""


class FakeModel:
    """A model that answers `answer <text>` over the protocol of OpenAI. A text with `wait` waits for `may_end`.

    For a text with `tool` it first writes a file by a tool. Each call writes another text.
    """

    def __init__(self) -> None:
        self.url = ""
        self.may_end = asyncio.Event()
        self.asked: list[str] = []
        self.tool_calls = 0
        self.archived = 0
        """How many sessions were read to archive them. Each message of a person is worth keeping."""
        self.may_archive = asyncio.Event()
        self.may_archive.set()
        self.waiting = 0
        """How many answers have begun that wait for `may_end`."""
        self._changed = asyncio.Condition()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        text = next(each["content"] for each in reversed(body["messages"]) if each["role"] == "user")
        text = text if isinstance(text, str) else text[-1]["text"]
        async with self._changed:
            self.asked += [text] if body["messages"][0]["content"] != SYSTEM else []
            self._changed.notify_all()
        has_result = body["messages"][-1]["role"] == "tool"
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if body["messages"][0]["content"] == SYSTEM:
            self.archived += 1
            await self.may_archive.wait()
            said = [each for each in json.loads(text)["messages"] if each["from"] != "assistant"]
            await response.write(_chunk({"content": json.dumps(said)}))
            await response.write(_chunk({}, finish_reason="stop"))
        elif "tool" in text and not has_result:
            self.tool_calls += 1
            await response.write(_chunk(_write_file(str(self.tool_calls)), finish_reason="tool_calls"))
        else:
            await response.write(_chunk({"content": "answer "}))
            if "wait" in text:
                self.waiting += 1
                async with self._changed:
                    self._changed.notify_all()
                await self.may_end.wait()
            await response.write(_chunk({"content": text}))
            await response.write(_chunk({}, finish_reason="stop"))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def was_asked(self, text: str, *, times: int = 1) -> None:
        async with asyncio.timeout(TIMEOUT), self._changed:
            await self._changed.wait_for(lambda: sum(text in each for each in self.asked) >= times)

    async def has_waiting(self, number: int) -> None:
        async with asyncio.timeout(TIMEOUT), self._changed:
            await self._changed.wait_for(lambda: self.waiting >= number)


def _write_file(content: str) -> dict[str, object]:
    arguments = json.dumps({"path": TRACE, "content": content})
    function = {"name": "write_file", "arguments": arguments}
    return {"tool_calls": [{"index": 0, "id": f"call-{content}", "type": "function", "function": function}]}


def _chunk(delta: dict[str, object], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return f"data: {json.dumps({'id': 'x', 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n".encode()


@asynccontextmanager
async def fake_model() -> AsyncIterator[FakeModel]:
    model = FakeModel()
    app = web.Application(client_max_size=100_000_000)
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield model
    finally:
        model.may_end.set()
        await runner.cleanup()


@dataclass
class Cluster:
    """The nodes by name, and what their world looks like from outside."""

    folder: Path
    url: str
    api: FakeBotApi
    model: FakeModel
    lease: float = LEASE
    config: str = CONFIG
    more: str = ""
    """Further settings of all nodes."""
    labels: Mapping[str, list[str]] = field(default_factory=dict)
    label_timeout: float = 30.0
    nodes: dict[str, DaemonProcess] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)
    """The URLs of the database for nodes that have another way to it."""
    more_of: dict[str, str] = field(default_factory=dict)
    """Further settings of one node."""
    starts: dict[str, Start] = field(default_factory=dict)
    """How nodes are started that are special."""
    _shown: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    _shown_at: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    _read: int = 0
    """How many calls of the fake Telegram are in `_shown`."""

    async def start(self, *names: str, url: str = "", source: Path | None = None, is_ready: bool = True) -> None:
        """Start nodes, and wait until each `is_ready`.

        `url` is another way to the database, also for later starts. `source` is a folder with the source of another
        version.
        """
        for name in names:
            if url:
                self.urls[name] = url
            home = self.folder / name
            home.mkdir(exist_ok=True)
            write_config(
                home,
                self.config.format(
                    home=home,
                    http_token=HTTP_TOKEN,
                    url=self.urls.get(name, self.url),
                    name=name,
                    lease=self.lease,
                    model=self.model.url,
                    telegram_token=TOKEN,
                    api=self.api.url,
                    own=self._own(name),
                )
                + self.more
                + self.more_of.get(name, ""),
            )
            if name in self.nodes:
                self.nodes[name].__exit__(None, None, None)
            here = self.starts.get(name, by_fork_with("channels.telegram", "psycopg", "gateway.cluster.node"))
            self.nodes[name] = await asyncio.to_thread(
                DaemonProcess,
                home,
                None if source is None else {"PYTHONPATH": str(source)},
                here if source is None else by_shell(),
            )
        for name in names if is_ready else ():
            await asyncio.to_thread(self.nodes[name].ready)

    async def all_serve(self) -> None:
        """Wait until every shard has an owner, and no node more than its share: none moves from then on."""
        share = ceil(SHARD_COUNT / len(self.nodes))
        with psycopg.connect(self.url, autocommit=True) as connection:
            while True:
                owned = connection.execute(
                    "SELECT count(*) FROM shard JOIN node ON node.boot = shard.owner GROUP BY node.name"
                ).fetchall()
                counts = [count for (count,) in owned]
                if len(counts) == len(self.nodes) and sum(counts) == SHARD_COUNT and max(counts) <= share:
                    return
                await asyncio.sleep(0.05)

    async def look(self, seconds: float = 3.0) -> None:
        """Wait until each node has looked at the cluster for some more seconds. Each look renews its lease."""
        with psycopg.connect(self.url, autocommit=True) as connection:

            def seen() -> dict[str, float]:
                return dict(
                    connection.execute("SELECT name, extract(epoch FROM renewed_at)::float8 FROM node").fetchall()
                )

            before = seen()
            while any(at < before[name] + seconds for name, at in seen().items()):  # noqa: ASYNC110 - other processes do it.
                await asyncio.sleep(POLL_INTERVAL)

    async def poller(self) -> str:
        """Return the name of the node that polls Telegram."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            while True:
                found = connection.execute("SELECT name FROM node JOIN post ON post.owner = node.boot").fetchone()
                if found is not None:
                    return str(found[0])
                await asyncio.sleep(0.05)

    def _own(self, name: str) -> str:
        labels = self.labels.get(name, [])
        return f"labels = {json.dumps(labels)}\nlabel_timeout = {self.label_timeout}" if self.labels else ""

    async def kill(self, name: str) -> None:
        await asyncio.to_thread(self.nodes[name].kill)

    @asynccontextmanager
    async def restarted(self) -> AsyncIterator[list[int]]:
        """Start each node again that ends by itself during the block, as systemd does. Yields their exit codes."""
        codes: list[int] = []

        is_over = False

        async def watch(name: str) -> None:
            while not is_over:
                if (code := self.nodes[name].process.poll()) is None:
                    await asyncio.sleep(0.05)
                    continue
                codes.append(code)
                assert code not in {0, EXIT_CONFIG}, f"systemd would not start it again: {self.nodes[name].errors()}"
                with suppress(AssertionError):  # The database was away for too long. It has ended again.
                    await self.start(name)

        async with asyncio.TaskGroup() as tasks:
            for name in self.nodes:
                tasks.create_task(watch(name), name=f"systemd:{name}")
            try:
                yield codes
            finally:
                is_over = True

    async def stop(self, name: str) -> int:
        return await asyncio.to_thread(self.nodes[name].stop)

    def pause(self, name: str) -> None:
        self.nodes[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.nodes[name].signal(signal.SIGCONT)

    async def say(self, chat: int, text: str) -> None:
        await self.api.say(text, sender={"id": chat, "is_bot": False, "first_name": f"P{chat}"})

    def shown(self) -> dict[int, list[str]]:
        """Return the messages of the bot in each chat."""
        calls = self.api.calls[self._read :]
        self._read += len(calls)
        for call in calls:
            if call.method == "sendMessage":
                chat = int(call.fields["chat_id"])
                self._shown[chat].append(visible(call.fields["text"]))
                self._shown_at[chat].append(call.at)
        return self._shown

    def shown_at(self) -> dict[int, list[float]]:
        """Return when each message of `shown` was sent, in seconds since 1970."""
        self.shown()
        return self._shown_at

    async def until(self, is_true: Callable[[], bool], seconds: float = TIMEOUT) -> float:
        """Wait until `is_true`, and return how long that took."""
        started = monotonic()
        async with asyncio.timeout(seconds):
            while not is_true():
                calls = len(self.api.calls)
                try:
                    async with asyncio.timeout(0.5):
                        await self.api._until(lambda calls=calls: len(self.api.calls) > calls)  # noqa: SLF001 - it is a test's own fake.
                except TimeoutError:
                    pass
        return monotonic() - started

    async def answered(self, chat: int, text: str, seconds: float = TIMEOUT) -> float:
        """Wait for the answer to `text` in a chat, and return how long that took."""
        return await self.until(lambda: any(f"answer {text}" in each for each in self.shown()[chat]), seconds)

    async def close(self) -> None:
        for daemon in self.nodes.values():
            if daemon.process.poll() is None:
                daemon.signal(signal.SIGCONT)
            await asyncio.to_thread(daemon.__exit__, None, None, None)


@asynccontextmanager
async def cluster(
    folder: Path,
    url: str,
    *names: str,
    lease: float = LEASE,
    config: str = CONFIG,
    more: str = "",
    labels: Mapping[str, list[str]] = MappingProxyType({}),
    label_timeout: float = 30.0,
) -> AsyncIterator[Cluster]:
    """Run a cluster with nodes of these names. `labels` are those of nodes, and `more` are settings of all nodes."""
    async with bot_api() as api, fake_model() as model:
        running = Cluster(
            folder=folder,
            url=url,
            api=api,
            model=model,
            lease=lease,
            config=config,
            more=more,
            labels=labels,
            label_timeout=label_timeout,
        )
        try:
            await running.start(*names)
            yield running
        finally:
            await running.close()


def check_answers(shown: dict[int, list[str]], said: dict[int, int]) -> dict[str, int]:
    """Return how many answers are lost, doubled (without a mark), out of order, and repeated with a mark."""
    counts = {"lost": 0, "doubled": 0, "disordered": 0, "marked": 0}
    for chat, number in said.items():
        seen: list[int] = []
        for text in shown.get(chat, []):
            found = re.search(r"answer (?:\[[^\]]*\] )?m(\d+)\b", text)
            if found is None:
                continue
            at = int(found[1])
            if at in seen:
                counts["marked" if text.startswith(POSSIBLY_REPEATED.strip()) else "doubled"] += 1
                continue
            if seen and at < max(seen):
                counts["disordered"] += 1
            seen.append(at)
        counts["lost"] += number - len(seen)
    return counts
