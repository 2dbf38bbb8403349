"""A plan that the agent tells: it is in the transcript, and `/status` shows it while the turn runs."""

from dataclasses import replace
from pathlib import Path

from gateway.agent.protocol import TextDelta
from gateway.agent.toolbox import plan
from gateway.agent.tools import Toolbox
from gateway.conversation import Json, ToolCall
from gateway.daemon import Daemon
from gateway.sessions.entries import Plan
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import gateway, settings, transcript_entries
from tests.daemon.tools import Gate


async def test_a_plan_is_shown_while_its_turn_runs(tmp_path: Path) -> None:
    steps: list[Json] = [{"content": "Look", "status": "completed"}, {"content": "Leap", "status": "in_progress"}]
    told = ToolCall(id="c1", name="plan", input={"steps": steps})
    waits = ToolCall(id="c2", name="wait", input={})
    provider, gate = ScriptedProvider([told, waits], [TextDelta(text="Done.")]), Gate()

    def change(daemon: Daemon) -> None:
        toolbox = Toolbox([plan, gate.tool()])
        daemon.agents.replace("main", lambda main: replace(main, provider=provider, toolbox=toolbox))

    async with gateway(settings(tmp_path), change) as (_, chat):
        await chat.say("go")
        await gate.entered.wait()
        await chat.say("/status")
        assert "  ✓ Look\n  ▸ Leap\n" in (await chat.hear_message()).text
        gate.leave.set()
        assert (await chat.hear_message()).text == "Done."
        await chat.say("/status")
        assert "Leap" not in (await chat.hear_message()).text
    (entry,) = [entry for entry in transcript_entries(tmp_path) if isinstance(entry, Plan)]
    assert [(step.content, step.status) for step in entry.steps] == [("Look", "completed"), ("Leap", "in_progress")]
