"""The direct chats of the owners, to tell them when a person asks for access, or a schedule needs them."""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta

import msgspec
import structlog

from gateway.access.guests import Applicant, Person
from gateway.access.rules import Live, is_owner
from gateway.contract import Address, Button, Outbound, Sender
from gateway.spool import SetFact, Spool, SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

OWNER_CHAT_FACTS = "owner_chats/"
"""The prefix of the facts about the chats of owners."""
MAX_CHATS = 10
"""Chats that are told about one request or one schedule."""
MAX_REQUESTS = 6
"""Requests about which the owners are told within an hour on one channel. The others are in `/pair`."""
WINDOW = timedelta(hours=1)


class OwnerChats:
    """An owner's direct chat is known once they have written there. It is kept as a fact in the spool.

    On some platforms, the id of a direct chat is not the id of the person, so it cannot be found in the settings.
    """

    def __init__(self, live: Live, spool: Spool, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._spool = spool
        self._now = now
        self._chats: dict[Person, tuple[Address, Sender]] = {}
        self.known: set[tuple[Address, str]] = set()
        """The chats, each with the id of its owner. Only other chats have to be noted."""
        self._told: dict[str, deque[datetime]] = {}
        """When the owners were told about requests, by channel."""

    def read(self, facts: Mapping[str, str]) -> None:
        self._chats, self.known = {}, set()
        for name, value in facts.items():
            try:
                address, sender = msgspec.json.decode(value, type=tuple[Address, Sender])
            except msgspec.DecodeError:  # Written by a newer version.
                log.warning("owner_chat_unreadable", name=name)
                continue
            self._chats[Person.of(address, sender)] = address, sender
            self.known.add((address, sender.id))

    async def note(self, address: Address, sender: Sender) -> None:
        """Remember the direct chat of an owner, who has written there. Costs a commit if it was not known."""
        person = Person.of(address, sender)
        known = self._chats.get(person)
        if known is not None and known[0].peer == address.peer:  # Another thread of the same chat.
            return
        chat = Address(channel=address.channel, account=address.account, kind=address.kind, peer=address.peer)
        value = msgspec.json.encode((chat, sender)).decode()
        with suppress(SpoolUnavailable):  # The next message tries again.
            await self._spool.commit(SetFact(name=f"{OWNER_CHAT_FACTS}{person}", value=value))
            self._chats[person] = chat, sender
            self.known.add((chat, sender.id))
            if known is not None:
                self.known.discard((known[0], sender.id))

    def questions(self, applicant: Applicant) -> list[Outbound]:
        """Return a message to each owner about a request for access. Empty if there were many requests lately."""
        now = self._now()
        told = self._told.setdefault(applicant.person.channel, deque(maxlen=MAX_REQUESTS))
        if len(told) == MAX_REQUESTS and abs(now - told[0]) < WINDOW:
            return []
        owners = self.chats()
        if owners:
            told.append(now)
        who = f"{applicant.name} ({applicant.person})" if applicant.name else str(applicant.person)
        yes, no = f"/pair approve {applicant.code}", f"/pair deny {applicant.code}"
        text = f"{who} asks for access to me.\nTo decide, use the buttons, or send {yes} or {no}."
        buttons = (Button(label="Approve", command=yes), Button(label="Deny", command=no))
        return [Outbound(address=chat, text=text, buttons=buttons, recipient=sender) for chat, sender in owners]

    def chats(self) -> list[tuple[Address, Sender]]:
        """Return the direct chats of the owners, at most `MAX_CHATS`."""
        owners = [(chat, sender) for chat, sender in self._chats.values() if is_owner(self._live, chat, sender)]
        owners += [
            (guest.person.direct_chat(guest.peer), Sender(id=guest.person.sender, name=guest.name))
            for guest in self._live.guest_book.guests.values()
            if guest.is_owner and guest.person not in self._chats
        ]
        return owners[-MAX_CHATS:]
