"""`gatehouse sessions move`: brings sessions along when the settings that form their scopes have changed."""

import argparse
import asyncio
import json
import sys
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass

from config import Settings
from gateway.admin.archive import Archive, open_archive
from gateway.admin.session_move import scope_of
from gateway.admin.session_routes import ListedSession
from gateway.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, fail, print_error
from gateway.cli.sessions.names import find_scope
from gateway.contract import Address, PeerKind, Sender
from gateway.errors import Refused
from gateway.routing import is_reachable, route
from gateway.sessions import SessionMeta, entries
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.text import printable
from gateway.text.plain import count


@dataclass(frozen=True, slots=True, kw_only=True)
class _Move:
    """`target` is None if the session doesn't tell where it belongs now."""

    session: SessionMeta
    is_active: bool
    target: str | None


def move(settings: Settings, options: argparse.Namespace) -> int:
    """Show what would be moved, ask for confirmation, and move it."""
    moves = asyncio.run(_plan(settings, options))
    known = [each for each in moves if each.target is not None]
    if not options.json:
        for (source, target), number in Counter((each.session.scope, each.target) for each in moves).items():
            where = f"to {printable(target)}" if target else "stays: it doesn't tell its chat; name FROM and TO"
            print(f"{printable(source)}: {count(number, 'session')} {where}")
    if not known:
        if options.json:
            print("[]")
        else:
            print("No session has to be moved." if not moves else "Nothing can be moved without FROM and TO.")
        return EXIT_OK
    if not options.yes:
        if not (sys.stdin and sys.stdin.isatty()):
            return fail("Nothing was moved. Add --yes to move them.", EXIT_USAGE)
        try:
            answer = input(f"Move {count(len(known), 'session')}? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in {"y", "yes"}:
            return fail("Nothing was moved.", EXIT_FAILED)
    return asyncio.run(_move_all(settings, moves, as_json=options.json))


async def _plan(settings: Settings, options: argparse.Namespace) -> list[_Move]:
    async with open_archive(settings) as archive:
        if options.source is not None:
            source, target = await find_scope(archive, options.source), scope_of(options.target)
            if source == target:
                raise Refused("FROM and TO are the same scope.")
            found: list[tuple[ListedSession, str | None]] = [
                (listed, target)
                for are_archived in (False, True)
                async for listed in archive.sessions(source, are_archived=are_archived)
            ]
        else:
            hidden = [
                listed
                for are_archived in (False, True)
                async for listed in archive.sessions(are_archived=are_archived)
                if not is_reachable(settings, listed.meta.scope)
            ]
            found = [(each, await _target(settings, archive, each.meta)) for each in hidden]
    moves = [_Move(session=listed.meta, is_active=listed.is_active, target=target) for listed, target in found]
    # In the order of their numbers, which is their order in the new scope too.
    return sorted(moves, key=lambda each: (each.session.scope, each.session.number))


async def _target(settings: Settings, archive: Archive, meta: SessionMeta) -> str | None:
    """Return the scope of messages from the chat in which the session was started, by the present settings."""
    async with aclosing(archive.export(meta.key)) as blocks:
        first = (await anext(blocks, b"")).split(b"\n")[0]
    try:
        header = decode(first)
    except DamagedEntry:
        return None
    origin = header.origin if isinstance(header, entries.Header) else None
    if origin is None:
        return None
    address = Address(
        channel=origin.channel,
        account=origin.account,
        kind=PeerKind(origin.kind),
        peer=origin.chat_id,
        thread=origin.thread,
    )
    # A group's transcript doesn't tell whose session it was, so only direct chats are certain.
    if address.kind is not PeerKind.DIRECT:
        return None
    scope = route(settings, address, Sender(id=address.peer)).scope
    # The agent of the scope is the one that was bound when the session was started.
    return ":".join(["agent", meta.scope.split(":")[1], *scope.split(":")[2:]])


async def _move_all(settings: Settings, moves: list[_Move], *, as_json: bool) -> int:
    moved: list[tuple[str, str]] = []
    failed = False
    async with open_archive(settings) as archive:
        # Of all sessions that meet in a scope, the one that was used last goes on as the active one. That is so after
        # an interrupted move, too, which has activated the first session that it moved.
        used_last: dict[str, _Move] = {}
        for each in sorted(moves, key=lambda each: each.session.updated_at):
            if each.target is not None and each.is_active:
                used_last[each.target] = each
        for scope, last in list(used_last.items()):
            async with aclosing(archive.sessions(scope)) as present:
                active = [listed.meta async for listed in present if listed.is_active]
            if any(meta.updated_at > last.session.updated_at for meta in active):
                del used_last[scope]
        for each in moves:
            if each.target is None:
                continue
            try:
                activates = used_last.get(each.target) is each
                meta = await archive.move(each.session.key, each.target, activates=activates)
            except Refused as refusal:
                failed = True
                print_error(f"{printable(each.session.key)}: {refusal}")
            else:
                moved.append((each.session.key, meta.key))
        targets: dict[str, set[str | None]] = {}
        for each in moves:
            targets.setdefault(each.session.scope, set()).add(each.target)
        for source, found in targets.items():
            if len(found) > 1 or (target := next(iter(found))) is None:
                print_error(
                    f"{printable(source)}: reminders, schedules, notes and workspaces stay, because its sessions part."
                )
                continue
            for sentence in await archive.move_belongings(source, target):
                print_error(f"{printable(source)}: {printable(sentence)}")
    if as_json:
        print(json.dumps([{"from": old, "to": new} for old, new in moved], indent=2))
    else:
        print(f"Moved {count(len(moved), 'session')}.")
    return EXIT_FAILED if failed else EXIT_OK
