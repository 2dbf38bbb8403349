"""Set-up shared by tests that run the whole gateway."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import structs

from channels.loopback import LoopbackChannel
from config import GatewaySettings, HttpSettings, Settings, WorkspaceMode
from config.files import make_private_directory
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.build import open_daemon
from gateway.contract import Address, Inbound, Outbound, OutboundKind, PeerKind, Sender
from gateway.conversation import UserMessage
from gateway.daemon import Daemon
from gateway.files.workspaces import workspace_of
from gateway.sessions.entries import Entry
from gateway.sessions.storage.codec import decode
from gateway.spool import AddToInbox, Operation, Spool
from tests.polling import until

DAEMON_TIMEOUT = 90.0  # For a whole test. Generous, because the machine may be busy.
ADA = Address(channel="loopback", kind=PeerKind.DIRECT, peer="ada")
OWNER = Sender(id="ada", name="Ada", is_owner=True)
SCOPE = "agent:main:loopback:direct:ada"
MARK = "xylophone"
"""The word that tests of deletions look for."""


def settings(folder: Path, **tables: object) -> Settings:
    return Settings.model_validate(
        {
            "gateway": GatewaySettings(data_dir=folder / "data", flush_interval=3600, timezone="UTC"),
            "http": HttpSettings(port=0),
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
            **tables,
        }
    )


@asynccontextmanager
async def gateway(
    configured: Settings,
    before: Callable[[Daemon], None] = lambda _daemon: None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    *,
    listen: bool = False,
) -> AsyncIterator[tuple[Daemon, LoopbackChannel]]:
    """Run a daemon and yield it with its loopback channel. `before` may change the daemon before it starts work."""
    async with (
        asyncio.timeout(DAEMON_TIMEOUT),
        open_daemon(configured, listen=listen, now=now) as daemon,
        asyncio.TaskGroup() as tasks,
    ):
        before(daemon)
        ready = asyncio.Event()
        tasks.create_task(daemon.run(ready.set), name="daemon")
        await ready.wait()
        loopback = daemon.channels.by_identity["loopback", "default"]
        assert isinstance(loopback, LoopbackChannel)
        yield daemon, loopback
        daemon.stop()


def workspace(folder: Path, scope: str = "agent:main:loopback:direct:somebody") -> Path:
    """Return the private workspace of a scope, as the tools of `main` create it. By default, that of `chat.say`."""
    found = workspace_of(folder / "data/workspace", "main", WorkspaceMode.PRIVATE, scope).path
    make_private_directory(found)
    return found


async def say_and_hear(
    chat: LoopbackChannel, text: str, *, sender: Sender | None = None, group: str | None = None
) -> Outbound:
    """Say something, by default as an owner in a direct chat, and return the next finished message."""
    peer, kind = (group, PeerKind.GROUP) if group else (sender.id if sender else "somebody", PeerKind.DIRECT)
    await chat.say(text, peer=peer, kind=kind, sender=sender)
    return await chat.hear_message()


async def ask(chat: LoopbackChannel, text: str, *, sender: Sender | None = None, group: str | None = None) -> str:
    """Do the same as `say_and_hear`, and return only the text."""
    return (await say_and_hear(chat, text, sender=sender, group=group)).text


async def hear_draft(chat: LoopbackChannel) -> None:
    """Return once a draft of the next answer is shown."""
    while (await chat.hear()).how != "draft":
        pass


async def delivered(daemon: Daemon) -> None:
    """Wait until all replies are stored as delivered. The chat hears them earlier."""

    async def is_quiet() -> bool:
        return not (await daemon.status.report()).replies_waiting

    await until(is_quiet)


def message(text: str, event: str, **more: object) -> Inbound:
    plain = Inbound(
        address=ADA, sender=OWNER, event_id=event, text=text, sent_at=datetime.now(UTC), message_id=f"m-{event}"
    )
    return structs.replace(plain, **more)


async def replies(chat: LoopbackChannel, count: int) -> list[str]:
    """Return the next replies, without the notices in between."""
    texts: list[str] = []
    while len(texts) < count:
        heard = await chat.hear_message()
        texts += [heard.text] if heard.kind is OutboundKind.REPLY else []
    return texts


class Parrot:
    """A model that repeats the last message once `may_answer` is set. `heard` keeps its prompts."""

    def __init__(self) -> None:
        self.heard: list[list[str]] = []
        self.may_answer = asyncio.Event()
        self.is_asked = asyncio.Event()

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.heard.append([each.text for each in prompt.messages if isinstance(each, UserMessage)])
        self.is_asked.set()
        await self.may_answer.wait()
        yield TextDelta(text=f"heard: {self.heard[-1][-1]}")

    @classmethod
    def answering(cls, daemon: Daemon) -> None:
        """Install a parrot that answers at once."""
        parrot = cls()
        parrot.may_answer.set()
        parrot.installed(daemon)

    def installed(self, daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda agent: replace(agent, provider=self))


class Slow:
    """A model that answers once `may_answer` is set."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.is_asked.set()
        await self.may_answer.wait()
        yield TextDelta(text="Done.")


def inbound(event_id: str, text: str, peer: str = "ada") -> Inbound:
    return Inbound(
        address=Address(channel="loopback", kind=PeerKind.DIRECT, peer=peer),
        sender=Sender(id=peer, name=peer.title(), is_owner=True),
        event_id=event_id,
        text=text,
        sent_at=datetime.now(UTC),
    )


def accepted(turn: str, text: str, *, peer: str = "ada", at: datetime | None = None) -> AddToInbox:
    scope = SCOPE.replace("ada", peer)
    return AddToInbox(
        turn=turn,
        inbound=inbound(turn, text, peer),
        scope=scope,
        session=scope,
        number=1,
        agent="main",
        at=at or datetime.now(UTC),
    )


async def leave(folder: Path, *operations: Operation) -> None:
    """Leave operations in the spool, as a killed daemon does."""
    async with await Spool.open(folder / "data") as spool:
        await spool.commit(*operations)


async def begin_a_session(folder: Path, *peers: str) -> None:
    async with gateway(settings(folder)) as (_, chat):
        for peer in peers or ("ada",):
            await chat.say("hello", peer=peer)
            await chat.hear_message()


def transcript_entries(folder: Path) -> list[Entry]:
    """Return the entries of the only session."""
    (file,) = (folder / "data/sessions/transcripts").glob("*.jsonl")
    return [decode(line) for line in file.read_bytes().splitlines()]


def transcript_json(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of the only session as they are stored."""
    (file,) = (folder / "data/sessions/transcripts").glob("*.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def transcript_text(folder: Path) -> str:
    """Return all transcripts as one text."""
    return "".join(file.read_text() for file in (folder / "data" / "sessions" / "transcripts").iterdir())


def traces(folder: Path, word: str = MARK) -> dict[str, int]:
    """Return how often the word appears in each file of the data directory, and in the names."""
    found = {}
    for path in (folder / "data").rglob("*"):
        times = path.name.count(word)
        if path.is_file():
            times += path.read_bytes().count(word.encode())
        if times:
            found[str(path.relative_to(folder / "data"))] = times
    return found
