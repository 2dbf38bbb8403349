"""Translates errors of the file system to the errors that the gateway reacts to."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Transient


@contextmanager
def translated() -> Iterator[None]:
    """Raise `ChannelError`s only. A folder that is missing or full may be usable again later."""
    try:
        yield
    except OSError as error:
        raise Transient(f"The loft cannot be used: {error.strerror}.") from error
