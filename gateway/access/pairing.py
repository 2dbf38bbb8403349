"""Pairing: an unknown sender gets a code, an owner approves it, and the sender has access from then on."""

import hmac
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import uuid4

import structlog
from msgspec.structs import replace

from config import OWNER_ROLE, DmPolicy
from gateway.access.guests import Applicant, Guest, GuestBook, Person, Revoked, delete_fact, save_fact, take_fact
from gateway.access.rules import Live
from gateway.bounded import BoundedDict
from gateway.contract import Inbound, Outbound
from gateway.errors import Refused
from gateway.spool import AddToOutbox, Operation, Spool, WrongState
from gateway.text import excerpt, printable

log = structlog.get_logger()

MAX_WAITING = 3
"""Codes that are valid at the same time on one channel. More codes would make guessing easier."""
MAX_REMEMBERED = 1_000
MAX_TRIES = 5
"""Wrong codes after which all waiting codes become invalid."""

# Thirty-two characters that are hard to confuse with each other: each is five bits.
_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
CODE_LENGTH = 8
_NAME_WIDTH = 64

DENIED = "The owner of this bot has declined your request."
WELCOME = "You're approved. Message me any time; /help lists commands."
UNKNOWN_CODE = (
    "That code is unknown or expired. Codes last one hour, work once, and become invalid after five wrong tries. "
    "/pair shows the waiting requests, and so does: gatehouse pair list"
)

Reply = Callable[[str, Sequence[Operation]], Awaitable[None]]
"""Answers the message with a text, and commits operations with it."""


AlsoEnds = Callable[[Collection[Person]], Sequence[Operation]]
"""Returns the changes that are committed when people lose access."""


