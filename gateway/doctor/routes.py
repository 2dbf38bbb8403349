"""What only the running daemon can find out, for the command line: it has the secrets, and walls around it."""

from collections.abc import Callable, Mapping

from aiohttp import web

from config import Settings
from gateway.contract import Access, Caller, Channel, Route
from gateway.doctor.finding import as_json
from gateway.doctor.peers import DEADLINE, check_peers

__all__ = ["DOCTOR_TIMEOUT", "doctor_routes"]

DOCTOR_TIMEOUT = 180.0
"""Seconds in which all can have been loaded and asked: what they wait for has limits of its own."""


def doctor_routes(settings: Callable[[], Settings], channels: Mapping[tuple[str, str], Channel]) -> list[Route]:
    async def examine(_request: web.Request, _: Caller) -> web.StreamResponse:
        found = await check_peers(settings(), channels, DEADLINE)
        return web.json_response({"findings": [as_json(each) for each in found]})

    return [Route(method="POST", path="/doctor", access=Access.CONTROL, handle=examine, deadline=DOCTOR_TIMEOUT)]
