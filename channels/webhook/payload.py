"""The payload of a call: reads it, finds values in it by JSON Pointer, and checks conditions on them. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

MAX_FORM_FIELDS = 1_000
_FORM = "application/x-www-form-urlencoded"
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")


class Missing:
    """There is no value at a pointer. `null` is a value."""


MISSING: Final = Missing()


class Unreadable(Exception):
    """A payload is not what its content type says. The text is a sentence for the sender."""


def parse_payload(body: bytes, content_type: str) -> Json:
    """Return JSON, the fields of a form, or a text. GitHub and Slack may send JSON in the field `payload` of a form."""
    if not body.strip():
        return {}
    # Programs like curl call everything a form unless they are told otherwise.
    if body.lstrip()[:1] in {b"{", b"["} or content_type.endswith(("/json", "+json")):
        try:
            return _parse_json(body)
        except Unreadable:
            if not content_type.startswith("text/"):
                raise
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise Unreadable("The body is not UTF-8 text.") from error
    if content_type == _FORM:
        try:
            fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
        except ValueError as error:
            raise Unreadable("The form has too many fields.") from error
        return _parse_json(fields["payload"].encode()) if "payload" in fields else {**fields}
    if content_type.startswith("text/"):
        return text
    return _parse_json(body)


def _parse_json(text: bytes) -> Json:
    try:
        found: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable("The body is not valid JSON.") from error
    return found


def find(payload: Json, pointer: str) -> Json | Missing:
    """Return the value at a JSON Pointer (RFC 6901)."""
    found: Json = payload
    for word in pointer.split("/")[1:]:
        token = word.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and token in found:
            found = found[token]
        elif isinstance(found, list) and _INDEX.fullmatch(token) and int(token) < len(found):
            found = found[int(token)]
        else:
            return MISSING
    return found


def matches(payload: Json, when: Mapping[str, Sequence[str | float | bool]]) -> bool:
    """Return whether the payload has one of the accepted values at each pointer."""
    return all(any(_is_same(find(payload, pointer), each) for each in accepted) for pointer, accepted in when.items())


def _is_same(found: Json | Missing, wanted: str | float | bool) -> bool:  # noqa: FBT001 - a value of the payload.
    # In Python `True == 1`, but not in JSON.
    return isinstance(found, bool) is isinstance(wanted, bool) and found == wanted
