"""`gatehouse sessions delete` removes a conversation, and `verify` looks for damage."""

import argparse
import asyncio
import json
import sys
from collections import defaultdict

import msgspec

from config import Settings
from gateway.admin.archive import Listed
from gateway.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, fail
from gateway.cli.sessions.names import find_session
from gateway.cli.sessions_archives import opened_archive
from gateway.doctor.stores import ADVICE
from gateway.sessions import Problem, VerifyReport
from gateway.text import excerpt, printable
from gateway.text.clean import count

_SHOWN_PER_KIND = 10


def delete(settings: Settings, options: argparse.Namespace) -> int:
    """Ask for confirmation and delete a session."""
    if not options.yes and not (sys.stdin and sys.stdin.isatty()):
        return fail("No terminal to ask for confirmation. Add --yes to delete the session permanently.", EXIT_USAGE)

    async def find() -> Listed:
        async with opened_archive(settings) as archive:
            return await find_session(archive, options.name, options.number)

    # The question comes between two event loops and without the lock: a person may take a while, or press Ctrl-C.
    meta = asyncio.run(find()).meta
    if not options.yes:
        title = printable(excerpt(meta.title, 60)) or "empty"
        session = f"session {meta.number} of {printable(meta.scope)} ({title}, {count(meta.messages, 'message')})"
        try:
            answer = input(f"Delete {session} permanently? [y/N] ")
        except EOFError:
            answer = ""
        if answer.strip().lower() not in {"y", "yes"}:
            return fail("Nothing was deleted.", EXIT_FAILED)

    async def delete_session() -> None:
        async with opened_archive(settings) as archive:
            await archive.delete(meta.key)

    asyncio.run(delete_session())
    message = f"Deleted session {meta.number} of {printable(meta.scope)}."
    print(json.dumps({"deleted": meta.key}) if options.json else message)
    return EXIT_OK


async def verify(settings: Settings, options: argparse.Namespace) -> int:
    """Check the sessions without repairing anything. Returns 1 if there are problems."""
    async with opened_archive(settings, as_found=True) as archive:
        report = await archive.verify()
    if options.json:
        print(json.dumps({**msgspec.to_builtins(report), "is_sound": report.is_sound}, indent=2))
    else:
        print(_describe(report))
    return EXIT_OK if report.is_sound else EXIT_FAILED


def _describe(report: VerifyReport) -> str:
    checked = (
        f"{count(report.transcripts, 'transcript')} with {report.entries} entries, {count(report.scopes, 'scope')}"
    )
    head = f"Checked {checked}."
    if report.unknown_entries:
        head += f"\n{report.unknown_entries} entries need a newer Gatehouse. They are kept."
    if report.is_sound:
        return f"{head}\nNo problems found."
    paragraphs = [f"{head}\n{count(report.problem_count, 'problem')} found."]
    problems_by_kind: dict[str, list[Problem]] = defaultdict(list)
    for problem in report.problems:
        problems_by_kind[problem.kind].append(problem)
    for kind, problems in problems_by_kind.items():
        lines = [f"{kind.replace('_', ' ')} ({len(problems)})"]
        lines += (f"  {_one_line(each.where)}: {_one_line(each.detail)}" for each in problems[:_SHOWN_PER_KIND])
        if len(problems) > _SHOWN_PER_KIND:
            lines.append(f"  and {len(problems) - _SHOWN_PER_KIND} more; --json lists them")
        if kind in ADVICE:
            lines.append(f"  {ADVICE[kind]}")
        paragraphs.append("\n".join(lines))
    if unlisted := report.problem_count - len(report.problems):
        paragraphs.append(f"{unlisted} more problems are not listed here.")
    return "\n\n".join(paragraphs)


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
