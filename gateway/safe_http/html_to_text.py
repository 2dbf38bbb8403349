"""What of a page can be read as text."""

import asyncio
import codecs
import re
import sys

from gateway.aio import finish_before_cancel
from gateway.safe_http.client import FetchFailed, Page

__all__ = ["page_text"]

_HTML = {"text/html", "application/xhtml+xml"}
_TEXT = {"application/json", "application/xml", "application/javascript", "application/x-ndjson", "application/yaml"}

_CHARSETS = re.compile(
    r"ascii|utf-.*|iso8859-.*|cp\d+|koi8-.*|mac-.*|gb.*|big5.*|shift_jis.*|euc_.*|iso2022_.*|tis-620"
)


async def page_text(page: Page) -> str:
    """Return the page as text; raise `WebFailed` when it is something else. The caller sets the deadline."""
    if page.media_type in _HTML:
        return await _from_html(page)
    if page.media_type.startswith("text/") or page.media_type in _TEXT or page.media_type.endswith(("+json", "+xml")):
        return await asyncio.to_thread(page.body.decode, _known(page.charset) or "utf-8", "replace")
    raise FetchFailed(f"{page.url} is not text but {page.media_type}, which cannot be shown.")


async def _from_html(page: Page) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "gateway.safe_http.reader", _known(page.charset)),
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


def _known(charset: str | None) -> str:
    """Return Python's name of a charset that pages are written in; it has codecs that are something else, and slow."""
    try:
        name = codecs.lookup(charset).name if charset else ""
    except (LookupError, ValueError):
        return ""
    return name if _CHARSETS.fullmatch(name) else ""
