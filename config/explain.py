"""Pydantic's findings in our own words. A text is repeated only where it is a slip: anything else may be a secret."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from config.problems import Mistake, Mistakes, Problem, did_you_mean

__all__ = ["explain", "key_path"]

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
