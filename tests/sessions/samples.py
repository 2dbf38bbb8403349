"""Entries for tests, stamped as the session store does it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from gateway.conversation import Message, ToolMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.codec import encode, stamp

START = datetime(2026, 3, 1, tzinfo=UTC)
SCOPE = "agent:main:web:direct:ann"

texts = st.text(max_size=30)
tool_ids = st.sampled_from(["a", "b", "c"])
turns = st.none() | st.sampled_from(["t1", "t2", "t3"])
counts = st.integers(min_value=0, max_value=40)
times = st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1), max_value=datetime(2200, 1, 1))  # noqa: DTZ001 - hypothesis wants them naive.
states = st.builds(
    SessionState,
    number=counts,
    agent=texts,
    created_at=times,
    updated_at=times,
    last_accessed=times,
    seq=counts,
    epoch=counts,
    highest_number=counts,
    title=texts,
    messages=counts,
    status=st.sampled_from(SessionStatus),
)
inputs = st.dictionaries(texts, texts | counts | st.lists(texts, max_size=3), max_size=3)

conversation = st.one_of(
    st.builds(e.User, content=texts, turn=turns, sender=texts, event_id=st.none() | texts),
    st.builds(e.Assistant, content=texts, turn=turns, usage=st.none() | st.builds(e.Usage, input_tokens=counts)),
    st.builds(e.ToolUse, tool_use_id=tool_ids, name=texts, input=inputs, turn=turns),
    st.builds(e.ToolResult, tool_use_id=tool_ids, output=texts, is_error=st.booleans(), turn=turns),
)
marks = st.one_of(
    st.builds(e.System, content=texts, is_failure=st.booleans(), turn=turns),
    st.builds(e.Plan, steps=st.tuples(st.builds(e.PlanStep, content=texts, status=texts))),
    st.builds(e.Approval, approval_id=texts, question=texts, decision=st.none() | texts),
    st.builds(e.Edit, event_id=texts, content=texts),
    st.builds(e.Summary, content=texts, from_seq=counts, covers=counts),
    st.builds(e.Clear),
    st.builds(e.Undo, undone=st.sampled_from(["t1", "t2", "t3"]), first=counts, messages=counts),
    st.builds(e.Title, value=texts),
    st.builds(e.Workspace, value=texts),
    st.builds(e.Agent, value=texts),
    st.builds(e.Model, value=texts),
    st.builds(e.Status, value=st.sampled_from(SessionStatus), by=texts, why=texts),
    st.builds(e.Activated, key=st.just(SCOPE), epoch=counts, highest_number=counts),
    st.builds(e.TurnEnd, outcome=st.sampled_from(TurnOutcome), reason=texts),
    st.builds(e.Checkpoint, key=st.just(SCOPE), state=states),
)


def header(key: str = SCOPE, number: int = 1, version: int = e.FORMAT) -> e.Header:
    return e.Header(
        version=version,
        id="5f0c",
        key=key,
        scope=SCOPE,
        number=number,
        created=START,
        agent="main",
        origin=e.Origin(channel="web", account="default", chat_id="ann", kind="direct"),
        epoch=number,
        highest_number=number,
    )


def sealed(entries: Sequence[Entry]) -> list[Entry]:
    return [stamp(entry, seq=seq, now=START + timedelta(seconds=seq))[0] for seq, entry in enumerate(entries, 1)]


def encoded(entries: Sequence[Entry]) -> bytes:
    return b"".join(encode(entry) for entry in sealed(entries))


def dialogue(turns: int) -> list[Entry]:
    """Return a header and `turns` turns of question, tool call and answer."""
    said: list[Entry] = [header(), e.Activated(key=SCOPE, epoch=1, highest_number=1)]
    for turn in (f"t{number}" for number in range(1, turns + 1)):
        said += [
            e.User(content=f"question of {turn}", turn=turn),
            e.ToolUse(tool_use_id="call", name="time", input={}, turn=turn),
            e.ToolResult(tool_use_id="call", output="noon", turn=turn),
            e.Assistant(content=f"answer of {turn}", turn=turn),
            e.TurnEnd(outcome=TurnOutcome.ANSWERED, turn=turn),
        ]
    return said


transcripts = st.lists(conversation | conversation | marks, max_size=60).map(lambda said: sealed([header(), *said]))


def texts_of(messages: list[Message]) -> list[str]:
    return [message.text for message in messages if not isinstance(message, ToolMessage)]
