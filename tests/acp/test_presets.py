"""The known coding agents, and what the settings of an agent make of them."""

import json
from pathlib import Path

import pytest

from config import AgentSettings
from config.types import AgentPreset
from gateway.acp.presets import PRESETS, TOOL_KINDS, Preset, effective, environment, preset_of


def agent(**values: object) -> AgentSettings:
    return AgentSettings.model_validate({"backend": "acp", **values})


def test_every_preset_is_known() -> None:
    assert set(PRESETS) == set(AgentPreset)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_every_preset_sets_a_mode_and_can_be_installed(preset: Preset) -> None:
    assert preset.mode
    assert preset.install_command.startswith("npm install -g ")


def test_codex_never_runs_in_the_mode_in_which_a_model_approves() -> None:
    assert effective(agent(preset="codex")).mode == "read-only"
    assert effective(agent(command=["/opt/codex/codex-acp"])).mode == "read-only"


def test_opencode_asks_before_everything_but_reading() -> None:
    permissions = json.loads(environment(agent(preset="opencode"))["OPENCODE_PERMISSION"])
    assert permissions["*"] == "ask"
    assert {name for name, action in permissions.items() if action != "ask"} == {
        *("read", "glob", "grep", "list", "lsp", "skill", "todoread", "todowrite")
    }


def test_a_repository_cannot_switch_off_asking() -> None:
    """Found by running each program in a repository whose settings allow everything."""
    assert effective(agent(preset="claude")).session_meta == {
        "claudeCode": {
            "options": {
                "settings": {
                    "permissions": {"ask": ["Bash", "Edit", "Write", "NotebookEdit", "WebFetch"]},
                    "disableAllHooks": True,
                }
            }
        }
    }
    opencode = environment(agent(preset="opencode"))
    build = json.loads(opencode["OPENCODE_CONFIG_CONTENT"])["agent"]["build"]
    assert build["permission"] == json.loads(opencode["OPENCODE_PERMISSION"])
    file = Path(environment(agent(preset="qwen"))["QWEN_CODE_SYSTEM_SETTINGS_PATH"])
    assert json.loads(file.read_bytes())["permissions"]["ask"][0] == "Bash"
    assert file in effective(agent(preset="qwen")).readable


def test_an_owner_can_choose_a_mode_that_does_not_ask() -> None:
    assert effective(agent(preset="claude", mode="acceptEdits")).session_meta == {}
    assert effective(agent(preset="claude", mode="default")).session_meta
    assert "QWEN_CODE_SYSTEM_SETTINGS_PATH" not in environment(agent(preset="qwen", mode="yolo"))


def test_the_command_and_the_mode_override_those_of_the_preset() -> None:
    chosen = effective(agent(preset="gemini", command=["/opt/gemini", "--acp", "--debug"], mode="plan"))
    assert chosen.command == ("/opt/gemini", "--acp", "--debug")
    assert chosen.mode == "plan"
    assert chosen.packages == ("@google/gemini-cli",)


def test_a_command_that_starts_a_known_program_has_its_preset() -> None:
    assert preset_of(agent(command=["gemini", "--acp"])) is AgentPreset.GEMINI
    assert preset_of(agent(command=["/home/ada/bin/qwen", "--acp"])) is AgentPreset.QWEN


def test_another_command_has_no_mode() -> None:
    chosen = effective(agent(command=["/opt/agent", "acp"]))
    assert (chosen.name, chosen.command, chosen.mode) == ("agent", ("/opt/agent", "acp"), None)
    assert chosen.install_command == ""
    assert environment(agent(command=["/opt/agent"])) == {}


def test_the_model_is_passed_in_the_way_of_the_program() -> None:
    gemini = agent(preset="gemini", model="gemini-2.5-pro")
    assert environment(gemini)["GEMINI_MODEL"] == "gemini-2.5-pro"
    assert effective(gemini).model_option is None
    codex = agent(preset="codex", model="gpt-5.5")
    assert effective(codex).model_option == "model"
    assert "gpt-5.5" not in environment(codex).values()
    assert effective(agent(command=["x"], model="m")).model_option == "model"


def test_without_a_model_the_program_chooses_it() -> None:
    for name in AgentPreset:
        assert effective(agent(preset=name)).model_option is None
        assert not {"GEMINI_MODEL", "ANTHROPIC_MODEL", "OPENAI_MODEL"} & environment(agent(preset=name)).keys()


def test_the_key_decides_how_the_program_authenticates() -> None:
    assert effective(agent(preset="gemini", env={"GEMINI_API_KEY": "k"})).auth_method == "gemini-api-key"
    assert effective(agent(preset="gemini", env={"GOOGLE_API_KEY": "k"})).auth_method == "vertex-ai"
    assert effective(agent(preset="qwen", env={"OPENAI_API_KEY": "k"})).auth_method == "openai"
    # The login in the program's home is used, and must not be replaced by a key that does not exist.
    assert effective(agent(preset="gemini")).auth_method is None


def test_the_variables_of_the_agent_override_those_of_the_preset() -> None:
    chosen = agent(preset="gemini", env={"GEMINI_API_KEY": "secret", "GEMINI_TELEMETRY_ENABLED": "true"})
    variables = environment(chosen)
    assert variables["GEMINI_API_KEY"] == "secret"
    assert variables["GEMINI_TELEMETRY_ENABLED"] == "true"
    assert variables["GEMINI_CLI_NO_RELAUNCH"] == "true"


def test_the_kinds_of_tools_are_those_of_the_protocol() -> None:
    schema = pytest.importorskip("acp.schema")
    assert set(TOOL_KINDS) == set(schema.ToolKind.__args__)
