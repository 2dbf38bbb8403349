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
        ({"agents": {"main": {"skills": ["pdf"]}}}, r"agents\.main\.skills: .* Set skills\.folders"),
        (
            {"skills": {"folders": ["/srv"]}, "agents": {"main": {"skills": ["pdf"], "tools": ["plan"]}}},
            r"agents\.main\.skills: .* Add use_skill to its tools",
        ),
        ({"agents": {"main": {"tools": ["use_skill"]}}}, r"unknown tool use_skill\. .* set skills\.folders"),
        ({"mcp": MCP, "agents": {"main": {"ask": ["shel", "box__*"]}}}, r"agents\.main\.ask: unknown tool shel\. "),
        ({"agents": {"main": {"tools": ["fly"]}}}, r"agents\.main\.tools: unknown tool fly"),
        (
            {"agents": {"coder": {"backend": "acp", "command": ["no-such-program"]}}},
            r"agents\.coder: no-such-program cannot be started: `no-such-program` is not in PATH \(.*\)\. ",
        ),
        (
            {"agents": {"coder": {"backend": "acp", "preset": "gemini", "command": ["/nowhere/gemini", "--acp"]}}},
            r"Install it with `npm install -g @google/gemini-cli`, or correct `command`\.",
        ),
        (
            {
                "agents": {
                    "coder": {"backend": "acp", "preset": "qwen", "command": ["sh"], "env": {"OPENAI_API_KEY": "k"}}
                }
            },
            r"agents\.coder\.model is required by Qwen Code with OPENAI_API_KEY\.",
        ),
        (
            {"agents": {"coder": {"backend": "acp", "command": ["sh"], "always_allow": ["edit", "ed*t", "shell"]}}},
            r"agents\.coder\.always_allow: unknown kind shell\. Available: read, edit, ",
        ),
    ],
)
def test_settings_that_cannot_work_are_reported_at_the_start(
    tmp_path: Path, tables: dict[str, object], sentence: str
) -> None:
    with pytest.raises(CannotStart, match=sentence):
        AgentRegistry(settings(tmp_path, **tables))


@pytest.mark.parametrize(
    ("extra", "key", "tables"),
    [
        ("mcp", "mcp.files", {"mcp": {"files": {"command": ["x"]}}}),
        ("acp", "agents.coder", {"agents": {"coder": {"backend": "acp", "command": ["sh"]}}}),
    ],
)
def test_a_missing_extra_is_named(tmp_path: Path, extra: str, key: str, tables: dict[str, object]) -> None:
    program = f"""
import sys
sys.modules[{extra!r}] = None  # As if it were not installed.
from config import Settings
from gateway.turns.agents import agent_faults
tables = {{"gateway": {{"data_dir": {str(tmp_path)!r}}}, **{tables!r}}}
print(*agent_faults(Settings.model_validate(tables)))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    command = Installation.present().extra_command(extra)
    assert told == f"{key} needs an extra that is not installed. Install it: {command}\n"


def test_a_coding_agent_has_no_tools_of_ours(tmp_path: Path) -> None:
    coder = {"backend": "acp", "command": ["sh"], "always_allow": ["edit", "exec*"]}
    assert AgentRegistry(settings(tmp_path, agents={"coder": coder}))["coder"].toolbox.specs() == ()


def test_the_model_of_a_program_can_be_a_variable(tmp_path: Path) -> None:
    choices: list[dict[str, object]] = [
        {"model": "m"},
        {"env": {"OPENAI_API_KEY": "k", "OPENAI_MODEL": "m"}},
        {"env": {}},  # With a login in its home.
    ]
    for more in choices:
        coder = {"backend": "acp", "preset": "qwen", "command": ["sh"], "env": {"OPENAI_API_KEY": "k"}, **more}
        assert AgentRegistry(settings(tmp_path, agents={"coder": coder}))["coder"].name == "coder"


def test_a_program_in_a_workspace_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "workspace" / "main" / "agent"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh")
    program.chmod(0o755)
    with pytest.raises(CannotStart, match="where agents can change files"):
        AgentRegistry(settings(tmp_path, agents={"coder": {"backend": "acp", "command": [str(program)]}}))


@pytest.mark.parametrize("package", ["mcp", "acp"])
def test_the_packages_of_extras_are_not_loaded_at_the_start(package: str) -> None:
    program = f"import sys, gateway.daemon; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
