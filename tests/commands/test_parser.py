import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands import COMMANDS, Asked, Mistyped, Said, read


@pytest.mark.parametrize(
    ("text", "name", "argument"),
    [
        ("/new", "new", ""),
        ("  /NEW  Trip to Lisbon ", "new", "Trip to Lisbon"),
        ("/reset", "new", ""),
        ("!new", "new", ""),
        ("/new@my_bot title", "new", "title"),
        ("/session list", "session list", ""),
        ("/Session LIST", "session list", ""),
        ("/sessions", "session list", ""),
        ("/session", "session list", ""),
        ("/session resume 2", "session resume", "2"),
        ("/switch 2", "session resume", "2"),
        ("/history 5", "history", "5"),
        ("/help", "help", ""),
    ],
)
def test_reads_a_command(text: str, name: str, argument: str) -> None:
    asked = read(text, COMMANDS)
    assert isinstance(asked, Asked)
    assert (asked.command.name, asked.argument) == (name, argument)


@pytest.mark.parametrize(
    "text", ["hello", "/etc/hosts is odd", "/2", "/", "!", "!important thing", "a /new", "/ new", "/new-york is nice"]
)
def test_anything_else_is_said_to_the_agent_as_it_is(text: str) -> None:
    assert read(text, COMMANDS) == Said()


def test_two_slashes_send_one_to_the_agent() -> None:
    assert read("//new is a command", COMMANDS) == Said()


@pytest.mark.parametrize(
    ("text", "near"), [("/nwe", "/new"), ("/session resum 2", "/session resume"), ("/stats", "/status")]
)
def test_a_mistyped_command_is_answered_with_the_nearest(text: str, near: str) -> None:
    mistyped = read(text, COMMANDS)
    assert isinstance(mistyped, Mistyped)
    assert f"Did you mean {near}?" in mistyped.sentence


def test_without_a_near_one_it_points_to_help() -> None:
    mistyped = read("/xyzzy", COMMANDS)
    assert isinstance(mistyped, Mistyped)
    assert "/help" in mistyped.sentence


@given(st.text())
def test_every_text_is_read_somehow(text: str) -> None:
    assert isinstance(read(text, COMMANDS), Asked | Mistyped | Said)


def test_names_and_aliases_are_unique() -> None:
    words = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(words) == len(set(words))
