"""Pairing as the command line speaks of it, with the daemon running or not."""

from collections.abc import Awaitable, Callable

from gateway.access.guests import Applicant, Guest
from gateway.access.pairing import Pairing
from gateway.conversation import Json
from gateway.errors import Refused

__all__ = ["ACTIONS", "listing"]


def listing(pairing: Pairing) -> dict[str, Json]:
    return {
        "waiting": [_applicant(each) for each in pairing.waiting()],
        "guests": [_guest(each) for each in pairing.book.guests.values()],
    }


async def _approve(pairing: Pairing, wanted: dict[str, Json]) -> dict[str, Json]:
    return {"approved": _guest(await pairing.approve(_text(wanted, "code"), is_owner=wanted.get("is_owner") is True))}


async def _deny(pairing: Pairing, wanted: dict[str, Json]) -> dict[str, Json]:
    return {"denied": _applicant(await pairing.deny(_text(wanted, "code")))}


async def _revoke(pairing: Pairing, wanted: dict[str, Json]) -> dict[str, Json]:
    return {"revoked": _guest(await pairing.revoke(_text(wanted, "id")))}


ACTIONS: dict[str, Callable[[Pairing, dict[str, Json]], Awaitable[dict[str, Json]]]] = {
    "approve": _approve,
    "deny": _deny,
    "revoke": _revoke,
}
"""What the owner can decide, by name: a decision in, what has become of it out."""


def _text(wanted: dict[str, Json], key: str) -> str:
    found = wanted.get(key)
    if not isinstance(found, str):
        raise Refused(f"This needs a text called {key}.")
    return found


def _applicant(applicant: Applicant) -> dict[str, Json]:
    return {
        "code": applicant.code,
        "id": str(applicant.person),
        "name": applicant.name,
        "asked_at": applicant.asked_at.isoformat(),
    }


def _guest(guest: Guest) -> dict[str, Json]:
    return {
        "id": str(guest.person),
        "name": guest.name,
        "role": "owner" if guest.is_owner else "user",
        "since": guest.since.isoformat(),
    }
