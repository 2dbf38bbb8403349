"""The data of hermes-agent: `~/.hermes` with a database of all sessions, two memory files and its settings.

`state.db` has the sessions with their chats, and the messages as OpenAI has them, with tool calls as texts of JSON.
When a session is compressed, another one continues it, with the first as its parent. Both are imported.
Known from hermes-agent 0.19.0, schema 22.
"""

import re
import sqlite3
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

import yaml

from gateway.contract import PeerKind
from gateway.importing.memory_files import day_of
from gateway.importing.messages import add_messages
from gateway.importing.platforms import PLATFORMS, chat_place
from gateway.importing.source_files import (
    Item,
    columns,
    load_json,
    modified,
    open_database,
    parse_time,
    read_object,
    read_text,
)
from gateway.importing.values import (
    SCHEDULES_DIFFER,
    TERMINAL,
    Conversation,
    ForeignGateway,
    ForeignSettings,
    LeftOut,
    MemoryFile,
    Place,
    ProposedChannel,
    UnknownFormat,
)
from gateway.importing.vendors import proposed_model
from gateway.text import clean

MAKER = "hermes"
DEFAULT_FOLDER = ".hermes"
_DATABASE = "state.db"
KNOWN_SCHEMA = 22
_SESSION_COLUMNS = frozenset({"id", "source", "started_at"})
_MESSAGE_COLUMNS = frozenset({"id", "session_id", "role", "content", "tool_call_id", "tool_calls", "timestamp"})
_OPTIONAL_COLUMNS = ("chat_id", "chat_type", "thread_id", "user_id", "title", "session_key", "display_name")
_TERMINALS = frozenset({"cli", "tui", "local", "acp"})
_JOBS = frozenset({"cron", "batch", "api_server", "webhook", "kanban", "subagent"})
_KINDS = {"dm": PeerKind.DIRECT, "group": PeerKind.GROUP, "channel": PeerKind.CHANNEL, "forum": PeerKind.GROUP}
_SEPARATOR = re.compile(r"\n§\n")
_NOTES = frozenset({"session_meta"})


def is_gateway(folder: Path) -> bool:
    return (folder / _DATABASE).is_file() and ((folder / "config.yaml").is_file() or (folder / "memories").is_dir())


def open_gateway(folder: Path) -> ForeignGateway:
    """Return the data in a folder. Raises `UnknownFormat` if it is not that of hermes-agent."""
    database = folder / _DATABASE
    if not database.is_file():
        raise UnknownFormat(f"{folder} has no {_DATABASE}, so it is not a folder of hermes-agent")
    left_out: list[LeftOut] = []
    notes = []
    with open_database(database) as connection:
        version = _check(connection)
    if version > KNOWN_SCHEMA:
        notes.append(f"Its database has format {version}, and {KNOWN_SCHEMA} is the newest that was tried here.")
    memory: list[MemoryFile] = []
    for name in ("MEMORY.md", "USER.md"):
        try:
            memory += _memory(folder / "memories" / name)
        except UnknownFormat as error:
            left_out.append(LeftOut(what=name, why=str(error), is_damaged=True))
    if (folder / "cron/jobs.json").exists():
        left_out.append(LeftOut(what="cron/jobs.json", why=SCHEDULES_DIFFER))
    return ForeignGateway(
        maker=MAKER,
        folder=folder,
        conversations=partial(_conversations, database),
        memory=tuple(memory),
        settings=_settings(folder, notes, left_out),
        left_out=tuple(left_out),
    )


def _check(connection: sqlite3.Connection) -> int:
    """Return the version of the database. Raises `UnknownFormat` if it lacks something."""
    for table, needed in (("sessions", _SESSION_COLUMNS), ("messages", _MESSAGE_COLUMNS)):
        if missing := sorted(needed - columns(connection, table)):
            what = f"the table {table}" if missing == sorted(needed) else f"{missing[0]} in the table {table}"
            raise UnknownFormat(f"{_DATABASE} is of another version of hermes-agent: it lacks {what}")
    if "version" not in columns(connection, "schema_version"):
        return 0
    row = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    return row[0] if isinstance(row[0], int) else 0


def _conversations(database: Path) -> Iterator[Conversation | LeftOut]:
    with open_database(database) as connection:
        _check(connection)
        present = columns(connection, "sessions")
        names = ["id", "source", "started_at", *(each for each in _OPTIONAL_COLUMNS if each in present)]
        sessions = {}
        for row in connection.execute(f"SELECT {', '.join(names)} FROM sessions"):  # noqa: S608 - names of ours
            sessions[str(row["id"])] = dict(row)
        is_active = "coalesce(active, 1) != 0 OR coalesce(compacted, 0) != 0"
        known = {"active", "compacted"} <= columns(connection, "messages")
        rows = connection.execute(
            "SELECT session_id, role, content, tool_call_id, tool_calls, timestamp FROM messages"  # noqa: S608 - ours
            f"{f' WHERE {is_active}' if known else ''} ORDER BY session_id, id"
        )
        for id_, messages in groupby(rows, key=lambda row: str(row["session_id"])):
            session = sessions.pop(id_, None)
            if session is None:
                yield LeftOut(what=id_, why="its messages belong to no session", is_damaged=True)
                continue
            yield _conversation(database, id_, session, messages)
        for id_ in sessions:
            yield LeftOut(what=id_, why="it contains no messages")


