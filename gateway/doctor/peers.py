"""Real calls to everybody that the gateway depends on: platforms, models, and the sandbox of the shell.

They are made by the process that has the secrets and the walls of the gateway: the daemon itself, when it runs.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import aclosing
from pathlib import Path

from config import Backend, ProviderKind, ProviderSettings, Settings
from gateway.agent.provider import Closes, Prompt
from gateway.agent.providers import open_provider
from gateway.agent.toolbox.shell import guarded, script_for
from gateway.contract import Channel, ProvesAccess
from gateway.dialogue import UserMessage
from gateway.doctor.finding import Finding, fine, odd, wrong
from gateway.errors import AuthRejected, ChannelError, ModelUnavailable, ProviderFailed
from gateway.sandbox.walls import NoSandbox

__all__ = ["DEADLINE", "peers", "prove_channel", "prove_model"]

DEADLINE = 25.0
"""Seconds for a call. What has to be imported for it does not count: on a slow machine that takes longer."""
_NO_SANDBOX = (
    "Install bubblewrap and util-linux, and allow user namespaces; under the system's service, "
    "`gatehouse service install --system` brings the units that the sandbox needs."
)


async def peers(settings: Settings, channels: Mapping[tuple[str, str], Channel], deadline: float) -> list[Finding]:
    """Ask all of them at once."""
    asking: list[Coroutine[None, None, Finding]] = [
        *(prove_channel(channel, deadline) for channel in channels.values() if isinstance(channel, ProvesAccess)),
        *(prove_model(name, settings.providers[name], model, deadline) for name, model in _models(settings)),
        _sandbox(settings),
    ]
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(each, name=f"doctor:{number}") for number, each in enumerate(asking)]
    return [each.result() for each in asked]


async def prove_channel(channel: Channel, deadline: float) -> Finding:
    """Have the platform say whom it takes us for."""
    account = "" if channel.account == "default" else f".accounts.{channel.account}"
    about = f"channels.{channel.name}{account}"
    assert isinstance(channel, ProvesAccess), "only those are asked"  # noqa: S101 - for mypy and the reader
    try:
        return fine(about, f"The platform knows this bot as {await channel.prove_access(deadline)}.")
    except AuthRejected as refusal:
        return wrong(about, str(refusal), f"Put a token that is valid into {about}.token.")
    except ChannelError as trouble:
        return wrong(about, str(trouble), f"Look after the network, and after {about}.api_base if it is set.")
    except TimeoutError:
        return wrong(about, f"The platform has not answered for {deadline:g} seconds.", "Look after the network.")


def _models(settings: Settings) -> list[tuple[str, str | None]]:
    """Name each model that an agent may ask, once, by its provider and its name there."""
    return list(dict.fromkeys(_used(settings)))


def _used(settings: Settings) -> Iterator[tuple[str, str | None]]:
    for agent in settings.agents.values():
        if agent.backend is not Backend.LLM:
            continue
        yield agent.provider, agent.model
        for full in agent.fallbacks:
            provider, _, model = full.partition("/")
            yield (provider, model) if provider in settings.providers else (agent.provider, full)


async def prove_model(name: str, settings: ProviderSettings, model: str | None, deadline: float) -> Finding:
    """Ask the model for a word. That costs a few tokens, and is what a turn does."""
    about = f"providers.{name}"
    if settings.kind is ProviderKind.OFFLINE:
        return fine(about, "The offline responder needs nobody.")
    try:
        await _hear_out(name, settings, model, deadline)
    except ModelUnavailable as refusal:
        return wrong(about, str(refusal), f"Check {about}.api_key, {about}.base_url and the agent's `model`.")
    except ProviderFailed as trouble:
        return wrong(about, str(trouble), f"Check {about}.base_url, the network, and the provider's own status page.")
    except TimeoutError:
        said = f"The model `{model}` has not said a word for {deadline:g} seconds."
        return wrong(about, said, f"Check {about}.base_url and the network; a local model may still be loading.")
    return fine(about, f"The model `{model}` answers.")


async def _hear_out(name: str, settings: ProviderSettings, model: str | None, deadline: float) -> None:
    """Load the SDK, however long that takes; `TimeoutError` is about the model alone."""
    provider = await asyncio.to_thread(open_provider, settings, name=name)
    prompt = Prompt(system="Answer with one word.", messages=[UserMessage(text="Are you there?")], model=model)
    try:
        if isinstance(provider, Closes):
            await provider.warm_up()
        async with asyncio.timeout(deadline), aclosing(provider.stream(prompt)) as chunks:
            async for _ in chunks:
                pass
    finally:
        if isinstance(provider, Closes):
            await provider.aclose()


async def _sandbox(settings: Settings) -> Finding:
    shell = settings.tools.shell
    if not shell.enabled:
        return fine("sandbox", "The shell is off, so that no sandbox is needed.")
    where = await asyncio.to_thread(_some_folder, settings)
    try:
        ended = await guarded(script_for(":", where, shell), shell)
    except NoSandbox as missing:
        level = odd if shell.allow_unsandboxed else wrong
        return level("sandbox", str(missing), _NO_SANDBOX)
    if ended.exit_code or ended.stopped_for:
        return wrong("sandbox", f"No command can be run in {where}: {ended.stopped_for or ended.output}", _NO_SANDBOX)
    return fine("sandbox", "Commands run in bubblewrap.")


def _some_folder(settings: Settings) -> Path:
    """Return the folder of the workspaces; before there is any, another that is there."""
    gateway = settings.gateway
    return next(path for path in (gateway.workspace_root, gateway.data_dir, Path("/")) if path.is_dir())
