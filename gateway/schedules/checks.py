"""The check before a run decides whether the model is asked: a command in the sandbox, or a look at an address."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b

import msgspec
from aiohttp.abc import AbstractResolver
from msgspec import Struct

from config import Settings
from config.files import make_private_directory
from gateway.agent.toolbox.shell import run_in_sandbox, sandbox_command
from gateway.documents.conversion import DocumentConverter
from gateway.files.workspaces import workspace_of
from gateway.safe_http.addresses import IpAddress, is_allowed
from gateway.safe_http.client import FetchFailed, Page, fetch
from gateway.safe_http.page_text import page_text
from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.processes import RunLimits
from gateway.spool import ScheduleCheck, ScheduleRow
from gateway.text import clean
from gateway.text.json_pointer import Json, Missing, find

MAX_BYTES = 2_000_000
MAX_OUTPUT = 8_000
"""Bytes of the output that the model reads, or the chat gets."""
HTTP_TIMEOUT = 30.0
FOUND_NOTHING = 1
"""The exit code of a command that has found nothing to do. A higher one is a failure, as of `grep`."""
_SEPARATOR = "\n"


class CheckResult(Struct, frozen=True, kw_only=True):
    """`seen` is what the next check compares with. With a `failure`, nothing else counts."""

    has_work: bool = False
    output: str = ""
    seen: str = ""
    failure: str = ""


class Checks:
    def __init__(
        self,
        settings: Callable[[], Settings],
        documents: DocumentConverter,
        *,
        is_allowed: Callable[[IpAddress], bool] = is_allowed,
        resolver: AbstractResolver | None = None,
    ) -> None:
        """`is_allowed` says which addresses of the network may be looked at."""
        self._settings = settings
        self._documents = documents
        self._is_allowed = is_allowed
        self._resolver = resolver

    async def look(self, row: ScheduleRow, agent: str) -> CheckResult:
        """Run the check of a schedule. `agent` is the one whose workspace a command works in."""
        check = row.about.check
        if check is None:
            return CheckResult(has_work=True)
        if check.command:
            return await self._run(check, row, agent)
        try:
            async with asyncio.timeout(HTTP_TIMEOUT):
                return await self._fetch(check, row.seen)
        except FetchFailed as failure:
            return CheckResult(failure=f"The check could not look: {failure}")
        except TimeoutError:
            return CheckResult(failure=f"The check got no answer within {HTTP_TIMEOUT:g} seconds.")

    async def _run(self, check: ScheduleCheck, row: ScheduleRow, agent: str) -> CheckResult:
        settings = self._settings()
        shell, found = settings.tools.shell, settings.agents.get(agent)
        if not shell.enabled or found is None:
            return CheckResult(failure="The check needs the sandbox, and tools.shell.enabled is false.")
        workspace = workspace_of(settings.gateway.workspace_root, agent, found.workspace, row.scope).path
        command = sandbox_command(check.command, workspace, shell)
        command = replace(command, bounds=RunLimits(seconds=shell.timeout, shown=MAX_OUTPUT))
        try:
            await asyncio.to_thread(make_private_directory, workspace)
            result = await run_in_sandbox(command, shell)
        except SandboxUnavailable as missing:
            return CheckResult(failure=f"The check could not run: {missing}")
        except OSError as error:
            return CheckResult(failure=f"The check could not run: {error.strerror or 'the disk refused'}.")
        if result.stopped_for:
            return CheckResult(failure=f"The check was stopped: {result.stopped_for}.")
        if result.exit_code not in {0, FOUND_NOTHING}:
            return CheckResult(failure=f"The check ended with exit code {result.exit_code}. Only 0 and 1 are expected.")
        output = clean(result.output).strip()
        seen = _digest(output.encode()) if check.on_change else ""
        is_new = not check.on_change or seen != row.seen
        return CheckResult(has_work=result.exit_code == 0 and is_new, output=output, seen=seen)

    async def _fetch(self, check: ScheduleCheck, before: str) -> CheckResult:
        """Compare the content with that of the last look. The first look has nothing to compare with."""
        digest, _, etag = before.partition(_SEPARATOR)
        page = await fetch(
            check.url, max_bytes=MAX_BYTES, etag=etag, is_allowed=self._is_allowed, resolver=self._resolver
        )
        if page.is_unchanged and before:
            return CheckResult(seen=before)
        content = page.body if not check.pointer else _part_of(page, check.pointer)
        new = _digest(content)
        seen = f"{new}{_SEPARATOR}{page.etag[:200]}"
        if not before or new == digest:
            return CheckResult(seen=seen)
        if check.pointer:
            return CheckResult(has_work=True, output=content[:MAX_OUTPUT].decode(errors="replace"), seen=seen)
        try:
            output = (await page_text(page, self._documents, room=MAX_OUTPUT)).text
        except FetchFailed:  # The change of a picture can be noticed, and not be read.
            output = ""
        return CheckResult(has_work=True, output=clean(output).strip(), seen=seen)


def _part_of(page: Page, pointer: str) -> bytes:
    try:
        document: Json = msgspec.json.decode(page.body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FetchFailed("the address has something else than JSON.") from error
    part = find(document, pointer)
    if isinstance(part, Missing):
        raise FetchFailed(f"the JSON has nothing at {pointer}.")
    return msgspec.json.encode(part)


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
