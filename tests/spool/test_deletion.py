"""The text of a deleted session leaves every row at once, and the whole file with the purge."""

import os
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.contract import Quote
from gateway.spool import (
    AppendEntries,
    DeleteSession,
    DropEntries,
    InboxState,
    MarkDead,
    MarkDelivered,
    OutboxState,
    SaveDraft,
    SetInboxState,
    Spool,
    StartTurn,
)
from gateway.spool.deletion import ERASED, SESSION_DELETED
from tests.spool.conftest import Crash
from tests.spool.samples import ANN, NOW, RECEIPT, accept, inbound, send

MARK = b"xylophone"
DELETION = DeleteSession(session="s#2", scope="s")


def traces(path: Path) -> dict[str, int]:
    """Return how often the word appears in each file of the spool."""
    counts = {file.name: file.read_bytes().count(MARK) for file in path.parent.glob(f"{path.name}*")}
    return {name: count for name, count in counts.items() if count}


async def talk(spool: Spool, *, turns: int = 1) -> None:
    """Answer messages of the session in which the word appears everywhere."""
    for number in range(turns):
        turn = f"t{number}"
        asked = replace(inbound("a xylophone", f"e{turn}"), quotes=Quote(author="bob", text="xylophone"))
        await spool.commit(
            replace(accept(turn), inbound=asked, is_started=True),
        )
        await spool.commit(
            SetInboxState(turn=turn, state=InboxState.ANSWERED), replace(send(turn, "your xylophone"), turn=turn)
        )
        await spool.commit(MarkDelivered(key=turn, receipt=RECEIPT, at=NOW), SaveDraft(turn=turn, receipt=None, at=NOW))


@pytest.mark.parametrize("seed", range(4))
async def test_a_purge_leaves_no_copy_of_the_text_in_any_file(file_spool: Spool, seed: int) -> None:
    """Rows of other sessions move rows of this one from page to page, so that SQLite leaves copies in the gaps."""
    chance = random.Random(seed)  # noqa: S311 - the same text for the same seed
    for number in range(300):
        session = chance.choice(["r#1", "s#2", "t#3"])
        word = "xylophone" if session == "s#2" else "trumpet"
        text = word + os.urandom(chance.randrange(20, 700)).hex()
        turn = f"t{number}"
        await file_spool.commit(
            replace(accept(turn), inbound=inbound(text, turn), scope=session[0], session=session),
            AppendEntries(session=session, first_seq=number + 1, lines=(text.encode(),)),
            replace(send(turn, text), turn=turn),
            SetInboxState(turn=turn, state=InboxState.ANSWERED),
        )
        if number % 20 == 0:
            await file_spool.drop_entries({"s#2": number - 5, "r#1": number})
        if number % 3 == 0:
            await file_spool.commit(MarkDelivered(key=turn, receipt=RECEIPT, at=NOW))
    assert traces(file_spool.path)
    undelivered = [row.key for row in (await file_spool.listing()).outbox]
    await file_spool.commit(*(MarkDelivered(key=key, receipt=RECEIPT, at=NOW) for key in undelivered))
    await file_spool.commit(DELETION, DropEntries(session="s#2"))
    assert await file_spool.purge(["s#2"]) == ["s#2"]
    assert traces(file_spool.path) == {}
    assert b"trumpet" in file_spool.path.read_bytes(), "other sessions keep their text"
    assert await file_spool.deletions() == []


async def test_copies_of_the_spool_that_name_the_session_are_deleted_with_it(file_spool: Spool) -> None:
    for name, text in {"corrupt-1": "s#2", "version-3": "s#2", "version-2": "another"}.items():
        file_spool.path.with_name(f"spool.db.{name}").write_text(text)
    await file_spool.commit(DELETION)
    await file_spool.purge(["s#2"])
    left = {path.name for path in file_spool.path.parent.glob("spool.db.*")}
    assert left == {"spool.db.version-2"}


