"""Turns of a coding agent, from the chat to the transcript and back."""

from pathlib import Path

from config.settings.tracing import TracingSettings
from gateway.sessions import entries
from tests.acp.harness import SCRIPTED_AGENT, coder, effects, git, needs_sandbox
from tests.daemon.harness import ask, delivered, gateway, transcript_entries
from tests.observability.collector import collecting

pytestmark = needs_sandbox


async def test_a_message_is_answered_by_the_program(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        assert await ask(chat, "say Hello there.") == "Hello there."


async def test_a_tool_call_and_its_diff_are_in_the_transcript(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (_, chat):
        assert "Done" in await ask(chat, "say I write. ;; edit notes.txt remember ;; say Done.")
    assert effects(tmp_path) == ["edit notes.txt remember"]
    written = transcript_entries(tmp_path)
    [call] = [entry for entry in written if isinstance(entry, entries.ToolUse)]
    [result] = [entry for entry in written if isinstance(entry, entries.ToolResult)]
    assert (call.name, call.tool_use_id) == ("edit", result.tool_use_id)
    assert "+remember" in result.diffs[0].diff
    assert [entry.content for entry in written if isinstance(entry, entries.Assistant)] == ["I write.", "Done."]


async def test_the_tools_of_a_coding_agent_are_in_the_trace(tmp_path: Path) -> None:
    async with collecting() as collector:
        configured = coder(tmp_path).model_copy(update={"tracing": TracingSettings(endpoint=collector.url)})
        async with gateway(configured) as (daemon, chat):
            await ask(chat, "say I write. ;; edit notes.txt remember ;; say Done.")
            await delivered(daemon)
    call, turn = collector.one("execute_tool edit"), collector.one("turn")
    assert call.parent_span_id == turn.span_id
    assert turn.start_time_unix_nano <= call.start_time_unix_nano <= call.end_time_unix_nano
    assert b"remember" not in b"".join(collector.bodies)
    assert b"notes.txt" not in b"".join(collector.bodies)


async def test_the_commands_about_an_agent_know_coding_agents(tmp_path: Path) -> None:
    async with gateway(coder(tmp_path)) as (daemon, chat):
        await ask(chat, "say hi")
        assert "coder has tools of its own" in await ask(chat, "/tools")
        assert "chooses its model itself" in await ask(chat, "/model")
        assert "looks after its own context" in await ask(chat, "/compact")
        status = await ask(chat, "/status")
        assert "Repository: app." in status
        assert "1 coding agent started" in status
        assert (await daemon.status.report()).coding_agents == {"coder": 1}


async def test_the_program_can_commit_and_cannot_see_the_data_directory(tmp_path: Path) -> None:
    """Even if the settings show it a folder that contains the data directory."""
    configured = coder(tmp_path, sandbox={"readable": (SCRIPTED_AGENT, tmp_path / "shown")})
    (tmp_path / "shown").mkdir()
    async with gateway(configured) as (_, chat):
        said = await ask(chat, f"run ls {tmp_path} ;; run git add -A ;; run git commit -m Note --allow-empty")
    assert "data" not in said.split("\n")
    assert git(tmp_path / "repos" / "app", "log", "-1", "--format=%an %s").strip() == "Coding agent Note"
