"""All operations of the API for administration. Each needs `admin`."""

from http import HTTPStatus

from gateway.admin.routes import DOCTOR_TIMEOUT
from gateway.admin_api import types as t
from gateway.admin_api.agents import AgentTools
from gateway.admin_api.approvals import Decisions
from gateway.admin_api.dead_letters import LetterRoom
from gateway.admin_api.events import GatewayEvents
from gateway.admin_api.overview import GatewayWatch
from gateway.admin_api.replies import OwnerReplies
from gateway.admin_api.settings import ConfigChanges
from gateway.admin_api.system import GatewayControl
from gateway.api.operation import ApiOperation
from gateway.contract import TokenScope

NOT_FOUND = HTTPStatus.NOT_FOUND
CONFLICT = HTTPStatus.CONFLICT
INVALID = HTTPStatus.UNPROCESSABLE_ENTITY

ADMIN = TokenScope.ADMIN
TRIAL_TIMEOUT = 600.0
"""Seconds that the trial of a tool may take. The tool has its own, shorter deadline."""


def watch_operations(watch: GatewayWatch, events: GatewayEvents) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="getOverview",
            method="GET",
            path="/api/overview",
            tag="Administration",
            summary="Show the state of the gateway",
            description="Channels, running turns, queues, errors of the last hour, and the cost of today.",
            handle=watch.overview,
            scope=ADMIN,
            query=t.LocalQuery,
            response=t.GatewayOverview,
            errors=(INVALID,),
        ),
        ApiOperation(
            name="followGateway",
            method="GET",
            path="/api/events",
            tag="Administration",
            summary="Follow the gateway live",
            description="Server-sent events: `overview` (the state, every two seconds), `sessions` (these have "
            "changed), `approvals`, `people` (who waits for access, or has it), `log` (a new line), and `reset` "
            "(events were missed, so everything has to be read again).",
            handle=events.serve,
            scope=ADMIN,
            query=t.GatewayEventsQuery,
            response=t.GatewayEvent,
            media_types=("text/event-stream",),
            headers={"Last-Event-ID": "The last event that was received. The stream goes on after it."},
            errors=(INVALID,),
            is_stream=True,
        ),
        ApiOperation(
            name="listLogLines",
            method="GET",
            path="/api/logs",
            tag="Administration",
            summary="Read the last lines of the log",
            handle=watch.lines,
            scope=ADMIN,
            query=t.LogQuery,
            response=t.LogLines,
            errors=(NOT_FOUND, INVALID),
        ),
    ]


def decision_operations(decisions: Decisions) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="listApprovals",
            method="GET",
            path="/api/approvals",
            tag="Administration",
            summary="List the open questions of all sessions",
            description="`POST /api/sessions/{id}/approvals/{approvalId}` answers one.",
            handle=decisions.approvals,
            scope=ADMIN,
            query=t.LocalQuery,
            response=t.OpenApprovals,
            errors=(INVALID,),
        ),
        ApiOperation(
            name="listGrants",
            method="GET",
            path="/api/grants",
            tag="Administration",
            summary="List the tool calls that people have allowed for good",
            handle=decisions.grants,
            scope=ADMIN,
            response=t.GrantList,
        ),
        ApiOperation(
            name="revokeGrant",
            method="DELETE",
            path="/api/grants/{id}",
            tag="Administration",
            summary="Ask again before a tool call that was allowed for good",
            handle=decisions.revoke_grant,
            scope=ADMIN,
            response=t.GrantInfo,
            errors=(NOT_FOUND,),
        ),
        ApiOperation(
            name="listPeople",
            method="GET",
            path="/api/people",
            tag="Administration",
            summary="List the people who wait for access, have it, or had it",
            handle=decisions.people,
            scope=ADMIN,
            response=t.PeopleList,
        ),
        ApiOperation(
            name="approvePerson",
            method="POST",
            path="/api/people/approve",
            tag="Administration",
            summary="Give a person access",
            description="Only an owner can give the role `owner`.",
            handle=decisions.approve_person,
            scope=ADMIN,
            body=t.ApprovePersonBody,
            response=t.GuestInfo,
            errors=(CONFLICT, INVALID),
        ),
        ApiOperation(
            name="denyPerson",
            method="POST",
            path="/api/people/deny",
            tag="Administration",
            summary="Deny a person access",
            handle=decisions.deny_person,
            scope=ADMIN,
            body=t.DenyPersonBody,
            response=t.ApplicantInfo,
            errors=(CONFLICT, INVALID),
        ),
        ApiOperation(
            name="revokePerson",
            method="POST",
            path="/api/people/revoke",
            tag="Administration",
            summary="Take the access of a person away",
            description="Their running work stops.",
            handle=decisions.revoke_person,
            scope=ADMIN,
            body=t.RevokePersonBody,
            response=t.GuestInfo,
            errors=(CONFLICT, INVALID),
        ),
        ApiOperation(
            name="changeRole",
            method="POST",
            path="/api/people/role",
            tag="Administration",
            summary="Give a person another role",
            handle=decisions.change_role,
            scope=ADMIN,
            body=t.ChangeRoleBody,
            response=t.GuestInfo,
            errors=(CONFLICT, INVALID),
        ),
    ]


