"""Payloads: what is read, JSON Pointers, and conditions."""

import json
from contextlib import suppress
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.webhook.payload import Unreadable, matches, parse_payload
from gateway.text.json_pointer import Json, find

FORM = "application/x-www-form-urlencoded"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("body", "content_type", "payload"),
    [
        (b'{"a": 1}', "application/json", {"a": 1}),
        (b'{"a": 1}', "application/cloudevents+json", {"a": 1}),
        (b'{"a": 1}', "application/octet-stream", {"a": 1}),
        (b' [1, "x"]', "text/plain", [1, "x"]),
        (b"7", "application/json", 7),
        (b"", "application/json", {}),
        (b" \n", "text/plain", {}),
        (b'{"a": 1}', FORM, {"a": 1}),  # As `curl -d` sends it.
        (urlencode({"payload": '{"a": [1]}'}).encode(), FORM, {"a": [1]}),  # As GitHub and Slack send it.
        (b"text=hello+there&empty=&command=%2Fdo", FORM, {"text": "hello there", "empty": "", "command": "/do"}),
        ("Ding döng".encode(), "text/plain", "Ding döng"),
        (b"[FIRING] The disk is full.", "text/plain", "[FIRING] The disk is full."),
    ],
)
def test_a_payload_is_json_a_form_or_a_text(body: bytes, content_type: str, payload: Json) -> None:
    assert parse_payload(body, content_type) == payload


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"{", "application/json"),
        (b'{"a": "\xff"}', "application/json"),
        (b'{"a": "\\ud800"}', "application/json"),
        (b'{"a": NaN}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"hello", "application/octet-stream"),
        (b"\xff", "text/plain"),
        (b"payload=%7Bno", FORM),
        (b"&".join([b"a=1"] * 1_001), FORM),
        (b"\x1f\x8b\x08gzip", "application/json"),
    ],
)
def test_an_unreadable_payload_is_refused_with_a_sentence(body: bytes, content_type: str) -> None:
    with pytest.raises(Unreadable, match=r"\.$"):
        parse_payload(body, content_type)


@given(st.binary(max_size=100), st.sampled_from(["application/json", FORM, "text/plain", ""]))
def test_any_body_is_read_or_refused(body: bytes, content_type: str) -> None:
    with suppress(Unreadable):
        parse_payload(body, content_type)


@given(VALUES, st.data())
def test_a_pointer_finds_every_value(payload: Json, data: st.DataObject) -> None:
    found, pointer = payload, ""
    while found and isinstance(found, list | dict):
        if isinstance(found, list):
            index = data.draw(st.integers(0, len(found) - 1))
            found, pointer = found[index], f"{pointer}/{index}"
        else:
            key = data.draw(st.sampled_from(sorted(found)))
            found, pointer = found[key], f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
    assert find(parse_payload(json.dumps(payload).encode(), "application/json"), pointer) == found


@pytest.mark.parametrize(
    ("when", "is_match"),
    [
        ({}, True),
        ({"/action": ("completed",)}, True),
        ({"/action": ("opened", "completed")}, True),
        ({"/action": ("opened",)}, False),
        ({"/action": ("completed",), "/run/attempt": (2,)}, False),
        ({"/run/attempt": (1,)}, True),
        ({"/run/attempt": (1.0,)}, True),
        ({"/run/attempt": (True,)}, False),
        ({"/run/attempt": ("1",)}, False),
        ({"/run/ok": (True,)}, True),
        ({"/run/ok": (1,)}, False),
        ({"/run/none": ("",)}, False),
        ({"/missing": ("",)}, False),
        ({"/missing": (False,)}, False),
    ],
)
def test_all_conditions_must_hold(when: dict[str, tuple[str | float | bool, ...]], is_match: bool) -> None:  # noqa: FBT001 - a claim.
    payload: Json = {"action": "completed", "run": {"attempt": 1, "ok": True, "none": None}}
    assert matches(payload, when) is is_match
