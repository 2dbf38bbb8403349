"""Routes of the control socket for operator commands: reload, log level, spool, pairing, doctor and backup."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from msgspec.structs import replace

from config import LogLevel, ReloadPlan, Settings
from gateway.access.guests import Applicant, Guest
from gateway.access.pairing import Pairing
from gateway.access.roles import check_changeable, current_role
from gateway.access.rules import Live
from gateway.admin.session_routes import required_text, stream_route
from gateway.contract import Access, Caller, Channel, Route
from gateway.conversation import Json
from gateway.errors import Refused
from gateway.mcp.server import McpServers
from gateway.outbound.delivery import Delivery
from gateway.sessions import SessionManager
from gateway.spool import OutboxRow, OutboxState, RetryDead, Spool
from gateway.text import excerpt

if TYPE_CHECKING:
    from gateway.backup.create import Backup

log = structlog.get_logger()

PAIRING_ACTIONS = ("approve", "deny", "revoke", "role")
STORAGE_TIMEOUT = 60.0
"""Seconds for the checks of the database and the cluster."""
DOCTOR_TIMEOUT = 180.0
"""Seconds for all checks of `/doctor` together. Each call to a peer has its own, shorter deadline."""

_EXCERPT_WIDTH = 60


@dataclass(slots=True, kw_only=True)
class Operator:
    """Changes to the running gateway. `gatehouse run` sets both callbacks; in `gatehouse chat` they stay None."""

    reload: Callable[[], Awaitable[ReloadPlan]] | None = None
    """Reloads the configuration, and returns what was applied and what needs a restart. Raises `Refused`."""
    set_log_level: Callable[[LogLevel], None] | None = None

    def routes(self) -> list[Route]:
        async def reload(_request: web.Request, _: Caller) -> web.StreamResponse:
            if self.reload is None:
                raise Refused("This gateway belongs to `gatehouse chat` and can't reload. Restart the chat instead.")
            plan = await self.reload()
            return web.json_response({"applied": plan.applied, "restart_needed": plan.restart_needed})

        async def change_log_level(request: web.Request, _: Caller) -> web.StreamResponse:
            level = (await request.json()).get("level")
            if self.set_log_level is None or level not in set(LogLevel):
                raise Refused(f"The log level must be one of: {', '.join(LogLevel)}.")
            self.set_log_level(LogLevel(level))
            log.info("log_level_changed", to=level)
            return web.json_response({})

        return [
            Route(method="POST", path="/reload", access=Access.CONTROL, handle=reload),
            Route(method="POST", path="/log-level", access=Access.CONTROL, handle=change_log_level),
        ]


def spool_routes(spool: Spool, delivery: Delivery) -> list[Route]:
    async def show(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(await describe_spool(spool))

    async def retry(request: web.Request, _: Caller) -> web.StreamResponse:
        revived = await retry_dead_replies(spool, (await request.json()).get("key"))
        for row in revived if spool.shards is None else await spool.take_revived():
            delivery.enqueue(row)
        return web.json_response({"revived": [row.key for row in revived]})

    return [
        Route(method="GET", path="/spool", access=Access.CONTROL, handle=show),
        Route(method="POST", path="/spool/retry", access=Access.CONTROL, handle=retry),
    ]


async def describe_spool(spool: Spool) -> dict[str, Json]:
    """Return the failed messages and counts. Shows only as much of each text as is needed to recognise it."""
    listing, stats = await spool.listing(), await spool.stats()
    return {
        "set_aside": [
            {
                "turn": row.turn,
                "channel": row.inbound.address.channel,
                "chat": row.inbound.address.peer,
                "accepted_at": row.accepted_at.isoformat(),
                "text": excerpt(row.inbound.text, _EXCERPT_WIDTH),
                "reason": row.note,
            }
            for row in listing.inbox
        ],
        "undelivered": [
            {
                "key": row.key,
                "state": row.state,
                "channel": row.message.address.channel,
                "chat": row.message.address.peer,
                "created_at": row.created_at.isoformat(),
                "text": excerpt(row.message.text, _EXCERPT_WIDTH),
                "reason": row.reason,
            }
            for row in listing.outbox
        ],
        "unreadable": list(listing.unreadable),
        "inbox": {state.value: count for state, count in stats.inbox.items()},
        "outbox": {state.value: count for state, count in stats.outbox.items()},
        "events_remembered": stats.seen,
        "file_bytes": stats.file_bytes,
    }


async def retry_dead_replies(spool: Spool, key: object) -> list[OutboxRow]:
    """Make the dead reply with `key` pending again, or all dead replies if `key` is None. Return them."""
    dead = [row for row in (await spool.listing()).outbox if row.state is OutboxState.DEAD]
    chosen = [row for row in dead if key is None or row.key == key]
    if key is not None and not chosen:
        raise Refused("No failed reply has this key. `gatehouse spool` lists the failed replies.")
    if chosen:
        at_owner = spool.shards is not None
        await spool.commit(*(RetryDead(key=row.key, at_owner=at_owner) for row in chosen))
    return [replace(row, state=OutboxState.PENDING) for row in chosen]


def pairing_routes(pairing: Pairing, live: Live) -> list[Route]:
    async def show(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(describe_pairing(pairing, live))

    async def decide(request: web.Request, _: Caller) -> web.StreamResponse:
        action = request.path.rpartition("/")[2]
        return web.json_response(await decide_pairing(pairing, live, action, await request.json()))

    return [
        Route(method="GET", path="/pair", access=Access.CONTROL, handle=show),
        *(
            Route(method="POST", path=f"/pair/{action}", access=Access.CONTROL, handle=decide)
            for action in PAIRING_ACTIONS
        ),
    ]


def describe_pairing(pairing: Pairing, live: Live) -> dict[str, Json]:
    return {
        "waiting": [_describe_applicant(each) for each in pairing.waiting()],
        "guests": [_describe_guest(each, live) for each in pairing.guest_book.guests.values()],
        "revoked": [
            {"id": str(each.person), "name": each.name, "at": each.at.isoformat()}
            for each in pairing.guest_book.revoked.values()
        ],
    }


async def decide_pairing(pairing: Pairing, live: Live, action: str, wanted: Mapping[str, Json]) -> dict[str, Json]:
    """Approve, deny or revoke access, or give a role, and return the person it was about."""
    role = wanted.get("role")
    if isinstance(role, str) and role:
        live.roles.check_exists(role)
    match action:
        case "approve":
            is_owner = wanted.get("is_owner") is True
            applicant = await pairing.find_applicant(required_text(wanted, "code"))
            guest = await pairing.approve(applicant, is_owner=is_owner, role=role if isinstance(role, str) else "")
            return {"approved": _describe_guest(guest, live)}
        case "role":
            guest = pairing.find_guest(required_text(wanted, "id"))
            check_changeable(live, guest)
            return {"changed": _describe_guest(await pairing.set_role(guest, required_text(wanted, "role")), live)}
        case "deny":
            applicant = await pairing.find_applicant(required_text(wanted, "code"))
            return {"denied": _describe_applicant(await pairing.deny(applicant))}
        case _:
            guest = pairing.find_guest(required_text(wanted, "id"))
            revoked = _describe_guest(guest, live)
            await pairing.revoke(guest)
            return {"revoked": revoked}


def _describe_applicant(applicant: Applicant) -> dict[str, Json]:
    return {
        "code": applicant.code,
        "id": str(applicant.person),
        "name": applicant.name,
        "asked_at": applicant.asked_at.isoformat(),
    }


def _describe_guest(guest: Guest, live: Live) -> dict[str, Json]:
    role = current_role(live, guest)
    return {
        "id": str(guest.person),
        "name": guest.name,
        "role": role,
        "role_exists": role in live.roles.roles,
        "since": guest.since.isoformat(),
    }


def doctor_routes(
    settings: Callable[[], Settings],
    channels: Mapping[tuple[str, str], Channel],
    mcp: McpServers,
    check_config: Callable[[], dict[str, Json]] | None,
) -> list[Route]:
    """Return the routes for checks that only the daemon can make: it has the secrets, and runs in its sandbox.

    `check_config` checks the configuration file of the process. It is None in `gatehouse chat`.
    """

    async def examine(_request: web.Request, _: Caller) -> web.StreamResponse:
        # Rarely used, so the daemon's start does not wait for it.
        from gateway.doctor.finding import as_json  # noqa: PLC0415
        from gateway.doctor.peers import DEADLINE, check_mcp, check_peers  # noqa: PLC0415

        findings = [*await check_peers(settings(), channels, DEADLINE), *check_mcp(mcp)]
        return web.json_response({"findings": [as_json(finding) for finding in findings]})

    async def examine_storage(_request: web.Request, _: Caller) -> web.StreamResponse:
        from gateway.doctor.cluster import check_cluster  # noqa: PLC0415 - as above.
        from gateway.doctor.database import check_database  # noqa: PLC0415 - as above.
        from gateway.doctor.finding import as_json  # noqa: PLC0415 - as above.

        database = await asyncio.to_thread(check_database, settings().storage)
        findings = [*database, *await check_cluster(settings())]
        return web.json_response({"findings": [as_json(finding) for finding in findings]})

    async def examine_config(_request: web.Request, _: Caller) -> web.StreamResponse:
        if check_config is None:
            raise Refused("This gateway belongs to `gatehouse chat`, which doesn't check the configuration.")
        return web.json_response(await asyncio.to_thread(check_config))

    return [
        Route(method="POST", path="/doctor", access=Access.CONTROL, handle=examine, deadline=DOCTOR_TIMEOUT),
        Route(
            method="POST",
            path="/doctor/storage",
            access=Access.CONTROL,
            handle=examine_storage,
            deadline=STORAGE_TIMEOUT,
        ),
        Route(method="POST", path="/config/check", access=Access.CONTROL, handle=examine_config),
    ]


def backups(
    data_dir: Path, spool: Spool, sessions: SessionManager, *, now: Callable[[], datetime], config: Path | None
) -> Callable[[], "Backup"]:
    """Return a function that returns the one object which makes backups. It makes one at a time."""

    @cache
    def backup() -> "Backup":
        # Rarely used, so the daemon's start does not wait for it.
        from gateway.backup.create import Backup  # noqa: PLC0415

        return Backup(data_dir, spool=spool, sessions=sessions, now=now, config=config)

    return backup


def backup_routes(backup: Callable[[], "Backup"]) -> list[Route]:
    def blocks(query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        return backup().blocks(has_secrets=query.get("secrets") == "yes", has_files=query.get("files") != "no")

    return [stream_route("/backup", blocks)]
