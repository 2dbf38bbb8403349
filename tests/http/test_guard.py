import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract import TokenScope
from gateway.http.guard import AllowedHosts
from gateway.http.responses import HttpLimits
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, TOKEN, program, serving

FOREIGN_HOSTS = ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1.evil.example:{port}", ""]
FOREIGN_ORIGINS = [
    "null",
    "http://evil.example",
    "https://127.0.0.1:{port}",
    "http://127.0.0.1:1",
    "http://127.0.0.1",
    "",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_a_foreign_host_is_misdirected_on_http_and_websocket(tmp_path: Path, host: str) -> None:
    """With DNS rebinding an attacker's page has our address, and only its Host gives it away."""
    async with serving(tmp_path, EXAMPLES) as running:
        headers = BEARER | {"Host": host.format(port=running.server.port)}
        for path in ("/healthz", "/example", "/nowhere", "/example/control"):
            assert await running.status("GET", path, headers=headers) == 421
        assert await running.upgrade("/example/talk", headers) == 421


@pytest.mark.parametrize("hosts", ["", "Host: 127.0.0.1:{port}\r\nHost: evil.example\r\n"])
async def test_a_missing_host_and_two_hosts_are_refused(tmp_path: Path, hosts: str) -> None:
    async with serving(tmp_path) as running:
        lines = hosts.format(port=running.server.port)
        answer = await running.raw(f"GET /healthz HTTP/1.1\r\n{lines}\r\n".encode())
        assert answer.split()[1] in {b"421", b"400"}


async def test_our_own_host_names_are_accepted(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_hosts=("Gate.example", "tls.example:8443")) as running:
        port = running.server.port
        for host in (f"LOCALHOST:{port}", f"[::1]:{port}", "gate.example", f"gate.example:{port}", "tls.example:8443"):
            assert await running.status("GET", "/healthz", headers={"Host": host}) == 200, host


async def test_an_allowed_host_may_use_tls(tmp_path: Path) -> None:
    async with serving(tmp_path, allowed_hosts=("gate.example",)) as running:
        headers = {"Host": "gate.example", "Origin": "https://gate.example"}
        body = {"code": running.auth.mint_code()}
        async with running.client.post("/auth/exchange", json=body, headers=headers) as response:
            assert response.status == 200
            assert response.cookies[f"gatehouse_{running.server.port}"]["secure"]


@given(port=st.integers(1, 65_535), name=st.text("abc.:[]*@/", max_size=12))
def test_made_up_names_are_not_allowed_hosts(port: int, name: str) -> None:
    hosts = AllowedHosts.of("127.0.0.1", port, ())
    assert not {name, f"{name}:{port}"} & (hosts.direct | hosts.proxied)


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
async def test_a_foreign_origin_is_forbidden_even_with_a_valid_credential(tmp_path: Path, origin: str) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        headers = BEARER | running.cookie() | {"Origin": origin.format(port=running.server.port)}
        assert await running.status("GET", "/example", headers=headers) == 403
        assert await running.status("GET", "/nowhere", headers=headers) == 403
        assert await running.status("POST", "/example/public", headers=headers, json={}) == 403
        assert await running.status("OPTIONS", "/example", headers=headers) == 403
        assert await running.upgrade("/example/talk", headers) == 403


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "text/plain; application/json",
        "application/json; charset=utf-16",
        "application/json; charset=nonsense",
        "",
    ],
)
async def test_content_types_that_a_foreign_form_can_send_are_refused(tmp_path: Path, content_type: str) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        for path in ("/example", "/example/public", "/auth/exchange"):
            headers = BEARER | {"Content-Type": content_type}
            assert await running.status("POST", path, data=b"{}", headers=headers) == 415
        headers = running.cookie() | running.own
        assert await running.status("DELETE", "/example/things/x", headers=headers) == 415


