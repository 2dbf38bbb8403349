import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.sessions.keys import file_name, parse_key, session_key

scopes = st.text(min_size=1).filter(lambda text: "#" not in text)
keys = st.text(min_size=1) | st.sampled_from(
    ["../../etc/passwd", "CON", "-rf", ".", "..", "\0", "a" * 10_000, "\ud800"]
)


@given(scopes, st.integers(min_value=1, max_value=10**17))
def test_a_parsed_key_gives_scope_and_number(scope: str, number: int) -> None:
    assert parse_key(session_key(scope, number)) == (scope, number)


@pytest.mark.parametrize("key", ["", "#2", "a#", "a#1", "a#02", "a#0", "a#-2", "a#2#3", "a#x", "a#²"])
def test_an_invalid_key_is_rejected(key: str) -> None:
    with pytest.raises(ValueError, match="not a session key"):
        parse_key(key)


@given(keys)
def test_a_file_name_is_plain_short_and_lower_case(key: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{32}\.jsonl", file_name(key))
    assert len(file_name(key)) < 200


@given(keys, keys)
def test_distinct_keys_have_distinct_files_even_on_a_file_system_that_ignores_case(one: str, other: str) -> None:
    assert (file_name(one).casefold() == file_name(other).casefold()) is (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a:b", "a_b"), ("user", "User"), ("\u00e9", "e\u0301"), ("a", "a "), ("a", "a."), ("x", "x#2")],
)
def test_similar_keys_have_different_files(one: str, other: str) -> None:
    assert file_name(one).casefold() != file_name(other).casefold()
