"""Session keys, and the file names of transcripts."""

import re
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID, uuid5

_KEY = re.compile(r"(?P<scope>[^#]+)(?:#(?P<number>[1-9][0-9]{0,17}))?")
_UNREADABLE = re.compile(r"[^a-z0-9]+")
_READABLE_LENGTH = 80
_PACKED = 16
_LOST_IDS = UUID("9d5bd4fb-1d6e-4b3c-8f6b-1c8a4a1f0e27")


def session_key(scope: str, number: int) -> str:
    return scope if number == 1 else f"{scope}#{number}"


@lru_cache(maxsize=4096)  # Each append needs it several times.
def parse_key(key: str) -> tuple[str, int]:
    """Split a key into scope and number. Raises `ValueError` if `session_key` cannot have made it."""
    match = _KEY.fullmatch(key)
    if match is None:
        raise ValueError(f"{key!r} is not a session key")
    scope, number = match["scope"], int(match["number"] or 1)
    if session_key(scope, number) != key:
        raise ValueError(f"{key!r} is not a session key")
    return scope, number


@lru_cache(maxsize=4096)
def file_name(key: str) -> str:
    """Return the file name of a transcript.

    Its first part is for people. The hash alone makes it unique, even on a file system that ignores case.
    """
    readable = _UNREADABLE.sub("-", key.lower())[:_READABLE_LENGTH].strip("-") or "session"
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{readable}-{digest}.jsonl"


def packed_id(session_id: str) -> bytes:
    """Return 16 bytes for the id of a session. Those of different UUIDs differ."""
    try:
        packed = bytes.fromhex(session_id.replace("-", ""))
    except ValueError:
        packed = b""
    if len(packed) == _PACKED:
        return packed
    return blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=_PACKED).digest()


def derived_id(key: str) -> str:
    """Return the id of a session whose header, which has its id, is lost. It is the same each time."""
    return str(uuid5(_LOST_IDS, file_name(key)))
