"""Tests of the session of a provider, and of requests to a server that sends any given bytes."""

import asyncio
import gc
import gzip
import ssl
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from config import ProviderSettings
from gateway.agent.protocol import Prompt, Provider, TextDelta
from gateway.agent.providers.endpoint import Endpoint
from gateway.agent.providers.http_session import SharedSession
from gateway.agent.providers.openai import OpenAIApi
from gateway.agent.providers.registry import open_provider
from gateway.errors import ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.streaming import HELLO
from tests.agent.wire import OPENAI
from tests.certificate import write_certificate

ANSWER = b"".join(OPENAI.answer("hi"))
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
BODY = b"%x\r\n%b\r\n" % (len(ANSWER), ANSWER)
WHOLE = HEAD + b"\r\n" + BODY + b"0\r\n\r\n"


class Peer:
    """Reads requests, and answers each with the same bytes; where `hangs_up`, it closes the connection after that."""

    def __init__(self, answer: bytes, *, hangs_up: bool) -> None:
        self.connections = 0
        self.asked = asyncio.Event()
        self.closed = asyncio.Event()
        self._answer = answer
        self._hangs_up = hangs_up

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size))
                self.asked.set()
                writer.write(self._answer)
                await writer.drain()
                if self._hangs_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        finally:
            writer.close()


@asynccontextmanager
async def peer(
    answer: bytes,
    *,
    hangs_up: bool = False,
    scheme: str = "http",
    tls: ssl.SSLContext | None = None,
    **table: float,
) -> AsyncIterator[tuple[Peer, Provider]]:
    other = Peer(answer, hangs_up=hangs_up)
    async with asyncio.timeout(30), await asyncio.start_server(other.serve, "127.0.0.1", 0, ssl=tls) as server:
        url = "{}://{}:{}/v1".format("https" if tls else scheme, *server.sockets[0].getsockname())
        settings = ProviderSettings.model_validate({"kind": "openai", "base_url": url, **table})
        endpoint = open_provider(settings, name="fake")
        assert isinstance(endpoint, Endpoint)
        async with aclosing(endpoint):
            yield other, endpoint


async def ask(provider: Provider) -> str:
    chunks = [chunk async for chunk in provider.stream(Prompt(system="", messages=HELLO, model="m"))]
    return "".join(chunk.text for chunk in chunks if isinstance(chunk, TextDelta))


async def test_a_connection_is_reused() -> None:
    async with peer(WHOLE) as (other, provider):
        for _ in range(3):
            assert await ask(provider) == "hi"
        assert other.connections == 1


async def test_an_answer_does_not_wait_for_the_end_of_its_response() -> None:
    async with peer(HEAD + b"\r\n" + BODY, idle_timeout=3600) as (other, provider):
        assert await ask(provider) == "hi"
        await other.closed.wait()


async def test_closing_the_session_releases_a_response_whose_end_is_missing() -> None:
    """`gatehouse setup` asks the model one question, and ends its event loop right after the answer."""

    async def ask_once(base_url: str) -> str:
        settings = ProviderSettings.model_validate({"kind": "openai", "base_url": base_url})
        async with aclosing(Endpoint(settings, "fake", OpenAIApi(settings))) as endpoint:
            return await ask(endpoint)

    other = Peer(HEAD + b"\r\n" + BODY, hangs_up=False)
    async with asyncio.timeout(30), await asyncio.start_server(other.serve, "127.0.0.1", 0) as server:
        url = "http://{}:{}/v1".format(*server.sockets[0].getsockname())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert await asyncio.to_thread(lambda: asyncio.run(ask_once(url))) == "hi"
            gc.collect()
        await other.closed.wait()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []


async def test_a_compressed_response_is_read() -> None:
    body = gzip.compress(ANSWER)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with peer(head + body) as (_, provider):
        assert await ask(provider) == "hi"


async def test_an_unfinished_response_closes_its_connection() -> None:
    event = OPENAI.answer("hi")[1]
    async with peer(HEAD + b"\r\n%x\r\n%b\r\n" % (len(event), event)) as (other, provider):
        async with aclosing(provider.stream(Prompt(system="", messages=HELLO, model="m"))) as chunks:
            assert await anext(chunks) == TextDelta(text="hi")
        await other.closed.wait()


async def test_a_cancelled_step_closes_its_connection() -> None:
    async with peer(HEAD + b"\r\n") as (other, provider), asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(ask(provider), name="ask")
        await other.asked.wait()
        asking.cancel()
        await other.closed.wait()


