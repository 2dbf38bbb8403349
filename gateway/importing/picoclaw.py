"""The data of PicoClaw: `~/.picoclaw` with its settings, and a workspace with sessions and memory.

A session is a file of JSON lines with messages as OpenAI has them, and a file `.meta.json` with its key, its times and,
in newer versions, its scope. Older versions wrote one JSON object. Messages have no times of their own.
Written from PicoClaw's public source, and not tried with files that the program has written.
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import yaml

from gateway.contract import PeerKind
from gateway.importing.memory_files import read_memories
from gateway.importing.messages import add_messages
from gateway.importing.platforms import PLATFORMS, chat_place
from gateway.importing.source_files import (
    Item,
    as_dict,
    as_list,
    find_folder,
    identity_links,
    modified,
    other_files,
    parse_time,
    read_lines,
    read_object,
    read_settings,
    read_text,
)
from gateway.importing.values import (
    TERMINAL,
    Conversation,
    ForeignGateway,
    ForeignSettings,
    LeftOut,
    Place,
    ProposedChannel,
    ProposedModel,
    UnknownFormat,
)
from gateway.importing.vendors import proposed_model
from gateway.text import clean

MAKER = "picoclaw"
DEFAULT_FOLDER = ".picoclaw"
_CONFIG = "config.json"
_SECURITY = ".security.yml"
KNOWN_SCOPE = 1
_OPAQUE = "sk_v1_"
_KINDS = {"direct": PeerKind.DIRECT, "group": PeerKind.GROUP, "channel": PeerKind.CHANNEL}
_TERMINALS = frozenset({"cli", "terminal", "pico", "local"})
_JOBS = re.compile(r"(?:agent:[^:]+:)?(?:heartbeat|cron|subagent|device|isolated|task)(?::|\Z)")
_KEY = re.compile(r"agent:(?P<agent>[^:]+):(?P<rest>.+)")


def is_gateway(folder: Path) -> bool:
    return (folder / _CONFIG).is_file() and (
        (folder / _SECURITY).is_file() or folder.name == DEFAULT_FOLDER or any(_session_files(_workspace(folder, {})))
    )


def open_gateway(folder: Path) -> ForeignGateway:
    """Return the data in a folder. Raises `UnknownFormat` if it is not PicoClaw's."""
    left_out: list[LeftOut] = []
    if not (folder / _CONFIG).exists() and not (folder / "workspace/sessions").is_dir():
        raise UnknownFormat(f"{folder} has neither {_CONFIG} nor sessions, so it is not a folder of PicoClaw")
    config = read_settings(folder / _CONFIG, left_out)
    workspace = _workspace(folder, config)
    files = (workspace / "memory/MEMORY.md", workspace / "USER.md", *sorted(workspace.glob("memory/*/*.md")))
    memory = tuple(read_memories(workspace, files, left_out))
    left_out += other_files(workspace, schedules="cron")
    return ForeignGateway(
        maker=MAKER,
        folder=folder,
        conversations=partial(_conversations, workspace),
        memory=memory,
        settings=_settings(folder, config, workspace, left_out),
        left_out=tuple(left_out),
    )


def _workspace(folder: Path, config: Item) -> Path:
    named = as_dict(as_dict(config.get("agents")).get("defaults")).get("workspace")
    return find_folder(named) or folder / "workspace"


def _session_files(workspace: Path) -> Iterator[Path]:
    for path in sorted((workspace / "sessions").glob("*")):
        if path.suffix in {".jsonl", ".json"} and not path.name.startswith("."):
            yield path


def _conversations(workspace: Path) -> Iterator[Conversation | LeftOut]:
    for path in _session_files(workspace):
        try:
            if path.name.endswith(".meta.json"):
                slot = path.with_name(path.name.removesuffix(".meta.json"))
                if slot.with_name(f"{slot.name}.jsonl").exists() or not any(_slots(path)):
                    continue
            elif path.suffix == ".json" and path.with_suffix(".jsonl").exists():
                continue  # The same session in the format of an older version.
            yield _parse(path)
        except UnknownFormat as error:
            yield LeftOut(what=str(path), why=str(error), is_damaged=True)


