"""Converts a fetched page to text."""

import asyncio
import codecs
import re
import sys

from gateway.aio import finish_before_cancel
from gateway.safe_http.client import FetchFailed, Page

_HTML = {"text/html", "application/xhtml+xml"}
_TEXT = {"application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml"}

# Python also has codecs that are not charsets of pages, and some of them are slow.
_CHARSETS = re.compile(
    r"ascii|utf-.*|iso8859-.*|cp\d+|koi8-.*|mac-.*|gb.*|big5.*|shift_jis.*|euc_.*|iso2022_.*|tis-620"
)


async def page_text(page: Page) -> str:
    """Return the page as text. Raises `FetchFailed` if it is something else. The caller sets the deadline."""
    try:
        charset = codecs.lookup(page.charset).name if page.charset else ""
    except (LookupError, ValueError):
        charset = ""
    if not _CHARSETS.fullmatch(charset):
        charset = ""
    kind = page.media_type
    if kind not in _HTML:
        if kind.startswith("text/") or kind in _TEXT or kind.endswith(("+json", "+xml")):
            return await asyncio.to_thread(page.body.decode, charset or "utf-8", "replace")
        raise FetchFailed(f"{page.url} is not text but {kind}, which cannot be shown.")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "gateway.safe_http.html_converter", charset),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        text, _ = await process.communicate(page.body)
    finally:
        if process.returncode is None:
            process.kill()
            await finish_before_cancel(process.wait())
    if process.returncode:
        raise FetchFailed(f"{page.url} is too complicated to be read as text.")
    return text.decode(errors="replace")
