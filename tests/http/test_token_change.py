"""A new token ends everything that the old one has opened."""

import asyncio
from pathlib import Path

from aiohttp import WSMsgType, web

from config import Secret
from gateway.contract import Access, Caller, Route
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, TIMEOUT, read_all, serving

NEW = "another-token-of-these-tests"


async def stream(request: web.Request, _: Caller) -> web.StreamResponse:
    """Send a response that does not end."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first")
    while True:
        await response.write(b"more" * 10_000)


STREAM = Route(method="GET", path="/stream", access=Access.OWNER, handle=stream)


async def test_a_new_token_ends_old_tokens_cookies_and_codes(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        cookie, code = running.own | running.cookie(), running.auth.mint_code()
        assert not running.auth.replace_token(Secret(BEARER["Authorization"].removeprefix("Bearer ")))
        assert await running.status("GET", "/auth/whoami", headers=cookie) == 200
        assert running.auth.replace_token(Secret(NEW))
        assert await running.status("GET", "/auth/whoami", headers=BEARER) == 401
        assert await running.status("GET", "/auth/whoami", headers=cookie) == 401
        assert await running.status("POST", "/auth/exchange", json={"code": code}, headers=running.own) == 401
        assert await running.status("GET", "/auth/whoami", headers={"Authorization": f"Bearer {NEW}"}) == 200
        fresh = running.own | running.cookie()
        assert await running.status("GET", "/auth/whoami", headers=fresh) == 200


async def test_a_new_token_cuts_websockets_and_unfinished_responses_but_not_the_control_socket(tmp_path: Path) -> None:
    async with serving(tmp_path, [*EXAMPLES, STREAM]) as running, asyncio.timeout(TIMEOUT):
        cookie = running.own | running.cookie()
        async with (
            running.client.ws_connect("/example/talk", headers=BEARER) as by_token,
            running.client.ws_connect("/example/talk", headers=cookie) as by_cookie,
            running.control.ws_connect("/example/talk") as control,
            running.connect() as (reader, writer),
        ):
            writer.write(running.head("GET /stream", BEARER))
            await reader.readuntil(b"first")
            running.auth.replace_token(Secret(NEW))
            running.server.drop_owners()
            for cut in (by_token, by_cookie):
                assert (await cut.receive(timeout=TIMEOUT)).type in {WSMsgType.CLOSED, WSMsgType.ERROR}
            await read_all(reader)
            await control.send_str("still here")
            assert await control.receive_str(timeout=TIMEOUT) == "STILL HERE"
