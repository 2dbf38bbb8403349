"""The data of nanobot: `~/.nanobot` with its configuration and sessions, and a workspace with its memory.

A session is a file of JSON lines: first its metadata with the key, then messages as OpenAI has them. A key is a channel
and a chat, such as `telegram:42` or `telegram:-100123:topic:7`. Times have no zone: they are those of the machine.
Known from nanobot 0.3.5, which moves the files of older versions from the workspace.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from gateway.contract import PeerKind
from gateway.importing.memory_files import read_memories
from gateway.importing.messages import add_messages
from gateway.importing.platforms import PLATFORMS, chat_place
from gateway.importing.source_files import (
    Item,
    as_dict,
    find_folder,
    modified,
    other_files,
    parse_time,
    read_lines,
    read_settings,
)
from gateway.importing.values import (
    TERMINAL,
    Conversation,
    ForeignGateway,
    ForeignSettings,
    LeftOut,
    MemoryFile,
    Place,
    ProposedChannel,
    ProposedModel,
    UnknownFormat,
)
from gateway.importing.vendors import proposed_model
from gateway.text import clean

MAKER = "nanobot"
DEFAULT_FOLDER = ".nanobot"
_CONFIG = "config.json"
_INTERNAL = re.compile(r"cron:|heartbeat|dream|system:|subagent|internal:|api:|sdk:")
"""Keys of sessions without a person: its own jobs, and programs."""
_THREAD = re.compile(r"(?P<peer>.+):(?:topic|thread):(?P<thread>[^:]+)")
_HIDDEN = "_hidden"
_TEMPLATE = "Information about the user to help personalize interactions."
"""All that a USER.md says in which nobody has written anything yet."""


def is_gateway(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() and (folder.name == DEFAULT_FOLDER or (folder / "sessions").is_dir())


def open_gateway(folder: Path) -> ForeignGateway:
    """Return the data in a folder. Raises `UnknownFormat` if it is not nanobot's."""
    left_out: list[LeftOut] = []
    if not (folder / _CONFIG).exists() and not (folder / "sessions").is_dir():
        raise UnknownFormat(f"{folder} has neither {_CONFIG} nor sessions, so it is not a folder of nanobot")
    config = read_settings(folder / _CONFIG, left_out)
    workspace = _workspace(folder, config)
    found = read_memories(workspace, (workspace / "memory/MEMORY.md", workspace / "USER.md"), left_out)
    memory = [each for each in found if each.statements != (_TEMPLATE,)]
    memory += _history(workspace / "memory/history.jsonl")
    left_out += other_files(workspace, schedules="cron/jobs.json")
    return ForeignGateway(
        maker=MAKER,
        folder=folder,
        conversations=partial(_conversations, folder, workspace),
        memory=tuple(memory),
        settings=_settings(config, workspace),
        left_out=tuple(left_out),
    )


def _workspace(folder: Path, config: Item) -> Path:
    named = as_dict(as_dict(config.get("agents")).get("defaults")).get("workspace")
    if isinstance(named, str) and (found := find_folder(named.replace("~/.nanobot", str(folder.absolute()), 1))):
        return found
    # A copy of the folder from another machine has its workspace inside, or next to it.
    inside = folder / "workspace"
    return inside if inside.is_dir() or not (folder.parent / "workspace").is_dir() else folder.parent / "workspace"


def _conversations(folder: Path, workspace: Path) -> Iterator[Conversation | LeftOut]:
    seen: set[str] = set()
    for path in sorted((folder / "sessions").rglob("*.jsonl")) + sorted((workspace / "sessions").glob("*.jsonl")):
        if path.name.startswith("."):
            continue
        try:
            found = _parse(path)
        except UnknownFormat as error:
            yield LeftOut(what=str(path), why=str(error), is_damaged=True)
            continue
        if isinstance(found, Conversation):
            if found.key in seen:  # An older copy of the same session, from before nanobot moved its files.
                yield LeftOut(what=str(path), why="it is an older copy of a session that is imported")
                continue
            seen.add(found.key)
        yield found


