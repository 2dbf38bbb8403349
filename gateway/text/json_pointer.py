"""Finds values in JSON by JSON Pointer (RFC 6901). Pure."""

import re
from typing import Final

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Missing:
    """There is no value at a pointer. `null` is a value."""


MISSING: Final = Missing()


def find(document: Json, pointer: str) -> Json | Missing:
    found: Json = document
    for word in pointer.split("/")[1:]:
        token = word.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and token in found:
            found = found[token]
        elif isinstance(found, list) and _INDEX.fullmatch(token) and int(token) < len(found):
            found = found[int(token)]
        else:
            return MISSING
    return found
