"""Random operations, crashes and restarts, compared with a simple model in memory."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import SessionManager, SessionStatus, TurnOutcome
from gateway.sessions import entries as e
from gateway.sessions.keys import session_key
from gateway.sessions.storage.files import FileStorage
from tests.sessions.conftest import ANN, Clock, undo

T = TypeVar("T")

SCOPES = ("agent:main:web:direct:ann", "agent:main:web:direct:Ann")
LIMIT = 2
scopes = st.sampled_from(SCOPES)
numbers = st.integers(min_value=1, max_value=6)
texts = st.text(alphabet="aé\u2028\n\x85👋\x00", max_size=8)


@dataclass
class Told:
    """A session of the model."""

    turns: list[list[str]] = field(default_factory=list)
    title: str = ""
    status: SessionStatus = SessionStatus.ACTIVE
    used: int = 0
    is_empty: bool = True


@dataclass
class Known:
    """A scope of the model."""

    sessions: dict[int, Told] = field(default_factory=dict)
    archived: dict[int, Told] = field(default_factory=dict)
    active: int | None = None
    highest: int = 0
    uses: int = 0

    def archive(self, *, kept: int | None, more: int = 0) -> None:
        """Archive the least recently used sessions beyond the limit. `more` sessions come in addition."""
        full = [number for number, told in self.sessions.items() if not told.is_empty]
        surplus = max(0, len(full) + more - LIMIT)
        free = sorted((number for number in full if number != kept), key=lambda number: self.sessions[number].used)
        for number in free[:surplus]:
            self.archived[number] = self.sessions.pop(number)

    def use(self, number: int) -> None:
        self.uses += 1
        self.active = number
        self.sessions[number].used = self.uses


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.runner = asyncio.Runner()
        self.clock = Clock()
        self.known = {scope: Known() for scope in SCOPES}
        self.turn = 0
        self.manager = self.run(self._opened())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def _opened(self) -> SessionManager:
        disk = FileStorage(Path(self.folder.name) / "sessions")
        disk.prepare()
        manager = SessionManager(disk, SessionSettings(backlog_limit=LIMIT, max_messages=6), self.clock)
        await manager.recover()
        return manager

    def teardown(self) -> None:
        self.run(self.manager.close())
        self.runner.close()
        self.folder.cleanup()

    def _new(self, scope: str) -> Told:
        known = self.known[scope]
        known.archive(kept=None)
        known.highest += 1
        told = known.sessions[known.highest] = Told()
        known.use(known.highest)
        empty = sorted(
            (told.used, number) for number, told in known.sessions.items() if told.is_empty and number != known.active
        )
        for _, number in empty[: max(0, len(known.sessions) - LIMIT)]:
            del known.sessions[number]
        return told

    @rule(scope=scopes, text=texts, steps=st.integers(min_value=1, max_value=60))
    def talk(self, scope: str, text: str, steps: int) -> None:
        """Add turns. A hundred of them make many checkpoints."""
        session = self.run(self.manager.resolve_active(scope, agent="main", origin=ANN))
        known = self.known[scope]
        if known.active is None or known.sessions[known.active].status is not SessionStatus.ACTIVE:
            self._new(scope)
        assert session.number == known.active
        told = known.sessions[session.number]
        self.turn += 1
        turn, said = f"t{self.turn}", [f"{self.turn} {text}", "answer"]
        calls: list[e.Entry] = []
        for call in range(steps):
            calls.append(e.ToolUse(tool_use_id=str(call), name="x", input={}, turn=turn))
            calls.append(e.ToolResult(tool_use_id=str(call), output="ok", turn=turn))
        self.run(
            self.manager.append(
                session.key,
                [
                    e.User(content=said[0], turn=turn),
                    *calls,
                    e.Assistant(content=said[1], turn=turn),
                    e.TurnEnd(outcome=TurnOutcome.ANSWERED, turn=turn),
                ],
            )
        )
        told.turns.append(said)
        told.is_empty = False
        told.title = told.title or " ".join(said[0].split())

    @rule(scope=scopes)
    def new(self, scope: str) -> None:
        assert self.run(self.manager.start_new(scope, agent="main", origin=ANN)).number == self.known[scope].highest + 1
        self._new(scope)

    @rule(scope=scopes, count=st.integers(min_value=1, max_value=3))
    def start_conversations(self, scope: str, count: int) -> None:
        """Fill the list, so that sessions are archived."""
        for _ in range(count):
            self.new(scope)
            self.talk(scope, "", 1)

    @rule(scope=scopes, number=numbers)
    def resume(self, scope: str, number: int) -> None:
        known = self.known[scope]
        try:
            self.run(self.manager.resume(scope, number))
        except Refused:
            assert number not in known.sessions
            return
        if known.active != number:
            known.use(number)
        if known.sessions[number].status is SessionStatus.COMPLETED:
            known.sessions[number].status = SessionStatus.ACTIVE

    @rule(scope=scopes, number=numbers)
    def restore(self, scope: str, number: int) -> None:
        known = self.known[scope]
        archived = self.run(self.manager.archive.find(session_key(scope, number)))
        assert (archived is not None) == (number in known.archived)
        if archived is None:
            return
        copies = self.run(self.manager.copy_displaced(archived))
        self.run(self.manager.archive.restore(archived, copies))
        known.archive(kept=known.active, more=1)
        known.sessions[number] = known.archived.pop(number)
        active = known.active
        known.use(number)
        if active is not None:
            known.use(active)

    @rule(scope=scopes, number=numbers)
    def delete(self, scope: str, number: int) -> None:
        known = self.known[scope]
        try:
            self.run(self.manager.delete(session_key(scope, number)))
        except Refused:
            assert number not in known.sessions
            assert number not in known.archived
            return
        if known.archived.pop(number, None) is not None:
            return
        del known.sessions[number]
        if known.active == number:
            known.active = None
            if known.sessions:
                known.use(max(known.sessions))

    @rule(scope=scopes, number=numbers, what=st.sampled_from(["clear", "undo", "complete", "title"]))
    def note(self, scope: str, number: int, what: str) -> None:
        told = self.known[scope].sessions.get(number)
        if told is None:
            return
        key = session_key(scope, number)
        if what == "clear":
            self.run(self.manager.clear(key))
            told.turns.clear()
        elif what == "undo":
            undone = self.run(undo(self.manager, key))
            assert (undone is not None) == bool(told.turns)
            told.turns = told.turns[:-1]
        elif what == "complete":
            self.run(self.manager.set_status(key, SessionStatus.COMPLETED))
            told.status = SessionStatus.COMPLETED
        else:
            self.run(self.manager.set_title(key, "A title"))
            told.title = "A title"

    @rule()
    def flush(self) -> None:
        self.run(self.manager.flush())

    @rule()
    def restart(self) -> None:
        self.run(self.manager.close())
        self.manager = self.run(self._opened())

    @precondition(lambda self: all(known.sessions or not known.highest for known in self.known.values()))
    @rule(harm=st.sampled_from(["none", "no index", "bad index", "torn"]))
    def crash(self, harm: str) -> None:
        """Start again from the disk, with neither flush nor close.

        A scope without sessions may forget its numbers in a crash; the precondition keeps that apart.
        """
        directory = Path(self.folder.name) / "sessions"
        if harm == "no index":
            (directory / "index.json").unlink(missing_ok=True)
        if harm == "bad index":
            (directory / "index.json").write_bytes(b'{"version":1,"sco')
        if harm == "torn":
            for path in (directory / "transcripts").glob("*.jsonl"):
                with path.open("ab") as file:
                    file.write(b'{"type":"us')
        self.manager._store.stop()  # noqa: SLF001 - the threads of a process that was killed.
        self.manager._reader.stop()  # noqa: SLF001 - as above.
        self.manager = self.run(self._opened())

    @invariant()
    def lists_what_is_known(self) -> None:
        for scope, known in self.known.items():
            listed = {meta.number: meta for meta in self.manager.list(scope)}
            assert listed.keys() == known.sessions.keys()
            for number, told in known.sessions.items():
                meta = listed[number]
                assert (meta.messages, meta.turns) == (2 * len(told.turns), len(told.turns))
                assert (meta.title, meta.status) == (told.title, told.status)
            active = self.manager.active(scope)
            assert (active.number if active else None) == known.active

    @invariant()
    def lists_what_is_archived(self) -> None:
        for scope, known in self.known.items():
            archived = self.run(self.manager.archive.list(scope))
            assert [session.state.number for session in archived] == sorted(known.archived, reverse=True)
            assert [session.state.title for session in archived] == [
                known.archived[session.state.number].title for session in archived
            ]

    @invariant()
    def tells_what_was_said(self) -> None:
        for scope, known in self.known.items():
            for number, told in known.sessions.items():
                said = [text for turn in told.turns for text in turn]
                lines = self.run(self.manager.lines(session_key(scope, number), 1000))
                assert [line.text for line in lines] == said


Machine.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestSessions = Machine.TestCase