def _slots(meta: Path) -> Iterator[Path]:
    """Yield the file to which a rewritten history has moved."""
    stem = meta.name.removesuffix(".meta.json")
    slot = as_dict(read_object(meta)).get("history_slot") if meta.is_file() else None
    if slot in ("a", "b") and (found := meta.with_name(f"{stem}.history-{slot}")).is_file():
        yield found


def _parse(path: Path) -> Conversation | LeftOut:
    messages: Iterable[object]
    if path.suffix == ".json" and not path.name.endswith(".meta.json"):
        meta = read_object(path)
        messages = meta.get("messages") if isinstance(meta.get("messages"), list) else []  # type: ignore[assignment]  # It is a list.
        if not isinstance(meta.get("messages"), list):
            raise UnknownFormat("it has no list of messages")
    else:
        name = path.name.removesuffix(".meta.json").removesuffix(".jsonl")
        file = path.with_name(f"{name}.meta.json")
        meta = read_object(file) if file.exists() else {}
        history = next(_slots(file), path)
        if history.name.endswith(".meta.json"):
            raise UnknownFormat("its history is missing")
        messages = read_lines(history)
    key = clean(str(meta.get("key") or path.name.removesuffix(".jsonl")))
    if _JOBS.match(key):
        return LeftOut(what=key, why="it belongs to a job or a program, and to no chat")
    created = parse_time(meta.get("created_at") or meta.get("created")) or modified(path)
    updated = parse_time(meta.get("updated_at") or meta.get("updated")) or modified(path)
    scope = as_dict(meta.get("scope"))
    if isinstance(version := scope.get("version"), int) and version > KNOWN_SCOPE:
        raise UnknownFormat(f"its scope has format {version}, and {KNOWN_SCOPE} is the newest known one")
    conversation = Conversation(maker=MAKER, key=key, id="", created=created, source=str(path))
    if scope:
        conversation.agent = clean(str(scope.get("agent_id") or ""))
        conversation.place = _place_of_scope(scope)
    if conversation.place is None:
        aliases = [clean(str(each)) for each in as_list(meta.get("aliases"))]
        # The most telling alias is the longest one. Each session has that of the agent's main one too.
        names = [key] if not key.startswith(_OPAQUE) else sorted(aliases, key=lambda each: -each.count(":"))
        for name in names:
            if (place := _place_of_key(name)) is not None:
                conversation.place = place
                break
    add_messages(conversation, messages, at=max(created, updated))
    return conversation


def _place_of_scope(scope: Item) -> Place | None:
    values = as_dict(scope.get("values"))
    channel = clean(str(scope.get("channel") or ""))
    account = clean(str(scope.get("account") or "")) or "default"
    kind, _, peer = str(values.get("chat") or "").partition(":")
    sender = _bare(str(values.get("sender") or ""), channel)
    thread = str(values.get("topic") or "").removeprefix("topic:")
    if channel in _TERMINALS:
        return Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
    if not peer:  # A session of a person, wherever they write.
        peer, kind, sender = sender, "direct", ""
    if "/" in peer:
        peer, _, topic = peer.partition("/")
        thread = thread or topic
    return chat_place(channel, peer, kind=_KINDS.get(kind), thread=thread, account=account, sender=sender)


def _place_of_key(key: str) -> Place | None:
    """Return the chat of a key such as `agent:main:telegram:direct:42`, or `telegram:42` of older versions."""
    found = _KEY.fullmatch(key)
    parts = (found["rest"] if found else key).split(":")
    if parts[0] in _TERMINALS:
        return Place(channel=TERMINAL, peer="", kind=PeerKind.DIRECT)
    if parts == ["main"]:
        return None
    at = next((number for number, part in enumerate(parts) if part in _KINDS), None)
    if at is None:
        channel, _, peer = ":".join(parts).partition(":")
        if found or not peer:
            return None
        peer, _, thread = peer.partition("/")
        return chat_place(channel, peer, thread=thread)
    if not 1 <= at <= 2 or at + 1 >= len(parts):  # noqa: PLR2004 - a channel, and perhaps an account
        return None
    peer, _, thread = ":".join(parts[at + 1 :]).partition("/")
    account = parts[1] if at == 2 else ""  # noqa: PLR2004 - as above
    return chat_place(parts[0], _bare(peer, parts[0]), kind=_KINDS[parts[at]], account=account, thread=thread)


