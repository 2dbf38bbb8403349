import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from config import ChannelSettings, LogFormat, LogLevel, Secret, Settings
from gateway.logs import configure, secrets_in


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def test_a_line_is_one_json_object_away_from_a_terminal() -> None:
    out = io.StringIO()
    configure(LogLevel.INFO, LogFormat.AUTO, [], out)
    structlog.get_logger().info("message_handled", took_ms=3)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["took_ms"]) == ("message_handled", "info", 3)
    assert "timestamp" in line


def test_the_console_form_is_for_people() -> None:
    out = io.StringIO()
    configure(LogLevel.INFO, LogFormat.CONSOLE, [], out)
    structlog.get_logger().info("message_handled", took_ms=3)
    assert "message_handled" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_less_important_lines_are_left_out_and_the_level_can_change() -> None:
    out = io.StringIO()
    log = structlog.get_logger()
    configure(LogLevel.WARNING, LogFormat.JSON, [], out)
    log.info("not_heard")
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    log.debug("heard")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["heard"]


@pytest.mark.parametrize("layout", [LogFormat.JSON, LogFormat.CONSOLE])
def test_a_secret_in_an_exception_does_not_leave(layout: LogFormat) -> None:
    """Platform SDKs put the bot's token into URLs, and URLs into their exceptions."""
    out = io.StringIO()
    configure(LogLevel.DEBUG, layout, [Secret("canary-4711")], out)
    try:
        Path("botcanary-4711/getMe").read_text()
    except OSError:
        structlog.get_logger().exception("request_failed", url="/botcanary-4711/")
        logging.getLogger("some.library").exception("Failed for canary-4711")
    assert "request_failed" in out.getvalue()
    assert "canary-4711" not in out.getvalue()


def test_secrets_are_found_wherever_they_stand() -> None:
    settings = Settings(
        channels={"telegram": ChannelSettings(token=Secret("one"), options={"deep": [{"er": Secret("two")}]})},
    )
    assert {secret.reveal() for secret in secrets_in(settings)} == {"one", "two"}
