import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.parser import ParsedCommand, UnknownCommand, parse_command
from gateway.commands.registry import COMMANDS


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
def test_parses_a_command(text: str, name: str, argument: str) -> None:
    parsed = parse_command(text)
    assert isinstance(parsed, ParsedCommand)
    assert (parsed.command.name, parsed.argument) == (name, argument)


@pytest.mark.parametrize(
    "text", ["hello", "/etc/hosts is odd", "/2", "/", "!", "!important thing", "a /new", "/ new", "/new-york is nice"]
)
def test_any_other_text_is_for_the_agent(text: str) -> None:
    assert parse_command(text) is None


def test_a_double_slash_sends_a_command_to_the_agent_as_text() -> None:
    assert parse_command("//new is a command") is None


@pytest.mark.parametrize(
    ("text", "near"), [("/nwe", "/new"), ("/session resum 2", "/session resume"), ("/stats", "/status")]
)
def test_a_mistyped_command_suggests_the_nearest(text: str, near: str) -> None:
    parsed = parse_command(text)
    assert isinstance(parsed, UnknownCommand)
    assert f"Did you mean {near}?" in parsed.suggestion


def test_a_command_unlike_any_other_points_to_help() -> None:
    parsed = parse_command("/xyzzy")
    assert isinstance(parsed, UnknownCommand)
    assert "/help" in parsed.suggestion


@given(st.text())
def test_every_text_can_be_parsed(text: str) -> None:
    assert isinstance(parse_command(text), ParsedCommand | UnknownCommand | None)


def test_names_and_aliases_are_unique() -> None:
    words = [word for command in COMMANDS for word in (command.name, *command.aliases)]
    assert len(words) == len(set(words))
