"""Pairing: a stranger gets a code, the owner approves it, and the stranger is a guest from then on."""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

import structlog

from config import DmPolicy
from gateway.access.guests import Applicant, Guest, GuestBook, Person, dropped, kept
from gateway.access.live import Live
from gateway.access.rules import rules_for
from gateway.bounded import BoundedDict
from gateway.contract import Inbound, Outbound, PeerKind
from gateway.errors import Refused
from gateway.spool import AddToOutbox, Operation, Spool
from gateway.text import excerpt

log = structlog.get_logger()

MAX_WAITING = 3
"""Codes that are good at the same time on one channel: as many guesses hit as there are codes."""
MAX_TRIES = 5
"""Wrong codes after which those that were waiting are no good any more."""

# Thirty-two characters that cannot be taken for each other: each is five bits.
_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_CODE_LENGTH = 8
_NAME_WIDTH = 64

WELCOME = "You are let in. Write to me whenever you like; /help says what I understand."
NO_SUCH_CODE = (
    "No one waits with that code. It is good for an hour, once, and for five tries; `gatehouse pair list` shows those "
    "who wait."
)

Told = Callable[[str, Sequence[Operation]], Awaitable[None]]
"""Tells the stranger a sentence, with operations in the same commit."""


class Pairing:
    """Decides nothing by itself: codes come from strangers, decisions from the owner. `post` sends what was committed.

    A change is made in the book first, so that no second one comes in between, and is undone when it cannot be kept.
    """

    def __init__(
        self,
        book: GuestBook,
        spool: Spool,
        *,
        now: Callable[[], datetime],
        post: Callable[[Sequence[AddToOutbox]], None] = lambda _: None,
    ) -> None:
        self.book = book
        self._spool = spool
        self._now = now
        self._post = post

    async def ask(self, inbound: Inbound, tell: Told) -> bool:
        """Give a stranger a code, once; return False when too many others are waiting."""
        person, now = Person.of(inbound.address, inbound.sender), self._now()
        known = self.book.applicants.get(person)
        if known is not None and not known.is_over(now):
            return True
        waiting = [each for each in self.book.waiting(now) if each.person.channel == person.channel]
        if len(waiting) >= MAX_WAITING:
            return False
        applicant = Applicant(
            person=person,
            name=excerpt(inbound.sender.name, _NAME_WIDTH),
            peer=inbound.address.peer,
            code=_code(),
            asked_at=now,
        )
        over = [each for each in self.book.over(now) if each.person != person]
        self.book.applicants[person] = applicant
        try:
            await tell(_invitation(applicant), [*map(dropped, over), kept(applicant)])
        except BaseException:  # Also when cancelled: the book says no more than the spool.
            self._restore(person, known)
            raise
        self._forget(over)
        log.info("pairing_asked", person=str(person))
        return True

    async def approve(
        self,
        code: str,
        *,
        is_owner: bool = False,
        also: Callable[[Guest], Sequence[Operation]] = lambda _: (),
    ) -> Guest:
        """Let in whoever has `code`, and tell them; `Refused` for a wrong one."""
        applicant = await self._found(code)
        now = self._now()
        guest = Guest(person=applicant.person, name=applicant.name, peer=applicant.peer, since=now, is_owner=is_owner)
        message = Outbound(address=guest.address, text=WELCOME)
        welcome = AddToOutbox(key=f"notice-{uuid4().hex}", turn=None, message=message, at=now)
        self._forget([applicant])
        try:
            await self._spool.commit(dropped(applicant), kept(guest), welcome, *also(guest))
        except BaseException:  # As above.
            self._restore(applicant.person, applicant)
            raise
        self.book.guests[guest.person] = guest
        self._post([welcome])
        log.info("pairing_approved", person=str(guest.person), is_owner=is_owner)
        return guest

    async def deny(self, code: str, *, also: Callable[[Applicant], Sequence[Operation]] = lambda _: ()) -> Applicant:
        """Turn down whoever has `code`. They are not told, and get no other code for a day."""
        applicant = await self._found(code)
        denied = replace(applicant, is_denied=True)
        await self._spool.commit(kept(denied), *also(denied))
        self.book.applicants[denied.person] = denied
        log.info("pairing_denied", person=str(denied.person))
        return denied

    async def revoke(self, name: str, *, also: Callable[[Guest], Sequence[Operation]] = lambda _: ()) -> Guest:
        """Let somebody in no longer. `name` is as the listing has it: the channel and the id on it."""
        guest = next((each for each in self.book.guests.values() if str(each.person) == name.strip()), None)
        if guest is None:
            raise Refused(
                "Nobody of that name was let in by a code. `gatehouse pair list` shows who was; those whom the "
                "configuration allows are not among them."
            )
        await self._spool.commit(dropped(guest), *also(guest))
        self.book.guests.pop(guest.person, None)
        log.info("pairing_revoked", person=str(guest.person))
        return guest

    def waiting(self) -> list[Applicant]:
        return self.book.waiting(self._now())

    async def _found(self, code: str) -> Applicant:
        """Find who has `code`, in a time that does not tell how much of it was right; a wrong one is counted."""
        guess = _plain(code)
        found: Applicant | None = None
        for applicant in self.waiting():
            if hmac.compare_digest(_plain(applicant.code), guess):
                found = applicant
        if found is None:
            await self._count_a_miss()
            raise Refused(NO_SUCH_CODE)
        return found

    async def _count_a_miss(self) -> None:
        missed = [replace(each, tries=each.tries + 1) for each in self.waiting()]
        for each in missed:
            self.book.applicants[each.person] = each
        used_up = [each for each in missed if each.tries >= MAX_TRIES]
        self._forget(used_up)
        if missed:
            await self._spool.commit(*(dropped(each) if each in used_up else kept(each) for each in missed))
        if used_up:
            log.warning("pairing_codes_dropped", count=len(used_up), reason="too many wrong codes were tried")

    def _forget(self, applicants: Sequence[Applicant]) -> None:
        for each in applicants:
            self.book.applicants.pop(each.person, None)

    def _restore(self, person: Person, before: Applicant | None) -> None:
        if before is None:
            self.book.applicants.pop(person, None)
        else:
            self.book.applicants[person] = before


