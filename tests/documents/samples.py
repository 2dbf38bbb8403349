"""Documents as small as they can be, and some that are made to hurt."""

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"


def pdf(*pages: str) -> bytes:
    """Return a PDF with a text on each page, in any script. A page with an empty text has a picture only."""
    chars = "".join(dict.fromkeys("".join(pages).replace("\n", "")))
    codes = {char: f"{number:04x}" for number, char in enumerate(chars, start=1)}
    pairs = "\n".join(f"<{code}> <{char.encode('utf-16-be').hex()}>" for char, code in codes.items())
    mapping = (
        "/CIDInit /ProcSet findresource begin\nbegincmap\n1 begincodespacerange <0000> <ffff> endcodespacerange\n"
        f"{len(codes)} beginbfchar\n{pairs}\nendbfchar\nendcmap\nend"
    )
    kids = " ".join(f"{7 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type0 /BaseFont /F /Encoding/Identity-H /ToUnicode 5 0 R /DescendantFonts [4 0 R]>>",
        b"<< /Type /Font /Subtype /CIDFontType2 /BaseFont /F /DW 500 /CIDSystemInfo 3 0 R >>",
        _stream(mapping.encode()),
        _stream(b"\0", "/Type /XObject /Subtype /Image /Width 1 /Height 1 /BitsPerComponent 8 /ColorSpace /DeviceGray"),
    ]
    for number, text in enumerate(pages):
        lines = "\n".join(f"<{''.join(codes[char] for char in line)}> Tj T*" for line in text.split("\n"))
        drawn = f"BT /F 11 Tf 60 780 Td 14 TL\n{lines}\nET" if text else "/I Do"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            b"/Contents %d 0 R /Resources << /Font << /F 3 0 R >> /XObject << /I 6 0 R >> >> >>" % (8 + 2 * number)
        )
        objects.append(_stream(drawn.encode()))
    return _pdf_file(objects)


def _stream(data: bytes, more: str = "") -> bytes:
    packed = zlib.compress(data)
    return b"<< /Length %d /Filter /FlateDecode %s >>\nstream\n%s\nendstream" % (len(packed), more.encode(), packed)


def _pdf_file(objects: Sequence[bytes]) -> bytes:
    out, offsets = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def zip_file(entries: Mapping[str, str | bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as box:
        for name, content in entries.items():
            box.writestr(name, content)
    return out.getvalue()


def docx(body: str, *, doctype: str = "") -> bytes:
    """Return a document with the given paragraphs and tables, in WordprocessingML."""
    return zip_file(
        {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Override PartName="/word/document.xml" '
            'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{_OFFICE}/officeDocument" Target="word/document.xml"/></Relationships>',
            "word/document.xml": f'<?xml version="1.0"?>{doctype}<w:document xmlns:w="{_WORD}"><w:body>{body}'
            "</w:body></w:document>",
        }
    )


def paragraph(text: str, style: str = "") -> str:
    about = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{about}<w:r><w:t>{text}</w:t></w:r></w:p>"


def xlsx(sheets: Mapping[str, str]) -> bytes:
    """Return a workbook. Each sheet is its rows, in SpreadsheetML."""
    listed = "".join(
        f'<sheet name="{escape(name)}" sheetId="{number}" r:id="r{number}"/>'
        for number, name in enumerate(sheets, start=1)
    )
    relations = "".join(
        f'<Relationship Id="r{number}" Type="{_OFFICE}/worksheet" Target="worksheets/sheet{number}.xml"/>'
        for number in range(1, len(sheets) + 1)
    )
    parts = {
        f"xl/worksheets/sheet{number}.xml": f'<worksheet xmlns="{_MAIN}"><sheetData>{rows}</sheetData></worksheet>'
        for number, rows in enumerate(sheets.values(), start=1)
    }
    return zip_file(
        {
            "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"><Override PartName="/xl/workbook.xml" '
            'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships"><Relationship Id="r1" '
            f'Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>{listed}</sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">{relations}'
            "</Relationships>",
            **parts,
        }
    )


def row(number: int, *cells: str | float) -> str:
    def cell(at: int, value: str | float) -> str:
        place = f"{chr(ord('A') + at)}{number}"
        if isinstance(value, str):
            return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
        return f'<c r="{place}"><v>{value}</v></c>'

    return f'<row r="{number}">{"".join(cell(at, value) for at, value in enumerate(cells))}</row>'


def epub(*chapters: str, package_head: str = "", more: Mapping[str, str | bytes] | None = None) -> bytes:
    """Return a book. The manifest lists the chapters in reverse, so that only the spine has their order."""
    numbers = range(1, len(chapters) + 1)
    manifest = "".join(f'<item id="c{number}" href="text/c%20{number}.xhtml"/>' for number in reversed(numbers))
    spine = "".join(f'<itemref idref="c{number}"/>' for number in numbers)
    return zip_file(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
            '<rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>',
            "OEBPS/book.opf": f'<?xml version="1.0"?>{package_head}<package xmlns="http://www.idpf.org/2007/opf">'
            f"<manifest>{manifest}</manifest><spine>{spine}</spine></package>",
            **{
                f"OEBPS/text/c {number}.xhtml": f"<html><body>{text}</body></html>"
                for number, text in zip(numbers, chapters, strict=True)
            },
            **(more or {}),
        }
    )


def zip_bomb() -> bytes:
    """Return a document whose text claims to unpack to 4 GB."""
    content = "x" * 12_345
    whole = zip_file({"word/document.xml": content})
    return whole.replace(struct.pack("<I", len(content)), struct.pack("<I", 0xF0000000))
