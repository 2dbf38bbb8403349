"""Documents as text: time and memory of a 100-page PDF and of a large spreadsheet, with and without the sandbox."""

import asyncio
import resource
import statistics
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.table import Row
from config import ShellSettings, ToolSettings
from gateway.documents.conversion import DocumentConverter
from tests.documents.samples import pdf, row, xlsx

ROUNDS = 5
ROOM = 1_000_000
LIMIT = 5.0
GB = 1024
PDF = pdf(
    *("\n".join(f"Line {line} of page {page}: " + "plain words " * 5 for line in range(45)) for page in range(100))
)
SHEET = xlsx({"Sheet": "".join(row(number, *("some text", 1.5, number) * 4) for number in range(1, 20_001))})


def rows() -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        none = ToolSettings(shell=ShellSettings(sandbox_socket=Path(folder) / "none.sock"))
        for kind, settings in (("in the sandbox", ToolSettings()), ("without a sandbox", none)):
            converter = DocumentConverter(partial(copy, settings))
            for what, content, page in (
                ("an empty page of HTML", b"<!doctype html><p>x", 1),
                ("a PDF with 100 pages", PDF, 1),
                ("the last page of it", PDF, 100),
                ("a spreadsheet with 240,000 cells, the last rows", SHEET, 200),
            ):
                took = [asyncio.run(_convert(converter, content, page)) for _ in range(ROUNDS)]
                half, cpu = (statistics.median(each) for each in zip(*took, strict=True))
                yield Row(
                    what=f"{what}, {kind}",
                    measured=f"{half:.2f} s" + (f", CPU time {cpu:.2f} s" if settings is none else ""),
                    baseline="",
                    target="CPU time < 5 s",
                    is_met=cpu < LIMIT,
                )
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    yield Row(
        what="the largest of these processes", measured=f"{peak:.0f} MB", baseline="", target="< 1 GB", is_met=peak < GB
    )


async def _convert(converter: DocumentConverter, content: bytes, page: int) -> tuple[float, float]:
    """Return how long it took, and the CPU time of the process."""

    async def read() -> bytes:
        return content

    charset = "" if content.startswith(b"<") else None
    began, used = perf_counter(), _cpu_time()
    await converter.convert(read, html_charset=charset, first_page=page, room=ROOM)
    return perf_counter() - began, _cpu_time() - used


def _cpu_time() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
