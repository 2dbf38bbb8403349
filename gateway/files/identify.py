"""Identifies files by their first bytes, and makes safe file names. Pure functions."""

import codecs
import re
import struct
import unicodedata

from gateway.text import clean, printable

HEAD = 512
"""The number of bytes that `media_type` needs."""

UNKNOWN = "application/octet-stream"
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The image types that vision models accept."""
RECORDINGS = frozenset({"audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/mp4"})
"""The audio types that browsers play."""

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF87a", 0, "image/gif"),
    (b"GIF89a", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"\xff\xf3", 0, "audio/mpeg"),
    (b"\xff\xf2", 0, "audio/mpeg"),
    (b"\xff\xf1", 0, "audio/aac"),
    (b"\xff\xf9", 0, "audio/aac"),
    (b"fLaC", 0, "audio/flac"),
    (b"ftypM4A", 4, "audio/mp4"),
    (b"ftyp", 4, "video/mp4"),
    (b"\x1aE\xdf\xa3", 0, "video/webm"),
    (b"%PDF-", 0, "application/pdf"),
    (b"PK\x03\x04", 0, "application/zip"),
    (b"\x1f\x8b", 0, "application/gzip"),
    (b"\x7fELF", 0, "application/x-executable"),
)
_TAIL = 1024
_RIFF = frozenset({"image/webp", "audio/wav"})
_REFINABLE = {"application/zip": "application/", "video/webm": "audio/", "audio/ogg": "video/", "video/mp4": "audio/"}
"""Container formats. A claimed type of this family names the content, which the first bytes do not show."""
_BINARY_CONTROLS = frozenset(range(32)) - {7, 8, 9, 10, 12, 13, 27}


def media_type(head: bytes, claimed: str) -> str:
    """Return the type that `head` shows, or else the claimed type if it is plausible."""
    claim = claimed.partition(";")[0].strip().lower()
    for magic, at, found in _MAGIC:
        if head[at : at + len(magic)] == magic and (found not in _RIFF or head.startswith(b"RIFF")):
            family = _REFINABLE.get(found)
            return claim if family and claim.startswith(family) else found
    # A claimed image would have shown in the first bytes, so without that it is not one.
    is_plausible = claim.isascii() and claim.count("/") == 1 and claim.isprintable() and claim not in PICTURES
    return claim if is_plausible else UNKNOWN


def as_text(content: bytes) -> str | None:
    """Return the content of a text file, or None if it is not a text."""
    encoding = "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    if encoding != "utf-16" and not _BINARY_CONTROLS.isdisjoint(content):
        return None
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return None


def dimensions(picture: bytes) -> tuple[int, int] | None:
    """Return width and height from the header of a picture, or None if it is damaged."""
    try:
        match media_type(picture[:HEAD], ""):
            case "image/png":
                width, height = struct.unpack(">II", picture[16:24])
                return width, height
            case "image/gif":
                width, height = struct.unpack("<HH", picture[6:10])
                return width, height
            case "image/webp":
                return _webp(picture)
            case "image/jpeg":
                return _jpeg(picture)
    except (struct.error, IndexError):
        pass
    return None


def is_complete(picture: bytes) -> bool:
    """Return whether the end of a picture is there. Some programs write a few bytes after it."""
    end = picture[-_TAIL:]
    match media_type(picture[:HEAD], ""):
        case "image/png":
            return b"IEND\xaeB`\x82" in end
        case "image/jpeg":
            return b"\xff\xd9" in end
        case "image/gif":
            return b";" in end
        case "image/webp":
            return int.from_bytes(picture[4:8], "little") + 8 <= len(picture)
    return False


def _webp(picture: bytes) -> tuple[int, int] | None:
    match picture[12:16]:
        case b"VP8 ":
            width, height = struct.unpack("<HH", picture[26:30])
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            (bits,) = struct.unpack("<I", picture[21:25])
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            return 1 + int.from_bytes(picture[24:27], "little"), 1 + int.from_bytes(picture[27:30], "little")
    return None


def _jpeg(picture: bytes) -> tuple[int, int] | None:
    """Find the segment that starts a frame: SOF0 to SOF15, except DHT, JPG and DAC."""
    at = 2
    while at + 9 <= len(picture):
        if picture[at] != 0xFF:  # noqa: PLR2004 - every marker starts with 0xFF.
            return None
        marker = picture[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:  # noqa: PLR2004 - see above.
            height, width = struct.unpack(">HH", picture[at + 5 : at + 9])
            return width, height
        at += 1 if marker == 0xFF else 2 + int.from_bytes(picture[at + 2 : at + 4], "big")  # noqa: PLR2004 - a filler.
    return None


MAX_NAME_BYTES = 120
"""File systems allow 255 bytes. A stored name also has a turn and a number."""

_LONGEST_SUFFIX = 20
_PUNCTUATION = frozenset("._-+@,=")
_KEPT_CATEGORIES = frozenset({"L", "M", "N"})
"""Letters, marks such as accents and vowel signs, and numbers, of every script."""


def safe_name(claimed: str, fallback: str = "file") -> str:
    """Return one path component that is harmless in a header and as a word of a shell command, even without quotes.

    It has no spaces and no characters that a shell interprets, and is neither hidden nor an option.
    """
    # NFC first: it turns some letters into a semicolon or a backtick.
    text = unicodedata.normalize("NFC", printable(clean(claimed))).strip()
    kept = "".join(char if _is_harmless(char) else " " for char in text)
    return shorten_name(re.sub(" +", "_", kept), fallback)


def _is_harmless(char: str) -> bool:
    category = unicodedata.category(char)
    return char in _PUNCTUATION or category[0] in _KEPT_CATEGORIES or category == "So"  # So: emoji.


def shorten_name(name: str, fallback: str = "file") -> str:
    """Cut a name to `MAX_NAME_BYTES`, but not its suffix."""
    text = name.lstrip("-. ").rstrip(". ")
    stem, dot, suffix = text.rpartition(".")
    if not dot or len(suffix.encode()) > _LONGEST_SUFFIX:
        stem, suffix = text, ""
    room = MAX_NAME_BYTES - len(suffix.encode()) - 1
    stem = stem.encode()[:room].decode(errors="ignore").strip(". ") or fallback
    return f"{stem}.{suffix}" if suffix else stem
