"""The session files of miniclaw (one JSON object), of claw0 (JSON lines) and of our own export in JSON.

A miniclaw file names its chat by `channel` and `chat_id`, as our own export does, or by a `sessionKey`. The first line
of a claw0 file has the type `session`.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

from gateway.contract import PeerKind
from gateway.importing.messages import add_messages
from gateway.importing.source_files import Item, load_json, modified, parse_time, read_bytes
from gateway.importing.values import TERMINAL, Conversation, ForeignGateway, LeftOut, Place, UnknownFormat
from gateway.text import clean

MAKER = "miniclaw"
_SUFFIXES = (".json", ".jsonl")
_INDEX = "sessions.json"
"""Both gateways keep a list of their sessions under this name. It contains nothing that the sessions lack."""
_CHANNEL = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TERMINALS = frozenset({"cli", "terminal", "console"})
_KINDS = {"peer": PeerKind.DIRECT, "direct": PeerKind.DIRECT, "group": PeerKind.GROUP, "channel": PeerKind.CHANNEL}


class NoSession(UnknownFormat):
    """A file of JSON has no session in it."""


def session_files(path: Path) -> list[Path]:
    """Return the session files in a folder, or the file itself."""
    inside = sorted(path.rglob("*")) if path.is_dir() else []
    found = [each for each in inside if each.suffix in _SUFFIXES and each.name != _INDEX and each.is_file()]
    return found if path.is_dir() else [path]


def open_gateway(path: Path) -> ForeignGateway:
    """Return the sessions in a folder, or that in a file."""
    return ForeignGateway(maker=MAKER, folder=path, conversations=partial(_conversations, path))


def _conversations(path: Path) -> Iterator[Conversation | LeftOut]:
    for file in session_files(path):
        try:
            yield parse_session(read_bytes(file), modified(file), source=str(file))
        except NoSession as error:  # A folder may have files of other programs, too.
            yield LeftOut(what=str(file), why=str(error), is_damaged=file == path)
        except UnknownFormat as error:
            yield LeftOut(what=str(file), why=str(error), is_damaged=True)


def parse_session(data: bytes, changed: datetime, *, source: str = "") -> Conversation:
    """Parse a file that was last modified at `changed`. Raises `UnknownFormat` if it is not a session file."""
    text = data.decode("utf-8-sig", errors="replace")
    whole = load_json(text)
    if isinstance(whole, dict) and isinstance(whole.get("messages"), list):
        return _parse_object(whole, changed, source)
    lines = [load_json(line) for line in text.split("\n") if line.strip()]
    items: list[Item] = [line for line in lines if isinstance(line, dict)]
    header = items[0] if items else {}
    if header.get("type") != "session":
        if whole is None and not items:
            raise UnknownFormat("it is damaged: it is not JSON")
        raise NoSession("it is neither a JSON object with messages nor JSON lines that start with a session")
    key = clean(str(header.get("key") or header.get("sessionKey") or ""))
    conversation = Conversation(
        maker="claw0",
        key=key,
        id=clean(str(header.get("id") or "")),
        created=parse_time(header.get("created") or header.get("createdAt")) or changed,
        source=source,
    )
    _set_place(conversation)
    if len(items) < len(lines):
        conversation.left_out["damaged line"] = len(lines) - len(items)
    add_messages(conversation, items[1:])
    return conversation


def _parse_object(whole: Item, changed: datetime, source: str) -> Conversation:
    key = whole.get("sessionKey") or whole.get("session_key") or whole.get("key") or ""
    began = whole.get("createdAt") or whole.get("created_at")
    used = whole.get("updatedAt") or whole.get("updated_at") or whole.get("last_accessed")
    conversation = Conversation(
        maker=MAKER,
        key=clean(str(key)),
        id="",
        created=parse_time(began) or parse_time(used) or changed,
        source=source,
    )
    if not key and "chat_id" in whole:
        channel, chat = clean(str(whole.get("channel") or "")), clean(str(whole["chat_id"]))
        conversation.key = clean(str(whole.get("session_id") or f"{channel}_{chat}"))
        # A chat may have several sessions under the same key. They differ in their time.
        conversation.id = clean(str(began or ""))
        if chat.startswith("agent:"):  # Our own export names the scope of a session that was started in no chat.
            conversation.scope = chat
        elif channel in _TERMINALS:
            conversation.place = Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
        elif _CHANNEL.fullmatch(channel) and chat:
            conversation.place = Place(channel=channel, peer=chat)
        else:
            conversation.key = f"{channel}_{chat}"
    else:
        _set_place(conversation)
    add_messages(conversation, whole["messages"])
    return conversation


def _set_place(conversation: Conversation) -> None:
    """Set the place that the key names. miniclaw writes `agent:NAME:...`, and claw0 `NAME:...`."""
    parts = conversation.key.split(":")
    if parts[0] == "agent" and len(parts) > 1:
        parts = parts[1:]
    conversation.agent, *rest = parts
    if rest == ["main"]:
        conversation.scope = f"agent:{conversation.agent}:main"
        return
    if rest[:1] == ["channel"]:
        rest = rest[1:]
    if not rest or not _CHANNEL.fullmatch(rest[0]):
        return
    channel, *rest = rest
    if channel in _TERMINALS:
        conversation.place = Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
        return
    kind = _KINDS.get(rest[0]) if len(rest) > 1 else None
    if peer := ":".join(rest[1:] if kind else rest):
        conversation.place = Place(channel=channel, peer=peer, kind=kind or PeerKind.DIRECT)
