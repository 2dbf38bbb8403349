"""Commands for owners about who has access. Only the command line can make another owner."""

from collections.abc import Callable
from datetime import datetime

from config import OWNER_ROLE
from gateway.access.guests import Applicant, Guest
from gateway.access.pairing import CODE_LENGTH, Pairing, normalized_code
from gateway.access.roles import check_changeable, configured_role, current_role
from gateway.access.rules import Live
from gateway.commands.command import Answer, Call, Handlers
from gateway.contract import PeerKind
from gateway.errors import Refused
from gateway.text.plain import ago


class PairingCommands:
    def __init__(self, live: Live, pairing: Pairing, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._pairing = pairing
        self._now = now

    def handlers(self) -> Handlers:
        return {
            "pair": self.list,
            "pair approve": self.approve,
            "pair deny": self.deny,
            "pair revoke": self.revoke,
            "pair role": self.role,
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
            lines += [f"{guest.person}  {guest.name} ({self._shown_role(guest)})" for guest in guests]
        if revoked := self._pairing.guest_book.revoked.values():
            lines += ["Revoked:", *(f"{each.person}  {each.name}".rstrip() for each in revoked)]
        return Answer(text="\n".join(lines) or "No access requests, and no one was approved with a code.")

    async def approve(self, call: Call) -> Answer:
        code, _, role = call.argument.partition(" ")
        if role and len(normalized_code(code)) < CODE_LENGTH:  # The code itself was typed with a space.
            code, role = call.argument, ""
        role = self._checked(role) if role else ""
        applicant = await self._applicant(call, code)
        given = f" with the role {shown}" if (shown := configured_role(self._live, applicant.person) or role) else ""
        return Answer(
            text=f"{_name(applicant)} is approved{given} and has been notified.",
            commit=lambda operations: self._pairing.approve(applicant, role=role, also=operations),
        )

    async def deny(self, call: Call) -> Answer:
        applicant = await self._applicant(call, call.argument)
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

    async def role(self, call: Call) -> Answer:
        _require_owner(call)
        name, _, role = call.argument.rpartition(" ")
        if not name.strip():
            roles = ", ".join(each.name for each in self._live.roles if not each.is_owner)
            raise Refused(f"Who, and which role? Like /pair role telegram:123 member. Roles: {roles}.")
        role, guest = self._checked(role), self._pairing.find_guest(name)
        check_changeable(self._live, guest)
        return Answer(
            text=f"{_name(guest)} has the role {role} from now on.",
            commit=lambda operations: self._pairing.set_role(guest, role, also=operations),
        )

    def _checked(self, role: str) -> str:
        role = role.strip().lower()
        if role == OWNER_ROLE:
            raise Refused("Only the command line makes someone an owner: gatehouse pair role ID owner")
        self._live.roles.check_exists(role)
        return role

    def _shown_role(self, guest: Guest) -> str:
        role = current_role(self._live, guest)
        return role if role in self._live.roles.roles else f"{role}, which no longer exists"

    async def _applicant(self, call: Call, code: str) -> Applicant:
        _require_owner(call)
        if not code:
            raise Refused("Which code? Add it, like /pair approve ABCD-EFGH.")
        return await self._pairing.find_applicant(code)


def _require_owner(call: Call) -> None:
    if not call.is_owner:
        raise Refused("Only an owner decides who has access.")


def _name(each: Applicant | Guest) -> str:
    return f"{each.name} ({each.person})" if each.name else str(each.person)
