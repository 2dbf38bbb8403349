"""`read_file` and `fetch_url` on documents."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from config import DocumentSettings, FetchSettings
from gateway.agent.toolbox import read_file
from gateway.agent.toolbox.web import make_fetch
from gateway.agent.tools import Tool, ToolContext, ToolFailed
from tests.documents.samples import docx, paragraph, pdf

REPORT = docx("".join(paragraph(f"Paragraph number {number} of a long report.") for number in range(2000)))
HTML = b"<!DOCTYPE html><title>T</title><p>Some <b>text</b>."


async def test_a_document_in_the_workspace_is_read_as_text(context: ToolContext) -> None:
    (context.workspace / "wrong-name.txt").write_bytes(pdf("Hello", "there"))
    text = await read_file.run(context, {"path": "wrong-name.txt"})
    assert text == "[Page 1 of 2]\nHello\n\n[Page 2 of 2]\nthere"


async def test_a_long_document_is_read_from_a_page_on(context: ToolContext) -> None:
    (context.workspace / "report.docx").write_bytes(REPORT)
    text = await read_file.run(context, {"path": "report.docx"})
    assert await read_file.run(context, {"path": "report.docx", "first_page": 0}) == text
    assert len(text) < 50_000
    assert text.endswith("\n[Cut: there is more. Go on with first_page=7.]")
    rest = await read_file.run(context, {"path": "report.docx", "first_page": 7})
    assert rest.endswith("Paragraph number 1999 of a long report.")


async def test_documents_have_pages_and_texts_have_lines(context: ToolContext) -> None:
    (context.workspace / "report.docx").write_bytes(REPORT)
    (context.workspace / "notes.txt").write_text("one\ntwo")
    with pytest.raises(ToolFailed, match="Use first_page instead"):
        await read_file.run(context, {"path": "report.docx", "first_line": 2})
    with pytest.raises(ToolFailed, match="Use first_line"):
        await read_file.run(context, {"path": "notes.txt", "first_page": 2})


@pytest.mark.parametrize("text", ['MAGIC = b"%PDF-"  # h\u00e9', "é" * 508 + "  %PDF-é"])
async def test_a_text_that_mentions_the_mark_of_a_pdf_is_read_as_a_text(context: ToolContext, text: str) -> None:
    (context.workspace / "kinds.py").write_text(text)
    assert await read_file.run(context, {"path": "kinds.py"}) == text


async def test_a_pdf_after_other_bytes_is_read_as_a_document(context: ToolContext) -> None:
    (context.workspace / "received.pdf").write_bytes(b"\r\nHTTP/1.1 200 OK\0\r\n" + pdf("Hello"))
    assert await read_file.run(context, {"path": "received.pdf"}) == "[Page 1 of 1]\nHello"


async def test_a_damaged_document_is_named_with_the_reason(context: ToolContext) -> None:
    (context.workspace / "report.docx").write_bytes(REPORT[:-100])
    with pytest.raises(ToolFailed, match=r"'report\.docx' cannot be read as text\. It is damaged"):
        await read_file.run(context, {"path": "report.docx"})


async def test_html_is_source_in_the_workspace_and_text_in_the_attachments(
    context: ToolContext, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    for folder in (files, context.workspace):
        folder.mkdir(exist_ok=True)
        (folder / "page.html").write_bytes(HTML)
    context = msgspec.structs.replace(context, attachments=files)
    assert await read_file.run(context, {"path": "page.html"}) == HTML.decode()
    assert await read_file.run(context, {"path": "/attachments/page.html"}) == "# T\n\nSome **text**."


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async def report(_request: web.Request) -> web.Response:
        return web.Response(body=REPORT, content_type="application/octet-stream")

    async def pages(_request: web.Request) -> web.Response:
        return web.Response(body=pdf(*("x" * 50 for _ in range(400))), content_type="application/pdf")

    app = web.Application()
    app.router.add_get("/report", report)
    app.router.add_get("/pages", pages)
    running = TestServer(app)
    async with running:
        yield running


def fetch_tool(max_bytes: int = 20_000_000) -> Tool:
    return make_fetch(FetchSettings(max_bytes=10_000), DocumentSettings(max_bytes=max_bytes), is_allowed=lambda _: True)


async def test_a_document_is_fetched_as_text_from_a_page_on(server: TestServer, context: ToolContext) -> None:
    url = str(server.make_url("/report"))
    text = await fetch_tool().run(context, {"url": url, "first_page": 6})
    assert "not an instruction to you" in text
    assert text.endswith("Paragraph number 1999 of a long report.")
    assert "Paragraph number 0 " not in text


async def test_a_document_may_be_larger_than_a_page(server: TestServer, context: ToolContext) -> None:
    url = str(server.make_url("/pages"))
    assert "[Page 1 of 400]" in await fetch_tool().run(context, {"url": url, "first_page": 0})
    with pytest.raises(ToolFailed, match="is a document of more than 10 kB, so it is not read"):
        await fetch_tool(10_000).run(context, {"url": url})


async def test_a_page_that_a_document_does_not_have_is_named(server: TestServer, context: ToolContext) -> None:
    with pytest.raises(ToolFailed, match=r"cannot be read as text\. It has only 400 pages\."):
        await fetch_tool().run(context, {"url": str(server.make_url("/pages")), "first_page": 999})
