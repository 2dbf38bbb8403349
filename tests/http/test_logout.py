from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from aiohttp import WSMsgType

from gateway.http.responses import HttpError
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


@dataclass
class Storage:
    """Implements `SignIns`, on a database that may be away."""

    is_away: bool = False
    revoked: list[str] = field(default_factory=list)

    async def use(self, code: str) -> bool:
        return bool(code)

    async def revoke(self, cookie: str) -> None:
        if self.is_away:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "The database can't be reached.")
        self.revoked.append(cookie)


async def test_logging_out_can_be_repeated_if_the_other_nodes_could_not_learn_of_it(tmp_path: Path) -> None:
    storage = Storage(is_away=True)
    async with serving(tmp_path, sign_ins=storage) as running:
        leaving = running.own | running.cookie()
        assert await running.status("POST", "/auth/logout", json={}, headers=leaving) == HTTPStatus.SERVICE_UNAVAILABLE
        storage.is_away = False
        assert await running.status("POST", "/auth/logout", json={}, headers=leaving) == HTTPStatus.OK
        assert len(storage.revoked) == 1
        assert await running.status("GET", "/auth/whoami", headers=leaving) == HTTPStatus.UNAUTHORIZED
