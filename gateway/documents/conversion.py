"""Converts documents in processes of their own: in the sandbox where there is one, and always within limits."""

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

import gateway
from config import ToolSettings
from gateway.aio import finish_before_cancel
from gateway.distribution import Installation
from gateway.errors import GatehouseError
from gateway.sandbox.bubblewrap import SandboxLimits, SandboxUnavailable
from gateway.sandbox.layout import SandboxedProgram
from gateway.sandbox.program import open_program
from gateway.text.plain import in_bytes

log = structlog.get_logger()

MAX_CONCURRENT = 2
QUEUE_TIMEOUT = 15.0
"""Seconds that a document waits for its turn."""
_PROCESSES = 8
_HEADER_BYTES = 4096
_NOT_STARTED = (126, 127)
"""Exit codes for a program that could not be run: the sandbox lacks a part of this Python."""


class DocumentUnreadable(GatehouseError):
    """Its text is a sentence for the model. It begins with "It", the document."""


class Document(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    next_page: int
    """The first page that is not in the text, or 0."""

    def rest(self) -> str:
        """Return the note about the pages that are not in the text, or an empty string."""
        return f"[Cut: there is more. Go on with first_page={self.next_page}.]" if self.next_page else ""


class _Header(msgspec.Struct):
    next_page: int = 0
    problem: str = ""
    needs_library: bool = False


class DocumentConverter:
    """Converts up to `MAX_CONCURRENT` documents at the same time."""

    def __init__(self, settings: Callable[[], ToolSettings] = ToolSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)
        self._is_warned = False

    @property
    def max_bytes(self) -> int:
        """The size of the largest document that is converted."""
        return self._settings().documents.max_bytes

    async def convert(
        self, read: Callable[[], Awaitable[bytes]], *, html_charset: str | None = None, first_page: int = 1, room: int
    ) -> Document:
        """Return the text from `first_page` on, in up to `room` bytes. Raises `DocumentUnreadable`.

        `read` is called when it is the document's turn, so that no others are in memory. Give `html_charset`, which may
        be empty, if the document is HTML: the other kinds are recognised by their content.
        """
        settings = self._settings().documents
        try:
            async with asyncio.timeout(QUEUE_TIMEOUT):
                await self._slots.acquire()
        except TimeoutError as late:
            raise DocumentUnreadable("It cannot be read now: too many documents are being read. Try again.") from late
        try:
            content = await read()
            if len(content) > settings.max_bytes:
                raise DocumentUnreadable(f"It is too large: the limit is {in_bytes(settings.max_bytes)}.")
            words = [first_page, room, math.ceil(settings.timeout), settings.memory_mb * 1024**2]
            charset = [] if html_charset is None else [html_charset]
            argv = (sys.executable, "-I", "-m", "gateway.documents.converter", *map(str, words), *charset)
            deadline = asyncio.timeout(settings.timeout)
            try:
                async with deadline:
                    output = await self._run(argv, content, room + _HEADER_BYTES)
            except TimeoutError as late:
                if not deadline.expired():
                    raise
                raise DocumentUnreadable(_too_complicated(settings.timeout, settings.memory_mb)) from late
        finally:
            self._slots.release()
        line, newline, text = output.partition(b"\n")
        if not newline:  # Killed by one of its limits.
            raise DocumentUnreadable(_too_complicated(settings.timeout, settings.memory_mb))
        header = msgspec.json.decode(line, type=_Header)
        if header.needs_library:
            command = Installation.present().extra_command("documents")
            raise DocumentUnreadable(f"It is encrypted with AES. To read it, the operator can install: {command}")
        if header.problem:
            raise DocumentUnreadable(header.problem)
        return Document(text=text.decode(errors="replace"), next_page=header.next_page)

    async def _run(self, argv: tuple[str, ...], content: bytes, most: int) -> bytes:
        """Return up to `most` bytes of the converter's output."""
        try:
            return await self._run_in_sandbox(argv, content, most)
        except SandboxUnavailable as missing:
            if not self._is_warned:
                self._is_warned = True
                log.warning("documents_unsandboxed", reason=str(missing))
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            cwd="/",
        )
        try:
            output, _ = await process.communicate(content)
        finally:
            if process.returncode is None:
                process.kill()
                await finish_before_cancel(process.wait())
        return output[:most]

    async def _run_in_sandbox(self, argv: tuple[str, ...], content: bytes, most: int) -> bytes:
        """Run without a network and without files, but for Python's own. Raises `SandboxUnavailable`."""
        settings = self._settings()
        code = (Path(sys.prefix), Path(sys.base_prefix), Path(gateway.__file__).parent)
        program = SandboxedProgram(
            argv=argv,
            env={},
            cwd=Path("/"),
            writable=(),
            readable=tuple(path for path in code if not path.resolve().is_relative_to("/usr")),
            hidden=(),
            limits=SandboxLimits(memory_bytes=settings.documents.memory_mb * 1024**2, processes=_PROCESSES),
        )
        output = bytearray()
        async with open_program(program, settings.shell.sandbox_socket) as running:
            with suppress(ConnectionError):  # It has ended without reading everything.
                running.stdin.write(content)
                await running.stdin.drain()
            running.stdin.close()
            while len(output) < most and (chunk := await running.stdout.read(most - len(output))):
                output += chunk
            if not output and (await running.wait()).code in _NOT_STARTED:
                raise SandboxUnavailable(f"The sandbox cannot run {argv[0]}.")
        return bytes(output)


def _too_complicated(seconds: float, memory_mb: int) -> str:
    return f"It is too complicated: reading it takes more than {seconds:g} seconds or {memory_mb} MB of memory."
