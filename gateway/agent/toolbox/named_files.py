"""The files that a tool call names, with their digests: a person who approves `sh build.sh` approves that script.

A call may reach other files in ways that no one can see in it. This covers paths, also in commands, in quotes, after
`cd`, and with wildcards in their last part.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sized
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import PurePosixPath

from gateway.agent.toolbox.workspace import open_inside
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.conversation import Json, ToolCall
from gateway.sandbox.bubblewrap import ATTACHMENTS, SKILLS, WORKSPACE

_MAX_FOLDERS = 100
_MAX_FILES = 500
_MAX_LOOKUPS = 2_000
_MAX_COMPARISONS = 2_000_000
"""Of patterns with names. That takes about a second."""
_MAX_PATH = 4096
_MAX_PARSED_CHARS = 100_000
"""A shell's quotes are resolved in texts up to this length. That takes a second for a million characters."""
_MAX_HASHED_BYTES = 64_000_000
"""For all files together. Larger ones are known by their times."""
_CHUNK_BYTES = 1024 * 1024

_QUOTED = re.compile(r"""'([^'\n]+)'|"([^"\n]+)\"""")
_WORD = re.compile(r"""[^\s'"`;&|<>(){}$=,:\\]+""")
_JOINED = re.compile(r"""\\\n|['"\\]""")
"""Characters between the parts of one word."""
_WILDCARDS = frozenset("*?[")


def digest_named_files(context: ToolContext, call: ToolCall) -> dict[str, str]:
    """Return the digests of the existing files that the arguments name, by path. Reads the disk: use a thread.

    A file that is created later adds a path. So a call names the same files as before if the result is equal. Raises
    `ToolFailed` if it names too many: none of them may be left out.
    """
    # Most words are no paths. Only those that begin with an existing name, or could stand for one, are looked up.
    by_first: dict[str, list[str]] = {}
    patterns: list[str] = []
    outside: list[str] = []
    for word in dict.fromkeys(word for text in _texts(call.input) for word in _words(text)):
        if _WILDCARDS & set(word):
            patterns.append(word)
        elif ".." in word or word.startswith("/"):
            outside.append(word)
        else:
            by_first.setdefault(os.path.normpath(word).partition("/")[0], []).append(word)

    def paths_in(folder: str) -> tuple[set[str], set[str]]:
        """Return the paths that words name in a folder, and those that patterns match."""
        names = _names(context, folder) or []
        likely = [*(word for name in names for word in by_first.get(name, ())), *outside]
        _require_few(likely, _MAX_LOOKUPS)
        _require_few([pattern for pattern in patterns if "/" in pattern], _MAX_LOOKUPS)
        _require_few(range(len(patterns) * len(names)), _MAX_COMPARISONS)
        matched: set[str] = set()
        for pattern in patterns:
            head, _, last = pattern.rpartition("/")
            in_head = names if not head else _names(context, _inside(head, folder)) or []
            matching = (name for name in in_head if fnmatchcase(name, last))
            matched |= {_inside(os.path.join(head, name), folder) for name in matching}  # noqa: PTH118 - only joined.
        return {_inside(word, folder) for word in likely} - {""}, matched - {""}

    paths: set[str] = set()
    folders = ["."]
    for folder in folders:  # It grows: a command may go into a folder and from there into the next one.
        named, matched = paths_in(folder)
        # Matches are followed only here: below, a `*` would lead to all folders there are.
        entered = (named | matched if folder == "." else named) - paths
        paths |= named | matched
        _require_few(paths, _MAX_LOOKUPS)
        folders += [path for path in sorted(entered) if path not in folders and _names(context, path) is not None]
        _require_few(folders, _MAX_FOLDERS)
    digests: dict[str, str] = {}
    left = _MAX_HASHED_BYTES
    for path in sorted(paths):
        digest, read = _digest(context, path, left)
        left -= read
        if digest:
            digests[path] = digest
    _require_few(digests, _MAX_FILES)
    return digests


def _require_few(things: Sized, most: int) -> None:
    if len(things) > most:
        raise ToolFailed("This call names too many files and folders to check them all. Use fewer at once.")


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _words(text: str) -> Iterator[str]:
    """Yield everything in the text that may be a path."""
    if "\n" not in text:
        yield text
    yield from (single or double for single, double in _QUOTED.findall(text))
    yield from _WORD.findall(text)
    # A shell joins `ev"il".sh` to one word. This also works where it cannot be parsed, as after a comment with `don't`.
    yield from _WORD.findall(_JOINED.sub("", text))
    if len(text) <= _MAX_PARSED_CHARS:
        parser = shlex.shlex(text, posix=True, punctuation_chars=True)
        parser.whitespace_split = True
        parser.commenters = ""
        with suppress(ValueError):  # A quote is not closed.
            yield from parser


def _inside(word: str, folder: str = "") -> str:
    """Return the path of `word` in the workspace, the attachments or a skill, or an empty string if it is in none."""
    if not word or len(word) > _MAX_PATH or "\0" in word:
        return ""
    path = os.path.normpath(os.path.join(WORKSPACE, folder, word))  # noqa: PTH118 - no file is touched.
    if PurePosixPath(path).is_relative_to(ATTACHMENTS) or PurePosixPath(path).is_relative_to(SKILLS):
        return path
    return "" if not PurePosixPath(path).is_relative_to(WORKSPACE) else path[len(WORKSPACE) + 1 :] or "."


def _names(context: ToolContext, path: str) -> list[str] | None:
    """Return the names in a folder, or None if there is no such folder."""
    try:
        with open_inside(context, path, os.O_DIRECTORY) as descriptor:
            return sorted(os.listdir(descriptor))  # noqa: PTH208 - a descriptor has no path.
    except ToolFailed:
        return None


def _digest(context: ToolContext, path: str, most: int) -> tuple[str, int]:
    """Return a digest of the file, and how many bytes were read. The digest is empty if there is no such file."""
    try:
        with open_inside(context, path) as descriptor:
            about = os.fstat(descriptor)
            if about.st_size > most:
                return f"{about.st_ino}:{about.st_size}:{about.st_mtime_ns}:{about.st_ctime_ns}", 0
            digest = sha256()
            while chunk := os.read(descriptor, _CHUNK_BYTES):
                digest.update(chunk)
            return digest.hexdigest(), about.st_size
    except (ToolFailed, OSError):
        return "", 0
