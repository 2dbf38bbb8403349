"""`/metrics`: for Prometheus, behind the token unless the owner has opened it to this machine."""

from http import HTTPStatus

from aiohttp import web

from gateway.contract import Access, Caller, Route
from gateway.http.answers import Refusal
from gateway.http.checks import IS_PROXIED
from gateway.metrics.exposition import CONTENT_TYPE, render
from gateway.metrics.families import families
from gateway.metrics.tally import Tally
from gateway.watch.vitals import Vitals

__all__ = ["Metrics"]


class Metrics:
    def __init__(self, vitals: Vitals, tally: Tally, *, is_open: bool) -> None:
        self._vitals = vitals
        self._tally = tally
        self._is_open = is_open

    def routes(self) -> list[Route]:
        access = Access.PUBLIC if self._is_open else Access.OWNER
        return [Route(method="GET", path="/metrics", access=access, handle=self._answer)]

    async def _answer(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        if request[IS_PROXIED] and not caller.is_owner:
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "Through a proxy this needs the token: send the header `Authorization: Bearer <token>`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        text = render(families(self._tally, await self._vitals.take()))
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})
