"""The payload of a call: reads it, and checks conditions on the values in it. Pure."""

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qsl

import msgspec

from gateway.text.json_pointer import Json, Missing, find

MAX_FORM_FIELDS = 1_000
_FORM = "application/x-www-form-urlencoded"


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


def matches(payload: Json, when: Mapping[str, Sequence[str | float | bool]]) -> bool:
    """Return whether the payload has one of the accepted values at each pointer."""
    return all(any(_is_same(find(payload, pointer), each) for each in accepted) for pointer, accepted in when.items())


def _is_same(found: Json | Missing, wanted: str | float | bool) -> bool:  # noqa: FBT001 - a value of the payload.
    # In Python `True == 1`, but not in JSON.
    return isinstance(found, bool) is isinstance(wanted, bool) and found == wanted
