"""All operations of the API for administration. Each needs `admin`."""

from http import HTTPStatus

from gateway.admin_api import types as t
from gateway.admin_api.events import GatewayEvents
from gateway.admin_api.overview import GatewayWatch
from gateway.api.operation import ApiOperation
from gateway.contract import TokenScope

NOT_FOUND = HTTPStatus.NOT_FOUND
CONFLICT = HTTPStatus.CONFLICT
INVALID = HTTPStatus.UNPROCESSABLE_ENTITY

ADMIN = TokenScope.ADMIN


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
