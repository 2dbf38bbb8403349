"""What doctor says about archiving into memory."""

import msgspec

from gateway.doctor.stores import check_archiving
from gateway.extraction.archiver import REPORTED_FAILURES, ArchivingReport


def messages(report: ArchivingReport) -> list[str]:
    return [finding.message for finding in check_archiving(msgspec.to_builtins(report))]


def test_archiving_that_keeps_failing_is_a_warning_with_its_reason() -> None:
    report = ArchivingReport(waiting=5, changes=0, failures=REPORTED_FAILURES, reason="The key was rejected.")
    assert messages(report) == ["Archiving sessions into memory has failed 3 times in a row: The key was rejected."]


def test_changes_that_the_disk_refuses_are_a_warning() -> None:
    report = ArchivingReport(waiting=0, changes=1, failures=0, has_change_trouble=True)
    assert messages(report) == ["Memory files can't be written, so what people have changed or deleted waits."]


def test_a_few_failures_and_an_older_gateway_are_no_warning() -> None:
    assert messages(ArchivingReport(waiting=5, changes=0, failures=REPORTED_FAILURES - 1)) == []
    assert check_archiving(None) == []
