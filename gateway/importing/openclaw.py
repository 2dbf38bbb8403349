"""The data of OpenClaw: `~/.openclaw` with settings and a database for each agent, and a workspace with the memory.

A database has the transcript of each session as events, of which some are messages. An event names its parent, so a
person can go back and continue from there: only the branch that is continued counts. After a `reset`, the conversation
starts again under the same id. Older versions wrote the same events to files of JSON lines.
Known from OpenClaw 2026.9.6, schema 23.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml

from gateway.contract import PeerKind
from gateway.importing.memory_files import read_memories
from gateway.importing.messages import add_messages
from gateway.importing.platforms import PLATFORMS, chat_place
from gateway.importing.source_files import (
    MAX_LINE,
    Item,
    as_dict,
    as_list,
    columns,
    find_folder,
    identity_links,
    load_json,
    modified,
    open_database,
    parse_time,
    read_lines,
    read_object,
    read_settings,
    read_text,
)
from gateway.importing.values import (
    SKILLS_CAN_BE_COPIED,
    TERMINAL,
    Conversation,
    ForeignGateway,
    ForeignSettings,
    ImportedText,
    LeftOut,
    Place,
    ProposedChannel,
    ProposedModel,
    UnknownFormat,
)
from gateway.importing.vendors import proposed_model
from gateway.text import clean

MAKER = "openclaw"
DEFAULT_FOLDER = ".openclaw"
_CONFIG = "openclaw.json"
_DATABASES = "agents/*/agent/openclaw-agent.sqlite"
_FILES = "agents/*/sessions"
KNOWN_SCHEMA = 23
_MAIN_AGENT = "main"
_EVENT_COLUMNS = frozenset({"session_id", "seq", "event_json"})
_WINDOW_COLUMNS = frozenset({"session_id", "session_key"})
_KEY = re.compile(r"agent:(?P<agent>[^:]+):(?P<rest>.+)")
_JOBS = re.compile(r"(?:cron|hook|subagent|heartbeat|acp|node|dashboard:incognito|internal)(?::|\Z)")
_KINDS = {
    "direct": PeerKind.DIRECT,
    "dm": PeerKind.DIRECT,
    "group": PeerKind.GROUP,
    "channel": PeerKind.CHANNEL,
    "room": PeerKind.CHANNEL,
}
_TERMINALS = frozenset({"main", "webchat", "cli", "tui", "local"})
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\')|//[^\n]*|/\*.*?\*/', re.DOTALL)
_VARIABLE = re.compile(r"\$\{(?P<name>[A-Z_][A-Z0-9_]*)\}")
_TEMPLATE = "Store stable user preferences and profile facts as directives"
"""Stands in a USER.md in which nobody has written anything yet."""
_SILENT = frozenset({"NO_REPLY", "HEARTBEAT_OK"})
"""What the model answers if it has nothing to say."""

Window = dict[str, Any]  # Any: columns of a foreign database.


def is_gateway(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() or any(folder.glob(_DATABASES)) or any(folder.glob(f"{_FILES}/sessions.json"))


def open_gateway(folder: Path) -> ForeignGateway:
    """Return the data in a folder. Raises `UnknownFormat` if it is not OpenClaw's."""
    if not is_gateway(folder):
        raise UnknownFormat(f"{folder} has neither {_CONFIG} nor sessions of agents, so it is not a folder of OpenClaw")
    left_out: list[LeftOut] = []
    notes: list[str] = []
    config = read_settings(folder / _CONFIG, left_out, _read_json5)
    for database in sorted(folder.glob(_DATABASES)):
        with suppress(UnknownFormat), open_database(database) as connection:
            version = _check(database, connection)
            if version > KNOWN_SCHEMA:
                notes.append(
                    f"Its database has format {version}, and {KNOWN_SCHEMA} is the newest that was tried here."
                )
    workspace = _workspace(folder, config)
    files = (workspace / "MEMORY.md", workspace / "USER.md", *sorted((workspace / "memory").glob("*.md")))
    memory = [
        each
        for each in read_memories(workspace, files, left_out)
        if not any(_TEMPLATE in text for text in each.statements)
    ]
    if (workspace / "skills").is_dir():
        left_out.append(LeftOut(what="skills", why=SKILLS_CAN_BE_COPIED))
    return ForeignGateway(
        maker=MAKER,
        folder=folder,
        conversations=partial(_conversations, folder),
        memory=tuple(memory),
        settings=_settings(folder, config, workspace, notes),
        left_out=tuple(left_out),
    )


