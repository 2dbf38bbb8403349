"""`gatehouse sessions export` and `import`: conversations on their way out and in."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

from config import Settings
from gateway.archive import BLOCK, Archive, closing, in_lines
from gateway.cli.exits import EXIT_FAILED, complain
from gateway.cli.sessions_archives import opened_archive
from gateway.cli.sessions_naming import find
from gateway.cli.whole_files import replacing
from gateway.dialogue import Json
from gateway.errors import Refused
from gateway.exporting import Export, JsonExport, MarkdownExport, exported, undone_in
from gateway.sessions import Entry, SessionMeta
from gateway.sessions.encoding import Damaged, decode
from gateway.sessions.names import file_name
from gateway.text import printable
from gateway.text.phrases import count

__all__ = ["FORMATS", "export", "export_all", "import_files"]

LOSSLESS = "jsonl"
_EXPORTS: dict[str, Callable[[SessionMeta, set[str]], Export]] = {"md": MarkdownExport, "json": JsonExport}
FORMATS = (LOSSLESS, *_EXPORTS)


async def export(settings: Settings, options: argparse.Namespace) -> int:
    async with opened_archive(settings) as archive:
        meta = (await find(archive, options.name, options.number)).meta
        async with closing(_document(archive, meta, options.format)) as pieces:
            if options.output is None:
                await _print(pieces)
            else:
                await _save(pieces, options.output, overwrite=options.force)
    return 0


async def export_all(settings: Settings, options: argparse.Namespace) -> int:
    """Export every session to a file of its own; one that fails does not keep the others from leaving."""
    _make_folder(options.output)
    saved, failed = 0, 0
    async with opened_archive(settings) as archive, closing(archive.sessions()) as found:
        async for listed in found:
            path = options.output / file_name(listed.meta.key)
            try:
                await _save(archive.export(listed.meta.key), path, overwrite=options.force)
                saved += 1
            except Refused as refusal:
                failed += 1
                complain(refusal, EXIT_FAILED)
    print(f"Exported {count(saved, 'session')} to {printable(str(options.output))}.")
    return EXIT_FAILED if failed else 0


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as trouble:
        raise Refused(f"The folder {printable(str(path))} cannot be made: {trouble.strerror}.") from trouble


async def _document(archive: Archive, meta: SessionMeta, layout: str) -> AsyncIterator[bytes]:
    if layout == LOSSLESS:
        async with closing(archive.export(meta.key)) as blocks:
            async for block in blocks:
                yield block
        return
    undone = await undone_in(_entries(archive, meta.key))
    async with closing(_entries(archive, meta.key)) as source:
        async for piece in exported(_EXPORTS[layout](meta, undone), source):
            yield piece.encode()


async def _entries(archive: Archive, key: str) -> AsyncIterator[Entry]:
    async with closing(archive.export(key)) as blocks:
        async for line in in_lines(blocks):
            with suppress(Damaged):
                yield decode(line)


async def _print(pieces: AsyncIterator[bytes]) -> None:
    """Write to stdout, byte for byte; but a terminal is not shown what it would obey."""
    if sys.stdout.isatty():
        async for line in in_lines(pieces):
            sys.stdout.write(printable(line.decode(errors="replace")))
        return
    async for piece in pieces:
        sys.stdout.buffer.write(piece)


async def _save(pieces: AsyncIterator[bytes], path: Path, *, overwrite: bool) -> None:
    try:
        with replacing(path, overwrite=overwrite) as file:
            async for piece in pieces:
                file.write(piece)
    except FileExistsError as there:
        raise Refused(f"{printable(str(path))} exists already; choose another name, or add --force.") from there
    except OSError as trouble:
        raise Refused(f"{printable(str(path))} cannot be written: {trouble.strerror}.") from trouble


async def import_files(settings: Settings, options: argparse.Namespace) -> int:
    """Import one file after the other; one that is refused does not keep the others out."""
    async with opened_archive(settings) as archive:
        told = [await _import(archive, path, as_json=options.json) for path in options.files]
    if options.json:
        print(json.dumps(told, indent=2))
    return EXIT_FAILED if any("error" in each for each in told) else 0


async def _import(archive: Archive, path: Path, *, as_json: bool) -> dict[str, Json]:
    name = printable(str(path))
    try:
        async with closing(_blocks(path)) as blocks:
            meta = await archive.bring_in(blocks)
    except Refused as refusal:
        complain(f"{name}: {refusal}", EXIT_FAILED)
        return {"file": str(path), "error": str(refusal)}
    if not as_json:
        session = f"session {meta.number} of {printable(meta.scope)}"
        print(f"{name}: imported as {session}, {count(meta.messages, 'message')}.")
    return {"file": str(path), "key": meta.key, "messages": meta.messages}


async def _blocks(path: Path) -> AsyncIterator[bytes]:
    try:
        with await asyncio.to_thread(path.open, "rb") as file:
            while block := await asyncio.to_thread(file.read, BLOCK):
                yield block
    except OSError as trouble:
        raise Refused(f"It cannot be read: {trouble.strerror}.") from trouble
