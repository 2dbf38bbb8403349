from collections.abc import Mapping

import pytest
from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientOSError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
)
from aiohttp.client_reqrep import ConnectionKey

from channels.telegram.errors import TABLE, BadResponse, MarkupRefused, Refusal, translate, translate_errors
from config import Secret
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable
from tests.channels.telegram.bot_api import TOKEN

KEY = ConnectionKey("api", 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)


@pytest.mark.parametrize(
    ("status", "description", "parameters", "reaction"),
    [
        (400, "Bad Request: chat not found", {}, Undeliverable),
        (400, "Bad Request: can't parse entities", {}, MarkupRefused),
        (400, "Bad Request: group chat was upgraded to a supergroup chat", {"migrate_to_chat_id": -9}, Undeliverable),
        (401, "Unauthorized", {}, AuthRejected),
        (403, "Forbidden: bot was blocked by the user", {}, Undeliverable),
        (404, "Not Found", {}, Undeliverable),
        (409, "Conflict: terminated by other getUpdates request", {}, Transient),
        (413, "Request Entity Too Large", {}, Undeliverable),
        (429, "Too Many Requests: retry after 5", {"retry_after": 5}, Transient),
        (429, "Too Many Requests", {}, Transient),
        (418, "a status of a kind to come", {}, Undeliverable),
        (500, "Internal Server Error: restart", {}, Transient),
        (502, "Bad Gateway", {}, Transient),
    ],
)
def test_the_error_depends_on_the_status_and_parameters_of_a_refusal(
    status: int, description: str, parameters: Mapping[str, int], reaction: type[ChannelError]
) -> None:
    ours = translate(Refusal(status, f"{description} {TOKEN}", **parameters), Secret(TOKEN), is_send=True)
    assert type(ours) is reaction
    assert str(ours).endswith((".", "***"))
    assert TOKEN not in str(ours)
    if isinstance(ours, Transient):
        assert not ours.may_have_arrived, "Telegram has refused it"
        assert ours.retry_after == parameters.get("retry_after")


def test_a_refusal_without_a_reason_is_a_whole_sentence() -> None:
    assert str(translate(Refusal(403, ""), Secret(TOKEN))) == "Telegram answered with status 403, without a reason."


@pytest.mark.parametrize("kind", sorted(TABLE, key=str), ids=lambda kind: kind.__name__)
def test_every_error_of_the_connection_is_a_sentence_without_the_token(kind: type[Exception]) -> None:
    ours = translate(kind() if kind is BadResponse else kind(f"no {TOKEN}"), Secret(TOKEN))
    assert isinstance(ours, Transient)
    assert str(ours).endswith(".")
    assert TOKEN not in str(ours)


@pytest.mark.parametrize(
    ("error", "may_have_arrived"),
    [
        (TimeoutError(), True),
        (ServerDisconnectedError(), True),
        (ClientOSError(104, "Connection reset by peer"), True),
        (ConnectionResetError(), True),
        (BadResponse(), True),
        (ClientConnectorDNSError(KEY, OSError("no such name")), False),
        (ClientConnectorError(KEY, ConnectionRefusedError("refused")), False),
        (ConnectionTimeoutError(), False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_outcome_of_a_send_is_unknown_once_a_connection_was_made(
    error: Exception,
    may_have_arrived: bool,  # noqa: FBT001 - a table's column.
) -> None:
    for is_send in (True, False):
        ours = translate(error, Secret(TOKEN), is_send=is_send)
        assert isinstance(ours, Transient)
        assert ours.may_have_arrived is (may_have_arrived and is_send)


def test_an_error_that_quotes_the_token_does_not_become_the_cause() -> None:
    with pytest.raises(ChannelError) as raised, translate_errors(Secret(TOKEN)):
        raise ClientError(f"http://host/bot{TOKEN}/getMe")
    assert raised.value.__suppress_context__
    with pytest.raises(Transient) as raised_with_cause, translate_errors(Secret(TOKEN)):
        raise ConnectionResetError
    assert isinstance(raised_with_cause.value.__cause__, ConnectionResetError)
