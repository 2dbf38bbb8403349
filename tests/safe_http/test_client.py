"""A real client against local servers; `is_allowed` stands for the border, so that both sides of it can be here."""

import asyncio
import gzip
from collections.abc import Callable

import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver

from gateway.documents.conversion import DocumentConverter
from gateway.safe_http.client import FetchFailed, Page, fetch
from gateway.safe_http.page_text import page_text as read_page
from tests.safe_http.harness import INSIDE, Changing, anywhere, hello, private_port, site


async def get(url: str, max_bytes: int = 10_000, resolver: AbstractResolver | None = None) -> Page:
    async with asyncio.timeout(60):
        return await fetch(url, max_bytes=max_bytes, is_allowed=anywhere, resolver=resolver)


async def test_a_page_is_fetched() -> None:
    async with site(hello) as here:
        page = await get(f"{here.url}/page?a=1#part")
    assert (page.body, page.media_type, page.is_cut) == (b"hello", "text/plain", False)
    assert here.asked == ["/page?a=1"]
    assert not {"Cookie", "Authorization", "Referer"} & set(here.headers[0])


@pytest.mark.parametrize("url", INSIDE)
async def test_no_private_address_is_reached(url: str) -> None:
    async with site(hello, "127.0.0.1") as here:
        with pytest.raises(FetchFailed) as refused:
            async with asyncio.timeout(60):
                await fetch(url.format(port=here.port), max_bytes=1000)
    assert here.asked == []
    assert str(refused.value).endswith(".")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("way", ["http://127.0.0.2:{port}/secret", "//127.0.0.2:{port}/secret"])
async def test_a_redirect_to_a_private_address_is_not_followed(status: int, way: str) -> None:
    async with site(hello, "127.0.0.2") as inside:

        def lead(_request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": way.format(port=inside.port)})

        async with site(lead) as outside:
            with pytest.raises(FetchFailed, match=r"127\.0\.0\.2 is not on the public web"):
                await fetch(outside.url, max_bytes=1000, is_allowed=private_port(inside.port))
    assert (len(outside.asked), inside.asked) == (1, [])


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://a:b@127.0.0.1/", "", "http://[", "javascript:1"])
async def test_a_redirect_to_an_invalid_address_fails(location: str) -> None:
    def lead(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": location})

    async with site(lead) as here:
        with pytest.raises(FetchFailed):
            await get(here.url)


async def test_redirects_are_followed_up_to_a_limit() -> None:
    def lead(request: web.Request) -> web.StreamResponse:
        if request.path == "/end":
            return web.Response(text="found")
        return web.Response(status=302, headers={"Location": "/end" if request.path == "/start" else "/again"})

    async with site(lead) as here:
        page = await get(f"{here.url}/start")
        assert (page.body, page.url) == (b"found", f"{here.url}/end")
        with pytest.raises(FetchFailed, match="more than 5 times"):
            await get(here.url)
    assert len(here.asked) == 8


async def test_dns_rebinding_does_not_help() -> None:
    """The address that is connected to is the one that was checked: there is no second look-up in between."""

    def lead(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"http://changing.example:{request.url.port}/next"})

    async with site(lead) as outside:
        resolver = Changing("127.0.0.1", "127.0.0.2")
        with pytest.raises(FetchFailed, match=r"changing\.example is not on the public web"):
            await fetch(
                f"http://changing.example:{outside.port}/",
                max_bytes=1000,
                is_allowed=private_port(outside.port),
                resolver=resolver,
            )
    assert outside.asked == ["/"]


async def test_a_name_for_a_private_address_is_refused() -> None:
    async with site(hello) as here:
        with pytest.raises(FetchFailed, match="not on the public web"):
            await fetch(f"http://innocent.example:{here.port}/", max_bytes=1000, resolver=Changing("127.0.0.1"))
    assert here.asked == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with site(hello) as proxy, site(hello) as here:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        await get(here.url)
    assert (len(here.asked), proxy.asked) == (1, [])


async def test_a_big_page_is_cut() -> None:
    async with site(lambda _request: web.Response(body=b"x" * 1_000_000)) as here:
        page = await get(here.url, max_bytes=1000)
    assert (len(page.body), page.is_cut) == (1000, True)


async def test_a_compressed_page_is_unpacked_and_a_zip_bomb_is_cut() -> None:
    bomb = gzip.compress(b"\0" * 20_000_000)

    def zipped(request: web.Request) -> web.StreamResponse:
        body = bomb if request.path == "/bomb" else gzip.compress(b"hello")
        return web.Response(body=body, headers={"Content-Encoding": "gzip"})

    async with site(zipped) as here:
        assert (await get(here.url)).body == b"hello"
        page = await get(f"{here.url}/bomb")
    assert (len(page.body), page.is_cut) == (10_000, True)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (web.Response, r"answered 404 Not Found\."),
        (lambda **_: web.Response(body=b"?", headers={"Content-Encoding": "br"}), "an encoding that cannot be read"),
        (lambda **_: web.Response(body=b"no zip", headers={"Content-Encoding": "gzip"}), "did not answer properly"),
    ],
    ids=["missing", "brotli", "no zip"],
)
async def test_an_unusable_response_is_explained(answer: Callable[..., web.StreamResponse], sentence: str) -> None:
    async with site(lambda _request: answer(status=404)) as here:
        with pytest.raises(FetchFailed, match=sentence):
            await get(here.url)


async def test_a_server_that_speaks_another_protocol_is_explained() -> None:
    async def babble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail ready\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(FetchFailed, match="did not answer properly"):
            await get(f"http://127.0.0.1:{port}/")
    with pytest.raises(FetchFailed, match="cannot be reached"):
        await get(f"http://127.0.0.1:{port}/")


async def page_text(page: Page) -> str:
    return (await read_page(page, DocumentConverter(), room=100_000)).text


def html(body: bytes, charset: str | None = None, media_type: str = "text/html") -> Page:
    return Page(url="http://x.example/", media_type=media_type, charset=charset, body=body, is_cut=False)


async def test_html_becomes_text_with_links_and_without_scripts() -> None:
    page = b"<title>T</title><script>alert(1)</script><h1>Hi</h1><p>A <a href='/x'>link</a>, <b>bold</b>.<ul><li>one"
    text = await page_text(html(page))
    assert text.split("\n\n") == ["# T", "# Hi", "A [link](/x), **bold**.", "- one"]


@pytest.mark.parametrize("charset", ["latin-1", None, "no-such-charset"])
async def test_the_charset_is_taken_from_the_header_or_the_page(charset: str | None) -> None:
    text = await page_text(html(b"<meta charset=latin-1><p>caf\xe9", charset))
    assert text.strip() == "café"


async def test_a_page_that_takes_too_long_to_parse_is_given_up() -> None:
    """It is parsed in a separate process, which is killed at the deadline."""
    deadline = asyncio.timeout(1)
    with pytest.raises((TimeoutError, FetchFailed)):
        async with deadline:
            await page_text(html(b"<b><p>" * 300_000))


@pytest.mark.parametrize("charset", ["punycode", "base64", "undefined", "idna", "a\0b", "x" * 1000])
async def test_an_unknown_charset_is_ignored(charset: str) -> None:
    assert await page_text(html(b"hello", charset, media_type="text/plain")) == "hello"


async def test_json_is_accepted_as_text_but_a_picture_is_not() -> None:
    assert await page_text(html(b'{"a": 1}', media_type="application/json")) == '{"a": 1}'
    with pytest.raises(FetchFailed, match="not text but image/png"):
        await page_text(html(b"\x89PNG", media_type="image/png"))
