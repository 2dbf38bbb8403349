"""A gateway with the loopback channel in a process of its own, alone or as a node of a cluster.

People at any node write to any chat. The node that owns the chat answers, and reports that to the node of the person.
"""

import asyncio
import multiprocessing
import os
import socket
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from random import uniform
from time import perf_counter
from typing import Any

import structlog

from bench.gateway import ANSWER, running
from channels.loopback import LoopbackChannel
from config import Settings
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.build import open_daemon
from gateway.contract import Address, PeerKind, Sender
from gateway.conversation import UserMessage
from gateway.daemon import Daemon
from gateway.routing import route
from gateway.shards import SHARD_COUNT

_EVENTS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """A message and its answer. The times are those of the monotonic clock, which all processes share."""

    said: float
    accepted: float
    begun: float
    """When its turn had begun and the model was asked."""
    answered: float

    @property
    def took_ms(self) -> float:
        return (self.answered - self.said) * 1000

    @property
    def until_begun_ms(self) -> float:
        return (self.begun - self.accepted) * 1000


class Node:
    """A node as the bench sees it. A call starts at once; its result can be fetched later."""

    def __init__(self, settings: Mapping[str, object], number: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self.number = number
        self._pipe, theirs = context.Pipe()
        self._process: SpawnProcess = context.Process(target=_run, args=(settings, number, folder, theirs), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def start(self, function: Callable[..., Any], *arguments: object) -> None:  # Any: each function has its own result.
        """Call a coroutine function of this module in the process of the node, with its `People` first."""
        self._pipe.send((function, arguments))

    def result(self) -> Any:  # noqa: ANN401 - as above.
        return self._pipe.recv()

    def call(self, function: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - as above.
        self.start(function, *arguments)
        return self.result()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join()


class _NotingModel:
    """A model that answers at once, and notes when it was asked in each chat."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        last = prompt.messages[-1]
        assert isinstance(last, UserMessage)
        self.asked[last.text.split()[-1]] = perf_counter()
        yield TextDelta(text=ANSWER)


class People:
    """The people at this node. The chat `2x7` is that of a person at node 2."""

    def __init__(self, daemon: Daemon, chat: LoopbackChannel, number: int, folder: Path) -> None:
        self.daemon = daemon
        self.number = number
        self._chat = chat
        self._folder = folder
        self._model = _NotingModel()
        self._answers: dict[str, asyncio.Future[tuple[float, float]]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)  # noqa: FBT003 - a positional parameter of the library.
        path = folder / str(number)
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        daemon.agents.replace("main", lambda agent: replace(agent, provider=self._model))

    def owns(self, peer: str) -> bool:
        cluster = self.daemon.cluster
        address = Address(channel="loopback", account="default", kind=PeerKind.DIRECT, peer=peer)
        sender = Sender(id=peer, name=peer, is_owner=True)
        return cluster is None or cluster.shards.serves(route(self.daemon.live.settings, address, sender, None).scope)

    async def ask(self, peer: str) -> Trip:
        answer = self._answers[peer] = asyncio.get_running_loop().create_future()
        said = perf_counter()
        await self._chat.say(f"hello from {peer}", peer=peer, event_id=f"{os.getpid()}-{next(_EVENTS)}")
        accepted = perf_counter()
        begun, answered = await answer
        return Trip(said=said, accepted=accepted, begun=begun, answered=answered)

    async def hear(self) -> None:
        """Pass on the answers of this node, and those that other nodes report, until cancelled."""
        asyncio.get_running_loop().add_reader(self._socket, self._hear_of_answer)
        while True:
            answer = await self._chat.hear_message()
            peer, heard = answer.address.peer, perf_counter()
            assert answer.text == ANSWER, answer.text
            begun = self._model.asked[peer]
            person = int(peer.partition("x")[0])
            if person == self.number:
                self._settle(peer, begun, heard)
            else:
                await self._report(person, f"{peer} {begun} {heard}")

    async def _report(self, person: int, answer: str) -> None:
        while True:
            try:
                self._socket.sendto(answer.encode(), str(self._folder / str(person)))
            except BlockingIOError:  # Its queue is full: it has few places.
                await asyncio.sleep(0.001)
            except OSError:  # That node was killed.
                return
            else:
                return

    def _hear_of_answer(self) -> None:
        with suppress(BlockingIOError):
            while True:
                peer, begun, heard = self._socket.recv(200).decode().split()
                self._settle(peer, float(begun), float(heard))

    def _settle(self, peer: str, begun: float, heard: float) -> None:
        answer = self._answers.pop(peer, None)
        if answer is not None:
            answer.set_result((begun, heard))


async def talk(people: People, chats: int, messages: int) -> list[Trip]:
    """Say so many messages in each of so many chats, at any owner."""
    return await _ask_all(people, [f"{people.number}x{chat}" for chat in range(chats)], messages)


async def talk_elsewhere(people: People, chats: int, messages: int, pause: float) -> list[Trip]:
    """Say messages in chats that other nodes own."""
    peers = (peer for peer in map(f"{people.number}x{{}}".format, count()) if not people.owns(peer))
    return await _ask_all(people, list(islice(peers, chats)), messages, pause)


async def _ask_all(people: People, peers: Collection[str], messages: int, pause: float = 0.0) -> list[Trip]:
    async with asyncio.TaskGroup() as tasks:
        talks = [tasks.create_task(ask(people, peer, messages, pause), name=f"ask:{peer}") for peer in peers]
    return [trip for each in talks for trip in each.result()]


async def ask(people: People, peer: str, messages: int, pause: float = 0.0) -> list[Trip]:
    """Say messages in one chat, each when the one before it was answered, and up to `pause` seconds have passed."""
    trips: list[Trip] = []
    for _ in range(messages):
        if pause:
            await asyncio.sleep(uniform(0, pause))  # noqa: S311 - not a secret.
        trips.append(await people.ask(peer))
    return trips


async def chat_owned(people: People, person: int) -> str:
    """Return a chat of this node with a person at the node `person`."""
    while True:  # A node that has just claimed its shards does not serve them yet.
        for number in range(SHARD_COUNT * 10):
            if people.owns(peer := f"{person}x{number}"):
                return peer
        await asyncio.sleep(0.01)


async def stop_listening(people: People) -> None:
    """Hear no notifications any more, as behind a pool of connections that swallows them."""
    assert people.daemon.cluster is not None
    assert people.daemon.cluster.listener is not None
    people.daemon.cluster.listener.stop()
    await asyncio.sleep(2)  # Its thread looks for the end once a second.


def _run(settings: Mapping[str, object], number: int, folder: Path, pipe: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    asyncio.run(_serve(Settings.model_validate(settings), number, folder, pipe))


async def _serve(settings: Settings, number: int, folder: Path, pipe: Connection) -> None:
    async with open_daemon(settings, listen=False) as daemon, running(daemon) as chat, asyncio.TaskGroup() as tasks:
        people = People(daemon, chat, number, folder)
        hearing = tasks.create_task(people.hear(), name="hear")
        pipe.send(None)
        while (call := await asyncio.to_thread(pipe.recv)) is not None:
            function, arguments = call
            pipe.send(await function(people, *arguments))
        hearing.cancel()
