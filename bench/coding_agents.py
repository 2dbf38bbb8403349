"""Measures what the gateway adds to a coding agent: time, memory and CPU. The agent runs in the real sandbox.

The baseline is the same agent without a sandbox, driven by the bare SDK. All are measured in alternation.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any, cast

import structlog
from acp import PROTOCOL_VERSION, Client, text_block
from acp.stdio import spawn_agent_process

from bench.daemon import GATEHOUSE, free_port, started, until_answering
from bench.http_client import Pool, Server
from bench.process import Process, memory_mb, run
from bench.table import Row
from channels.loopback import LoopbackChannel
from config import Settings
from gateway.build import open_daemon

AGENT = Path(__file__).with_name("acp_agent.py")
COMMAND = (sys.executable, "-I", "-S", str(AGENT))
SHORT = "chunks 2 pause 20"
LONG = "chunks 200 pause 20 calls 10"
TIMES = int(os.environ.get("BENCH_CODING_TIMES", "200"))
LONG_TIMES = max(TIMES // 5, 3)
STARTS = max(TIMES // 10, 3)
WARM_UP = 10
AGENTS = int(os.environ.get("BENCH_CODING_AGENTS", "20"))
IDLE_SECONDS = float(os.environ.get("BENCH_CODING_SECONDS", "20"))
IDLE_STARTS = 3
FSYNCS = 50
ADDED_MS = 10
FIRST_MS = 5
SESSION_MB = 1
ANSWER_TIMEOUT = 60
SETTLE_SECONDS = 3.0
"""After the last answer, until flushes and the release of memory are over."""
CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = {port}
[api]
max_active_sessions = 5000
idle_minutes = 0
rate_limit = 0
[agents.main]
"""
CODER = """
[agents.coder]
backend = "acp"
command = {command}
repos = ["app"]
max_active = 1000
sandbox.readable = ["{script}"]
[[repos]]
id = "app"
path = "{repo}"
"""
IMPORTS = """
import gc, time
from bench.process import memory_mb
gc.disable()  # As `gatehouse run` does.
from gateway.lean_imports import import_libraries
import_libraries()
import os, gateway.cli.serve, gateway.acp.pool
gc.enable()
before, began = memory_mb(os.getpid()), time.perf_counter()
import gateway.acp.turn
print(time.perf_counter() - began, memory_mb(os.getpid()) - before)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One prompt and its answer, in milliseconds."""

    took: float
    """From the message to its answer, as the person sees it."""
    own: float
    """What the agent needed for it, by its own clock."""
    first: float
    """From the first chunk, written by the agent, to the first text that the person sees."""

    @property
    def added(self) -> float:
        return self.took - self.own


Ask = Callable[[str], Awaitable[Turn]]


def rows() -> Iterator[Row]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield from asyncio.run(_turns())
    yield from asyncio.run(_starts())
    yield from asyncio.run(_idle())
    yield from _unused()


def _turn(began: float, text: str, first_seen: float) -> Turn:
    ended = monotonic()
    times = {name: float(at) for name, at in re.findall(r"(began|first|ended)=([\d.]+)", text)}
    return Turn(
        took=(ended - began) * 1000,
        own=(times["ended"] - times["began"]) * 1000,
        first=(first_seen - times["first"]) * 1000,
    )


class Sightings:
    """Notes when the first text of an answer was seen, and waits for the whole answer."""

    def __init__(self) -> None:
        self.first = 0.0
        self.answer = ""
        self._is_answered = asyncio.Event()

    def clear(self) -> None:
        self.first, self.answer = 0.0, ""
        self._is_answered.clear()

    def see(self, text: str) -> None:
        if not self.first and "first=" in text:
            self.first = monotonic()

    def end(self, answer: str) -> None:
        self.answer = answer
        self._is_answered.set()

    async def wait(self) -> None:
        async with asyncio.timeout(ANSWER_TIMEOUT):
            await self._is_answered.wait()


