import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.files.identify import as_text, dimensions, is_complete, media_type
from tests.files.samples import jpeg, png


@pytest.mark.parametrize(
    ("head", "claimed", "found"),
    [
        (png(), "text/html", "image/png"),
        (jpeg(3, 4), "image/png", "image/jpeg"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "", "image/webp"),
        (b"<svg onload=alert(1)>", "image/png", "application/octet-stream"),
        (b"<html>", "image/jpeg; charset=x", "application/octet-stream"),
        (b"PK\x03\x04", "application/vnd.oasis.opendocument.text", "application/vnd.oasis.opendocument.text"),
        (b"PK\x03\x04", "image/png", "application/zip"),
        (b"OggS", "audio/ogg", "audio/ogg"),
        (b"\xff\xf3\xe4\xc4", "", "audio/mpeg"),
        (b"\xff\xf1\x5c\x80", "", "audio/aac"),
        (b"a,b\n", "text/csv", "text/csv"),
        (b"a,b\n", "text/csv\r\nX-Evil: 1/2", "application/octet-stream"),
        (b"", "", "application/octet-stream"),
    ],
)
def test_the_content_decides_the_type_and_not_the_claim(head: bytes, claimed: str, found: str) -> None:
    assert media_type(head, claimed) == found


@pytest.mark.parametrize(
    ("picture", "size"),
    [
        (png(7, 9), (7, 9)),
        (jpeg(640, 480), (640, 480)),
        (b"GIF89a\x03\x00\x04\x00", (3, 4)),
        (b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x0f\0\0\x1f\0\0", (16, 32)),
        (b"\x89PNG\r\n\x1a\n", None),
        (b"\xff\xd8\xff\xe0", None),
        (b"no picture", None),
    ],
)
def test_dimensions_are_read_from_the_header(picture: bytes, size: tuple[int, int] | None) -> None:
    assert dimensions(picture) == size


GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02L\x01\x00;"
WEBP = b"RIFF\x1c\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\x0f\0\0\x1f\0\0" + bytes(6)


@pytest.mark.parametrize("picture", [png(), jpeg(3, 4), GIF, WEBP])
def test_a_picture_without_its_end_is_not_complete(picture: bytes) -> None:
    assert is_complete(picture)
    assert is_complete(picture + b"\n")
    assert not is_complete(picture[: len(picture) // 2])
    assert not is_complete(b"no picture")


@given(st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF1234WEBPVP8L"]), st.binary())
def test_a_damaged_picture_has_no_dimensions(magic: bytes, rest: bytes) -> None:
    found = dimensions(magic + rest)
    assert found is None or len(found) == 2


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"plain\n", "plain\n"),
        ("Grüße".encode(), "Grüße"),
        (b"\xef\xbb\xbfmarked", "marked"),
        ("wide".encode("utf-16"), "wide"),
        (b"PK\x03\x04\x00", None),
        (b"\xff\xfe\x00", None),
        (b"caf\xe9", None),
    ],
)
def test_text_files_are_told_from_binary_files(content: bytes, text: str | None) -> None:
    assert as_text(content) == text
