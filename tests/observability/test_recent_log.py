"""The lines of the log that stay in memory."""

import io
from datetime import timedelta
from threading import Thread

import structlog

from config import LogFormat, LogLevel, Secret
from gateway.observability.logging import configure
from gateway.observability.recent_log import MAX_ERRORS, MAX_LINE_CHARS, MAX_LINES, RecentLog


def test_lines_are_masked_and_the_oldest_are_dropped() -> None:
    recent = RecentLog()
    configure(LogLevel.INFO, LogFormat.CONSOLE, [Secret("hunter2-hunter2")], io.StringIO(), None, recent)
    log = structlog.get_logger()
    log.error("first_failed", key="hunter2-hunter2")
    log.debug("never_logged")
    for number in range(MAX_LINES):
        log.info("thing_counted", number=number)
    found = list(recent.lines())
    assert (len(found), found[0].number, recent.last) == (MAX_LINES, MAX_LINES + 1, MAX_LINES + 1)
    (error,) = recent.errors(within=timedelta(hours=1))
    assert (error.event, error.fields) == ("first_failed", '{"key":"***"}')
    assert [line.number for line in recent.lines(after=MAX_LINES - 1)] == [MAX_LINES + 1, MAX_LINES]
    assert [line.number for line in recent.lines(before=4)] == [3, 2]


def test_long_lines_are_cut_and_errors_are_bounded() -> None:
    recent = RecentLog()
    recent.add({"event": "x", "level": "critical", "text": "a" * 10 * MAX_LINE_CHARS})
    (line,) = recent.lines()
    assert (line.level, len(line.fields) < 2 * MAX_LINE_CHARS) == (LogLevel.ERROR, True)
    for _ in range(2 * MAX_ERRORS):
        recent.add({"event": "x", "level": "error"})
    assert len(recent.errors(within=timedelta(hours=1))) == MAX_ERRORS


def test_threads_may_write_at_the_same_time() -> None:
    recent = RecentLog()

    def write() -> None:
        for _ in range(200):
            recent.add({"event": "x", "level": "info"})

    threads = [Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(line.number for line in recent.lines()) == list(range(1, 801))
