"""The open connections of each peer, and the mailboxes of peers that are not connected.

Mailboxes are stored in the channel's notebook: a reminder may come days before its reader connects. The nodes of a
cluster share the notebook, and the chat of a peer may move between them.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from channels.websocket.send_queue import SendQueue
from channels.websocket.wire import MessageFrame, ServerFrame, encode
from gateway.contract import Notebook, OutboundKind
from gateway.errors import Transient

MAX_CONNECTIONS = 16
"""Per peer: enough for many browser tabs, and a bound for a client that leaks connections."""
MAX_MAILBOX_SIZE = 20
MAX_MAILBOXES = 1000
MAX_RECENT_MESSAGES = 20
"""Per peer, for clients that resend a message to get its answer again."""
MAX_RECENT_PEERS = 1000

_KEY_PREFIX = "mail/"
_decode_mailbox = msgspec.json.Decoder(list[MessageFrame]).decode


class TooManyConnections(Exception):
    """The peer has `MAX_CONNECTIONS` open already."""


class Hub:
    """Broadcasts frames to all connections of a peer, and keeps messages for a peer without one.

    After a crash a kept message may be sent twice, with the same key. Use it from one event loop.
    """

    def __init__(self, notebook: Notebook, *, keeps_replies: bool = False, is_shared: bool = False) -> None:
        self._notebook = notebook
        self._is_shared = is_shared
        self._keeps_replies = keeps_replies
        self._queues: dict[str, list[SendQueue]] = {}
        self._mailboxes: OrderedDict[str, deque[MessageFrame]] = OrderedDict()
        self._recent: OrderedDict[str, deque[MessageFrame]] = OrderedDict()
        self._stored: set[str] = set()
        """The peers whose mailbox is in the notebook."""
        self._loading = asyncio.Lock()
        self._is_loaded = False

    async def load(self) -> None:
        """Read the mailboxes from the notebook, the first time only. Await this before `joined`."""
        async with self._loading:
            if self._is_loaded:
                return
            for name, value in (await self._notebook.read()).items():
                if not name.startswith(_KEY_PREFIX):
                    continue
                peer = name.removeprefix(_KEY_PREFIX)
                self._stored.add(peer)
                with suppress(msgspec.DecodeError):  # Another version wrote it, and only that one can read it.
                    for message in _decode_mailbox(value.encode()):
                        self._add_to_mailbox(peer, message)
            self._is_loaded = True

    async def refresh(self, peer: str) -> None:
        """Replace the mailbox of `peer` by the stored one, in a cluster. Await this before `joined`."""
        if self._is_shared:
            async with self._loading:
                await self._reload(peer)

    async def _reload(self, peer: str) -> None:
        value = (await self._notebook.read()).get(f"{_KEY_PREFIX}{peer}")
        if value is None:
            if peer in self._stored:  # Another node has delivered it.
                self._stored.discard(peer)
                self._mailboxes.pop(peer, None)
            return
        self._stored.add(peer)
        with suppress(msgspec.DecodeError):  # As in `load`.
            for message in _decode_mailbox(value.encode()):
                self._add_to_mailbox(peer, message)

    @contextmanager
    def joined(self, peer: str, queue: SendQueue) -> Iterator[None]:
        """Add `queue` to the connections of `peer`, and first move the peer's mailbox into it."""
        queues = self._queues.setdefault(peer, [])
        if len(queues) >= MAX_CONNECTIONS:
            raise TooManyConnections
        queues.append(queue)
        try:
            for message in self._mailboxes.pop(peer, ()):
                self._remember(peer, message)
                queue.put(message)
            yield
        finally:
            queues.remove(queue)
            if not queues:
                del self._queues[peer]
                # With another connection open, the peer has received the same frames there.
                for frame in queue.unsent():
                    if isinstance(frame, MessageFrame) and self.keeps(frame):
                        self._add_to_mailbox(peer, frame)

    def broadcast(self, peer: str, frame: ServerFrame, *, skip: SendQueue | None = None) -> bool:
        """Queue `frame` for every connection of `peer` but `skip`; return False if the peer has no connection."""
        queues = self._queues.get(peer, ())
        if isinstance(frame, MessageFrame):
            self._remember(peer, frame)
        for queue in tuple(queues):
            if queue is not skip:
                queue.put(frame)
        return bool(queues)

    def recent_answers(self, peer: str, message_id: str) -> list[MessageFrame]:
        """Return recent messages to `peer` that answer `message_id`, whichever connection they were sent to.

        Questions are left out: an open one is asked again when a client
        connects, and a closed one must not be taken for the answer.
        """
        recent = self._recent.get(peer, ())
        return [message for message in recent if message.reply_to == message_id and not message.is_question]

    def keeps(self, message: MessageFrame) -> bool:
        """Return whether a message waits for its peer: all but replies that the peer finds in its transcripts.

        With `keeps_replies`, those wait as well.
        """
        return self._keeps_replies or message.kind == OutboundKind.NOTICE or message.session is None

    async def keep(self, peer: str, message: MessageFrame) -> None:
        """Keep `message` until `peer` connects. When this returns, the message survives a power cut.

        Raises `Transient` if it could not be stored.
        """
        await self.load()
        if not self._is_shared:
            await self._store(peer, message)
            return
        async with self._loading:
            await self._reload(peer)
            await self._store(peer, message)

    async def _store(self, peer: str, message: MessageFrame) -> None:
        evicted = self._add_to_mailbox(peer, message)
        stored = encode(list(self._mailboxes[peer])).decode()
        self._stored.difference_update(evicted)
        # The peer may connect while the write below is under way:
        # 1. it takes the mailbox from memory;
        # 2. `forget` finds the peer in `_stored` and writes a deletion;
        # 3. the notebook keeps the order of writes, so the deletion wins.
        # Adding the peer only after the write would skip step 2, and the message would be sent again after a restart.
        self._stored.add(peer)
        await self._notebook.write(
            {**{f"{_KEY_PREFIX}{each}": None for each in evicted}, f"{_KEY_PREFIX}{peer}": stored}
        )

    async def forget(self, peer: str) -> None:
        """Delete the stored mailbox of `peer`, who has taken it."""
        if peer in self._stored:
            self._stored.discard(peer)
            with suppress(Transient):  # The disk is full: the messages are sent once more after a restart.
                await self._notebook.write({f"{_KEY_PREFIX}{peer}": None})

    def _add_to_mailbox(self, peer: str, message: MessageFrame) -> list[str]:
        """Put `message` into the mailbox in memory; return the peers whose mailboxes were evicted for it."""
        mailbox = self._mailboxes.setdefault(peer, deque(maxlen=MAX_MAILBOX_SIZE))
        if all(kept.key != message.key for kept in mailbox):
            # A full mailbox evicts its oldest reply, which is in the transcript too. If it holds only notices,
            # `maxlen` evicts the oldest of them.
            replies = (kept for kept in mailbox if kept.kind == OutboundKind.REPLY and kept.session is not None)
            reply = next(replies, None)
            if reply is not None and len(mailbox) == MAX_MAILBOX_SIZE:
                mailbox.remove(reply)
            mailbox.append(message)
        self._mailboxes.move_to_end(peer)
        evicted: list[str] = []
        while len(self._mailboxes) > MAX_MAILBOXES:
            evicted.append(self._mailboxes.popitem(last=False)[0])
        return evicted

    def _remember(self, peer: str, message: MessageFrame) -> None:
        recent = self._recent.setdefault(peer, deque(maxlen=MAX_RECENT_MESSAGES))
        if all(known.key != message.key for known in recent):
            recent.append(message)
        self._recent.move_to_end(peer)
        while len(self._recent) > MAX_RECENT_PEERS:
            self._recent.popitem(last=False)
