"""Reads each kind of document with its library. Runs in the converter only: a document can be made to take for ever."""

import io
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from zipfile import ZipFile

from gateway.documents.identify import OLE, PDF, ZIP
from gateway.documents.pages import Page, divide

_MAX_UNPACKED_BYTES = 300_000_000
_MAX_ZIP_ENTRIES = 20_000
_MAX_XML_BYTES = 20_000_000
_ROWS = 100
"""Rows of a spreadsheet that make a page."""
_MAX_COLUMNS = 100
_MAX_CELL_CHARS = 1_000
_XML_ENCODING = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml[^>]*\bencoding\s*=\s*["']([A-Za-z0-9._-]+)""")
_DATA_URL = re.compile(r"!\[([^\]]*)\]\(data:[^)]*\)")
_SUPPORTED = "Gatehouse reads PDF, DOCX, XLSX, XLS, ODS, EPUB and HTML."
_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_NO_PASSWORD = "It is protected with a password, so it cannot be read. Ask for a copy without a password."  # noqa: S105 - a sentence.


class Unreadable(Exception):
    """Its text is a sentence for the model."""


class NeedsLibrary(Exception):
    """The PDF is encrypted with AES, which needs the extra `documents`."""


class Pages(NamedTuple):
    pages: Iterable[Page]
    skips: bool = True
    """Whether `pages` start with page 1, and not with the one that was asked for."""
    without_text: str = "It has no text."


def open_pages(content: bytes, *, html_charset: str | None, first: int) -> Pages:
    """Return the pages of a document, whose kind its content shows. `html_charset` is None unless it is HTML."""
    if html_charset is not None:
        return Pages(divide(_html_to_markdown(content, html_charset)))
    if content.startswith(ZIP):
        return _open_zip(content)
    if content.startswith(OLE):
        return _open_ole(content)
    if PDF in content[:1024]:
        return Pages(
            _read_pdf(content, first),
            skips=False,
            without_text="It has no text: its pages are pictures, probably scans, or empty.",
        )
    raise Unreadable(f"It is not a document of a known kind. {_SUPPORTED}")


def _html_to_markdown(content: bytes | str, charset: str = "") -> str:
    from justhtml import JustHTML  # noqa: PLC0415 - only the library that is needed.

    document = JustHTML(content, encoding=charset or None) if isinstance(content, bytes) else JustHTML(content)
    title = " ".join(element.to_text() for element in document.query("title")[:1])
    text = _DATA_URL.sub(r"[picture: \1]", document.to_markdown())
    return f"# {title}\n\n{text}" if title else text


def _read_pdf(content: bytes, first: int) -> Iterator[Page]:
    from pypdf import PasswordType, PdfReader  # noqa: PLC0415 - only the library that is needed.
    from pypdf.errors import DependencyError, PyPdfError  # noqa: PLC0415 - see above.

    try:
        reader = PdfReader(io.BytesIO(content))
        if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
            raise Unreadable(_NO_PASSWORD)
        count = len(reader.pages)
    except DependencyError as missing:
        raise NeedsLibrary from missing
    if not count:
        raise Unreadable("It is damaged: it has no pages.")
    if first > count:
        # Counted from the start, so that the caller says how many there are.
        raise Unreadable(f"It has only {count} page{'' if count == 1 else 's'}.")
    for number in range(first, count + 1):
        try:
            text = reader.pages[number - 1].extract_text().strip()
        except DependencyError as missing:
            raise NeedsLibrary from missing
        except (PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            # One damaged page does not hide the others.
            yield Page("(this page is damaged)", f"Page {number} of {count}")
            continue
        yield Page(text or "(no text)", f"Page {number} of {count}", has_text=bool(text))


def _open_zip(content: bytes) -> Pages:
    with ZipFile(io.BytesIO(content)) as box:
        entries = box.infolist()
        names = {entry.filename for entry in entries}
        # `zipfile` unpacks no more than an entry declares.
        if len(entries) > _MAX_ZIP_ENTRIES or sum(entry.file_size for entry in entries) > _MAX_UNPACKED_BYTES:
            limit = f"{_MAX_UNPACKED_BYTES // 1_000_000} MB or {_MAX_ZIP_ENTRIES} files"
            raise Unreadable(f"It unpacks to more than {limit}, so it is not opened.")
        if any(entry.flag_bits & 1 for entry in entries):
            raise Unreadable(_NO_PASSWORD)
    if "word/document.xml" in names:
        return Pages(_read_docx(content))
    if names & {"xl/workbook.xml", "xl/workbook.bin"}:
        return Pages(_read_spreadsheet(content))
    if _CONTAINER in names:
        return Pages(_read_epub(content, names), without_text="It has no text: its pages are pictures, or empty.")
    with ZipFile(io.BytesIO(content)) as box:
        kind = box.read("mimetype")[:100] if "mimetype" in names else b""
    if kind.startswith(b"application/vnd.oasis.opendocument.spreadsheet"):
        return Pages(_read_spreadsheet(content))
    raise Unreadable(f"It is a zip file, but not a document of a known kind. {_SUPPORTED}")


def _open_ole(content: bytes) -> Pages:
    # Names of streams are UTF-16. Office also uses this container for encrypted files of the newer formats.
    if "EncryptedPackage".encode("utf-16-le") in content:
        raise Unreadable(_NO_PASSWORD)
    if any(name.encode("utf-16-le") in content for name in ("Workbook", "Book")):
        return Pages(_read_spreadsheet(content))
    raise Unreadable("It is in an old Office format. Ask for it as DOCX, XLSX or PDF.")


def _read_docx(content: bytes) -> Iterator[Page]:
    import mammoth  # type: ignore[import-untyped]  # noqa: PLC0415 - only the library that is needed.

    result = mammoth.convert_to_html(
        io.BytesIO(content),
        convert_image=lambda _image: [],
        include_embedded_style_map=False,
        external_file_access=False,
    )
    return divide(_html_to_markdown(result.value))


def _read_spreadsheet(content: bytes) -> Iterator[Page]:
    from python_calamine import (  # noqa: PLC0415 - only the library that is needed.
        CalamineWorkbook,
        PasswordError,
        SheetTypeEnum,
        SheetVisibleEnum,
    )

    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(content))
    except PasswordError as error:
        raise Unreadable(_NO_PASSWORD) from error
    for about in book.sheets_metadata:
        if about.typ is not SheetTypeEnum.WorkSheet:
            continue
        name = about.name if about.visible is SheetVisibleEnum.Visible else f"{about.name} (hidden)"
        sheet = book.get_sheet_by_name(about.name)
        if sheet.end is None:
            yield Page("(empty)", f"Sheet {name}")
            continue
        # The rows begin with the first one of the sheet, even if that is empty.
        yield from _divide_rows(sheet.iter_rows(), f"Sheet {name}", total=sheet.end[0] + 1)


