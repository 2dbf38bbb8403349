"""The doctor, backups and the restart in the API for administration."""

import io
import tarfile
from pathlib import Path

from gateway.aio import ShutdownRequest
from gateway.contract import TokenScope
from tests.admin_api.harness import administered
from tests.admin_api.test_overview import loopback
from tests.api.harness import api
from tests.daemon.harness import ask, settings


async def test_the_doctor_finds_and_repairs_open_files(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        status, found = await owner.call("POST", "/api/doctor", {})
        assert (status, found["repaired"]) == (200, [])
        assert not [each for each in found["findings"] if each["level"] == "error"]
        assert {"config", "sessions", "spool"} <= {each["about"] for each in found["findings"]}
        token = tmp_path / "data/http.token"
        token.chmod(0o644)
        _, found = await owner.call("POST", "/api/doctor", {})
        assert [each["about"] for each in found["findings"] if each["canBeRepaired"]] == ["permissions"]
        _, found = await owner.call("POST", "/api/doctor/repair", {})
        assert [each["about"] for each in found["repaired"]] == ["permissions"]
        assert not [each for each in found["findings"] if each["canBeRepaired"]]
        assert token.stat().st_mode & 0o077 == 0


async def test_the_doctor_calls_peers_only_if_asked(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        _, found = await owner.call("POST", "/api/doctor", {"peers": True})
        assert "providers.offline" in {each["about"] for each in found["findings"]}
        _, found = await owner.call("POST", "/api/doctor", {})
        assert "providers.offline" not in {each["about"] for each in found["findings"]}


async def test_a_backup_has_the_sessions_and_no_secret(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        await ask(loopback(owner.daemon), "remember the xylophone")
        admin = await owner.token_for(TokenScope.ADMIN)
        response = await admin.request("GET", "/api/backup")
        content = await response.read()
        assert (response.status, response.content_type) == (200, "application/x-tar")
        assert response.headers["Content-Disposition"].startswith('attachment; filename="gatehouse-')
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            names = archive.getnames()
        assert "spool.db" in names
        assert not {"http.token", "gatehouse.toml"} & set(names)
        assert b"xylophone" in content
        assert owner.token.encode() not in content


async def test_a_restart_is_requested(tmp_path: Path) -> None:
    shutdown = ShutdownRequest()
    async with administered(tmp_path, shutdown=shutdown) as owner:
        status, found = await owner.call("POST", "/api/restart", {})
        assert (status, "restarts" in found["detail"]) == (202, True)
        await shutdown.wait()
        assert shutdown.wants_restart


async def test_a_gateway_of_a_chat_is_not_restarted(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as owner:
        status, found = await owner.call("POST", "/api/restart", {})
        assert (status, "gatehouse chat" in found["detail"]) == (409, True)
        status, found = await owner.call("POST", "/api/doctor", {})
        assert status == 200
