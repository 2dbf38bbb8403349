"""What a grant covers: exactly what was shown, or what a pattern says."""

from datetime import UTC, datetime

import pytest

from gateway.access.guests import Person
from gateway.conversation import Json, ToolCall
from gateway.errors import Refused
from gateway.turns.grants import Grant, parse_patterns

ADA = Person(channel="web", account="default", sender="ada")


def call(**arguments: Json) -> ToolCall:
    return ToolCall(id="c", name="run", input=arguments)


def grant(arguments: dict[str, Json], **patterns: str) -> Grant:
    return Grant(
        id="1",
        tool="run",
        arguments=arguments,
        patterns=patterns,
        agent="main",
        workspace="/w",
        scope="s",
        person=ADA,
        by=ADA,
        at=datetime.now(UTC),
    )


def test_equal_arguments_are_covered_in_any_order_and_others_are_not() -> None:
    one = grant({"command": "ls", "count": 1})
    assert one.covers(call(count=1, command="ls"))
    assert not one.covers(call(count=True, command="ls"))
    assert not one.covers(call(count=1, command="ls "))
    assert not one.covers(call(command="ls"))
    assert not one.covers(call(count=1, command="ls", more=2))
    assert not one.covers(ToolCall(id="c", name="walk", input={"count": 1, "command": "ls"}))


@pytest.mark.parametrize(
    ("pattern", "value", "is_covered"),
    [
        ("git log *", "git log --stat src/a.py", True),
        ("git log *", "git log; rm -rf /", False),
        ("git log *", "git log $(rm x)", False),
        ("git log *", "git log a\nrm b", False),
        ("git log *", "git log `rm`", False),
        ("notes/*.md", "notes/a/b.md", True),
        ("notes/*", "notes/../key", False),
        ("notes/.*", "notes/../key", False),
        ("notes/.*", "notes/.hidden", True),
        ("../*", "../../key", False),
        ("../*", "../a", True),
        ("a*a", "a", False),
        ("*a*a*b", "xaab", True),
        ("*;*", "a;b", True),
        ("*;*", "a;b;c", False),
        ("*a*a*a*a*a*a*a*a*b", "a" * 20_000, False),
        ("a.b", "axb", False),
        ("*", "anything; at all\n", True),
        ("*", 5, True),
        ("5", 5, False),
    ],
)
def test_a_wildcard_stands_for_nothing_that_a_shell_treats_specially(
    pattern: str, value: Json, *, is_covered: bool
) -> None:
    assert grant({}, command=pattern).covers(call(command=value)) is is_covered


def test_patterns_may_contain_spaces_and_end_before_the_next_name() -> None:
    given = call(command="git log", path="a", p="x")
    assert parse_patterns("command=git log * path=src/*", given) == {"command": "git log *", "path": "src/*"}
    assert parse_patterns("command=** path=a***b", given) == {"command": "*", "path": "a*b"}
    assert parse_patterns("", given) == {}
    for wrong in ("command", "colour=red", "x command=*"):
        with pytest.raises(Refused, match="name=pattern"):
            parse_patterns(wrong, given)


def test_a_grant_describes_itself() -> None:
    assert str(grant({"path": "a"}, content="*")) == 'run with path: "a", content: anything'
    assert str(grant({})) == "run without arguments"
