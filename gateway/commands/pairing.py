"""Commands for owners about who has access. Only the command line can make another owner."""

from collections.abc import Callable
from datetime import datetime

from gateway.access.guests import Applicant, Guest
from gateway.access.pairing import Pairing
from gateway.commands.command import Answer, Call, Handlers
from gateway.contract import PeerKind
from gateway.errors import Refused
from gateway.text.plain import ago


class PairingCommands:
    def __init__(self, pairing: Pairing, *, now: Callable[[], datetime]) -> None:
        self._pairing = pairing
        self._now = now

    def handlers(self) -> Handlers:
        return {
            "pair": self.list,
            "pair approve": self.approve,
            "pair deny": self.deny,
            "pair revoke": self.revoke,
        }

    async def list(self, call: Call) -> Answer:
        _require_owner(call)
        if call.inbound.address.kind is not PeerKind.DIRECT:
            raise Refused("Send me /pair in a direct chat. Here, others would see the codes.")
        lines = []
        if waiting := self._pairing.waiting():
            lines += ["Waiting for approval:"]
            lines += [f"{each.code}  {_name(each)}, asked {ago(each.asked_at, self._now())}" for each in waiting]
            lines += ["/pair approve <code> or /pair deny <code>"]
        if guests := self._pairing.guest_book.guests.values():
            lines += ["Approved:"]
            lines += [f"{guest.person}  {guest.name}" + (" (owner)" if guest.is_owner else "") for guest in guests]
        if revoked := self._pairing.guest_book.revoked.values():
            lines += ["Revoked:", *(f"{each.person}  {each.name}".rstrip() for each in revoked)]
        return Answer(text="\n".join(lines) or "No access requests, and no one was approved with a code.")

    async def approve(self, call: Call) -> Answer:
        applicant = await self._applicant(call)
        return Answer(
            text=f"{_name(applicant)} is approved and has been notified.",
            commit=lambda operations: self._pairing.approve(applicant, also=operations),
        )

    async def deny(self, call: Call) -> Answer:
        applicant = await self._applicant(call)
        return Answer(
            text=f"{_name(applicant)} was denied, has been told, and can't request a new code for 24 hours.",
            commit=lambda operations: self._pairing.deny(applicant, also=operations),
        )

    async def revoke(self, call: Call) -> Answer:
        _require_owner(call)
        if not call.argument:
            raise Refused("Who? Add an ID from /pair: /pair revoke telegram:123")
        guest = self._pairing.find_guest(call.argument)
        return Answer(
            text=f"{_name(guest)} no longer has access and can't request a new code for 24 hours.",
            commit=lambda operations: self._pairing.revoke(guest, also=operations),
        )

    async def _applicant(self, call: Call) -> Applicant:
        _require_owner(call)
        if not call.argument:
            raise Refused("Which code? Add it, like /pair approve ABCD-EFGH.")
        return await self._pairing.find_applicant(call.argument)


def _require_owner(call: Call) -> None:
    if not call.is_owner:
        raise Refused("Only an owner decides who has access.")


def _name(each: Applicant | Guest) -> str:
    return f"{each.name} ({each.person})" if each.name else str(each.person)
