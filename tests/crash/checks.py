"""Checks the promises of the gateway after any crash: compares its storage with the messages that people saw."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.outbound.delivery import POSSIBLY_REPEATED
from gateway.sessions.keys import file_name, parse_key, session_key
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.fake_platform import FakePlatform, Shown
from tests.crash.stored import Entry, inbox, outbox, places_with, rows, transcripts, verified

SECRET = "xylophone"
"""A word that appears only in sessions that are deleted."""
_DELETE = "/session delete "
_READING_COMMANDS = ("/history", "/session search", "/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """Deviations that are no fault. `deaths` is the number of kills.

    Each kill can leave one outcome unknown in each chat, because a chat has one send at a time.
    """

    deaths: int = 0
    lost_answers: int = 0
    undelivered: frozenset[str] = frozenset()
    """Chats that no message can reach."""

    @property
    def repeats(self) -> int:
        return self.deaths + self.lost_answers


def check(spec: DaemonSpec, platform: FakePlatform, allowed: Allowed) -> None:
    """Raise `AssertionError` with all broken promises. Call it after the last daemon was stopped, not killed."""
    problems = [
        *spool_problems(spec, platform, allowed),
        *_chat_problems(spec, platform, allowed),
        *_transcript_problems(spec, platform, allowed),
        *_tool_problems(spec),
        *_approval_problems(spec),
        *file_problems(spec, allowed),
        *_deletion_problems(spec, platform),
    ]
    assert not problems, "\n".join(problems)


def check_files_and_tools(spec: DaemonSpec, allowed: Allowed) -> None:
    """Raise `AssertionError` if files are damaged or left behind, or a tool ran twice or without approval."""
    problems = [*_tool_problems(spec), *_approval_problems(spec), *file_problems(spec, allowed)]
    assert not problems, "\n".join(problems)


def spool_problems(spec: DaemonSpec, platform: FakePlatform, allowed: Allowed) -> Iterator[str]:
    """Every message was accepted once, and no work is left."""
    found = inbox(spec)
    accepted = Counter(message.event for message in found)
    asked = {event.id for event in platform.events if not event.is_command}
    seen = Counter(event for (event,) in rows(spec, "SELECT event_id FROM seen"))
    yield from (f"{event} was accepted {times} times" for event, times in accepted.items() if times != 1)
    yield from (f"{event} was never accepted" for event in asked - accepted.keys())
    ends = {"answered", "abandoned", "dead"}
    yield from (f"{message.event} is {message.state}" for message in found if message.state not in ends)
    yield from (f"{event.id} was not remembered" for event in platform.events if seen[event.id] != 1)
    for reply in outbox(spec):
        if reply.state != "delivered" and reply.chat not in allowed.undelivered:
            yield f"the reply {reply.key} is {reply.state}"
    for table in ("drafts", "deletions", *(["notes"] if spec.has_files else [])):
        if left := rows(spec, f"SELECT * FROM {table}"):  # noqa: S608 - constants only
            yield f"{table} are left: {left}"


def _chat_problems(spec: DaemonSpec, platform: FakePlatform, allowed: Allowed) -> Iterator[str]:
    """Each message was answered once and in order. Repeated texts are marked."""
    lanes = {message.event: _lane(message.text, message.session) for message in inbox(spec)}
    yield from repeat_problems(platform, allowed)
    for chat in {event.chat for event in platform.events} - allowed.undelivered:
        yield from _order_problems(platform, chat, lanes)
    answers: defaultdict[str | None, set[str]] = defaultdict(set)
    for shown in (shown for shown in platform.shown if not shown.is_question):
        answers[shown.reply_to].add(shown.key.split(".")[0])
    yield from (f"{mid} was answered by {keys}" for mid, keys in answers.items() if len(keys) > 1)
    dangling = Counter(shown.chat for shown in platform.shown if shown.key.endswith(".draft") and not shown.is_last)
    yield from (f"{chat} has {n} unfinished drafts" for chat, n in dangling.items() if n > allowed.repeats)


def repeat_problems(platform: FakePlatform, allowed: Allowed) -> Iterator[str]:
    copies: defaultdict[str, list[Shown]] = defaultdict(list)
    for shown in platform.shown:
        if not shown.key.endswith(".draft"):
            copies[shown.key].append(shown)
    repeated: Counter[str] = Counter()
    for key, same in copies.items():
        unmarked = [shown for shown in same if not shown.text.startswith(POSSIBLY_REPEATED)]
        repeated[same[0].chat] += len(same) - 1
        if len(unmarked) > 1:
            yield f"{key} was sent {len(unmarked)} times without a mark: {unmarked[0].text!r}"
    for chat, times in repeated.items():
        if times > allowed.repeats:
            yield f"{chat} got {times} messages twice, but at most {allowed.repeats} outcomes were unknown"


def _lane(text: str, session: str) -> str:
    """Commands that read transcripts have their own lane, so they wait for each other but not for turns."""
    return f"reading {session}" if text.startswith(_READING_COMMANDS) else session


def _order_problems(platform: FakePlatform, chat: str, lanes: dict[str, str]) -> Iterator[str]:
    """Within a lane, answers come in the order of the questions. The lanes of a chat are independent."""
    answered = dict.fromkeys(shown.reply_to for shown in platform.shown if shown.chat == chat)
    for name in {lanes[event.id] for event in platform.events if event.chat == chat and event.id in lanes}:
        wanted = dict.fromkeys(event.id for event in platform.events if lanes.get(event.id) == name)
        in_order = [mid for mid in answered if mid in wanted]
        if in_order != [mid for mid in wanted if mid in answered]:
            yield f"{chat} asked {list(wanted)} and got answers to {in_order}"


@dataclass(frozen=True, slots=True)
class _Conversation:
    """Facts about each message by its id, and the texts of each answer by its turn."""

    place: dict[str, int]
    chat: dict[str, str]
    state: dict[str, str]
    session: dict[str, str]
    answers: dict[str, dict[str, str]]


def _read_conversation(spec: DaemonSpec, platform: FakePlatform) -> _Conversation:
    accepted = inbox(spec)
    answers: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for shown in platform.shown:
        key = shown.key.removesuffix(".draft")
        answers[key.split(".")[0]][key] = shown.text.removeprefix(POSSIBLY_REPEATED)
    return _Conversation(
        place={event.id: number for number, event in enumerate(platform.events)},
        chat={event.id: event.chat for event in platform.events},
        state={message.event: message.state for message in accepted},
        session={message.event: message.session for message in accepted},
        answers=answers,
    )


def _transcript_problems(spec: DaemonSpec, platform: FakePlatform, allowed: Allowed) -> Iterator[str]:
    conversation = _read_conversation(spec, platform)
    written: Counter[str] = Counter()
    for name, entries in transcripts(spec).items():
        asked = [entry for entry in entries if entry["type"] == "user"]
        written.update(entry["event_id"] for entry in asked)
        places = [conversation.place[entry["event_id"]] for entry in asked]
        if places != sorted(places):
            yield f"{name}: not in the order of the questions: {[entry['event_id'] for entry in asked]}"
        yield from (
            f"{entry['event_id']} is in {entries[0]['key']} and belongs to {conversation.session[entry['event_id']]}"
            for entry in asked
            if entries[0]["key"] != conversation.session[entry["event_id"]]
        )
        turns: defaultdict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            turns[entry.get("turn", "")].append(entry)
        for entry in asked:
            yield from _turn_problems(entry, turns[entry["turn"]], conversation, allowed)
    retries = Counter(event.chat for event in platform.events if event.text == "/retry")
    deleted = _deleted_sessions(spec, platform)
    for event in platform.events:
        is_answered = not event.is_command and conversation.state.get(event.id) == "answered"
        is_answered &= conversation.session.get(event.id) not in deleted
        if is_answered and not 1 <= written[event.id] <= 1 + retries[event.chat]:
            yield f"{event.id} is {written[event.id]} times in the transcripts"


def _turn_problems(asked: Entry, turn: list[Entry], conversation: _Conversation, allowed: Allowed) -> Iterator[str]:
    ends = [entry["outcome"] for entry in turn if entry["type"] == "turn_end"]
    mid = asked["event_id"]
    if conversation.state[mid] != "dead" and len(ends) != 1:
        yield f"{mid}: its turn ended {len(ends)} times"
    calls = Counter(entry["tool_use_id"] for entry in turn if entry["type"] == "tool_use")
    results = Counter(entry["tool_use_id"] for entry in turn if entry["type"] == "tool_result")
    if (ends == ["answered"] and calls != results) or any(times > 1 for times in (calls | results).values()):
        yield f"{mid}: {calls} were called, and {results} have results"
    if ends == ["answered"] and conversation.chat[mid] not in allowed.undelivered:
        yield from _answer_problems(asked, turn, conversation.answers[asked["turn"]])


def _answer_problems(asked: Entry, turn: list[Entry], parts: dict[str, str]) -> Iterator[str]:
    written = " ".join(entry["content"] for entry in turn if entry["type"] == "assistant").split()
    ordered = sorted(parts, key=lambda key: int(key.partition(".")[2] or 0))
    shown = " ".join(parts[key] for key in ordered).split()
    if written != shown:
        yield f"{asked['event_id']}: the transcript has {written}, the chat {shown}"


def _tool_problems(spec: DaemonSpec) -> Iterator[str]:
    """No tool ran twice, and each tool with a successful result ran."""
    ran = Counter(spec.effects.read_text().split()) if spec.effects.exists() else Counter[str]()
    yield from (f"the tool {mark} ran {times} times" for mark, times in ran.items() if times > 1)
    for entries in transcripts(spec).values():
        for entry in entries:
            if entry["type"] == "tool_result" and not entry.get("is_error") and not ran[entry["tool_use_id"]]:
                yield f"the tool {entry['tool_use_id']} has a successful result, but never ran"


def _approval_problems(spec: DaemonSpec) -> Iterator[str]:
    """No tool ran without approval, and each approval was requested once and decided once."""
    ran = set(spec.effects.read_text().split()) if spec.effects.exists() else set()
    for entries in transcripts(spec).values():
        uses = {
            entry["tool_use_id"]
            for entry in entries
            if entry["type"] == "tool_use"
            if entry["name"] == "record_if_approved"
        }
        approvals = [entry for entry in entries if entry["type"] == "approval"]
        decided = [(entry["tool_use_id"], entry["decision"]) for entry in approvals if "decision" in entry]
        asked = Counter(entry["tool_use_id"] for entry in approvals if "decision" not in entry)
        yield from (f"{call} ran without approval" for call in uses & ran if (call, "approved") not in decided)
        yield from (f"{call} was requested {times} times" for call, times in asked.items() if times > 1)
        if len({call for call, _ in decided}) != len(decided):
            yield f"an approval was decided twice: {decided}"


def _deleted_sessions(spec: DaemonSpec, platform: FakePlatform) -> set[str]:
    scopes = {message.event: parse_key(message.session)[0] for message in inbox(spec)}
    of_chat = {event.chat: scopes[event.id] for event in platform.events if event.id in scopes}
    return {
        session_key(of_chat[event.chat], int(event.text.removeprefix(_DELETE).split()[0]))
        for event in platform.events
        if event.text.startswith(_DELETE)
    }


def _deletion_problems(spec: DaemonSpec, platform: FakePlatform) -> Iterator[str]:
    """No transcript and no word of a deleted session is left."""
    for key in _deleted_sessions(spec, platform):
        if file_name(key) in transcripts(spec):
            yield f"{key} has a transcript, but was deleted"
        yield from (f"{place} has text of {key}, which was deleted" for place in places_with(spec, SECRET))


def file_problems(spec: DaemonSpec, allowed: Allowed) -> Iterator[str]:
    data_dir = spec.data_dir
    for problem in verified(spec).problems:
        if problem.kind != "set_aside" or not allowed.deaths:
            yield f"{problem.kind} {problem.where}: {problem.detail}"
    # The names of files that are being written, or of their folders, start with a dot.
    inner = [path.relative_to(data_dir) for path in data_dir.rglob("*") if path.is_file()]
    # Coding agents keep their own files in these folders.
    half_written = [path for path in inner if "/." in f"/{path}" and path.parts[0] not in {"agents", "worktrees"}]
    leftovers = [*half_written, *(path.relative_to(data_dir) for path in data_dir.rglob("*.corrupt-*"))]
    yield from (f"left behind: {name}" for name in leftovers)
