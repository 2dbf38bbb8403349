"""Notices for who is away, kept across restarts: a reminder may come long before its reader does."""

import asyncio
from contextlib import suppress

import msgspec

from channels.websocket.hub import Hub
from channels.websocket.wire import Message
from gateway.contract import Notebook
from gateway.errors import Transient

__all__ = ["Mail"]

_PREFIX = "mail/"
_decode = msgspec.json.Decoder(list[Message]).decode


class Mail:
    """Writes down the mailboxes of `hub`. A crash may have a note handed over twice; its key is the same."""

    def __init__(self, hub: Hub, notebook: Notebook) -> None:
        self._hub = hub
        self._notebook = notebook
        self._kept: set[str] = set()
        """Whose mailboxes are written down."""
        self._opening = asyncio.Lock()
        self._is_open = False

    async def open(self) -> None:
        """Fill the mailboxes with what was left before the last restart, once; before anybody takes or leaves one."""
        async with self._opening:
            if not self._is_open:
                await self._read()
                self._is_open = True

    async def _read(self) -> None:
        for name, value in (await self._notebook.read()).items():
            if not name.startswith(_PREFIX):
                continue
            peer = name.removeprefix(_PREFIX)
            self._kept.add(peer)
            with suppress(msgspec.DecodeError):  # Another version's: it can be shown by that one alone.
                for note in _decode(value.encode()):
                    self._hub.leave_note(peer, note)

    async def leave(self, peer: str, note: Message) -> None:
        """Keep `note` for the next connection of `peer`; it will survive a power cut. `Transient`: try again."""
        await self.open()
        dropped = self._hub.leave_note(peer, note)
        text = msgspec.json.encode(self._hub.waiting(peer)).decode()
        self._kept.difference_update(dropped)
        self._kept.add(peer)  # Before it is: whoever takes it meanwhile has it forgotten behind this.
        await self._notebook.write({**{f"{_PREFIX}{each}": None for each in dropped}, f"{_PREFIX}{peer}": text})

    async def taken(self, peer: str) -> None:
        """Forget what `peer` has been handed."""
        if peer in self._kept:
            self._kept.discard(peer)
            with suppress(Transient):  # On a full disk; then it is handed over once more after a restart.
                await self._notebook.write({f"{_PREFIX}{peer}": None})
