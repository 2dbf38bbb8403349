"""Reading the end of a session gives the same as reading all of it, and the same as a naive model."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.conversation import ToolMessage
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry, TurnOutcome
from gateway.sessions.history import current_summary, history_for_model, undo_last_turn, visible_lines
from gateway.sessions.keys import file_name
from gateway.sessions.recovery import state_from
from gateway.sessions.session import fold
from gateway.sessions.storage import transcript
from gateway.sessions.storage.codec import encode, stamp
from gateway.sessions.storage.tail import EnoughForHistory, EnoughForLines, EnoughForState, StopCondition
from tests.sessions.samples import SCOPE, START, header

Step = tuple[str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(["turn", "turn", "turn", "tools", "undo", "clear", "summary", "wrong summary", "checkpoint"]),
        st.integers(min_value=0, max_value=9),
    ),
    max_size=40,
)


@dataclass
class Telling:
    """Builds a transcript as the gateway does, and keeps the effective entries in the simplest way."""

    entries: list[Entry] = field(default_factory=list)
    counting: list[tuple[str, list[Entry]]] = field(default_factory=list)
    """Turns and their entries."""
    summaries: list[e.Summary] = field(default_factory=list)

    def write(self, *entries: Entry) -> list[Entry]:
        first = len(self.entries) + 1
        sealed = [stamp(entry, seq=seq, now=START)[0] for seq, entry in enumerate(entries, first)]
        self.entries += sealed
        return sealed

    def step(self, what: str, number: int) -> None:
        match what:
            case "turn" | "tools":
                self._turn(number if what == "tools" else 0)
            case "undo" if self.counting:
                self._undo()
            case "clear":
                self.write(e.Clear())
                self.counting, self.summaries = [], []
            case "summary" if self.counting:
                covers = self.counting[number % len(self.counting)][1][-1].seq
                first = self.counting[number % 2 % len(self.counting)][1][0].seq
                if first <= covers:
                    self.summaries += self._summary(first, covers)
            case "wrong summary" if self.counting and len(self.counting[-1][1]) > 1:
                self._summary(1 if number % 2 else 99_999, self.counting[-1][1][0].seq)
            case "checkpoint":
                self.write(e.Checkpoint(key=SCOPE, state=fold(self.entries), summary=current_summary(self.entries)))

    def _turn(self, tools: int) -> None:
        turn = f"t{len(self.entries)}"
        said: list[Entry] = [e.User(content=f"question {turn}", turn=turn)]
        for tool in range(tools):
            said.append(e.ToolUse(tool_use_id=str(tool), name="x", input={}, turn=turn))
            said.append(e.ToolResult(tool_use_id=str(tool), output="ok", turn=turn))
        said += [e.Assistant(content=f"answer {turn}", turn=turn), e.TurnEnd(outcome=TurnOutcome.ANSWERED, turn=turn)]
        self.counting.append((turn, self.write(*said)))

    def _undo(self) -> None:
        turn, undone = self.counting.pop()
        undo = undo_last_turn(self.entries)
        assert undo is not None
        assert undo.undone == turn
        self.write(undo)
        self.summaries = [kept for kept in self.summaries if not kept.from_seq <= undone[0].seq <= kept.covers]

    def _summary(self, first: int, covers: int) -> list[e.Summary]:
        made = self.write(e.Summary(content=f"summary {len(self.entries)}", from_seq=first, covers=covers))
        return [entry for entry in made if isinstance(entry, e.Summary)]

    def spoken(self) -> list[e.User | e.Assistant]:
        said = [entry for _, entries in self.counting for entry in entries]
        return [entry for entry in said if isinstance(entry, e.User | e.Assistant)]

    def texts(self) -> list[str]:
        """Return the effective entries in the order in which the model sees them."""
        spoken = self.spoken()
        if not self.summaries:
            return [entry.content for entry in spoken]
        newest = self.summaries[-1]
        before = [entry.content for entry in spoken if entry.seq < newest.from_seq]
        after = [entry.content for entry in spoken if entry.seq > newest.covers]
        return [*before, f"[Summary of the earlier conversation]\n\n{newest.content}", *after]


def told(made: Sequence[Step]) -> Telling:
    telling = Telling()
    telling.write(header(), e.Activated(key=SCOPE, epoch=1, highest_number=1))
    for what, number in made:
        telling.step(what, number)
    return telling


def tail(entries: Sequence[Entry], enough: StopCondition) -> list[Entry]:
    kept: list[Entry] = []
    for entry in reversed(entries):
        kept.append(entry)
        enough.add(entry)
        if enough.is_enough:
            break
    return kept[::-1]


@given(steps)
def test_history_matches_a_naive_model(made: list[Step]) -> None:
    telling = told(made)
    messages = history_for_model(telling.entries, 10_000)
    texts = [message.text for message in messages if not isinstance(message, ToolMessage)]
    assert [text for text in texts if text] == telling.texts()
    assert [line.text for line in visible_lines(telling.entries, 10_000)] == [
        entry.content for entry in telling.spoken()
    ]


@given(steps, st.integers(min_value=1, max_value=12))
@example([("turn", 0), ("summary", 0), ("checkpoint", 0), ("turn", 0), ("undo", 0), ("undo", 0)], 2)
@example([("turn", 0), ("turn", 0), ("summary", 1), ("turn", 0), ("wrong summary", 1), ("turn", 0)], 2)
def test_a_tail_is_enough_for_the_history(made: list[Step], size: int) -> None:
    entries = told(made).entries
    end = tail(entries, EnoughForHistory(size, fold(entries)))
    assert history_for_model(end, size) == history_for_model(entries, size)
    turn = next((entry.turn for entry in reversed(entries) if entry.turn), None)
    assert history_for_model(end, size, turn=turn) == history_for_model(entries, size, turn=turn)
    assert undo_last_turn(end) == undo_last_turn(entries)


@given(steps, st.integers(min_value=1, max_value=20))
def test_a_tail_is_enough_for_the_visible_lines(made: list[Step], limit: int) -> None:
    entries = told(made).entries
    assert visible_lines(tail(entries, EnoughForLines(limit)), limit) == visible_lines(entries, limit)


@given(steps)
def test_a_tail_is_enough_for_the_state(made: list[Step]) -> None:
    telling = told(made)
    with TemporaryDirectory() as folder:
        path = Path(folder) / file_name(SCOPE)
        path.touch(mode=0o600)
        path.write_bytes(b"".join(map(encode, telling.entries)))
        reading = transcript.read(path, EnoughForState(lambda key: key == SCOPE))
        assert state_from(reading) == msgspec.structs.replace(fold(telling.entries), size=path.stat().st_size)


def test_only_the_end_of_a_long_session_is_read() -> None:
    entries = told([("tools", 3), ("turn", 0)] * 500).entries
    assert len(tail(entries, EnoughForHistory(50, fold(entries)))) < 120


def test_the_part_covered_by_a_summary_is_not_read() -> None:
    entries = told([*[("turn", 0)] * 100, ("checkpoint", 0)]).entries
    first, last = entries[2].seq, entries[-2].seq
    more: list[Entry] = [e.Summary(content="all", from_seq=first, covers=last), e.User(content="next", turn="n")]
    entries += [stamp(entry, seq=len(entries) + at, now=START)[0] for at, entry in enumerate(more, 1)]
    assert len(tail(entries, EnoughForHistory(50, fold(entries)))) < 10
