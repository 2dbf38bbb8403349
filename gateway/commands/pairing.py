"""Commands for the owner about who may talk. Making another owner is left to the command line."""

from gateway.access.guests import Applicant, Guest
from gateway.commands.command import Answer, Call, Command
from gateway.contract import PeerKind
from gateway.errors import Refused
from gateway.text.plain import ago

__all__ = ["PAIR", "PAIR_APPROVE", "PAIR_DENY", "PAIR_REVOKE"]

ASKED_FOR_CODE = "Which code? Send it behind the command, like /pair approve ABCD-EFGH."


def _insist_on_owner(call: Call) -> None:
    if not call.is_owner:
        raise Refused("Only the owner decides who may talk.")


async def _list(call: Call) -> Answer:
    _insist_on_owner(call)
    if call.inbound.address.kind is not PeerKind.DIRECT:
        raise Refused("Ask me that directly: here others would see the codes.")
    pairing, now = call.desk.pairing, call.desk.now()
    waiting = [f"{each.code}  {_named(each)}, asked {ago(each.asked_at, now)}" for each in pairing.waiting()]
    guests = [_let_in(guest) for guest in pairing.book.guests.values()]
    lines = ["Waiting to be let in:", *waiting, "/pair approve <code> or /pair deny <code>"] if waiting else []
    lines += ["Let in by a code:", *guests] if guests else []
    return Answer(text="\n".join(lines) or "Nobody waits, and nobody was let in by a code.")


def _let_in(guest: Guest) -> str:
    return f"{guest.person}  {guest.name}" + (" (owner)" if guest.is_owner else "")


def _named(each: Applicant | Guest) -> str:
    return f"{each.name} ({each.person})" if each.name else str(each.person)


async def _approve(call: Call) -> Answer:
    _insist_on_owner(call)
    guest = await call.desk.pairing.approve(_code(call), also=lambda guest: call.settle(_approved(guest)))
    return _approved(guest)


def _approved(guest: Guest) -> Answer:
    return Answer(text=f"{_named(guest)} may talk now, and has been told.")


async def _deny(call: Call) -> Answer:
    _insist_on_owner(call)
    applicant = await call.desk.pairing.deny(_code(call), also=lambda each: call.settle(_denied(each)))
    return _denied(applicant)


def _denied(applicant: Applicant) -> Answer:
    return Answer(text=f"{_named(applicant)} stays out, and gets no other code for a day.")


async def _revoke(call: Call) -> Answer:
    _insist_on_owner(call)
    if not call.argument:
        raise Refused("Whom? Send the id behind the command, as /pair shows it.")
    guest = await call.desk.pairing.revoke(call.argument, also=lambda guest: call.settle(_revoked(guest)))
    return _revoked(guest)


def _revoked(guest: Guest) -> Answer:
    return Answer(text=f"{_named(guest)} may not talk any more.")


def _code(call: Call) -> str:
    if not call.argument:
        raise Refused(ASKED_FOR_CODE)
    return call.argument


PAIR = Command(name="pair", aliases=("pair list",), summary="Show who waits to be let in (owner)", run=_list)
PAIR_APPROVE = Command(
    name="pair approve", arguments="<code>", summary="Let in whoever has that code (owner)", run=_approve
)
PAIR_DENY = Command(name="pair deny", arguments="<code>", summary="Turn down whoever has that code (owner)", run=_deny)
PAIR_REVOKE = Command(name="pair revoke", arguments="<id>", summary="Let somebody in no longer (owner)", run=_revoke)
