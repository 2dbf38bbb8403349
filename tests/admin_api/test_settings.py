"""The configuration in the API for administration."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.contract import TokenScope
from tests.admin_api.harness import CONFIG, administered
from tests.api.harness import Api, api
from tests.daemon.harness import settings

Json = dict[str, Any]


async def listed(owner: Api) -> tuple[Json, dict[str, Json]]:
    status, found = await owner.call("GET", "/api/settings")
    assert status == 200, found
    return found, {each["key"]: each for each in found["settings"]}


async def test_a_change_is_shown_applied_and_written(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        path = tmp_path / "gatehouse.toml"
        before = path.read_text()
        found, by_key = await listed(owner)
        assert (found["path"], found["problems"]) == (str(path), [])
        assert (by_key["gateway.timezone"]["value"], by_key["gateway.timezone"]["origin"]) == ("UTC", "file")
        changes = {"limits.tokens_per_turn": 4321, "gateway.max_parallel_turns": 3}
        body = {"changes": changes, "version": found["version"]}
        status, preview = await owner.call("POST", "/api/settings/preview", body)
        assert (status, preview["applied"]) == (200, ["limits.tokens_per_turn"])
        assert preview["restartNeeded"] == ["gateway.max_parallel_turns"]
        assert "+tokens_per_turn = 4321" in preview["diff"]
        assert path.read_text() == before
        admin = await owner.token_for(TokenScope.ADMIN)
        status, applied = await admin.call("PATCH", "/api/settings", body)
        assert (status, applied["applied"], applied["diff"]) == (200, ["limits.tokens_per_turn"], preview["diff"])
        assert applied["restartNeeded"] == ["gateway.max_parallel_turns"]
        assert owner.daemon.live.settings.limits.tokens_per_turn == 4321
        assert path.read_text().startswith("# The settings of a test.\n")
        _, by_key = await listed(owner)
        assert by_key["limits.tokens_per_turn"]["origin"] == "file"
        body = {"changes": {"limits.tokens_per_turn": None}, "version": applied["version"]}
        status, _ = await owner.call("PATCH", "/api/settings", body)
        assert (status, owner.daemon.live.settings.limits.tokens_per_turn) != (200, 4321)


async def test_two_people_do_not_undo_each_others_changes(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        found, _ = await listed(owner)
        bodies: list[Json] = [
            {"changes": {"limits.tokens_per_turn": number}, "version": found["version"]} for number in (1, 2)
        ]
        results = await asyncio.gather(*(owner.call("PATCH", "/api/settings", body) for body in bodies))
        assert sorted(status for status, _ in results) == [200, 409]


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({"gateway.owners": ["telegram:1"]}, 403, "gatehouse config set"),
        ({"limits.tokens_per_turn": "many"}, 422, "tokens_per_turn must be"),
        ({"agents.main.model": 'x"\n[gateway]\nowners = ["telegram:1"]'}, 200, ""),
        ({"agents.main.fallbacks": ["nowhere/model"]}, 422, "provider does not exist"),
        ({}, 422, ""),
    ],
)
async def test_wrong_and_unsafe_changes_are_refused(tmp_path: Path, changes: Json, expected: int, words: str) -> None:
    async with administered(tmp_path) as owner:
        before = (tmp_path / "gatehouse.toml").read_text()
        found, _ = await listed(owner)
        body = {"changes": changes, "version": found["version"]}
        for method, path in (("POST", "/api/settings/preview"), ("PATCH", "/api/settings")):
            status, found = await owner.call(method, path, body)
            assert (status, words in found.get("detail", "")) == (expected, True), found
        assert owner.daemon.live.settings.gateway.owners == ()
        assert expected == 200 or (tmp_path / "gatehouse.toml").read_text() == before


async def test_a_change_that_cannot_be_applied_is_taken_back(tmp_path: Path) -> None:
    """The file names a variable that is not set, so that no reload succeeds."""
    async with administered(tmp_path) as owner:
        path = tmp_path / "gatehouse.toml"
        broken = path.read_text() + '[providers.x]\nkind = "openai"\napi_key = "env:GONE_KEY"\n'
        path.write_text(broken)
        found, _ = await listed(owner)
        body = {"changes": {"limits.tokens_per_turn": 7}, "version": found["version"]}
        status, found = await owner.call("PATCH", "/api/settings", body)
        assert (status, "GONE_KEY" in found["detail"]) == (409, True)
        assert path.read_text() == broken
        status, found = await owner.call("POST", "/api/reload", {})
        assert status == 409


async def test_a_diff_shows_no_secret_of_its_line(tmp_path: Path) -> None:
    inline = 'providers = { openai = { kind = "openai", api_key = "sk-0123456789" } }\n'
    inline += 'agents.main = { model = "old", provider = "openai" }\n'
    async with administered(tmp_path, inline + CONFIG) as owner:
        body = {"changes": {"agents.main.model": "new-sk-0123456789"}}
        status, found = await owner.call("POST", "/api/settings/preview", body)
        assert status == 200, found
        assert "***" in found["diff"]
        assert "sk-0123456789" not in found["diff"]


async def test_a_broken_file_is_reported(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        (tmp_path / "gatehouse.toml").write_text("[gateway\n")
        found, by_key = await listed(owner)
        assert "TOML" in found["problems"][0]["message"]
        assert by_key["gateway.timezone"]["value"] == "UTC"


async def test_a_gateway_without_a_file_changes_nothing(tmp_path: Path) -> None:
    """This is how `gatehouse chat` runs it."""
    async with api(settings(tmp_path)) as owner:
        _, by_key = await listed(owner)
        assert not by_key["limits.tokens_per_turn"]["isChangeable"]
        body = {"changes": {"limits.tokens_per_turn": 7}}
        for method, path in (("POST", "/api/settings/preview"), ("PATCH", "/api/settings"), ("POST", "/api/reload")):
            status, found = await owner.call(method, path, body)
            assert (status, "gatehouse chat" in found["detail"]) == (409, True)
