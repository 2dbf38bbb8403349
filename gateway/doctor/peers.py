"""Real calls to everything that the gateway depends on: platforms, models, the search engine, and the shell's sandbox.

The process with the gateway's secrets and restrictions makes the calls: the daemon itself while it runs.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path

from config import Backend, ProviderKind, ProviderSettings, SearchSettings, Settings
from gateway.agent.protocol import Closable, Prompt
from gateway.agent.providers.registry import open_provider
from gateway.agent.toolbox.shell import run_in_sandbox, sandbox_command
from gateway.contract import Channel, ProvesAccess
from gateway.conversation import UserMessage
from gateway.doctor.coding_agents import SANDBOX_FIX, check_coding_agents
from gateway.doctor.finding import Finding, error, ok, warning
from gateway.doctor.media import media_checks
from gateway.doctor.skills import check_skills
from gateway.doctor.tracing import check_tracing
from gateway.errors import AuthRejected, ChannelError, ModelUnavailable, ProviderFailed
from gateway.mcp.server import McpServers
from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.text.plain import count, took
from gateway.web_search.search import SearchFailed, SearchKeyRejected, search

DEADLINE = 25.0
"""Seconds for a call. Imports do not count, since they can take longer than that on a slow machine."""
_FILTERED = "2"
"""The kernel's SECCOMP_MODE_FILTER."""


async def check_peers(
    settings: Settings, channels: Mapping[tuple[str, str], Channel], deadline: float
) -> list[Finding]:
    """Call all platforms, all models that an agent may use, and the sandboxes at the same time."""
    models: list[tuple[str, str | None]] = []
    for agent in settings.agents.values():
        if agent.backend is Backend.LLM:
            models.append((agent.provider, agent.model))
            for full in agent.fallbacks:
                provider, _, model = full.partition("/")
                models.append((provider, model) if provider in settings.providers else (agent.provider, full))
    checks: list[Coroutine[None, None, Finding]] = [
        *(check_channel(channel, deadline) for channel in channels.values() if isinstance(channel, ProvesAccess)),
        *(check_model(name, settings.providers[name], model, deadline) for name, model in dict.fromkeys(models)),
        check_sandbox(settings),
        *([check_search(settings.tools.search)] if settings.tools.search.engine else []),
        *media_checks(settings, deadline),
        *([check_tracing(settings)] if settings.tracing.endpoint is not None else []),
    ]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(check, name=f"doctor:{number}") for number, check in enumerate(checks)]
        programs = group.create_task(check_coding_agents(settings), name="doctor:programs")
    skills = await asyncio.to_thread(check_skills, settings)
    return [*(task.result() for task in tasks), *programs.result(), *skills]


async def check_channel(channel: Channel, deadline: float) -> Finding:
    """Ask the platform for the bot's name."""
    account = "" if channel.account == "default" else f".accounts.{channel.account}"
    about = f"channels.{channel.name}{account}"
    assert isinstance(channel, ProvesAccess), "callers select these"  # noqa: S101 - for mypy and the reader.
    try:
        return ok(about, f"The platform accepts this bot as {await channel.prove_access(deadline)}.")
    except AuthRejected as rejection:
        return error(about, str(rejection), f"Put a valid token into {about}.token.")
    except ChannelError as failure:
        return error(about, str(failure), f"Check the network and {about}.api_base, if it is set.")
    except TimeoutError:
        return error(about, f"The platform hasn't answered for {took(deadline)}.", "Check the network.")


async def check_model(name: str, settings: ProviderSettings, model: str | None, deadline: float) -> Finding:
    """Ask the model for one word, in the same way as a turn does. It costs a few tokens."""
    about = f"providers.{name}"
    if settings.kind is ProviderKind.OFFLINE:
        return ok(about, "The offline responder needs no connection.")
    prompt = Prompt(system="Answer with one word.", messages=[UserMessage(text="Are you there?")], model=model)
    try:
        provider = await asyncio.to_thread(open_provider, settings, name=name)
        try:
            if isinstance(provider, Closable):
                await provider.warm_up()  # The deadline is for the model only.
            async with asyncio.timeout(deadline), aclosing(provider.stream(prompt)) as chunks:
                async for _ in chunks:
                    pass
        finally:
            if isinstance(provider, Closable):
                await provider.aclose()
    except ModelUnavailable as failure:
        return error(about, str(failure), f"Check {about}.api_key, {about}.base_url and the agent's `model`.")
    except ProviderFailed as failure:
        return error(about, str(failure), f"Check {about}.base_url, the network, and the provider's status page.")
    except TimeoutError:
        message = f"The model `{model}` hasn't answered for {took(deadline)}."
        return error(about, message, f"Check {about}.base_url and the network. A local model may still be loading.")
    return ok(about, f"The model `{model}` answers.")


async def check_search(settings: SearchSettings) -> Finding:
    """Search for a word, as the tool does. It costs one search."""
    about = "tools.search"
    try:
        results = await search(settings, "weather")
    except SearchKeyRejected as rejection:
        fix = f"Put a valid key into {about}.{'api_key' if settings.api_key is not None else 'headers'}."
        return error(about, str(rejection).partition(" Only the operator")[0], fix)
    except SearchFailed as failure:
        fix = f"Check the network, and {about}.url and {about}.engine."
        return error(about, str(failure).partition(" Only the operator")[0], fix)
    if not results:
        message = f"The search engine {settings.engine} answers, but found nothing for a common word."
        return warning(about, message, "Check its own settings, and the JSON Pointers of a template.")
    return ok(about, f"The search engine {settings.engine} answers.")


def check_mcp(servers: McpServers) -> Iterator[Finding]:
    """Report the MCP servers of the running daemon, and the tools that they may not add."""
    for server in servers:
        about = f"mcp.{server.name}"
        if server.trouble:
            yield error(about, f"The server cannot be used: {server.trouble}.", f"Check the settings in {about}.")
        elif not server.left_out:
            yield ok(about, f"The server has {count(len(server.tools), 'tool')}.")
        for each in server.left_out:
            message = f"The tool `{each.name}` is left out: {each.reason}."
            yield warning(about, message, f"If an agent needs this tool, raise that limit in {about}.")


async def check_sandbox(settings: Settings) -> Finding:
    shell, gateway = settings.tools.shell, settings.gateway
    if not shell.enabled:
        return ok("sandbox", "The shell is off, so it needs no sandbox.")
    # Before the first start, the folder of the workspaces may not exist.
    folders = (gateway.workspace_root, gateway.data_dir, Path("/"))
    folder = await asyncio.to_thread(lambda: next(path for path in folders if path.is_dir()))
    try:
        ended = await run_in_sandbox(sandbox_command("grep ^Seccomp: /proc/self/status", folder, shell), shell)
    except SandboxUnavailable as failure:
        return (warning if shell.allow_unsandboxed else error)("sandbox", str(failure), SANDBOX_FIX)
    if ended.exit_code or ended.stopped_for:
        return error("sandbox", f"Can't run commands in {folder}: {ended.stopped_for or ended.output}", SANDBOX_FIX)
    if ended.output.split()[-1:] != [_FILTERED]:
        message = "Commands run in bubblewrap, but without a filter for system calls, which this machine lacks."
        return warning("sandbox", message, "Use an x86_64 or aarch64 machine, or keep the shell off.")
    return ok("sandbox", "Commands run in bubblewrap, with a filter for system calls.")
