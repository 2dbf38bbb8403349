"""The OpenAPI 3.1 document, generated from the operations and from the types that validate their requests."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from gateway import __version__
from gateway.api.operation import ApiOperation
from gateway.api.types import ProblemDocument
from gateway.contract import Access
from gateway.http.responses import PROBLEM

Schema = dict[str, Any]  # JSON of the shape that OpenAPI prescribes.

_PARAMETER = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"
_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
"""Errors that every operation may have."""
_WITH_BODY = (HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)

_DESCRIPTION = """\
Programs start sessions, send prompts to an agent, and follow its work.

Authenticate with `Authorization: Bearer <token>`. `gatehouse token create` makes a token. Errors are problem documents
(RFC 9457). Every response says how many requests the token has left, in the headers `RateLimit-Limit`,
`RateLimit-Remaining` and `RateLimit-Reset`."""

_ERRORS = {
    HTTPStatus.BAD_REQUEST: "The request is malformed.",
    HTTPStatus.UNAUTHORIZED: "The token is missing or wrong, has expired, or was revoked.",
    HTTPStatus.FORBIDDEN: "The token lacks the scope for this.",
    HTTPStatus.NOT_FOUND: "There is no such thing, or the token may not see it.",
    HTTPStatus.CONFLICT: "The session does not allow this in its present state.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body has another content type than expected.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "A value is not valid.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests, sessions or waiting prompts. `Retry-After` says when to retry.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The gateway failed. Its log has the details.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The gateway cannot take this now. `Retry-After` says when to retry.",
}


def openapi_document(operations: Sequence[ApiOperation]) -> Schema:
    types = {kind for each in operations for kind in (each.body, each.response) if kind is not None}
    queries = [each.query for each in operations if each.query is not None]
    ordered = [*sorted(types, key=lambda kind: kind.__name__), ProblemDocument]
    refs, components = msgspec.json.schema_components(ordered, ref_template=_REF)
    schemas = dict(zip(ordered, refs, strict=True))
    # Parameters are described in place. A schema that only a query refers to would be unused.
    _, query_components = msgspec.json.schema_components(queries, ref_template=_REF)
    paths: dict[str, Schema] = {}
    for operation in operations:
        query = query_components[operation.query.__name__] if operation.query is not None else {}
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas, query)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gatehouse", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(operation.tag for operation in operations)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `gatehouse token create`."}
            },
        },
        "security": [{"token": []}],
    }


def _operation(operation: ApiOperation, schemas: dict[object, Schema], query: Schema) -> Schema:
    described: Schema = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [*_path_parameters(operation), *_query_parameters(query), *_header_parameters(operation)],
        "responses": _responses(operation, schemas),
    }
    if description := _description(operation):
        described["description"] = description
    if operation.access is Access.PUBLIC:
        described["security"] = []
    if operation.body is not None:
        content = {"application/json": {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    elif operation.takes_file:
        binary = {"type": "string", "format": "binary"}
        described["requestBody"] = {"required": True, "content": {"application/octet-stream": {"schema": binary}}}
    return described


def _description(operation: ApiOperation) -> str:
    scope = f"Needs the scope `{operation.scope}`." if operation.scope is not None else ""
    return " ".join(filter(None, (operation.description, scope)))


def _path_parameters(operation: ApiOperation) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(operation.path)
    ]


def _query_parameters(query: Schema) -> list[Schema]:
    required = query.get("required", [])
    parameters = []
    for name, schema in query.get("properties", {}).items():
        own = dict(schema)
        parameter = {"name": name, "in": "query", "required": name in required, "schema": own}
        if description := own.pop("description", None):
            parameter["description"] = description
        parameters.append(parameter)
    return parameters


def _header_parameters(operation: ApiOperation) -> list[Schema]:
    schema = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
    return [
        {"name": name, "in": "header", "required": False, "description": description, "schema": schema}
        for name, description in operation.headers.items()
    ]


def _responses(operation: ApiOperation, schemas: dict[object, Schema]) -> Schema:
    schema = {"type": "string"} if operation.response is None else schemas[operation.response]
    success: Schema = {
        "description": operation.summary,
        "content": {operation.media_type: {"schema": schema}},
    }
    if operation.links:
        success["links"] = {
            link.operation: {"operationId": link.operation, "parameters": dict(link.parameters)}
            for link in operation.links
        }
    errors = {*_ALWAYS, *operation.errors}
    if operation.access is Access.PUBLIC:
        errors -= {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    if operation.method not in {"GET", "HEAD"}:
        errors.update(_WITH_BODY)
    problem = {PROBLEM: {"schema": schemas[ProblemDocument]}}
    return {
        str(operation.status.value): success,
        **{str(status.value): {"description": _ERRORS[status], "content": problem} for status in sorted(errors)},
    }