@contextmanager
def _repository() -> Iterator[Path]:
    """Make a repository with one commit."""
    with TemporaryDirectory() as folder:
        Path(folder, "README.md").write_text("A benchmark.\n")
        identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "Begin")):
            subprocess.run(["git", "-C", folder, *identity, *command], check=True)  # noqa: S607 - the user's git.
        yield Path(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    server: Server
    process: Process


def _coder(repo: Path) -> str:
    return CODER.format(command=json.dumps(COMMAND), script=AGENT, repo=repo)


@contextmanager
def _gateway(settings: str) -> Iterator[Api]:
    with TemporaryDirectory() as home:
        port, config = free_port(), Path(home, "gatehouse.toml")
        config.write_text(CONFIG.format(home=home, port=port) + settings)
        config.chmod(0o600)
        with run([GATEHOUSE, "--config", str(config), "run"], home=Path(home)) as process:
            until_answering(f"http://127.0.0.1:{port}/readyz")
            token = Path(home, "data", "http.token").read_text().strip()
            yield Api(server=Server(port, token), process=process)


class Session:
    """A session of the API whose event stream is followed."""

    def __init__(self, pool: Pool, path: str) -> None:
        self._pool = pool
        self.path = path
        self._seen = Sightings()

    def on_event(self, event: bytes) -> None:
        if b"event: delta\n" in event:
            self._seen.see(event.decode())
        elif b"event: message\n" in event and b'"role":"agent"' in event:
            self._seen.end(event.decode())

    async def prompt(self, text: str) -> None:
        """Send a prompt, and wait for its answer."""
        self._seen.clear()
        response = await self._pool.request("POST", f"{self.path}/prompt", json.dumps({"text": text}).encode())
        assert response.status == HTTPStatus.ACCEPTED, response
        await self._seen.wait()

    async def ask(self, prompt: str) -> Turn:
        began = monotonic()
        await self.prompt(prompt)
        return _turn(began, self._seen.answer, self._seen.first)


@asynccontextmanager
async def _session(server: Server, pool: Pool, agent: str = "coder") -> AsyncIterator[Session]:
    response = await pool.request("POST", "/api/sessions", json.dumps({"agent": agent}).encode())
    assert response.status == HTTPStatus.CREATED, response
    session = Session(pool, f"/api/sessions/{json.loads(response.body)['id']}")
    async with server.following(f"{session.path}/events", session.on_event):
        yield session


@asynccontextmanager
async def _loopback(repo: Path) -> AsyncIterator[Ask]:
    """Run a gateway in this process. A turn ends when the channel has its answer."""
    coder = {"backend": "acp", "command": COMMAND, "repos": ("app",), "sandbox": {"readable": (AGENT,)}}
    with TemporaryDirectory() as folder:
        tables = {
            "gateway": {"data_dir": folder},
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
            "agents": {"main": {}, "coder": coder},
            "repos": ({"id": "app", "path": repo},),
            "bindings": ({"agent": "coder", "channel": "loopback"},),
        }
        async with open_daemon(Settings.model_validate(tables), listen=False) as daemon, asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            tasks.create_task(daemon.run(ready.set), name="daemon")
            await ready.wait()
            chat = cast("LoopbackChannel", daemon.channels.by_identity["loopback", "default"])

            async def ask(prompt: str) -> Turn:
                seen, began = Sightings(), monotonic()
                await chat.say(prompt)
                async with asyncio.timeout(ANSWER_TIMEOUT):
                    while (heard := await chat.hear()).how != "send":
                        if heard.how == "draft" and heard.message is not None:
                            seen.see(heard.message.text)
                assert heard.message is not None
                return _turn(began, heard.message.text, seen.first)

            yield ask
            daemon.stop()


class BareClient:
    """The client of the bare SDK: it collects the text, and nothing else."""

    def __init__(self) -> None:
        self.seen = Sightings()
        self.texts: list[str] = []

    async def session_update(self, session_id: str, update: Any, **_more: Any) -> None:  # noqa: ANN401 - of the SDK.
        assert session_id
        if update.session_update == "agent_message_chunk":
            self.texts.append(update.content.text)
            self.seen.see(update.content.text)


@asynccontextmanager
async def _bare(repo: Path) -> AsyncIterator[Ask]:
    """Start the agent without a sandbox, and drive it by the SDK alone."""
    client = BareClient()
    async with spawn_agent_process(cast("Client", client), *COMMAND, cwd=repo) as (connection, _):
        await connection.initialize(protocol_version=PROTOCOL_VERSION)
        session = await connection.new_session(cwd=str(repo))

        async def ask(prompt: str) -> Turn:
            client.seen.clear()
            client.texts.clear()
            began = monotonic()
            await connection.prompt(session_id=session.session_id, prompt=[text_block(prompt)])
            return _turn(began, "".join(client.texts), client.seen.first)

        yield ask


async def _alternate(asks: Sequence[Ask], prompt: str, times: int, warm_up: int = 0) -> list[list[Turn]]:
    """Measure in alternation, so that other load on the machine affects all equally. The first rounds do not count."""
    turns: list[list[Turn]] = [[] for _ in asks]
    for _ in range(warm_up + times):
        for ask, done in zip(asks, turns, strict=True):
            done.append(await ask(prompt))
    return [done[warm_up:] for done in turns]


async def _turns() -> list[Row]:
    async with AsyncExitStack() as stack:
        repo = stack.enter_context(_repository())
        api = stack.enter_context(_gateway(_coder(repo)))
        pool = await stack.enter_async_context(api.server.connected())
        session = await stack.enter_async_context(_session(api.server, pool))
        asks = [
            await stack.enter_async_context(_loopback(repo)),
            session.ask,
            await stack.enter_async_context(_bare(repo)),
        ]
        short = await _alternate(asks, SHORT, TIMES, WARM_UP)
        fsync = _fsync_ms(repo)
        long = await _alternate(asks, LONG, LONG_TIMES)
        before = api.process.usage()
        for _ in range(LONG_TIMES):
            await session.ask(SHORT)
        cpu = (api.process.usage() - before).cpu_ms / LONG_TIMES
    found = []
    for what, turns in (("", short), (", 10 tool calls with diffs, 200 chunks", long)):
        added = [[turn.added for turn in done] for done in turns]
        is_target = not what
        for door, ours in zip(("loopback", "API"), added[:2], strict=True):
            found.append(
                Row(
                    what=f"coding agent: added to a turn, {door}{what}",
                    measured=_spread(ours) + (f", CPU {cpu:.1f} ms" if is_target and door == "API" else ""),
                    baseline=f"bare SDK: {_spread(added[2])}; the agent itself: "
                    f"{median(turn.own for turn in turns[0]):.0f} ms; fsync: {fsync:.2f} ms",
                    target=f"p50 < {ADDED_MS} ms" if is_target else "reported",
                    is_met=median(ours) < ADDED_MS or not is_target,
                )
            )
    first = [[turn.first for turn in done] for done in short]
    for where, ours in zip(("a draft, loopback", "an event, API"), first[:2], strict=True):
        found.append(
            Row(
                what=f"coding agent: first chunk written to {where}",
                measured=_spread(ours),
                baseline=f"bare SDK: {_spread(first[2])}",
                target=f"p50 < {FIRST_MS} ms",
                is_met=median(ours) < FIRST_MS,
            )
        )
    return found


def _fsync_ms(folder: Path) -> float:
    """Return the median of some fsyncs. The bare SDK stores nothing, so it does not show how slow the disk is."""
    took = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            began = monotonic()
            os.fsync(file.fileno())
            took.append((monotonic() - began) * 1000)
    return median(took)


def _spread(values: Sequence[float]) -> str:
    return f"p50 {median(values):.2f} ms, p95 {quantiles(values, n=20)[-1]:.2f} ms"


async def _starts() -> list[Row]:
    """Measure the first turn of a session, which starts the program."""
    with _repository() as repo, _gateway(_coder(repo)) as api:
        async with api.server.connected() as pool:

            async def ours(prompt: str) -> Turn:
                async with _session(api.server, pool) as session:
                    return await session.ask(prompt)

            async def bare(prompt: str) -> Turn:
                began = monotonic()
                async with _bare(repo) as ask:
                    turn = await ask(prompt)
                    return Turn(took=(monotonic() - began) * 1000, own=turn.own, first=turn.first)

            cold = await ours(SHORT)
            new, direct = await _alternate([ours, bare], SHORT, STARTS, warm_up=1)
    added, base = [turn.added for turn in new], [turn.added for turn in direct]
    return [
        Row(
            what="coding agent: first turn of a session, with the start of the program",
            measured=f"{_spread(added)}; the daemon's very first: {cold.added:.0f} ms",
            baseline=f"bare SDK, no sandbox: {_spread(base)}",
            target="reported",
            is_met=True,
        )
    ]


async def _idle() -> list[Row]:
    """Compare a daemon that has sessions with idle agents with one whose sessions use the built-in offline model."""
    async with AsyncExitStack() as stack:
        repo = stack.enter_context(_repository())
        daemons = {"coder": stack.enter_context(_gateway(_coder(repo))), "main": stack.enter_context(_gateway(""))}
        grown, first = {}, {}
        for agent, api in daemons.items():
            pool = await stack.enter_async_context(api.server.connected())
            async with _session(api.server, pool, agent) as session:
                for _ in range(WARM_UP):
                    await session.prompt(SHORT)
            await asyncio.sleep(SETTLE_SECONDS)
            first[agent] = api.process.memory_mb()
            for _ in range(AGENTS):
                async with _session(api.server, pool, agent) as session:
                    await session.prompt(SHORT)
            await asyncio.sleep(SETTLE_SECONDS)
            grown[agent] = (api.process.memory_mb() - first[agent]) / AGENTS
            programs = _children(api.process.pid)
            assert programs == (AGENTS + 1 if agent == "coder" else 0), programs
        before = {agent: api.process.usage() for agent, api in daemons.items()}
        await asyncio.sleep(IDLE_SECONDS)
        share = {
            agent: (api.process.usage() - before[agent]).cpu_ms / IDLE_SECONDS / 10 for agent, api in daemons.items()
        }
    return [
        Row(
            what=f"coding agent: memory of the daemon per session, {AGENTS} with idle agents",
            measured=f"{grown['coder']:.2f} MB; with the first one: {first['coder']:.1f} MB",
            baseline=f"built-in model: {grown['main']:.2f} MB; with the first one: {first['main']:.1f} MB",
            target=f"< {SESSION_MB} MB",
            is_met=grown["coder"] < SESSION_MB,
        ),
        Row(
            what=f"coding agent: CPU of the daemon, {AGENTS} idle agents",
            measured=f"{share['coder']:.2f} % of a core",
            baseline=f"no agents: {share['main']:.2f} %",
            target="reported",
            is_met=True,
        ),
    ]


def _children(pid: int) -> int:
    """Return how many processes a process has started that still run."""
    return sum(len((thread / "children").read_text().split()) for thread in Path(f"/proc/{pid}/task").iterdir())


def _unused() -> Iterator[Row]:
    """Measure the import of the SDK, and that nothing but a turn of a coding agent imports it."""
    with _repository() as repo:
        pairs = [(_idle_mb(""), _idle_mb(_coder(repo))) for _ in range(IDLE_STARTS)]
    without, configured = (median(each) for each in zip(*pairs, strict=True))
    seconds, megabytes = zip(*(_import_cost() for _ in range(IDLE_STARTS)), strict=True)
    yield Row(
        what="coding agent: import of the SDK, with the first turn",
        measured=f"{median(seconds):.2f} s, {median(megabytes):.1f} MB",
        baseline="",
        target="reported",
        is_met=True,
    )
    yield Row(
        what="coding agent: idle memory of a daemon that has not used one",
        measured=f"{configured:.1f} MB",
        baseline=f"none configured: {without:.1f} MB",
        target=f"< {SESSION_MB} MB more",
        is_met=configured - without < SESSION_MB,
    )


def _idle_mb(settings: str) -> float:
    with started(settings) as daemon:
        return memory_mb(daemon.pid)


def _import_cost() -> tuple[float, float]:
    """Return the seconds and the megabytes."""
    ran = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True)
    seconds, megabytes = map(float, ran.stdout.split())
    return seconds, megabytes
