"""Skills in the whole gateway."""

import json
from pathlib import Path
from typing import Any

import pytest

from config import Settings
from gateway.contract import Sender
from tests.agent.wire import ANTHROPIC, OPENAI, Call, Dialect, WireServer, serving
from tests.daemon.harness import gateway, say_and_hear, settings
from tests.sandbox.harness import needs_sandbox
from tests.skills.harness import add_skill


def skilled(folder: Path, server: WireServer, agent: dict[str, Any] | None = None, **tables: Any) -> Settings:  # noqa: ANN401 - tables of any shape.
    main = {"provider": "fake", "model": "m", **(agent or {})}
    return settings(
        folder,
        providers={"fake": server.table()},
        agents={"main": main},
        skills={"folders": [folder / "skills"]},
        **tables,
    )


@pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)
async def test_the_first_request_with_ten_skills_has_less_than_four_kilobytes(tmp_path: Path, api: Dialect) -> None:
    for number in range(10):
        add_skill(tmp_path / "skills", f"skill-number-{number}", "word " * 200)
    async with serving(api, api.answer("Hello!")) as server, gateway(skilled(tmp_path, server)) as (_, chat):
        await say_and_hear(chat, "hello")
    text = json.dumps(server.requests[0].body)
    assert all(f"- skill-number-{number}: word" in text for number in range(10))
    assert server.requests[0].size < 4000


@needs_sandbox
async def test_the_model_loads_a_skill_and_runs_its_script(tmp_path: Path) -> None:
    folder = add_skill(tmp_path / "skills", "counting", "Counts things.", body="Run scripts/count.sh.")
    (folder / "scripts").mkdir()
    (folder / "scripts/count.sh").write_text("echo There are $(($1 + 1)) of them.")
    load = Call("use_skill", [json.dumps({"name": "counting"})])
    run = Call("shell", [json.dumps({"command": "sh /skills/counting/scripts/count.sh 41"})])
    script = [OPENAI.answer(calls=[load]), OPENAI.answer(calls=[run]), OPENAI.answer("It is 42.")]
    async with serving(OPENAI, *script) as server:
        tables = skilled(tmp_path, server, {"ask": []}, tools={"shell": {"enabled": True}})
        async with gateway(tables) as (_, chat):
            assert (await say_and_hear(chat, "count")).text == "It is 42."
    system, _, *rest = server.requests[2].body["messages"]
    assert "- counting: Counts things." in system["content"]
    outputs = [message["content"] for message in rest if message["role"] == "tool"]
    assert outputs[0].endswith("\n\nRun scripts/count.sh.")
    assert outputs[1] == "There are 42 of them."


OPEN = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"dm_policy": "open"}}


async def test_an_agent_without_skills_has_neither_the_tool_nor_the_lines(tmp_path: Path) -> None:
    add_skill(tmp_path / "skills", "counting", "Counts things.")
    agents: tuple[dict[str, Any], ...] = ({"tools": ["current_time"]}, {"skills": ["other-*"]}, {"skills": []})
    roles = {"lead": {"people": ["loopback:ann"], "tools": ["read_file"]}}
    for agent, sender in (*((each, None) for each in agents), ({}, Sender(id="ann"))):
        async with (
            serving(OPENAI, OPENAI.answer("Hello!")) as server,
            gateway(skilled(tmp_path, server, agent, roles=roles, channels=OPEN)) as (_, chat),
        ):
            await say_and_hear(chat, "hello", sender=sender)
        assert "counting" not in str(server.requests[0].body)
        assert "use_skill" not in str(server.requests[0].body)
