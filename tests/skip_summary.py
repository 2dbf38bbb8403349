"""Ends a test run with the number of skipped tests for each reason, just above pytest's closing line."""

from collections import Counter
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)  # The outermost wrapper prints after all other summaries.
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None]:
    yield
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(_reason(report) for report in reports)
    if not reasons:
        return
    terminalreporter.section("skipped tests")
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        terminalreporter.write_line(f"{count:5}  {reason}")
    terminalreporter.write_line("Run pytest with -rs to list where they are.")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if not isinstance(report.longrepr, tuple):
        return str(report.longrepr)
    return report.longrepr[2].removeprefix("Skipped: ").rstrip(".")
