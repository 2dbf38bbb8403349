import io
import json
import logging
import os
import select
import threading
from pathlib import Path
from typing import Any

import pytest
import structlog

from config import ChannelSettings, LogFormat, LogLevel, Secret, Settings
from gateway.observability.log_file import LogFile
from gateway.observability.logging import MAX_LIBRARY_LINES, REPEAT_INTERVAL, also_hide, configure, secrets_in

EVERY_LAYOUT = pytest.mark.parametrize("layout", [LogFormat.JSON, LogFormat.CONSOLE])


def lines(text: str) -> list[dict[str, Any]]:  # Any: log lines have different fields.
    return [json.loads(line) for line in text.splitlines()]


def test_auto_writes_json_if_the_output_is_no_terminal() -> None:
    out = io.StringIO()
    configure(LogLevel.INFO, LogFormat.AUTO, [], out)
    structlog.get_logger().info("message_handled", took_ms=3)
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["took_ms"]) == ("message_handled", "info", 3)
    assert "timestamp" in line


def test_console_lines_are_not_json() -> None:
    out = io.StringIO()
    configure(LogLevel.INFO, LogFormat.CONSOLE, [], out)
    structlog.get_logger().info("message_handled", took_ms=3)
    assert "message_handled" in out.getvalue()
    assert not out.getvalue().startswith("{")


def test_lines_below_the_level_are_dropped_and_the_level_can_change() -> None:
    out = io.StringIO()
    log = structlog.get_logger()
    configure(LogLevel.WARNING, LogFormat.JSON, [], out)
    log.info("dropped")
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    log.debug("logged")
    assert [line["event"] for line in lines(out.getvalue())] == ["logged"]


@EVERY_LAYOUT
def test_secrets_in_exceptions_are_hidden(layout: LogFormat) -> None:
    """Platform SDKs put the bot's token into URLs, and URLs into their exceptions."""
    out = io.StringIO()
    configure(LogLevel.DEBUG, layout, [Secret("canary-4711")], out)
    try:
        Path("botcanary-4711/getMe").read_text()
    except OSError:
        structlog.get_logger().exception("request_failed", url="/botcanary-4711/")
        logging.getLogger("some.library").exception("Failed for canary-4711")
    assert "request_failed" in out.getvalue()
    assert "FileNotFoundError" in out.getvalue()
    assert "canary-4711" not in out.getvalue()


@EVERY_LAYOUT
@pytest.mark.parametrize(
    "value",
    [
        'say can"ary\\now',
        {"deep": [{"er": ('can"ary\\now',)}]},
        {'can"ary\\now': 1},
        ValueError('no can"ary\\now'),
        repr('can"ary\\now'),
        json.dumps('can"ary\\now'),
        b'can"ary\\now',
        "https://example.org/bot/can%22ary%5Cnow",
    ],
)
def test_secrets_are_hidden_in_every_encoding(layout: LogFormat, value: object) -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, layout, [Secret('can"ary\\now')], out)
    structlog.get_logger().info("told", value=value)
    assert "***" in out.getvalue()
    assert "ary" not in out.getvalue()


def test_a_secret_that_starts_with_another_one_is_hidden_completely() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [Secret("canary"), Secret("canary-and-more")], out)
    structlog.get_logger().info("told", value="canary-and-more")
    assert lines(out.getvalue())[0]["value"] == "***"


def test_hiding_secrets_keeps_the_line_valid_json() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [Secret("1"), Secret("info"), Secret('"'), Secret('","level')], out)
    structlog.get_logger().info("told", number=111)
    assert lines(out.getvalue())[0]["number"] == 111


@EVERY_LAYOUT
@pytest.mark.parametrize("value", ["\ud800", 10**30, float("nan"), object(), {(1, 2): {3}}])
def test_values_of_any_type_can_be_logged(layout: LogFormat, value: object) -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, layout, [Secret("sur-\ud800-rogate")], out)
    structlog.get_logger().info("told", value=value, hidden="a sur-\ud800-rogate")
    assert "told" in out.getvalue()
    assert "rogate" not in out.getvalue()


def test_secrets_can_be_added_later_and_stay_hidden_after_a_reload() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [Secret("canary-old")], out)
    also_hide(Secret("canary-late"))
    configure(LogLevel.DEBUG, LogFormat.JSON, [Secret("canary-new")], out)
    structlog.get_logger().info("told", value="canary-old canary-late canary-new")
    assert lines(out.getvalue())[0]["value"] == "*** *** ***"


def test_a_library_message_with_wrong_arguments_is_still_logged() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    logging.getLogger("some.library").warning("%d apples", "many")
    assert lines(out.getvalue())[0]["message"] == "%d apples"


OBEYED = "\x1b[31m\x7f\x85\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069"
"""Characters that a terminal obeys, or that change the order in which a text is read."""


@EVERY_LAYOUT
@pytest.mark.parametrize("text", [OBEYED, f"with spaces {OBEYED}", f"a\n{OBEYED}"])
def test_characters_that_a_terminal_obeys_are_escaped(layout: LogFormat, text: str, tmp_path: Path) -> None:
    out, file = io.StringIO(), LogFile(tmp_path / "log", max_bytes=100_000, keep=1)
    file.open()
    configure(LogLevel.DEBUG, layout, [], out, file)
    structlog.get_logger().error("told", name=text, names=[text], exc_info=ValueError(text))
    file.close()
    written = (tmp_path / "log").read_text()
    for shown in (out.getvalue(), written):
        assert not set(OBEYED.replace("[31m", "")) & set(shown)
        assert "u202e" in shown
    found = json.loads(written)
    assert (found["name"], found["names"]) == (text, [text])


