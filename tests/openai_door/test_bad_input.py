"""Bad requests to every route of the door get an error in OpenAI's format."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.contract import TokenScope
from tests.openai_door.harness import DoorTest, door

ROUTES = [
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/main", None),
    ("POST", "/v1/chat/completions", {"model": "main", "messages": [{"role": "user", "content": "hello"}]}),
    ("POST", "/v1/responses", {"model": "main", "input": "hello"}),
    ("GET", f"/v1/responses/resp_{'0' * 64}", None),
    ("DELETE", f"/v1/responses/resp_{'0' * 64}", None),
    ("GET", f"/v1/responses/resp_{'0' * 64}/input_items", None),
]
POSTS = [path for method, path, _ in ROUTES if method == "POST"]


async def refused(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """Return the error in a response."""
    assert response.status >= 400
    assert response.content_type == "application/json"
    body = await response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in error["message"]
    return error


async def send(test: DoorTest, method: str, path: str, **more: Any) -> aiohttp.ClientResponse:  # noqa: ANN401 - as aiohttp takes them.
    url = f"{test.daemon.server.url}{path}"
    headers = {**test.program.authorization, **more.pop("headers", {})}
    return await test.program.http.request(method, url, headers=headers, **more)


async def test_without_a_credential_nothing_is_served(tmp_path: Path) -> None:
    async with door(tmp_path) as test, aiohttp.ClientSession() as http:
        for method, path, body in ROUTES:
            for headers in ({}, {"Authorization": "Bearer gh_x_y"}, {"Authorization": "Basic abc"}):
                async with http.request(
                    method, f"{test.daemon.server.url}{path}", json=body, headers=headers
                ) as response:
                    error = await refused(response)
                    assert (response.status, error["code"]) in {(401, "invalid_api_key"), (429, "rate_limit_exceeded")}
        assert test.model.prompts == []


async def test_a_token_needs_the_scope_prompt(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client(TokenScope.READ) as test:
        for method, path, body in ROUTES:
            response = await send(test, method, path, json=body)
            if "models" in path:
                assert response.status == 200
                continue
            error = await refused(response)
            assert (response.status, error["code"]) == (403, "insufficient_permissions")
            assert "prompt" in error["message"]
        assert owner.model.prompts == []


@pytest.mark.parametrize("path", POSTS)
async def test_bodies_of_every_wrong_kind(tmp_path: Path, path: str) -> None:
    bodies = [b"", b"{}", b"[]", b"null", b"{", b'"x"', b"\xff\xfe", b'{"model": "main"}', b'{"model": 7}', b"[" * 9000]
    async with door(tmp_path, http={"port": 0, "max_body_bytes": 10_000}) as test:
        for body in bodies:
            response = await send(test, "POST", path, data=body, headers={"Content-Type": "application/json"})
            await refused(response)
            assert response.status == 400, body
        response = await send(test, "POST", path, data=b"{}", headers={"Content-Type": "text/plain"})
        assert (response.status, (await refused(response))["type"]) == (415, "invalid_request_error")
        big = json.dumps({"model": "main", "input": "x" * 12_000, "messages": []}).encode()
        response = await send(test, "POST", path, data=big, headers={"Content-Type": "application/json"})
        assert (response.status, (await refused(response))["message"]) == (413, "The body is too large.")
        assert test.model.prompts == []


async def test_ids_and_paths_of_every_wrong_kind(tmp_path: Path) -> None:
    ids = ["x", "..%2f..%2fetc", "%00", "a" * 3000, "resp_", "resp_" + "g" * 64, "main%40", "%20", "%2e%2e", "ä"]
    async with door(tmp_path) as test:
        for name in ids:
            for method, path in (
                ("GET", f"/v1/responses/{name}"),
                ("DELETE", f"/v1/responses/{name}"),
                ("GET", f"/v1/responses/{name}/input_items"),
                ("GET", f"/v1/models/{name}"),
            ):
                response = await send(test, method, path)
                await refused(response)
                assert response.status in {400, 404, 405}, (method, path)
        for method, path, status in (
            ("GET", "/v1/chat/completions", 405),
            ("PUT", "/v1/responses", 405),
            ("POST", "/v1/models", 405),
            ("GET", "/v1/nothing", 404),
            ("POST", "/v1/embeddings", 404),
            ("GET", "/v1", 404),
        ):
            response = await send(test, method, path, json={} if method in {"POST", "PUT"} else None)
            await refused(response)
            assert response.status == status, path
