"""What the folder's file system raises, as what the gateway does about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.errors import Transient

__all__ = ["translated"]


@contextmanager
def translated() -> Iterator[None]:
    """Let only `ChannelError`s out: a folder that is away or full may be back in a while."""
    try:
        yield
    except OSError as error:
        raise Transient(f"The loft cannot be used: {error.strerror}.") from error
