"""JSON Pointers."""

import pytest

from gateway.text.json_pointer import MISSING, Json, find

RFC_6901: Json = {
    "foo": ["bar", "baz"],
    "": 0,
    "a/b": 1,
    "c%d": 2,
    "e^f": 3,
    "g|h": 4,
    "i\\j": 5,
    'k"l': 6,
    " ": 7,
    "m~n": 8,
}


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("", RFC_6901),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
        ("/foo/2", MISSING),
        ("/foo/-", MISSING),
        ("/foo/00", MISSING),
        ("/foo/-1", MISSING),
        ("/foo/²", MISSING),
        ("/foo/" + "9" * 5_000, MISSING),
        ("/foo/0/0", MISSING),
        ("/foo/length", MISSING),
        ("/no", MISSING),
        ("/m~01n", MISSING),
    ],
)
def test_pointers_as_in_the_examples_of_rfc_6901(pointer: str, value: object) -> None:
    assert find(RFC_6901, pointer) == value
