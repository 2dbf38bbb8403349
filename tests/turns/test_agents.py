import subprocess
import sys
from pathlib import Path

import pytest

from config import Settings
from gateway.conversation import ToolCall
from gateway.distribution import Installation
from gateway.errors import CannotStart
from gateway.turns.agents import AgentRegistry

MCP = {"box": {"command": ["x"]}}


def settings(folder: Path, **tables: object) -> Settings:
    return Settings.model_validate({"gateway": {"data_dir": folder}, **tables})


def test_every_agent_has_its_own_workspace_and_prompt(tmp_path: Path) -> None:
    roster = AgentRegistry(settings(tmp_path, agents={"coder": {"system_prompt": "Write code."}}))
    assert roster["coder"].system == "Write code."
    assert "main" in roster["main"].system
    assert roster["coder"].workspace.path != roster["main"].workspace.path


def test_a_prompt_can_be_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Be brief.")
    roster = AgentRegistry(settings(tmp_path, agents={"main": {"prompt_file": str(tmp_path / "prompt.md")}}))
    assert roster["main"].system == "Be brief."


def test_an_agent_can_be_limited_to_some_tools(tmp_path: Path) -> None:
    roster = AgentRegistry(settings(tmp_path, agents={"main": {"tools": ["current_time"]}}))
    assert [spec.name for spec in roster["main"].toolbox.specs()] == ["current_time"]


def test_ask_accepts_tools_of_an_mcp_server_that_is_not_connected_yet(tmp_path: Path) -> None:
    asked = ["shell", "box__open", "box__*", "*delete*"]
    assert AgentRegistry(settings(tmp_path, mcp=MCP, agents={"main": {"ask": asked}}))["main"].name == "main"


def test_the_settings_decide_which_tools_need_approval(tmp_path: Path) -> None:
    def asking(**agent: object) -> set[str]:
        toolbox = AgentRegistry(settings(tmp_path, tools={"shell": {"enabled": True}}, agents={"main": agent}))[
            "main"
        ].toolbox
        calls = [ToolCall(id="c", name=spec.name, input={}) for spec in toolbox.specs()]
        return {call.name for call in calls if toolbox.needs_approval(call)}

    assert asking() == {"shell"}
    assert asking(ask=["*it_file", "remember"]) == {"edit_file", "remember"}
    assert asking(ask=[]) == set()


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"agents": {"main": {"ask": ["shel"]}}}, r"agents\.main\.ask: unknown tool shel\. Available: "),
        ({"mcp": MCP, "agents": {"main": {"ask": ["shel", "box__*"]}}}, r"agents\.main\.ask: unknown tool shel\. "),
        ({"agents": {"main": {"tools": ["fly"]}}}, r"agents\.main\.tools: unknown tool fly"),
        (
            {"agents": {"coder": {"backend": "acp", "command": ["x"]}}},
            r"agents\.coder\.backend: this version of Gatehouse doesn't support it yet\. Remove it\.",
        ),
    ],
)
def test_settings_that_cannot_work_are_reported_at_the_start(
    tmp_path: Path, tables: dict[str, object], sentence: str
) -> None:
    with pytest.raises(CannotStart, match=sentence):
        AgentRegistry(settings(tmp_path, **tables))


def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["mcp"] = None  # As if it were not installed.
from config import Settings
from gateway.turns.agents import agent_faults
tables = {{"gateway": {{"data_dir": {str(tmp_path)!r}}}, "mcp": {{"files": {{"command": ["x"]}}}}}}
print(*agent_faults(Settings.model_validate(tables)))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    command = Installation.present().extra_command("mcp")
    assert told == f"mcp.files needs an extra that is not installed. Install it: {command}\n"


def test_the_mcp_package_is_not_loaded_without_a_configured_server() -> None:
    program = "import sys, gateway.daemon; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