def _workspace(folder: Path, config: Item) -> Path:
    if named := find_folder(as_dict(as_dict(config.get("agents")).get("defaults")).get("workspace")):
        return named
    beside = folder.parent / "workspace"
    return folder / "workspace" if (folder / "workspace").is_dir() or not beside.is_dir() else beside


def _check(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of a database. Raises `UnknownFormat` if it lacks something."""
    for table, needed in (("session_windows", _WINDOW_COLUMNS), ("transcript_events", _EVENT_COLUMNS)):
        if missing := sorted(needed - columns(connection, table)):
            what = f"the table {table}" if len(missing) == len(needed) else f"{missing[0]} in the table {table}"
            raise UnknownFormat(f"{path.name} is of another version of OpenClaw: it lacks {what}")
    if "schema_version" not in columns(connection, "schema_meta"):
        return 0
    row = connection.execute("SELECT max(schema_version) FROM schema_meta").fetchone()
    return row[0] if isinstance(row[0], int) else 0


def _conversations(folder: Path) -> Iterator[Conversation | LeftOut]:
    migrated: set[str] = set()
    for database in sorted(folder.glob(_DATABASES)):
        try:
            with open_database(database) as connection:
                _check(database, connection)
                for found in _from_database(database, connection):
                    if isinstance(found, Conversation):
                        migrated.add(found.id.partition("#")[0])
                    yield found
        except MissingZstandard:
            raise
        except UnknownFormat as error:
            yield LeftOut(what=str(database), why=str(error), is_damaged=True)
    for sessions in sorted(folder.glob(_FILES)):
        yield from _from_files(sessions, migrated)


def _from_database(path: Path, connection: sqlite3.Connection) -> Iterator[Conversation | LeftOut]:
    windows: dict[str, Window] = {
        str(row["session_id"]): dict(row) for row in connection.execute("SELECT * FROM session_windows")
    }
    conversations = {}
    if {"conversation_id", "channel", "peer_id"} <= columns(connection, "conversations"):
        conversations = {row["conversation_id"]: dict(row) for row in connection.execute("SELECT * FROM conversations")}
    chats = _chats_of_sessions(connection, conversations)
    packed = "event_zstd" if "event_zstd" in columns(connection, "transcript_events") else "NULL AS event_zstd"
    query = f"SELECT session_id, event_json, {packed} FROM transcript_events ORDER BY session_id, seq"  # noqa: S608 - ours
    changed = modified(path)
    for id_, rows in groupby(connection.execute(query), key=lambda row: str(row["session_id"])):
        window = windows.pop(id_, {})
        key = clean(str(window.get("session_key") or ""))
        place = _place_of(conversations.get(window.get("primary_conversation_id")), window)
        others = chats.get(id_, [])
        # The main session is that of all direct chats. It has a chat of its own if only one person has used it.
        is_shared = key.endswith(":main") and len(others) > 1
        if key.endswith(":main"):
            place = others[0] if len(others) == 1 else None
        events = (_event(row) for row in rows)
        for found in _sessions(events, key, id_, place, f"{path}: {clean(id_)}", changed):
            if is_shared and isinstance(found, Conversation):
                found.place, found.scope, found.name = None, f"agent:{found.agent}:main", ""
            yield found
    cold: set[str] = set()
    if "session_id" in columns(connection, "session_transcript_cold_archives"):
        cold = {str(row[0]) for row in connection.execute("SELECT session_id FROM session_transcript_cold_archives")}
    for id_ in windows:
        why = (
            "OpenClaw has moved it to its cold archive, which is not read" if id_ in cold else "it contains no messages"
        )
        yield LeftOut(what=id_, why=why)


def _chats_of_sessions(connection: sqlite3.Connection, conversations: dict[str, Window]) -> dict[str, list[Place]]:
    """Return the direct chats on channels in which each session was used."""
    found: dict[str, list[Place]] = {}
    if {"session_id", "conversation_id"} <= columns(connection, "session_conversations"):
        rows = connection.execute("SELECT DISTINCT session_id, conversation_id FROM session_conversations")
        for session, conversation in rows:
            place = _place_of(conversations.get(conversation), {})
            places = found.setdefault(str(session), [])
            is_chat = place is not None and place.kind is PeerKind.DIRECT and place.channel != TERMINAL
            if place is not None and is_chat and place not in places:
                places.append(place)
    return found


def _event(row: sqlite3.Row) -> Any:  # noqa: ANN401  # Any: JSON from another program.
    if isinstance(row["event_json"], str):
        return load_json(row["event_json"])
    return load_json(_decompressed(row["event_zstd"])) if isinstance(row["event_zstd"], bytes) else None


def _decompressed(data: bytes) -> bytes:
    """Return what OpenClaw has compressed: each event of more than 1 kB. Of a longer one than `MAX_LINE`, nothing."""
    # Imported here, because only this importer needs it. Python has Zstandard from version 3.14 on.
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - Python 3.14.
    except ImportError:
        try:
            from backports import zstd  # type: ignore[import-not-found,no-redef,unused-ignore]  # noqa: PLC0415 - an extra.
        except ImportError:
            raise MissingZstandard from None
    # A few bytes may stand for more than memory holds.
    decompressor = zstd.ZstdDecompressor()
    try:
        found: bytes = decompressor.decompress(data, max_length=MAX_LINE)
    except zstd.ZstdError:
        return b""
    return found if decompressor.eof else b""


class MissingZstandard(UnknownFormat):
    """The library that reads compressed events is not installed."""

    def __init__(self) -> None:
        super().__init__("OpenClaw has compressed long messages, and what reads them is not installed")


def _from_files(folder: Path, migrated: set[str]) -> Iterator[Conversation | LeftOut]:
    """Yield the sessions that an older version has written to files, unless the database has them."""
    keys: dict[str, tuple[str, Item]] = {}
    try:
        if (folder / "sessions.json").exists():
            for key, entry in read_object(folder / "sessions.json").items():
                if isinstance(entry, dict):
                    keys[str(entry.get("sessionId"))] = clean(key), entry
    except UnknownFormat as error:
        yield LeftOut(what=str(folder / "sessions.json"), why=str(error), is_damaged=True)
    for path in sorted(folder.glob("*.jsonl")):
        if path.name.startswith(".") or ".trajectory" in path.name:
            continue
        try:
            lines = read_lines(path)
            header = as_dict(next(lines, None))
            id_ = str(header.get("id") or "")
            if header.get("type") != "session" or not id_:
                yield LeftOut(what=str(path), why="it doesn't start with the header of a session", is_damaged=True)
                continue
            if id_ in migrated:
                continue
            key, entry = keys.get(id_, ("", {}))
            yield from _sessions(lines, key, id_, _place_of_entry(entry), str(path), modified(path), header)
        except UnknownFormat as error:
            yield LeftOut(what=str(path), why=str(error), is_damaged=True)


def _sessions(
    events: Iterable[Any],  # Any: JSON from another program.
    key: str,
    id_: str,
    place: Place | None,
    source: str,
    changed: datetime,
    header: Item | None = None,
) -> Iterator[Conversation | LeftOut]:
    """Yield the conversations of one session: a new one starts after each reset."""
    found = _KEY.fullmatch(key)
    rest = found["rest"] if found else key
    if _JOBS.match(rest):
        yield LeftOut(what=key, why="it belongs to a job or a program, and to no chat")
        return
    every = [event if isinstance(event, dict) else None for event in events]
    damaged = every.count(None)
    path = _active_path([event for event in every if event is not None])
    first = header or next((event for event in every if event is not None and event.get("type") == "session"), {})
    began = parse_time(first.get("timestamp")) or changed
    part, reset = 0, ""
    pending: list[Item] = []

    def conversation() -> Conversation:
        nonlocal damaged
        made = Conversation(
            maker=MAKER,
            key=key,
            id=f"{id_}#{reset}" if reset else id_,
            created=began,
            place=place or _place_of_key(rest),
            agent=found["agent"] if found else "",
            source=source + (f" part {part + 1}" if part else ""),
        )
        if damaged:
            made.left_out["damaged event"], damaged = damaged, 0
        _add_events(made, pending)
        return made

    for event in path:
        if event.get("type") == "reset":
            if pending and (whole := conversation()).messages:
                yield whole
                part += 1
            pending = []
            reset = str(event.get("id") or part)
            began = parse_time(event.get("timestamp")) or began
        else:
            pending.append(event)
    last = conversation()
    if last.messages or not part:
        yield last


def _active_path(events: list[Item]) -> list[Item]:
    """Return the events of the branch that is continued, in order. Without parents, all events are in one branch."""
    by_id = {str(event["id"]): event for event in events if "parentId" in event and event.get("id")}
    if not by_id:
        return events
    tip: object = None
    for event in events:
        if event.get("type") == "leaf":
            tip = event.get("targetId")
        elif str(event.get("id")) in by_id and event.get("appendMode") != "side":
            tip = event["id"]
    path: list[Item] = []
    visited: set[str] = set()
    while tip is not None and str(tip) in by_id and str(tip) not in visited:
        event = by_id[str(tip)]
        visited.add(str(tip))
        tip = event.get("targetId") if event.get("type") == "leaf" else event.get("parentId")
        path.append(event)
    if (
        tip is not None
    ):  # A parent is missing, or there is a circle: the file is damaged, and its order is what is left.
        return events
    return path[::-1]


def _add_events(conversation: Conversation, events: list[Item]) -> None:
    for event in events:
        message = event.get("message")
        if event.get("type") == "custom_message" or (event.get("type") == "message" and not isinstance(message, dict)):
            conversation.left_out["remark of a plugin"] += 1
        if event.get("type") != "message" or not isinstance(message, dict):
            continue
        if message.get("role") == "custom":
            conversation.left_out["remark of a plugin"] += 1
            continue
        before = len(conversation.steps)
        at = conversation.steps[-1].at if conversation.steps else conversation.created
        add_messages(conversation, [{"timestamp": event.get("timestamp"), **message}], at=at)
        details = as_dict(message.get("__openclaw"))
        sender, name = str(details.get("senderId") or ""), str(details.get("senderName") or "")
        place = conversation.place
        if name and place is not None and place.kind is PeerKind.DIRECT and place.channel != TERMINAL:
            conversation.name = clean(name)
        for position in range(before, len(conversation.steps)):
            step = conversation.steps[position]
            if isinstance(step, ImportedText) and step.is_user and (sender or name):
                conversation.steps[position] = ImportedText(
                    is_user=True, content=step.content, at=step.at, sender=clean(sender), sender_name=clean(name)
                )
        added = conversation.steps[before:]
        if added and all(isinstance(step, ImportedText) and step.content.strip() in _SILENT for step in added):
            del conversation.steps[before:]
            conversation.left_out["silent answer"] += 1


def _place_of(chat: Item | None, window: Window) -> Place | None:
    if chat is None:
        return None
    kind = _KINDS.get(str(chat.get("kind") or window.get("chat_type")))
    return _place(
        channel=str(chat.get("channel") or ""),
        peer=str(chat.get("native_direct_user_id") or "") if kind is PeerKind.DIRECT else "",
        fallback=str(chat.get("peer_id") or ""),
        kind=kind,
        thread=str(chat.get("thread_id") or ""),
        account=str(chat.get("account_id") or ""),
    )


def _place_of_entry(entry: Item) -> Place | None:
    """Return the chat that an entry of `sessions.json` names: its last one."""
    origin, context = as_dict(entry.get("origin")), as_dict(entry.get("deliveryContext"))
    channel = str(context.get("channel") or entry.get("lastChannel") or origin.get("provider") or "")
    peer = str(context.get("to") or entry.get("lastTo") or origin.get("from") or "")
    return _place(
        channel=channel,
        peer="",
        fallback=peer,
        kind=_KINDS.get(str(entry.get("chatType") or origin.get("chatType") or "")),
        thread=str(context.get("threadId") or entry.get("lastThreadId") or ""),
        account=str(context.get("accountId") or entry.get("lastAccountId") or ""),
    )


def _place(*, channel: str, peer: str, fallback: str, kind: PeerKind | None, thread: str, account: str) -> Place | None:
    if channel in _TERMINALS:
        return Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
    peer = clean(
        peer
        or fallback.removeprefix(f"{channel}:").removeprefix("group:").removeprefix("channel:").removeprefix("user:")
    )
    if not channel or not peer:
        return None
    if ":topic:" in peer:
        peer, _, thread = peer.partition(":topic:")
    return chat_place(clean(channel), peer, kind=kind, thread=clean(thread), account=clean(account))


def _place_of_key(rest: str) -> Place | None:
    """Return the chat that a key names, such as `telegram:direct:42` or `telegram:group:-100:topic:7`."""
    if rest == "main" or rest.startswith("main:"):
        return Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
    parts = rest.split(":")
    at = next((number for number, part in enumerate(parts) if part in _KINDS), None)
    if at is None or not 1 <= at <= 2 or at + 1 >= len(parts):  # noqa: PLR2004 - a channel, and perhaps an account
        return None
    peer, thread = ":".join(parts[at + 1 :]), ""
    for word in (":topic:", ":thread:"):
        peer, _, found = peer.partition(word)
        thread = thread or found
    return _place(
        channel=parts[0],
        peer=peer,
        fallback="",
        kind=_KINDS[parts[at]],
        thread=thread,
        account=parts[1] if at == 2 else "",  # noqa: PLR2004 - as above
    )


def _read_json5(path: Path) -> Item:
    """Read settings that people may have written with comments, and without quotation marks around names."""
    text = read_text(path)
    found = load_json(text)
    if not isinstance(found, dict):
        try:
            found = yaml.safe_load(_COMMENT.sub(lambda match: match[1] or "", text).replace("\t", " "))
        except (yaml.YAMLError, RecursionError, ValueError):
            found = None
    if not isinstance(found, dict):
        raise UnknownFormat(f"{path.name} is damaged: it is neither JSON nor JSON5")
    return found


def _settings(folder: Path, config: Item, workspace: Path, notes: list[str]) -> ForeignSettings:
    channels: list[ProposedChannel] = []
    for name, table in as_dict(config.get("channels")).items():
        if not isinstance(table, dict) or table.get("enabled") is False or name in ("defaults", "modelByChannel"):
            continue
        if name not in PLATFORMS:
            notes.append(f"Gatehouse has no channel {clean(str(name))!r}.")
            continue
        accounts = {"default": table} if _token(table) or not table.get("accounts") else {}
        accounts |= {
            str(key): {**table, **each}
            for key, each in as_dict(table.get("accounts")).items()
            if isinstance(each, dict)
        }
        channels += [_channel(folder, name, account, each) for account, each in accounts.items()]
    session = as_dict(config.get("session"))
    soul = workspace / "SOUL.md"
    scope = str(session.get("dmScope") or "main")
    return ForeignSettings(
        channels=tuple(channels),
        model=_model(config),
        dm_scope=scope if scope in {"main", "per-peer", "per-account-channel-peer"} and config else "",
        identity_links=identity_links(session.get("identityLinks")),
        timezone=str(as_dict(as_dict(config.get("agents")).get("defaults")).get("userTimezone") or ""),
        prompt_file=soul if soul.is_file() else None,
        notes=tuple(notes),
    )


def _channel(folder: Path, name: str, account: str, table: Item) -> ProposedChannel:
    allow = {clean(str(each)).removeprefix(f"{name}:") for each in as_list(table.get("allowFrom"))}
    allow |= _approved(folder, name, account)
    groups = as_dict(table.get("groups") or table.get("guilds"))
    group_ids = tuple(clean(str(each)) for each in groups if each != "*")
    mention = as_dict(groups.get("*")).get("requireMention")
    return ProposedChannel(
        name=name,
        account=clean(account),
        token=_token(table),
        allow=tuple(sorted(allow - {"*", ""})),
        group_allow=group_ids,
        dm_policy={"open": "open", "allowlist": "allowlist"}.get(str(table.get("dmPolicy")), ""),
        group_policy={"disabled": "off", "open": "open"}.get(str(table.get("groupPolicy")), ""),
        require_mention=mention if isinstance(mention, bool) else None,
    )


def _approved(folder: Path, channel: str, account: str) -> set[str]:
    """Return the people whom the owner has let in by a code."""
    found: set[str] = set()
    with suppress(UnknownFormat), open_database(folder / "state/openclaw.sqlite") as connection:
        if {"channel_key", "account_id", "entry"} <= columns(connection, "channel_pairing_allow_entries"):
            rows = connection.execute(
                "SELECT entry FROM channel_pairing_allow_entries WHERE channel_key = ? AND account_id = ?",
                (channel, account),
            )
            found |= {clean(str(row[0])) for row in rows}
    for name in (f"{channel}-{account}-allowFrom.json", f"{channel}-allowFrom.json"):
        with suppress(UnknownFormat):
            found |= {clean(str(each)) for each in as_list(read_object(folder / "credentials" / name).get("allowFrom"))}
    return found


def _token(table: Item) -> str:
    """Return the token as a secret or as a reference of ours."""
    token = table.get("botToken", table.get("token"))
    if isinstance(token, str) and (found := _VARIABLE.fullmatch(token)):
        return f"env:{found['name']}"
    if isinstance(token, dict) and token.get("source") == "env":
        return f"env:{token.get('id')}"
    if isinstance(file := table.get("tokenFile"), str) and file:
        return f"file:{file}"
    return clean(token) if isinstance(token, str) else ""


def _model(config: Item) -> ProposedModel | None:
    chosen = as_dict(as_dict(config.get("agents")).get("defaults")).get("model")
    name = as_dict(chosen).get("primary") if isinstance(chosen, dict) else chosen
    if not isinstance(name, str) or not name:
        return None
    provider = name.partition("/")[0]
    table = as_dict(as_dict(as_dict(config.get("models")).get("providers")).get(provider))
    key = table.get("apiKey")
    if isinstance(key, str) and (found := _VARIABLE.fullmatch(key)):
        key = f"env:{found['name']}"
    return proposed_model(
        provider,
        name,
        base_url=str(table.get("baseUrl") or ""),
        api_key=clean(key) if isinstance(key, str) else "",
    )