def _conversation(database: Path, id_: str, session: Item, messages: Iterator[sqlite3.Row]) -> Conversation | LeftOut:
    source = clean(str(session.get("source") or ""))
    if source in _JOBS:
        return LeftOut(what=id_, why="it belongs to a job or a program, and to no chat")
    conversation = Conversation(
        maker=MAKER,
        key=clean(str(session.get("session_key") or source)),
        id=clean(id_),
        created=parse_time(session.get("started_at")) or modified(database),
        source=f"{database}: {clean(id_)}",
        title=clean(str(session.get("title") or "")),
        name=clean(str(session.get("display_name") or "")),
        place=_place(source, session),
    )
    add_messages(conversation, (_message(conversation, row) for row in messages if row["role"] not in _NOTES))
    return conversation


def _place(source: str, session: Item) -> Place | None:
    if source in _TERMINALS:
        return Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
    user = clean(str(session.get("user_id") or ""))
    # The key may end with the member of a group whose session it is.
    is_members = user and str(session.get("session_key") or "").endswith(f":{user}")
    return chat_place(
        source,
        clean(str(session.get("chat_id") or "")),
        kind=_KINDS.get(str(session.get("chat_type") or "")),
        thread=clean(str(session.get("thread_id") or "")),
        person=user,
        sender=user if is_members else "",
    )


def _message(conversation: Conversation, row: sqlite3.Row) -> object:
    """Return a row as OpenAI has messages. Texts of JSON are in two of its columns."""
    content = row["content"]
    if isinstance(content, str) and content.startswith(("[{", "\x00")):
        parts = load_json(content.lstrip("\x00").removeprefix("json:"))
        content = parts if isinstance(parts, list) else content
    calls = None
    if isinstance(row["tool_calls"], str) and row["tool_calls"]:
        calls = load_json(row["tool_calls"])
        if not isinstance(calls, list):
            conversation.left_out["damaged tool call"] += 1
    return {
        "role": row["role"],
        "content": content,
        "tool_calls": calls,
        "tool_call_id": row["tool_call_id"],
        "timestamp": row["timestamp"],
    }


def _memory(path: Path) -> Iterator[MemoryFile]:
    if not path.is_file():
        return
    texts = [" ".join(each.split()) for each in _SEPARATOR.split(read_text(path))]
    if found := tuple(dict.fromkeys(filter(None, texts))):
        yield MemoryFile(name=path.name, statements=found, noted=day_of(path))


def _settings(folder: Path, notes: list[str], left_out: list[LeftOut]) -> ForeignSettings:
    config: Item = {}
    try:
        loaded = yaml.safe_load(read_text(folder / "config.yaml")) if (folder / "config.yaml").exists() else {}
        config = loaded if isinstance(loaded, dict) else {}
    except (UnknownFormat, yaml.YAMLError, RecursionError, ValueError):
        left_out.append(LeftOut(what="config.yaml", why="it is damaged: it is not YAML", is_damaged=True))
    env = _environment(folder / ".env")
    channels = []
    for name in PLATFORMS:
        upper = name.upper()
        token = env.get(f"{upper}_BOT_TOKEN", "")
        allow = {each.strip() for each in env.get(f"{upper}_ALLOWED_USERS", "").split(",")}
        approved = _approved(folder / "pairing" / f"{name}-approved.json")
        if not token and not any(allow):
            continue
        is_open = "true" in (env.get(f"{upper}_ALLOW_ALL_USERS", ""), env.get("GATEWAY_ALLOW_ALL_USERS", ""))
        groups = {each.strip() for each in env.get(f"{upper}_GROUP_ALLOWED_CHATS", "").split(",")}
        channels.append(
            ProposedChannel(
                name=name,
                token=token,
                allow=tuple(sorted(filter(None, allow | approved))),
                group_allow=tuple(sorted(filter(None, groups))),
                dm_policy="open" if is_open else "",
            )
        )
    notes += [
        f"Gatehouse has no channel {name!r}."
        for name in ("slack", "whatsapp", "signal", "matrix")
        if env.get(f"{name.upper()}_BOT_TOKEN") or env.get(f"{name.upper()}_ALLOWED_USERS")
    ]
    model = config.get("model")
    table: Item = model if isinstance(model, dict) else {"default": model}
    provider = str(table.get("provider") or "")
    soul = folder / "SOUL.md"
    return ForeignSettings(
        channels=tuple(channels),
        model=proposed_model(
            provider,
            str(table.get("default") or ""),
            base_url=str(table.get("base_url") or ""),
            api_key=str(table.get("api_key") or env.get(f"{provider.upper()}_API_KEY", "")),
        )
        if table.get("default")
        else None,
        timezone=str(config.get("timezone") or ""),
        prompt_file=soul if soul.is_file() else None,
        notes=tuple(notes),
    )


def _environment(path: Path) -> dict[str, str]:
    """Return the variables of an `.env` file."""
    if not path.is_file():
        return {}
    pairs = (line.strip().removeprefix("export ").partition("=") for line in read_text(path).splitlines())
    return {
        name.strip(): value.strip().strip("\"'") for name, sign, value in pairs if sign and not name.startswith("#")
    }


def _approved(path: Path) -> set[str]:
    """Return the people whom the owner has let in by a code."""
    try:
        return {clean(str(each)) for each in read_object(path)} if path.is_file() else set()
    except UnknownFormat:
        return set()