class Pairing:
    """Access requests: an unknown sender gets a code, an owner approves or denies it.

    `post` delivers committed messages. `on_revoked` stops the work of people who have lost access. `ask_owners`
    composes the question to the owners, which is committed with the code, so that they are asked once. The guest book
    changes before the commit, so that no other request can use the same code or place. The change is undone if the
    commit fails, also by cancellation: the guest book never contains more than the spool.
    """

    def __init__(
        self,
        guest_book: GuestBook,
        spool: Spool,
        *,
        now: Callable[[], datetime],
        post: Callable[[Sequence[AddToOutbox]], None] = lambda _: None,
        on_revoked: Callable[[], None] = lambda: None,
        also_ends: AlsoEnds = lambda _: (),
        has_owner: Callable[[], bool] = lambda: True,
        ask_owners: Callable[[Applicant], list[AddToOutbox]] = lambda _: [],
    ) -> None:
        self.guest_book = guest_book
        self._spool = spool
        self._now = now
        self._post = post
        self._on_revoked = on_revoked
        self._also_ends = also_ends
        self._has_owner = has_owner
        self._ask_owners = ask_owners
        self._decided = BoundedDict[bytes, str](MAX_REMEMBERED)
        """What was decided about a code. Another owner may press a button of the same question later."""

    def read(self, facts: Mapping[str, str]) -> None:
        """Load the facts that the spool has kept. Another node of the cluster may have decided, or revoked access."""
        book = self.guest_book
        guests, applicants, revoked = book.guests, book.applicants, book.revoked
        book.read(facts)
        for person, asked in applicants.items():
            if person in book.guests:
                self._note_decision(asked, "approved")
            elif (now := book.applicants.get(person)) is not None and now.is_denied and not asked.is_denied:
                self._note_decision(asked, "denied")
        has_changed = any(book.guests.get(person) != guest for person, guest in guests.items())
        if has_changed or book.revoked.keys() - revoked.keys():
            self._on_revoked()

    async def request(self, inbound: Inbound, reply: Reply) -> bool:
        """Send a stranger a code, once. Returns False if too many others are waiting."""
        person, now = Person.of(inbound.address, inbound.sender), self._now()
        # A person with a valid code is not sent it again, and a denied person is sent nothing.
        known = self.guest_book.applicants.get(person)
        if known is not None and not known.is_expired(now):
            return True
        waiting = [each for each in self.guest_book.waiting(now) if each.person.channel == person.channel]
        if len(waiting) >= MAX_WAITING:
            return False
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(CODE_LENGTH))
        code = f"{letters[:4]}-{letters[4:]}"
        applicant = Applicant(
            person=person,
            name=excerpt(printable(inbound.sender.name), _NAME_WIDTH),
            peer=inbound.address.peer,
            code=code,
            asked_at=now,
        )
        expired = [each for each in self.guest_book.expired(now) if each.person != person]
        self.guest_book.applicants[person] = applicant
        # The first person is usually the operator, who needs the rights of an owner in chats.
        is_first = not self._has_owner()
        option = " --owner" if is_first else ""
        invitation = (
            f"This bot is private. Send its owner this code: {code} (valid for one hour).\n"
            f"Your ID here is {person.sender}. The owner approves the code with: gatehouse pair approve {code}{option}"
        )
        if is_first:
            invitation += "\nWith --owner you become an owner too. The owner leaves it out for everyone else."
        questions = self._ask_owners(applicant)
        try:
            await reply(invitation, [*map(delete_fact, expired), save_fact(applicant), *questions])
        except BaseException:
            self._restore(person, known)
            raise
        self._post(questions)
        self._remove(expired)
        log.info("pairing_requested", person=str(person))
        return True

    async def find_applicant(self, code: str) -> Applicant:
        """Return the person with `code`. Raises `Refused` for a wrong code, and counts it.

        The time that this takes does not depend on how much of the code is right.
        """
        guess = normalized_code(code)
        found: Applicant | None = None
        for applicant in self.waiting():
            if hmac.compare_digest(normalized_code(applicant.code), guess):
                found = applicant
        if found is not None:
            return found
        if guess in self._decided:
            raise Refused(self._decided[guess])
        # A guess does not say whose code it was meant to be, so it counts against all of them.
        missed = [replace(each, tries=each.tries + 1) for each in self.waiting()]
        for each in missed:
            self.guest_book.applicants[each.person] = each
        invalid = [each for each in missed if each.tries >= MAX_TRIES]
        self._remove(invalid)
        if missed:
            await self._spool.commit(*(delete_fact(each) if each in invalid else save_fact(each) for each in missed))
        if invalid:
            log.warning("pairing_codes_dropped", count=len(invalid), reason="too many wrong codes were tried")
        raise Refused(UNKNOWN_CODE)

    async def approve(
        self, applicant: Applicant, *, is_owner: bool = False, role: str = "", also: Sequence[Operation] = ()
    ) -> Guest:
        """Give `applicant` access and a role, and tell them. Raises `Refused` if their code was used meanwhile."""
        # Chat, command line and admin API can use the same code at the same time.
        if self.guest_book.applicants.get(applicant.person) != applicant:
            raise Refused(UNKNOWN_CODE)
        now = self._now()
        guest = Guest(
            person=applicant.person,
            name=applicant.name,
            peer=applicant.peer,
            since=now,
            is_owner=is_owner or role == OWNER_ROLE,
            role="" if role == OWNER_ROLE else role,
        )
        message = Outbound(address=guest.person.direct_chat(guest.peer), text=WELCOME)
        welcome = AddToOutbox(key=f"notice-{uuid4().hex}", turn=None, message=message, at=now, scope=self._spool.home)
        revoked = self.guest_book.revoked.get(guest.person)
        forgiven = [] if revoked is None else [delete_fact(revoked)]
        self._remove([applicant])
        try:
            await self._spool.commit(take_fact(applicant), *forgiven, save_fact(guest), welcome, *also)
        except BaseException as error:
            self._restore(applicant.person, applicant)
            if isinstance(error, WrongState):  # It was decided at another node of the cluster just now.
                raise Refused(UNKNOWN_CODE) from error
            raise
        self.guest_book.revoked.pop(guest.person, None)
        self.guest_book.guests[guest.person] = guest
        self._note_decision(applicant, "approved")
        self._post([welcome])
        log.info("pairing_approved", person=str(guest.person), is_owner=guest.is_owner, role=guest.role)
        return guest

    async def deny(self, applicant: Applicant, *, also: Sequence[Operation] = ()) -> Applicant:
        """Deny `applicant` access, and tell them. They get no other code for a day."""
        if self.guest_book.applicants.get(applicant.person) != applicant:
            raise Refused(UNKNOWN_CODE)
        denied = replace(applicant, is_denied=True)
        message = Outbound(address=applicant.person.direct_chat(applicant.peer), text=DENIED)
        notice = AddToOutbox(
            key=f"notice-{uuid4().hex}", turn=None, message=message, at=self._now(), scope=self._spool.home
        )
        try:
            await self._spool.commit(take_fact(applicant), save_fact(denied), notice, *also)
        except WrongState as error:  # As above.
            raise Refused(UNKNOWN_CODE) from error
        self.guest_book.applicants[denied.person] = denied
        self._note_decision(applicant, "denied")
        self._post([notice])
        log.info("pairing_denied", person=str(denied.person))
        return denied

    def find_guest(self, name: str) -> Guest:
        """Return the guest that a listing shows as `name`: the channel and the ID on it."""
        guest = next((each for each in self.guest_book.guests.values() if str(each.person) == name.strip()), None)
        if guest is None:
            raise Refused(
                "No one with that ID was approved with a code. /pair shows who was, and so does "
                "gatehouse pair list. People allowed by the configuration are not listed there."
            )
        return guest

    async def set_role(self, guest: Guest, role: str, *, also: Sequence[Operation] = ()) -> Guest:
        """Give `guest` another role from now on. It holds for running turns too."""
        is_owner = role == OWNER_ROLE
        changed = replace(guest, is_owner=is_owner, role="" if is_owner else role)
        await self._spool.commit(save_fact(changed), *also)
        self.guest_book.guests[guest.person] = changed
        self._on_revoked()
        log.info("role_changed", person=str(guest.person), role=role)
        return changed

    async def revoke(self, guest: Guest, *, also: Sequence[Operation] = ()) -> Guest:
        """Take the access of `guest` away at once, and stop their work. They get no other code for a day."""
        revoked = Revoked(person=guest.person, name=guest.name, at=self._now())
        await self._spool.commit(delete_fact(guest), save_fact(revoked), *self._also_ends([guest.person]), *also)
        self.guest_book.guests.pop(guest.person, None)
        self.guest_book.revoked[guest.person] = revoked
        self._on_revoked()
        log.info("pairing_revoked", person=str(guest.person))
        return guest

    async def shut_out(self, people: Collection[Person]) -> None:
        """Treat people whom the settings no longer name like revoked guests, and stop their work."""
        revoked = [Revoked(person=person, at=self._now()) for person in people]
        self.guest_book.revoked.update({each.person: each for each in revoked})
        self._on_revoked()
        if revoked:
            log.info("access_removed", people=[str(person) for person in people])
            await self._spool.commit(*map(save_fact, revoked), *self._also_ends(people))

    def was_revoked_recently(self, person: Person) -> bool:
        revoked = self.guest_book.revoked.get(person)
        return revoked is not None and revoked.is_recent(self._now())

    def waiting(self) -> list[Applicant]:
        return self.guest_book.waiting(self._now())

    def _note_decision(self, applicant: Applicant, decision: str) -> None:
        self._decided[normalized_code(applicant.code)] = f"{applicant.name or applicant.person} was {decision} already."

    def _remove(self, applicants: Sequence[Applicant]) -> None:
        for each in applicants:
            self.guest_book.applicants.pop(each.person, None)

    def _restore(self, person: Person, before: Applicant | None) -> None:
        if before is None:
            self.guest_book.applicants.pop(person, None)
        else:
            self.guest_book.applicants[person] = before


