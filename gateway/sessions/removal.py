"""Removing sessions: from index and memory at once, from the disk after what others have to know of them."""

import structlog

from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import upkeep
from gateway.sessions.index import Scope
from gateway.sessions.ledger import Ledger
from gateway.sessions.meta import meta_of
from gateway.sessions.names import parse_key
from gateway.sessions.upkeep import IsBusy, Leaving, OnLeaving
from gateway.spool import SpoolFull

__all__ = ["Removal"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Removal:
    """`on_leaving` hears of every session that leaves the foreground or the disk."""

    def __init__(self, ledger: Ledger, on_leaving: OnLeaving) -> None:
        self._ledger = ledger
        self._on_leaving = on_leaving

    async def rotated(self, scope: str, before: str | None) -> None:
        """Tell the archiver that another session took the place of `before`."""
        state = self._ledger.books.sessions(scope).get(before) if before else None
        if before and state:
            await self._on_leaving(meta_of(before, state), Leaving.ROTATED)

    async def prune(self, scope: str, limit: int, is_busy: IsBusy) -> list[str]:
        victims = upkeep.surplus(self._ledger.books.scopes[scope], limit, is_busy)
        for key in victims:
            await self.remove(key, Leaving.PRUNED)
        return victims

    async def remove(self, key: str, why: Leaving) -> None:
        """Remove a session for good; `Refused` when there is none."""
        name, _ = parse_key(key)
        await self._on_leaving(meta_of(key, self._ledger.books.state(key)), why)
        if key not in self._ledger.books.sessions(name):
            return
        was = self._ledger.books.scopes[name]
        self._ledger.ends.forget(key)
        heir = await self._pass_on(name, was)
        await self._ledger.durability.delete_file(key, heir)
        log.info("session_removed", session=key, why=why)

    async def _pass_on(self, name: str, was: Scope) -> str | None:
        """Let a session that stays know the highest number, and be the active one if there is none; return its key."""
        left = self._ledger.books.scopes[name]
        heir = left.active_session_key or next(iter(left.ordered_sessions), None)
        if heir is None:
            return None
        knows = max(state.highest_number for state in left.sessions.values()) >= left.highest_number
        if knows and was.active_session_key in (heir, None):
            return None
        step = e.Activated(key=heir, epoch=left.epoch + 1, highest_number=left.highest_number)
        try:
            await self._ledger.append(heir, [step], is_active=True)
        except (Refused, SpoolFull) as trouble:  # The session has left already, and must not come back for that.
            log.warning("number_not_passed_on", session=heir, reason=str(trouble))
        return heir

    async def delete_doomed(self) -> None:
        """Try again to delete the files of removed sessions that the disk would not let go."""
        for key in [
            key for key in self._ledger.durability.doomed if key not in self._ledger.books.sessions(parse_key(key)[0])
        ]:
            await self._ledger.durability.delete_file(key)
