"""The umask of this process."""

import os

__all__ = ["umask"]


def umask() -> int:
    now = os.umask(0o077)  # There is no other way to ask.
    os.umask(now)
    return now
