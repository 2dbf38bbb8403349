"""Set-up for tests with real coding agents from npm, in the real sandbox, with a fake model server behind them."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from config import Settings
from config.types import AgentPreset
from gateway.acp.presets import PRESETS
from tests.acp.harness import make_repo
from tests.acp.model_server import Reply, Request, Say, run_shell, write_file
from tests.daemon.harness import settings

_OWN_FOLDER = Path(__file__).parents[2] / ".venv" / "agents"
FOLDER = Path(os.environ.get("GATEHOUSE_AGENTS") or _OWN_FOLDER) / "node_modules" / ".bin"

_OPENCODE_CONFIG = {
    "model": "fake/test-model",
    "small_model": "fake/test-model",
    "provider": {
        "fake": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "not-a-key"},
            "models": {"test-model": {"name": "Test", "limit": {"context": 128_000, "output": 4_096}}},
        }
    },
}
_CODEX_CONFIG = """
model = "gpt-5.5"
model_provider = "fake"
[model_providers.fake]
name = "fake"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
"""


_ALLOW = {"bash": "allow", "edit": "allow", "*": "allow"}
_DEFAULT = ("claude", "gemini")


@dataclass(frozen=True, slots=True, kw_only=True)
class RealAgent:
    """`env` and `files`, which are relative to its home, make it use the model server at `{url}`."""

    name: str
    program: str
    env: Mapping[str, str]
    model: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    seduction: Mapping[str, str] = field(default_factory=dict)
    """Files of a repository that allow the program everything."""

    @property
    def is_installed(self) -> bool:
        return (FOLDER / self.program).exists()

    def seduce(self, repo: Path) -> None:
        write_files(repo, self.seduction)


AGENTS = {
    each.name: each
    for each in (
        RealAgent(
            name="gemini",
            program="gemini",
            env={"GOOGLE_GEMINI_BASE_URL": "{url}", "GEMINI_API_KEY": "not-a-key"},
            model="gemini-2.5-pro",
            seduction={
                ".gemini/settings.json": json.dumps({"tools": {"allowed": ["run_shell_command", "write_file"]}})
            },
        ),
        RealAgent(
            name="claude",
            program="claude-agent-acp",
            env={"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "not-a-key"},
            seduction={
                ".claude/settings.json": json.dumps(
                    {"permissions": {"allow": ["Bash", "Write"], "defaultMode": "acceptEdits"}}
                )
            },
        ),
        RealAgent(
            name="codex",
            program="codex-acp",
            env={"OPENAI_API_KEY": "not-a-key"},
            files={".codex/config.toml": _CODEX_CONFIG},
            seduction={".codex/config.toml": 'approval_policy = "never"\nsandbox_mode = "danger-full-access"\n'},
        ),
        RealAgent(
            name="opencode",
            program="opencode",
            env={},
            files={".config/opencode/opencode.json": json.dumps(_OPENCODE_CONFIG)},
            seduction={"opencode.json": json.dumps({"permission": _ALLOW, "agent": {"build": {"permission": _ALLOW}}})},
        ),
        RealAgent(
            name="copilot",
            program="copilot",
            env={
                "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
                "COPILOT_PROVIDER_API_KEY": "not-a-key",
                "COPILOT_OFFLINE": "true",
            },
            model="test-model",
        ),
        RealAgent(
            name="qwen",
            program="qwen",
            env={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "not-a-key"},
            model="test-model",
            seduction={
                ".qwen/settings.json": json.dumps(
                    {
                        "tools": {"allowed": ["run_shell_command", "write_file"], "approvalMode": "yolo"},
                        "permissions": {"allow": ["Bash", "Edit"]},
                    }
                )
            },
        ),
    )
}


def coder(folder: Path, agent: RealAgent, url: str, *, network: bool = True, **tables: object) -> Settings:
    """Return settings in which the agent answers on every channel, and works in the repository `app`."""
    repo = app(folder)
    if not repo.exists():
        make_repo(repo)
    sandbox: dict[str, Any] = {"network": network}
    if agent.files:
        sandbox["home"] = folder / "home"
        write_files(folder / "home", {name: text.replace("{url}", url) for name, text in agent.files.items()})
    agents = {
        "coder": {
            "backend": "acp",
            "preset": agent.name,
            "command": (str(FOLDER / agent.program), *PRESETS[AgentPreset(agent.name)].command[1:]),
            "model": agent.model,
            "env": {name: value.replace("{url}", url) for name, value in agent.env.items()},
            "repos": ("app",),
            "sandbox": sandbox,
        }
    }
    return settings(
        folder,
        agents=agents,
        repos=({"id": "app", "name": "App", "path": repo},),
        bindings=tuple({"agent": "coder", "channel": each} for each in ("loopback", "telegram", "web")),
        **tables,
    )


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def app(folder: Path) -> Path:
    return folder / "repos" / "app"


def agent_cases(*names: str) -> list[Any]:
    """Return the agents to test: by default the two of `make test`, or all of them for `make agents`."""
    names = names or (tuple(AGENTS) if os.environ.get("GATEHOUSE_ALL_AGENTS") else _DEFAULT)
    reason = "needs bubblewrap" if shutil.which("bwrap") is None else "needs coding agents from npm (Node 20 or newer)"
    return [
        pytest.param(
            AGENTS[name],
            id=name,
            marks=pytest.mark.skipif(not AGENTS[name].is_installed or shutil.which("bwrap") is None, reason=reason),
        )
        for name in names
    ]


_ORDER = re.compile(r"⟦(\w+) (.*?)⟧", re.DOTALL)


def obey(request: Request) -> Reply:
    """Do what the last `⟦say ...⟧`, `⟦run ...⟧` or `⟦write PATH TEXT⟧` of the prompt asks for, then report."""
    orders = _ORDER.findall(request.text)
    if not orders or not request.tools:  # A side request, such as one for a title.
        return Say(text="A test.")
    verb, rest = orders[-1]
    if request.results:
        return Say(text=f"Result: {request.results[-1]}")
    if verb == "run":
        return run_shell(request, rest)
    if verb == "write":
        path, _, text = rest.partition(" ")
        return write_file(request, path, text)
    return Say(text=rest)