def letter_operations(letters: LetterRoom) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="listDeadLetters",
            method="GET",
            path="/api/dead-letters",
            tag="Administration",
            summary="List messages that were set aside and replies that were not delivered",
            handle=letters.list,
            scope=ADMIN,
            response=t.DeadLetters,
        ),
        ApiOperation(
            name="retryDeadLetters",
            method="POST",
            path="/api/dead-letters/retry",
            tag="Administration",
            summary="Accept messages again, or send replies again",
            handle=letters.retry,
            scope=ADMIN,
            body=t.DeadLettersBody,
            response=t.HandledLetters,
            errors=(CONFLICT, INVALID),
        ),
        ApiOperation(
            name="dropDeadLetters",
            method="POST",
            path="/api/dead-letters/drop",
            tag="Administration",
            summary="Drop messages or replies for good",
            handle=letters.drop,
            scope=ADMIN,
            body=t.DeadLettersBody,
            response=t.HandledLetters,
            errors=(INVALID,),
        ),
    ]


def settings_operations(changes: ConfigChanges) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="listSettings",
            method="GET",
            path="/api/settings",
            tag="Administration",
            summary="List all settings in effect, and where they come from",
            description="Secrets are `***`.",
            handle=changes.list,
            scope=ADMIN,
            response=t.SettingList,
        ),
        ApiOperation(
            name="previewSettings",
            method="POST",
            path="/api/settings/preview",
            tag="Administration",
            summary="Show what a change of the settings would do",
            description="Checks the change as `gatehouse config set` does, and changes nothing.",
            handle=changes.preview,
            scope=ADMIN,
            body=t.SettingsBody,
            response=t.SettingsPreview,
            errors=(CONFLICT, INVALID),
        ),
        ApiOperation(
            name="changeSettings",
            method="PATCH",
            path="/api/settings",
            tag="Administration",
            summary="Change settings, and apply them",
            description="Only keys that are marked as changeable. Comments and the order of the file stay. In a "
            "cluster, this changes the file of one node.",
            handle=changes.apply,
            scope=ADMIN,
            body=t.SettingsBody,
            response=t.AppliedSettings,
            errors=(CONFLICT, INVALID),
        ),
        ApiOperation(
            name="reloadSettings",
            method="POST",
            path="/api/reload",
            tag="Administration",
            summary="Read the configuration again, and apply it",
            handle=changes.reload,
            scope=ADMIN,
            response=t.ReloadReport,
            errors=(CONFLICT,),
        ),
    ]


def system_operations(control: GatewayControl) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="runDoctor",
            method="POST",
            path="/api/doctor",
            tag="Administration",
            summary="Check the installation",
            description="The same checks as `gatehouse doctor`, as far as the running gateway can make them.",
            handle=control.doctor,
            scope=ADMIN,
            body=t.DoctorBody,
            response=t.DoctorReport,
            deadline=DOCTOR_TIMEOUT,
            errors=(INVALID,),
        ),
        ApiOperation(
            name="repairInstallation",
            method="POST",
            path="/api/doctor/repair",
            tag="Administration",
            summary="Repair what can be repaired without losing data",
            handle=control.repair,
            scope=ADMIN,
            response=t.DoctorReport,
            deadline=DOCTOR_TIMEOUT,
            errors=(CONFLICT,),
        ),
        ApiOperation(
            name="downloadBackup",
            method="GET",
            path="/api/backup",
            tag="Administration",
            summary="Download a backup",
            description="A tar archive for `gatehouse restore`, without secrets. One at a time.",
            handle=control.download_backup,
            scope=ADMIN,
            media_types=("application/x-tar",),
            is_stream=True,
            errors=(CONFLICT,),
        ),
        ApiOperation(
            name="restartGateway",
            method="POST",
            path="/api/restart",
            tag="Administration",
            summary="Restart the gateway",
            description="Running turns get the time to end, and no message is lost.",
            handle=control.restart,
            scope=ADMIN,
            response=t.RestartReport,
            status=HTTPStatus.ACCEPTED,
            errors=(CONFLICT,),
        ),
    ]


def agent_operations(tools: AgentTools) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="listAgentDetails",
            method="GET",
            path="/api/agents/details",
            tag="Administration",
            summary="List the agents with their tools",
            handle=tools.agents,
            scope=ADMIN,
            response=t.AgentDetails,
        ),
        ApiOperation(
            name="listMcpServers",
            method="GET",
            path="/api/mcp",
            tag="Administration",
            summary="List the MCP servers, and whether they work",
            handle=tools.mcp_servers,
            scope=ADMIN,
            response=t.McpServerList,
        ),
        ApiOperation(
            name="tryTool",
            method="POST",
            path="/api/agents/{id}/tools/{tool}/try",
            tag="Administration",
            summary="Try a tool of an agent",
            description="Runs the tool in a workspace of its own. No one is asked for approval.",
            handle=tools.try_tool,
            scope=ADMIN,
            body=t.TryToolBody,
            response=t.ToolTrial,
            deadline=TRIAL_TIMEOUT,
            errors=(NOT_FOUND, INVALID),
        ),
    ]


def reply_operations(replies: OwnerReplies) -> list[ApiOperation]:
    return [
        ApiOperation(
            name="replyInSession",
            method="POST",
            path="/api/sessions/{id}/reply",
            tag="Administration",
            summary="Answer in the place of the agent",
            description="The text goes to the chat of the session and into its transcript, marked as written by a "
            "person. Refused while the agent works on an answer.",
            handle=replies.reply,
            scope=ADMIN,
            body=t.ReplyBody,
            response=t.WrittenReply,
            errors=(NOT_FOUND, CONFLICT, INVALID),
        ),
    ]
