"""Sign-ins of browsers that all nodes of a cluster know: codes that were used, and cookies that were revoked."""

from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus

from gateway.http.auth import COOKIE_LIFETIME, Auth, cookie_id
from gateway.http.responses import HttpError
from gateway.spool import Duplicate, MarkSeen, Operation, SetFact, Spool, SpoolUnavailable

SIGN_OUT_FACTS = "signed_out:"
"""The prefix of the facts about revoked cookies. The value is when the cookie expires, in seconds since 1970."""

_EVENTS = "sign_in"
"""The channel of the events that mark a code as used. They are kept for longer than a code lasts."""


class SharedSignIns:
    """Implements `gateway.http.routes.SignIns`."""

    def __init__(self, auth: Auth, spool: Spool, *, now: Callable[[], datetime]) -> None:
        self._auth = auth
        self._spool = spool
        self._now = now

    async def use(self, code: str) -> bool:
        mark = MarkSeen(channel=_EVENTS, account="", event_id=cookie_id(code), at=self._now())
        try:
            await self._commit(mark)
        except Duplicate:
            return False
        return True

    async def revoke(self, cookie: str) -> None:
        until = int(self._auth.clock.wall()) + COOKIE_LIFETIME
        expired = [
            SetFact(name=name, value=None)
            for name, value in (await self._spool.facts(SIGN_OUT_FACTS)).items()
            if int(value) <= self._auth.clock.wall()
        ]
        await self._commit(SetFact(name=f"{SIGN_OUT_FACTS}{cookie_id(cookie)}", value=str(until)), *expired)

    def read(self, facts: Mapping[str, str]) -> set[str]:
        """Take what other nodes have stored. Returns the ids of cookies that have been revoked since the last time."""
        return self._auth.add_revoked({name.removeprefix(SIGN_OUT_FACTS): int(value) for name, value in facts.items()})

    async def _commit(self, *operations: Operation) -> None:
        try:
            await self._spool.commit(*operations)
        except SpoolUnavailable as error:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, str(error), headers={"Retry-After": "1"}) from error
