from pathlib import Path

from aiohttp import WSMsgType

from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, TIMEOUT, serving


async def test_a_cookie_is_invalid_after_logging_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        leaving, staying = running.own | running.cookie(), running.own | running.cookie()
        assert await running.status("POST", "/auth/logout", json={}, headers=leaving) == 200
        # It was valid once, so it does not count as a wrong attempt.
        assert {await running.status("GET", "/auth/whoami", headers=leaving) for _ in range(15)} == {401}
        assert await running.status("GET", "/auth/whoami", headers=staying) == 200


async def test_the_token_stays_valid_after_logging_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        assert await running.status("POST", "/auth/logout", json={}, headers=BEARER) == 200
        assert await running.status("GET", "/auth/whoami", headers=BEARER) == 200


async def test_logging_out_cuts_the_websockets_of_that_cookie_only(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        leaving, staying = running.own | running.cookie(), running.own | running.cookie()
        async with (
            running.client.ws_connect("/example/talk", headers=leaving) as cut,
            running.client.ws_connect("/example/talk", headers=staying) as kept,
        ):
            assert await running.status("POST", "/auth/logout", json={}, headers=leaving) == 200
            assert (await cut.receive(timeout=TIMEOUT)).type in {WSMsgType.CLOSED, WSMsgType.ERROR}
            await kept.send_str("still here")
            assert await kept.receive_str(timeout=TIMEOUT) == "STILL HERE"
