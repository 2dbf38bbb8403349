"""Checks of coding agents: their programs, the modes in which they ask, their keys and their sandboxes."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from config import AgentSettings, Backend, Settings
from config.types import AgentPreset
from gateway.acp.presets import PRESETS, Preset, effective, preset_of
from gateway.acp.programs import AgentProgram, ProgramMissing, find_program, read_version
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.sandbox.bubblewrap import SandboxLimits, SandboxUnavailable
from gateway.sandbox.program import SandboxedProgram, run_program
from gateway.text import excerpt

SANDBOX_FIX = (
    "Install bubblewrap and util-linux, and allow user namespaces. For the system service, "
    "`gatehouse service install --system` installs the units that the sandbox needs."
)
_PROBE_SECONDS = 20.0
_PROBE_BYTES = 2000
_WIDTH = 200


async def check_coding_agents(settings: Settings) -> list[Finding]:
    """Check each coding agent, and say which of the known programs are installed here."""
    findings = [
        finding
        for name, agent in settings.agents.items()
        if agent.backend is Backend.ACP
        async for finding in _check_agent(name, agent, settings)
    ]
    installed = []
    for preset in AgentPreset:
        known = AgentSettings(backend=Backend.ACP, preset=preset)
        try:
            program = await asyncio.to_thread(_find, known, settings)
        except ProgramMissing:
            continue
        version = await _version(program, PRESETS[preset], settings)
        installed.append(f"{PRESETS[preset].name} {version}".strip() + f' ("{preset}")')
    if installed:
        findings.append(ok("coding agents", f"Installed here, each with its preset: {', '.join(installed)}."))
    return findings


async def _check_agent(name: str, agent: AgentSettings, settings: Settings) -> AsyncIterator[Finding]:
    about, preset = f"agents.{name}", effective(agent)
    try:
        program = await asyncio.to_thread(_find, agent, settings)
    except ProgramMissing:
        return  # Reported as a problem of the configuration.
    version = await _version(program, preset, settings)
    mode = f"in mode `{preset.mode}`" if preset.mode else "in its own default mode"
    network = "with network" if agent.sandbox.network else "without network"
    yield ok(about, f"{f'{preset.name} {version}'.strip()} at {program.argv[0]}, {mode}, {network}.")

    known = PRESETS[chosen] if (chosen := preset_of(agent)) else None
    if preset.mode is None:
        message = f"Gatehouse does not know {preset.name}, so its own default mode decides what it asks about."
        yield warning(about, message, f"Set {about}.mode to a mode in which it asks before it changes anything.")
    elif known is not None and preset.mode != known.mode and not preset.mode.endswith("plan"):
        message = f"In mode `{preset.mode}`, {preset.name} may change files or run commands without asking."
        yield warning(about, message, f"Remove {about}.mode to use `{known.mode}`, in which it asks.")
    if preset.api_keys and not set(preset.api_keys) & agent.env.keys() and agent.sandbox.home is None:
        message = f"{preset.name} has no API key and no home with a login."
        fix = (
            f"Set {' or '.join(preset.api_keys)} in {about}.env, or set {about}.sandbox.home to a folder with a login."
        )
        yield warning(about, message, fix)
    yield await _check_sandbox(about, program, agent, settings)


async def _check_sandbox(about: str, program: AgentProgram, agent: AgentSettings, settings: Settings) -> Finding:
    """Make the sandbox of the agent, and look for its program there."""
    probe = SandboxedProgram(
        argv=("/bin/sh", "-c", 'test -x "$0"', program.argv[0]),
        env={},
        cwd=Path("/"),
        writable=(),
        readable=(*program.readable, *agent.sandbox.readable),
        hidden=(settings.gateway.data_dir,),
        network=agent.sandbox.network,
        limits=SandboxLimits(memory_bytes=agent.sandbox.memory_mb * 1024**2, processes=agent.sandbox.max_processes),
    )
    try:
        ended = await run_program(
            probe, seconds=_PROBE_SECONDS, max_output=_PROBE_BYTES, service=settings.tools.shell.sandbox_socket
        )
    except SandboxUnavailable as failure:
        return error(about, str(failure), SANDBOX_FIX)
    if ended.exit_code or ended.stopped_for:
        reason = excerpt(ended.stopped_for or ended.output, _WIDTH) or f"it has no {program.argv[0]}"
        fix = f"List the files that the program needs in {about}.sandbox.readable."
        return error(about, f"The sandbox cannot run the program: {reason}.", fix)
    return ok(about, "Its sandbox works, and contains the program.")


def _find(agent: AgentSettings, settings: Settings) -> AgentProgram:
    private = (settings.gateway.data_dir, settings.gateway.workspace_root)
    return find_program(agent, os.environ.get("PATH", os.defpath), private=private)


async def _version(program: AgentProgram, preset: Preset, settings: Settings) -> str:
    try:
        return await read_version(program, preset, settings.tools.shell.sandbox_socket)
    except SandboxUnavailable:
        return ""  # Another finding says so.
