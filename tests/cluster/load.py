"""Numbered messages to a cluster, from people on Telegram and from programs, and what has become of each."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from time import monotonic, time
from typing import Any

import aiohttp

from gateway.outbound.delivery import POSSIBLY_REPEATED
from tests.cluster.harness import HTTP_TOKEN, TIMEOUT, Cluster
from tests.cluster.scale import CHATS, MESSAGES_OF_FAULT, RATE

_ANSWER = re.compile(r"answer (?:\[[^\]]*\] )?m(\d+)\b")
_REQUEST_TIMEOUT = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What has become of the messages. `worst_wait` is the longest time from sending a message to its answer."""

    lost: int = 0
    doubled: int = 0
    disordered: int = 0
    marked: int = 0
    """Answers that were sent twice, the second one with the note that it may be a repetition."""
    worst_wait: float = 0.0
    worst_api_wait: float = 0.0
    median_wait: float = 0.0

    @property
    def faults(self) -> tuple[int, int, int]:
        return self.lost, self.doubled, self.disordered


class ApiClient:
    """A program that sends each request to any node that takes connections, as behind a load balancer.

    It repeats a request if no connection was possible, as a load balancer does, and others if it `may_fail`.
    """

    def __init__(self, nodes: Cluster, session: aiohttp.ClientSession, *, may_fail: bool) -> None:
        self._nodes = nodes
        self._session = session
        self._may_fail = may_fail
        self._random = Random(1)  # noqa: S311 - not a secret.
        self.errors: list[str] = []

    async def call(self, method: str, path: str, body: object = None, key: str = "") -> Any:  # noqa: ANN401 - JSON.
        headers = {"Authorization": f"Bearer {HTTP_TOKEN}", **({"Idempotency-Key": key} if key else {})}
        async with asyncio.timeout(TIMEOUT):
            while True:
                urls = [node.url for node in self._nodes.nodes.values() if hasattr(node, "url")]
                if not urls:  # All nodes have ended, and none has started again yet.
                    await asyncio.sleep(0.05)
                    continue
                url = self._random.choice(urls)
                try:
                    async with self._session.request(method, f"{url}{path}", json=body, headers=headers) as response:
                        if response.status < 400:
                            return await response.json()
                        text = await response.text()
                        self.errors.append(f"{method} {path}: {response.status} {text[:200]}")
                except aiohttp.ClientConnectorError:  # Nothing was sent. A proxy tries the next node.
                    await asyncio.sleep(0.05)
                    continue
                except (aiohttp.ClientError, OSError) as error:
                    self.errors.append(f"{method} {path}: {type(error).__name__} {error}")
                if not self._may_fail:
                    raise AssertionError(self.errors[-1])
                await asyncio.sleep(0.2)


@dataclass(slots=True, kw_only=True)
class Load:
    """Sends messages to `chats` conversations, `rate` of them per second, until all are sent or `stop` is called."""

    nodes: Cluster
    client: ApiClient
    messages: int
    chats: int
    rate: float
    sent: dict[int | str, list[float]] = field(default_factory=dict)
    """By chat, or by session of the API, when each of its messages was sent."""
    is_stopped: bool = False
    _is_sent: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_running(self) -> bool:
        return not self._is_sent.is_set()

    async def run(self) -> None:
        """Send the messages. Those of one conversation have the texts `m0`, `m1` and so on."""
        programs = self.chats // 2
        sessions = [str((await self.client.call("POST", "/api/sessions", {}))["id"]) for _ in range(programs)]
        conversations: list[int | str] = [*range(1, self.chats - programs + 1), *sessions]
        queues = {session: asyncio.Queue[str | None]() for session in sessions}
        started = monotonic()
        async with asyncio.TaskGroup() as tasks:
            for session, queue in queues.items():
                tasks.create_task(self._prompt(session, queue), name=f"prompts:{session}")
            for number in range(self.messages):
                if self.is_stopped:
                    break
                conversation = conversations[number % len(conversations)]
                times = self.sent.setdefault(conversation, [])
                text = f"m{len(times)}"
                times.append(time())
                if isinstance(conversation, int):
                    await self.nodes.say(conversation, text)
                else:
                    queues[conversation].put_nowait(text)
                await asyncio.sleep(max(0.0, started + number / self.rate - monotonic()))
            for queue in queues.values():
                queue.put_nowait(None)
        self._is_sent.set()

    async def _prompt(self, session: str, queue: "asyncio.Queue[str | None]") -> None:
        """Send the prompts of a session, each when the one before is accepted."""
        while (text := await queue.get()) is not None:
            await self.client.call("POST", f"/api/sessions/{session}/prompt", {"text": text}, f"{session}-{text}")

    async def outcome(self, within: float = TIMEOUT) -> Outcome:
        """Wait until all messages are sent and answered, or until `within` is over. Return what has become of them."""
        await self._is_sent.wait()
        deadline = monotonic() + within
        outcome = await self._judge()
        while outcome.lost and monotonic() < deadline:
            await asyncio.sleep(0.3)
            outcome = await self._judge()
        return outcome

    async def _judge(self) -> Outcome:
        lost = doubled = disordered = marked = 0
        waits: list[float] = []
        api_waits: list[float] = []
        shown, shown_at = self.nodes.shown(), self.nodes.shown_at()
        for conversation, sent in self.sent.items():
            if isinstance(conversation, int):
                answers = list(zip(shown.get(conversation, []), shown_at.get(conversation, []), strict=True))
            elif lost:  # It is not over yet, so this would be in vain.
                continue
            else:
                answers = await self._answers(conversation)
            seen: set[int] = set()
            for text, at in answers:
                if (found := _ANSWER.search(text)) is None:
                    continue
                number = int(found[1])
                if number in seen:
                    if text.startswith(POSSIBLY_REPEATED.strip()):
                        marked += 1
                    else:
                        doubled += 1
                    continue
                disordered += number < max(seen, default=0)
                seen.add(number)
                (waits if isinstance(conversation, int) else api_waits).append(at - sent[number])
            lost += len(sent) - len(seen)
        every = sorted([*waits, *api_waits])
        return Outcome(
            lost=lost,
            doubled=doubled,
            disordered=disordered,
            marked=marked,
            worst_wait=max(waits, default=0.0),
            worst_api_wait=max(api_waits, default=0.0),
            median_wait=every[len(every) // 2] if every else 0.0,
        )

    async def _answers(self, session: str) -> list[tuple[str, float]]:
        path = f"/api/sessions/{session}/messages?since=0"
        return [
            (each["content"]["text"], datetime.fromisoformat(each["timestamp"]).timestamp())
            for each in (await self.client.call("GET", path))["messages"]
            if each["role"] == "agent" and each["content"]["type"] == "text" and not each["content"].get("partial")
        ]


@asynccontextmanager
async def load(
    nodes: Cluster,
    *,
    messages: int = MESSAGES_OF_FAULT,
    chats: int = CHATS,
    rate: float = RATE,
    may_fail: bool = True,
) -> AsyncIterator[Load]:
    """Send messages, also while the block runs. With `may_fail`, programs repeat requests that fail."""
    timeout = aiohttp.ClientTimeout(total=_REQUEST_TIMEOUT)
    # A connection for each request: a server may close one that is kept just when the next request is sent.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = ApiClient(nodes, session, may_fail=may_fail)
        running = Load(nodes=nodes, client=client, messages=messages, chats=chats, rate=rate)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(running.run(), name="load")
            yield running
