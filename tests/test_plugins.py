import pytest

from gateway.errors import CannotStart
from gateway.plugins import find_channel


def test_an_unknown_channel_is_named_with_what_there_is() -> None:
    with pytest.raises(CannotStart, match=r"channels\.carrier_pigeon .* web\. .*enabled to false"):
        find_channel("carrier_pigeon")
