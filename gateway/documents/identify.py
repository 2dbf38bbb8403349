"""Recognises documents by their first bytes, whatever their names say. Pure functions."""

import re
from codecs import getincrementaldecoder

HEAD = 1024
"""The number of bytes that these functions need."""

DOCUMENT_TYPES = frozenset(
    {
        "application/pdf",
        "application/epub+zip",
        "application/msword",
        "application/vnd.ms-excel",
        "application/vnd.oasis.opendocument.spreadsheet",
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "application/octet-stream",
        "binary/octet-stream",
    }
)
"""The types with which web servers send documents. They may be larger than a page."""

PDF, ZIP, OLE = b"%PDF-", b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_BLANKS = b"\xef\xbb\xbf \t\r\n"
_HTML = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL
)


def is_document(head: bytes) -> bool:
    """Return whether this is a PDF, or one of the containers in which office documents and books are stored.

    Some PDFs begin with other bytes. A text that mentions the format is none.
    """
    head = head[:HEAD]
    return head.lstrip(_BLANKS).startswith(PDF) or head.startswith((ZIP, OLE)) or (PDF in head and not _is_text(head))


def _is_text(head: bytes) -> bool:
    try:
        # The last character may be cut.
        text = getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return "\0" not in text


def is_html(head: bytes) -> bool:
    return _HTML.match(head[:HEAD]) is not None
