"""Tests of the limits on messages and tools."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from config import McpSettings
from gateway.mcp.limits import select_tools
from gateway.text.lines import LineSplitter, LongLine

LIMIT = 1_000


@given(st.lists(st.integers(0, 2 * LIMIT), max_size=8), st.integers(1, 700))
def test_of_lines_over_the_limit_only_both_ends_are_kept(lengths: list[int], size: int) -> None:
    lines = [bytes(97 + at % 26 for at in range(length)) for length in lengths]
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(LIMIT)
    found = [line for at in range(0, len(stream), size) for line in splitter.feed(stream[at : at + size])]
    assert len(found) == len(lines)
    for line, seen in zip(lines, found, strict=True):
        if isinstance(seen, LongLine):
            assert len(line) > LIMIT
            assert line.startswith(seen.head)
            assert line.endswith(seen.tail)
        else:
            assert seen == line
            assert len(line) <= LIMIT


def listed(name: str, size: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, input_schema={"description": "x" * size})


def test_the_first_tools_fill_the_limit_of_all_schemas() -> None:
    settings = McpSettings.model_validate({"command": ["x"], "max_schema_bytes": 1000, "max_schemas_bytes": 1500})
    kept, left_out = select_tools([listed("a", 900), listed("b", 900), listed("c", 100), listed("d", 1000)], settings)
    assert [tool.name for tool in kept] == ["a", "c"]
    assert [(tool.name, tool.reason.partition(",")[0]) for tool in left_out] == [
        ("b", "the schemas together are larger than max_schemas_bytes"),
        ("d", "its schema has 1"),
    ]