def normalized_code(code: str) -> bytes:
    """Return a code without separators and case, as people may type it."""
    return "".join(filter(str.isalnum, code)).upper().encode()


REPEAT_AFTER = timedelta(days=1)
"""An unknown sender gets the same answer only once within this time."""
MAX_ANSWERS = 20
"""Unknown senders that are answered on one channel within `ANSWER_WINDOW`, since each answer costs a request."""
ANSWER_WINDOW = timedelta(hours=1)


class UnknownSenders:
    """Tells unknown senders, once, how to request access."""

    def __init__(self, live: Live, pairing: Pairing, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._pairing = pairing
        self._now = now
        self._answered = BoundedDict[Person, datetime](MAX_REMEMBERED)

    async def answer(self, inbound: Inbound, reply: Reply) -> None:
        """Answer a direct message of an unknown sender, unless they were answered recently."""
        person, now = Person.of(inbound.address, inbound.sender), self._now()
        if not inbound.sender.id or self._pairing.was_revoked_recently(person):
            return
        full = ""
        if self._live.rules(inbound.address).dm_policy is DmPolicy.PAIRING:
            if await self._pairing.request(inbound, reply):
                return
            full = " Too many people are waiting for approval right now. Try again in an hour."
        # A crowd gets no answers: each would cost a request to the platform.
        recent = [
            at
            for other, at in self._answered.items()
            if other.channel == person.channel and abs(now - at) < ANSWER_WINDOW
        ]
        is_repeated = person in self._answered and abs(now - self._answered[person]) < REPEAT_AFTER
        if len(recent) >= MAX_ANSWERS or is_repeated:
            return
        self._answered[person] = now
        text = (
            f"This bot is private. Its owner can give you access by adding your ID, {person.sender}, "
            f"to channels.{person.channel}.allow.{full}"
        )
        await reply(text, ())
