"""Random programs of messages, commands and failures on a real cluster, compared with a model of one gateway.

The fake language model answers with the messages of the person that it was given. So each answer shows in which session
its message was, and what the history of that session was.
"""

import asyncio
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, time
from typing import Any, TypeVar

import psycopg
import pytest
from aiohttp import web
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from gateway.outbound.delivery import POSSIBLY_REPEATED
from tests.channels.telegram.bot_api import Json, bot_api
from tests.cluster.harness import Cluster, FakeModel
from tests.postgres.fixtures import NewPostgres
from tests.postgres.server import PostgresServer

T = TypeVar("T")

SCALE = int(os.environ.get("GATEHOUSE_CLUSTER_SCALE", "1"))
LEASE = 4.0
PATIENCE = 60.0
"""Seconds that a step may take."""
CHATS = (1, 2, 3)
NODES = ("a", "b", "c")
MAX_SESSIONS = 6
MAX_FAILURES = 2
"""While an answer is held. A turn that is started more often is given up."""

chats = st.sampled_from(CHATS)
picks = st.integers(0, 5)
"""Chooses one of those that there are at that moment."""


class EchoModel(FakeModel):
    """Answers with the messages of the person. The answer to one in `held` waits for its event."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, asyncio.Event] = {}

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        said = [str(each["content"]) for each in body["messages"] if each["role"] == "user"]
        *earlier, last = re.findall(r"\bm\d+e?\b", " ".join(said))
        if last in self.held:
            await self.held[last].wait()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta, end in (({"content": answer(last, earlier)}, None), ({}, "stop")):
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            event = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def answer(text: str, earlier: list[str]) -> str:
    return f"answer {text} after {' '.join(earlier) or 'nothing'}"


@dataclass
class Chat:
    """A chat as one gateway would serve it."""

    sessions: dict[int, list[str]] = field(default_factory=dict)
    """The messages of the person, by session."""
    answers: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    replies: list[str] = field(default_factory=list)
    """The replies to commands."""
    active: int = 0
    held: int = 0
    """The session with an answer that is held."""
    waiting: list[str] = field(default_factory=list)
    """Messages behind that answer."""
    last: Json | None = None
    """The newest message, if it is one for the agent and was not edited yet."""

    def say(self, text: str) -> None:
        if not self.active:
            self.start()
        if self.held == self.active:
            self.waiting.append(text)
        else:
            self._answer(self.active, text)

    def start(self) -> None:
        self.active = len(self.sessions) + 1
        self.sessions[self.active] = []

    def hold(self, text: str) -> None:
        self.say(text)
        self.held = self.active

    def release(self) -> None:
        held, self.held = self.held, 0
        for text in self.waiting:
            self._answer(held, text)
        self.waiting.clear()

    def _answer(self, session: int, text: str) -> None:
        self.answers[session].append(answer(text, self.sessions[session]))
        self.sessions[session].append(text)

    @property
    def is_empty(self) -> bool:
        """Whether the active session has no message."""
        return bool(self.active) and not self.sessions[self.active] and self.held != self.active

    @property
    def listed(self) -> str:
        rows = {number: 2 * len(self.answers[number]) for number in self.sessions}
        marks = {number: "▸" if number == self.active else "" for number in rows}
        return " ".join(["sessions", *(f"{marks[number]}{number}:{rows[number]}" for number in sorted(rows))])

    @property
    def expected(self) -> Counter[str]:
        return Counter([*self.replies, *(text for texts in self.answers.values() for text in texts)])


def plain(text: str) -> str:
    """Return what matters of a message of the bot."""
    if text.startswith("Sessions (newest first)"):
        rows = re.findall(r"^(▸?) *(\d+)  .* · \w+(?: · (\d+) messages?.*)?$", text, re.MULTILINE)
        return " ".join(["sessions", *(f"{mark}{n}:{count or 0}" for mark, n, count in sorted(rows, key=by_number))])
    for pattern in (r"(Started session \d+)", r"(Back in session \d+)"):
        if (found := re.match(pattern, text)) is not None:
            return found[1]
    return text


def chosen(things: Sequence[T], pick: int) -> T:
    return things[pick % len(things)]


def by_number(row: tuple[str, str, str]) -> int:
    return int(row[1])


class Machine(RuleBasedStateMachine):
    """A program. It has a new database, and two nodes from the moment when the first person writes."""

    postgres: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.url = ""
        self.chats = {chat: Chat() for chat in CHATS}
        self.edited_at = int(time())
        self.number = 0
        self.failures = 0
        # Rules depend only on these, and never on what has happened to the processes.
        self.up: list[str] = []
        self.paused: set[str] = set()
        self.is_changed = False
        """Whether a person has written since the last failure."""
        self.has_restarted = False
        self.has_failed = False
        self.program: list[str] = []
        self.started = monotonic()

    def run(self, work: Coroutine[Any, Any, T]) -> T:  # Any: a coroutine takes and yields nothing of interest.
        async def limited() -> T:
            async with asyncio.timeout(PATIENCE):
                return await work

        try:
            return self.runner.run(limited())
        except BaseException:
            self.has_failed = True
            raise

    def did(self, step: str) -> None:
        self.program.append(f"{monotonic() - self.started:.1f} {step}")

    async def _open(self) -> None:
        self.url = self.postgres.new_database()
        api = await self.stack.enter_async_context(bot_api())
        model = self.model = EchoModel()
        app = web.Application(client_max_size=10_000_000)
        app.router.add_post("/v1/chat/completions", model.complete)
        server = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
        await server.setup()
        self.stack.push_async_callback(server.cleanup)
        await web.TCPSite(server, "127.0.0.1", 0).start()
        model.url = f"http://127.0.0.1:{server.addresses[0][1]}/v1"
        self.cluster = Cluster(folder=Path(self.folder.name), url=self.url, api=api, model=model, lease=LEASE)
        self.stack.push_async_callback(self.cluster.close)
        self.up = ["a", "b"]
        self.did("join a b")
        await self.cluster.start(*self.up)

    # What people do.

    @rule(to=st.lists(chats, min_size=1, max_size=4))
    def talk(self, to: Sequence[int]) -> None:
        for chat in to:
            text = self._next()
            self._say(chat, text)
            self.chats[chat].say(text)

    @precondition(lambda self: not self._held)
    @rule(chat=chats)
    def talk_and_hold_the_answer(self, chat: int) -> None:
        text = self._next()
        self._say(chat, text, is_held=True)
        self.chats[chat].hold(text)
        self.chats[chat].last = None
        self.failures = 0

    @precondition(lambda self: self._held)
    @rule()
    def release(self) -> None:
        self.did("release")
        for event in self.model.held.values():
            event.set()
        for chat in self.chats.values():
            if chat.held:
                chat.release()

    @precondition(lambda self: self._with_room)
    @rule(pick=picks)
    def new(self, pick: int) -> None:
        chat = chosen(self._with_room, pick)
        known = self.chats[chat]
        self._say(chat, "/new")
        known.start()
        known.replies.append(f"Started session {known.active}")

    @precondition(lambda self: self._with_sessions)
    @rule(pick=picks, number=picks)
    def resume(self, pick: int, number: int) -> None:
        chat = chosen(self._with_sessions, pick)
        known = self.chats[chat]
        known.active = chosen(sorted(known.sessions), number)
        self._say(chat, f"/session resume {known.active}")
        known.replies.append(f"Back in session {known.active}")

    @precondition(lambda self: self._idle)
    @rule(pick=picks)
    def list_sessions(self, pick: int) -> None:
        chat = chosen(self._idle, pick)
        self.run(self._answered(chat))
        self._say(chat, "/session list")
        self.chats[chat].replies.append(self.chats[chat].listed)

    @precondition(lambda self: self._editable)
    @rule(pick=picks)
    def edit(self, pick: int) -> None:
        """Edit the newest message of a chat: one that waits for its turn, or one that is answered."""
        chat = chosen(self._editable, pick)
        known = self.chats[chat]
        message, known.last = known.last, None
        assert message is not None
        text = message["text"]
        if not known.held:
            self.run(self._answered(chat))
        self.did(f"{chat}: edit {text}")
        self.edited_at += 1
        edited = {**message, "text": f"{text}e", "edit_date": self.edited_at}
        self.run(self.cluster.api.update(edited_message=edited))
        if text in known.waiting:
            self.run(self._accepted())
            known.waiting[known.waiting.index(text)] = f"{text}e"
        else:
            session = next(number for number, texts in known.sessions.items() if text in texts)
            known.sessions[session].append(f"{text}e")

    # What happens to nodes and to the database.

    @precondition(lambda self: self._may_fail and self._working)
    @rule(pick=picks)
    def kill(self, pick: int) -> None:
        name = chosen(self._working, pick)
        self.did(f"kill {name}")
        self._count_failure()
        self.up.remove(name)
        if self._is_alive(name):
            self.run(self.cluster.kill(name))

    @precondition(lambda self: self._may_fail and self._working)
    @rule(pick=picks)
    def pause(self, pick: int) -> None:
        name = chosen(self._working, pick)
        self.did(f"pause {name}")
        self._count_failure()
        self.paused.add(name)
        if self._is_alive(name):
            self.cluster.pause(name)

    @precondition(lambda self: self.paused)
    @rule()
    def go_on(self) -> None:
        """Let paused nodes go on, after the others have taken over if there are any."""
        is_late = bool(self._working)
        if is_late:
            self.run(self._wait_for_expiry())
        self.did(f"continue {' '.join(sorted(self.paused))}{' late' if is_late else ''}")
        self._continue()

    @precondition(lambda self: self._absent)
    @rule(pick=picks)
    def join(self, pick: int) -> None:
        name = chosen(self._absent, pick)
        self.did(f"join {name}")
        self.up.append(name)
        self.run(self.cluster.start(name))

    @precondition(lambda self: self._may_fail and not self._held and self._working)
    @rule(pick=picks)
    def leave(self, pick: int) -> None:
        name = chosen(self._working, pick)
        self.did(f"leave {name}")
        self._count_failure()
        self.up.remove(name)
        if self._is_alive(name):
            self.run(self.cluster.stop(name))

    @precondition(lambda self: self._may_fail and not self.has_restarted)
    @rule()
    def restart_the_database(self) -> None:
        self.did("restart the database")
        self._count_failure()
        self.has_restarted = True
        self.postgres.restart()

    def teardown(self) -> None:
        try:
            if self.url and not self.has_failed:
                self._check()
        finally:
            # pytest shows it after a failure, and always with -s.
            print("\n".join(["", *self.program]))  # noqa: T201 - see above.
            for number, chat in self.chats.items() if self.url else ():
                print(f"{number}: expected {chat.expected}, shown {self.cluster.shown()[number]}")  # noqa: T201 - as above.
            if self.url:
                self.run(self.stack.aclose())
                self.postgres.drop_database(self.url)
            self.runner.close()
            self.folder.cleanup()

    def _check(self) -> None:
        """At the end, all that one gateway would have answered is there, once, and nothing else."""
        self.release()
        for number in CHATS:
            self.run(self._answered(number))
        self.run(self._accepted())
        for number, chat in self.chats.items():
            shown = self._shown(number)
            assert Counter(shown) == chat.expected
            assert [text for text in shown if text in chat.replies] == chat.replies
            for texts in chat.answers.values():
                assert [text for text in shown if text in texts] == texts
        assert self.cluster.api.most_polls <= 1

    # What the rules are made of.

    @property
    def _held(self) -> bool:
        return any(chat.held for chat in self.chats.values())

    @property
    def _with_room(self) -> Sequence[int]:
        known = self.chats.items()
        return [n for n, chat in known if len(chat.sessions) < MAX_SESSIONS and not chat.is_empty]

    @property
    def _with_sessions(self) -> Sequence[int]:
        return [number for number, chat in self.chats.items() if chat.sessions]

    @property
    def _idle(self) -> Sequence[int]:
        return [number for number in self._with_sessions if not self.chats[number].held]

    @property
    def _editable(self) -> Sequence[int]:
        known = self.chats.items()
        return [n for n, chat in known if chat.last and (not chat.held or chat.last["text"] in chat.waiting)]

    @property
    def _may_fail(self) -> bool:
        return self.is_changed and (not self._held or self.failures < MAX_FAILURES)

    def _count_failure(self) -> None:
        self.failures += 1
        self.is_changed = False

    @property
    def _working(self) -> Sequence[str]:
        return [name for name in self.up if name not in self.paused]

    @property
    def _absent(self) -> Sequence[str]:
        return [name for name in NODES if self.url and name not in self.up]

    def _is_alive(self, name: str) -> bool:
        return self.cluster.nodes[name].process.poll() is None

    def _next(self) -> str:
        self.number += 1
        return f"m{self.number}"

    def _say(self, chat: int, text: str, *, is_held: bool = False) -> None:
        if not self.url:
            self.run(self._open())
        self.is_changed = True
        if is_held:
            self.model.held[text] = asyncio.Event()
        self.did(f"{chat}: {text}{' is held' if is_held else ''}")
        update = self.run(self.cluster.api.say(text, sender={"id": chat, "is_bot": False, "first_name": f"P{chat}"}))
        self.chats[chat].last = None if text.startswith("/") else update["message"]

    def _shown(self, chat: int) -> list[str]:
        """Return what the chat shows, without marked repetitions."""
        shown: list[str] = []
        for text in self.cluster.shown()[chat]:
            mark = POSSIBLY_REPEATED.strip()
            what = plain(text.removeprefix(mark).strip())
            if not text.startswith(mark) or what not in shown:
                shown.append(what)
        return shown

    async def _answered(self, chat: int) -> None:
        """Wait until the chat has everything that it will get. Nodes that have ended are started again."""

        def is_answered() -> bool:
            return self.chats[chat].expected <= Counter(self._shown(chat))

        self._continue()
        self.up = self.up or ["a"]
        while not is_answered():
            await self._heal()
            try:
                await self.cluster.until(is_answered, 5)
            except TimeoutError:
                continue

    async def _accepted(self) -> None:
        """Wait until every message is accepted by the owner of its chat."""
        self._continue()
        self.up = self.up or ["a"]
        while True:
            await self._heal()
            try:
                ((waiting,),) = await asyncio.to_thread(
                    self.postgres.execute, "SELECT count(*) FROM arrival", database=self.url
                )
            except psycopg.OperationalError:
                waiting = 1
            if not waiting and not self.cluster.api.pending:
                return
            await asyncio.sleep(0.1)

    async def _heal(self) -> None:
        """Do what a service manager does: start nodes that have ended by themselves."""
        for name in self.up:
            if not self._is_alive(name):
                await self.cluster.start(name)

    def _continue(self) -> None:
        for name in filter(self._is_alive, self.paused):
            self.cluster.resume(name)
        self.paused.clear()

    async def _wait_for_expiry(self) -> None:
        """Wait until the lease of a paused node has ended."""
        names = set(self.paused)
        async with asyncio.timeout(3 * LEASE):
            while True:
                rows = await asyncio.to_thread(self.postgres.execute, "SELECT name FROM node", database=self.url)
                if not names & {name for (name,) in rows}:
                    return
                await asyncio.sleep(0.1)


@pytest.mark.timeout(300 * SCALE)
def test_a_cluster_answers_as_one_gateway_does(new_postgres: NewPostgres) -> None:
    class Program(Machine):
        postgres = new_postgres()

    run_state_machine_as_test(
        Program,
        settings=settings(
            max_examples=2 if SCALE == 1 else 4 * SCALE,
            stateful_step_count=12 if SCALE == 1 else 30,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),  # A program takes seconds, and does not fail each time. So it is not shrunk.
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_every_kind_of_failure_leaves_the_sessions_as_one_gateway_has_them(new_postgres: NewPostgres) -> None:
    class Program(Machine):
        postgres = new_postgres()

    program = Program()
    try:
        program.talk([*CHATS, *CHATS])
        program.join(0)
        program.new(0)
        program.talk([1])
        program.edit(0)
        program.talk([1])
        program.resume(0, 0)
        program.kill(0)
        program.talk([1])
        program.list_sessions(0)
        program.talk_and_hold_the_answer(2)
        program.talk([2])
        program.edit(0)
        program.edit(0)
        program.new(1)
        program.talk([2])
        program.pause(0)
        program.talk([1])
        program.go_on()
        program.restart_the_database()
        program.release()
        program.talk([3])
        program.leave(0)
        program.talk(CHATS)
        for pick in range(3):
            program.list_sessions(pick)
    finally:
        program.teardown()
