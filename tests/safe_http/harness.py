"""Local web servers, a border between public and private addresses, and addresses that must not be reached."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.safe_http.addresses import IpAddress


@dataclass(slots=True)
class Site:
    port: int = 0
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def anywhere(_address: IpAddress) -> bool:
    return True


@asynccontextmanager
async def site(answer: Callable[[web.Request], web.StreamResponse], host: str = "127.0.0.1") -> AsyncIterator[Site]:
    here = Site()

    async def handle(request: web.Request) -> web.StreamResponse:
        here.asked.append(request.path_qs)
        here.headers.append(dict(request.headers))
        return answer(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        here.port = runner.addresses[0][1]
        yield here
    finally:
        await runner.cleanup()


def hello(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="hello")


INSIDE = [
    "http://127.0.0.1:{port}/",
    "http://localhost:{port}/",
    "http://localhost.:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0x7f.0.0.1:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[0:0:0:0:0:ffff:127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[fe80::1%25lo]:{port}/",
    "http://①②⑦.⓪.⓪.①:{port}/",
    "http://127。0。0。1:{port}/",
    "http://user@127.0.0.1:{port}/",
    "http://example.org@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}@example.invalid/",
    "http://example.org#@127.0.0.1:{port}\\@127.0.0.1:{port}/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://metadata.google.internal.invalid/",
    "https://127.0.0.1:{port}/",
    "HTTP://LOCALHOST:{port}/",
    " http://127.0.0.1:{port}/ ",
    "http:127.0.0.1:{port}",
    "//127.0.0.1:{port}/",
    "file:///etc/passwd",
    "ftp://127.0.0.1:{port}/",
    "gopher://127.0.0.1:{port}/",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "unix:/run/docker.sock",
    "http://",
    "http://[::1",
    "http://127.0.0.1:99999/",
    "",
    "hello",
    "http://exa mple.org/",
    "http://\0/",
]


def private_port(port: int) -> Callable[[IpAddress], bool]:
    """Let the border run between 127.0.0.1, which is outside, and all other addresses."""
    assert port
    return lambda address: str(address) == "127.0.0.1"


class Changing(AbstractResolver):
    """Answers one address after the other, as a name server does that is in league with an attacker."""

    def __init__(self, *answers: str) -> None:
        self._answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return [ResolveResult(hostname=host, host=answer, port=port, family=family or socket.AF_INET, proto=0, flags=0)]

    async def close(self) -> None:
        pass
