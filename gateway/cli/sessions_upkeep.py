"""`gatehouse sessions delete` and `verify`: removing a conversation, and looking for damage."""

import argparse
import asyncio
import json
import sys
from collections import Counter

import msgspec

from config import Settings
from gateway.archive import Listed
from gateway.cli.exits import EXIT_FAILED, EXIT_USAGE, complain
from gateway.cli.sessions_archives import opened_archive
from gateway.cli.sessions_naming import find
from gateway.sessions import Problem, VerifyReport
from gateway.text import excerpt, printable
from gateway.text.phrases import count

__all__ = ["advice", "delete", "verify"]

_SHOWN_PER_KIND = 10

_ADVICE = {
    "no_index": "Nothing to do: the next start builds it from the transcripts.",
    "bad_index": "Nothing to do: the next start sets it aside and builds it from the transcripts.",
    "stale_index": "Nothing to do: the next start reads these transcripts again.",
    "missing_transcript": "Import the session from a backup, or let the next start drop it from the index.",
    "orphan": "Nothing to do: the next start adopts it.",
    "open_to_others": "Take the rights away: chmod -R go= on the sessions folder; a start mends transcripts by itself.",
    "unreadable": "Give the file to the user that runs Gatehouse, or look after the disk.",
    "set_aside": "Look at it, take out what you need, and delete it.",
    "newer_version": "Update Gatehouse to use it again; until then it is left alone.",
    "damaged_line": "Only that line is lost. If you have a backup: delete the session and import it from there.",
    "seq_gap": "Entries are missing. If you have a backup: delete the session and import it from there.",
    "no_header": "The session is still read. If you have a backup: delete the session and import it from there.",
    "torn_line": "Nothing to do: it is cut off and kept aside when the session is next used.",
    "not_a_transcript": "Move the file elsewhere, or the next start sets it aside.",
}
"""What to do, by the kind of problem."""


def advice(kind: str) -> str:
    """Say what to do about a problem of that kind."""
    return _ADVICE.get(kind, "`gatehouse sessions verify` says more.")


def delete(settings: Settings, options: argparse.Namespace) -> int:
    """Ask outside of the event loop and without the lock: a person may take a while, or press Ctrl-C."""
    if not options.yes and not (sys.stdin and sys.stdin.isatty()):
        return complain("Nobody is there to be asked; add --yes to delete the session for good.", EXIT_USAGE)
    listed = asyncio.run(_find(settings, options))
    if not options.yes and not _is_sure(listed):
        return complain("Nothing was deleted.", EXIT_FAILED)
    asyncio.run(_delete(settings, listed.meta.key))
    told = f"Deleted session {listed.meta.number} of {printable(listed.meta.scope)}."
    print(json.dumps({"deleted": listed.meta.key}) if options.json else told)
    return 0


def _is_sure(listed: Listed) -> bool:
    meta = listed.meta
    title = printable(excerpt(meta.title, 60)) or "empty"
    question = f"Delete session {meta.number} of {printable(meta.scope)} ({title}, {count(meta.messages, 'message')})"
    try:
        return input(f"{question} for good? [y/N] ").strip().lower() in {"y", "yes"}
    except EOFError:
        return False


async def _find(settings: Settings, options: argparse.Namespace) -> Listed:
    async with opened_archive(settings) as archive:
        return await find(archive, options.name, options.number)


async def _delete(settings: Settings, key: str) -> None:
    async with opened_archive(settings) as archive:
        await archive.delete(key)


async def verify(settings: Settings, options: argparse.Namespace) -> int:
    """Look over what is there before anything is mended; exit 1 when not all is well."""
    async with opened_archive(settings, as_found=True) as archive:
        report = await archive.verify()
    if options.json:
        print(json.dumps({**msgspec.to_builtins(report), "is_sound": report.is_sound}, indent=2))
    else:
        print(_described(report))
    return 0 if report.is_sound else EXIT_FAILED


def _described(report: VerifyReport) -> str:
    looked = f"{count(report.transcripts, 'transcript')} with {report.entries} entries, {count(report.scopes, 'scope')}"
    newer = f"\n{report.unknown_entries} entries are of types that only a newer Gatehouse knows; they are kept."
    head = f"Looked at {looked}.{newer if report.unknown_entries else ''}"
    if report.is_sound:
        return f"{head}\nAll is well."
    kinds = Counter(problem.kind for problem in report.problems)
    parts = [_kind(kind, [problem for problem in report.problems if problem.kind == kind]) for kind in kinds]
    untold = report.problem_count - len(report.problems)
    more = [f"{untold} more problems are not listed here."] if untold else []
    return "\n\n".join([f"{head}\n{count(report.problem_count, 'problem')} found.", *parts, *more])


def _kind(kind: str, problems: list[Problem]) -> str:
    shown = [f"  {_one_line(problem.where)}: {_one_line(problem.detail)}" for problem in problems[:_SHOWN_PER_KIND]]
    left = len(problems) - len(shown)
    more = [f"  and {left} more; --json lists them"] if left else []
    advice = [f"  {_ADVICE[kind]}"] if kind in _ADVICE else []
    return "\n".join([f"{kind.replace('_', ' ')} ({len(problems)})", *shown, *more, *advice])


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
