"""The spool as an operator sees it: what was set aside, what was not delivered, and another try for it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import structlog
from aiohttp import web
from msgspec.structs import replace

from config import LogLevel
from gateway.access.guests import Applicant, Guest
from gateway.access.pairing import Pairing
from gateway.contract import Access, Caller, Route
from gateway.conversation import Json
from gateway.errors import Refused
from gateway.outbound.delivery import Delivery
from gateway.spool import InboxRow, OutboxRow, OutboxState, RetryDead, Spool
from gateway.text import excerpt

log = structlog.get_logger()


@dataclass(slots=True, kw_only=True)
class Operator:
    """What whoever has started the gateway lets be changed; it comes when there is something to change."""

    reload: Callable[[], Awaitable[None]] | None = None
    """Reads the configuration again, or raises `Refused`; set by whoever knows where it is."""
    set_log_level: Callable[[LogLevel], None] | None = None
    """Changes what is logged; set by whoever has set up the log."""

    def routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/reload", access=Access.CONTROL, handle=self._handle_reload),
            Route(method="POST", path="/log-level", access=Access.CONTROL, handle=self._handle_log_level),
        ]

    async def _handle_reload(self, _request: web.Request, _caller: Caller) -> web.StreamResponse:
        if self.reload is None:
            raise Refused("This gateway belongs to a chat; it reads its configuration when it starts.")
        await self.reload()
        return web.json_response({})

    async def _handle_log_level(self, request: web.Request, _caller: Caller) -> web.StreamResponse:
        level = (await request.json()).get("level")
        if self.set_log_level is None or level not in set(LogLevel):
            raise Refused(f"The log level has to be one of: {', '.join(LogLevel)}.")
        self.set_log_level(LogLevel(level))
        log.info("log_level_changed", to=level)
        return web.json_response({})


SHOWN_WIDTH = 60


async def describe_spool(spool: Spool) -> dict[str, Json]:
    """Tell without showing more of a message than is needed to recognise it."""
    listing, stats = await spool.listing(), await spool.stats()
    return {
        "set_aside": [_message(row) for row in listing.inbox],
        "undelivered": [_reply(row) for row in listing.outbox],
        "unreadable": list(listing.unreadable),
        "inbox": {state.value: count for state, count in stats.inbox.items()},
        "outbox": {state.value: count for state, count in stats.outbox.items()},
        "events_remembered": stats.seen,
        "file_bytes": stats.file_bytes,
    }


async def retry_dead_replies(spool: Spool, key: object) -> list[OutboxRow]:
    """Make replies that were given up pending again: the one with `key`, or all for None."""
    dead = [row for row in (await spool.listing()).outbox if row.state is OutboxState.DEAD]
    chosen = [row for row in dead if key is None or row.key == key]
    if key is not None and not chosen:
        raise Refused("No reply of that key was given up. `gatehouse spool` lists those that were.")
    if chosen:
        await spool.commit(*(RetryDead(key=row.key) for row in chosen))
    return [replace(row, state=OutboxState.PENDING) for row in chosen]


def _message(row: InboxRow) -> dict[str, Json]:
    address = row.inbound.address
    return {
        "turn": row.turn,
        "channel": address.channel,
        "chat": address.peer,
        "accepted_at": row.accepted_at.isoformat(),
        "text": excerpt(row.inbound.text, SHOWN_WIDTH),
        "reason": row.note,
    }


def _reply(row: OutboxRow) -> dict[str, Json]:
    address = row.message.address
    return {
        "key": row.key,
        "state": row.state,
        "channel": address.channel,
        "chat": address.peer,
        "created_at": row.created_at.isoformat(),
        "text": excerpt(row.message.text, SHOWN_WIDTH),
        "reason": row.reason,
    }


def describe_pairing(pairing: Pairing) -> dict[str, Json]:
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


PAIRING_ACTIONS: dict[str, Callable[[Pairing, dict[str, Json]], Awaitable[dict[str, Json]]]] = {
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


def spool_routes(spool: Spool, delivery: Delivery) -> list[Route]:
    async def listing(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(await describe_spool(spool))

    async def retry(request: web.Request, _: Caller) -> web.StreamResponse:
        revived = await retry_dead_replies(spool, (await request.json()).get("key"))
        for row in revived:
            delivery.resume(row)
        return web.json_response({"revived": [row.key for row in revived]})

    return [
        Route(method="GET", path="/spool", access=Access.CONTROL, handle=listing),
        Route(method="POST", path="/spool/retry", access=Access.CONTROL, handle=retry),
    ]


def pairing_routes(pairing: Pairing) -> list[Route]:
    async def show(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(describe_pairing(pairing))

    async def decide(request: web.Request, _: Caller, *, action: str) -> web.StreamResponse:
        return web.json_response(await PAIRING_ACTIONS[action](pairing, await request.json()))

    decisions = [
        Route(method="POST", path=f"/pair/{action}", access=Access.CONTROL, handle=partial(decide, action=action))
        for action in PAIRING_ACTIONS
    ]
    return [Route(method="GET", path="/pair", access=Access.CONTROL, handle=show), *decisions]