async def test_a_bearer_token_needs_no_content_type_without_a_body(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        assert await running.status("DELETE", "/example/things/x", headers=BEARER) == 200
        assert await running.status("DELETE", "/api/example/x", headers=program(TokenScope.MANAGE)) == 200
        for headers in (BEARER, {"Authorization": "Basic Og=="}):
            assert await running.status("POST", "/example/public", data=b"{}", headers=headers) == 415
        assert await running.status("POST", "/example/public", headers={"Authorization": "Basic Og=="}) == 415


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "image/png", ""])
async def test_a_route_may_take_a_body_of_any_type(tmp_path: Path, content_type: str) -> None:
    headers = {"Content-Type": content_type, "X-Signature": "signed"}
    async with serving(tmp_path, EXAMPLES, max_body_bytes=5000, limits=HttpLimits(body=0.2, linger=0.1)) as running:
        async with running.client.post("/hooks/example", data=b"\xff{", headers=headers) as response:
            assert await response.read() == b"\xff{"
        assert await running.status("POST", "/hooks/example", data=b" " * 5001, headers=headers) == 413
        assert await running.status("POST", "/hooks/example", data=b"{}") == 401
        slow = running.head("POST /hooks/example", headers | {"Content-Length": "2"})
        assert (await running.raw(slow)).startswith(b"HTTP/1.1 408")


async def test_a_compressed_body_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        headers = BEARER | {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert await running.status("POST", "/example", data=b"\x1f\x8b\x08", headers=headers) == 415


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xfe",
        b'"text"',
        b"[]",
        b"{",
        b'{"a": "\xc3"}',
        b'{"a": "\\ud800"}',
        b'{"a": NaN}',
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b"",
    ],
    ids=["bytes", "string", "list", "torn", "half-utf8", "lone-surrogate", "nan", "deep", "empty"],
)
async def test_an_invalid_body_gets_an_error_message(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        headers = BEARER | {"Content-Type": "application/json"}
        assert "JSON object" in await running.error("POST", "/example", data=body, headers=headers)


@given(text=st.text())
async def test_any_text_arrives_unchanged(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    async with serving(tmp_path_factory.mktemp("data"), EXAMPLES) as running:
        headers = BEARER | {"Content-Type": "application/json"}
        body = json.dumps({"text": text}, ensure_ascii=False).encode()
        async with running.client.post("/example", data=body, headers=headers) as response:
            assert (await response.json())["heard"] == {"text": text}


@pytest.mark.parametrize(
    "path", ["/%00", "/%ff", "/\\..\\x", "/%2e%2e/%2e%2e/etc/passwd", "/../http.token", "/" + "x" * 7000]
)
async def test_malicious_paths_are_not_found(tmp_path: Path, path: str) -> None:
    (tmp_path / "http.token").write_text(TOKEN)
    async with serving(tmp_path) as running:
        answer = await running.raw(running.head(f"GET {path}", {"Connection": "close"}))
        assert answer.split()[1] in {b"404", b"400"}
        assert TOKEN.encode() not in answer


async def test_a_body_over_the_limit_is_refused_without_reading_it(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, max_body_bytes=5000, limits=HttpLimits(linger=0.1)) as running:
        headers = BEARER | {"Content-Type": "application/json"}
        assert await running.status("POST", "/example", data=b" " * 5001, headers=headers) == 413
        assert await running.status("POST", "/example", data=b"{}" + b" " * 4998, headers=headers) == 200
        claim = headers | {"Content-Length": "1000000000", "Connection": "close"}
        assert (await running.raw(running.head("POST /example", claim))).split()[1] == b"413"


async def test_host_and_origin_are_checked_before_the_expect_header_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        for path in ("/healthz", "/nowhere"):
            for expectation in ("wonders", "100-continue"):
                expecting = {"Expect": expectation, "Connection": "close"}
                foreign = await running.raw(running.head(f"GET {path}", expecting | {"Host": "evil.example"}))
                assert foreign.startswith(b"HTTP/1.1 421")
                page = await running.raw(running.head(f"GET {path}", expecting | {"Origin": "http://evil.example"}))
                assert page.startswith(b"HTTP/1.1 403")
            refused = await running.raw(running.head(f"GET {path}", {"Expect": "wonders", "Connection": "close"}))
            assert refused.startswith(b"HTTP/1.1 417")
            assert b"wonders" not in refused


@pytest.mark.parametrize("path", ["/example", "/example/public"])
async def test_a_client_is_told_to_continue_only_once_its_body_is_wanted(tmp_path: Path, path: str) -> None:
    expecting = {"Expect": "100-Continue", "Content-Type": "application/json", "Content-Length": "2"}
    async with serving(tmp_path, EXAMPLES) as running:
        async with running.connect() as (reader, writer):
            writer.write(running.head(f"POST {path}", expecting | BEARER))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"{}")
            assert b" 200 " in await reader.readline()
        refused = await running.raw(running.head("POST /example", expecting | {"Connection": "close"}))
        assert refused.startswith(b"HTTP/1.1 401")
