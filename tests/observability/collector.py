"""An OpenTelemetry collector on this machine: it takes OTLP over HTTP and decodes it with the official package."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

Values = dict[str, str | bool | int | float]


def values(attributes: Sequence[KeyValue]) -> Values:
    return {each.key: value_of(each.value) for each in attributes}


def value_of(value: AnyValue) -> str | bool | int | float:
    found: str | bool | int | float = getattr(value, value.WhichOneof("value") or "string_value")
    return found


@dataclass(slots=True)
class Collector:
    """`statuses` are the answers to the next requests. After them, every request is answered with 200."""

    statuses: list[int] = field(default_factory=list)
    rejects: int = 0
    """How many spans each answer says it has rejected."""
    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    """The bodies of all requests, also of those that were refused."""
    headers: list[dict[str, str]] = field(default_factory=list)
    resources: list[Values] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    has_request: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.has_request.set()
        status = self.statuses.pop(0) if self.statuses else 200
        if status != 200:
            return web.Response(status=status)
        export = ExportTraceServiceRequest.FromString(body)
        for of_resource in export.resource_spans:
            self.resources.append(values(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.spans.extend(of_scope.spans)
        partial = ExportTracePartialSuccess(rejected_spans=self.rejects, error_message="no") if self.rejects else None
        answer = ExportTraceServiceResponse(partial_success=partial)
        return web.Response(body=answer.SerializeToString(), content_type="application/x-protobuf")

    def table(self, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any key of the table.
        """Return the settings of a gateway that sends its traces here."""
        return {"endpoint": self.url, **more}

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Span:
        (span,) = self.named(name)
        return span


@asynccontextmanager
async def collecting(*statuses: int, rejects: int = 0) -> AsyncIterator[Collector]:
    collector = Collector(statuses=list(statuses), rejects=rejects)
    app = web.Application()
    app.router.add_post("/v1/traces", collector.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        collector.url = str(server.make_url("")).rstrip("/")
        yield collector
