"""Reads the umask of this process."""

import os


def umask() -> int:
    now = os.umask(0o077)  # It can only be read by setting it.
    os.umask(now)
    return now
