"""Pairing over the control socket, for the command line."""

from functools import partial

from aiohttp import web

from gateway.access.pairing import Pairing
from gateway.contract import Access, Caller, Route
from gateway.pairing.listing import ACTIONS, listing

__all__ = ["pairing_routes"]


def pairing_routes(pairing: Pairing) -> list[Route]:
    async def show(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(listing(pairing))

    async def decide(request: web.Request, _: Caller, *, action: str) -> web.StreamResponse:
        return web.json_response(await ACTIONS[action](pairing, await request.json()))

    decisions = [
        Route(method="POST", path=f"/pair/{action}", access=Access.CONTROL, handle=partial(decide, action=action))
        for action in ACTIONS
    ]
    return [Route(method="GET", path="/pair", access=Access.CONTROL, handle=show), *decisions]
