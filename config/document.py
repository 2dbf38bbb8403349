"""Edits the text of a TOML file in place, so that comments, order and layout stay."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import takewhile
from typing import Any

import tomlkit
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, InlineTable, Item


def edit(text: str, parts: Sequence[str], value: object, expected: Mapping[str, object]) -> str | None:
    """Return `text` with the key `parts` set to `value`, or without it if `value` is None.

    `expected` are the tables that the result must contain; a removed key may take the tables with it that it leaves
    empty. Returns None if no edit in place leads to them.
    """
    acceptable = [expected] if value is not None else list(_without_empty_parents(expected, parts))
    for attempt in (_edit_table, _add_dotted_key):
        try:
            edited = attempt(text, parts, value)
            for result in (_keep_last_comments(text, edited), edited):
                tables = tomllib.loads(result)
                if any(_is_equal(tables, each) for each in acceptable):
                    return result
        except (TOMLKitError, ValueError, RecursionError):
            continue  # tomlkit cannot edit every layout.
    return None


def _without_empty_parents(tables: Mapping[str, object], parts: Sequence[str]) -> Iterator[Mapping[str, object]]:
    """Yield `tables`, and then each result of removing one more empty table, from the innermost of `parts` outwards."""
    yield tables
    for depth in range(len(parts) - 1, 0, -1):
        *parents, name = parts[:depth]
        copy: Any = deepcopy(tables)
        container = copy
        for parent in parents:
            container = container[parent]
        if container[name]:
            return
        del container[name]
        yield (tables := copy)


def _keep_last_comments(text: str, edited: str) -> str:
    """Put back the comments behind a table that was removed or replaced.

    tomlkit has them in that table. For people, those behind an empty line belong to the next one.
    """
    old, new = text.splitlines(keepends=True), edited.splitlines(keepends=True)
    start = _count_equal(old, new)
    end = _count_equal(old[start:][::-1], new[start:][::-1])
    removed = old[start : len(old) - end]
    last = max((number for number, line in enumerate(removed) if line.strip() and line[0] != "#"), default=-1)
    behind = removed[last + 1 :]
    empty = next((number for number, line in enumerate(behind) if not line.strip()), len(behind))
    kept = behind[empty + 1 :] if start and not old[start - 1].strip() else behind[empty:]
    place = len(new) - end
    return "".join([*new[:place], *kept, *new[place:]])


def _count_equal(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many lines are the same in both, from the start."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _edit_table(text: str, parts: Sequence[str], value: object) -> str:
    document = tomlkit.parse(text)
    *parents, name = parts
    container: Any = document  # Any: also the proxy that tomlkit returns for a table in several places.
    for depth, parent in enumerate(parents, start=1):
        if parent not in container:
            new = tomlkit.table(is_super_table=depth < len(parents))
            _add(container, parent, tomlkit.inline_table() if isinstance(container, InlineTable) else new)
        container = container[parent]
    if value is None:
        del container[name]
    elif name in container:
        container[name] = value
    else:
        _add(container, name, value)
    return tomlkit.dumps(document)


def _add_dotted_key(text: str, parts: Sequence[str], value: object) -> str:
    """Add the key in front of the first table: for files that have dotted keys and no tables."""
    key = ".".join(tomlkit.key(part).as_string() for part in parts)
    lines = text.splitlines(keepends=True)
    head = next((number for number, line in enumerate(lines) if line.startswith("[")), len(lines))
    # Comments and empty lines in front of the table stay in front of it.
    while head and (not lines[head - 1].strip() or lines[head - 1].startswith("#")):
        head -= 1
    before = "".join(lines[:head])
    newline = "" if not before or before.endswith("\n") else "\n"
    return f"{before}{newline}{key} = {tomlkit.item(value).as_string()}\n{''.join(lines[head:])}"


def _add(container: Any, name: str, value: object) -> None:  # noqa: ANN401 - as above.
    """Add a key behind the last one of a table.

    Comments in front of the next table belong, for tomlkit, to the table before them. They stay in front of the next
    one.
    """
    comments: list[tuple[Any, Item]] = []
    if isinstance(container, AbstractTable) and not isinstance(container, InlineTable):
        body = _last_body(container)
        while body and body[-1][0] is None:
            comments.insert(0, body.pop())
    container[name] = value
    if comments:
        _last_body(container).extend(comments)


def _last_body(table: AbstractTable) -> list[Any]:
    """Return the lines of the table, or of the table inside it with which its text ends."""
    content: Container = table.value
    if content.body:
        last = content.body[-1][1]
        if isinstance(last, AbstractTable) and not isinstance(last, InlineTable):
            return _last_body(last)
    return content.body


def _is_equal(one: object, other: object) -> bool:
    """Compare values of TOML, of which `nan` is not equal to itself."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    return type(one) is type(other) and (one == other or (one != one and other != other))  # noqa: PLR0124 - nan.