def test_library_messages_that_differ_in_numbers_are_the_same_and_all_together_are_limited() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    words = [chr(ord("a") + number % 26) * (1 + number // 26) for number in range(100)]
    texts = [f"<TimerHandle when={number}.5 at 0x{number:x}>" for number in range(5_000)] + words
    for text in texts:
        record = {"name": "some.library", "msg": text, "levelno": logging.ERROR, "created": 1000.0}
        logging.getLogger("some.library").handle(logging.makeLogRecord(record))
    later = {"name": "some.library", "msg": "later", "levelno": logging.ERROR, "created": 1000.0 + REPEAT_INTERVAL}
    logging.getLogger("some.library").handle(logging.makeLogRecord(later))
    found = lines(out.getvalue())
    assert [line["message"] for line in found] == [texts[0], *words[: MAX_LIBRARY_LINES - 1], "later"]
    assert found[-1]["suppressed"] == len(words) - MAX_LIBRARY_LINES + 1


def test_a_repeated_library_message_is_logged_once_in_a_while() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    for number, word in enumerate(["no files left", "and so on"] * 500):
        record = {"name": "some.library", "msg": word, "levelno": logging.ERROR, "created": 1000 + number / 25}
        logging.getLogger("some.library").handle(logging.makeLogRecord(record))
    repeats = [line.get("repeats", 0) for line in lines(out.getvalue()) if line["message"] == "no files left"]
    assert repeats == [0, 124, 124, 124]


def test_the_same_library_message_with_another_exception_is_no_repetition() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    for word in ("one", "two", "two"):
        failure = (ValueError, ValueError(word), None)
        record = {"name": "some.library", "msg": "it went wrong", "levelno": logging.ERROR, "exc_info": failure}
        logging.getLogger("some.library").handle(logging.makeLogRecord({**record, "created": 1000.0}))
    assert [line["exception"].splitlines()[-1] for line in lines(out.getvalue())] == [
        "ValueError: one",
        "ValueError: two",
    ]


def test_library_messages_are_logged_after_the_clock_is_set_back() -> None:
    out = io.StringIO()
    configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
    for created in (5_000.0, 1_000.0):
        record = {"name": "some.library", "msg": "gone", "levelno": logging.ERROR, "created": created}
        logging.getLogger("some.library").handle(logging.makeLogRecord(record))
    assert len(lines(out.getvalue())) == 2


def test_secrets_are_found_in_nested_settings() -> None:
    settings = Settings(
        channels={"telegram": ChannelSettings(token=Secret("one"), options={"deep": [{"er": Secret("two")}]})},
    )
    assert {secret.reveal() for secret in secrets_in(settings)} == {"one", "two"}


def test_plain_text_in_channel_options_is_treated_as_a_secret() -> None:
    options = {"mode": "polling", "deep": [{"er": "canary-option"}], "retries": 3}
    settings = Settings(channels={"telegram": ChannelSettings(options=options)})
    assert [secret.reveal() for secret in secrets_in(settings)] == ["canary-option"]


def test_logging_without_an_output_raises_nothing() -> None:
    configure(LogLevel.DEBUG, LogFormat.AUTO, [], None)
    structlog.get_logger().info("told")


def test_logging_to_a_closed_output_raises_nothing(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as out:
        configure(LogLevel.DEBUG, LogFormat.AUTO, [], out)
    structlog.get_logger().info("told")


def test_logging_to_a_full_disk_raises_nothing() -> None:
    """Not even later: a buffered line would fail again when the stream is closed."""
    with Path("/dev/full").open("w") as out:
        configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
        structlog.get_logger().info("told")


def test_logging_to_a_closed_pipe_raises_nothing() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as out:
        configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
        structlog.get_logger().info("told")


def test_a_slow_reader_does_not_block_logging_and_gets_the_number_of_lost_lines() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as reader, os.fdopen(theirs, "w") as out:
        configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
        log = structlog.get_logger()
        for _ in range(200):
            log.info("told", text="x" * 1000)
        received = [reader.readline()]
        log.info("told_again")
        reading = threading.Thread(target=lambda: received.extend(reader))
        reading.start()
        out.close()
        reading.join()
    events = [line for text in received if (line := json.loads(text or "{}"))]
    (missed,) = [line["count"] for line in events if line["event"] == "log_lines_lost"]
    assert len([line for line in events if line["event"] == "told"]) + missed == 200


def test_the_line_after_a_truncated_one_starts_on_a_new_line() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(ours) as reader, os.fdopen(theirs, "w") as out:
        configure(LogLevel.DEBUG, LogFormat.JSON, [], out)
        structlog.get_logger().info("too_much", text="x" * 200_000)
        while len(os.read(ours, 4096)) == 4096 and select.select([ours], [], [], 0)[0]:
            pass
        structlog.get_logger().info("told")
        out.close()
        received = reader.read().splitlines()
    assert [json.loads(line)["event"] for line in received if line.startswith("{")] == ["told", "log_lines_lost"]


def test_lines_are_written_in_the_encoding_of_the_output(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w", encoding="ascii") as out:
        configure(LogLevel.DEBUG, LogFormat.CONSOLE, [], out)
        structlog.get_logger().info("grüße")
    assert "gr??e" in (tmp_path / "log").read_text("ascii")