def _code() -> str:
    letters = "".join(secrets.choice(_ALPHABET) for _ in range(_CODE_LENGTH))
    return f"{letters[:4]}-{letters[4:]}"


def _plain(code: str) -> bytes:
    """Return what counts of a code as it was typed."""
    return "".join(filter(str.isalnum, code)).upper().encode()


def _invitation(applicant: Applicant) -> str:
    return (
        f"I do not know you yet. Ask my owner to let you in with the code {applicant.code}; it is good for an hour.\n"
        f"(On the gateway: gatehouse pair approve {applicant.code}. Your id here is {applicant.person.sender}.)"
    )


REMEMBERED = 1_000
TOLD_FOR = timedelta(days=1)
"""Nobody is told the same again before that."""
TOLD_AT_ONCE = 20
"""Strangers that are told on one channel within an hour; a crowd is left in silence, since each answer costs us."""
WITHIN = timedelta(hours=1)


class Strangers:
    def __init__(self, live: Live, pairing: Pairing, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._pairing = pairing
        self._now = now
        self._told = BoundedDict[Person, datetime](REMEMBERED)

    async def turn_away(self, inbound: Inbound, tell: Told) -> None:
        """Tell somebody who wrote directly how to get in; in a group, strangers get no answer."""
        if inbound.address.kind is not PeerKind.DIRECT or not inbound.sender.id:
            return
        rules = rules_for(self._live, inbound.address)
        if rules.dm_policy is DmPolicy.PAIRING:
            if not await self._pairing.ask(inbound, tell):
                await self._tell_once(inbound, "Others are waiting to be let in; write again in an hour.", tell)
        else:
            await self._tell_once(inbound, "", tell)

    async def _tell_once(self, inbound: Inbound, more: str, tell: Told) -> None:
        person, now = Person.of(inbound.address, inbound.sender), self._now()
        told = [at for other, at in self._told.items() if other.channel == person.channel and abs(now - at) < WITHIN]
        if len(told) >= TOLD_AT_ONCE or (person in self._told and abs(now - self._told[person]) < TOLD_FOR):
            return
        self._told[person] = now
        text = (
            f"I do not know you yet. My owner can let you in by adding your id, {person.sender}, "
            f"to channels.{person.channel}.allow. {more}"
        )
        await tell(text.rstrip(), ())
