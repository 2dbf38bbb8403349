import inspect
from types import SimpleNamespace

import pytest
from aiogram import exceptions
from aiogram.methods import GetMe

from channels.telegram.errors import TABLE, translate, translated
from config import Secret
from gateway.errors import ChannelError, Transient
from tests.channels.telegram.bot_api import TOKEN

THEIRS = [kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)]


@pytest.mark.parametrize("kind", THEIRS, ids=lambda kind: kind.__name__)
def test_the_table_names_every_error_of_the_sdk(kind: type[Exception]) -> None:
    assert kind in TABLE


@pytest.mark.parametrize("kind", sorted(TABLE, key=str), ids=lambda kind: kind.__name__)
def test_every_error_becomes_a_sentence_without_the_token(kind: type[Exception]) -> None:
    error = kind.__new__(kind)
    vars(error).update(vars(SimpleNamespace(message=f"no {TOKEN}", retry_after=3, method=GetMe(), data={})))
    ours = translate(error, Secret(TOKEN))
    assert isinstance(ours, TABLE[kind][0])
    assert str(ours).endswith((".", "***"))
    assert TOKEN not in str(ours)


def test_an_error_that_quotes_the_token_is_not_carried_along() -> None:
    with pytest.raises(ChannelError) as raised, translated(Secret(TOKEN)):
        raise OSError(f"http://host/bot{TOKEN}/getMe")
    assert raised.value.__suppress_context__
    with pytest.raises(Transient) as raised_with_cause, translated(Secret(TOKEN)):
        raise ConnectionResetError
    assert isinstance(raised_with_cause.value.__cause__, ConnectionResetError)
