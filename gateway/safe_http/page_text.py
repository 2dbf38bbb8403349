"""Converts a fetched page or document to text."""

import asyncio
import codecs
import re

from gateway.documents.conversion import Document, DocumentConverter, DocumentUnreadable
from gateway.documents.identify import is_document
from gateway.documents.pages import NoSuchPage, divide, select
from gateway.safe_http.client import FetchFailed, Page
from gateway.text.plain import in_bytes

_HTML = {"text/html", "application/xhtml+xml"}
_TEXT = {"application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml"}

# Python also has codecs that are not charsets of pages, and some of them are slow.
_CHARSETS = re.compile(
    r"ascii|utf-.*|iso8859-.*|cp\d+|koi8-.*|mac-.*|gb.*|big5.*|shift_jis.*|euc_.*|iso2022_.*|tis-620"
)


async def page_text(page: Page, documents: DocumentConverter, *, first_page: int = 1, room: int) -> Document:
    """Return the text of the page in up to `room` bytes. Raises `FetchFailed` if it is something else."""
    try:
        charset = codecs.lookup(page.charset).name if page.charset else ""
    except (LookupError, ValueError):
        charset = ""
    if not _CHARSETS.fullmatch(charset):
        charset = ""
    kind = page.media_type

    async def content() -> bytes:
        return page.body

    def divided() -> Document:
        text = page.body.decode(charset or "utf-8", "replace")
        chosen = select(divide(text), first=first_page, skips=True, max_bytes=room)
        return Document(text=chosen.text, next_page=chosen.next_page)

    try:
        if is_document(page.body) and page.is_cut:
            raise FetchFailed(f"{page.url} is a document of more than {in_bytes(len(page.body))}, so it is not read.")
        if is_document(page.body):
            return await documents.convert(content, first_page=first_page, room=room)
        if kind in _HTML:
            return await documents.convert(content, html_charset=charset, first_page=first_page, room=room)
        if kind.startswith("text/") or kind in _TEXT or kind.endswith(("+json", "+xml")):
            return await asyncio.to_thread(divided)
    except DocumentUnreadable as reason:
        raise FetchFailed(f"{page.url} cannot be read as text. {reason}") from reason
    except NoSuchPage as missing:
        raise FetchFailed(f"{page.url} has only {missing.args[0]} pages.") from missing
    raise FetchFailed(f"{page.url} is not text but {kind}, which cannot be shown.")
