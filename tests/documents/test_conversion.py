"""The converter as a process, with its limits, its sandbox and hostile documents."""

import asyncio
import sys
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from config import DocumentSettings, ShellSettings, ToolSettings
from gateway.documents.conversion import MAX_CONCURRENT, Document, DocumentConverter, DocumentUnreadable
from gateway.sandbox.bubblewrap import SandboxUnavailable, base_argv
from tests.documents.samples import docx, epub, paragraph, pdf, row, xlsx, zip_bomb

log = structlog.get_logger()


async def convert(
    content: bytes,
    *,
    first_page: int = 1,
    room: int = 48_000,
    html: bool = False,
    settings: ToolSettings | None = None,
) -> Document:
    async def read() -> bytes:
        return content

    converter = DocumentConverter(lambda: settings or ToolSettings())
    return await converter.convert(read, html_charset="" if html else None, first_page=first_page, room=room)


async def test_a_document_is_converted_in_the_sandbox() -> None:
    try:
        base_argv(network=False)
    except SandboxUnavailable as missing:
        pytest.skip(str(missing))
    with capture_logs() as logs:
        document = await convert(pdf("one", "two"), room=25)
    assert document == Document(text="[Page 1 of 2]\none\n\n", next_page=2)
    assert document.rest() == "[Cut: there is more. Go on with first_page=2.]"
    assert not logs


async def test_without_a_sandbox_a_document_is_converted_within_limits_only(tmp_path: Path) -> None:
    missing = ToolSettings(shell=ShellSettings(sandbox_socket=tmp_path / "no-such-service.sock"))
    with capture_logs() as logs:
        document = await convert(docx(paragraph("hello")), settings=missing)
    assert document.text == "hello"
    assert [entry["event"] for entry in logs] == ["documents_unsandboxed"]


async def test_lower_limits_of_the_daemon_hold_for_the_converter() -> None:
    process = await asyncio.create_subprocess_exec(
        *("prlimit", "--nofile=40:40", "--as=800000000:800000000", sys.executable, "-I"),
        *("-m", "gateway.documents.converter", "1", "48000", "30", "1073741824"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(docx(paragraph("hello")))
    assert output.endswith(b"\nhello")


BILLION = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
LAUGHS = f'<!DOCTYPE x [<!ENTITY l0 "ha">{BILLION}]>'
EXTERNAL = '<!DOCTYPE x [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    "content",
    [
        zip_bomb(),
        docx(paragraph("&l9;"), doctype=LAUGHS),
        epub("<p>one", package_head=LAUGHS),
        epub("<p>one", package_head=EXTERNAL),
        xlsx({"A": row(1, 1) + '<row r="1048576"><c r="XFD1048576"><v>1</v></c></row>'}),
    ],
    ids=["zip bomb", "billion laughs in DOCX", "billion laughs in EPUB", "external entity in EPUB", "huge sheet"],
)
async def test_a_hostile_document_ends_in_a_sentence(content: bytes) -> None:
    with pytest.raises(DocumentUnreadable) as caught:
        await convert(content)
    assert str(caught.value).startswith("It ")


async def test_entities_of_a_document_load_no_file() -> None:
    try:
        text = (await convert(docx(paragraph("before &l9; after"), doctype=EXTERNAL))).text
    except DocumentUnreadable as refusal:
        text = str(refusal)
    assert "root:" not in text


async def test_a_document_that_takes_too_long_is_given_up() -> None:
    settings = ToolSettings(documents=DocumentSettings(timeout=1))
    with pytest.raises(DocumentUnreadable, match="more than 1 seconds or 1024 MB"):
        await convert(b"<!doctype html>" + b"<b><p>" * 300_000, html=True, settings=settings)


async def test_a_large_document_is_refused() -> None:
    settings = ToolSettings(documents=DocumentSettings(max_bytes=10_000))
    with pytest.raises(DocumentUnreadable, match=r"It is too large: the limit is 10 kB\."):
        await convert(b"%PDF-" + bytes(10_000), settings=settings)


async def test_few_documents_are_in_memory_at_the_same_time() -> None:
    converter = DocumentConverter()
    reading, most, all_there = 0, 0, asyncio.Event()

    async def read() -> bytes:
        nonlocal reading, most
        reading += 1
        most = max(most, reading)
        if reading == MAX_CONCURRENT:
            all_there.set()
        await all_there.wait()
        reading -= 1
        raise DocumentUnreadable("It is gone.")

    tries = (converter.convert(read, room=1000) for _ in range(3 * MAX_CONCURRENT))
    async with asyncio.timeout(30):
        assert all(
            isinstance(each, DocumentUnreadable) for each in await asyncio.gather(*tries, return_exceptions=True)
        )
    assert most == MAX_CONCURRENT
