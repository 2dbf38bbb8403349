"""The state of the gateway at one moment: channels, running turns, queues, errors and cost. And the log."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from aiohttp import web

from gateway.access.pairing import Pairing
from gateway.admin_api import types as t
from gateway.admin_api.nodes import OtherNodes
from gateway.api.operation import ApiCall
from gateway.api.overview import token_count
from gateway.contract import Caller
from gateway.errors import Refused
from gateway.http.responses import HttpError
from gateway.metrics import Metrics
from gateway.observability.recent_log import LogLine, RecentLog
from gateway.observability.status import GatewayStatus, StatusReport
from gateway.sessions import SessionManager, entries
from gateway.spool import Spool, SpoolUnavailable, UsageTotal
from gateway.spool.rows import utc_day
from gateway.turns.approvals import Approvals

MAX_TURNS = 20
MAX_ERRORS = 5
ERROR_SPAN = timedelta(hours=1)
LOCAL = "/api/overview?local=true"


class GatewayWatch:
    """Handles the routes of the overview and of the log."""

    def __init__(
        self,
        *,
        status: GatewayStatus,
        sessions: SessionManager,
        approvals: Approvals,
        pairing: Pairing,
        spool: Spool,
        metrics: Metrics,
        recent_log: RecentLog,
        nodes: OtherNodes,
        unwritten_text: Callable[[str], tuple[str, str] | None],
        can_restart: bool,
        now: Callable[[], datetime],
    ) -> None:
        self._status = status
        self._sessions = sessions
        self._approvals = approvals
        self._pairing = pairing
        self._spool = spool
        self._metrics = metrics
        self.log = recent_log
        self._nodes = nodes
        self._unwritten_text = unwritten_text
        self._can_restart = can_restart
        self._now = now

    async def overview(self, call: ApiCall) -> t.GatewayOverview:
        return await self.take(call.caller, is_local=call.query_as(t.LocalQuery).local)

    async def take(self, caller: Caller, *, is_local: bool = False) -> t.GatewayOverview:
        """Return the state of now. In a cluster, with the turns and questions of all nodes, unless `is_local`."""
        report = await self._status.report()
        others = {} if is_local else await self._nodes.ask(caller, LOCAL, t.GatewayOverview)
        turns = [*await self._turns(report), *(turn for each in others.values() for turn in each.turns)]
        errors = self.log.errors(within=ERROR_SPAN)
        addresses = self._nodes.addresses()
        this_node = [t.NodeState(name=self._nodes.name, address="", is_this=True)] if self._nodes.name else []
        return t.GatewayOverview(
            version=report.version,
            python=sys.version.split()[0],
            state=report.state,
            ready=report.ready,
            troubles=list(report.troubles),
            warnings=list(report.warnings),
            notes=list(report.notes),
            taken_at=report.taken_at.astimezone(UTC),
            started_at=report.started_at.astimezone(UTC),
            uptime_seconds=report.uptime_seconds,
            channels=_channels(report),
            turns_running=report.turns_running,
            turns_awaiting_approval=report.turns_awaiting_approval,
            turns=sorted(turns, key=lambda turn: -turn.seconds)[:MAX_TURNS],
            messages_waiting=report.messages_waiting,
            queue_limit=report.queue_limit,
            replies_waiting=report.replies_waiting,
            sessions=report.sessions,
            storage=_storage(report),
            memory_bytes=report.memory_bytes,
            cpu_seconds=report.cpu_seconds,
            open_files=report.open_files,
            disk_free_bytes=report.disk_free_bytes,
            models=[
                t.ModelState(
                    name=model.name,
                    requests=model.requests,
                    failed=model.failed,
                    failures_in_a_row=self._metrics.failing[model.name],
                    mean_seconds=model.mean_seconds,
                    most_within_seconds=model.most_within_seconds,
                )
                for model in report.models
            ],
            coding_agents=report.coding_agents,
            usage_today=token_count(await self._usage_today()),
            errors_last_hour=len(errors),
            last_errors=[line_info(line) for line in errors[:MAX_ERRORS]],
            open_approvals=len(self._approvals.open_questions) + sum(each.open_approvals for each in others.values()),
            waiting_people=len(self._pairing.waiting()),
            nodes=[
                *this_node,
                *(t.NodeState(name=name, address=url, is_this=False) for name, url in addresses.items()),
            ],
            can_restart=self._can_restart,
        )

    async def _usage_today(self) -> UsageTotal:
        try:
            return await self._spool.usage(utc_day(self._now()))
        except SpoolUnavailable:  # The report names the trouble.
            return UsageTotal()

    async def _turns(self, report: StatusReport) -> list[t.RunningTurn]:
        turns: list[t.RunningTurn] = []
        for turn in report.turns[:MAX_TURNS]:
            session = self._sessions.find(turn.session)
            if session is None:  # It was deleted a moment ago.
                continue
            activity, detail = await self._activity(turn.session)
            turns.append(
                t.RunningTurn(
                    session_id=session.id,
                    title=session.title,
                    channel=turn.channel,
                    agent=turn.agent,
                    seconds=turn.seconds,
                    activity=activity,
                    detail=detail,
                    node=self._nodes.name,
                )
            )
        return turns

    async def _activity(self, key: str) -> tuple[t.Activity, str]:
        """Return what the turn in a session does now, and the name of the tool that this is about."""
        for question in self._approvals.open_questions.values():
            if question.session == key:
                return "approval", question.call.name
        if tool := await self._running_tool(key):
            return "tool", tool
        text = self._unwritten_text(key)
        return ("writing" if text is not None and text[1] else "thinking"), ""

    async def _running_tool(self, key: str) -> str:
        """Return the tool that was called last and has no result yet, or an empty string."""
        if not self._sessions.is_loaded(key):
            return ""
        try:
            session = await self._sessions.load(key)
        except Refused:
            return ""
        for entry in reversed(session.entries):
            match entry:
                case entries.ToolUse():
                    return entry.title or entry.name
                case entries.ToolResult() | entries.Assistant() | entries.User() | entries.TurnEnd():
                    return ""
        return ""

    async def lines(self, call: ApiCall) -> t.LogLines | web.Response:
        """Return lines of the log of this node, or of another one."""
        query = call.query_as(t.LogQuery)
        if query.node and query.node != self._nodes.name:
            answer = await self._nodes.ask_one(call.caller, query.node, call.request)
            if answer is None:
                raise HttpError(HTTPStatus.NOT_FOUND, f"There is no node {query.node}, or it can't be reached.")
            return web.Response(body=answer, content_type="application/json")
        found = self.log.lines(before=query.before, level=query.level, text=query.q)
        lines: list[t.LogLineInfo] = []
        has_older = False
        for line in found:
            if len(lines) == query.limit:
                has_older = True
                break
            lines.append(line_info(line))
        return t.LogLines(lines=lines[::-1], has_older=has_older)


def line_info(line: LogLine) -> t.LogLineInfo:
    return t.LogLineInfo(number=line.number, at=line.at, level=line.level, event=line.event, fields=line.fields)


def _channels(report: StatusReport) -> list[t.ChannelState]:
    return [
        t.ChannelState(
            name=channel.name,
            account=channel.account,
            state=channel.state,
            reason=channel.reason,
            since=channel.since.astimezone(UTC),
            last_event_at=channel.last_event_at,
            last_error=channel.last_error,
            last_error_at=channel.last_error_at,
        )
        for channel in report.channels
    ]


def _storage(report: StatusReport) -> t.StorageState:
    storage, spool = report.storage, report.spool
    return t.StorageState(
        engine=storage.engine if storage is not None else "",
        database=storage.database if storage is not None else "",
        schema=storage.schema if storage is not None else "",
        spool_bytes=None if spool is None else spool.bytes,
        messages={} if spool is None else spool.messages,
        replies={} if spool is None else spool.replies,
        slow_commits=storage.slow_commits if storage is not None else 0,
        flush_age_seconds=report.flush.age_seconds,
        flush_failures=report.flush.failures,
    )
