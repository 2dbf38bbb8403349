"""What `gatehouse doctor` says about coding agents. The programs are scripts; the sandbox is real."""

import json
from pathlib import Path

import pytest

from config import Settings
from gateway.doctor.coding_agents import check_coding_agents
from gateway.doctor.finding import Finding, Level
from tests.sandbox.harness import needs_sandbox

SYSTEM = "/usr/local/bin:/usr/bin:/bin"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in PATH with the program `gemini`, a link into an npm package."""
    package = tmp_path / "tools" / "node_modules" / "@google" / "gemini-cli"
    package.mkdir(parents=True)
    (package / "package.json").write_text(json.dumps({"version": "0.61.0"}))
    (package / "gemini.js").write_text("#!/bin/sh\n")
    (package / "gemini.js").chmod(0o755)
    folder = tmp_path / "tools" / "bin"
    folder.mkdir()
    (folder / "gemini").symlink_to(package / "gemini.js")
    monkeypatch.setenv("PATH", f"{folder}:{SYSTEM}")
    return folder


async def check(tmp_path: Path, **agent: object) -> list[Finding]:
    agents = {"coder": {"backend": "acp", **agent}} if agent else {}
    settings = Settings.model_validate({"gateway": {"data_dir": tmp_path / "data"}, "agents": agents})
    return await check_coding_agents(settings)


def messages(findings: list[Finding], level: Level) -> list[str]:
    return [finding.message for finding in findings if finding.level is level]


@needs_sandbox
async def test_a_working_agent_is_described(tmp_path: Path, installed: Path) -> None:
    findings = await check(tmp_path, preset="gemini", env={"GEMINI_API_KEY": "k"}, sandbox={"network": False})
    program = (installed / "gemini").resolve()
    assert messages(findings, Level.OK) == [
        f"Gemini CLI 0.61.0 at {program}, in mode `default`, without network.",
        "Its sandbox works, and contains the program.",
        'Installed here, each with its preset: Gemini CLI 0.61.0 ("gemini").',
    ]
    assert len(findings) == 3


@pytest.mark.usefixtures("installed")
async def test_installed_programs_are_named_without_any_agent(tmp_path: Path) -> None:
    (found,) = await check(tmp_path)
    assert (found.about, found.level) == ("coding agents", Level.OK)
    assert "Gemini CLI 0.61.0" in found.message


async def test_nothing_is_said_where_no_program_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await check(tmp_path) == []


@needs_sandbox
async def test_the_version_of_a_native_program_is_asked_for(tmp_path: Path, installed: Path) -> None:
    """In a sandbox: the program sees neither this folder's neighbours nor the environment."""
    program = installed / "opencode"
    program.write_text(f'#!/bin/sh\ntest -e {tmp_path}/secret && exit 1\necho "opencode v1.18.33-beta $1"\n')
    program.chmod(0o755)
    (tmp_path / "secret").touch()
    (found,) = await check(tmp_path)
    assert 'OpenCode 1.18.33-beta ("opencode")' in found.message


@needs_sandbox
@pytest.mark.usefixtures("installed")
async def test_a_mode_in_which_a_program_may_not_ask_is_a_warning(tmp_path: Path) -> None:
    findings = await check(tmp_path, preset="gemini", mode="yolo", env={"GEMINI_API_KEY": "k"})
    assert messages(findings, Level.WARNING) == [
        "In mode `yolo`, Gemini CLI may change files or run commands without asking."
    ]
    assert "Remove agents.coder.mode to use `default`" in str(findings)
    findings = await check(tmp_path, preset="gemini", mode="plan", env={"GEMINI_API_KEY": "k"})
    assert messages(findings, Level.WARNING) == []


@needs_sandbox
async def test_an_unknown_program_without_a_mode_is_a_warning(tmp_path: Path) -> None:
    findings = await check(tmp_path, command=["sh"])
    assert messages(findings, Level.WARNING) == [
        "Gatehouse does not know sh, so its own default mode decides what it asks about."
    ]


@needs_sandbox
@pytest.mark.usefixtures("installed")
async def test_a_missing_key_is_a_warning(tmp_path: Path) -> None:
    findings = await check(tmp_path, preset="gemini")
    assert messages(findings, Level.WARNING) == ["Gemini CLI has no API key and no home with a login."]
    findings = await check(tmp_path, preset="gemini", sandbox={"home": tmp_path / "home"})
    assert messages(findings, Level.WARNING) == []


async def test_a_missing_sandbox_is_an_error(tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(installed))
    findings = await check(tmp_path, preset="gemini", env={"GEMINI_API_KEY": "k"})
    (message,) = messages(findings, Level.ERROR)
    assert "The operator can install" in message


async def test_a_missing_program_is_left_to_the_check_of_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await check(tmp_path, preset="gemini") == []
