"""All operations of the API, in the order in which the documentation shows them."""

from http import HTTPStatus

from gateway.api import types as t
from gateway.api.operation import ApiOperation, Link
from gateway.api.overview import Overview
from gateway.api.schedules import ScheduleApi
from gateway.api.sessions import EXPORT_TYPES, SessionApi
from gateway.contract import TokenScope

NOT_FOUND = HTTPStatus.NOT_FOUND
CONFLICT = HTTPStatus.CONFLICT
INVALID = HTTPStatus.UNPROCESSABLE_ENTITY
TOO_MANY = HTTPStatus.TOO_MANY_REQUESTS

SESSION = "/api/sessions/{id}"
LONG_READ = 600.0
"""Seconds that a response with all messages of a session may take. Its client may have a slow line."""


_READING = ("getSession", "listMessages", "followSession", "exportSession")
_CHANGING = ("sendPrompt", "completeSession", "cancelSession", "renameSession", "resumeSession", "archiveSession")


def _links(session_id: str, *operations: str) -> tuple[Link, ...]:
    """Return links to operations on the session whose id is at `session_id` in the response."""
    return tuple(Link(operation=name, parameters={"id": f"$response.body#/{session_id}"}) for name in operations)


def api_operations(sessions: SessionApi, schedules: ScheduleApi, overview: Overview) -> list[ApiOperation]:
    return [
        *_session_operations(sessions),
        *_management_operations(sessions),
        *_schedule_operations(schedules),
        *_overview_operations(overview),
    ]


def _session_operations(sessions: SessionApi) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="createSession",
            method="POST",
            path="/api/sessions",
            tag="Sessions",
            summary="Start a session",
            description="At most `api.max_active_sessions` sessions may be active at once.",
            handle=sessions.create,
            scope=TokenScope.PROMPT,
            body=t.NewSessionBody,
            response=t.SessionSummary,
            status=HTTPStatus.CREATED,
            errors=(INVALID, TOO_MANY),
            links=_links("id", *_READING, *_CHANGING),
        ),
        ApiOperation(
            name="listSessions",
            method="GET",
            path="/api/sessions",
            tag="Sessions",
            summary="List sessions, the newest first",
            description="Lists the sessions that the token may see, without their messages.",
            handle=sessions.list,
            query=t.ListQuery,
            response=t.SessionList,
            errors=(INVALID,),
            links=_links("sessions/0/id", "getSession"),
        ),
        ApiOperation(
            name="getSession",
            method="GET",
            path=SESSION,
            tag="Sessions",
            summary="Read a session with all its messages",
            handle=sessions.get,
            deadline=LONG_READ,
            response=t.SessionDetail,
            errors=(NOT_FOUND,),
        ),
        ApiOperation(
            name="sendPrompt",
            method="POST",
            path=f"{SESSION}/prompt",
            tag="Sessions",
            summary="Send a prompt",
            description="Responds as soon as the prompt cannot be lost any more. The turn runs in the background, also "
            "if the program goes away. Only an active session takes prompts.",
            handle=sessions.prompt,
            scope=TokenScope.PROMPT,
            body=t.PromptBody,
            response=t.ApiMessage,
            status=HTTPStatus.ACCEPTED,
            headers={
                "Idempotency-Key": "With the same key, a prompt is accepted once in 48 hours. A repetition gets the "
                "same response; another prompt with the key is refused."
            },
            errors=(NOT_FOUND, CONFLICT, INVALID, TOO_MANY),
            links=_links("sessionId", *_READING, "completeSession", "cancelSession"),
        ),
        ApiOperation(
            name="listMessages",
            method="GET",
            path=f"{SESSION}/messages",
            tag="Sessions",
            summary="Read the messages after a time or a position",
            description="A message that has changed since, such as a tool call that now has a result, is included.",
            handle=sessions.messages,
            deadline=LONG_READ,
            query=t.MessagesQuery,
            response=t.MessageList,
            errors=(NOT_FOUND, INVALID),
        ),
        ApiOperation(
            name="followSession",
            method="GET",
            path=f"{SESSION}/events",
            tag="Sessions",
            summary="Follow a session live",
            description="Server-sent events: `message` (a message, new or changed), `delta` (the next piece of text), "
            "`text` (the whole text of the step that is being written), `turn` (a turn has ended), `status`, `title`, "
            "and `gone` (the session was deleted or archived).",
            handle=sessions.events,
            query=t.EventsQuery,
            response=t.StreamEvent,
            media_types=("text/event-stream",),
            headers={"Last-Event-ID": "The last event that was received. The stream goes on after it."},
            errors=(NOT_FOUND, INVALID),
            is_stream=True,
        ),
        ApiOperation(
            name="completeSession",
            method="POST",
            path=f"{SESSION}/complete",
            tag="Sessions",
            summary="Complete a session",
            description="The session takes no more prompts. Those that were accepted before are still answered.",
            handle=sessions.complete,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT),
            links=_links("id", *_READING, *_CHANGING),
        ),
        ApiOperation(
            name="stopRun",
            method="POST",
            path=f"{SESSION}/stop",
            tag="Sessions",
            summary="Stop the run of a session",
            description="Stops the answer that is being written, and drops the prompts that wait. The session stays "
            "open. Does nothing if nothing runs.",
            handle=sessions.stop,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT),
            links=_links("id", *_READING, *_CHANGING),
        ),
        ApiOperation(
            name="cancelSession",
            method="DELETE",
            path=SESSION,
            tag="Sessions",
            summary="Cancel or delete a session",
            description="Stops the run, drops the prompts that wait, and sets the status to `cancelled`. With "
            "`permanent=true`, which needs `manage`, deletes the session and all its text.",
            handle=sessions.delete,
            query=t.DeleteQuery,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT, INVALID),
            links=_links("id", *_READING, *_CHANGING),
        ),
        ApiOperation(
            name="decideApproval",
            method="POST",
            path=f"{SESSION}/approvals/{{approvalId}}",
            tag="Sessions",
            summary="Answer a question of the agent",
            handle=sessions.approve,
            body=t.DecisionBody,
            response=t.ApprovalDecision,
            errors=(NOT_FOUND, CONFLICT, INVALID),
        ),
    ]


