"""Posts to addresses that programs name: the same border as for pages, and listed hosts."""

import asyncio
from collections.abc import Callable

import pytest
from aiohttp import web

from gateway.errors import Transient, Undeliverable
from gateway.safe_http.post import MAX_RETRY_AFTER, post
from tests.safe_http.harness import INSIDE, Changing, hello, private_port, site

HERE = ("127.0.0.1",)


def answering(status: int, **headers: str) -> Callable[[web.Request], web.StreamResponse]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _request: web.Response(status=status, headers=named)


async def send(url: str, hosts: tuple[str, ...] = HERE) -> None:
    async with asyncio.timeout(60):
        await post(url, b'{"a": 1}', {"Content-Type": "application/json", "X-Mark": "m"}, hosts=hosts)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_a_listed_host_gets_the_request(status: int) -> None:
    async with site(answering(status)) as here:
        for hosts in (HERE, (f"127.0.0.1:{here.port}",)):
            await send(f"{here.url}/answers?a=1", hosts)
    assert here.asked == ["/answers?a=1"] * 2
    assert here.headers[0]["X-Mark"] == "m"
    assert not {"Cookie", "Authorization", "Referer"} & set(here.headers[0])


@pytest.mark.parametrize("url", INSIDE)
async def test_no_private_address_is_reached(url: str) -> None:
    async with site(hello) as here:
        for scheme in ("http", "https"):
            with pytest.raises((Undeliverable, Transient)):
                await send(url.format(port=here.port).replace("http:", f"{scheme}:"), ("ci.lan", "10.0.0.1"))
    assert here.asked == []


async def test_another_port_of_a_listed_host_is_not_reached() -> None:
    async with site(hello) as here:
        with pytest.raises(Undeliverable, match="without HTTPS"):
            await send(here.url, ("127.0.0.1:1",))
        with pytest.raises(Undeliverable, match="not on the public web"):
            await send(here.url.replace("http", "https"), ("127.0.0.1:1",))
    assert here.asked == []


async def test_a_host_that_is_not_listed_needs_https() -> None:
    async with site(hello) as here:
        with pytest.raises(Undeliverable, match="without HTTPS"):
            await post(f"http://public.example:{here.port}/", b"", {}, resolver=Changing("127.0.0.1"))
    assert here.asked == []


async def test_a_name_that_changes_its_address_is_checked_when_it_is_connected_to() -> None:
    async with site(hello) as here:
        with pytest.raises(Undeliverable, match="not on the public web"):
            await post(
                f"https://changing.example:{here.port}/",
                b"",
                {},
                is_allowed=private_port(here.port),
                resolver=Changing("127.0.0.2", "127.0.0.1"),
            )
    assert here.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with site(answering(status, Location="/elsewhere")) as here:
        with pytest.raises(Undeliverable, match=str(status)):
            await send(here.url)
    assert here.asked == ["/"]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422])
async def test_a_refusal_is_final(status: int) -> None:
    async with site(answering(status)) as here:
        with pytest.raises(Undeliverable, match=str(status)):
            await send(here.url)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_a_server_in_trouble_is_asked_again(status: int) -> None:
    async with site(answering(status, Retry_After="7")) as here:
        with pytest.raises(Transient, match=str(status)) as failed:
            await send(here.url)
    assert failed.value.retry_after == 7


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        ("0", 0),
        ("99999999999999999999", MAX_RETRY_AFTER),
        ("Fri, 31 Dec 2999 23:59:59 GMT", MAX_RETRY_AFTER),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("Fri, 31 Dec 1999 23:59:59 +99999999999999999999", None),
        ("-1", None),
        ("soon", None),
        ("²", None),
        ("", None),
    ],
)
async def test_a_pause_has_a_limit(asked: str, seconds: float | None) -> None:
    async with site(answering(503, Retry_After=asked)) as here:
        with pytest.raises(Transient) as failed:
            await send(here.url)
    assert failed.value.retry_after == seconds


async def test_a_server_that_is_gone_or_speaks_another_protocol_is_asked_again() -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/?token=secret"
        with pytest.raises(Transient, match="did not answer properly") as failed:
            await send(url)
        assert failed.value.may_have_arrived
    with pytest.raises(Transient, match="cannot be reached") as failed:
        await send(url)
    assert "secret" not in str(failed.value)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(hello) as proxy, site(hello) as here:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        await send(here.url)
    assert (len(here.asked), proxy.asked) == (1, [])