def _parse(path: Path) -> Conversation | LeftOut:
    lines = read_lines(path)
    header: Item = as_dict(next(lines, None))
    if header.get("_type") != "metadata":
        raise UnknownFormat("it doesn't start with the metadata of a session of nanobot")
    key = clean(str(header.get("key") or ""))
    if not key:
        raise UnknownFormat("its metadata doesn't say which chat it belongs to")
    if _INTERNAL.match(key):
        return LeftOut(what=key, why="it belongs to a job or a program, and to no chat")
    created = parse_time(header.get("created_at"), is_local=True) or modified(path)
    conversation = Conversation(
        maker=MAKER, key=key, id=str(header.get("created_at") or ""), created=created, source=str(path)
    )
    conversation.place = _place(key)
    title = as_dict(header.get("metadata")).get("title")
    conversation.title = clean(title) if isinstance(title, str) else ""
    add_messages(conversation, _visible(conversation, lines), is_local=True)
    return conversation


def _visible(conversation: Conversation, lines: Iterator[Any]) -> Iterator[object]:  # Any: JSON of another program.
    for line in lines:
        if isinstance(line, dict) and line.get("_type") in ("metadata", "provider_state"):
            continue
        if isinstance(line, dict) and any(name.startswith(_HIDDEN) and line[name] for name in line):
            conversation.left_out["hidden remark"] += 1
            continue
        yield line


def _place(key: str) -> Place | None:
    channel, _, peer = key.partition(":")
    if not peer:
        return None
    if channel == "cli":
        return Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
    thread = ""
    if found := _THREAD.fullmatch(peer):
        peer, thread = found["peer"], found["thread"]
    return chat_place(channel, peer, thread=thread)


def _history(path: Path) -> Iterator[MemoryFile]:
    """Yield what nanobot has noted of each chat when it shortened or ended a session."""
    found: dict[str, dict[str, None]] = {}
    days: dict[str, str] = {}
    with suppress(UnknownFormat):
        for line in read_lines(path):
            match line:
                case {"content": str(text), "session_key": str(key)} if text.strip() and not _INTERNAL.match(key):
                    found.setdefault(key, {})[clean(text).strip()] = None
                    at = parse_time(line.get("timestamp"), is_local=True) or modified(path)
                    days[key] = f"{at.date()}"
    for key, texts in found.items():
        place = _place(key)
        if place is not None:
            yield MemoryFile(name=f"{path.name} ({key})", statements=tuple(texts), noted=days[key], place=place)


def _settings(config: Item, workspace: Path) -> ForeignSettings:
    notes: list[str] = []
    channels = []
    for name, table in as_dict(config.get("channels")).items():
        if not isinstance(table, dict) or table.get("enabled") is not True:
            continue
        if name not in PLATFORMS:
            notes.append(f"Gatehouse has no channel {clean(name)!r}.")
            continue
        allow = _texts(table.get("allowFrom", table.get("allow_from")))
        channels.append(
            ProposedChannel(
                name=name,
                token=_text(table.get("token")),
                allow=tuple(each for each in allow if each != "*"),
                dm_policy="open" if "*" in allow else "",
                require_mention=table.get("groupPolicy", table.get("group_policy")) != "open",
            )
        )
    defaults = as_dict(as_dict(config.get("agents")).get("defaults"))
    model = _model(defaults, as_dict(config.get("providers")))
    soul = workspace / "SOUL.md"
    return ForeignSettings(
        channels=tuple(channels),
        model=model,
        dm_scope="main" if defaults.get("unifiedSession") is True or defaults.get("unified_session") is True else "",
        timezone=_text(defaults.get("timezone")),
        prompt_file=soul if soul.is_file() else None,
        notes=tuple(notes),
    )


def _model(defaults: Item, providers: Item) -> ProposedModel | None:
    model, provider = _text(defaults.get("model")), _text(defaults.get("provider"))
    if not model:
        return None
    if provider in {"", "auto"}:
        provider = model.partition("/")[0] if "/" in model else ""
    table = as_dict(providers.get(provider))
    return proposed_model(
        provider,
        model,
        base_url=_text(table.get("apiBase", table.get("api_base"))),
        api_key=_text(table.get("apiKey", table.get("api_key"))),
    )


def _text(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    return [clean(str(each)) for each in value if isinstance(each, str | int)] if isinstance(value, list) else []
