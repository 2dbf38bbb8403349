"""Checks of the data directory: sessions, the spool, and files that crashes have left."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from config import Settings
from gateway.conversation import Json
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.extraction.archiver import REPORTED_FAILURES, ArchivingReport
from gateway.files.workspaces import private_folders, unreachable_folders
from gateway.private_files import OTHERS
from gateway.sessions import VerifyReport
from gateway.text.plain import count

_REPAIRED_AT_START = {"no_index", "bad_index", "stale_index", "orphan", "torn_line", "set_aside", "not_a_file"}
"""Kinds of problems that the next start repairs, or the last start has repaired."""

ADVICE = {
    "no_index": "Nothing to do: the next start rebuilds it from the transcripts.",
    "bad_index": "Nothing to do: the next start sets it aside and rebuilds it from the transcripts.",
    "stale_index": "Nothing to do: the next start reads these transcripts again.",
    "missing_transcript": "Import the session from a backup, or let the next start drop it from the index.",
    "orphan": "Nothing to do: the next start adds it to the index.",
    "open_to_others": "Run chmod -R go= on the sessions folder. For transcripts, the next start does it.",
    "unreadable": "Give the file to the user that runs Gatehouse, or check the disk.",
    "set_aside": "Copy what you need from it, and delete it.",
    "newer_version": "Update Gatehouse to use it again. Until then, Gatehouse ignores it.",
    "damaged_line": "Only that line is lost. If you have a backup, delete the session and import it from there.",
    "seq_gap": "Entries are missing. If you have a backup, delete the session and import it from there.",
    "no_header": "The session still works. If you have a backup, delete the session and import it from there.",
    "torn_line": "Nothing to do: Gatehouse cuts it off and keeps a copy when the session is used again.",
    "not_a_file": "Nothing to do: the next start sets it aside. If you have a backup, import the session from there.",
    "damaged_archive": "If you have a backup, restore the file from there. Otherwise delete the session.",
    "not_a_transcript": "Move the file elsewhere, or the next start sets it aside.",
}
"""The advice for each kind of problem in a `VerifyReport`."""


def check_sessions(report: VerifyReport, repair: Callable[[], None] | None) -> list[Finding]:
    """Return a finding for each kind of problem. `repair` does what a start does; None while the daemon runs."""
    if report.is_sound:
        checked = f"{count(report.transcripts, 'transcript')} in {count(report.scopes, 'scope')}"
        return [ok("sessions", f"No problems in {checked}.")]
    findings = []
    for kind, number in Counter(problem.kind for problem in report.problems).items():
        first = next(problem for problem in report.problems if problem.kind == kind)
        more = f" (and {number - 1} more)" if number > 1 else ""
        message = f"{kind.replace('_', ' ')}: {first.where}: {first.detail}{more}"
        advice = ADVICE.get(kind, "Run `gatehouse sessions verify` for details.")
        if kind not in _REPAIRED_AT_START:
            findings.append(error("sessions", message, advice))
        else:
            # Files that were set aside are for the operator to look at: no start removes them.
            findings.append(warning("sessions", message, advice, None if kind == "set_aside" else repair))
    return findings


def check_spool(listing: dict[str, Json]) -> list[Finding]:
    """Check the spool by what `gatehouse spool list` shows."""
    findings = []
    if failed := _rows(listing["set_aside"]):
        message = f"{count(len(failed), 'message')} couldn't be answered."
        findings.append(warning("spool", message, "`gatehouse spool` lists them with the reason."))
    undelivered = _rows(listing["undelivered"])
    if dead := [row for row in undelivered if isinstance(row, dict) and row.get("state") == "dead"]:
        message = f"{'1 reply' if len(dead) == 1 else f'{len(dead)} replies'} couldn't be delivered."
        findings.append(warning("spool", message, "`gatehouse spool retry` tries again."))
    if unreadable := _rows(listing["unreadable"]):
        findings.append(error("spool", f"{count(len(unreadable), 'row')} can't be read.", "Check the disk."))
    return findings or [ok("spool", "No failed messages.")]


def check_archiving(report: Json) -> list[Finding]:
    """Check what the daemon reports about archiving sessions into memory. An older one reports nothing."""
    try:
        archiving = msgspec.convert(report, ArchivingReport)
    except msgspec.ValidationError:
        return []
    findings = []
    if archiving.has_change_trouble:
        message = "Memory files can't be written, so what people have changed or deleted waits."
        findings.append(warning("memory", message, "Check the disk and the permissions of the folder memory."))
    if archiving.failures >= REPORTED_FAILURES:
        message = f"Archiving sessions into memory has failed {archiving.failures} times in a row: {archiving.reason}"
        findings.append(warning("memory", message, "Check the model, or choose another one with memory.model."))
    return findings


def check_schedules(schedules: Sequence[Mapping[str, Json]]) -> list[Finding]:
    """Report schedules that fail, or that the gateway has paused, as `gatehouse schedules` lists them."""
    findings = []
    for each in schedules:
        name, note = each.get("name") or each.get("id"), each.get("note")
        if each.get("state") == "paused":
            if note:  # A person who pauses a schedule leaves no note.
                advice = f"Fix that, and run `gatehouse schedules resume {each.get('id')}`."
                findings.append(warning("schedules", f"{name} is paused: {note}", advice))
        elif each.get("failures"):
            findings.append(
                warning("schedules", f"{name} fails: {note}", f"`gatehouse schedules show {each.get('id')}`")
            )
    return findings or [ok("schedules", f"{count(len(schedules), 'schedule')}, none is failing.")]


def check_roles(
    settings: Settings, people: Sequence[Mapping[str, Json]], tokens: Sequence[Mapping[str, Json]]
) -> list[Finding]:
    """Report approved people and tokens with a role that the settings do not have."""
    holders = [(str(each["id"]), each, f"give another one: gatehouse pair role {each['id']} ROLE") for each in people]
    holders += [
        (f"The token {each['name']} ({each['id']})", each, "replace the token by one with another role")
        for each in tokens
        if not each["is_expired"]
    ]
    return [
        warning(
            "roles",
            f"{who} has the role {each['role']}, which does not exist: no tools run for it.",
            f"Add the table [roles.{each['role']}], or {other}",
        )
        for who, each, other in holders
        if each["role"] not in settings.roles
    ]


def _rows(rows: Json) -> list[Json]:
    return rows if isinstance(rows, list) else []


def check_workspaces(settings: Settings) -> list[Finding]:
    """Report shared workspaces that no agent uses, and private ones that other users can read."""
    root = settings.gateway.workspace_root
    findings = [
        warning(
            "workspace",
            f"{folder} has files from when everyone who talks to {agent} shared them. No tool can reach them now.",
            f'Move them where you need them, or set agents.{agent}.workspace = "shared" to share them again.',
        )
        for agent, folder in unreachable_folders(settings)
    ]
    for folder in (private_folders(root, agent) for agent in settings.agents):
        if folder.is_dir() and folder.stat().st_mode & OTHERS:
            message = f"Other users of this machine can read {folder}."
            findings.append(warning("workspace", message, f"Run chmod 700 {folder}.", partial(folder.chmod, 0o700)))
    return findings or [ok("workspace", "Every workspace is in use.")]


def check_kinds(settings: Settings) -> list[Finding]:
    """Report links, pipes and other things in a place where the gateway wants something else, and would not start.

    Sessions and spool report theirs themselves.
    """
    directory, workspaces = settings.gateway.data_dir, settings.gateway.workspace_root
    token = () if settings.http.token is not None else (("http.token", "a file", Path.is_file),)
    findings = []
    for name, wanted, is_right in (
        *token,
        ("control.sock", "a socket", Path.is_socket),
        ("files", "a folder", Path.is_dir),
        (workspaces, "a folder", Path.is_dir),
        *((private_folders(workspaces, agent), "a folder", Path.is_dir) for agent in settings.agents),
    ):
        path = directory / name
        is_link = path.is_symlink() and wanted != "a folder"  # A folder may be on another disk.
        if os.path.lexists(path) and (is_link or not is_right(path)):
            findings.append(error("data", f"{path} is not {wanted}.", "Move it elsewhere, or the gateway won't start."))
    return findings


def check_leftovers(directory: Path) -> list[Finding]:
    """Report damaged files that were set aside. Only a person can decide about their contents."""
    damaged = sorted(
        str(path.relative_to(directory))
        for pattern in ("spool*.corrupt*", "sessions/*.corrupt*", "memory/*.corrupted*", "memory/*/*.corrupted*")
        for path in directory.glob(pattern)
    )
    if not damaged:
        return []
    message = f"Damaged files were set aside: {', '.join(damaged)}."
    return [warning("data", message, "Copy what you need from them, and delete them.")]