async def test_a_message_of_a_deleted_session_is_still_known(spool: Spool) -> None:
    """An edit of it must not count as a new message."""
    await talk(spool)
    await spool.commit(DELETION)
    row = await spool.find_message(ANN, "et0")
    assert row is not None
    assert (row.turn, row.state, row.inbound.text) == ("t0", InboxState.ANSWERED, "")


async def test_an_open_message_of_a_deleted_session_keeps_its_state(spool: Spool, crash: Crash) -> None:
    await spool.commit(accept("t1", "a xylophone"))
    await spool.commit(StartTurn(turn="t1"), DELETION)
    (row,) = (await (await crash()).recover()).inbox
    assert (row.turn, row.state, row.inbound.text, row.note) == ("t1", InboxState.RUNNING, "", SESSION_DELETED)


async def test_undelivered_replies_of_a_deleted_session_lose_their_text(spool: Spool, crash: Crash) -> None:
    await spool.commit(accept("t1"), accept("t2"), replace(accept("t3"), session="s#3", number=3))
    for turn in ("t1", "t2", "t3"):
        await spool.commit(replace(send(turn, "a xylophone"), turn=turn))
    await spool.commit(MarkDead(key="t2", reason="the chat is gone"))
    assert await spool.undelivered_turns("s#2") == {"t1"}
    await spool.commit(DELETION)
    left = {row.key: row.message.text for row in (await (await crash()).listing()).outbox}
    assert left == {"t1": ERASED, "t3": "a xylophone"}


async def test_dead_notices_are_deleted_where_they_may_quote_the_session(spool: Spool) -> None:
    """The answer to a command, such as `/history`, does not say which sessions it shows."""
    elsewhere = replace(send("n2").message, address=replace(ANN, peer="bob"))
    await spool.commit(accept("t1"), replace(send("n1", "a xylophone"), turn=None))
    await spool.commit(replace(send("n2"), turn=None, message=elsewhere))
    await spool.commit(*(MarkDead(key=key, reason="refused") for key in ("n1", "n2")), DELETION)
    assert [row.key for row in (await spool.listing()).outbox] == ["n2"]


async def test_a_notice_that_waits_at_the_deletion_is_purged_once_it_is_sent(spool: Spool) -> None:
    await spool.commit(accept("t1"), replace(send("n1", "a xylophone"), turn=None))
    await spool.commit(DELETION)
    assert await spool.purge(["s#2"]) == []
    changes = spool.transactions
    assert await spool.purge(["s#2"]) == []
    assert spool.transactions <= changes + 1, "nothing has changed, so nothing is purged"
    await spool.commit(MarkDelivered(key="n1", receipt=RECEIPT, at=NOW))
    assert await spool.purge(["s#2"]) == ["s#2"]
    assert traces(spool.path) == {}


async def test_a_notice_that_is_given_up_after_the_deletion_is_deleted(spool: Spool) -> None:
    elsewhere = replace(send("n2").message, address=replace(ANN, peer="bob"))
    await spool.commit(accept("t1"), replace(send("n1", "a xylophone"), turn=None))
    await spool.commit(replace(send("n2"), turn=None, message=elsewhere), DELETION)
    assert await spool.purge(["s#2"]) == []
    await spool.commit(*(MarkDead(key=key, reason="gave up after a day") for key in ("n1", "n2")))
    assert await spool.purge(["s#2"]) == ["s#2"]
    assert [row.key for row in (await spool.listing()).outbox] == ["n2"]
    assert traces(spool.path) == {}


async def test_a_delivered_reply_is_kept_without_its_text(spool: Spool) -> None:
    await talk(spool)
    ((state, message),) = await spool._writer.run(  # noqa: SLF001 - the text is not shown anywhere
        lambda connection: connection.execute("SELECT state, message FROM outbox").fetchall()
    )
    assert (state, message) in [(OutboxState.DELIVERED, "{}"), (OutboxState.DELIVERED, b"{}")]
