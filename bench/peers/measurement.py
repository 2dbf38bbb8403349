"""Measures one gateway: start, memory, one chat, many chats, a crash, and the size of a request to the model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from bench import model_server
from bench.bot_api import BotApi, served
from bench.peers.peer import Launch, Peer, Servers
from bench.peers.process_tree import ProcessTree, started
from bench.peers.proxy import certified, proxied

START_LIMIT = 300.0
TRIPS, TRIPS_LIMIT = 200, 40.0
CHATS, EACH, LOAD_LIMIT = 50, 20, 60.0
IN_FLIGHT = 20
KILL_LIMIT = 15.0
"""Seconds until SIGKILL if not all messages have reached the model by then."""
MODEL_DELAY = 2 * KILL_LIMIT
"""Seconds until the model answers, before the crash. It answers at once after the restart."""
RECOVERY_LIMIT = 60.0
SETTLE = 5.0
"""Seconds until memory is read after an answer, and that a second answer to a message has to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The answers within the time limit of a phase."""

    wanted: int
    answered: int
    seconds: float
    cpu_ms: float
    """User and system time of each answer."""
    trip_ms: float
    """The median."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    reached_model: int
    answered: int
    twice: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    start: float
    memory_mb: float
    request_bytes: int
    requests: float
    """Requests to the model for each answer."""
    one: Load
    many: Load
    crash: Crash


class Person:
    """Asks numbered questions, which the model echoes, so that each answer is known by its number."""

    def __init__(self, api: BotApi, *, first: int) -> None:
        self._api = api
        self._number = first

    async def ask(self, chat: int) -> None:
        """Return once the answer has arrived."""
        number, self._number = self._number, self._number + 1
        await self._api.ask(chat, f"question {number}", f"answer {number}")

    def answers(self, number: int) -> int:
        """Return how many messages of the bot answer a question."""
        return sum(f"answer {number}" in text for text in self._api.messages.values())


async def measured(peer: Peer, installed: Path, folder: Path) -> Result:
    """Measure a gateway in two homes that were empty before: at work in one, with a crash in the other."""
    with model_server.served() as model:
        home = folder / "work"
        home.mkdir()
        async with _bot_api(folder, f"{model}/echo") as (api, servers):
            person = Person(api, first=10_000)
            launch = peer.configure(installed, home, servers)
            # The first start sets up the home and fills caches of compiled code, so the second one is measured.
            async with started(launch, home):
                await _first_answer(api, person, home)
                first = await model_server.requests(model)
            began = perf_counter()
            async with started(launch, home) as tree:
                await _first_answer(api, person, home)
                start = perf_counter() - began
                await asyncio.sleep(SETTLE)
                memory = tree.memory_mb()
                one = await _load(person, tree, chats=1, each=TRIPS, limit=TRIPS_LIMIT)
                many = await _load(person, tree, chats=CHATS, each=EACH, limit=LOAD_LIMIT)
                requests = await model_server.requests(model)
        home = folder / "crash"
        home.mkdir()
        async with _bot_api(folder, f"{model}/echo") as (api, servers):
            crash = await _crashed(api, model, peer.configure(installed, home, servers), home)
    return Result(
        start=start,
        memory_mb=memory,
        request_bytes=max(size for question, size in first if question),
        requests=len(requests) / (2 + one.answered + many.answered),
        one=one,
        many=many,
        crash=crash,
    )


@asynccontextmanager
async def _bot_api(folder: Path, model: str) -> AsyncIterator[tuple[BotApi, Servers]]:
    certificate, tls = certified(folder)
    async with served(tls) as api, proxied(api.tls_port) as proxy:
        yield api, Servers(bot_api=api.url, model=model, proxy=proxy, certificate=certificate)


async def _first_answer(api: BotApi, person: Person, home: Path) -> None:
    """Ask when the gateway first polls: some gateways discard the messages from before their start."""
    api.polled.clear()
    try:
        async with asyncio.timeout(START_LIMIT):
            await api.polled.wait()
            await person.ask(1)
    except TimeoutError as late:
        output = (home / "output.log").read_text(errors="replace")[-2000:]
        message = f"no answer within {START_LIMIT:.0f} s of the start; the output ends with:\n{output}"
        raise TimeoutError(message) from late


async def _load(person: Person, tree: ProcessTree, *, chats: int, each: int, limit: float) -> Load:
    """Have people in `chats` chats ask `each` questions one after the other, until the limit."""
    trips: list[float] = []

    async def talk(chat: int) -> None:
        for _ in range(each):
            began = perf_counter()
            await person.ask(chat)
            trips.append((perf_counter() - began) * 1000)

    spent, began = tree.cpu_ms(), perf_counter()
    with suppress(TimeoutError):
        async with asyncio.timeout(limit), asyncio.TaskGroup() as people:
            for chat in range(1, chats + 1):
                people.create_task(talk(chat), name=f"chat:{chat}")
    seconds = perf_counter() - began
    await asyncio.sleep(1)  # The writes after an answer are part of its cost.
    return Load(
        wanted=chats * each,
        answered=len(trips),
        seconds=seconds,
        cpu_ms=(tree.cpu_ms() - spent) / max(1, len(trips)),
        trip_ms=median(trips) if trips else limit * 1000,
    )


async def _crashed(api: BotApi, model: str, launch: Launch, home: Path) -> Crash:
    """Kill a gateway while messages from as many chats wait for the model, start it again, and count the answers."""
    person = Person(api, first=90_000)
    async with asyncio.TaskGroup() as people:
        async with started(launch, home) as tree:
            await _first_answer(api, person, home)
            before = len(await model_server.requests(model))
            await model_server.set_delay(model, MODEL_DELAY)
            asked = [people.create_task(person.ask(chat), name=f"chat:{chat}") for chat in range(2, IN_FLIGHT + 2)]
            reached: set[str] = set()
            until = perf_counter() + KILL_LIMIT
            while len(reached) < IN_FLIGHT and perf_counter() < until:
                await asyncio.sleep(0.1)
                reached = {question for question, _ in (await model_server.requests(model))[before:] if question}
            tree.kill()
        await model_server.set_delay(model, 0)
        async with started(launch, home):
            await _first_answer(api, person, home)
            await asyncio.wait(asked, timeout=RECOVERY_LIMIT)
            await asyncio.sleep(SETTLE)
        counts = [person.answers(number) for number in range(90_001, 90_001 + IN_FLIGHT)]
        for task in asked:
            task.cancel()
    return Crash(
        reached_model=len(reached),
        answered=sum(count > 0 for count in counts),
        twice=sum(count > 1 for count in counts),
    )
