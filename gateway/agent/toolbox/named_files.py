"""The files that a tool call names, with their digests: a person who approves `sh build.sh` approves that script.

A call may reach other files in ways that no one can see in it. This covers paths, also in commands, in quotes, after
`cd`, and with wildcards in their last part.
"""

import os
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import PurePosixPath

from gateway.agent.toolbox.workspace import open_inside
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.conversation import Json, ToolCall
from gateway.sandbox.bubblewrap import ATTACHMENTS, WORKSPACE

_MAX_TEXT = 32_000
_MAX_WORDS = 300
_MAX_FOLDERS = 8
_MAX_FILES = 64
_MAX_PATH = 500
_MAX_HASHED_BYTES = 16_000_000
_CHUNK_BYTES = 1024 * 1024

_QUOTED = re.compile(r"""'([^'\n]+)'|"([^"\n]+)\"""")
_WORD = re.compile(r"""[^\s'"`;&|<>(){}$=,:\\]+""")
_WILDCARDS = frozenset("*?[")


def digest_named_files(context: ToolContext, call: ToolCall) -> dict[str, str]:
    """Return the digests of the existing files that the arguments name, by path. Reads the disk: use a thread.

    A file that is created later adds a path. So a call names the same files as before if the result is equal.
    """
    found: dict[str, str] = {}
    words = list(dict.fromkeys(word for text in _texts(call.input) for word in _words(text)))[:_MAX_WORDS]
    folders = [path for word in words if (path := _inside(word)) and _names(context, path) is not None][:_MAX_FOLDERS]
    for word in words:
        for folder in ("", *folders):
            for path in _expand(context, _inside(word, folder)):
                if path not in found and len(found) < _MAX_FILES and (digest := _digest(context, path)):
                    found[path] = digest
    return found


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:_MAX_TEXT]
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _words(text: str) -> Iterator[str]:
    """Yield everything in the text that may be a path."""
    if "\n" not in text:
        yield text
    yield from (single or double for single, double in _QUOTED.findall(text))
    yield from _WORD.findall(text)


def _inside(word: str, folder: str = "") -> str:
    """Return the path of `word` in the workspace or the attachments, or an empty string if it is in neither."""
    if not word or len(word) > _MAX_PATH or "\0" in word:
        return ""
    path = os.path.normpath(os.path.join(WORKSPACE, folder, word))  # noqa: PTH118 - no file is touched.
    if PurePosixPath(path).is_relative_to(ATTACHMENTS):
        return path
    return "" if not PurePosixPath(path).is_relative_to(WORKSPACE) else path[len(WORKSPACE) + 1 :] or "."


def _expand(context: ToolContext, path: str) -> list[str]:
    folder, name = os.path.split(path)
    if not _WILDCARDS & set(name):
        return [path] if path else []
    names = _names(context, folder or ".") or []
    return [os.path.join(folder, each) for each in names if fnmatchcase(each, name)][:_MAX_FILES]  # noqa: PTH118


def _names(context: ToolContext, path: str) -> list[str] | None:
    """Return the names in a folder, or None if there is no such folder."""
    try:
        with open_inside(context, path, os.O_DIRECTORY) as descriptor:
            return sorted(os.listdir(descriptor))  # noqa: PTH208 - a descriptor has no path.
    except ToolFailed:
        return None


def _digest(context: ToolContext, path: str) -> str:
    """Return a digest of the file, or an empty string if it is not there. A large file is known by its times."""
    try:
        with open_inside(context, path) as descriptor:
            about = os.fstat(descriptor)
            if about.st_size > _MAX_HASHED_BYTES:
                return f"{about.st_ino}:{about.st_size}:{about.st_mtime_ns}:{about.st_ctime_ns}"
            digest = sha256()
            while chunk := os.read(descriptor, _CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest()
    except (ToolFailed, OSError):
        return ""
