"""The OpenAPI 3.1 document, generated from the operations and from the types that validate their requests."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from gateway import __version__
from gateway.api.operation import HEADER_PATTERN, ApiOperation
from gateway.api.types import ProblemDocument
from gateway.contract import Access
from gateway.http.responses import PROBLEM

Schema = dict[str, Any]  # JSON of the shape that OpenAPI prescribes.

_PARAMETER = re.compile(r"\{(\w+)\}")
_REF = "#/components/schemas/{name}"
_NAMES = {
    "AgentInfo": "Agent",
    "ApiMessage": "Message",
    "ProblemDocument": "Problem",
    "RepoInfo": "Repo",
    "SessionSummary": "Session",
}
"""The names of types in the document, and so in generated clients. In the code, these words have other meanings."""
_ALWAYS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)
"""Errors that every operation may have."""
_WITH_BODY = (
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
_WITH_RETRY_AFTER = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

_RATE_HEADERS = {
    "RateLimit-Limit": "The requests that the token may send in a minute.",
    "RateLimit-Remaining": "The requests that are left.",
    "RateLimit-Reset": "The seconds until all of them are there again.",
}
_HEADERS = {**_RATE_HEADERS, "Retry-After": "The seconds after which to try again."}

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
    HTTPStatus.REQUEST_TIMEOUT: "The body took too long to arrive.",
    HTTPStatus.CONFLICT: "The session does not allow this in its present state.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The body is too large.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body has another content type than expected.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "A value is not valid.",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests, sessions or waiting prompts. `Retry-After` says when to retry.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "The gateway failed. Its log has the details.",
    HTTPStatus.BAD_GATEWAY: "The gateway was lost, or the node of a cluster. It may have carried out the request.",
    HTTPStatus.SERVICE_UNAVAILABLE: "The gateway cannot take this now. `Retry-After` says when to retry.",
    HTTPStatus.GATEWAY_TIMEOUT: "The gateway took too long.",
}


def openapi_document(operations: Sequence[ApiOperation]) -> Schema:
    types = {kind for each in operations for kind in (each.body, each.response) if kind is not None}
    queries = [each.query for each in operations if each.query is not None]
    ordered = [*sorted(types, key=lambda kind: kind.__name__), ProblemDocument]
    refs, components = _named(msgspec.json.schema_components(ordered, ref_template=_REF))
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
            "headers": {
                name: {"description": description, "schema": {"type": "integer", "minimum": 0}}
                for name, description in _HEADERS.items()
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of `gatehouse token create`."}
            },
        },
        "security": [{"token": []}],
    }


def _named(made: tuple[tuple[Schema, ...], Schema]) -> tuple[list[Schema], Schema]:
    """Give the schemas their names in the document."""
    refs, components = made

    def rename(value: Any) -> Any:  # noqa: ANN401 - JSON has any shape.
        match value:
            case {"$ref": str(ref)}:
                name = ref.rpartition("/")[2]
                return {**value, "$ref": _REF.format(name=_NAMES.get(name, name))}
            case dict():
                return {key: rename(each) for key, each in value.items()}
            case list():
                return [rename(each) for each in value]
            case _:
                return value

    found = {_NAMES.get(name, name): rename(schema) for name, schema in components.items()}
    for name, schema in found.items():
        schema["title"] = name
    return [rename(ref) for ref in refs], found


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
        # Without a body, all fields have their defaults.
        needs_body = any(field.required for field in msgspec.structs.fields(operation.body))
        described["requestBody"] = {"required": needs_body, "content": content}
    elif operation.takes_file:
        binary = {"type": "string", "format": "binary"}
        # A file may be empty.
        described["requestBody"] = {"required": False, "content": {"application/octet-stream": {"schema": binary}}}
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
    schema = {"type": "string", "pattern": HEADER_PATTERN}
    return [
        {"name": name, "in": "header", "required": False, "description": description, "schema": schema}
        for name, description in operation.headers.items()
    ]


def _responses(operation: ApiOperation, schemas: dict[object, Schema]) -> Schema:
    success: Schema = {
        "description": operation.summary,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in _RATE_HEADERS},
        "content": {
            kind.partition(";")[0]: {"schema": _schema_of_response(operation, kind, schemas)}
            for kind in operation.media_types
        },
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
    described = {str(operation.status.value): success}
    for status in sorted(errors):
        problem: Schema = {"description": _ERRORS[status], "content": {PROBLEM: {"schema": schemas[ProblemDocument]}}}
        if status in _WITH_RETRY_AFTER:
            problem["headers"] = {"Retry-After": {"$ref": "#/components/headers/Retry-After"}}
        described[str(status.value)] = problem
    return described


def _schema_of_response(operation: ApiOperation, kind: str, schemas: dict[object, Schema]) -> Schema:
    if operation.response is not None:
        return schemas[operation.response]
    return {"type": "object"} if kind == "application/json" else {"type": "string"}
