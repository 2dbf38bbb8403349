"""The OpenAPI document and its page agree with the routes."""

from pathlib import Path
from typing import Any

from gateway.contract import Access
from tests.api.harness import api
from tests.daemon.harness import settings


async def test_the_document_describes_every_route_of_the_api(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as program:
        async with program.http.get(f"{program.daemon.server.url}/api/openapi.json") as response:
            document: dict[str, Any] = await response.json()
        assert document["openapi"] == "3.1.0"
        described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
        served = {
            (route.method, route.path)
            for route in program.daemon.server.routes
            if route.access is Access.API and route.path.startswith("/api/")
        }
        assert described == served
        operations = [each for methods in document["paths"].values() for each in methods.values()]
        names = [each["operationId"] for each in operations]
        assert len(set(names)) == len(names)
        for operation in operations:
            for response in operation["responses"].values():
                assert {link["operationId"] for link in response.get("links", {}).values()} <= set(names)
            assert {"400", "401", "403", "429", "500"} <= operation["responses"].keys()
        assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
        defined = {f"#/components/{kind}/{name}" for kind, parts in document["components"].items() for name in parts}
        assert _references(document) <= defined
        # It is read by people without a token, so it tells nothing about this gateway.
        assert str(tmp_path) not in str(document)


def _references(value: object) -> set[str]:
    match value:
        case {"$ref": str(name)}:
            return {name}
        case dict():
            return set().union(*map(_references, value.values()))
        case list():
            return set().union(*map(_references, value))
        case _:
            return set()


async def test_the_page_has_no_scripts_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as program:
        async with program.http.get(f"{program.daemon.server.url}/api/docs") as response:
            page = await response.text()
            assert response.content_type == "text/html"
            assert "script-src 'self'" in response.headers["Content-Security-Policy"]
        assert "<script" not in page
        assert "http://" not in page
        assert "https://" not in page
        assert "/api/sessions/{id}/prompt" in page
        async with program.http.get(f"{program.daemon.server.url}/api/docs.css") as response:
            assert (response.status, response.content_type) == (200, "text/css")
