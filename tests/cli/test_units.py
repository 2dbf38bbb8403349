"""Sizes, durations and times look the same in all commands, because they come from `gateway.text.plain`."""

import ast
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import gateway
from gateway.text.plain import local_time, took

PACKAGES = ("admin", "backup", "cli", "doctor", "importing", "install")
UNIT = re.compile(r"^ ?(B|[kKMG]i?B|ms|s|min|h|seconds)\b")
FORMATTED_TIME = re.compile("%[HMSYmd]")


def handmade_units(path: Path) -> list[str]:
    """Return the f-strings of a module that put a unit behind a value, or format a time."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, following in zip(node.values, [*node.values[1:], None], strict=True):
            is_unit = isinstance(following, ast.Constant) and UNIT.match(str(following.value))
            spec = ast.unparse(value.format_spec) if isinstance(value, ast.FormattedValue) and value.format_spec else ""
            is_name = "before-restore" in ast.unparse(node)  # A file name, without spaces and in UTC.
            if isinstance(value, ast.FormattedValue) and not is_name and (is_unit or FORMATTED_TIME.search(spec)):
                found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_command_formats_units_itself(package: str) -> None:
    modules = sorted((Path(gateway.__file__).parent / package).rglob("*.py"))
    assert modules
    assert [each for module in modules for each in handmade_units(module)] == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0012, "1.2 ms"), (0.085, "85 ms"), (1.25, "1.2 s"), (12.6, "12 s"), (90, "1 min"), (7300, "2 h")],
)
def test_how_long_something_took_is_readable(seconds: float, text: str) -> None:
    assert took(seconds) == text


def test_times_are_in_the_zone_of_the_machine() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert local_time(at) == f"{at.astimezone():%Y-%m-%d %H:%M:%S}"
