"""Schedules through the API: they are made, listed, changed, run and deleted."""

from pathlib import Path

import pytest

from gateway.contract import TokenScope
from gateway.spool import ScheduleState
from tests.api.harness import Json, api
from tests.daemon.harness import Parrot, settings
from tests.polling import until

CHAT = {"chat": "loopback:ada", "when": "0 8 * * *", "prompt": "Look at the news"}
CONFIGURED = {"name": "nightly", "cron": "0 3 * * *", "chat": "loopback:ada", "prompt": "Sum up"}


async def test_a_program_makes_changes_runs_and_deletes_a_schedule(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as owner:
        program = await owner.token_for(TokenScope.ADMIN)
        status, made = await program.call("POST", "/api/schedules", {**CHAT, "zone": "Europe/Berlin", "jitter": 60})
        assert (status, made["when"], made["zone"]) == (201, "cron 0 8 * * * (Europe/Berlin)", "Europe/Berlin")
        assert made["madeBy"] == "a program"
        path = f"/api/schedules/{made['id']}"
        assert (await program.call("GET", "/api/schedules"))[1]["schedules"] == [(await program.call("GET", path))[1]]
        status, changed = await program.call("PATCH", path, {"when": "every 2h", "tokensPerDay": 500, "paused": True})
        assert (status, changed["when"], changed["state"]) == (200, "every 2 h", "paused")
        assert (changed["tokensPerDay"], changed["prompt"], "nextAt" in changed) == (500, CHAT["prompt"], False)
        assert (await program.call("PATCH", path, {"agent": "main"}))[1]["agent"] == "main"
        status, changed = await program.call("PATCH", path, {"agent": ""})
        assert (status, "agent" in changed) == (200, False)
        assert (await program.call("POST", f"{path}/run"))[0] == 200

        async def has_run() -> bool:
            runs = (await program.call("GET", f"{path}/runs"))[1]["runs"]
            return [run["state"] for run in runs] == ["done"]

        await until(has_run)
        assert (await program.call("PATCH", path, {"paused": False}))[1]["state"] == "active"
        assert (await program.call("DELETE", path))[1]["state"] == "deleted"
        assert (await program.call("GET", path))[0] == 404
        assert (await program.call("GET", "/api/schedules"))[1]["schedules"] == []


async def test_only_admins_see_schedules(tmp_path: Path) -> None:
    async with api(settings(tmp_path)) as owner:
        program = await owner.token_for(TokenScope.READ, TokenScope.PROMPT, TokenScope.MANAGE)
        for method, path in (("GET", "/api/schedules"), ("POST", "/api/schedules"), ("DELETE", "/api/schedules/x")):
            status, refused = await program.call(method, path, CHAT if method == "POST" else None)
            assert (status, "admin" in refused["detail"]) == (403, True)


async def test_a_schedule_of_a_revoked_token_is_paused(tmp_path: Path) -> None:
    async with api(settings(tmp_path), Parrot.answering) as owner:
        program = await owner.token_for(TokenScope.ADMIN)
        _, made = await program.call("POST", "/api/schedules", CHAT)
        (token,) = owner.daemon.tokens.book.tokens
        await owner.daemon.tokens.revoke(token)
        await owner.call("POST", f"/api/schedules/{made['id']}/run")

        async def is_paused() -> bool:
            row = await owner.daemon.spool.find_schedule(made["id"])
            return row is not None and row.state is ScheduleState.PAUSED

        await until(is_paused)
        _, shown = await owner.call("GET", f"/api/schedules/{made['id']}")
        assert shown["note"] == "the person or program that made it no longer has access."


async def test_a_schedule_of_the_configuration_can_only_be_paused(tmp_path: Path) -> None:
    async with api(settings(tmp_path, schedules=[CONFIGURED])) as owner:

        async def is_stored() -> bool:
            return bool((await owner.call("GET", "/api/schedules"))[1]["schedules"])

        await until(is_stored)
        path = "/api/schedules/config-nightly"
        assert (await owner.call("GET", path))[1]["name"] == "nightly"
        assert (await owner.call("PATCH", path, {"paused": True}))[1]["state"] == "paused"
        for method, body in (("PATCH", {"prompt": "x"}), ("DELETE", None)):
            status, refused = await owner.call(method, path, body)
            assert (status, "configuration" in refused["detail"]) == (409, True)


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"when": "0 0 30 2 *"}, "is not a cron line"),
        ({"when": "yesterday"}, "is not a time"),
        ({"when": "every 1s"}, "more often than every 1 min"),
        ({"when": "at 2020-01-01T10:00"}, "has passed"),
        ({"zone": "Mars/Base"}, "does not know the time zone"),
        ({"chat": "telgram:1"}, "There is no channel"),
        ({"agent": "nobody"}, "There is no agent"),
        ({"prompt": ""}, "What shall I do then?"),
        ({"chatAccount": "work"}, "`loopback` has no account `work`. It has: default."),
        ({"check": {}}, "a command or a url"),
        ({"check": {"command": "ls"}}, "needs the sandbox"),
        ({"check": {"url": "ftp://example.org"}}, "http:// or https://"),
    ],
)
async def test_a_bad_schedule_is_refused_with_a_sentence(tmp_path: Path, body: Json, sentence: str) -> None:
    async with api(settings(tmp_path)) as owner:
        status, refused = await owner.call("POST", "/api/schedules", {**CHAT, **body})
    assert (status, sentence in refused["detail"]) == (422, True), refused