def _bare(peer: str, channel: str) -> str:
    """Return the id of a person without the channel in front and the name behind it."""
    return clean(peer.removeprefix(f"{channel}:").partition("|")[0])


def _settings(folder: Path, config: Item, workspace: Path, left_out: list[LeftOut]) -> ForeignSettings:
    security: Item = {}
    if (folder / _SECURITY).is_file():
        try:
            security = as_dict(yaml.safe_load(read_text(folder / _SECURITY)))
        except (UnknownFormat, yaml.YAMLError, RecursionError, ValueError):
            left_out.append(LeftOut(what=_SECURITY, why="it is damaged: it is not YAML", is_damaged=True))
    notes: list[str] = []
    channels: list[ProposedChannel] = []
    for name in ("channel_list", "channels"):
        secrets = as_dict(security.get(name))
        for key, table in as_dict(config.get(name)).items():
            if isinstance(table, dict) and table.get("enabled") is True:
                found = _channel(clean(str(key)), table, as_dict(secrets.get(key)))
                if found is not None:
                    channels.append(found)
                else:
                    notes.append(f"Gatehouse has no channel {clean(str(table.get('type') or key))!r}.")
    session = as_dict(config.get("session"))
    soul = workspace / "SOUL.md"
    scope = str(session.get("dm_scope") or "")
    return ForeignSettings(
        channels=tuple(channels),
        model=_model(config, as_dict(security.get("model_list"))),
        dm_scope=scope if scope in ("main", "per-peer", "per-account-channel-peer") else "",
        identity_links=identity_links(session.get("identity_links")),
        prompt_file=soul if soul.is_file() else None,
        notes=tuple(notes),
    )


def _channel(key: str, table: Item, secrets: Item) -> ProposedChannel | None:
    name = str(table.get("type") or key)
    if name not in PLATFORMS:
        return None
    settings, hidden = as_dict(table.get("settings")), as_dict(secrets.get("settings"))
    tokens = (hidden.get("token"), secrets.get("token"), settings.get("token"), table.get("token"))
    token = next((str(each) for each in tokens if isinstance(each, str) and each not in {"", "[NOT_HERE]"}), "")
    allow = {_bare(str(each), name) for each in as_list(table.get("allow_from"))}
    return ProposedChannel(
        name=name,
        account="default" if key == name else key,
        token=clean(token),
        allow=tuple(sorted(allow - {"*", ""})),
        dm_policy="open" if "*" in allow else "",
    )


def _model(config: Item, secrets: Item) -> ProposedModel | None:
    defaults = as_dict(as_dict(config.get("agents")).get("defaults"))
    name = str(defaults.get("model_name") or defaults.get("model") or "")
    if not name:
        return None
    for each in map(as_dict, as_list(config.get("model_list"))):
        if each.get("model_name") == name:
            hidden = as_dict(secrets.get(name) or secrets.get(f"{name}:0"))
            keys = [
                *as_list(hidden.get("api_keys")),
                hidden.get("api_key"),
                *as_list(each.get("api_keys")),
                each.get("api_key"),
            ]
            key = next((str(found) for found in keys if isinstance(found, str) and found not in {"", "[NOT_HERE]"}), "")
            return proposed_model(
                str(each.get("provider") or ""),
                str(each.get("model") or ""),
                base_url=str(each.get("api_base") or ""),
                api_key="" if key.startswith(("file://", "enc://")) else clean(key),
            )
    return proposed_model(str(defaults.get("provider") or ""), name)
