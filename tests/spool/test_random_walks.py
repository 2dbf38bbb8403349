"""Random calls and kills, against a model that simply keeps everything in memory."""

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.spool import (
    AddToInbox,
    AddToOutbox,
    AppendEntries,
    CommitRefused,
    Conflict,
    DeleteDraft,
    DropDeadMessage,
    DropDeadReply,
    Duplicate,
    InboxState,
    MarkDead,
    MarkDelivered,
    MarkSeen,
    MarkSending,
    Operation,
    OutboxState,
    ReplaceInbound,
    ResetAttempts,
    RetryDead,
    RetryLater,
    SaveDraft,
    SetFact,
    SetInboxState,
    Spool,
    StartTurn,
    WrongState,
)
from tests.spool.conftest import copied
from tests.spool.samples import NOW, RECEIPT, accept, inbound, send, take

turns = st.sampled_from(["t1", "t2", "t3"])
keys = st.sampled_from(["k1", "k2", "k3"])
words = st.text(max_size=20)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.builds(take, st.sampled_from(["e1", "e2", "e3", "e4"])),
    st.builds(accept, turns, words),
    st.builds(StartTurn, turn=turns),
    st.builds(ResetAttempts, turn=turns),
    st.builds(SetInboxState, turn=turns, state=st.sampled_from(InboxState), note=words),
    st.builds(ReplaceInbound, turn=turns, inbound=st.builds(inbound, words)),
    st.builds(
        AppendEntries,
        session=st.sampled_from(["a", "b"]),
        first_seq=st.integers(0, 4),
        lines=st.lists(st.sampled_from([b"x\n", b"x\n", b"x\n", b"y\n"]), max_size=3).map(tuple),
    ),
    st.builds(send, keys, words),
    st.builds(MarkSending, key=keys, at=st.just(NOW)),
    st.builds(MarkDelivered, key=keys, receipt=st.just(RECEIPT), at=st.just(NOW)),
    st.builds(RetryLater, key=keys, reason=words),
    st.builds(MarkDead, key=keys, reason=words),
    st.builds(RetryDead, key=keys),
    st.builds(DropDeadReply, key=keys),
    st.builds(DropDeadMessage, turn=turns),
    st.builds(SaveDraft, turn=turns, receipt=st.just(RECEIPT), at=st.just(NOW)),
    st.builds(DeleteDraft, turn=turns),
    st.builds(SetFact, name=st.sampled_from(["f1", "f2"]), value=st.none() | words),
)
calls = st.lists(operations, min_size=1, max_size=3)
steps = st.lists(st.one_of(st.lists(calls, min_size=1, max_size=4), st.none()), max_size=12)
"""Each step is some calls at once, or a kill."""

_OPEN_IN = (InboxState.RECEIVED, InboxState.RUNNING, InboxState.WAITING)
_OPEN_OUT = (OutboxState.PENDING, OutboxState.SENDING)


@dataclass
class Message:
    text: str
    state: InboxState = InboxState.RECEIVED
    attempts: int = 0


@dataclass
class Reply:
    text: str
    state: OutboxState = OutboxState.PENDING
    attempts: int = 0
    reason: str = ""

    def move(self, state: OutboxState, *, frm: tuple[OutboxState, ...], reason: str | None = None) -> None:
        if self.state not in frm:
            raise WrongState
        self.state = state
        self.reason = self.reason if reason is None else reason


