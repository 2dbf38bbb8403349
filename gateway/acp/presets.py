"""The known coding agents: how each one is started, in which mode it asks first, and how it gets its key and model.

Every fact here was found by running the program. A mode is set for each of them, because some programs let a model
decide what a person should approve unless they are told otherwise.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath

from config import AgentSettings
from config.types import AgentPreset

TOOL_KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls in ACP, by which `always_allow` names them: https://agentclientprotocol.com/protocol/tool-calls"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A program that speaks ACP. `effective` returns one with the settings of an agent applied."""

    name: str
    """For people."""
    command: tuple[str, ...]
    packages: tuple[str, ...] = ()
    """The npm packages that install it."""
    mode: str | None = None
    """The mode to set at the start of a session. None: the program's own default."""
    mode_option: str | None = None
    """The config option that sets the mode, for a program that has no `session/set_mode`."""
    auth_methods: Mapping[str, str] = field(default_factory=dict)
    """The method for `authenticate`, by the variable whose key it uses."""
    auth_method: str | None = None
    """The method to authenticate with. None: the program needs no `authenticate`, or uses the login in its home."""
    api_keys: tuple[str, ...] = ()
    """The variables of which the program needs one, unless its home contains a login."""
    env: Mapping[str, str] = field(default_factory=dict)
    asking_env: Mapping[str, str] = field(default_factory=dict)
    """Variables that make it ask, even if a repository's settings say otherwise. Left out if another mode is chosen."""
    session_meta: Mapping[str, object] = field(default_factory=dict)
    """Sent as `_meta` when a session is opened, for the same purpose."""
    readable: tuple[Path, ...] = ()
    """Files of ours that the variables name."""
    model_env: str | None = None
    needs_model_with: str | None = None
    """The variable with which the program does not start unless a model is chosen."""
    model_option: str | None = None
    """The config option that sets the model, after the start of a session."""
    steers: bool = False
    """Whether it accepts further text while it works, with the extension `_session/steering`."""
    is_load_lossy: bool = False
    """Whether its own record of a session may lack parts. Then a new process gets our transcript instead."""
    is_usage_cumulative: bool = False
    """Whether it reports the tokens of the whole session after each prompt."""
    version_args: tuple[str, ...] = ("--version",)

    @property
    def install_command(self) -> str:
        return f"npm install -g {' '.join(self.packages)}" if self.packages else ""


_OPENCODE_PERMISSIONS = {
    "*": "ask",
    **dict.fromkeys(("read", "glob", "grep", "list", "lsp", "skill", "todoread", "todowrite"), "allow"),
}
"""OpenCode has no mode that asks: without these, it edits and runs everything."""
_OPENCODE_AGENTS = ("build", "plan", "general", "explore")
"""Permissions of one of its agents come before those of all, so a repository could set them."""
_CLAUDE_SETTINGS = {
    "permissions": {"ask": ["Bash", "Edit", "Write", "NotebookEdit", "WebFetch"]},
    "disableAllHooks": True,  # A repository's hooks run commands, and can approve calls.
}
"""A repository's settings can allow calls, but these come first."""
_QWEN_SETTINGS = Path(__file__).with_name("qwen_settings.json")
"""The same for Qwen Code, which reads them from a file."""
_CODEX_INSTRUCTIONS = (
    "You already run inside a sandbox, in which your own sandbox cannot start. A command that is not escalated fails "
    'with an error of bwrap. So run every command with sandbox_permissions "require_escalated" and a short '
    "justification; the user approves it."
)


