"""The table from discord.py's errors to ours is complete."""

import inspect

import discord
import pytest
from aiohttp import ClientConnectionError, ClientConnectorError, ClientOSError
from aiohttp.client_reqrep import ConnectionKey
from discord import errors as theirs

from channels.discord.errors import TABLE, translate, translated
from config import Secret
from gateway.errors import AuthRejected, Transient, Undeliverable

SECRET = Secret("a.canary.b")


def test_every_error_of_discord_py_is_in_the_table() -> None:
    known = {error for _, error in inspect.getmembers(theirs, inspect.isclass) if issubclass(error, Exception)}
    assert known - set(TABLE) == set()


def test_the_duration_of_a_rate_limit_is_kept() -> None:
    trouble = translate(discord.RateLimited(17.5), SECRET)
    assert isinstance(trouble, Transient)
    assert trouble.retry_after == 17.5


@pytest.mark.parametrize(
    ("error", "may_have_arrived"),
    [
        (TimeoutError(), True),
        (ClientOSError("reset"), True),
        (ClientConnectionError(), True),
        (ClientConnectorError(ConnectionKey("h", 1, False, True, None, None, None), OSError("refused")), False),  # noqa: FBT003
        (discord.RateLimited(1.0), False),
    ],
)
def test_only_sends_with_an_unknown_outcome_may_have_arrived(error: Exception, *, may_have_arrived: bool) -> None:
    trouble = translate(error, SECRET, is_send=True)
    assert isinstance(trouble, Transient)
    assert trouble.may_have_arrived is may_have_arrived
    other = translate(error, SECRET)
    assert isinstance(other, Transient)
    assert not other.may_have_arrived


def test_permanent_errors_are_not_transient() -> None:
    assert isinstance(translate(discord.ClientException("x"), SECRET), Undeliverable)
    assert isinstance(translate(discord.LoginFailure("x"), SECRET), AuthRejected)
    assert isinstance(translate(discord.PrivilegedIntentsRequired(None), SECRET), AuthRejected)


def test_the_token_is_in_no_error() -> None:
    with pytest.raises(Undeliverable) as raised, translated(SECRET):
        raise discord.InvalidData(f"no {SECRET.reveal()}")
    assert raised.value.__cause__ is None
    assert SECRET.reveal() not in str(raised.value)
