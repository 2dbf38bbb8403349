"""`gatehouse sessions delete` removes a conversation, `restore` brings one back, and `verify` looks for damage."""

import argparse
import asyncio
import json
import sys
from collections import defaultdict

import msgspec

from config import Settings
from gateway.admin.archive import open_archive
from gateway.admin.session_routes import ListedSession
from gateway.cli.common import EXIT_FAILED, EXIT_OK, EXIT_USAGE, fail
from gateway.cli.sessions.names import find_session
from gateway.doctor.stores import ADVICE
from gateway.sessions import SessionProblem
from gateway.text import excerpt, printable
from gateway.text.plain import count

_SHOWN_PER_KIND = 10


def delete(settings: Settings, options: argparse.Namespace) -> int:
    """Ask for confirmation and delete a session."""
    if not options.yes and not (sys.stdin and sys.stdin.isatty()):
        return fail("No terminal to ask for confirmation. Add --yes to delete the session permanently.", EXIT_USAGE)

    async def find() -> ListedSession:
        async with open_archive(settings) as archive:
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
        async with open_archive(settings) as archive:
            await archive.delete(meta.key)

    asyncio.run(delete_session())
    message = f"Deleted session {meta.number} of {printable(meta.scope)}."
    print(json.dumps({"deleted": meta.key}) if options.json else message)
    return EXIT_OK


async def restore(settings: Settings, options: argparse.Namespace) -> int:
    """Bring a session back from the archive."""
    async with open_archive(settings) as archive:
        listed = await find_session(archive, options.name, options.number)
        if not listed.is_archived:
            return fail(f"Session {listed.meta.number} is not in the archive.", EXIT_FAILED)
        meta = await archive.restore(listed.meta.key)
    message = f"Restored session {meta.number} of {printable(meta.scope)}."
    print(json.dumps({"restored": meta.key}) if options.json else message)
    return EXIT_OK


async def verify(settings: Settings, options: argparse.Namespace) -> int:
    """Check the sessions without repairing anything. Returns 1 if there are problems."""
    async with open_archive(settings, as_found=True) as archive:
        report = await archive.verify()
    if options.json:
        print(json.dumps({**msgspec.to_builtins(report), "is_sound": report.is_sound}, indent=2))
        return EXIT_OK if report.is_sound else EXIT_FAILED
    transcripts, scopes = count(report.transcripts, "transcript"), count(report.scopes, "scope")
    archived = f", and {count(report.archived, 'archived session')}" if report.archived else ""
    print(f"Checked {transcripts} with {report.entries} entries in {scopes}{archived}.")
    if report.unknown_entries:
        print(f"{report.unknown_entries} entries need a newer Gatehouse. They are kept.")
    if report.is_sound:
        print("No problems found.")
        return EXIT_OK
    print(f"{count(report.problem_count, 'problem')} found.")
    problems_by_kind: dict[str, list[SessionProblem]] = defaultdict(list)
    for problem in report.problems:
        problems_by_kind[problem.kind].append(problem)
    for kind, problems in problems_by_kind.items():
        print(f"\n{kind.replace('_', ' ')} ({len(problems)})")
        for each in problems[:_SHOWN_PER_KIND]:
            print(f"  {_one_line(each.where)}: {_one_line(each.detail)}")
        if len(problems) > _SHOWN_PER_KIND:
            print(f"  and {len(problems) - _SHOWN_PER_KIND} more; --json lists them")
        if kind in ADVICE:
            print(f"  {ADVICE[kind]}")
    if unlisted := report.problem_count - len(report.problems):
        print(f"\n{unlisted} more problems are not listed here.")
    return EXIT_FAILED


def _one_line(text: str) -> str:
    return " ".join(printable(text).split())
