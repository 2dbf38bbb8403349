"""Config errors: what is wrong with a key and how to fix it."""

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake. `key` is empty when the file as a whole is at fault. No field ever holds a secret's value."""

    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        said = f"{self.key}: {self.message}" if self.key else self.message
        return f"{said}\n    {self.hint}" if self.hint else said


class ConfigError(Exception):
    """Everything that is wrong with the settings, at once. Its text is the block to show; the exit code is 78."""

    def __init__(self, problems: Iterable[Problem], *, path: Path | None = None) -> None:
        self.problems = tuple(problems)
        self.path = path
        super().__init__(_block(self.problems, path))


def _block(problems: Sequence[Problem], path: Path | None) -> str:
    where = str(path) if path else "The settings"
    count = "1 mistake" if len(problems) == 1 else f"{len(problems)} mistakes"
    return "\n".join([f"{where}: {count}", *(f"  {problem}" for problem in problems)])


class Mistake(ValueError):
    """Raised by a validator of the model; becomes a `Problem` where pydantic noticed it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Mistakes(ValueError):
    """Raised by a check across tables, which knows the keys itself."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("the tables do not fit together")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question naming the nearest known word, or nothing when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else ""


_LONGEST_QUOTE = 24
_YES_OR_NO = ("true", "false", "yes", "no", "on", "off")
_NAME_ITSELF = "[key]"
"""Pydantic's mark at the end of a location: not the value is wrong but its name."""

_SENTENCES = {
    "missing": "is missing",
    "extra_forbidden": "is not a key that Gatehouse knows",
    "string_type": "must be text in quotes, got {got}",
    "path_type": "must be a path in quotes, got {got}",
    "int_type": "must be a whole number, got {value}",
    "int_from_float": "must be a whole number, got {value}",
    "float_type": "must be a number, got {value}",
    "finite_number": "must be a finite number, got {value}",
    "bool_type": "must be true or false, got {value}",
    "enum": "must be {expected}, got {value}",
    "tuple_type": "must be a list in [brackets], got {got}",
    "dict_type": "must be a table, got {got}",
    "model_type": "must be a table, got {got}",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be a short name: up to 64 of a-z, 0-9, - and _, starting with a letter or digit",
    "greater_than": "must be more than {gt}, got {value}",
    "greater_than_equal": "must be at least {ge}, got {value}",
    "less_than_equal": "must be at most {le}, got {value}",
}
_KINDS = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}


def explain(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Return every mistake that `error` holds, in the order of the model."""
    return [problem for details in error.errors(include_url=False) for problem in _problems(details, root)]


def _problems(details: ErrorDetails, root: type[BaseModel]) -> Iterator[Problem]:
    cause = details.get("ctx", {}).get("error")
    key = key_path(details["loc"])
    if isinstance(cause, Mistakes):
        yield from cause.problems
    elif isinstance(cause, Mistake):
        yield Problem(key=key, message=str(cause), hint=cause.hint or _hint(details, root))
    elif details["type"] != "default_factory_not_called":  # It only follows from another mistake.
        yield Problem(key=key, message=_sentence(details), hint=_hint(details, root))


def key_path(location: Sequence[int | str]) -> str:
    """Write a location as in TOML: `bindings[0].agent`, `agents."Bad Name"`."""
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        elif part != _NAME_ITSELF:
            key += ("." if key else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"')
    return key


def _sentence(details: ErrorDetails) -> str:
    sentence = _SENTENCES.get(details["type"], "is not valid")
    value = details["input"]
    limits = {
        name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in details.get("ctx", {}).items()
    }
    return sentence.format_map({**limits, "value": _quote(value, _words(details)), "got": _kind(value)})


def _words(details: ErrorDetails) -> Sequence[str]:
    """Return the words that were expected, or are often written, where the mistake is."""
    if details["type"] == "enum":
        return re.findall(r"'([^']*)'", details["ctx"]["expected"])
    return _YES_OR_NO if details["type"] == "bool_type" else ()


def _kind(value: object) -> str:
    return _KINDS.get(type(value), "a date or time")


def _quote(value: object, words: Sequence[str]) -> str:
    """Repeat a value that is a short number, or near one of `words`."""
    if isinstance(value, bool):
        return str(value).lower()
    is_slip = isinstance(value, int | float) or (isinstance(value, str) and bool(did_you_mean(value, words)))
    return repr(value) if is_slip and len(repr(value)) <= _LONGEST_QUOTE else _kind(value)


def _hint(details: ErrorDetails, root: type[BaseModel]) -> str:
    location = [part for part in details["loc"] if part != _NAME_ITSELF]
    *parents, last = location
    if details["type"] == "extra_forbidden":
        known = list(_kind_at(root, parents).model_fields)
        return did_you_mean(str(last), known) or f"known here: {', '.join(known)}"
    if details["type"] == "enum":
        return did_you_mean(str(details["input"]), _words(details)) or _description(root, location)
    return _description(root, location)


def _description(root: type[BaseModel], location: Sequence[int | str]) -> str:
    """Return what the model says about the key, or about the table or list that it is in."""
    *parents, last = location
    kind = _kind_at(root, parents)
    return kind.model_fields[str(last)].description or "" if _is_table(kind) else _description(root, parents)


def _kind_at(root: type[BaseModel], location: Sequence[int | str]) -> Any:  # noqa: ANN401  # An annotation can be anything.
    kind: Any = root
    for part in location:
        kind = kind.model_fields[str(part)].annotation if _is_table(kind) else _inner(kind)
    return kind


def _is_table(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _inner(container: Any) -> Any:  # noqa: ANN401  # As above.
    """Return what a dict or a tuple holds."""
    arguments = [argument for argument in get_args(container) if argument is not Ellipsis]
    return arguments[-1]
