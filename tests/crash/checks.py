"""What must hold after whatever has happened to a daemon, found out from its files and from what people saw."""

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.outbound.delivery import POSSIBLY_REPEATED
from gateway.sessions.storage.verify import verify
from tests.crash.far_side import FarSide, Shown
from tests.crash.order import Order

__all__ = ["Allowed", "check"]

Entry = dict[str, Any]  # Any: entries are of many shapes.

_READING = ("/history", "/session search", "/status")
_WHERE_IT_WAITED = "SELECT inbound ->> 'event_id', inbound ->> 'text', session FROM inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What is no fault after what was done to the daemon. `deaths`: how often it was killed.

    Each can leave one outcome unknown in each chat, since a chat has one send at a time.
    """

    deaths: int = 0
    lost_answers: int = 0
    undelivered: frozenset[str] = frozenset()
    """Chats in which nothing arrives."""

    @property
    def repeats(self) -> int:
        return self.deaths + self.lost_answers


def check(order: Order, far: FarSide, allowed: Allowed) -> None:
    """Raise with everything that does not hold. The daemon has ended in good order."""
    wrong = [
        *_of_spool(order.data_dir, far, allowed),
        *_of_chats(order.data_dir, far, allowed),
        *_of_transcripts(order.data_dir, far, allowed),
        *_of_tools(order),
        *_of_approvals(order),
        *_of_files(order.data_dir, allowed),
    ]
    assert not wrong, "\n".join(wrong)


def rows(data_dir: Path, statement: str) -> list[tuple[Any, ...]]:  # Any: as SQLite has them.
    with closing(sqlite3.connect(f"file:{data_dir / 'spool.db'}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


def _of_spool(data_dir: Path, far: FarSide, allowed: Allowed) -> Iterator[str]:
    """Everything accepted is there once, and nothing is left to be done."""
    inbox = rows(data_dir, "SELECT inbound ->> 'event_id', state, session FROM inbox ORDER BY id")
    accepted = Counter(event for event, _, _ in inbox)
    asked = {event.id for event in far.events if not event.is_command}
    seen = Counter(event for (event,) in rows(data_dir, "SELECT event_id FROM seen"))
    yield from (f"{event} was accepted {times} times" for event, times in accepted.items() if times != 1)
    yield from (f"{event} was never accepted" for event in asked - accepted.keys())
    yield from (f"{event} is {state}" for event, state, _ in inbox if state not in {"answered", "abandoned", "dead"})
    yield from (f"{event.id} was not remembered" for event in far.events if seen[event.id] != 1)
    for key, state, chat in rows(data_dir, "SELECT key, state, message ->> '$.address.peer' FROM outbox"):
        if state != "delivered" and chat not in allowed.undelivered:
            yield f"the reply {key} is {state}"
    for table in ("notes", "drafts"):
        if left := rows(data_dir, f"SELECT * FROM {table}"):  # noqa: S608 - constants only
            yield f"{table} are left: {left}"


def _of_chats(data_dir: Path, far: FarSide, allowed: Allowed) -> Iterator[str]:
    """Each message was answered once and in order; what was said again says so."""
    lanes = {event: _lane(text, session) for event, text, session in rows(data_dir, _WHERE_IT_WAITED)}
    yield from _of_repeats(far, allowed)
    for chat in {event.chat for event in far.events} - allowed.undelivered:
        yield from _of_order(far, chat, lanes)
    answers: defaultdict[str | None, set[str]] = defaultdict(set)
    for shown in (shown for shown in far.shown if not shown.buttons):
        answers[shown.reply_to].add(shown.key.split(".")[0])
    yield from (f"{mid} was answered by {keys}" for mid, keys in answers.items() if len(keys) > 1)
    dangling = Counter(shown.chat for shown in far.shown if shown.key.endswith(".draft") and not shown.is_last)
    yield from (f"{chat} has {n} drafts hanging" for chat, n in dangling.items() if n > allowed.repeats)


def _of_repeats(far: FarSide, allowed: Allowed) -> Iterator[str]:
    copies: defaultdict[str, list[Shown]] = defaultdict(list)
    for shown in far.shown:
        if not shown.key.endswith(".draft"):
            copies[shown.key].append(shown)
    repeated: Counter[str] = Counter()
    for key, same in copies.items():
        unmarked = [shown for shown in same if not shown.text.startswith(POSSIBLY_REPEATED)]
        repeated[same[0].chat] += len(same) - 1
        if len(unmarked) > 1:
            yield f"{key} was said {len(unmarked)} times without a mark: {unmarked[0].text!r}"
    for chat, times in repeated.items():
        if times > allowed.repeats:
            yield f"{chat} heard {times} messages again, where at most {allowed.repeats} outcomes were unknown"


def _lane(text: str, session: str) -> str:
    """Commands that read transcripts wait for each other, and for no turn."""
    return f"reading {session}" if text.startswith(_READING) else session


def _of_order(far: FarSide, chat: str, lanes: dict[str, str]) -> Iterator[str]:
    """Lanes of a chat may overtake each other; within one, answers come in the order of the questions."""
    heard = dict.fromkeys(shown.reply_to for shown in far.shown if shown.chat == chat)
    for name in {lanes[event.id] for event in far.events if event.chat == chat and event.id in lanes}:
        wanted = dict.fromkeys(event.id for event in far.events if lanes.get(event.id) == name)
        in_order = [mid for mid in heard if mid in wanted]
        if in_order != [mid for mid in wanted if mid in heard]:
            yield f"{chat} asked {list(wanted)} and heard {in_order}"


def transcripts(data_dir: Path) -> dict[str, list[Entry]]:
    return {
        path.name: [json.loads(line) for line in path.read_bytes().splitlines()]
        for path in sorted((data_dir / "sessions/transcripts").glob("*.jsonl"))
    }


@dataclass(frozen=True, slots=True)
class _Heard:
    """What is known of the messages, by their ids, and what was said in answer, by the turn."""

    place: dict[str, int]
    chat: dict[str, str]
    state: dict[str, str]
    session: dict[str, str]
    said: dict[str, dict[str, str]]


def _heard(data_dir: Path, far: FarSide) -> _Heard:
    said: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for shown in far.shown:
        key = shown.key.removesuffix(".draft")
        said[key.split(".")[0]][key] = shown.text.removeprefix(POSSIBLY_REPEATED)
    return _Heard(
        place={event.id: number for number, event in enumerate(far.events)},
        chat={event.id: event.chat for event in far.events},
        state=dict(rows(data_dir, "SELECT inbound ->> 'event_id', state FROM inbox")),
        session=dict(rows(data_dir, "SELECT inbound ->> 'event_id', session FROM inbox")),
        said=said,
    )


def _of_transcripts(data_dir: Path, far: FarSide, allowed: Allowed) -> Iterator[str]:
    heard = _heard(data_dir, far)
    written: Counter[str] = Counter()
    for name, entries in transcripts(data_dir).items():
        asked = [entry for entry in entries if entry["type"] == "user"]
        written.update(entry["event_id"] for entry in asked)
        places = [heard.place[entry["event_id"]] for entry in asked]
        if places != sorted(places):
            yield f"{name}: not in the order in which it was asked: {[entry['event_id'] for entry in asked]}"
        yield from (
            f"{entry['event_id']} is in {entries[0]['key']} and was bound to {heard.session[entry['event_id']]}"
            for entry in asked
            if entries[0]["key"] != heard.session[entry["event_id"]]
        )
        turns: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            turns[entry.get("turn", "")].append(entry)
        for entry in asked:
            yield from _of_turn(entry, turns[entry["turn"]], heard, allowed)
    retries = Counter(event.chat for event in far.events if event.text == "/retry")
    for event in far.events:
        is_answered = not event.is_command and heard.state.get(event.id) == "answered"
        if is_answered and not 1 <= written[event.id] <= 1 + retries[event.chat]:
            yield f"{event.id} is {written[event.id]} times in the transcripts"


def _of_turn(asked: Entry, turn: list[Entry], heard: _Heard, allowed: Allowed) -> Iterator[str]:
    ends = [entry["outcome"] for entry in turn if entry["type"] == "turn_end"]
    mid = asked["event_id"]
    if heard.state[mid] != "dead" and len(ends) != 1:
        yield f"{mid}: its turn ended {len(ends)} times"
    calls = Counter(entry["tool_use_id"] for entry in turn if entry["type"] == "tool_use")
    results = Counter(entry["tool_use_id"] for entry in turn if entry["type"] == "tool_result")
    if (ends == ["answered"] and calls != results) or any(times > 1 for times in (calls | results).values()):
        yield f"{mid}: {calls} were called and {results} have ended"
    if ends == ["answered"] and heard.chat[mid] not in allowed.undelivered:
        yield from _of_answer(asked, turn, heard.said[asked["turn"]])


def _of_answer(asked: Entry, turn: list[Entry], parts: dict[str, str]) -> Iterator[str]:
    written = " ".join(entry["content"] for entry in turn if entry["type"] == "assistant").split()
    ordered = sorted(parts, key=lambda key: int(key.partition(".")[2] or 0))
    shown = " ".join(parts[key] for key in ordered).split()
    if written != shown:
        yield f"{asked['event_id']}: the transcript has {written}, the chat {shown}"


def _of_tools(order: Order) -> Iterator[str]:
    """No tool ran twice, and each that is said to have ended well ran."""
    ran = Counter(order.effects.read_text().split()) if order.effects.exists() else Counter[str]()
    yield from (f"the tool {mark} ran {times} times" for mark, times in ran.items() if times > 1)
    for entries in transcripts(order.data_dir).values():
        for entry in entries:
            if entry["type"] == "tool_result" and not entry.get("is_error") and not ran[entry["tool_use_id"]]:
                yield f"the tool {entry['tool_use_id']} is said to have ended well, but never ran"


def _of_approvals(order: Order) -> Iterator[str]:
    """Nothing ran that nobody had agreed to, and each question was asked once and answered once."""
    ran = set(order.effects.read_text().split()) if order.effects.exists() else set()
    for entries in transcripts(order.data_dir).values():
        uses = {
            entry["tool_use_id"] for entry in entries if entry["type"] == "tool_use" if entry["name"] == "ask_leave"
        }
        approvals = [entry for entry in entries if entry["type"] == "approval"]
        decided = [(entry["tool_use_id"], entry["decision"]) for entry in approvals if "decision" in entry]
        asked = Counter(entry["tool_use_id"] for entry in approvals if "decision" not in entry)
        yield from (f"{call} ran without consent" for call in uses & ran if (call, "approved") not in decided)
        yield from (f"{call} was asked {times} times" for call, times in asked.items() if times > 1)
        if len({call for call, _ in decided}) != len(decided):
            yield f"a question has several answers: {decided}"


def _of_files(data_dir: Path, allowed: Allowed) -> Iterator[str]:
    report = verify(data_dir / "sessions/index.json", data_dir / "sessions/transcripts")
    for problem in report.problems:
        if problem.kind != "set_aside" or not allowed.deaths:
            yield f"{problem.kind} {problem.where}: {problem.detail}"
    # What is not whole yet has a name, or lies in a folder, that starts with a dot.
    half_written = [path for path in data_dir.rglob("*") if path.is_file() and "/." in f"/{path.relative_to(data_dir)}"]
    leftovers = [path.name for path in (*half_written, *data_dir.rglob("*.corrupt-*"))]
    yield from (f"left behind: {name}" for name in leftovers)
