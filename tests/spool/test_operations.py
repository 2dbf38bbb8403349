from itertools import product

import pytest
from msgspec.structs import replace

from gateway.contract import Receipt
from gateway.spool import (
    AppendEntries,
    Conflict,
    DeleteDraft,
    Duplicate,
    InboxState,
    MarkDead,
    MarkDelivered,
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
from gateway.spool.rows import INBOX_MOVES, OUTBOX_MOVES
from tests.spool.conftest import Crash
from tests.spool.harness import change
from tests.spool.samples import HOUR, NOW, RECEIPT, accept, inbound, outbound, send, take

INBOX_PATHS: dict[InboxState, list[Operation]] = {
    InboxState.RECEIVED: [],
    InboxState.RUNNING: [StartTurn(turn="t1")],
    InboxState.WAITING: [StartTurn(turn="t1"), SetInboxState(turn="t1", state=InboxState.WAITING)],
    InboxState.ANSWERED: [SetInboxState(turn="t1", state=InboxState.ANSWERED)],
    InboxState.ABANDONED: [SetInboxState(turn="t1", state=InboxState.ABANDONED)],
    InboxState.DEAD: [SetInboxState(turn="t1", state=InboxState.DEAD)],
}
OUTBOX_PATHS: dict[OutboxState, list[Operation]] = {
    OutboxState.PENDING: [],
    OutboxState.SENDING: [MarkSending(key="k1", at=NOW)],
    OutboxState.DELIVERED: [MarkSending(key="k1", at=NOW), MarkDelivered(key="k1", receipt=RECEIPT, at=NOW)],
    OutboxState.DEAD: [MarkDead(key="k1", reason="gone")],
}
OUTBOX_STEPS: dict[OutboxState, list[Operation]] = {
    OutboxState.PENDING: [RetryLater(key="k1", reason="later"), RetryDead(key="k1")],
    OutboxState.SENDING: [MarkSending(key="k1", at=NOW)],
    OutboxState.DELIVERED: [MarkDelivered(key="k1", receipt=RECEIPT, at=NOW)],
    OutboxState.DEAD: [MarkDead(key="k1", reason="gone")],
}


async def test_a_turn_started_at_once_counts_as_an_attempt(spool: Spool, crash: Crash) -> None:
    await spool.commit(take(), replace(accept(), is_started=True))
    (row,) = (await (await crash()).recover()).inbox
    assert (row.state, row.attempts) == (InboxState.RUNNING, 1)


async def test_an_accepted_message_is_recovered_unchanged(spool: Spool, crash: Crash) -> None:
    await spool.commit(take(), accept(text="ä\u2029\x7f😀"))
    (row,) = (await (await crash()).recover()).inbox
    assert row.inbound == inbound("ä\u2029\x7f😀")
    assert (row.turn, row.scope, row.session, row.number, row.agent) == ("t1", "s", "s#2", 2, "main")
    assert (row.state, row.accepted_at, row.attempts) == (InboxState.RECEIVED, NOW, 0)


async def test_a_reply_is_recovered_unchanged(spool: Spool, crash: Crash) -> None:
    await spool.commit(send(text="**bold**"), MarkSending(key="k1", at=NOW + HOUR))
    (row,) = (await (await crash()).recover()).outbox
    assert row.message == outbound("**bold**")
    assert (row.key, row.turn, row.state, row.created_at) == ("k1", "t1", OutboxState.SENDING, NOW)
    assert row.sending_at == NOW + HOUR


async def test_an_event_is_accepted_once_even_after_a_restart(spool: Spool, crash: Crash) -> None:
    await spool.commit(take(), accept())
    for opened in (spool, await crash()):
        with pytest.raises(Duplicate):
            await opened.commit(take(), accept("t2"))
        assert [row.turn for row in (await opened.recover()).inbox] == ["t1"]


async def test_event_ids_belong_to_their_account(spool: Spool) -> None:
    await spool.commit(take())
    await spool.commit(replace(take(), account="second"))
    await spool.commit(replace(take(), channel="other"))
    assert (await spool.stats()).seen == 3


async def test_a_refused_commit_stores_nothing(spool: Spool) -> None:
    await spool.commit(accept())
    with pytest.raises(Duplicate):
        await spool.commit(SetFact(name="a", value="1"), take(), send(), accept())
    found = await spool.recover()
    assert (await spool.facts(), found.outbox, (await spool.stats()).seen) == ({}, (), 0)


async def test_a_turn_and_a_key_can_be_added_once(spool: Spool) -> None:
    await spool.commit(accept(), send())
    with pytest.raises(Duplicate):
        await spool.commit(accept())
    with pytest.raises(Duplicate):
        await spool.commit(send())


@pytest.mark.parametrize(("source", "target"), list(product(InboxState, InboxState)))
async def test_a_message_changes_state_only_as_allowed(spool: Spool, source: InboxState, target: InboxState) -> None:
    await spool.commit(accept(), *INBOX_PATHS[source])
    settle = SetInboxState(turn="t1", state=target)
    if target in INBOX_MOVES[source]:
        await spool.commit(settle)
    else:
        with pytest.raises(WrongState, match=source):
            await spool.commit(settle)


@pytest.mark.parametrize(("source", "target"), list(product(OutboxState, OutboxState)))
async def test_a_reply_changes_state_only_as_allowed(spool: Spool, source: OutboxState, target: OutboxState) -> None:
    await spool.commit(send(), *OUTBOX_PATHS[source])
    moved = 0
    for step in OUTBOX_STEPS[target]:
        try:
            await spool.commit(step)
        except WrongState:
            continue
        moved += 1
    assert moved == (target in OUTBOX_MOVES[source])


async def test_an_unknown_row_is_in_the_wrong_state(spool: Spool) -> None:
    with pytest.raises(WrongState, match="unknown"):
        await spool.commit(StartTurn(turn="t9"))


async def test_each_start_counts_until_the_attempts_are_reset(spool: Spool) -> None:
    await spool.commit(accept(), StartTurn(turn="t1"))
    await spool.commit(StartTurn(turn="t1"))
    assert (await spool.recover()).inbox[0].attempts == 2
    await spool.commit(ResetAttempts(turn="t1"))
    assert (await spool.recover()).inbox[0].attempts == 0


async def test_several_messages_can_share_one_answer(spool: Spool) -> None:
    await spool.commit(accept("t1"), accept("t2"), StartTurn(turn="t2"))
    await spool.commit(
        SetInboxState(turn="t2", state=InboxState.ANSWERED),
        SetInboxState(turn="t1", state=InboxState.ANSWERED, answered_by="t2"),
        send(),
    )
    found = await spool.recover()
    assert (found.inbox, len(found.outbox)) == ((), 1)


async def test_an_edit_is_stored_until_the_turn_starts(spool: Spool) -> None:
    await spool.commit(accept())
    await spool.commit(ReplaceInbound(turn="t1", inbound=inbound("better")))
    await spool.commit(StartTurn(turn="t1"))
    with pytest.raises(WrongState):
        await spool.commit(ReplaceInbound(turn="t1", inbound=inbound("too late")))
    assert (await spool.recover()).inbox[0].inbound.text == "better"


async def test_a_retried_reply_keeps_its_reason_and_attempts(spool: Spool) -> None:
    await spool.commit(send(), MarkSending(key="k1", at=NOW), RetryLater(key="k1", reason="429"))
    (row,) = (await spool.recover()).outbox
    assert (row.state, row.attempts, row.reason) == (OutboxState.PENDING, 1, "429")


async def test_a_dead_reply_is_listed_and_can_be_retried_in_its_place(spool: Spool) -> None:
    await spool.commit(send("k1"), send("k2"), MarkDead(key="k1", reason="chat gone"))
    assert [row.key for row in (await spool.recover()).outbox] == ["k2"]
    assert [(row.key, row.reason) for row in (await spool.listing()).outbox] == [("k1", "chat gone"), ("k2", "")]
    await spool.commit(RetryDead(key="k1"))
    assert [row.key for row in (await spool.recover()).outbox] == ["k1", "k2"]


async def test_entries_appended_twice_are_stored_once(file_spool: Spool) -> None:
    await file_spool.commit(AppendEntries(session="s", first_seq=1, lines=(b"a\n", b"b\n")))
    await file_spool.commit(AppendEntries(session="s", first_seq=2, lines=(b"b\n", b"c\n")))
    assert [part async for part in file_spool.unflushed_entries()] == [("s", [(1, b"a\n"), (2, b"b\n"), (3, b"c\n")])]


async def test_different_bytes_for_a_seq_refuse_the_whole_commit(file_spool: Spool) -> None:
    await file_spool.commit(AppendEntries(session="s", first_seq=2, lines=(b"b\n",)))
    with pytest.raises(Conflict):
        await file_spool.commit(AppendEntries(session="s", first_seq=1, lines=(b"a\n", b"x\n", b"c\n")))
    assert [part async for part in file_spool.unflushed_entries()] == [("s", [(2, b"b\n")])]


async def test_many_entries_come_in_parts_and_in_order(file_spool: Spool) -> None:
    lines = tuple(b"%d\n" % number for number in range(1_200))
    await file_spool.commit(*(AppendEntries(session=session, first_seq=0, lines=lines) for session in ("b", "a")))
    parts = [part async for part in file_spool.unflushed_entries()]
    assert max(len(entries) for _, entries in parts) < 1_200
    for session in ("a", "b"):
        assert [entry for name, entries in parts if name == session for entry in entries] == list(enumerate(lines))
    assert [name for name, _ in parts] == sorted(name for name, _ in parts)


async def test_flushed_entries_are_dropped(file_spool: Spool) -> None:
    for session in ("a", "b"):
        await file_spool.commit(AppendEntries(session=session, first_seq=1, lines=(b"1\n", b"2\n", b"3\n")))
    await file_spool.drop_entries({"a": 2, "b": 3, "c": 9})
    assert [part async for part in file_spool.unflushed_entries()] == [("a", [(3, b"3\n")])]


async def test_many_entries_are_dropped_in_several_steps(file_spool: Spool) -> None:
    sessions = [f"s{number}" for number in range(3)]
    lines = tuple(b"%d\n" % number for number in range(1_000))
    await file_spool.commit(*(AppendEntries(session=session, first_seq=1, lines=lines) for session in sessions))
    before = file_spool.transactions
    await file_spool.drop_entries(dict.fromkeys(sessions, 999))
    assert file_spool.transactions > before + 3
    assert [part async for part in file_spool.unflushed_entries()] == [
        (session, [(1_000, lines[-1])]) for session in sessions
    ]


async def test_the_newest_draft_of_a_turn_is_kept_until_it_is_deleted(spool: Spool) -> None:
    await spool.commit(SaveDraft(turn="t1", receipt=Receipt(message_id="m0"), at=NOW))
    await spool.commit(SaveDraft(turn="t1", receipt=RECEIPT, at=NOW))
    assert (await spool.recover()).drafts == {"t1": RECEIPT}
    await spool.commit(DeleteDraft(turn="t1"))
    assert (await spool.recover()).drafts == {}


async def test_facts_are_kept_until_they_are_deleted(spool: Spool, crash: Crash) -> None:
    await spool.commit(SetFact(name="restarted_by", value="ann"), SetFact(name="b", value="1"))
    await spool.commit(SetFact(name="restarted_by", value="bob"), SetFact(name="b", value=None))
    stored = await crash()
    assert await stored.facts() == {"restarted_by": "bob"}


async def test_facts_are_found_by_their_prefix(spool: Spool) -> None:
    names = ["guests", "guests-", "guests/", "guests/in/ann", "guests/\u00fc", "guests/\U0010ffff", "guests0", "h"]
    await spool.commit(*(SetFact(name=name, value="1") for name in names))
    assert sorted(await spool.facts("guests/")) == ["guests/", "guests/in/ann", "guests/\u00fc", "guests/\U0010ffff"]


async def test_unreadable_rows_become_dead_and_are_kept(spool: Spool, crash: Crash) -> None:
    await spool.commit(accept("t1"), accept("t2"), send("k1"), send("k2"))
    for statement in (
        "UPDATE inbox SET inbound = '{\"newer\": true}' WHERE turn = 't1'",
        "UPDATE outbox SET state = 'held' WHERE key = 'k1'",
        "UPDATE outbox SET message = 'garbage' WHERE key = 'k2'",
    ):
        await change(spool, statement)
    opened = await crash()
    found = await opened.recover()
    assert [row.turn for row in found.inbox] == ["t2"]
    assert set(found.unreadable) == {"t1", "k2"}
    assert (await opened.recover()).unreadable == ()
    assert set((await opened.listing()).unreadable) == {"t1", "k1", "k2"}


async def test_stats_count_unfinished_rows(spool: Spool) -> None:
    await spool.commit(take(), accept("t1"), accept("t2"), send(), SetInboxState(turn="t2", state=InboxState.ANSWERED))
    stats = await spool.stats()
    assert (stats.inbox, stats.outbox) == ({InboxState.RECEIVED: 1}, {OutboxState.PENDING: 1})
    assert stats.seen == 1
    assert 0 < stats.file_bytes < 1_000_000, "what the log is given beforehand is not counted"