def _divide_rows(rows: Iterable[Sequence[object]], name: str, *, total: int) -> Iterator[Page]:
    """Yield tables of up to `_ROWS` rows. Each row starts with its number in the sheet."""
    lines: list[str] = []
    at = first = 1
    for at, row in enumerate(rows, start=1):
        cells = [_cell_text(value) for value in row[:_MAX_COLUMNS]]
        while cells and not cells[-1]:
            cells.pop()
        if any(row[_MAX_COLUMNS:]):
            cells.append(f"[{len(row) - _MAX_COLUMNS} more columns]")
        if cells:
            first = first if lines else at
            lines.append(f"{at} | {' | '.join(cells)}")
        if len(lines) == _ROWS:
            yield Page("\n".join(lines), f"{name}, rows {first} to {at} of {total}")
            lines = []
    if lines:
        yield Page("\n".join(lines), f"{name}, rows {first} to {at} of {total}")


def _cell_text(value: object) -> str:
    match value:
        case bool():
            return "TRUE" if value else "FALSE"
        case float():
            return f"{value:.15g}"
        case datetime() if value.time() == time.min:
            return value.date().isoformat()
        case datetime() | date() | time() | timedelta():
            return str(value)
        case _:
            text = " ".join(str(value).split()).replace("|", r"\|")
            return text if len(text) <= _MAX_CELL_CHARS else f"{text[:_MAX_CELL_CHARS]}…"


def _read_epub(content: bytes, names: set[str]) -> Iterator[Page]:
    """Yield the chapters in their reading order."""
    # https://www.w3.org/TR/epub-33/#sec-package-doc
    with ZipFile(io.BytesIO(content)) as book:
        root = _parse_xml(book, _CONTAINER).find(".//{*}rootfile")
        package = "" if root is None else root.get("full-path", "")
        if package not in names:
            raise Unreadable("It is damaged: the list of its chapters is missing.")
        listed = _parse_xml(book, package)
        places = {
            item.get("id", ""): posixpath.normpath(
                posixpath.join(posixpath.dirname(package), unquote(item.get("href", "").partition("#")[0]))
            )
            for item in listed.iterfind(".//{*}manifest/{*}item")
        }
        chapters = [places.get(item.get("idref", ""), "") for item in listed.iterfind(".//{*}spine/{*}itemref")]
        if _ENCRYPTION in names:
            locked = {
                unquote(each.get("URI", "")) for each in _parse_xml(book, _ENCRYPTION).iterfind(".//{*}CipherReference")
            }
            if locked & set(chapters):
                raise Unreadable("It is protected by DRM, so it cannot be read. Ask for a copy without it.")
        for chapter in chapters:
            if chapter not in names:
                continue
            content = book.read(chapter)
            declared = _XML_ENCODING.match(content)
            # A chapter is XML, which is UTF-8 unless it says otherwise. HTML would be windows-1252.
            text = _html_to_markdown(content, declared[1].decode() if declared else "utf-8").strip()
            if text:
                yield from divide(f"{text}\n\n")


def _parse_xml(book: ZipFile, name: str) -> ET.Element:
    """Parse a small part of a book. The parser loads nothing from elsewhere, and entities are refused."""
    if book.getinfo(name).file_size > _MAX_XML_BYTES:
        raise Unreadable(f"It is not opened: its {name} is too large.")
    data = book.read(name)
    if b"<!ENTITY" in data:
        raise Unreadable(f"It is not opened: its {name} defines entities, which no book needs.")
    return ET.fromstring(data)  # noqa: S314 - see above; and expat limits how far entities expand.