def _management_operations(sessions: SessionApi) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="renameSession",
            method="PATCH",
            path=SESSION,
            tag="Management",
            summary="Rename a session",
            handle=sessions.rename,
            body=t.SessionChanges,
            response=t.SessionSummary,
            errors=(NOT_FOUND, INVALID),
            links=_links("id", "getSession"),
        ),
        ApiOperation(
            name="undoTurns",
            method="POST",
            path=f"{SESSION}/undo",
            tag="Management",
            summary="Undo a message and everything after it",
            description="The agent does not see undone turns any more. The transcript keeps them. Refused while an "
            "answer is being written.",
            handle=sessions.undo,
            scope=TokenScope.MANAGE,
            body=t.UndoBody,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT, INVALID),
            links=_links("id", *_READING, "sendPrompt"),
        ),
        ApiOperation(
            name="resumeSession",
            method="POST",
            path=f"{SESSION}/resume",
            tag="Management",
            summary="Open a session again",
            description="Opens a completed or cancelled session, and makes it the active one of its chat.",
            handle=sessions.resume,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT, TOO_MANY),
            links=_links("id", "sendPrompt", "cancelSession"),
        ),
        ApiOperation(
            name="archiveSession",
            method="POST",
            path=f"{SESSION}/archive",
            tag="Management",
            summary="Move a session to the archive",
            handle=sessions.archive,
            scope=TokenScope.MANAGE,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT),
            links=_links("id", "restoreSession"),
        ),
        ApiOperation(
            name="restoreSession",
            method="POST",
            path=f"{SESSION}/restore",
            tag="Management",
            summary="Bring a session back from the archive",
            handle=sessions.restore,
            scope=TokenScope.MANAGE,
            response=t.SessionSummary,
            errors=(NOT_FOUND, CONFLICT, TOO_MANY),
            links=_links("id", *_READING, "sendPrompt"),
        ),
        ApiOperation(
            name="exportSession",
            method="GET",
            path=f"{SESSION}/export",
            tag="Management",
            summary="Export a session",
            description="`jsonl` is the transcript itself, without loss.",
            handle=sessions.export,
            deadline=LONG_READ,
            query=t.ExportQuery,
            media_types=tuple(EXPORT_TYPES.values()),
            errors=(NOT_FOUND, INVALID),
        ),
        ApiOperation(
            name="searchMessages",
            method="GET",
            path="/api/search",
            tag="Management",
            summary="Search the messages of sessions",
            handle=sessions.search,
            query=t.SearchQuery,
            response=t.SearchHits,
            errors=(INVALID,),
        ),
        ApiOperation(
            name="uploadFile",
            method="POST",
            path="/api/files",
            tag="Files",
            summary="Upload a file for a prompt",
            handle=sessions.upload,
            scope=TokenScope.PROMPT,
            query=t.FileQuery,
            response=t.StoredUpload,
            errors=(INVALID, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
            takes_file=True,
        ),
        ApiOperation(
            name="downloadFile",
            method="GET",
            path=f"{SESSION}/files/{{name}}",
            tag="Files",
            summary="Download a file of a session",
            handle=sessions.download,
            query=t.FileQuery,
            media_types=("application/octet-stream",),
            errors=(NOT_FOUND, INVALID),
        ),
    ]


