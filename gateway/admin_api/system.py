"""The gateway as an installation: the doctor with its repairs, backups, and a restart."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from config import ConfigError
from gateway.access.rules import Live
from gateway.admin.routes import describe_spool
from gateway.admin.session_routes import LocalArchive
from gateway.admin_api import types as t
from gateway.api.operation import ApiCall
from gateway.contract import Channel
from gateway.conversation import Json
from gateway.errors import Refused
from gateway.http.responses import HttpError
from gateway.mcp.server import McpServers
from gateway.sessions.transfer import join_into_blocks
from gateway.spool import Spool

if TYPE_CHECKING:
    from gateway.backup.create import Backup
    from gateway.doctor.finding import Finding

log = structlog.get_logger()

IN_CHAT = "This gateway belongs to `gatehouse chat`. Use `gatehouse run` for this."


class GatewayControl:
    """Handles the routes of the doctor, of backups and of the restart. `gatehouse chat` has no file and no restart."""

    def __init__(
        self,
        *,
        live: Live,
        channels: Mapping[tuple[str, str], Channel],
        mcp: McpServers,
        archive: LocalArchive,
        spool: Spool,
        backup: Callable[[], "Backup"],
        check_config: Callable[[], dict[str, Json]] | None,
        restart: Callable[[], None] | None,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._channels = channels
        self._mcp = mcp
        self._archive = archive
        self._spool = spool
        self._backup = backup
        self._check_config = check_config
        self._restart = restart
        self._now = now

    async def doctor(self, call: ApiCall) -> t.DoctorReport:
        findings = await self._examine(has_peers=call.body_as(t.DoctorBody).peers)
        return t.DoctorReport(findings=_infos(findings), repaired=[])

    async def repair(self, call: ApiCall) -> t.DoctorReport:
        """Repair what can be repaired while the gateway runs, and check again."""
        from gateway.doctor.finding import Finding, error  # noqa: PLC0415 - as in `_examine`.

        repaired: list[Finding] = []
        failures: list[Finding] = []
        for finding in await self._examine(has_peers=False):
            if finding.repair is None:
                continue
            try:
                await asyncio.to_thread(finding.repair)
                repaired.append(finding)
            except (OSError, ConfigError, Refused) as failure:
                failures.append(error(finding.about, f"The repair failed: {failure}.", finding.fix))
        log.info("doctor_repaired", by=call.caller.name, about=[each.about for each in repaired])
        findings = [*await self._examine(has_peers=False), *failures]
        return t.DoctorReport(findings=_infos(findings), repaired=_infos(repaired))

    async def _examine(self, *, has_peers: bool) -> "list[Finding]":
        # Rarely used, so the daemon's start does not wait for it.
        from gateway.doctor.cluster import check_cluster  # noqa: PLC0415
        from gateway.doctor.configuration import ConfigReport, report_from_json  # noqa: PLC0415
        from gateway.doctor.database import check_database  # noqa: PLC0415
        from gateway.doctor.examination import check_directory, config_findings  # noqa: PLC0415
        from gateway.doctor.installation import check_units  # noqa: PLC0415
        from gateway.doctor.peers import DEADLINE, check_mcp, check_peers  # noqa: PLC0415
        from gateway.doctor.stores import check_sessions, check_spool  # noqa: PLC0415

        settings = self._live.settings
        report = ConfigReport(source="the settings of `gatehouse chat`")
        if self._check_config is not None:
            report = report_from_json(await asyncio.to_thread(self._check_config))
        findings = [*config_findings(report)]
        findings += await asyncio.to_thread(check_directory, settings, report)
        findings += await asyncio.to_thread(check_units, Path.home())
        findings += check_sessions(await self._archive.verify(), None)
        findings += check_spool(await describe_spool(self._spool))
        findings += await asyncio.to_thread(check_database, settings.storage)
        findings += await check_cluster(settings)
        if has_peers:
            findings += [*await check_peers(settings, self._channels, DEADLINE), *check_mcp(self._mcp)]
        return findings

    async def download_backup(self, call: ApiCall) -> web.StreamResponse:
        """Send a backup without secrets: only the machine gives those away."""
        name = f"gatehouse-{self._now().astimezone(UTC):%Y-%m-%d-%H%M}.tar"
        response = web.StreamResponse(
            headers={"Content-Type": "application/x-tar", "Content-Disposition": f'attachment; filename="{name}"'}
        )
        async with aclosing(self._backup().blocks()) as pieces:
            async for block in join_into_blocks(pieces):
                # Only now: an error before the first block gets a response of its own.
                if not response.prepared:
                    await response.prepare(call.request)
                await response.write(block)
        log.info("backup_downloaded", by=call.caller.name)
        return response

    async def restart(self, call: ApiCall) -> t.RestartReport:
        if self._restart is None:
            raise HttpError(HTTPStatus.CONFLICT, IN_CHAT)
        log.info("restart_requested", by=call.caller.name)
        # The response is sent first: the server closes only after the running turns have ended.
        self._restart()
        return t.RestartReport(detail="The gateway restarts as soon as the running turns have ended.")


def _infos(findings: "list[Finding]") -> list[t.FindingInfo]:
    from gateway.doctor.finding import Level  # noqa: PLC0415 - as above.

    words: dict[Level, t.FindingLevel] = {Level.OK: "ok", Level.WARNING: "warning", Level.ERROR: "error"}
    return [
        t.FindingInfo(
            about=each.about,
            level=words[each.level],
            message=each.message,
            fix=each.fix,
            can_be_repaired=each.repair is not None,
        )
        for each in findings
    ]
