"""The HTTP side of the Bot API: addresses, bodies and responses."""

import asyncio
import json
import ssl
from pathlib import Path

import pytest
from aiohttp import ClientConnectorCertificateError, ClientTimeout

from channels.telegram.client import REQUEST_TIMEOUT, TRANSFER_TIMEOUT, BotClient
from channels.telegram.errors import BadResponse, Refusal, translate
from config import Secret
from gateway.errors import Transient
from tests.certificate import write_certificate
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi


async def test_fields_that_are_none_are_left_out(api: FakeBotApi) -> None:
    async with BotClient(Secret(TOKEN), f"{api.url}/") as client:
        result = await client.call("getMe", {"a": None, "b": False, "c": [], "d": 0, "e": {"f": "ü"}})
    (call,) = api.calls
    assert call.fields == {"b": "false", "c": "[]", "d": "0", "e": json.dumps({"f": "ü"})}
    assert json.loads(bytes(result))["username"] == "gate_bot"


async def test_an_uploaded_file_comes_with_its_fields(api: FakeBotApi, tmp_path: Path) -> None:
    path = tmp_path / "stored"
    path.write_bytes(b"\x00content")
    fields = {"chat_id": 42, "caption": "ü", "message_thread_id": None, "reply_parameters": {"message_id": 9}}
    async with BotClient(Secret(TOKEN), api.url) as client:
        await client.upload("sendDocument", fields, field="document", path=path, name='ü "1".pdf')
    (call,) = api.calls
    expected = {"chat_id": "42", "caption": "ü", "reply_parameters": '{"message_id":9}', "document": "\x00content"}
    assert call.fields == expected


@pytest.mark.parametrize(
    "answer", [(200, "no json"), (502, "<html>nginx</html>"), (200, "[]"), (200, {"ok": "yes"}), (200, "[" * 99_999)]
)
async def test_a_response_that_is_no_answer_is_a_bad_response(api: FakeBotApi, answer: tuple[int, object]) -> None:
    api.scripted["getMe"].append(answer)
    async with BotClient(Secret(TOKEN), api.url) as client:
        with pytest.raises(BadResponse):
            await client.call("getMe", {})


async def test_a_call_after_the_client_was_closed_can_be_retried(api: FakeBotApi, tmp_path: Path) -> None:
    """A channel may stop while a message is being formatted."""
    path = tmp_path / "stored"
    path.write_bytes(b"content")
    async with BotClient(Secret(TOKEN), api.url) as client:
        pass
    for call in (
        client.call("sendMessage", {"chat_id": 42, "text": "hi"}),
        client.upload("sendDocument", {"chat_id": 42}, field="document", path=path, name="a"),
        anext(client.download("documents/F1")),
    ):
        with pytest.raises(Transient) as closed:
            await call
        assert not closed.value.may_have_arrived


@pytest.mark.parametrize(
    "answer",
    [(200, {"ok": False}), (400, {"ok": False, "description": None}), (403, {"ok": True, "result": True})],
)
async def test_a_call_succeeds_only_if_the_status_and_the_body_say_so(
    api: FakeBotApi, answer: tuple[int, object]
) -> None:
    api.scripted["getMe"].append(answer)
    async with BotClient(Secret(TOKEN), api.url) as client:
        with pytest.raises(Refusal):
            await client.call("getMe", {})


async def test_a_server_with_an_unknown_certificate_gets_no_token(tmp_path: Path) -> None:
    received: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read(1))
        writer.close()

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*write_certificate(tmp_path))
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with BotClient(Secret(TOKEN), url) as client:
            with pytest.raises(ClientConnectorCertificateError) as refused:
                await client.call("sendMessage", {"chat_id": 1, "text": "hi"})
    assert not received
    ours = translate(refused.value, Secret(TOKEN), is_send=True)
    assert isinstance(ours, Transient)
    assert not ours.may_have_arrived


async def test_a_message_has_not_arrived_if_no_connection_was_made_in_time() -> None:
    """A server that never begins the TLS handshake stands for a network that drops all packets."""
    for limit in (REQUEST_TIMEOUT, TRANSFER_TIMEOUT):
        assert limit.connect is not None
        assert limit.total is not None
        assert limit.connect < limit.total, "the whole call ends first, and its error does not tell"
    is_closed = asyncio.Event()

    async def stall(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_closed.wait()
        writer.close()

    async with await asyncio.start_server(stall, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with BotClient(Secret(TOKEN), url) as client:
            with pytest.raises(TimeoutError) as late:
                await client.call("sendMessage", {}, limit=ClientTimeout(total=REQUEST_TIMEOUT.total, connect=0.01))
        is_closed.set()
    ours = translate(late.value, Secret(TOKEN), is_send=True)
    assert isinstance(ours, Transient)
    assert not ours.may_have_arrived