_OF_SCHEDULE = ("getSchedule", "changeSchedule", "runSchedule", "listScheduleRuns", "deleteSchedule")


def _schedule_operations(schedules: ScheduleApi) -> list[ApiOperation]:
    path = "/api/schedules/{id}"
    return [
        ApiOperation(
            name="createSchedule",
            method="POST",
            path="/api/schedules",
            tag="Schedules",
            summary="Make a schedule for a chat",
            description="Its runs have the rights of the token. If the token is revoked, the schedule is paused.",
            handle=schedules.create,
            scope=TokenScope.ADMIN,
            body=t.NewScheduleBody,
            response=t.ScheduleInfo,
            status=HTTPStatus.CREATED,
            errors=(INVALID,),
            links=_links("id", *_OF_SCHEDULE),
        ),
        ApiOperation(
            name="listSchedules",
            method="GET",
            path="/api/schedules",
            tag="Schedules",
            summary="List the schedules of all chats, by id",
            handle=schedules.list,
            scope=TokenScope.ADMIN,
            query=t.SchedulesQuery,
            response=t.ScheduleList,
            errors=(INVALID,),
            links=_links("schedules/0/id", "getSchedule"),
        ),
        ApiOperation(
            name="getSchedule",
            method="GET",
            path=path,
            tag="Schedules",
            summary="Read a schedule",
            handle=schedules.get,
            scope=TokenScope.ADMIN,
            response=t.ScheduleInfo,
            errors=(NOT_FOUND,),
        ),
        ApiOperation(
            name="changeSchedule",
            method="PATCH",
            path=path,
            tag="Schedules",
            summary="Change, pause or resume a schedule",
            description="A schedule of the configuration can only be paused and resumed.",
            handle=schedules.change,
            scope=TokenScope.ADMIN,
            body=t.ScheduleChanges,
            response=t.ScheduleInfo,
            errors=(NOT_FOUND, CONFLICT, INVALID),
            links=_links("id", *_OF_SCHEDULE),
        ),
        ApiOperation(
            name="runSchedule",
            method="POST",
            path=f"{path}/run",
            tag="Schedules",
            summary="Run a schedule now, besides its regular times",
            handle=schedules.run,
            scope=TokenScope.ADMIN,
            response=t.ScheduleInfo,
            errors=(NOT_FOUND, CONFLICT),
        ),
        ApiOperation(
            name="listScheduleRuns",
            method="GET",
            path=f"{path}/runs",
            tag="Schedules",
            summary="List the newest runs of a schedule",
            handle=schedules.runs,
            scope=TokenScope.ADMIN,
            response=t.ScheduleRuns,
            errors=(NOT_FOUND,),
        ),
        ApiOperation(
            name="deleteSchedule",
            method="DELETE",
            path=path,
            tag="Schedules",
            summary="Delete a schedule",
            description="A schedule of the configuration has to be removed there.",
            handle=schedules.delete,
            scope=TokenScope.ADMIN,
            response=t.ScheduleInfo,
            errors=(NOT_FOUND, CONFLICT),
        ),
    ]


def _overview_operations(overview: Overview) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="listRepos",
            method="GET",
            path="/api/repos",
            tag="Gateway",
            summary="List the configured repositories",
            handle=overview.repos,
            response=t.RepoList,
        ),
        ApiOperation(
            name="listAgents",
            method="GET",
            path="/api/agents",
            tag="Gateway",
            summary="List the configured agents",
            handle=overview.agents,
            response=t.AgentList,
        ),
        ApiOperation(
            name="listRoles",
            method="GET",
            path="/api/roles",
            tag="Gateway",
            summary="List the roles, what they allow, and who has them",
            scope=TokenScope.ADMIN,
            handle=overview.roles,
            response=t.RoleList,
        ),
        ApiOperation(
            name="getUsage",
            method="GET",
            path="/api/usage",
            tag="Gateway",
            summary="Show the tokens and the cost of a day",
            description="A token with `admin` sees the usage of everyone, other tokens see their own.",
            handle=overview.usage,
            query=t.UsageQuery,
            response=t.UsageReport,
            errors=(INVALID,),
        ),
        ApiOperation(
            name="getUsageHistory",
            method="GET",
            path="/api/usage/history",
            tag="Gateway",
            summary="Show the tokens and the cost of several days",
            description="By day, person, model and agent, for the last 35 days. A token with `admin` sees the usage of "
            "everyone, other tokens see their own.",
            handle=overview.usage_history,
            query=t.UsageHistoryQuery,
            response=t.UsageHistory,
            errors=(INVALID,),
        ),
        ApiOperation(
            name="getStatus",
            method="GET",
            path="/api/status",
            tag="Gateway",
            summary="Show whether the gateway is ready",
            handle=overview.status,
            response=t.HealthReport,
        ),
    ]
