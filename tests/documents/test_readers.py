"""What the converter makes of each kind of document."""

import io

import pytest
from pypdf import PdfReader, PdfWriter

from gateway.documents.converter import convert
from tests.documents.samples import docx, epub, paragraph, pdf, row, xlsx, zip_file

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def read(content: bytes, *, first: int = 1, max_bytes: int = 48_000) -> str:
    header, text = convert(content, first=first, max_bytes=max_bytes, html_charset=None)
    assert "problem" not in header, header
    return text


def problem(content: bytes, *, first: int = 1) -> object:
    header, text = convert(content, first=first, max_bytes=48_000, html_charset=None)
    assert not text
    return header["problem"]


def encrypted(password: str, algorithm: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf("secret plans"))))
    writer.encrypt(password, "owner", algorithm=algorithm)
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def test_pages_of_a_pdf_have_their_numbers() -> None:
    assert read(pdf("One\nline two", "Two")) == "[Page 1 of 2]\nOne\nline two\n\n[Page 2 of 2]\nTwo\n\n"


@pytest.mark.parametrize("text", ["漢字かな交じり文", "한국어", "Ελληνικά и кириллица", "naïve café"])
def test_a_pdf_may_be_in_any_script(text: str) -> None:
    assert text in read(pdf(text))


@pytest.mark.parametrize("text", ["שלום עולם", "漢字", "مرحبا بالعالم"])
def test_text_of_documents_and_books_keeps_its_order(text: str) -> None:
    assert text in read(docx(paragraph(text)))
    assert text in read(epub(f"<p>{text}</p>"))
    assert text in read(xlsx({text: row(1, text)}))


def test_a_pdf_without_text_says_that_it_has_pictures_only() -> None:
    assert "pictures, probably scans" in str(problem(pdf("", "")))


def test_a_page_without_text_among_others_is_marked() -> None:
    assert "[Page 2 of 3]\n(no text)\n" in read(pdf("one", "", "three"))


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-256"])
def test_a_pdf_with_a_password_says_so(algorithm: str) -> None:
    assert "protected with a password" in str(problem(encrypted("guess", algorithm)))


@pytest.mark.parametrize("algorithm", ["RC4-128", "AES-128", "AES-256"])
def test_a_pdf_that_needs_a_password_only_for_changes_is_read(algorithm: str) -> None:
    assert "secret plans" in read(encrypted("", algorithm))


def test_pages_beyond_the_room_are_named_and_can_be_read() -> None:
    content = pdf(*(f"text of page {number}" for number in range(1, 31)))
    header, text = convert(content, first=1, max_bytes=500, html_charset=None)
    assert header == {"next_page": 16}
    assert "text of page 15" in text
    assert read(content, first=16).startswith("[Page 16 of 30]\ntext of page 16\n")
    assert problem(content, first=31) == "It has only 30 pages."


def test_many_pages_without_text_are_not_all_looked_at() -> None:
    said = str(problem(pdf(*[""] * 201)))
    assert said.endswith("Pages from 201 on were not looked at.")


def test_a_document_keeps_headings_tables_and_emphasis() -> None:
    table = f"<w:tbl><w:tr><w:tc>{paragraph('left')}</w:tc><w:tc>{paragraph('right')}</w:tc></w:tr></w:tbl>"
    bold = "<w:p><w:r><w:rPr><w:b/></w:rPr><w:t>loud</w:t></w:r></w:p>"
    text = read(docx(paragraph("Title", "Heading1") + paragraph("Text.") + bold + table))
    assert text.startswith("# Title\n\nText.\n\n**loud**\n\n")
    assert "left" in text
    assert text.index("left") < text.index("right")


def test_a_long_document_is_read_in_pages_that_join_to_the_whole() -> None:
    lines = [f"Paragraph number {number} of a long report." for number in range(600)]
    content, text, page = docx("".join(map(paragraph, lines))), "", 1
    while page:
        header, part = convert(content, first=page, max_bytes=10_000, html_charset=None)
        text, page = text + part, int(header["next_page"])
    assert text.split("\n\n") == lines


def test_a_spreadsheet_shows_its_rows_with_their_numbers() -> None:
    content = xlsx({"Costs": row(2, "item", "price") + row(3, "tea | cake", 2.5) + row(5, "sum", 1e6), "Empty": ""})
    assert read(content) == (
        "[Sheet Costs, rows 2 to 5 of 5]\n2 | item | price\n3 | tea \\| cake | 2.5\n5 | sum | 1000000\n\n"
        "[Sheet Empty]\n(empty)\n\n"
    )


def test_formulas_show_their_saved_results() -> None:
    cells = '<row r="1"><c r="A1"><f>1+41</f><v>42</v></c><c r="B1" t="e"><f>1/0</f><v>#DIV/0!</v></c></row>'
    assert "1 | 42\n" in read(xlsx({"A": cells}))


def test_a_large_spreadsheet_is_read_by_its_pages() -> None:
    content = xlsx({"A": "".join(row(number, number, "x" * 50) for number in range(1, 2001))})
    header, text = convert(content, first=1, max_bytes=20_000, html_charset=None)
    assert header == {"next_page": 4}
    assert text.startswith("[Sheet A, rows 1 to 100 of 2000]\n1 | 1 | xxx")
    assert read(content, first=20).startswith("[Sheet A, rows 1901 to 2000 of 2000]")


def test_very_wide_rows_and_long_cells_are_cut() -> None:
    wide = "".join(f'<c r="{chr(65 + at // 26)}{chr(65 + at % 26)}1"><v>7</v></c>' for at in range(150))
    text = read(xlsx({"A": f'<row r="1">{wide}</row>{row(2, "y" * 5000)}'}))
    assert "more columns]" in text
    assert text.count("7") < 105
    assert "y" * 1000 + "…" in text


def test_chapters_of_a_book_come_in_the_order_of_its_spine() -> None:
    assert read(epub("<h1>First</h1><p>one", "<p>two", "<p>three")) == "# First\n\none\n\ntwo\n\nthree\n\n"


def test_a_book_with_drm_says_so() -> None:
    locked = (
        '<encryption xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><EncryptedData '
        'xmlns="http://www.w3.org/2001/04/xmlenc#"><CipherData><CipherReference URI="OEBPS/text/c%201.xhtml"/>'
        "</CipherData></EncryptedData></encryption>"
    )
    assert "DRM" in str(problem(epub("<p>one", more={"META-INF/encryption.xml": locked})))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"%PDF-1.7\n" + b"\0\xff" * 500, "damaged"),
        (pdf("one")[:700], "damaged"),
        (pdf(), "damaged: it has no pages"),
        (docx(paragraph("one"))[:-60], "damaged"),
        (docx("<w:p>"), "damaged"),
        (epub(), "no text"),
        (zip_file({"notes.txt": "hello"}), "a zip file, but not a document"),
        (zip_file({"ppt/presentation.xml": "<p/>"}), "Gatehouse reads PDF"),
        (OLE + "EncryptedPackage".encode("utf-16-le"), "protected with a password"),
        (OLE + "WordDocument".encode("utf-16-le"), "old Office format"),
        (OLE + "Workbook".encode("utf-16-le"), "damaged"),
        (b"hello", "not a document of a known kind"),
    ],
)
def test_what_cannot_be_read_ends_in_a_sentence(content: bytes, said: str) -> None:
    sentence = str(problem(content))
    assert said in sentence
    assert sentence.endswith(".")
