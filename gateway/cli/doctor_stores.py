"""`gatehouse doctor` on the data directory: sessions, spool, and what crashes have left behind."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

from config import Settings
from gateway.cli.sessions_archives import opened_archive, opened_files
from gateway.cli.sessions_upkeep import advice
from gateway.cli.spool import listing
from gateway.dialogue import Json
from gateway.doctor.finding import Finding, fine, odd, wrong
from gateway.errors import CannotStart, Refused
from gateway.sessions import VerifyReport
from gateway.text.phrases import count

__all__ = ["stores"]

_HARMLESS = {"no_index", "bad_index", "stale_index", "orphan", "torn_line", "set_aside"}
"""What the next start mends by itself, or has already."""


async def stores(settings: Settings, *, is_live: bool) -> list[Finding]:
    """Look into the files, or have the daemon look that has them open."""
    try:
        async with opened_archive(settings, as_found=True) as archive:
            report = await archive.verify()
        spool = await listing(settings.gateway.data_dir)
    except (CannotStart, Refused) as trouble:
        return [wrong("data", str(trouble), "Mend that first: like this the gateway does not start.")]
    leftovers = await asyncio.to_thread(_leftovers, settings.gateway.data_dir)
    return [*_sessions(report, settings, is_live=is_live), *_spool(spool), *leftovers]


def _sessions(report: VerifyReport, settings: Settings, *, is_live: bool) -> list[Finding]:
    if report.is_sound:
        looked = f"{count(report.transcripts, 'transcript')} in {count(report.scopes, 'scope')}: all is well."
        return [fine("sessions", looked)]
    kinds = Counter(problem.kind for problem in report.problems)
    return [_session_problem(kind, number, report, settings, is_live=is_live) for kind, number in kinds.items()]


def _session_problem(kind: str, number: int, report: VerifyReport, settings: Settings, *, is_live: bool) -> Finding:
    first = next(problem for problem in report.problems if problem.kind == kind)
    more = f" ({number} like this)" if number > 1 else ""
    said = f"{kind.replace('_', ' ')}: {first.where}: {first.detail}{more}"
    # A daemon that runs has yet to write the index anew; whatever it does not know is as wrong as ever.
    is_harmless = kind in _HARMLESS
    repair = None if is_live or kind == "set_aside" or not is_harmless else partial(_recover, settings)
    return (odd if is_harmless else wrong)("sessions", said, advice(kind), repair)


def _recover(settings: Settings) -> None:
    """Do what a start does: adopt, rebuild, and write the index."""

    async def recover() -> None:
        async with opened_files(settings):
            pass  # Opening mends; closing writes it down.

    asyncio.run(recover())


def _spool(found: dict[str, Json]) -> list[Finding]:
    findings = []
    if aside := found["set_aside"]:
        findings.append(
            odd("spool", f"{_count(aside, 'message')} could not be answered.", "`gatehouse spool` says which, and why.")
        )
    given_up = [row for row in _rows(found["undelivered"]) if row.get("state") == "dead"]
    if given_up:
        findings.append(
            odd(
                "spool",
                f"{count(len(given_up), 'reply')} could not be delivered.",
                "`gatehouse spool retry` tries again.",
            )
        )
    if unreadable := found["unreadable"]:
        findings.append(wrong("spool", f"{_count(unreadable, 'row')} cannot be read.", "Look after the disk."))
    return findings or [fine("spool", "Nothing was set aside.")]


def _rows(rows: Json) -> list[dict[str, Json]]:
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _count(rows: Json, thing: str) -> str:
    return count(len(rows) if isinstance(rows, list) else 0, thing)


def _leftovers(directory: Path) -> list[Finding]:
    """Name damaged files that were set aside; what is in them, only a person can judge."""
    damaged = sorted(
        path.name for pattern in ("spool*.corrupt*", "sessions/*.corrupt*") for path in directory.glob(pattern)
    )
    if not damaged:
        return []
    return [
        odd("data", f"Damaged files were set aside: {', '.join(damaged)}.", "Take out what you need, and delete them.")
    ]
