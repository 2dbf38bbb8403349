import inspect
from types import SimpleNamespace

import pytest
from aiogram import exceptions
from aiogram.methods import GetMe
from aiohttp import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientOSError,
    ConnectionTimeoutError,
    ServerDisconnectedError,
)
from aiohttp.client_reqrep import ConnectionKey

from channels.telegram.errors import TABLE, translate, translate_errors
from config import Secret
from gateway.errors import ChannelError, Transient
from tests.channels.telegram.bot_api import TOKEN

KEY = ConnectionKey("api", 443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)
THEIRS = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", THEIRS, ids=lambda kind: kind.__name__)
def test_the_table_covers_every_error_of_aiogram(kind: type[Exception]) -> None:
    assert kind in TABLE


@pytest.mark.parametrize("kind", sorted(TABLE, key=str), ids=lambda kind: kind.__name__)
def test_every_message_is_a_sentence_without_the_token(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    vars(error).update(vars(SimpleNamespace(message=f"no {TOKEN}", retry_after=3, method=GetMe(), data={})))
    ours = translate(error, Secret(TOKEN))
    assert isinstance(ours, TABLE[kind][0])
    assert str(ours).endswith((".", "***"))
    assert TOKEN not in str(ours)


@pytest.mark.parametrize(
    ("cause", "may_have_arrived"),
    [
        (TimeoutError(), True),
        (ServerDisconnectedError(), True),
        (ClientOSError(104, "Connection reset by peer"), True),
        (ClientConnectorDNSError(KEY, OSError("no such name")), False),
        (ClientConnectorError(KEY, ConnectionRefusedError("refused")), False),
        (ConnectionTimeoutError(), False),
    ],
    ids=lambda cause: type(cause).__name__,
)
def test_the_outcome_of_a_send_is_unknown_once_a_connection_was_made(
    cause: Exception,
    may_have_arrived: bool,  # noqa: FBT001 - a table's column.
) -> None:
    error = exceptions.TelegramNetworkError(method=GetMe(), message="lost")
    error.__cause__ = cause
    for is_send in (True, False):
        ours = translate(error, Secret(TOKEN), is_send=is_send)
        assert isinstance(ours, Transient)
        assert ours.may_have_arrived is (may_have_arrived and is_send)


def test_an_error_that_quotes_the_token_does_not_become_the_cause() -> None:
    with pytest.raises(ChannelError) as raised, translate_errors(Secret(TOKEN)):
        raise OSError(f"http://host/bot{TOKEN}/getMe")
    assert raised.value.__suppress_context__
    with pytest.raises(Transient) as raised_with_cause, translate_errors(Secret(TOKEN)):
        raise ConnectionResetError
    assert isinstance(raised_with_cause.value.__cause__, ConnectionResetError)
