"""Config errors: for every problem its key, what is wrong and how to fix it.

Validators raise `InvalidValue` or `InvalidTables`. `explain` turns these, and the errors that pydantic finds, into
`Problem`s.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_LONGEST_QUOTE = 24
_BOOLEAN_WORDS = ("true", "false", "yes", "no", "on", "off")
_KEY_MARKER = "[key]"
"""Pydantic appends this to a location when the name of an entry is invalid, not its value."""

_MESSAGES = {
    "missing": "is required",
    "extra_forbidden": "is not a known key",
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
_TYPE_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "a table"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem. `key` is empty if the problem concerns the whole file. No field contains the value of a secret."""

    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        line = f"{self.key}: {self.message}" if self.key else self.message
        return f"{line}\n    {self.hint}" if self.hint else line


class ConfigError(Exception):
    """All problems of a configuration. Its text is meant for the terminal; the exit code is 78."""

    def __init__(self, problems: Iterable[Problem], *, path: Path | None = None) -> None:
        self.problems = tuple(problems)
        self.path = path
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        super().__init__("\n".join([f"{path or 'The settings'}: {count}", *(f"  {each}" for each in self.problems)]))


class InvalidValue(ValueError):  # It is raised inside validators, and by checks of folders.
    """Raised by a validator for one key. `explain` adds the key path."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InvalidTables(ValueError):  # As above.
    """Raised by a check across tables, which knows the key paths."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("the tables contradict each other")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question with the closest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{near[0]}`?" if near else ""


def explain(error: ValidationError, root: type[BaseModel]) -> list[Problem]:
    """Return a `Problem` for each finding in `error`, in the order of the model."""
    problems: list[Problem] = []
    for details in error.errors(include_url=False):
        cause = details.get("ctx", {}).get("error")
        location = [part for part in details["loc"] if part != _KEY_MARKER]
        if isinstance(cause, InvalidTables):
            problems += cause.problems
        elif isinstance(cause, InvalidValue):
            hint = cause.hint or _hint(details, location, root)
            problems.append(Problem(key=write_key(location), message=str(cause), hint=hint))
        # Pydantic skips a default that depends on an invalid key, and reports that as an error too.
        elif details["type"] != "default_factory_not_called":
            hint = _hint(details, location, root)
            problems.append(Problem(key=write_key(location), message=_message(details), hint=hint))
    return problems


def write_key(location: Sequence[int | str]) -> str:
    """Write a location as in TOML: `bindings[0].agent`, `agents."Bad Name"`."""
    key = ""
    for part in location:
        if isinstance(part, int):
            key += f"[{part}]"
        else:
            key += ("." if key else "") + (part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"')
    return key


def _message(details: ErrorDetails) -> str:
    value = details["input"]
    got = _TYPE_NAMES.get(type(value), "a date or time")
    # Quote a text only if it looks like a typo of an accepted word. Any other text may be a misplaced secret.
    is_harmless = isinstance(value, int | float) or (
        isinstance(value, str) and bool(did_you_mean(value, _accepted_words(details)))
    )
    quoted = str(value).lower() if isinstance(value, bool) else repr(value)
    limits = {
        name: f"{limit:g}" if isinstance(limit, float) else limit for name, limit in details.get("ctx", {}).items()
    }
    return _MESSAGES.get(details["type"], "is not valid").format_map(
        {**limits, "value": quoted if is_harmless and len(quoted) <= _LONGEST_QUOTE else got, "got": got}
    )


def _accepted_words(details: ErrorDetails) -> Sequence[str]:
    if details["type"] == "enum":
        # Pydantic has no list of them, only the phrase: 'a', 'b' or 'c'.
        return re.findall(r"'([^']*)'", details["ctx"]["expected"])
    return _BOOLEAN_WORDS if details["type"] == "bool_type" else ()


def _hint(details: ErrorDetails, location: Sequence[int | str], root: type[BaseModel]) -> str:
    """Return the closest accepted word, or else the model's description of the key or of the table that contains it."""
    annotation: Any = root  # Any: an annotation can be anything.
    description = ""
    for part in location:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            fields = annotation.model_fields
            if part not in fields:
                return did_you_mean(str(part), fields) or f"known keys: {', '.join(fields)}"
            annotation, description = fields[str(part)].annotation, fields[str(part)].description or ""
        else:
            # The element type of dict[K, V] or tuple[V, ...].
            annotation = [each for each in get_args(annotation) if each is not Ellipsis][-1]
    near = did_you_mean(str(details["input"]), _accepted_words(details)) if details["type"] == "enum" else ""
    return near or description
