"""What waits and what was set aside, over the control socket, for the command line."""

from aiohttp import web

from gateway.contract import Access, Caller, Route
from gateway.outbound.delivery import Delivery
from gateway.spool import Spool
from gateway.spool_listing import as_json, revive

__all__ = ["spool_routes"]


def spool_routes(spool: Spool, delivery: Delivery) -> list[Route]:
    async def listing(_request: web.Request, _: Caller) -> web.StreamResponse:
        return web.json_response(await as_json(spool))

    async def retry(request: web.Request, _: Caller) -> web.StreamResponse:
        revived = await revive(spool, (await request.json()).get("key"))
        for row in revived:
            delivery.resume(row)
        return web.json_response({"revived": [row.key for row in revived]})

    return [
        Route(method="GET", path="/spool", access=Access.CONTROL, handle=listing),
        Route(method="POST", path="/spool/retry", access=Access.CONTROL, handle=retry),
    ]