PRESETS: Mapping[AgentPreset, Preset] = {
    AgentPreset.CLAUDE: Preset(
        name="Claude Code",
        command=("claude-agent-acp",),
        packages=("@agentclientprotocol/claude-agent-acp",),
        mode="default",
        api_keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
        env={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        session_meta={"claudeCode": {"options": {"settings": _CLAUDE_SETTINGS}}},
        model_env="ANTHROPIC_MODEL",
    ),
    AgentPreset.CODEX: Preset(
        name="Codex",
        command=("codex-acp",),
        packages=("@agentclientprotocol/codex-acp",),
        # Its default mode lets a second model approve, so that no person is ever asked.
        mode="read-only",
        auth_methods={"CODEX_API_KEY": "api-key", "OPENAI_API_KEY": "api-key"},
        api_keys=("CODEX_API_KEY", "OPENAI_API_KEY"),
        env={"NO_BROWSER": "1", "CODEX_CONFIG": json.dumps({"developer_instructions": _CODEX_INSTRUCTIONS})},
        model_option="model",
        steers=True,
    ),
    AgentPreset.COPILOT: Preset(
        name="GitHub Copilot",
        command=("copilot", "--acp", "--stdio"),
        packages=("@github/copilot",),
        mode="https://agentclientprotocol.com/protocol/session-modes#agent",
        api_keys=("COPILOT_GITHUB_TOKEN", "GH_TOKEN", "GITHUB_TOKEN", "COPILOT_PROVIDER_BASE_URL"),
        env={"COPILOT_AUTO_UPDATE": "false", "COPILOT_ALLOW_ALL": "false"},
        model_env="COPILOT_MODEL",
        needs_model_with="COPILOT_PROVIDER_BASE_URL",
        is_usage_cumulative=True,
    ),
    AgentPreset.GEMINI: Preset(
        name="Gemini CLI",
        command=("gemini", "--acp"),
        packages=("@google/gemini-cli",),
        mode="default",
        auth_methods={
            "GEMINI_API_KEY": "gemini-api-key",
            "GOOGLE_API_KEY": "vertex-ai",
            "GOOGLE_APPLICATION_CREDENTIALS": "vertex-ai",
        },
        api_keys=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
        # Otherwise it starts itself a second time, with a larger heap.
        env={"GEMINI_CLI_NO_RELAUNCH": "true", "GEMINI_TELEMETRY_ENABLED": "false"},
        model_env="GEMINI_MODEL",
        is_load_lossy=True,
    ),
    AgentPreset.OPENCODE: Preset(
        name="OpenCode",
        command=("opencode", "acp"),
        packages=("opencode-ai",),
        mode="build",
        mode_option="mode",
        env={
            "OPENCODE_PERMISSION": json.dumps(_OPENCODE_PERMISSIONS),
            "OPENCODE_CONFIG_CONTENT": json.dumps(
                {"agent": {agent: {"permission": _OPENCODE_PERMISSIONS} for agent in _OPENCODE_AGENTS}}
            ),
            "OPENCODE_PURE": "1",  # Without the plugins of a repository, which run without asking.
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_SHARE": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        model_option="model",
    ),
    AgentPreset.QWEN: Preset(
        name="Qwen Code",
        command=("qwen", "--acp"),
        packages=("@qwen-code/qwen-code",),
        mode="default",
        auth_methods={"OPENAI_API_KEY": "openai"},
        api_keys=("OPENAI_API_KEY",),
        env={"QWEN_CODE_NO_RELAUNCH": "true"},
        asking_env={"QWEN_CODE_SYSTEM_SETTINGS_PATH": str(_QWEN_SETTINGS)},
        readable=(_QWEN_SETTINGS,),
        model_env="OPENAI_MODEL",
        needs_model_with="OPENAI_API_KEY",
    ),
}


def preset_of(settings: AgentSettings) -> AgentPreset | None:
    """Return the preset of an agent: the one it names, or the one whose program its command starts.

    A command without a preset would otherwise run Codex in its default mode, in which it asks no one.
    """
    if settings.preset is not None or not settings.command:
        return settings.preset
    program = PurePath(settings.command[0]).name
    return next((name for name, preset in PRESETS.items() if preset.command[0] == program), None)


def effective(settings: AgentSettings) -> Preset:
    """Return the preset of an agent with its settings applied: command, mode, model and the way to authenticate.

    A command that is not one of the known programs gives a preset without a mode.
    """
    name = preset_of(settings)
    preset = PRESETS[name] if name else Preset(name=PurePath(settings.command[0]).name, command=settings.command)
    env = dict(preset.env)
    if settings.mode in {None, preset.mode}:
        env |= preset.asking_env
    else:
        preset = replace(preset, session_meta={})
    model_option = None
    if settings.model is not None:
        if preset.model_env:
            env[preset.model_env] = settings.model
        else:
            model_option = preset.model_option or "model"
    return replace(
        preset,
        command=settings.command or preset.command,
        mode=settings.mode or preset.mode,
        env=env,
        model_option=model_option,
        auth_method=next((method for key, method in preset.auth_methods.items() if key in settings.env), None),
    )


def environment(settings: AgentSettings) -> dict[str, str]:
    """Return the variables for the program, with secrets. Those of the agent's `env` override those of the preset."""
    return {**effective(settings).env, **{name: secret.reveal() for name, secret in settings.env.items()}}
