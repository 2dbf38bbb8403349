"""Session keys, and the names of the files that hold the sessions."""

import re
from functools import lru_cache
from hashlib import blake2b

__all__ = ["file_name", "parse_key", "session_key"]

_KEY = re.compile(r"(?P<scope>[^#]+)(?:#(?P<number>[1-9][0-9]{0,17}))?")
_UNREADABLE = re.compile(r"[^a-z0-9]+")
_READABLE_LENGTH = 80


def session_key(scope: str, number: int) -> str:
    return scope if number == 1 else f"{scope}#{number}"


@lru_cache(maxsize=4096)  # Each append asks several times.
def parse_key(key: str) -> tuple[str, int]:
    """Split a key into scope and number, the inverse of `session_key`; `ValueError` for what that cannot have made."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} is not a session key")
    scope, number = match["scope"], int(match["number"] or 1)
    if session_key(scope, number) != key:
        raise ValueError(f"{key!r} is not a session key")
    return scope, number


@lru_cache(maxsize=4096)
def file_name(key: str) -> str:
    """Name the transcript of `key`.

    The readable part is for people. The hash alone makes the name unique, also on a disk that ignores case.
    """
    readable = _UNREADABLE.sub("-", key.lower())[:_READABLE_LENGTH].strip("-") or "session"
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{readable}-{digest}.jsonl"
