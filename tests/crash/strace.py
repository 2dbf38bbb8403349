"""Parses a trace by strace: the system calls of a daemon that change files or send data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

STRACE = (
    *("strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "--signal=none"),
    "--trace=openat,write,pwrite64,fsync,fdatasync,link,linkat,rename,rmdir,unlink,ftruncate,fallocate,mkdir,sendto",
)
"""The command without `-o FILE`. It prints names and data in hexadecimal, without shortening them."""

_WHOLE = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<given>.*)\) += (?P<result>.*)$")
_BEGUN = re.compile(r"^(?P<pid>\d+) +(?P<call>\w+)\((?P<given>.*) <unfinished \.\.\.>$")
_ENDED = re.compile(r"^(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<given>.*)\) += (?P<result>.*)$")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"\d+<((?:\\x[0-9a-f]{2})*)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A successful system call.

    `begun` and `ended` are line numbers of the trace. The calls of several threads overlap.
    """

    call: str
    begun: int
    ended: int
    path: str
    """The file that the call changes. For a rename or a link, its new name."""
    old_path: str = ""
    data: bytes = b""
    number: int = 0
    """The offset of a `pwrite64`, the size of `ftruncate` and `fallocate`."""
    flags: str = ""


def read_trace(path: Path) -> list[Step]:
    """Return the steps in the order in which they ended."""
    return [step for step in _steps(path) if step is not None]


def _steps(path: Path) -> Iterator[Step | None]:
    begun: dict[str, tuple[int, str, str]] = {}
    with path.open() as lines:
        for number, line in enumerate(lines):
            if match := _BEGUN.match(line):
                begun[match["pid"]] = (number, match["call"], match["given"])
            elif match := _ENDED.match(line):
                first, call, given = begun.pop(match["pid"])
                yield _step(call, given + match["given"], match["result"], first, number)
            elif match := _WHOLE.match(line):
                yield _step(match["call"], match["given"], match["result"], number, number)


def _step(call: str, given: str, result: str, begun: int, ended: int) -> Step | None:
    if result.startswith("-1"):
        return None
    texts = [_bytes(text) for text in _TEXT.findall(given)]
    handles = [_bytes(text).decode() for text in _HANDLE.findall(given)]
    numbers = given.rpartition(",")[2].strip()
    number = int(numbers) if numbers.isdigit() else 0
    match call:
        case "openat":
            opened = _HANDLE.search(result)
            name = _bytes(opened[1]).decode() if opened else ""
            return Step(call=call, begun=begun, ended=ended, path=name, flags=given)
        case "rename" | "link" | "linkat":
            name = "link" if call == "linkat" else call  # `os.link` calls either, by the version of Python.
            return Step(call=name, begun=begun, ended=ended, path=texts[1].decode(), old_path=texts[0].decode())
        case "unlink" | "mkdir" | "rmdir":
            return Step(call=call, begun=begun, ended=ended, path=texts[0].decode())
        case _:
            written = texts[0][: int(result)] if texts and result.isdigit() else b""
            return Step(call=call, begun=begun, ended=ended, path=handles[0], data=written, number=number)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))