@dataclass
class Model:
    seen: set[str] = field(default_factory=set)
    inbox: dict[str, Message] = field(default_factory=dict)
    outbox: dict[str, Reply] = field(default_factory=dict)
    notes: dict[tuple[str, int], bytes] = field(default_factory=dict)
    drafts: set[str] = field(default_factory=set)
    facts: dict[str, str] = field(default_factory=dict)

    def open_message(self, turn: str) -> Message:
        if turn not in self.inbox or self.inbox[turn].state not in _OPEN_IN:
            raise WrongState
        return self.inbox[turn]

    def reply(self, key: str) -> Reply:
        if key not in self.outbox:
            raise WrongState
        return self.outbox[key]

    def apply(self, operation: Operation) -> None:  # noqa: C901, PLR0912 - one case for each operation
        match operation:
            case MarkSeen(event_id=event):
                if event in self.seen:
                    raise Duplicate
                self.seen.add(event)
            case AddToInbox(turn=turn, inbound=said):
                if turn in self.inbox:
                    raise Duplicate
                self.inbox[turn] = Message(said.text)
            case StartTurn(turn=turn):
                message = self.open_message(turn)
                message.state = InboxState.RUNNING
                message.attempts += 1
            case ResetAttempts(turn=turn):
                self.open_message(turn).attempts = 0
            case SetInboxState(turn=turn, state=state):
                self.settle(turn, state)
            case ReplaceInbound(turn=turn, inbound=said):
                if self.open_message(turn).state is not InboxState.RECEIVED:
                    raise WrongState
                self.inbox[turn].text = said.text
            case AppendEntries(session=session, first_seq=first, lines=lines):
                for seq, line in enumerate(lines, first):
                    if self.notes.setdefault((session, seq), line) != line:
                        raise Conflict
            case AddToOutbox(key=key, message=said):
                if key in self.outbox:
                    raise Duplicate
                self.outbox[key] = Reply(said.text)
            case MarkSending(key=key):
                self.reply(key).move(OutboxState.SENDING, frm=_OPEN_OUT)
            case MarkDelivered(key=key):
                self.reply(key).move(OutboxState.DELIVERED, frm=_OPEN_OUT)
            case RetryLater(key=key, reason=reason):
                self.reply(key).move(OutboxState.PENDING, frm=(OutboxState.SENDING,), reason=reason)
                self.outbox[key].attempts += 1
            case MarkDead(key=key, reason=reason):
                self.reply(key).move(OutboxState.DEAD, frm=_OPEN_OUT, reason=reason)
            case RetryDead(key=key):
                self.reply(key).move(OutboxState.PENDING, frm=(OutboxState.DEAD,), reason="")
                self.outbox[key].attempts = 0
            case DropDeadReply(key=key):
                self.reply(key).move(OutboxState.DEAD, frm=(OutboxState.DEAD,))
                del self.outbox[key]
            case DropDeadMessage(turn=turn):
                if turn not in self.inbox or self.inbox[turn].state is not InboxState.DEAD:
                    raise WrongState
                self.inbox[turn].state = InboxState.ABANDONED
            case SaveDraft(turn=turn):
                self.drafts.add(turn)
            case DeleteDraft(turn=turn):
                self.drafts.discard(turn)
            case SetFact(name=name, value=None):
                self.facts.pop(name, None)
            case SetFact(name=name, value=str(value)):
                self.facts[name] = value

    def settle(self, turn: str, state: InboxState) -> None:
        message = self.open_message(turn)
        has_started = message.state is not InboxState.RECEIVED
        if state is InboxState.RECEIVED or (state is InboxState.WAITING and message.state is not InboxState.RUNNING):
            raise WrongState
        assert has_started or state is not InboxState.WAITING
        message.state = state


class Walk:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._model = Model()
        self._numbers = count()
        self._opened: list[Spool] = []

    async def run(self, walk: list[list[list[Operation]] | None]) -> None:
        self._opened.append(await Spool.open(self._directory))
        for step in walk:
            if step is None:
                await self._kill()
            else:
                await self._commit(step)
        await self._kill()
        for spool in self._opened:
            await spool.close()

    async def _commit(self, step: list[list[Operation]]) -> None:
        outcomes = await asyncio.gather(*(self._opened[-1].commit(*call) for call in step), return_exceptions=True)
        expected = [self._expect(call) for call in step]
        assert [None if outcome is None else type(outcome) for outcome in outcomes] == expected

    def _expect(self, call: list[Operation]) -> type[CommitRefused] | None:
        before = deepcopy(self._model)
        try:
            for operation in call:
                self._model.apply(operation)
        except CommitRefused as refusal:
            self._model = before
            return type(refusal)
        return None

    async def _kill(self) -> None:
        """Go on with what is on disk, twice: looking at it must not change it."""
        directory = copied(self._opened[-1].path, self._directory / str(next(self._numbers)))
        self._opened.append(await Spool.open(directory))
        await self._check()
        await self._check()

    async def _check(self) -> None:
        model, spool = self._model, self._opened[-1]
        found = await spool.recover()
        assert {row.turn: Message(row.inbound.text, row.state, row.attempts) for row in found.inbox} == {
            turn: message for turn, message in model.inbox.items() if message.state in _OPEN_IN
        }
        assert {row.key: Reply(row.message.text, row.state, row.attempts, row.reason) for row in found.outbox} == {
            key: reply for key, reply in model.outbox.items() if reply.state in _OPEN_OUT
        }
        assert [row.turn for row in found.inbox] == [
            turn for turn in model.inbox if turn in {r.turn for r in found.inbox}
        ]
        assert [row.key for row in found.outbox] == [
            key for key in model.outbox if key in {r.key for r in found.outbox}
        ]
        assert (set(found.drafts), await spool.facts()) == (model.drafts, model.facts)
        assert (await spool.stats()).seen == len(model.seen)
        noted = {(session, seq): line async for session, entries in spool.unflushed_entries() for seq, line in entries}
        assert noted == model.notes


@settings(max_examples=40, deadline=None)
@given(steps)
def test_committed_operations_are_recovered(walk: list[list[list[Operation]] | None]) -> None:
    with TemporaryDirectory() as directory:
        asyncio.run(Walk(Path(directory)).run(walk))
