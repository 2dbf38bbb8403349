"""What nodes of two versions store for each other, and send to each other. ADR 53 has the rules."""

import msgspec
import pytest

from gateway.database.migrate import HEAD
from tests.cluster.wire import RECORD, breaks, describe

BEFORE = {
    "Kind": {"values": ["group", "person"]},
    "Message": {"fields": {"text": "string", "at": "number"}, "required": ["text"]},
}


def test_the_version_before_can_read_what_this_one_stores() -> None:
    recorded = msgspec.json.decode(RECORD.read_bytes())
    broken = list(breaks(recorded["types"], describe()))
    assert not broken or recorded["schema"] < HEAD, f"docs/adr/0053-upgrade-by-one-version.md says what to do: {broken}"
    assert recorded["schema"] == HEAD, "Run `python -m tests.cluster.wire`: there is a new schema."


@pytest.mark.parametrize(
    ("now", "sentence"),
    [
        ({"Kind": {"values": ["group", "person", "room"]}}, "Kind does not have the value room in both versions."),
        ({"Kind": {"values": ["group"]}}, "Kind does not have the value person in both versions."),
        ({"Kind": {}}, "Kind is gone, and the version before stores it."),
        ({"Message": {"fields": {"at": "number"}, "required": []}}, "Message.text has a default in one version only."),
        (
            {"Message": {"fields": {"text": "string", "at": "number", "to": "string"}, "required": ["text", "to"]}},
            "Message.to has a default in one version only.",
        ),
        (
            {"Message": {"fields": {"text": "string", "at": "string"}, "required": ["text"]}},
            "Message.at has another type.",
        ),
        ({"Message": {"fields": {"text": "string", "to": "string"}, "required": ["text"]}, "New": {"values": []}}, ""),
    ],
)
def test_a_change_that_one_version_cannot_read_is_named(now: dict[str, object], sentence: str) -> None:
    assert list(breaks(BEFORE, BEFORE | now)) == ([sentence] if sentence else [])
