"""Random operations, kills and damage to the index, compared with a simple model in memory."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import SessionManager
from gateway.sessions import entries as e
from gateway.sessions.keys import session_key
from tests.sessions.conftest import ANN, Clock

SCOPES = ("agent:main:web:direct:ann", "agent:main:web:direct:Ann")

Operation = tuple[str, str, int]
operations = st.tuples(
    st.sampled_from(["say", "say", "say", "new", "resume", "flush", "kill", "kill and spoil", "tear"]),
    st.sampled_from(SCOPES),
    st.integers(min_value=1, max_value=5),
)


@dataclass
class Model:
    """The model: the messages of each session, and the active session of each scope."""

    sessions: dict[str, dict[int, list[str]]] = field(default_factory=lambda: {scope: {} for scope in SCOPES})
    active: dict[str, int] = field(default_factory=dict)

    def new(self, scope: str) -> None:
        number = len(self.sessions[scope]) + 1
        self.sessions[scope][number] = []
        self.active[scope] = number


class Walk:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._clock = Clock()
        self._model = Model()
        self._opened: list[SessionManager] = []

    async def run(self, steps: list[Operation]) -> None:
        await self._start()
        for at, (what, scope, number) in enumerate(steps):
            await self._step(what, scope, number, text=f"{at} \u2028\n")
            self._check_listing()
        await self._start()
        self._check_listing()
        await self._check_texts()
        for manager in self._opened:
            await manager.close()

    @property
    def _manager(self) -> SessionManager:
        return self._opened[-1]

    async def _start(self) -> None:
        """Start on the same files without closing the manager before, as after a kill."""
        manager = await SessionManager.open(self._directory, SessionSettings(), self._clock)
        await manager.recover()
        if self._opened:
            # It is dead: it must not write its index over a newer one.
            await self._end(self._opened.pop())
        self._opened.append(manager)

    async def _end(self, manager: SessionManager) -> None:
        index = self._directory / "index.json"
        before = index.read_bytes() if index.exists() else None
        await manager.close()
        index.unlink(missing_ok=True)
        index.with_suffix(".clean").unlink(missing_ok=True)
        if before is not None:
            index.write_bytes(before)

    async def _step(self, what: str, scope: str, number: int, *, text: str) -> None:
        match what:
            case "say":
                await self._say(scope, text)
            case "new":
                await self._manager.start_new(scope, agent="main", origin=ANN)
                self._model.new(scope)
            case "resume":
                await self._resume(scope, number)
            case "flush":
                await self._manager.flush()
            case _:
                self._spoil(what)
                await self._start()

    async def _say(self, scope: str, text: str) -> None:
        session = await self._manager.resolve_active(scope, agent="main", origin=ANN)
        if scope not in self._model.active:
            self._model.new(scope)
        await self._manager.append(session.key, [e.User(content=text)])
        self._model.sessions[scope][self._model.active[scope]].append(text)

    async def _resume(self, scope: str, number: int) -> None:
        try:
            await self._manager.resume(scope, number)
        except Refused:
            assert number not in self._model.sessions[scope]
        else:
            self._model.active[scope] = number

    def _spoil(self, what: str) -> None:
        if what == "kill and spoil":
            (self._directory / "index.json").write_bytes(b"{")
        if what == "tear":
            for path in (self._directory / "transcripts").glob("*.jsonl"):
                with path.open("ab") as file:
                    file.write(b'{"type":"us')

    def _check_listing(self) -> None:
        for scope in SCOPES:
            expected = {number: len(said) for number, said in self._model.sessions[scope].items()}
            listed = self._manager.list(scope)
            assert {meta.number: meta.messages for meta in listed} == expected
            assert [meta.number for meta in listed] == sorted(expected, reverse=True)
            active = self._manager.active(scope)
            assert (active.number if active else None) == self._model.active.get(scope)

    async def _check_texts(self) -> None:
        for scope, sessions in self._model.sessions.items():
            for number, said in sessions.items():
                lines = await self._manager.lines(session_key(scope, number), 1000)
                assert [line.text for line in lines] == said


@settings(max_examples=60, deadline=None)
@given(st.lists(operations, max_size=25))
def test_random_operations_and_restarts_keep_every_message(steps: list[Operation]) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(Walk(Path(directory) / "sessions").run(steps))
