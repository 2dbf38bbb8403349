import re

from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.server import server_of, tool_name

SERVERS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,63}", fullmatch=True)


@given(SERVERS, st.text(max_size=100), SERVERS, st.text(max_size=100))
def test_distinct_tools_have_distinct_names(one: str, first: str, other: str, second: str) -> None:
    assert (tool_name(one, first) == tool_name(other, second)) is ((one, first) == (other, second))


@given(SERVERS, st.text())
def test_every_name_is_valid_for_the_apis(server: str, tool: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool_name(server, tool))


def test_the_server_is_read_from_a_tool_name() -> None:
    assert server_of("files__read") == "files"
    assert server_of("read_file") is None
