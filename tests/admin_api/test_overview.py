"""The state of the gateway and its log in the API."""

import json
from dataclasses import replace
from pathlib import Path

import structlog

from channels.loopback import LoopbackChannel
from gateway.contract import TokenScope
from gateway.daemon import Daemon
from tests.admin_api.harness import administered
from tests.api.harness import Api
from tests.daemon.harness import Slow, ask
from tests.daemon.tools import Rocket, agent, launch, scripted
from tests.polling import until


def loopback(daemon: Daemon) -> LoopbackChannel:
    channel = daemon.channels.by_identity["loopback", "default"]
    assert isinstance(channel, LoopbackChannel)
    return channel


async def test_the_overview_shows_channels_turns_and_cost(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        assert await ask(loopback(owner.daemon), "hello")
        status, found = await owner.call("GET", "/api/overview")
        assert (status, found["ready"], found["turns"], found["sessions"]) == (200, True, [], 1)
        assert [each["name"] for each in found["channels"] if each["name"] == "loopback"] == ["loopback"]
        assert (found["canRestart"], found["nodes"], found["openApprovals"]) == (True, [], 0)
        assert found["storage"]["engine"] == "files"
        assert found["usageToday"]["inputTokens"] >= 0


async def test_a_running_turn_says_what_it_does(tmp_path: Path) -> None:
    slow = Slow()
    async with administered(tmp_path, before=lambda daemon: slow_agent(daemon, slow)) as owner:
        await loopback(owner.daemon).say("hello")
        await slow.is_asked.wait()
        _, found = await owner.call("GET", "/api/overview")
        (turn,) = found["turns"]
        assert (turn["channel"], turn["agent"], turn["activity"]) == ("loopback", "main", "thinking")
        slow.may_answer.set()


async def test_a_turn_that_waits_for_a_person_names_the_tool(tmp_path: Path) -> None:
    async with administered(tmp_path, before=agent(scripted([launch("pad 7")]), Rocket())) as owner:
        await loopback(owner.daemon).say("launch it")
        await until(lambda: owner.daemon.approvals.open_questions)
        _, found = await owner.call("GET", "/api/overview")
        assert [(each["activity"], each["detail"]) for each in found["turns"]] == [("approval", "launch")]
        assert found["openApprovals"] == 1


def slow_agent(daemon: Daemon, slow: Slow) -> None:
    daemon.agents.replace("main", lambda chosen: replace(chosen, provider=slow))


async def lines(owner: Api, query: str) -> list[tuple[str, str]]:
    status, found = await owner.call("GET", f"/api/logs?{query}")
    assert status == 200, found
    return [(each["level"], each["event"]) for each in found["lines"]]


async def test_the_log_is_filtered_by_level_and_text_and_masked(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        log = structlog.get_logger()
        log.error("pump_failed", where="Kitchen", token=owner.token)
        log.info("pump_mended", where="kitchen")
        assert await lines(owner, "q=kitchen") == [("error", "pump_failed"), ("info", "pump_mended")]
        assert await lines(owner, "q=KITCHEN&level=error") == [("error", "pump_failed")]
        _, found = await owner.call("GET", "/api/logs?q=pump_failed")
        fields = json.loads(found["lines"][0]["fields"])
        assert (fields["where"], fields["token"]) == ("Kitchen", "***")
        _, found = await owner.call("GET", "/api/logs?limit=1")
        assert (len(found["lines"]), found["hasOlder"]) == (1, True)
        older = await lines(owner, f"before={found['lines'][0]['number']}&q=pump")
        assert ("error", "pump_failed") in older
        _, found = await owner.call("GET", "/api/overview")
        assert (found["errorsLastHour"], found["lastErrors"][0]["event"]) == (1, "pump_failed")
        status, found = await owner.call("GET", "/api/logs?node=elsewhere")
        assert (status, "elsewhere" in found["detail"]) == (404, True)


async def test_only_admin_sees_the_gateway(tmp_path: Path) -> None:
    async with administered(tmp_path) as owner:
        for path in ("/api/overview", "/api/logs", "/api/events"):
            program = await owner.token_for(TokenScope.READ, TokenScope.MANAGE)
            status, _ = await program.call("GET", path)
            assert status == 403
        admin = await owner.token_for(TokenScope.ADMIN)
        status, _ = await admin.call("GET", "/api/overview")
        assert status == 200
