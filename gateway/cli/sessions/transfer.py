"""`gatehouse sessions export` and `import`: writes conversations to files and reads them back."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path

from config import Settings
from gateway.admin.archive import Archive, open_archive
from gateway.cli.common import EXIT_FAILED, EXIT_OK, fail, output_file
from gateway.cli.sessions.names import find_session
from gateway.conversation import Json
from gateway.errors import Refused
from gateway.sessions import Entry, SessionMeta
from gateway.sessions.export import Export, JsonExport, MarkdownExport, export_pieces, undone_turns
from gateway.sessions.keys import file_name
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.transfer import split_lines
from gateway.text import printable
from gateway.text.plain import count

LOSSLESS = "jsonl"
_READ_BYTES = 128 * 1024
_EXPORTS: dict[str, Callable[[SessionMeta, set[str]], Export]] = {"md": MarkdownExport, "json": JsonExport}
FORMATS = (LOSSLESS, *_EXPORTS)


async def export(settings: Settings, options: argparse.Namespace) -> int:
    """Write one session to a file or to stdout."""
    async with open_archive(settings) as archive:
        meta = (await find_session(archive, options.name, options.number)).meta
        is_lossless = options.format == LOSSLESS
        document = archive.export(meta.key) if is_lossless else _document(archive, meta, options.format)
        async with aclosing(document) as pieces:
            if options.output is not None:
                await _save(pieces, options.output, overwrite=options.force)
            elif sys.stdout.isatty():
                async for line in split_lines(pieces):
                    sys.stdout.write(printable(line.decode(errors="replace")))  # Without control sequences.
            else:
                async for piece in pieces:
                    sys.stdout.buffer.write(piece)
    return EXIT_OK


async def _document(archive: Archive, meta: SessionMeta, layout: str) -> AsyncGenerator[bytes, None]:
    undone = await undone_turns(_entries(archive, meta.key))
    async with aclosing(_entries(archive, meta.key)) as source:
        async for piece in export_pieces(_EXPORTS[layout](meta, undone), source):
            yield piece.encode()


async def _entries(archive: Archive, key: str) -> AsyncGenerator[Entry, None]:
    async with aclosing(archive.export(key)) as blocks:
        async for line in split_lines(blocks):
            with suppress(DamagedEntry):
                yield decode(line)


async def export_all(settings: Settings, options: argparse.Namespace) -> int:
    """Write each session to its own file. Continues with the next one if a session fails."""
    folder: Path = options.output
    try:
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"Can't create the folder {printable(str(folder))}: {error.strerror}.") from error
    saved, failed = 0, 0
    async with open_archive(settings) as archive, aclosing(archive.sessions()) as found:
        async for listed in found:
            path = folder / file_name(listed.meta.key)
            try:
                await _save(archive.export(listed.meta.key), path, overwrite=options.force)
                saved += 1
            except Refused as error:
                failed += 1
                fail(error, EXIT_FAILED)
    print(f"Exported {count(saved, 'session')} to {printable(str(folder))}.")
    return EXIT_FAILED if failed else EXIT_OK


async def _save(pieces: AsyncIterator[bytes], path: Path, *, overwrite: bool) -> None:
    with output_file(path, overwrite=overwrite) as file:
        async for piece in pieces:
            file.write(piece)


async def import_files(settings: Settings, options: argparse.Namespace) -> int:
    """Import all files. Continues with the next one if a file is refused."""
    results: list[dict[str, Json]] = []
    failed = 0
    async with open_archive(settings) as archive:
        for path in options.files:
            try:
                async with aclosing(_read_blocks(path)) as blocks:
                    meta = await archive.import_session(blocks)
            except Refused as error:
                failed += 1
                fail(f"{printable(str(path))}: {error}", EXIT_FAILED)
                results.append({"file": str(path), "error": str(error)})
                continue
            results.append({"file": str(path), "key": meta.key, "messages": meta.messages})
            if not options.json:
                session = f"session {meta.number} of {printable(meta.scope)}"
                print(f"{printable(str(path))}: imported as {session}, {count(meta.messages, 'message')}.")
    if options.json:
        print(json.dumps(results, indent=2))
    return EXIT_FAILED if failed else EXIT_OK


async def _read_blocks(path: Path) -> AsyncGenerator[bytes, None]:
    try:
        with await asyncio.to_thread(path.open, "rb") as file:
            while block := await asyncio.to_thread(file.read, _READ_BYTES):
                yield block
    except OSError as error:
        raise Refused(f"Can't read it: {error.strerror}.") from error