async def test_long_headers_are_accepted() -> None:
    async with peer(HEAD + b"X-Long: " + b"x" * 30_000 + b"\r\n\r\n" + BODY + b"0\r\n\r\n") as (_, provider):
        assert await ask(provider) == "hi"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HELLO\r\n\r\n",
        HEAD + b"\r\nzz\r\n",
        HEAD + b"\r\n9\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip.",
    ],
)
async def test_an_invalid_response_is_reported_as_unreachable(answer: bytes) -> None:
    async with peer(answer, hangs_up=True) as (_, provider):
        with pytest.raises(ProviderBusy, match="can't be reached") as caught:
            await ask(provider)
    assert "no response" in caught.value.details
    assert "Bearer" not in caught.value.details


@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        (b"application/json", b'{"error": {"message": "The API key is wrong", "code": 401}}', "was rejected"),
        (b"application/json; charset=utf-8", b'{"choices": [{"message": {"content": "hi"}}]}', "can't read"),
        (b"text/html", b"<html>Please log in.</html>", "can't read"),
        (b"text/event-stream", b'data: {"cho', "broke off"),
    ],
)
async def test_a_response_that_is_not_a_stream_is_reported(kind: bytes, body: bytes, sentence: str) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n" % (kind, len(body))
    async with peer(head + body) as (_, provider):
        with pytest.raises(ProviderFailed, match=sentence):
            await ask(provider)


async def test_an_endless_error_is_not_read_to_its_end() -> None:
    page = b"HTTP/1.1 500 Oops\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 200_000
    async with peer(page) as (other, provider):
        with pytest.raises(ProviderBusy, match="overloaded"):
            await ask(provider)
        await other.closed.wait()


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_the_status_of_an_error_counts_even_if_its_body_does_not_come(*, hangs_up: bool) -> None:
    answer = b'HTTP/1.1 401 No\r\nContent-Length: 99\r\n\r\n{"error'
    async with peer(answer, hangs_up=hangs_up, idle_timeout=0.1) as (_, provider):
        with pytest.raises(ModelUnavailable, match="key for `m` was rejected"):
            await ask(provider)


async def test_a_response_that_does_not_come_times_out() -> None:
    async with peer(b"", idle_timeout=0.1) as (_, provider):
        with pytest.raises(ProviderBusy, match="sent nothing for too long"):
            await ask(provider)


async def test_a_tls_handshake_that_never_ends_is_reported_as_unreachable() -> None:
    async with peer(b"", scheme="https", connect_timeout=0.1) as (_, provider):
        with pytest.raises(ProviderBusy, match="can't be reached"):
            await ask(provider)


@pytest.mark.parametrize("trusts", [True, False])
async def test_only_certificates_of_the_system_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, trusts: bool
) -> None:
    certificate, key = write_certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    if trusts:
        system = ssl.DefaultVerifyPaths("", "", "", certificate, "", "/nowhere")
        monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: system)
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(certificate, key)
    async with peer(WHOLE, tls=at_server) as (_, provider):
        if trusts:
            assert await ask(provider) == "hi"
        else:
            with pytest.raises(ProviderBusy, match="can't be reached") as caught:
                await ask(provider)
            assert "CERTIFICATE_VERIFY_FAILED" in caught.value.details


def shared() -> SharedSession:
    settings = ProviderSettings.model_validate({"kind": "openai", "base_url": "http://127.0.0.1:9"})
    return SharedSession(settings, {}, is_encrypted=True)


async def test_concurrent_steps_share_the_session() -> None:
    session = shared()
    await asyncio.gather(*(session.warm_up() for _ in range(20)))
    async with session as first, session as second:
        assert first is second
    assert not first.closed
    await session.aclose()
    assert first.closed


async def test_a_running_step_keeps_its_session() -> None:
    session = shared()
    async with session as lent:
        await session.aclose()
        assert not lent.closed
    assert lent.closed


@contextmanager
def no_session_left_open() -> Iterator[None]:
    """Fail if a session of aiohttp is collected while it is open."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not [each for each in caught if "client session" in str(each.message)]


async def test_a_reload_during_the_warm_up_leaves_no_session_open() -> None:
    session = shared()
    with no_session_left_open():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(session.warm_up(), name="warm-up")
            await asyncio.sleep(0)  # It has started to read the certificates.
            await session.aclose()
        del session


async def test_a_step_that_is_cancelled_before_it_has_the_session_closes_it_after_a_reload() -> None:
    waiting: list[asyncio.Task[None]] = []

    async def use(session: SharedSession) -> None:
        async with session:
            pass
        waiting.pop().cancel()

    session = shared()
    with no_session_left_open():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(use(session), name="first")
            waiting.append(tasks.create_task(use(session), name="second"))
            await asyncio.sleep(0)  # The first opens the session, and the second waits for it.
            await session.aclose()
        del session
    assert not waiting


async def test_a_turn_that_outlives_a_reload_opens_and_closes_a_session() -> None:
    session = shared()
    await session.aclose()
    await session.warm_up()
    async with session as lent:
        pass
    assert lent.closed
